//! Providers by name: their addresses, their authorisation, their settings, and the protocols of Gemini and Bedrock.
//!
//! None of it was seen with a key: the formats are those of the providers' documentation and of their official clients.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod addresses;
mod bedrock;
mod gemini;
mod media;
mod official_sdks;
mod other_fields;
mod prompt_cache;
mod server_tools;
mod settings_table;
mod signed_calls;
mod support;
mod tool_search;
