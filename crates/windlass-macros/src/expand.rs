//! What all tools become, whether they are functions, methods or closures.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Attribute, Generics, ReturnType, Type, Visibility};

use crate::errors::Errors;
use crate::options::Options;
use crate::params::{Context, Inputs};
use crate::words::{check_name, documentation};

/// Everything about one tool that does not depend on where its body stands.
pub(crate) struct Spec {
    name: String,
    description: String,
    inputs: Inputs,
    options: Options,
    args: Ident,
    is_async: bool,
    output: Span,
}

/// Where a tool's body stands, and how it waits.
pub(crate) struct Signature<'a> {
    /// The function's name, or none for a closure.
    pub(crate) ident: Option<&'a Ident>,
    pub(crate) is_async: bool,
    pub(crate) output: &'a ReturnType,
    /// Where there is no better place to complain.
    pub(crate) span: Span,
}

impl Spec {
    pub(crate) fn new(
        signature: Signature<'_>,
        attrs: &[Attribute],
        inputs: Inputs,
        options: Options,
        errors: &mut Errors,
    ) -> Self {
        let Signature { ident, is_async, output, span } = signature;
        let name = match (&options.name, ident) {
            (Some(name), _) => name.value(),
            (None, Some(ident)) => {
                let name = ident.unraw().to_string();
                errors.take(check_name(&name, ident.span(), "name"));
                name
            }
            (None, None) => {
                errors
                    .push(syn::Error::new(span, "the model needs a name to call it by; add `name = \"…\"`"));
                String::new()
            }
        };
        let description =
            options.description.as_ref().map(|text| text.value()).or_else(|| documentation(attrs));
        let description = description.unwrap_or_else(|| {
            let message = "the model needs a description: write a doc comment, or add `description = \"…\"`";
            errors.push(syn::Error::new(span, message));
            String::new()
        });
        if let (Some(Context::Of(_)), Some(key)) = (&inputs.context, options.given("context")) {
            errors.at(key, "the context parameter says this already; remove `context`");
        }
        let args = options.args.clone().unwrap_or_else(|| Ident::new("__WindlassArgs", Span::mixed_site()));
        let output = match output {
            ReturnType::Default => span,
            ReturnType::Type(_, ty) => ty.span(),
        };
        Self { name, description, inputs, options, args, is_async, output }
    }

    /// The one context that the tool is for, where it is not for all.
    pub(crate) fn context(&self) -> Option<&Type> {
        match (&self.inputs.context, &self.options.context) {
            (Some(Context::Of(ty)), _) => Some(ty),
            (_, Some(ty)) => Some(ty),
            (Some(Context::Any) | None, None) => None,
        }
    }

    /// Whether the body's own function is generic over the context.
    pub(crate) fn takes_any_context(&self) -> bool {
        matches!(self.inputs.context, Some(Context::Any))
    }

    /// Whether the author named the struct of the arguments, so that it must be seen outside.
    pub(crate) fn has_named_args(&self) -> bool {
        self.options.args.is_some()
    }

    /// The struct that the arguments are read into.
    pub(crate) fn args_struct(&self, vis: &Visibility) -> TokenStream {
        let Self { name, args, .. } = self;
        let fields = self.inputs.params.iter().map(|param| param.field(args, vis));
        let defaults: Vec<_> = self.inputs.params.iter().filter_map(|param| param.default_value()).collect();
        let defaults = (!defaults.is_empty()).then(|| quote!(impl #args { #(#defaults)* }));
        quote! {
            #[derive(::windlass::__private::serde::Deserialize, ::windlass::__private::schemars::JsonSchema)]
            #[serde(crate = "::windlass::__private::serde", rename = #name, deny_unknown_fields)]
            #[schemars(crate = "::windlass::__private::schemars")]
            #[allow(missing_docs)]
            #vis struct #args {
                #(#fields,)*
            }

            #defaults
        }
    }

    /// The tool itself, as an expression of type `Tool<context>`. `prelude` runs before every call; `function` is
    /// what is called, with `receiver` before everything else.
    pub(crate) fn tool(
        &self,
        context: &TokenStream,
        prelude: &TokenStream,
        function: &TokenStream,
        receiver: &TokenStream,
    ) -> TokenStream {
        let Self { name, description, args, .. } = self;
        let (ctx, given) = (local("ctx"), local("args"));
        let context_argument = self.inputs.context.is_some().then(|| quote!(&#ctx,));
        let arguments = self.inputs.params.iter().map(|param| {
            let field = &param.name;
            quote!(#given.#field)
        });
        let wait = self.is_async.then(|| quote!(.await));
        let result = quote! {
            __WindlassReturned(#function(#receiver #context_argument #(#arguments),*) #wait).into_result()
        };
        // What is asked of the result is shown where the result stands.
        let at = self.output;
        let (constructor, body) = if self.is_async {
            (quote_spanned!(at=> function::<#args, _, _, _, _>), quote_spanned!(at=> async move { #result }))
        } else {
            (quote_spanned!(at=> blocking::<#args, _, _, _>), result)
        };
        let closure = quote_spanned! {at=>
            move |#ctx: ::windlass::ToolContext<#context>, #given: #args| {
                let _ = (&#ctx, &#given);
                #prelude
                #body
            }
        };
        let chain = self.options.chain(args, context);
        quote_spanned!(at=> ::windlass::Tool::<#context>::#constructor(#name, #description, #closure) #chain)
    }
}

/// A name for a variable that the author's code can neither see nor hide.
pub(crate) fn local(name: &str) -> Ident {
    Ident::new(&format!("__windlass_{name}"), Span::mixed_site())
}

/// A generic parameter for the context, with the bounds that every context has.
pub(crate) fn any_context() -> (Ident, Generics) {
    let any = Ident::new("__WindlassContext", Span::mixed_site());
    let generics = syn::parse_quote!(<#any: ::core::marker::Send + ::core::marker::Sync + 'static>);
    (any, generics)
}

/// What the tools of one block share.
///
/// Whether a body returns a `Result` is asked of its type, not of its spelling: an alias of `Result` can be
/// serialised too, and a failure would quietly become a success that says `{"Err": …}`. A method of the type
/// itself is preferred to a trait's, so a `Result` finds the first, and everything else the second.
pub(crate) fn helpers() -> TokenStream {
    quote! {
        struct __WindlassReturned<T>(T);

        #[allow(dead_code)]
        impl<T, E> __WindlassReturned<::core::result::Result<T, E>> {
            fn into_result(self) -> ::core::result::Result<T, E> {
                self.0
            }
        }

        #[allow(dead_code)]
        trait __WindlassPlain {
            type Output;
            fn into_result(self) -> ::core::result::Result<Self::Output, ::windlass::ToolError>;
        }

        impl<T> __WindlassPlain for __WindlassReturned<T> {
            type Output = T;
            fn into_result(self) -> ::core::result::Result<T, ::windlass::ToolError> {
                ::core::result::Result::Ok(self.0)
            }
        }
    }
}
