//! Models that run in the process: a GGUF file, no server and no key.
//!
//! Small models rarely keep to a format by themselves. Here they cannot leave it: every token is chosen among those
//! that the schemas of the offered tools allow, so a call that comes out is one that its tool can read.
//!
//! The engine is behind the feature `engine`, which is off by default because it is large. Without it this crate
//! finds weights, builds prompts and reads answers, which is what its tests are about.

mod answer;
mod prompt;
mod weights;

#[cfg(feature = "engine")]
mod engine;
#[cfg(feature = "engine")]
mod model;
#[cfg(feature = "engine")]
mod tokens;

pub use answer::{BadAnswer, items, shape};
pub use prompt::{Line, lines};
pub use weights::{Named, Progress, Weights, WeightsError};

#[cfg(all(doctest, feature = "engine"))]
#[doc = include_str!("../../../docs/guide/local-models.md")]
mod guide {}

#[cfg(feature = "engine")]
pub use model::{LoadError, LocalModel};
