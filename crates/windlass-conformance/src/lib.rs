//! Plays conformance scenarios: small worlds in JSON, with agents whose models are scripted, tools with a
//! described behaviour, and a person's decisions. `conformance/` holds them and what the reference SDK made of
//! them; everything here goes through the public interface of Windlass.

pub mod compare;
mod guard;
pub mod json;
mod mcp;
pub mod play;
mod tool;
mod world;
