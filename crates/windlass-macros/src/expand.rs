//! The expansion that functions, methods and closures share: the argument struct and the tool expression.

use proc_macro2::{Ident, Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Attribute, Generics, ReturnType, Type, Visibility};

use crate::errors::MacroErrors;
use crate::options::ToolOptions;
use crate::params::{ContextParam, FunctionInputs};
use crate::words::{check_name, doc_comment_text};

/// A parsed tool, independent of the place of its body.
pub(crate) struct ParsedTool {
    name: String,
    description: String,
    inputs: FunctionInputs,
    options: ToolOptions,
    args_ident: Ident,
    is_async: bool,
    output_span: Span,
}

/// The signature of a tool's body.
pub(crate) struct BodySignature<'a> {
    /// Name of the function; absent for a closure.
    pub(crate) ident: Option<&'a Ident>,
    pub(crate) is_async: bool,
    pub(crate) output: &'a ReturnType,
    /// Fallback location for error messages.
    pub(crate) span: Span,
}

impl ParsedTool {
    pub(crate) fn new(
        signature: BodySignature<'_>,
        attrs: &[Attribute],
        inputs: FunctionInputs,
        options: ToolOptions,
        errors: &mut MacroErrors,
    ) -> Self {
        let BodySignature { ident, is_async, output, span } = signature;
        let name = match (&options.name, ident) {
            (Some(name), _) => name.value(),
            (None, Some(ident)) => {
                let name = ident.unraw().to_string();
                errors.ok_or_push(check_name(&name, ident.span(), "name"));
                name
            }
            (None, None) => {
                errors
                    .push(syn::Error::new(span, "the model needs a name to call it by; add `name = \"…\"`"));
                String::new()
            }
        };
        let description =
            options.description.as_ref().map(|text| text.value()).or_else(|| doc_comment_text(attrs));
        let description = description.unwrap_or_else(|| {
            let message = "the model needs a description: write a doc comment, or add `description = \"…\"`";
            errors.push(syn::Error::new(span, message));
            String::new()
        });
        if let (Some(ContextParam::Concrete(_)), Some(key)) = (&inputs.context, options.key_of("context")) {
            errors.push_at(key, "the context parameter says this already; remove `context`");
        }
        let args = options.args.clone().unwrap_or_else(|| Ident::new("__WindlassArgs", Span::mixed_site()));
        let output = match output {
            ReturnType::Default => span,
            ReturnType::Type(_, ty) => ty.span(),
        };
        Self { name, description, inputs, options, args_ident: args, is_async, output_span: output }
    }

    /// Returns the concrete context type of the tool, or `None` if the tool works with any context.
    pub(crate) fn fixed_context(&self) -> Option<&Type> {
        match (&self.inputs.context, &self.options.context) {
            (Some(ContextParam::Concrete(ty)), _) => Some(ty),
            (_, Some(ty)) => Some(ty),
            (Some(ContextParam::Generic) | None, None) => None,
        }
    }

    /// Returns true if the body's function is generic over the context.
    pub(crate) fn has_generic_context(&self) -> bool {
        matches!(self.inputs.context, Some(ContextParam::Generic))
    }

    /// Returns true if the author named the argument struct, which must then be visible outside.
    pub(crate) fn has_named_args(&self) -> bool {
        self.options.args.is_some()
    }

    /// Generates the struct into which the arguments are deserialised.
    pub(crate) fn args_struct(&self, vis: &Visibility) -> TokenStream {
        let Self { name, args_ident: args, .. } = self;
        let fields = self.inputs.params.iter().map(|param| param.field_tokens(args, vis));
        let defaults: Vec<_> =
            self.inputs.params.iter().filter_map(|param| param.default_fn_tokens()).collect();
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

    /// Generates the tool as an expression of type `Tool<context>`. `prelude` runs before every call;
    /// `function` is called with `receiver` as its first argument.
    pub(crate) fn tool_expr(
        &self,
        context: &TokenStream,
        prelude: &TokenStream,
        function: &TokenStream,
        receiver: &TokenStream,
    ) -> TokenStream {
        let Self { name, description, args_ident: args, .. } = self;
        let (ctx, given) = (local_ident("ctx"), local_ident("args"));
        let context_argument = self.inputs.context.is_some().then(|| quote!(&#ctx,));
        let arguments = self.inputs.params.iter().map(|param| {
            let field = &param.name;
            quote!(#given.#field)
        });
        let wait = self.is_async.then(|| quote!(.await));
        let result = quote! {
            __WindlassReturned(#function(#receiver #context_argument #(#arguments),*) #wait).into_result()
        };
        // The result's span makes unmet trait bounds point at the return type.
        let at = self.output_span;
        let (constructor, body) = if self.is_async {
            (quote_spanned!(at=> function::<#args, _, _, _, _>), quote_spanned!(at=> async move { #result }))
        } else {
            (quote_spanned!(at=> blocking::<#args, _, _, _>), result)
        };
        let closure = quote_spanned! {at=>
            move |#ctx: ::windlass::tool::ToolContext<#context>, #given: #args| {
                let _ = (&#ctx, &#given);
                #prelude
                #body
            }
        };
        let chain = self.options.builder_chain(args, context);
        quote_spanned!(at=> ::windlass::tool::Tool::<#context>::#constructor(#name, #description, #closure) #chain)
    }
}

/// Returns a hygienic variable name that cannot clash with the author's code.
pub(crate) fn local_ident(name: &str) -> Ident {
    Ident::new(&format!("__windlass_{name}"), Span::mixed_site())
}

/// Returns a generic parameter for the context, with the bounds that every context has.
pub(crate) fn generic_context() -> (Ident, Generics) {
    let any = Ident::new("__WindlassContext", Span::mixed_site());
    let generics = syn::parse_quote!(<#any: ::core::marker::Send + ::core::marker::Sync + 'static>);
    (any, generics)
}

/// Generates the helper items that the tools of one block share.
///
/// The helpers decide by type, not by spelling, if a body returns a `Result`. An alias of `Result` can be
/// serialised too, and its error would silently become a success with the text `{"Err": …}`. Method resolution
/// prefers an inherent method to a trait method: a `Result` resolves to the first, any other type to the
/// second.
pub(crate) fn helper_items() -> TokenStream {
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
            fn into_result(self) -> ::core::result::Result<Self::Output, ::windlass::tool::ToolError>;
        }

        impl<T> __WindlassPlain for __WindlassReturned<T> {
            type Output = T;
            fn into_result(self) -> ::core::result::Result<T, ::windlass::tool::ToolError> {
                ::core::result::Result::Ok(self.0)
            }
        }
    }
}
