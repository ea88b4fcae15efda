//! The OpenAPI description, made from the routes that the router is made from.

use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::error::ErrorBody;
use super::routes::{ApiRoute, ContentSchema};

/// Describes the routes in OpenAPI 3.1.
pub(crate) fn describe_routes(routes: &[ApiRoute]) -> Value {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.definitions_path = "/components/schemas".into();
        settings.meta_schema = None;
    });
    let mut generator = settings.into_generator();
    let error = generator.subschema_for::<ErrorBody>().to_value();
    let mut paths: Map<String, Value> = Map::new();
    for route in routes {
        let mut content = |content: &ContentSchema| {
            let schema = match content.schema {
                Some(schema) => schema(&mut generator),
                None => json!({ "type": "string" }),
            };
            json!({ content.media_type: { "schema": schema } })
        };
        let mut responses = Map::new();
        for (status, description, body) in &route.answers {
            let mut response = json!({ "description": description });
            if let Some(body) = body {
                response["content"] = content(body);
            }
            responses.insert(status.to_string(), response);
        }
        responses.insert(
            "default".to_owned(),
            json!({ "description": "The request was refused or failed.",
                "content": { "application/json": { "schema": error } } }),
        );
        let mut operation = json!({
            "operationId": route.operation, "summary": route.summary, "responses": responses,
        });
        if let Some(role) = route.role {
            operation["description"] = json!(format!("Needs the right `{}`.", role.name()));
        }
        if let Some(body) = &route.body {
            operation["requestBody"] = json!({ "required": true, "content": content(body) });
        }
        let mut parameters = path_parameters(route.path);
        if let Some(query) = route.query {
            parameters.extend(query_parameters(&query(&mut generator)));
        }
        if !parameters.is_empty() {
            operation["parameters"] = Value::Array(parameters);
        }
        let entry = paths.entry(route.path.replace("{*", "{")).or_insert_with(|| json!({}));
        entry[route.method.as_str().to_lowercase()] = operation;
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Windlass",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Runs of agents: start, watch, decide, fork and compare them.",
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "security": [{ "token": [] }, {}],
        "paths": paths,
        "components": {
            "schemas": generator.take_definitions(true),
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
    })
}

fn path_parameters(path: &str) -> Vec<Value> {
    path.split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
        .map(|name| {
            json!({ "name": name.trim_start_matches('*'), "in": "path", "required": true,
                "schema": { "type": "string", "minLength": 1 } })
        })
        .collect()
}

fn query_parameters(schema: &Value) -> Vec<Value> {
    let required: Vec<&str> =
        schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let properties = schema["properties"].as_object().into_iter().flatten();
    properties
        .map(|(name, schema)| {
            let mut schema = schema.clone();
            let description = schema.as_object_mut().and_then(|schema| schema.remove("description"));
            // A query has no null.
            if let Some(kinds) = schema.get_mut("type").and_then(Value::as_array_mut) {
                kinds.retain(|kind| kind != "null");
                if let [only] = kinds.as_slice() {
                    schema["type"] = only.clone();
                }
            }
            json!({ "name": name, "in": "query", "required": required.contains(&name.as_str()),
                "description": description, "schema": schema })
        })
        .collect()
}
