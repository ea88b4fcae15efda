//! Expansion of `tool_fn!`: a tool made from a closure and its captured values.

use proc_macro2::TokenStream;
use quote::quote;
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{Attribute, Block, Expr, ExprClosure, Pat, PatType, ReturnType, Token};

use crate::errors::MacroErrors;
use crate::expand::{BodySignature, ParsedTool, helper_items, local_ident};
use crate::options::ToolOptions;
use crate::params::read_params;

/// The parsed input of `tool_fn!`: doc comments, options, then the closure.
struct ClosureInput {
    attrs: Vec<Attribute>,
    options: ToolOptions,
    closure: ExprClosure,
}

impl Parse for ClosureInput {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let attrs = input.call(Attribute::parse_outer)?;
        if let Some(other) = attrs.iter().find(|attr| !attr.path().is_ident("doc")) {
            let message =
                "before the closure stand doc comments and options such as `effect = pure,`; remove this";
            return Err(syn::Error::new_spanned(other, message));
        }
        let mut options = ToolOptions::default();
        while input.peek(syn::Ident) && input.peek2(Token![=]) {
            options.parse_one(input)?;
            input.parse::<Token![,]>()?;
        }
        options.check_combinations()?;
        let closure = match input.parse::<Expr>() {
            Ok(Expr::Closure(closure)) => closure,
            Ok(other) => {
                return Err(syn::Error::new(
                    other.span(),
                    "the last thing is a closure: `async |city: String| { … }`",
                ));
            }
            Err(error) => {
                let message =
                    format!("the last thing is a closure: `async |city: String| {{ … }}` ({error})");
                return Err(syn::Error::new(error.span(), message));
            }
        };
        input.parse::<Option<Token![,]>>()?;
        Ok(Self { attrs, options, closure })
    }
}

pub(crate) fn expand_closure(input: TokenStream) -> TokenStream {
    let ClosureInput { attrs, options, mut closure } = match syn::parse2(input) {
        Ok(input) => input,
        Err(error) => return error.to_compile_error(),
    };
    let mut errors = MacroErrors::default();
    if let Some(key) = options.key_of("args") {
        errors.push_at(key, "the arguments of a closure cannot be named from outside; remove `args`");
    }
    if let Some(token) = &closure.constness {
        errors.push_at(
            token,
            "a tool runs when a model calls it, which is never at compile time; remove `const`",
        );
    }
    make_async_closure(&mut closure);
    // A tool outlives the scope that creates it, so the closure must own its captures.
    closure.capture.get_or_insert_with(Default::default);
    let any = syn::Ident::new("_", proc_macro2::Span::mixed_site());
    let inputs = read_params(typed_params(&mut closure, &mut errors).into_iter(), &any, &mut errors);
    let signature = BodySignature {
        ident: None,
        is_async: closure.asyncness.is_some(),
        output: &closure.output,
        span: closure.inputs_begin.span,
    };
    let spec = ParsedTool::new(signature, &attrs, inputs, options, &mut errors);
    if let Some(errors) = errors.into_compile_errors() {
        return errors;
    }
    let context = spec.fixed_context().map_or_else(|| quote!(_), |ty| quote!(#ty));
    let args = spec.args_struct(&syn::Visibility::Inherited);
    let helpers = helper_items();
    let run = local_ident("run");
    let tool = spec.tool_expr(
        &context,
        &quote!(let #run = ::std::sync::Arc::clone(&#run);),
        &quote!(#run),
        &TokenStream::new(),
    );
    quote! {{
        #args
        #helpers
        // The futures of an async closure borrow from it, so each call holds the closure in an `Arc`.
        let #run = ::std::sync::Arc::new(#closure);
        #tool
    }}
}

/// Rewrites `|city| async move { … }` as `async move |city| { … }`.
///
/// The first form moves its captures into the first call; the second form lends them to every call.
fn make_async_closure(closure: &mut ExprClosure) {
    if closure.asyncness.is_some() || !matches!(closure.output, ReturnType::Default) {
        return;
    }
    let block: Option<Block> = match &*closure.body {
        Expr::Async(body) => Some(body.block.clone()),
        _ => None,
    };
    if let Some(block) = block {
        closure.asyncness = Some(Default::default());
        *closure.body = syn::parse_quote!(#block);
    }
}

fn typed_params<'a>(closure: &'a mut ExprClosure, errors: &mut MacroErrors) -> Vec<&'a mut PatType> {
    let mut all = Vec::new();
    for input in &mut closure.inputs {
        match input {
            Pat::Type(typed) => all.push(typed),
            other => errors.push_at(other, "the schema comes from the type; write it as `name: Type`"),
        }
    }
    all
}
