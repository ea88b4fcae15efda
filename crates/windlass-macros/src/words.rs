//! Text that the macros read at compile time: doc comments, names and durations.

use std::time::Duration;

use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::{Attribute, Expr, ExprLit, Lit, LitStr, Meta};

/// Returns the text of doc comments. Wrapped lines are joined; paragraphs, lists and code blocks stay separate.
pub(crate) fn doc_comment_text(attrs: &[Attribute]) -> Option<String> {
    let lines: Vec<String> = attrs.iter().filter_map(doc_text).collect();
    let mut out = String::new();
    let mut in_code = false;
    let mut joins = false;
    for line in lines.iter().flat_map(|text| text.split('\n')) {
        let line = line.strip_prefix(' ').unwrap_or(line).trim_end();
        let is_fence = line.trim_start().starts_with("```");
        let starts_anew = in_code || is_fence || line.is_empty() || is_list_item(line);
        if !out.is_empty() {
            out.push(if joins && !starts_anew { ' ' } else { '\n' });
        }
        out.push_str(if in_code { line } else { line.trim_start() });
        if is_fence {
            in_code = !in_code;
        }
        joins = !(in_code || is_fence || line.is_empty());
    }
    let text = out.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn doc_text(attr: &Attribute) -> Option<String> {
    let Meta::NameValue(meta) = &attr.meta else { return None };
    match &meta.value {
        Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) if meta.path.is_ident("doc") => Some(text.value()),
        _ => None,
    }
}

fn is_list_item(line: &str) -> bool {
    let line = line.trim_start();
    let after_number = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let is_numbered = after_number.len() < line.len() && after_number.starts_with(". ");
    is_numbered || ["- ", "* ", "+ ", "#", "|", "> "].iter().any(|mark| line.starts_with(mark))
}

/// Checks that a name is one that providers accept.
pub(crate) fn check_name(name: &str, span: Span, what: &str) -> syn::Result<()> {
    let fits = !name.is_empty()
        && name.len() <= 64
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'));
    if fits {
        return Ok(());
    }
    let message = format!(
        "`{name}` cannot be the {what}: models take 1 to 64 ASCII letters, digits, `_` and `-`; \
         choose another with `{what} = \"…\"`"
    );
    Err(syn::Error::new(span, message))
}

/// Parses `250ms`, `30s`, `5m` or `1h`.
pub(crate) fn parse_duration(text: &LitStr) -> syn::Result<Duration> {
    let value = text.value();
    let digits = value.len() - value.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = value.split_at(digits);
    let millis = match unit {
        "ms" => Some(1),
        "s" => Some(1_000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    let read = number.parse::<u64>().ok().zip(millis).and_then(|(number, millis)| number.checked_mul(millis));
    match read {
        Some(0) => {
            Err(syn::Error::new(text.span(), "a duration of zero leaves no time; use at least `\"1ms\"`"))
        }
        Some(millis) => Ok(Duration::from_millis(millis)),
        None => {
            let message = format!(
                "`{value}` is not a duration; write it as `\"250ms\"`, `\"30s\"`, `\"5m\"` or `\"1h\"`"
            );
            Err(syn::Error::new(text.span(), message))
        }
    }
}

pub(crate) fn duration_tokens(duration: Duration) -> TokenStream {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    quote!(::std::time::Duration::from_millis(#millis))
}

#[cfg(test)]
#[path = "words_tests.rs"]
mod tests;
