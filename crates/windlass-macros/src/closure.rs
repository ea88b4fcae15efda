//! `tool_fn!`: a closure, with what it captures, as a tool.

use proc_macro2::TokenStream;
use quote::quote;
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{Attribute, Block, Expr, ExprClosure, Pat, PatType, ReturnType, Token};

use crate::errors::Errors;
use crate::expand::{Signature, Spec, helpers, local};
use crate::options::Options;
use crate::params::read_params;

/// Doc comments, options, and a closure last.
struct Input {
    attrs: Vec<Attribute>,
    options: Options,
    closure: ExprClosure,
}

impl Parse for Input {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let attrs = input.call(Attribute::parse_outer)?;
        if let Some(other) = attrs.iter().find(|attr| !attr.path().is_ident("doc")) {
            let message =
                "before the closure stand doc comments and options such as `effect = pure,`; remove this";
            return Err(syn::Error::new_spanned(other, message));
        }
        let mut options = Options::default();
        while input.peek(syn::Ident) && input.peek2(Token![=]) {
            options.parse_one(input)?;
            input.parse::<Token![,]>()?;
        }
        options.check()?;
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

pub(crate) fn expand(input: TokenStream) -> TokenStream {
    let Input { attrs, options, mut closure } = match syn::parse2(input) {
        Ok(input) => input,
        Err(error) => return error.to_compile_error(),
    };
    let mut errors = Errors::default();
    if let Some(key) = options.given("args") {
        errors.at(key, "the arguments of a closure cannot be named from outside; remove `args`");
    }
    if let Some(token) = &closure.constness {
        errors.at(token, "a tool runs when a model calls it, which is never at compile time; remove `const`");
    }
    await_body(&mut closure);
    // A tool outlives the place where it is made, so it owns what it uses.
    closure.capture.get_or_insert_with(Default::default);
    let any = syn::Ident::new("_", proc_macro2::Span::mixed_site());
    let inputs = read_params(typed(&mut closure, &mut errors).into_iter(), &any, &mut errors);
    let signature = Signature {
        ident: None,
        is_async: closure.asyncness.is_some(),
        output: &closure.output,
        span: closure.inputs_begin.span,
    };
    let spec = Spec::new(signature, &attrs, inputs, options, &mut errors);
    if let Some(errors) = errors.found() {
        return errors;
    }
    let context = spec.context().map_or_else(|| quote!(_), |ty| quote!(#ty));
    let args = spec.args_struct(&syn::Visibility::Inherited);
    let helpers = helpers();
    let run = local("run");
    let tool = spec.tool(
        &context,
        &quote!(let #run = ::std::sync::Arc::clone(&#run);),
        &quote!(#run),
        &TokenStream::new(),
    );
    quote! {{
        #args
        #helpers
        // The futures of an async closure borrow from it, so each call holds it.
        let #run = ::std::sync::Arc::new(#closure);
        #tool
    }}
}

/// `|city| async move { … }` would move what it captures into its first call, so it is read as
/// `async move |city| { … }`, which lends it to every call.
fn await_body(closure: &mut ExprClosure) {
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

fn typed<'a>(closure: &'a mut ExprClosure, errors: &mut Errors) -> Vec<&'a mut PatType> {
    let mut all = Vec::new();
    for input in &mut closure.inputs {
        match input {
            Pat::Type(typed) => all.push(typed),
            other => errors.at(other, "the schema comes from the type; write it as `name: Type`"),
        }
    }
    all
}
