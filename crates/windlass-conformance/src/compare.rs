//! Says where two outcomes differ.
