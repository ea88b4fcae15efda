//! The parameters of a tool's function: the context, which is hidden from the model, and the arguments.

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{
    Attribute, Expr, FnArg, GenericArgument, Ident, Meta, Pat, PatType, PathArguments, Receiver, ReturnType,
    Signature, Type, TypePath,
};

use crate::errors::MacroErrors;
use crate::words::doc_comment_text;

/// The parameters of a tool's function.
#[derive(Default)]
pub(crate) struct FunctionInputs {
    pub(crate) context: Option<ContextParam>,
    pub(crate) params: Vec<ToolParam>,
}

/// The context parameter of a function.
pub(crate) enum ContextParam {
    /// The context type of one application.
    Concrete(Box<Type>),
    /// Any context type, written `ToolContext<_>`.
    Generic,
}

/// One argument that the model supplies.
pub(crate) struct ToolParam {
    pub(crate) name: Ident,
    pub(crate) ty: Type,
    description: Option<String>,
    /// `#[serde(…)]` and `#[schemars(…)]` attributes, copied to the struct field.
    attrs: Vec<Attribute>,
    default: ParamDefault,
}

/// The default of an argument that the model omits.
enum ParamDefault {
    Absent,
    TypeDefault,
    Value(Box<Expr>),
}

/// Reads the parameters of a function or a method, and strips the macro's own attributes.
pub(crate) fn read_signature(sig: &mut Signature, any: &Ident, errors: &mut MacroErrors) -> FunctionInputs {
    if let Some(token) = &sig.constness {
        errors.push_at(
            token,
            "a tool runs when a model calls it, which is never at compile time; remove `const`",
        );
    }
    if let syn::Safety::Unsafe(token) = &sig.safety {
        errors.push_at(
            token,
            "a model cannot uphold what `unsafe` asks of a caller; wrap the call in a safe function",
        );
    }
    if let Some(abi) = &sig.abi {
        errors.push_at(abi, "a tool is an ordinary Rust function; remove `extern`");
    }
    if let Some(dots) = &sig.variadic {
        errors.push_at(dots, "a tool has a fixed list of parameters; take a `Vec` instead");
    }
    if !sig.generics.params.is_empty() {
        errors.push_at(
            &sig.generics.params,
            "a tool has one schema, so its function cannot be generic; use concrete types",
        );
    }
    check_output(&sig.output, errors);
    let typed = sig.inputs.iter_mut().filter_map(|input| match input {
        FnArg::Typed(typed) => Some(typed),
        FnArg::Receiver(_) => None,
    });
    read_params(typed, any, errors)
}

/// Reads typed parameters.
pub(crate) fn read_params<'a>(
    typed: impl Iterator<Item = &'a mut PatType>,
    any: &Ident,
    errors: &mut MacroErrors,
) -> FunctionInputs {
    let mut inputs = FunctionInputs::default();
    for (at, input) in typed.enumerate() {
        match classify_param(&mut input.ty, any, errors) {
            ParamKind::Context(context) => {
                if inputs.context.is_some() {
                    errors.push_at(&*input, "there is one context; remove this parameter");
                } else if at > 0 {
                    errors.push_at(&*input, "the context comes first; move it to the front");
                }
                if let Some(attr) = input.attrs.first() {
                    errors.push_at(attr, "the model never sees the context; remove this");
                }
                input.attrs.clear();
                inputs.context = Some(context);
            }
            ParamKind::Rejected => input.attrs.clear(),
            ParamKind::Argument => inputs.params.extend(read_param(input, errors)),
        }
    }
    inputs
}

/// Checks that a toolbox method takes `&self`: calls can overlap, so they share the value.
pub(crate) fn check_receiver(receiver: Option<&Receiver>, sig: &Signature, errors: &mut MacroErrors) {
    match receiver.map(|receiver| (receiver, &receiver.kind)) {
        Some((_, syn::ReceiverKind::Reference(_, None, None))) => {}
        Some((receiver, _)) => {
            errors.push_at(receiver, "calls can overlap and share the box, so take `&self`")
        }
        None => errors.push_at(
            &sig.ident,
            "a tool of a box takes `&self`; without it, put `#[tool]` on a free function",
        ),
    }
}

fn check_output(output: &ReturnType, errors: &mut MacroErrors) {
    let ReturnType::Type(_, ty) = output else { return };
    if let Some(span) = find_borrow(ty.to_token_stream()) {
        errors.push(syn::Error::new(
            span,
            "the result outlives what it would borrow from; return an owned value",
        ));
    }
}

/// The kind of a parameter.
enum ParamKind {
    Context(ContextParam),
    /// A context parameter of the wrong form; its error is already recorded.
    Rejected,
    Argument,
}

fn classify_param(ty: &mut Type, any: &Ident, errors: &mut MacroErrors) -> ParamKind {
    match ty {
        Type::Paren(inner) => classify_param(&mut inner.elem, any, errors),
        Type::Group(inner) => classify_param(&mut inner.elem, any, errors),
        Type::Path(path) if is_context(path) => {
            errors.push_at(&*path, "take the context by reference: `ctx: &ToolContext<…>`");
            ParamKind::Rejected
        }
        Type::Reference(reference) => match &mut *reference.elem {
            Type::Path(path) if is_context(path) => {
                if let Some(token) = &reference.mutability {
                    errors.push_at(token, "the context is shared; take it as `&ToolContext<…>`");
                }
                read_context_type(path, any, errors)
            }
            _ => ParamKind::Argument,
        },
        _ => ParamKind::Argument,
    }
}

fn is_context(path: &TypePath) -> bool {
    path.qself.is_none() && path.path.segments.last().is_some_and(|last| last.ident == "ToolContext")
}

fn read_context_type(path: &mut TypePath, any: &Ident, errors: &mut MacroErrors) -> ParamKind {
    let span = path.span();
    let Some(last) = path.path.segments.last_mut() else { return ParamKind::Rejected };
    let arguments = match &mut last.arguments {
        PathArguments::None => {
            return ParamKind::Context(ContextParam::Concrete(Box::new(syn::parse_quote!(()))));
        }
        PathArguments::AngleBracketed(arguments) => &mut arguments.args,
        PathArguments::Parenthesized(_) => return ParamKind::Rejected,
    };
    match arguments.iter_mut().collect::<Vec<_>>().as_mut_slice() {
        [GenericArgument::Type(ty @ Type::Infer(_))] => {
            *ty = syn::parse_quote!(#any);
            ParamKind::Context(ContextParam::Generic)
        }
        [GenericArgument::Type(ty)] => ParamKind::Context(ContextParam::Concrete(Box::new(ty.clone()))),
        _ => {
            errors.push(syn::Error::new(span, "write the context as `&ToolContext<YourContext>`"));
            ParamKind::Rejected
        }
    }
}

fn read_param(input: &mut PatType, errors: &mut MacroErrors) -> Option<ToolParam> {
    let attrs = std::mem::take(&mut input.attrs);
    let name = match &*input.pat {
        Pat::Ident(name) if name.by_ref.is_none() && name.subpat.is_none() => name.ident.clone(),
        Pat::Wild(_) => {
            errors.push_at(&input.pat, "the model fills this in by its name; give it one, such as `_unused`");
            return None;
        }
        other => {
            errors.push_at(
                other,
                "the model fills this in by its name; take it as `name: Type` and match in the body",
            );
            return None;
        }
    };
    check_type(&input.ty, errors);
    let description = doc_comment_text(&attrs);
    let mut param = ToolParam {
        name,
        ty: (*input.ty).clone(),
        description,
        attrs: Vec::new(),
        default: ParamDefault::Absent,
    };
    for attr in attrs {
        if attr.path().is_ident("doc") {
            continue;
        }
        if attr.path().is_ident("serde") || attr.path().is_ident("schemars") {
            param.attrs.push(attr);
        } else if attr.path().is_ident("default") {
            match &attr.meta {
                _ if !matches!(param.default, ParamDefault::Absent) => {
                    errors.push_at(&attr, "`#[default]` is given twice; keep one of them");
                }
                Meta::Path(_) => param.default = ParamDefault::TypeDefault,
                Meta::NameValue(meta) => param.default = ParamDefault::Value(Box::new(meta.value.clone())),
                Meta::List(_) => errors.push_at(&attr, "write it as `#[default]` or `#[default = value]`"),
            }
        } else {
            errors.push_at(
                &attr,
                "a parameter takes doc comments, `#[default = …]`, `#[serde(…)]` and `#[schemars(…)]`; remove this",
            );
        }
    }
    let keys = param.serde_keys();
    if keys.iter().any(|key| key == "flatten") {
        errors.push_at(
            &param.name,
            "arguments that are not known are refused, which rules out `flatten`; take a struct",
        );
    }
    if keys.iter().any(|key| key == "default") && !matches!(param.default, ParamDefault::Absent) {
        errors.push_at(
            &param.name,
            "its default is given twice, by `#[default]` and by `#[serde(default)]`; keep one",
        );
    }
    Some(param)
}

fn check_type(ty: &Type, errors: &mut MacroErrors) {
    if let Type::Reference(reference) = ty {
        let instead = match &*reference.elem {
            Type::Path(path) if path.path.is_ident("str") => "`String`".to_owned(),
            Type::Slice(slice) => format!("`Vec<{}>`", type_text(&slice.elem)),
            other => format!("`{}`", type_text(other)),
        };
        let message =
            format!("arguments are read anew for every call, so there is nothing to borrow; take {instead}");
        return errors.push_at(ty, &message);
    }
    if let Some(span) = find_ident(ty.to_token_stream(), &|ident| ident == "impl") {
        return errors.push(syn::Error::new(span, "the schema needs to know the type; name a concrete one"));
    }
    if let Some(span) = find_ident(ty.to_token_stream(), &|ident| ident == "Self") {
        return errors
            .push(syn::Error::new(span, "arguments are read outside of the impl; write the type's name"));
    }
    if let Some(span) = find_borrow(ty.to_token_stream()) {
        let message =
            "arguments are read anew for every call, so there is nothing to borrow; take an owned type";
        errors.push(syn::Error::new(span, message));
    }
}

fn type_text(ty: &Type) -> String {
    ty.to_token_stream()
        .to_string()
        .replace(" :: ", "::")
        .replace(" <", "<")
        .replace("< ", "<")
        .replace(" >", ">")
}

fn find_ident(tokens: TokenStream, test: &dyn Fn(&Ident) -> bool) -> Option<Span> {
    tokens.into_iter().find_map(|token| match token {
        TokenTree::Ident(ident) if test(&ident) => Some(ident.span()),
        TokenTree::Group(group) => find_ident(group.stream(), test),
        _ => None,
    })
}

/// Returns the span of the first reference or lifetime that is not `'static`.
fn find_borrow(tokens: TokenStream) -> Option<Span> {
    let mut last_and = None;
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            TokenTree::Punct(punct) if punct.as_char() == '\'' => {
                let is_static = matches!(tokens.peek(), Some(TokenTree::Ident(name)) if name == "static");
                if !is_static {
                    return last_and.or(Some(punct.span()));
                }
                last_and = None;
            }
            TokenTree::Punct(punct) if punct.as_char() == '&' => {
                if last_and.is_some() {
                    return last_and;
                }
                last_and = Some(punct.span());
            }
            TokenTree::Group(group) => {
                if let Some(span) = last_and.or_else(|| find_borrow(group.stream())) {
                    return Some(span);
                }
            }
            _ if last_and.is_some() => return last_and,
            _ => {}
        }
    }
    last_and
}

impl ToolParam {
    /// Generates the struct field for the argument.
    pub(crate) fn field_tokens(&self, args: &Ident, vis: &syn::Visibility) -> TokenStream {
        let Self { name, ty, attrs, .. } = self;
        let description = self.description.as_ref().map(|text| quote!(#[doc = #text]));
        let default = match &self.default {
            ParamDefault::Value(_) => {
                let path = format!("{args}::{}", self.default_fn_name());
                Some(quote!(#[serde(default = #path)]))
            }
            ParamDefault::TypeDefault => Some(quote!(#[serde(default)])),
            ParamDefault::Absent
                if is_option(ty) && !self.serde_keys().iter().any(|key| key == "default") =>
            {
                Some(quote!(#[serde(default)]))
            }
            ParamDefault::Absent => None,
        };
        quote!(#description #(#attrs)* #default #vis #name: #ty)
    }

    /// Generates the function that returns the default, if the author wrote a value.
    pub(crate) fn default_fn_tokens(&self) -> Option<TokenStream> {
        let ParamDefault::Value(value) = &self.default else { return None };
        let (name, ty) = (self.default_fn_name(), &self.ty);
        let value = match &**value {
            Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => {
                quote::quote_spanned!(text.span()=> ::core::convert::Into::into(#text))
            }
            other => other.to_token_stream(),
        };
        Some(quote! {
            fn #name() -> #ty {
                #value
            }
        })
    }

    fn default_fn_name(&self) -> Ident {
        format_ident!("__default_{}", self.name.unraw(), span = Span::mixed_site())
    }

    fn serde_keys(&self) -> Vec<String> {
        let mut keys = Vec::new();
        for attr in self.attrs.iter().filter(|attr| attr.path().is_ident("serde")) {
            // Serde reports attributes that cannot be parsed here.
            let _ = attr.parse_nested_meta(|meta| {
                keys.extend(meta.path.get_ident().map(ToString::to_string));
                if meta.input.peek(syn::Token![=]) {
                    meta.value()?.parse::<Expr>()?;
                } else if meta.input.peek(syn::token::Paren) {
                    let inner;
                    syn::parenthesized!(inner in meta.input);
                    inner.parse::<TokenStream>()?;
                }
                Ok(())
            });
        }
        keys
    }
}

fn is_option(ty: &Type) -> bool {
    matches!(ty, Type::Path(path) if path.path.segments.last().is_some_and(|last| last.ident == "Option"))
}
