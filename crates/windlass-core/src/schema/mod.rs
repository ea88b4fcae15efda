//! JSON Schema: the strict form that providers want, and a check that names every problem by its path.
//!
//! [`strict()`] is for whoever sends a schema to a model, and [`check()`] and [`Shape`] are for whoever gets arguments
//! back: a model that is told every problem at once corrects them in one go.

mod check;
mod found;
mod shape;
mod strict;
mod words;

use serde_json::Value;

pub use check::{Problem, check, describe};
pub use shape::Shape;
pub use strict::{NotStrict, strict};

/// The schema that a local reference names.
fn resolve<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    root.pointer(reference.strip_prefix('#')?)
}
