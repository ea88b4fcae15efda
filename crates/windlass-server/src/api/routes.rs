//! The routes of the API, from which both the router and the OpenAPI description are made.

use std::sync::Arc;

use axum::Router;
use axum::http::Method;
use axum::routing::MethodRouter;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::Value;

use crate::access::AccessRole;
use crate::server::ServerState;

/// Writes the schema of a type into the shared definitions.
type SchemaFunction = fn(&mut SchemaGenerator) -> Value;

/// One operation of the API.
pub(crate) struct ApiRoute {
    pub(crate) method: Method,
    pub(crate) path: &'static str,
    pub(crate) operation: &'static str,
    pub(crate) summary: &'static str,
    pub(crate) role: Option<AccessRole>,
    pub(crate) query: Option<SchemaFunction>,
    pub(crate) body: Option<ContentSchema>,
    pub(crate) answers: Vec<(u16, &'static str, Option<ContentSchema>)>,
    handler: MethodRouter<Arc<ServerState>>,
}

/// The media type and schema of a body.
#[derive(Clone, Copy)]
pub(crate) struct ContentSchema {
    pub(crate) media_type: &'static str,
    /// Absent for text.
    pub(crate) schema: Option<SchemaFunction>,
}

fn schema_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    generator.subschema_for::<T>().to_value()
}

fn root_schema_of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
    T::json_schema(generator).to_value()
}

fn json_content<T: JsonSchema>() -> ContentSchema {
    ContentSchema { media_type: "application/json", schema: Some(schema_of::<T>) }
}

impl ApiRoute {
    pub(crate) fn new(
        method: Method,
        path: &'static str,
        operation: &'static str,
        summary: &'static str,
        handler: MethodRouter<Arc<ServerState>>,
    ) -> Self {
        Self {
            method,
            path,
            operation,
            summary,
            role: None,
            query: None,
            body: None,
            answers: Vec::new(),
            handler,
        }
    }

    /// Sets the right that the operation needs for the agent of the run.
    pub(crate) fn needs(mut self, role: AccessRole) -> Self {
        self.role = Some(role);
        self
    }

    /// Sets the type of the query.
    pub(crate) fn query<T: JsonSchema>(mut self) -> Self {
        self.query = Some(root_schema_of::<T>);
        self
    }

    /// Sets the type of the JSON body.
    pub(crate) fn body<T: JsonSchema>(mut self) -> Self {
        self.body = Some(json_content::<T>());
        self
    }

    /// Sets the media type of a text body.
    pub(crate) fn text_body(mut self, media_type: &'static str) -> Self {
        self.body = Some(ContentSchema { media_type, schema: None });
        self
    }

    /// Adds an answer with a JSON body.
    pub(crate) fn answers<T: JsonSchema>(mut self, status: u16, description: &'static str) -> Self {
        self.answers.push((status, description, Some(json_content::<T>())));
        self
    }

    /// Adds an answer with a text body.
    pub(crate) fn answers_text(mut self, media_type: &'static str, description: &'static str) -> Self {
        self.answers.push((200, description, Some(ContentSchema { media_type, schema: None })));
        self
    }
}

/// Makes the router of the routes.
pub(crate) fn router_of(routes: Vec<ApiRoute>) -> Router<Arc<ServerState>> {
    routes.into_iter().fold(Router::new(), |router, route| router.route(route.path, route.handler))
}
