//! Errors, gathered so that one compilation shows them all.

use proc_macro2::TokenStream;
use quote::ToTokens;

/// The errors found so far.
#[derive(Default)]
pub(crate) struct Errors(Option<syn::Error>);

impl Errors {
    pub(crate) fn at(&mut self, tokens: impl ToTokens, message: &str) {
        self.push(syn::Error::new_spanned(tokens, message));
    }

    pub(crate) fn push(&mut self, error: syn::Error) {
        match &mut self.0 {
            Some(earlier) => earlier.combine(error),
            none => *none = Some(error),
        }
    }

    /// The value, or nothing where it could not be had.
    pub(crate) fn take<T>(&mut self, result: syn::Result<T>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The errors for the compiler, where there are any.
    pub(crate) fn found(self) -> Option<TokenStream> {
        self.0.map(|error| error.to_compile_error())
    }
}
