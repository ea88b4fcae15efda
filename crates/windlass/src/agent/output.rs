//! Typed final outputs.

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;
use windlass_core::schema;
use windlass_core::schema::NotStrict;

use crate::model::OutputShape;

/// The type of an agent's final output.
#[derive(Clone, Debug)]
pub struct OutputType {
    pub(crate) shape: Result<OutputShape, NotStrict>,
    check: fn(&str) -> Result<(), String>,
    wrapped: bool,
}

/// The field that holds an output which is not an object by itself: providers take objects only.
const WRAPPER: &str = "response";

impl OutputType {
    /// The output is a `T`.
    pub fn of<T: DeserializeOwned + JsonSchema>() -> Self {
        let schema = schemars::schema_for!(T).to_value();
        let wrapped = schema.get("type").and_then(Value::as_str) != Some("object");
        let schema = if wrapped { wrap(schema) } else { schema };
        let shape =
            schema::strict(schema).map(|schema| OutputShape { name: T::schema_name().into_owned(), schema });
        Self { shape, check: fits::<T>, wrapped }
    }

    /// The output as its own JSON text, or what does not fit.
    pub(crate) fn accept(&self, text: &str) -> Result<String, String> {
        let own = if self.wrapped {
            let mut value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
            let inner =
                value.get_mut(WRAPPER).map(Value::take).ok_or_else(|| format!("`{WRAPPER}` is missing"))?;
            inner.to_string()
        } else {
            text.to_owned()
        };
        (self.check)(&own)?;
        Ok(own)
    }
}

fn fits<T: DeserializeOwned>(text: &str) -> Result<(), String> {
    let mut reader = serde_json::Deserializer::from_str(text);
    serde_path_to_error::deserialize::<_, T>(&mut reader).map(drop).map_err(|error| error.to_string())
}

fn wrap(mut schema: Value) -> Value {
    let definitions = schema.as_object_mut().and_then(|schema| schema.remove("$defs"));
    let mut wrapped = serde_json::json!({
        "type": "object",
        "properties": { WRAPPER: schema },
        "required": [WRAPPER],
    });
    if let Some(definitions) = definitions {
        wrapped["$defs"] = definitions;
    }
    wrapped
}
