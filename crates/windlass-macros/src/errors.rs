//! Collected macro errors, so that one compilation reports all of them.

use proc_macro2::TokenStream;
use quote::ToTokens;

/// The errors found so far in one macro invocation.
#[derive(Default)]
pub(crate) struct MacroErrors(Option<syn::Error>);

impl MacroErrors {
    pub(crate) fn push_at(&mut self, tokens: impl ToTokens, message: &str) {
        self.push(syn::Error::new_spanned(tokens, message));
    }

    pub(crate) fn push(&mut self, error: syn::Error) {
        match &mut self.0 {
            Some(earlier) => earlier.combine(error),
            none => *none = Some(error),
        }
    }

    /// Returns the value, or records the error and returns `None`.
    pub(crate) fn ok_or_push<T>(&mut self, result: syn::Result<T>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Returns the collected errors as compile errors, or `None` if there are none.
    pub(crate) fn into_compile_errors(self) -> Option<TokenStream> {
        self.0.map(|error| error.to_compile_error())
    }
}
