//! JSON Schema: the strict form that providers want, and a check that names every problem by its path.
//!
//! Both are pure functions over [`serde_json::Value`]. [`strict()`] is for whoever sends a schema to a model, and
//! [`check()`] for whoever gets arguments back: a model that is told every problem at once corrects them in one go.

mod check;
mod strict;

pub use check::{Problem, check, describe};
pub use strict::{NotStrict, strict};
