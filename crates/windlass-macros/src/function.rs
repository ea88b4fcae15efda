//! `#[tool]` on a function.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Attribute, ItemFn};

use crate::errors::Errors;
use crate::expand::{Signature, Spec, any_context, helpers};
use crate::options::Options;
use crate::params::read_signature;

pub(crate) fn expand(options: TokenStream, item: TokenStream) -> TokenStream {
    let mut function: ItemFn = match syn::parse2(item.clone()) {
        Ok(function) => function,
        Err(error) => {
            let message = format!("`#[tool]` goes on a function with a body ({error})");
            let error = syn::Error::new(error.span(), message).to_compile_error();
            return quote!(#error #item);
        }
    };
    let mut errors = Errors::default();
    let options = errors.take(syn::parse2::<Options>(options)).unwrap_or_else(Options::unread);
    if let Some(receiver) = function.sig.receiver() {
        errors.at(
            receiver,
            "a method becomes a tool inside of `#[toolbox] impl …`; put `#[toolbox]` on its impl",
        );
    }
    let (any, generics) = any_context();
    let inputs = read_signature(&mut function.sig, &any, &mut errors);
    let signature = Signature {
        ident: Some(&function.sig.ident),
        is_async: function.sig.asyncness.is_some(),
        output: &function.sig.output,
        span: function.sig.ident.span(),
    };
    let spec = Spec::new(signature, &function.attrs, inputs, options, &mut errors);
    match errors.found() {
        Some(errors) => stand_in(function, &errors, &spec, &generics),
        None => written(function, &spec, &any, &generics),
    }
}

/// In the place of the function stands one that makes the tool, and beside it a type of its name that holds the
/// function itself. A unit struct would do for both, but every variable of its name would then be taken for a
/// pattern, in the whole module.
fn written(function: ItemFn, spec: &Spec, any: &syn::Ident, generics: &syn::Generics) -> TokenStream {
    let ItemFn { attrs, vis, mut sig, block, .. } = function;
    let call = syn::Ident::new("call", sig.ident.span());
    let name = std::mem::replace(&mut sig.ident, call);
    if spec.takes_any_context() {
        sig.generics = generics.clone();
    }
    let Attributes { conditions, of_tool, of_body } = sorted(attrs);
    let (context, generics) = match spec.context() {
        Some(ty) => (quote!(#ty), None),
        None => (quote!(#any), Some(generics)),
    };
    let tool = spec.tool(&context, &TokenStream::new(), &quote!(#name::call), &TokenStream::new());
    let args = spec.args_struct(&vis);
    let (named, hidden) = if spec.has_named_args() { (Some(args), None) } else { (None, Some(args)) };
    let named = named.map(|args| quote!(#(#conditions)* #args));
    let helpers = helpers();
    let about = format!("Holds the function behind the tool [`{name}`](fn@{name}).");
    quote! {
        #(#conditions)*
        #(#of_tool)*
        #vis fn #name #generics () -> ::windlass::Tool<#context> {
            #hidden

            #helpers

            #tool
        }

        #(#conditions)*
        #[doc = #about]
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy, Debug)]
        #vis enum #name {}

        #(#conditions)*
        impl #name {
            /// The function itself.
            #(#of_body)*
            #vis #sig #block
        }

        #named
    }
}

/// Something of the same name, so that the error stays the only one.
fn stand_in(function: ItemFn, errors: &TokenStream, spec: &Spec, generics: &syn::Generics) -> TokenStream {
    if function.sig.receiver().is_some() {
        // In an impl, nothing but a method can stand.
        return quote!(#errors #function);
    }
    let ItemFn { vis, mut sig, block, .. } = function;
    let call = syn::Ident::new("call", sig.ident.span());
    let name = std::mem::replace(&mut sig.ident, call);
    if spec.takes_any_context() {
        sig.generics = generics.clone();
    }
    let any = &any_context().0;
    quote! {
        #errors

        #[allow(dead_code, missing_docs)]
        #vis fn #name #generics () -> ::windlass::Tool<#any> {
            ::core::unreachable!()
        }

        #[allow(non_camel_case_types, dead_code, missing_docs)]
        #vis enum #name {}

        #[allow(unused)]
        impl #name {
            #vis #sig #block
        }
    }
}

struct Attributes {
    /// `#[cfg]`: on everything.
    conditions: Vec<Attribute>,
    /// What the reader of the documentation sees: on the tool.
    of_tool: Vec<Attribute>,
    /// All others: on the function.
    of_body: Vec<Attribute>,
}

fn sorted(attrs: Vec<Attribute>) -> Attributes {
    let mut sorted = Attributes { conditions: Vec::new(), of_tool: Vec::new(), of_body: Vec::new() };
    for attr in attrs {
        let path = attr.path();
        if path.is_ident("cfg") {
            sorted.conditions.push(attr);
        } else if path.is_ident("doc") || path.is_ident("deprecated") {
            sorted.of_tool.push(attr);
        } else {
            sorted.of_body.push(attr);
        }
    }
    sorted
}
