//! Models that run in the process, from a GGUF file, without a server or a key.
//!
//! Small models rarely keep to a format by themselves, so decoding is constrained: every token is chosen among
//! those that the schemas of the offered tools allow. Every complete tool call therefore matches its tool's
//! schema.
//!
//! The inference engine is behind the feature `engine`. Without it this crate finds weights, builds prompts and parses
//! responses.

mod answer;
mod prompt;
mod weights;

#[cfg(any(feature = "engine", test))]
#[cfg_attr(not(feature = "engine"), allow(dead_code, reason = "only the engine uses all of it"))]
mod inference;

#[cfg(feature = "engine")]
mod engine;
#[cfg(feature = "engine")]
mod model;

pub use answer::{AnswerFormatError, parse_items, response_schema};
pub use prompt::{PromptMessage, prompt_messages};
pub use weights::{FetchProgress, KnownWeights, Weights, WeightsError};

#[cfg(feature = "engine")]
pub use model::{LoadOptions, LocalModel, ModelLoadError};
