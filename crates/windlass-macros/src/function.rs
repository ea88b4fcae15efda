//! Expansion of `#[tool]` on a function.

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Attribute, ItemFn};

use crate::errors::MacroErrors;
use crate::expand::{BodySignature, ParsedTool, generic_context, helper_items};
use crate::options::ToolOptions;
use crate::params::read_signature;

pub(crate) fn expand_function(options: TokenStream, item: TokenStream) -> TokenStream {
    let mut function: ItemFn = match syn::parse2(item.clone()) {
        Ok(function) => function,
        Err(error) => {
            let message = format!("`#[tool]` goes on a function with a body ({error})");
            let error = syn::Error::new(error.span(), message).to_compile_error();
            return quote!(#error #item);
        }
    };
    let mut errors = MacroErrors::default();
    let options =
        errors.ok_or_push(syn::parse2::<ToolOptions>(options)).unwrap_or_else(ToolOptions::placeholder);
    if let Some(receiver) = function.sig.receiver() {
        errors.push_at(
            receiver,
            "a method becomes a tool inside of `#[toolbox] impl …`; put `#[toolbox]` on its impl",
        );
    }
    let (any, generics) = generic_context();
    let inputs = read_signature(&mut function.sig, &any, &mut errors);
    let signature = BodySignature {
        ident: Some(&function.sig.ident),
        is_async: function.sig.asyncness.is_some(),
        output: &function.sig.output,
        span: function.sig.ident.span(),
    };
    let spec = ParsedTool::new(signature, &function.attrs, inputs, options, &mut errors);
    match errors.into_compile_errors() {
        Some(errors) => emit_placeholder(function, &errors, &spec, &generics),
        None => emit_tool_function(function, &spec, &any, &generics),
    }
}

/// Replaces the function by one that creates the tool, and adds an empty enum of the same name that holds the
/// original function as `call`.
///
/// A unit struct could serve both purposes, but then the compiler would read every variable of that name in the
/// module as a pattern.
fn emit_tool_function(
    function: ItemFn,
    spec: &ParsedTool,
    any: &syn::Ident,
    generics: &syn::Generics,
) -> TokenStream {
    let ItemFn { attrs, vis, mut sig, block, .. } = function;
    let call = syn::Ident::new("call", sig.ident.span());
    let name = std::mem::replace(&mut sig.ident, call);
    if spec.has_generic_context() {
        sig.generics = generics.clone();
    }
    let SortedAttributes { cfg_attrs: conditions, tool_attrs: of_tool, body_attrs: of_body } =
        sort_attributes(attrs);
    let (context, generics) = match spec.fixed_context() {
        Some(ty) => (quote!(#ty), None),
        None => (quote!(#any), Some(generics)),
    };
    let tool = spec.tool_expr(&context, &TokenStream::new(), &quote!(#name::call), &TokenStream::new());
    let args = spec.args_struct(&vis);
    let (named, hidden) = if spec.has_named_args() { (Some(args), None) } else { (None, Some(args)) };
    let named = named.map(|args| quote!(#(#conditions)* #args));
    let helpers = helper_items();
    let about = format!("Holds the function behind the tool [`{name}`](fn@{name}).");
    quote! {
        #(#conditions)*
        #(#of_tool)*
        #vis fn #name #generics () -> ::windlass::tool::Tool<#context> {
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
            /// The original function.
            #(#of_body)*
            #vis #sig #block
        }

        #named
    }
}

/// Generates items of the same name, so that the macro's error stays the only one.
fn emit_placeholder(
    function: ItemFn,
    errors: &TokenStream,
    spec: &ParsedTool,
    generics: &syn::Generics,
) -> TokenStream {
    if function.sig.receiver().is_some() {
        // An impl block accepts no other item than the method itself.
        return quote!(#errors #function);
    }
    let ItemFn { vis, mut sig, block, .. } = function;
    let call = syn::Ident::new("call", sig.ident.span());
    let name = std::mem::replace(&mut sig.ident, call);
    if spec.has_generic_context() {
        sig.generics = generics.clone();
    }
    let any = &generic_context().0;
    quote! {
        #errors

        #[allow(dead_code, missing_docs)]
        #vis fn #name #generics () -> ::windlass::tool::Tool<#any> {
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

/// The attributes of a function, sorted by the generated item that they belong to.
struct SortedAttributes {
    /// `#[cfg]` attributes, copied to every generated item.
    cfg_attrs: Vec<Attribute>,
    /// Documentation attributes, placed on the tool function.
    tool_attrs: Vec<Attribute>,
    /// All other attributes, placed on the original function.
    body_attrs: Vec<Attribute>,
}

fn sort_attributes(attrs: Vec<Attribute>) -> SortedAttributes {
    let mut sorted =
        SortedAttributes { cfg_attrs: Vec::new(), tool_attrs: Vec::new(), body_attrs: Vec::new() };
    for attr in attrs {
        let path = attr.path();
        if path.is_ident("cfg") {
            sorted.cfg_attrs.push(attr);
        } else if path.is_ident("doc") || path.is_ident("deprecated") {
            sorted.tool_attrs.push(attr);
        } else {
            sorted.body_attrs.push(attr);
        }
    }
    sorted
}
