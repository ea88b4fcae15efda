//! JSON Schema: conversion to the strict form that providers require, and validation that reports every
//! violation with its path.
//!
//! [`to_strict()`] converts schemas that are sent to a model. [`validate()`] and [`CompiledSchema`] validate
//! the arguments that the model returns: all violations are reported at once, so that the model can correct
//! them in one turn.

mod compiled;
mod null_parameters;
mod strict;
mod validate;
mod violations;
mod wording;

use serde_json::Value;

pub use compiled::CompiledSchema;
pub use null_parameters::without_null_parameters;
pub use strict::{StrictSchemaError, to_strict};
pub use validate::{SchemaViolation, describe_violations, validate};

/// Resolves a local reference (`#/…`) in a schema.
fn resolve_reference<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    root.pointer(reference.strip_prefix('#')?)
}
