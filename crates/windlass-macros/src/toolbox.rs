//! Expansion of `#[toolbox]` on an impl block: tools from methods that share a value.

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::parse::{Parse, ParseStream};
use syn::{Attribute, Ident, ImplItem, ImplItemFn, ItemImpl, Meta};

use crate::errors::MacroErrors;
use crate::expand::{BodySignature, ParsedTool, generic_context, helper_items, local_ident};
use crate::options::ToolOptions;
use crate::params::{check_receiver, read_signature};

/// The options of `#[toolbox(…)]`, which apply to all its tools.
#[derive(Default)]
struct ToolboxOptions(ToolOptions);

impl Parse for ToolboxOptions {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let options: ToolOptions = input.parse()?;
        if let Some(key) = options.given_keys().find(|key| *key != "namespace" && *key != "context") {
            let message =
                format!("`{key}` belongs to one tool; `#[toolbox]` takes `namespace` and `context`");
            return Err(syn::Error::new(key.span(), message));
        }
        Ok(Self(options))
    }
}

/// A method marked with `#[tool]`.
struct ToolMethod {
    name: Ident,
    cfg_attrs: Vec<Attribute>,
    spec: ParsedTool,
    vis: syn::Visibility,
}

pub(crate) fn expand_toolbox(options: TokenStream, item: TokenStream) -> TokenStream {
    let mut block: ItemImpl = match syn::parse2(item.clone()) {
        Ok(block) => block,
        Err(error) => {
            let message = format!("`#[toolbox]` goes on the impl of a type ({error})");
            let error = syn::Error::new(error.span(), message).to_compile_error();
            return quote!(#error #item);
        }
    };
    let mut errors = MacroErrors::default();
    let shared = errors.ok_or_push(syn::parse2::<ToolboxOptions>(options)).unwrap_or_default().0;
    if let Some((path, _)) = &block.trait_ {
        errors.push_at(path, "a toolbox is a type's own impl; move the tools to `impl Type { … }`");
    }
    if !block.generics.params.is_empty() {
        errors.push_at(
            &block.generics.params,
            "each tool has one schema, so its box cannot be generic; use concrete types",
        );
    }
    let (any, generics) = generic_context();
    let mut methods = Vec::new();
    for item in &mut block.items {
        if let ImplItem::Fn(method) = item {
            methods.extend(read_method(method, &shared, &any, &generics, &mut errors));
        }
    }
    if methods.is_empty() && errors.is_empty() {
        errors.push_at(block.impl_token, "no method here is a tool; put `#[tool]` on at least one");
    }
    let context = common_context(&methods, &mut errors);
    if let Some(errors) = errors.into_compile_errors() {
        return quote!(#errors #block);
    }
    let (context, generics) = match context {
        Some(context) => (context, None),
        None => (quote!(#any), Some(generics)),
    };
    let named = methods.iter().filter(|method| method.spec.has_named_args()).map(|method| {
        let (conditions, args) = (&method.cfg_attrs, method.spec.args_struct(&method.vis));
        quote!(#(#conditions)* #args)
    });
    let names = (local_ident("this"), local_ident("tools"));
    let tools = methods.iter().map(|method| push_tool_tokens(method, &context, &block.self_ty, &names));
    let (this, list) = &names;
    let (owner, helpers) = (&block.self_ty, helper_items());
    quote! {
        #block

        #(#named)*

        const _: () = {
            #helpers

            impl #owner {
                /// Returns the methods marked `#[tool]` as tools that share this value.
                pub fn tools #generics (self: &::std::sync::Arc<Self>) -> ::std::vec::Vec<::windlass::tool::Tool<#context>> {
                    let #this = self;
                    let mut #list = ::std::vec::Vec::new();
                    #(#tools)*
                    #list
                }
            }

            impl #generics ::windlass::tool::IntoTools<#context> for #owner {
                fn into_tools(self) -> ::std::vec::Vec<::windlass::tool::Tool<#context>> {
                    <#owner>::tools(&::std::sync::Arc::new(self))
                }
            }
        };
    }
}

fn push_tool_tokens(
    method: &ToolMethod,
    context: &TokenStream,
    owner: &syn::Type,
    (this, list): &(Ident, Ident),
) -> TokenStream {
    let ToolMethod { name, cfg_attrs: conditions, spec, .. } = method;
    let hidden = (!spec.has_named_args()).then(|| spec.args_struct(&syn::Visibility::Inherited));
    let shared = quote!(let #this = ::std::sync::Arc::clone(&#this););
    let tool = spec.tool_expr(context, &shared, &quote!(<#owner>::#name), &quote!(&#this,));
    quote! {
        #(#conditions)*
        {
            #hidden
            let #this = ::std::sync::Arc::clone(#this);
            #list.push(#tool);
        }
    }
}

/// Reads a method marked with `#[tool]` and removes the attribute. Returns `None` for other methods.
fn read_method(
    method: &mut ImplItemFn,
    shared: &ToolOptions,
    any: &Ident,
    generics: &syn::Generics,
    errors: &mut MacroErrors,
) -> Option<ToolMethod> {
    let at = method.attrs.iter().position(is_tool_attr)?;
    let mark = method.attrs.remove(at);
    let options = match mark.meta {
        Meta::Path(_) => Ok(ToolOptions::default()),
        Meta::List(list) => list.parse_args::<ToolOptions>(),
        Meta::NameValue(meta) => Err(syn::Error::new_spanned(meta, "write it as `#[tool]` or `#[tool(…)]`")),
    };
    let mut options = errors.ok_or_push(options).unwrap_or_else(ToolOptions::placeholder);
    options.inherit_from(shared);
    if let Some(again) = method.attrs.iter().find(|attr| is_tool_attr(attr)) {
        errors.push_at(again, "`#[tool]` is given twice; keep one of them");
    }
    check_receiver(method.sig.receiver(), &method.sig, errors);
    let inputs = read_signature(&mut method.sig, any, errors);
    let signature = BodySignature {
        ident: Some(&method.sig.ident),
        is_async: method.sig.asyncness.is_some(),
        output: &method.sig.output,
        span: method.sig.ident.span(),
    };
    let spec = ParsedTool::new(signature, &method.attrs, inputs, options, errors);
    if spec.has_generic_context() {
        method.sig.generics = generics.clone();
    }
    let conditions = method.attrs.iter().filter(|attr| attr.path().is_ident("cfg")).cloned().collect();
    Some(ToolMethod { name: method.sig.ident.clone(), cfg_attrs: conditions, spec, vis: method.vis.clone() })
}

fn is_tool_attr(attr: &Attribute) -> bool {
    attr.path().segments.last().is_some_and(|last| last.ident == "tool")
}

/// Returns the context type that all tools of the toolbox share; they go to one agent.
fn common_context(methods: &[ToolMethod], errors: &mut MacroErrors) -> Option<TokenStream> {
    let mut context: Option<TokenStream> = None;
    for ty in methods.iter().filter_map(|method| method.spec.fixed_context()) {
        let own = ty.to_token_stream();
        match &context {
            None => context = Some(own),
            Some(first) if first.to_string() == own.to_string() => {}
            Some(first) => {
                errors.push_at(
                    ty,
                    &format!("the tools of a box have one context, and an earlier one has `{first}`"),
                );
            }
        }
    }
    context
}
