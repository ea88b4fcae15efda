//! Plays conformance scenarios: JSON files with scripted models, tools of a described behaviour, and a person's
//! decisions. `conformance/` holds the scenarios and the outcomes of the reference SDK. This crate uses only
//! the public API of Windlass.

pub mod compare;
mod guardrails;
pub mod json;
mod mcp;
pub mod play;
pub mod random;
mod tool;
mod world;
