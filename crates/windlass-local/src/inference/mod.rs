//! The parts of the engine that need no constraint: weights, network, tokeniser, chat template and the choice of tokens.
//! They are also in the tests without the feature `engine`.

pub(crate) mod gguf;
pub(crate) mod kernel;
pub(crate) mod matrix;
pub(crate) mod network;
pub(crate) mod prefix;
pub(crate) mod sampler;
pub(crate) mod split;
pub(crate) mod template;
pub(crate) mod tokeniser;

#[cfg(all(test, target_os = "linux"))]
mod fuzz_tests;
#[cfg(test)]
mod llama_cpp_tests;
#[cfg(test)]
pub(crate) mod test_model;
