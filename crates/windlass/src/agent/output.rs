//! Typed final outputs.

use std::panic::catch_unwind;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde_json::Value;
use windlass_core::schema::StrictSchemaError;

use crate::model::OutputSchema;
use crate::tool::{OfferedSchema, offer_schema};

/// The type of an agent's final output.
#[derive(Clone, Debug)]
pub struct OutputType {
    pub(crate) schema: Result<OutputSchema, StrictSchemaError>,
    /// The places of maps, because of which the schema has no strict form.
    map_places: Option<String>,
    type_check: fn(&str) -> Result<(), String>,
    is_wrapped: bool,
}

/// Name of the field that wraps an output whose schema is not an object: providers accept only objects.
const WRAPPER_FIELD: &str = "response";

impl OutputType {
    /// Creates the output type for `T`.
    pub fn of<T: DeserializeOwned + JsonSchema>() -> Self {
        let schema = schemars::schema_for!(T).to_value();
        let wrapped = schema.get("type").and_then(Value::as_str) != Some("object");
        let schema = if wrapped { wrap_schema(schema) } else { schema };
        let offered = offer_schema(&Arc::new(schema));
        let map_places = match &offered {
            Ok(OfferedSchema::WithMaps { places, .. }) => Some(places.clone()),
            Ok(OfferedSchema::Strict(_)) | Err(_) => None,
        };
        let schema = offered.map(|offered| {
            let (schema, is_strict) = offered.into_parts();
            OutputSchema {
                name: T::schema_name().into_owned(),
                schema: Arc::unwrap_or_clone(schema),
                is_strict,
            }
        });
        Self { schema, map_places, type_check: check_type::<T>, is_wrapped: wrapped }
    }

    /// Returns a warning about the schema, for the operator.
    pub(crate) fn definition_warning(&self) -> Option<String> {
        let places = self.map_places.as_ref()?;
        let text = "the output type is offered without a strict schema, because it has a map at";
        Some(format!("{text} {places}"))
    }

    /// True if the output is inside an object, because its own schema is none.
    pub(crate) fn is_wrapped(&self) -> bool {
        self.is_wrapped
    }

    /// Returns the output inside its wrapper, if it is there.
    pub(crate) fn unwrap_value(mut value: Value) -> Option<Value> {
        value.get_mut(WRAPPER_FIELD).map(Value::take)
    }

    /// Parses the model's final text and returns the output's own JSON text, unwrapped.
    ///
    /// # Errors
    ///
    /// Returns a description of the mismatch if the text does not match the type.
    pub(crate) fn parse_output(&self, text: &str) -> Result<String, String> {
        let own = if self.is_wrapped {
            let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
            let inner = Self::unwrap_value(value).ok_or_else(|| format!("`{WRAPPER_FIELD}` is missing"))?;
            inner.to_string()
        } else {
            text.to_owned()
        };
        (self.type_check)(&own)?;
        Ok(own)
    }
}

/// Checks that the whole text is one value of the type.
fn check_type<T: DeserializeOwned>(text: &str) -> Result<(), String> {
    // The implementation of `Deserialize` may panic.
    let checked = catch_unwind(|| {
        let mut reader = serde_json::Deserializer::from_str(text);
        serde_path_to_error::deserialize::<_, T>(&mut reader).map_err(|error| error.to_string())?;
        reader.end().map_err(|error| error.to_string())
    });
    checked.unwrap_or_else(|_| Err("it cannot be read".to_owned()))
}

fn wrap_schema(mut schema: Value) -> Value {
    let definitions = schema.as_object_mut().and_then(|schema| schema.remove("$defs"));
    let mut wrapped = serde_json::json!({
        "type": "object",
        "properties": { WRAPPER_FIELD: schema },
        "required": [WRAPPER_FIELD],
    });
    if let Some(definitions) = definitions {
        wrapped["$defs"] = definitions;
    }
    wrapped
}
