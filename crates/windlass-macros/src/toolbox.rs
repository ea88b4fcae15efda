//! `#[toolbox]` on an impl: methods that share a value, as tools.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::parse::{Parse, ParseStream};
use syn::{Attribute, Ident, ImplItem, ImplItemFn, ItemImpl, Meta};

use crate::errors::Errors;
use crate::expand::{Signature, Spec, any_context, helpers, local};
use crate::options::Options;
use crate::params::{check_receiver, read_signature};

/// What stands in `#[toolbox(…)]`: the options that make sense for all.
#[derive(Default)]
struct Shared(Options);

impl Parse for Shared {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let options: Options = input.parse()?;
        if let Some(key) = options.keys().find(|key| *key != "namespace" && *key != "context") {
            let message =
                format!("`{key}` belongs to one tool; `#[toolbox]` takes `namespace` and `context`");
            return Err(syn::Error::new(key.span(), message));
        }
        Ok(Self(options))
    }
}

/// A method that is a tool.
struct Method {
    name: Ident,
    conditions: Vec<Attribute>,
    spec: Spec,
    vis: syn::Visibility,
}

pub(crate) fn expand(options: TokenStream, item: TokenStream) -> TokenStream {
    let mut block: ItemImpl = match syn::parse2(item.clone()) {
        Ok(block) => block,
        Err(error) => {
            let message = format!("`#[toolbox]` goes on the impl of a type ({error})");
            let error = syn::Error::new(error.span(), message).to_compile_error();
            return quote!(#error #item);
        }
    };
    let mut errors = Errors::default();
    let shared = errors.take(syn::parse2::<Shared>(options)).unwrap_or_default().0;
    if let Some((path, _)) = &block.trait_ {
        errors.at(path, "a toolbox is a type's own impl; move the tools to `impl Type { … }`");
    }
    if !block.generics.params.is_empty() {
        errors.at(
            &block.generics.params,
            "each tool has one schema, so its box cannot be generic; use concrete types",
        );
    }
    let (any, generics) = any_context();
    let mut methods = Vec::new();
    for item in &mut block.items {
        if let ImplItem::Fn(method) = item {
            methods.extend(read_method(method, &shared, &any, &generics, &mut errors));
        }
    }
    if methods.is_empty() && errors.is_empty() {
        errors.at(block.impl_token, "no method here is a tool; put `#[tool]` on at least one");
    }
    let context = one_context(&methods, &mut errors);
    if let Some(errors) = errors.found() {
        return quote!(#errors #block);
    }
    let (context, generics) = match context {
        Some(context) => (context, None),
        None => (quote!(#any), Some(generics)),
    };
    let named = methods.iter().filter(|method| method.spec.has_named_args()).map(|method| {
        let (conditions, args) = (&method.conditions, method.spec.args_struct(&method.vis));
        quote!(#(#conditions)* #args)
    });
    let names = (local("this"), local("tools"));
    let tools = methods.iter().map(|method| push(method, &context, &block.self_ty, &names));
    let (this, list) = &names;
    let (owner, helpers) = (&block.self_ty, helpers());
    quote! {
        #block

        #(#named)*

        const _: () = {
            #helpers

            impl #owner {
                /// The methods that are tools, as tools that share this value.
                pub fn tools #generics (self: &::std::sync::Arc<Self>) -> ::std::vec::Vec<::windlass::Tool<#context>> {
                    let #this = self;
                    let mut #list = ::std::vec::Vec::new();
                    #(#tools)*
                    #list
                }
            }

            impl #generics ::windlass::IntoTools<#context> for #owner {
                fn into_tools(self) -> ::std::vec::Vec<::windlass::Tool<#context>> {
                    <#owner>::tools(&::std::sync::Arc::new(self))
                }
            }
        };
    }
}

fn push(
    method: &Method,
    context: &TokenStream,
    owner: &syn::Type,
    (this, list): &(Ident, Ident),
) -> TokenStream {
    let Method { name, conditions, spec, .. } = method;
    let hidden = (!spec.has_named_args()).then(|| spec.args_struct(&syn::Visibility::Inherited));
    let shared = quote!(let #this = ::std::sync::Arc::clone(&#this););
    let tool = spec.tool(context, &shared, &quote!(<#owner>::#name), &quote!(&#this,));
    quote! {
        #(#conditions)*
        {
            #hidden
            let #this = ::std::sync::Arc::clone(#this);
            #list.push(#tool);
        }
    }
}

/// Reads a method that is marked as a tool, and takes the mark off.
fn read_method(
    method: &mut ImplItemFn,
    shared: &Options,
    any: &Ident,
    generics: &syn::Generics,
    errors: &mut Errors,
) -> Option<Method> {
    let at = method.attrs.iter().position(is_tool)?;
    let mark = method.attrs.remove(at);
    let options = match mark.meta {
        Meta::Path(_) => Ok(Options::default()),
        Meta::List(list) => list.parse_args::<Options>(),
        Meta::NameValue(meta) => Err(syn::Error::new_spanned(meta, "write it as `#[tool]` or `#[tool(…)]`")),
    };
    let mut options = errors.take(options).unwrap_or_else(Options::unread);
    options.inherit(shared);
    if let Some(again) = method.attrs.iter().find(|attr| is_tool(attr)) {
        errors.at(again, "`#[tool]` is given twice; keep one of them");
    }
    check_receiver(method.sig.receiver(), &method.sig, errors);
    let inputs = read_signature(&mut method.sig, any, errors);
    let signature = Signature {
        ident: Some(&method.sig.ident),
        is_async: method.sig.asyncness.is_some(),
        output: &method.sig.output,
        span: method.sig.ident.span(),
    };
    let spec = Spec::new(signature, &method.attrs, inputs, options, errors);
    if spec.takes_any_context() {
        method.sig.generics = generics.clone();
    }
    let conditions = method.attrs.iter().filter(|attr| attr.path().is_ident("cfg")).cloned().collect();
    Some(Method { name: method.sig.ident.clone(), conditions, spec, vis: method.vis.clone() })
}

fn is_tool(attr: &Attribute) -> bool {
    attr.path().segments.last().is_some_and(|last| last.ident == "tool")
}

/// The tools of a box go to one agent, so they have one context.
fn one_context(methods: &[Method], errors: &mut Errors) -> Option<TokenStream> {
    let mut context: Option<TokenStream> = None;
    for ty in methods.iter().filter_map(|method| method.spec.context()) {
        let own = ty.to_token_stream();
        match &context {
            None => context = Some(own),
            Some(first) if first.to_string() == own.to_string() => {}
            Some(first) => {
                errors.at(
                    ty,
                    &format!("the tools of a box have one context, and an earlier one has `{first}`"),
                );
            }
        }
    }
    context
}
