//! The client for Python: types as `TypedDict`, and a method for each operation.

use std::fmt::Write as _;

use super::description::{
    AnswerKind, ApiDescription, ApiField, ApiOperation, ApiType, BodyKind, FirstLetter, camel_case,
};

/// Words that cannot be names of parameters.
const KEYWORDS: [&str; 4] = ["from", "with", "import", "is"];

/// Writes the client.
pub(crate) fn write_client(api: &ApiDescription) -> String {
    let mut written = include_str!("runtime.py").to_owned();
    let mut types = TypeWriter::default();
    for (name, kind) in &api.types {
        let text = types.text_of(name, kind);
        if text != *name {
            let _ = write!(types.written, "\n\n{name}: TypeAlias = {text:?}\n");
        }
    }
    written.push_str(&types.written);
    written.push_str(
        "\n\nclass WindlassApi(ApiConnection):\n    \"\"\"The operations of a Windlass server.\"\"\"\n",
    );
    for operation in &api.operations {
        write_method(&mut written, operation);
    }
    written
}

/// Writes types, each object under a name of its own.
#[derive(Default)]
struct TypeWriter {
    written: String,
}

impl TypeWriter {
    /// Returns the text of a type. Objects are written under the name.
    fn text_of(&mut self, name: &str, kind: &ApiType) -> String {
        match kind {
            ApiType::Any => "Any".to_owned(),
            ApiType::Null => "None".to_owned(),
            ApiType::Text => "str".to_owned(),
            ApiType::Integer => "int".to_owned(),
            ApiType::Number => "float".to_owned(),
            ApiType::Boolean => "bool".to_owned(),
            ApiType::Literal(texts) => {
                format!(
                    "Literal[{}]",
                    texts.iter().map(|text| format!("{text:?}")).collect::<Vec<_>>().join(", ")
                )
            }
            ApiType::List(item) => format!("list[{}]", self.text_of(&format!("{name}Item"), item)),
            ApiType::Map(value) => format!("dict[str, {}]", self.text_of(&format!("{name}Value"), value)),
            ApiType::Named(other) => other.clone(),
            ApiType::Union(parts) => {
                let part_name = |part: &ApiType| match tag_of(part) {
                    Some(tag) => format!("{name}{}", camel_case(tag, FirstLetter::Capital)),
                    None => name.to_owned(),
                };
                let texts: Vec<String> =
                    parts.iter().map(|part| self.text_of(&part_name(part), part)).collect();
                texts.join(" | ")
            }
            ApiType::Object { description, fields } => {
                self.write_object(name, description.as_deref(), fields);
                name.to_owned()
            }
        }
    }

    fn write_object(&mut self, name: &str, description: Option<&str>, fields: &[ApiField]) {
        let lines: Vec<String> = fields
            .iter()
            .map(|field| {
                let text = self.text_of(
                    &format!("{name}{}", camel_case(&field.name, FirstLetter::Capital)),
                    &field.kind,
                );
                let text = if field.is_required { text } else { format!("NotRequired[{text}]") };
                let note = field
                    .description
                    .as_deref()
                    .map(|note| format!("  # {}", one_line(note)))
                    .unwrap_or_default();
                format!("    {}: {text}{note}\n", field.name)
            })
            .collect();
        let _ = write!(self.written, "\n\nclass {name}(TypedDict):\n");
        if let Some(description) = description {
            let _ = writeln!(self.written, "    \"\"\"{}\"\"\"\n", one_line(description));
        }
        self.written.push_str(if lines.is_empty() { "    pass\n" } else { "" });
        lines.iter().for_each(|line| self.written.push_str(line));
    }
}

/// Returns the tag of a variant.
fn tag_of(part: &ApiType) -> Option<&str> {
    let ApiType::Object { fields, .. } = part else { return None };
    fields.iter().find(|field| field.name == "type").and_then(|field| match &field.kind {
        ApiType::Literal(texts) => texts.first().map(String::as_str),
        _ => None,
    })
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn parameter_name(name: &str) -> String {
    if KEYWORDS.contains(&name) { format!("{name}_") } else { name.to_owned() }
}

fn write_method(written: &mut String, operation: &ApiOperation) {
    let mut types = TypeWriter::default();
    let mut parameters = vec!["self".to_owned()];
    parameters.extend(operation.path_parameters.iter().map(|name| format!("{name}: str")));
    match &operation.body {
        Some(BodyKind::Json(kind)) => parameters.push(format!("body: {}", types.text_of("Body", kind))),
        Some(BodyKind::Text) => parameters.push("body: str".to_owned()),
        None => {}
    }
    if !operation.query.is_empty() {
        parameters.push("*".to_owned());
    }
    for field in &operation.query {
        let text = types.text_of("Query", &field.kind);
        let name = parameter_name(&field.name);
        parameters.push(if field.is_required {
            format!("{name}: {text}")
        } else {
            format!("{name}: {text} | None = None")
        });
    }
    let (answer, act) = match &operation.answer {
        AnswerKind::Json(kind) => (types.text_of("Answer", kind), "json"),
        AnswerKind::Text => ("str".to_owned(), "text"),
        AnswerKind::Events => ("Iterator[ServerEvent]".to_owned(), "events"),
    };
    let mut path = operation.path.clone();
    for name in &operation.path_parameters {
        path = path.replace(&format!("{{{name}}}"), &format!("{{quote({name}, safe='')}}"));
    }
    let query: Vec<String> = operation
        .query
        .iter()
        .map(|field| format!("{:?}: {}", field.name, parameter_name(&field.name)))
        .collect();
    let body = match &operation.body {
        Some(BodyKind::Json(_)) => ", json_body=body",
        Some(BodyKind::Text) => ", text_body=body",
        None => "",
    };
    let sent = format!("self._{act}({:?}, f\"{path}\", {{{}}}{body})", operation.method, query.join(", "));
    let returned = if act == "json" { format!("cast({answer:?}, {sent})") } else { sent };
    let (name, parameters, summary) = (&operation.name, parameters.join(", "), &operation.summary);
    let _ = write!(
        written,
        "\n    def {name}({parameters}) -> {answer}:\n        \"\"\"{summary}\"\"\"\n        return {returned}\n",
    );
}
