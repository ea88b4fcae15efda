//! The client for TypeScript: types, and a method for each operation.

use std::fmt::Write as _;

use super::description::{
    AnswerKind, ApiDescription, ApiField, ApiOperation, ApiType, BodyKind, FirstLetter, camel_case,
};

/// Writes the client.
pub(crate) fn write_client(api: &ApiDescription) -> String {
    let mut written = include_str!("runtime.ts").to_owned();
    for (name, kind) in &api.types {
        match kind {
            ApiType::Object { description, fields } => {
                if let Some(description) = description {
                    let _ = write!(written, "\n/** {description} */");
                }
                let _ = write!(written, "\nexport interface {name} {{\n{}}}\n", object_fields(fields, 1));
            }
            other => {
                let _ = write!(written, "\nexport type {name} = {};\n", text_of(other, 0));
            }
        }
    }
    written.push_str(
        "\n/** The operations of a Windlass server. */\nexport class WindlassApi extends ApiConnection {",
    );
    api.operations.iter().for_each(|operation| write_method(&mut written, operation));
    written.push_str("}\n");
    written
}

fn object_fields(fields: &[ApiField], depth: usize) -> String {
    let indent = "  ".repeat(depth);
    fields
        .iter()
        .map(|field| {
            let note = field
                .description
                .as_deref()
                .map(|note| format!("{indent}/** {note} */\n"))
                .unwrap_or_default();
            let mark = if field.is_required { "" } else { "?" };
            format!("{note}{indent}{}{mark}: {};\n", field.name, text_of(&field.kind, depth))
        })
        .collect()
}

fn text_of(kind: &ApiType, depth: usize) -> String {
    match kind {
        ApiType::Any => "unknown".to_owned(),
        ApiType::Null => "null".to_owned(),
        ApiType::Text => "string".to_owned(),
        ApiType::Integer | ApiType::Number => "number".to_owned(),
        ApiType::Boolean => "boolean".to_owned(),
        ApiType::Literal(texts) => {
            texts.iter().map(|text| format!("{text:?}")).collect::<Vec<_>>().join(" | ")
        }
        ApiType::List(item) => format!("Array<{}>", text_of(item, depth)),
        ApiType::Map(value) => format!("Record<string, {}>", text_of(value, depth)),
        ApiType::Named(name) => name.clone(),
        ApiType::Union(parts) => {
            parts.iter().map(|part| text_of(part, depth)).collect::<Vec<_>>().join(" | ")
        }
        ApiType::Object { fields, .. } => {
            format!("{{\n{}{}}}", object_fields(fields, depth + 1), "  ".repeat(depth))
        }
    }
}

fn write_method(written: &mut String, operation: &ApiOperation) {
    let mut parameters: Vec<String> =
        operation.path_parameters.iter().map(|name| format!("{name}: string")).collect();
    let body = match &operation.body {
        Some(BodyKind::Json(kind)) => {
            parameters.push(format!("body: {}", text_of(kind, 1)));
            ", { json: body }"
        }
        Some(BodyKind::Text) => {
            parameters.push("body: string".to_owned());
            ", { text: body }"
        }
        None => "",
    };
    if !operation.query.is_empty() {
        let fields: Vec<String> = operation
            .query
            .iter()
            .map(|field| {
                format!(
                    "{}{}: {}",
                    field.name,
                    if field.is_required { "" } else { "?" },
                    text_of(&field.kind, 1)
                )
            })
            .collect();
        let default = if operation.query.iter().any(|field| field.is_required) { "" } else { " = {}" };
        parameters.push(format!("query: {{ {} }}{default}", fields.join("; ")));
    }
    let (answer, act) = match &operation.answer {
        AnswerKind::Json(kind) => (format!("Promise<{}>", text_of(kind, 1)), "json"),
        AnswerKind::Text => ("Promise<string>".to_owned(), "text"),
        AnswerKind::Events => ("AsyncGenerator<ServerEvent>".to_owned(), "events"),
    };
    let mut path = operation.path.clone();
    for name in &operation.path_parameters {
        path = path.replace(&format!("{{{name}}}"), &format!("${{encodeURIComponent({name})}}"));
    }
    let query = if operation.query.is_empty() { "{}" } else { "query" };
    let _ = write!(
        written,
        "\n  /** {} */\n  {}({}): {answer} {{\n    return this.{act}({:?}, `{path}`, {query}{body});\n  }}\n",
        operation.summary,
        camel_case(&operation.name, FirstLetter::Small),
        parameters.join(", "),
        operation.method,
    );
}
