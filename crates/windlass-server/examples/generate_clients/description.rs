//! The parts of an OpenAPI description that a client needs.

use serde_json::Value;

/// The operations and types of an API.
pub(crate) struct ApiDescription {
    pub(crate) operations: Vec<ApiOperation>,
    pub(crate) types: Vec<(String, ApiType)>,
}

/// One operation.
pub(crate) struct ApiOperation {
    /// Name in lower case with underscores.
    pub(crate) name: String,
    pub(crate) summary: String,
    pub(crate) method: String,
    /// Path with its parameters in braces.
    pub(crate) path: String,
    pub(crate) path_parameters: Vec<String>,
    pub(crate) query: Vec<ApiField>,
    pub(crate) body: Option<BodyKind>,
    pub(crate) answer: AnswerKind,
}

/// The body of a request.
pub(crate) enum BodyKind {
    Json(ApiType),
    Text,
}

/// The body of an answer.
pub(crate) enum AnswerKind {
    Json(ApiType),
    Text,
    Events,
}

/// A field of an object, or a parameter of a query.
pub(crate) struct ApiField {
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    pub(crate) is_required: bool,
    pub(crate) kind: ApiType,
}

/// A type, as JSON Schema describes it.
pub(crate) enum ApiType {
    Any,
    Null,
    Text,
    Integer,
    Number,
    Boolean,
    /// One of these texts.
    Literal(Vec<String>),
    List(Box<Self>),
    /// An object with any names.
    Map(Box<Self>),
    Object {
        description: Option<String>,
        fields: Vec<ApiField>,
    },
    Union(Vec<Self>),
    Named(String),
}

impl ApiDescription {
    /// Reads a description.
    pub(crate) fn read(description: &Value) -> Self {
        let mut operations = Vec::new();
        for (path, methods) in description["paths"].as_object().into_iter().flatten() {
            for (method, operation) in methods.as_object().into_iter().flatten() {
                operations.push(read_operation(path, method, operation));
            }
        }
        let schemas = description["components"]["schemas"].as_object().into_iter().flatten();
        Self { operations, types: schemas.map(|(name, schema)| (name.clone(), read_type(schema))).collect() }
    }
}

fn read_operation(path: &str, method: &str, operation: &Value) -> ApiOperation {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let parameters = |place: &'static str| {
        let all = operation["parameters"].as_array().into_iter().flatten();
        all.filter(move |parameter| parameter["in"] == place)
    };
    let content = |content: &Value| {
        content
            .as_object()
            .and_then(|all| all.iter().next())
            .map(|(kind, body)| (kind.clone(), body["schema"].clone()))
    };
    let answers = operation["responses"].as_object().into_iter().flatten();
    let answers = answers
        .filter(|(status, _)| status.starts_with('2'))
        .filter_map(|(_, answer)| content(&answer["content"]));
    let mut answer = AnswerKind::Text;
    for (kind, schema) in answers {
        answer = match kind.as_str() {
            "application/json" => AnswerKind::Json(read_type(&schema)),
            "text/event-stream" => AnswerKind::Events,
            _ => AnswerKind::Text,
        };
    }
    ApiOperation {
        name: text(&operation["operationId"]),
        summary: text(&operation["summary"]),
        method: method.to_uppercase(),
        path: path.to_owned(),
        path_parameters: parameters("path").map(|parameter| text(&parameter["name"])).collect(),
        query: parameters("query")
            .map(|parameter| ApiField {
                name: text(&parameter["name"]),
                description: parameter["description"].as_str().map(str::to_owned),
                is_required: parameter["required"] == true,
                kind: read_type(&parameter["schema"]),
            })
            .collect(),
        body: content(&operation["requestBody"]["content"]).map(|(kind, schema)| match kind.as_str() {
            "application/json" => BodyKind::Json(read_type(&schema)),
            _ => BodyKind::Text,
        }),
        answer,
    }
}

fn read_type(schema: &Value) -> ApiType {
    if let Some(name) = schema["$ref"].as_str() {
        return ApiType::Named(name.rsplit('/').next().unwrap_or(name).to_owned());
    }
    if let Some(text) = schema["const"].as_str() {
        return ApiType::Literal(vec![text.to_owned()]);
    }
    if let Some(texts) = schema["enum"].as_array() {
        return ApiType::Literal(texts.iter().filter_map(Value::as_str).map(str::to_owned).collect());
    }
    for word in ["oneOf", "anyOf"] {
        if let Some(parts) = schema[word].as_array() {
            return ApiType::Union(parts.iter().map(read_type).collect());
        }
    }
    match &schema["type"] {
        Value::String(kind) => read_kind(kind, schema),
        Value::Array(kinds) => ApiType::Union(
            kinds.iter().filter_map(Value::as_str).map(|kind| read_kind(kind, schema)).collect(),
        ),
        _ => ApiType::Any,
    }
}

fn read_kind(kind: &str, schema: &Value) -> ApiType {
    match kind {
        "null" => ApiType::Null,
        "string" => ApiType::Text,
        "integer" => ApiType::Integer,
        "number" => ApiType::Number,
        "boolean" => ApiType::Boolean,
        "array" => ApiType::List(Box::new(read_type(&schema["items"]))),
        "object" => match schema["properties"].as_object() {
            Some(properties) => {
                let required: Vec<&str> =
                    schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                let field = |(name, kind): (&String, &Value)| ApiField {
                    name: name.clone(),
                    description: kind["description"].as_str().map(str::to_owned),
                    is_required: required.contains(&name.as_str()),
                    kind: read_type(kind),
                };
                let description = schema["description"].as_str().map(str::to_owned);
                ApiType::Object { description, fields: properties.iter().map(field).collect() }
            }
            None => ApiType::Map(Box::new(read_type(&schema["additionalProperties"]))),
        },
        _ => ApiType::Any,
    }
}

/// The first letter of a name in capitals within words.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FirstLetter {
    Capital,
    Small,
}

/// Writes words with underscores as one word with capitals.
pub(crate) fn camel_case(name: &str, first: FirstLetter) -> String {
    let parts = name.split('_').enumerate();
    parts
        .map(|(place, part)| match part.chars().next() {
            Some(letter) if first == FirstLetter::Capital || place > 0 => {
                format!("{}{}", letter.to_ascii_uppercase(), &part[letter.len_utf8()..])
            }
            _ => part.to_owned(),
        })
        .collect()
}
