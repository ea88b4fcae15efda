//! Compiles and runs the Rust samples of the README and of the guide as doc tests.
//!
//! The pages that people read on a code host show no rustdoc-hidden lines. `build.rs` adds what a sample needs beside
//! its visible lines and writes each page to `OUT_DIR`; this crate attaches those pages as documentation.
//! Invariant: every Rust block of every page is compiled, because the build script collects the pages itself; the page
//! on local models is compiled with the feature `engine`, which `./check --long` enables.

#[cfg(doctest)]
include!(concat!(env!("OUT_DIR"), "/pages.rs"));
