//! The options of `#[tool(…)]`: parsing, and the builder calls that they expand to.

use std::time::Duration;

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{Expr, ExprClosure, Ident, Lit, LitInt, LitStr, Pat, Token, Type};

use crate::expand::local_ident;
use crate::words::{check_name, duration_tokens, parse_duration};

const KNOWN_OPTIONS: &str = "name, description, namespace, effect, needs_approval, enabled, timeout, on_timeout, on_failure, retry, \
                     max_concurrent_calls, conflict_key, max_output_bytes, input_guardrails, output_guardrails, reconcile, strict, \
                     context, args";

/// The parsed options of one tool.
#[derive(Default)]
pub(crate) struct ToolOptions {
    pub(crate) name: Option<LitStr>,
    pub(crate) description: Option<LitStr>,
    pub(crate) namespace: Option<LitStr>,
    /// Context type of the application, if no parameter names it.
    pub(crate) context: Option<Type>,
    /// Name of the argument struct, if the author chose one.
    pub(crate) args: Option<Ident>,
    builder_calls: Vec<BuilderCall>,
    keys: Vec<Ident>,
}

/// An option that expands to a builder method call on the tool.
enum BuilderCall {
    Effect(TokenStream),
    ApproveAlways,
    ApproveEach,
    ApproveIf(Expr),
    ApproveWhen(ExprClosure),
    Enabled(Expr),
    EnabledIf(ExprClosure),
    Timeout(Duration),
    OnTimeout(TokenStream),
    OnTimeoutSay(ExprClosure),
    OnFailure(TokenStream),
    OnFailureSay(ExprClosure),
    Retry(u32, Duration),
    Concurrency(Expr),
    Conflict(Expr),
    OutputBudget(Expr),
    InputGuardrails(Vec<Expr>),
    OutputGuardrails(Vec<Expr>),
    Reconcile(Expr),
    NonStrict,
}

impl Parse for ToolOptions {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut options = Self::default();
        while !input.is_empty() {
            options.parse_one(input)?;
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        options.check_combinations()?;
        Ok(options)
    }
}

impl ToolOptions {
    /// Parses one `option = value`.
    pub(crate) fn parse_one(&mut self, input: ParseStream<'_>) -> syn::Result<()> {
        let key = input.call(Ident::parse_any)?;
        if self.keys.contains(&key) {
            return Err(syn::Error::new(key.span(), format!("`{key}` is given twice; keep one of them")));
        }
        let name = key.to_string();
        if !KNOWN_OPTIONS.split(", ").any(|known| known == name) {
            return Err(syn::Error::new(
                key.span(),
                format!("`{key}` is not an option; there are: {KNOWN_OPTIONS}"),
            ));
        }
        if !input.peek(Token![=]) {
            return Err(syn::Error::new(key.span(), format!("`{key}` needs a value: `{key} = …`")));
        }
        input.parse::<Token![=]>()?;
        self.keys.push(key);
        match name.as_str() {
            "name" => self.name = Some(parse_name(input, "name")?),
            "namespace" => self.namespace = Some(parse_name(input, "namespace")?),
            "description" => self.description = Some(parse_description(input)?),
            "context" => self.context = Some(input.parse()?),
            "args" => self.args = Some(input.parse()?),
            _ => {
                let rule = BuilderCall::parse(&name, input)?;
                self.builder_calls.extend(rule);
            }
        }
        Ok(())
    }

    /// Returns placeholder options after a parse error, so that no follow-up errors are reported.
    pub(crate) fn placeholder() -> Self {
        let unread = || Some(LitStr::new("unread", Span::call_site()));
        Self { name: unread(), description: unread(), ..Self::default() }
    }

    /// Checks the rules that involve more than one option.
    pub(crate) fn check_combinations(&self) -> syn::Result<()> {
        match self.key_of("on_timeout") {
            Some(key) if self.key_of("timeout").is_none() => {
                Err(syn::Error::new(key.span(), "`on_timeout` says nothing without `timeout = \"…\"`"))
            }
            _ => Ok(()),
        }
    }

    /// Returns the key of an option, if the author set it.
    pub(crate) fn key_of(&self, name: &str) -> Option<&Ident> {
        self.keys.iter().find(|key| *key == name)
    }

    /// Returns the keys of all options that the author set.
    pub(crate) fn given_keys(&self) -> impl Iterator<Item = &Ident> {
        self.keys.iter()
    }

    /// Takes the namespace and the context of the toolbox unless the tool sets its own.
    pub(crate) fn inherit_from(&mut self, shared: &Self) {
        self.namespace = self.namespace.take().or_else(|| shared.namespace.clone());
        self.context = self.context.take().or_else(|| shared.context.clone());
    }

    /// Generates the builder calls for a tool with these arguments and this context.
    pub(crate) fn builder_chain(&self, args: &Ident, context: &TokenStream) -> TokenStream {
        let namespace = self.namespace.as_ref().map(|namespace| quote!(.namespace(#namespace)));
        let rules = self.builder_calls.iter().map(|rule| rule.to_tokens(args, context));
        quote!(#namespace #(#rules)*)
    }
}

impl BuilderCall {
    fn parse(name: &str, input: ParseStream<'_>) -> syn::Result<Option<Self>> {
        Ok(Some(match name {
            "effect" => Self::Effect(parse_choice(
                input,
                "an effect",
                &[
                    ("once", quote!(::windlass::core::tool::ToolEffect::Once)),
                    ("idempotent", quote!(::windlass::core::tool::ToolEffect::Idempotent)),
                    ("pure", quote!(::windlass::core::tool::ToolEffect::Pure)),
                ],
            )?),
            "on_timeout" => match input.fork().parse::<Expr>() {
                Ok(Expr::Closure(_)) => Self::OnTimeoutSay(parse_closure(input, 2, "|ctx, timeout| …")?),
                _ => Self::OnTimeout(parse_choice(
                    input,
                    "what a timeout does",
                    &[
                        ("tell_model", quote!(::windlass::tool::OnTimeout::TellModel)),
                        ("fail_run", quote!(::windlass::tool::OnTimeout::FailRun)),
                    ],
                )?),
            },
            "on_failure" => match input.fork().parse::<Expr>() {
                Ok(Expr::Closure(_)) => Self::OnFailureSay(parse_closure(input, 2, "|ctx, error| …")?),
                _ => Self::OnFailure(parse_choice(
                    input,
                    "what a failure does",
                    &[
                        ("hide_error", quote!(::windlass::tool::OnFailure::HideError)),
                        ("show_error", quote!(::windlass::tool::OnFailure::ShowError)),
                        ("fail_run", quote!(::windlass::tool::OnFailure::FailRun)),
                    ],
                )?),
            },
            "timeout" => {
                Self::Timeout(parse_duration(&parse_string(input, "a duration such as `\"30s\"`")?)?)
            }
            "needs_approval" => Self::parse_approve(input)?,
            "enabled" => match input.parse::<Expr>()? {
                Expr::Closure(rule) => Self::EnabledIf(check_closure_inputs(rule, 1, "|ctx| …")?),
                value => Self::Enabled(value),
            },
            "retry" => Self::parse_retry(input)?,
            "max_concurrent_calls" => {
                Self::Concurrency(parse_positive(input, "no call could ever run; allow at least 1")?)
            }
            "max_output_bytes" => {
                Self::OutputBudget(parse_positive(input, "the model would see nothing; allow more")?)
            }
            "conflict_key" => match input.parse::<Expr>()? {
                Expr::Closure(rule) => {
                    Self::Conflict(Expr::Closure(check_closure_inputs(rule, 1, "|args| …")?))
                }
                rule => Self::Conflict(rule),
            },
            "input_guardrails" => Self::InputGuardrails(parse_list(input)?),
            "output_guardrails" => Self::OutputGuardrails(parse_list(input)?),
            "reconcile" => Self::Reconcile(input.parse()?),
            _ => {
                let strict: syn::LitBool = input
                    .parse()
                    .map_err(|error| syn::Error::new(error.span(), "`strict` is `true` or `false`"))?;
                return Ok((!strict.value).then_some(Self::NonStrict));
            }
        }))
    }

    fn parse_approve(input: ParseStream<'_>) -> syn::Result<Self> {
        let expr: Expr = input.parse()?;
        Ok(match expr {
            Expr::Path(path) if path.path.is_ident("always") => Self::ApproveAlways,
            Expr::Path(path) if path.path.is_ident("each_time") => Self::ApproveEach,
            Expr::Closure(rule) if rule.inputs.len() == 2 => Self::ApproveWhen(rule),
            Expr::Closure(rule) => {
                Self::ApproveIf(Expr::Closure(check_closure_inputs(rule, 1, "|args| …` or `|ctx, args| …")?))
            }
            Expr::Path(path) => Self::ApproveIf(Expr::Path(path)),
            other => {
                let message = "say when a person decides: `always`, `each_time`, `|args| …`, `|ctx, args| …` or the name \
                               of a function of the arguments";
                return Err(syn::Error::new(other.span(), message));
            }
        })
    }

    fn parse_retry(input: ParseStream<'_>) -> syn::Result<Self> {
        let wrong = |span: Span| {
            syn::Error::new(span, "write the attempts in all and the first wait: `retry = (3, \"200ms\")`")
        };
        let span = input.span();
        let Ok(tuple) = input.parse::<syn::ExprTuple>() else { return Err(wrong(span)) };
        let parts: Vec<&Expr> = tuple.elems.iter().collect();
        let [Expr::Lit(attempts), Expr::Lit(base)] = parts.as_slice() else {
            return Err(wrong(tuple.span()));
        };
        let (Lit::Int(attempts), Lit::Str(base)) = (&attempts.lit, &base.lit) else {
            return Err(wrong(tuple.span()));
        };
        let number: u32 = attempts.base10_parse()?;
        if number < 2 {
            let message = "counts the first attempt too, so 2 is the least that tries again";
            return Err(syn::Error::new(attempts.span(), message));
        }
        Ok(Self::Retry(number, parse_duration(base)?))
    }

    fn to_tokens(&self, args: &Ident, context: &TokenStream) -> TokenStream {
        match self {
            Self::Effect(effect) => quote!(.effect(#effect)),
            Self::ApproveAlways => quote!(.needs_approval()),
            Self::ApproveEach => quote!(.needs_approval_each_time()),
            Self::ApproveIf(rule) => {
                let rule = with_move_expr(rule);
                quote_spanned!(rule.span()=> .needs_approval_if::<#args>(#rule))
            }
            Self::ApproveWhen(rule) => {
                let (rule, own, ctx, given) =
                    (with_move(rule), local_ident("own"), local_ident("ctx"), local_ident("args"));
                quote_spanned! {rule.span()=>
                    .needs_approval_if_async::<#args, _>({
                        // Fixes the closure's type, so that its parameters need no type annotations.
                        fn __windlass_rule<C, A, F: Fn(&::windlass::tool::ToolContext<C>, &A) -> bool>(#own: F) -> F {
                            #own
                        }
                        let #own = __windlass_rule::<#context, #args, _>(#rule);
                        move |#ctx, #given| ::std::future::ready(#own(&#ctx, #given))
                    })
                }
            }
            Self::Enabled(value) => quote_spanned!(value.span()=> .enabled(#value)),
            Self::EnabledIf(rule) => {
                let rule = with_move(rule);
                quote_spanned!(rule.span()=> .enabled_if(#rule))
            }
            Self::Timeout(timeout) => {
                let timeout = duration_tokens(*timeout);
                quote!(.timeout(#timeout))
            }
            Self::OnTimeout(policy) => quote!(.on_timeout(#policy)),
            Self::OnTimeoutSay(text) => {
                let text = with_move(text);
                quote_spanned!(text.span()=> .on_timeout(::windlass::tool::OnTimeout::<#context>::custom_message(#text)))
            }
            Self::OnFailure(policy) => quote!(.on_failure(#policy)),
            Self::OnFailureSay(text) => {
                let text = with_move(text);
                quote_spanned!(text.span()=> .on_failure(::windlass::tool::OnFailure::<#context>::custom_message(#text)))
            }
            Self::Retry(attempts, base) => {
                let base = duration_tokens(*base);
                quote!(.retry(#attempts, #base))
            }
            Self::Concurrency(limit) => quote_spanned!(limit.span()=> .max_concurrent_calls(#limit)),
            Self::Conflict(key) => {
                let key = with_move_expr(key);
                quote_spanned!(key.span()=> .conflict_key::<#args>(#key))
            }
            Self::OutputBudget(bytes) => quote_spanned!(bytes.span()=> .max_output_bytes(#bytes)),
            Self::InputGuardrails(list) => quote!(#(.input_guardrail(#list))*),
            Self::OutputGuardrails(list) => quote!(#(.output_guardrail(#list))*),
            Self::Reconcile(ask) => {
                let ask = with_move_expr(ask);
                quote_spanned!(ask.span()=> .reconcile(#ask))
            }
            Self::NonStrict => quote!(.non_strict()),
        }
    }
}

/// Adds `move` to a rule's closure: a tool outlives the scope that creates it, so its rules own their captures.
fn with_move(rule: &ExprClosure) -> ExprClosure {
    let mut rule = rule.clone();
    rule.capture.get_or_insert_with(Default::default);
    rule
}

fn with_move_expr(rule: &Expr) -> Expr {
    match rule {
        Expr::Closure(rule) => Expr::Closure(with_move(rule)),
        other => other.clone(),
    }
}

fn parse_closure(input: ParseStream<'_>, inputs: usize, form: &str) -> syn::Result<ExprClosure> {
    check_closure_inputs(input.parse()?, inputs, form)
}

fn check_closure_inputs(rule: ExprClosure, inputs: usize, form: &str) -> syn::Result<ExprClosure> {
    if rule.inputs.len() == inputs {
        return Ok(rule);
    }
    let span = rule.inputs.first().map_or(rule.inputs_begin.span(), Pat::span);
    Err(syn::Error::new(span, format!("write this closure as `{form}`")))
}

fn parse_choice(
    input: ParseStream<'_>,
    what: &str,
    choices: &[(&str, TokenStream)],
) -> syn::Result<TokenStream> {
    let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
    let wrong =
        |span: Span| syn::Error::new(span, format!("this is not {what}; use one of: {}", names.join(", ")));
    let span = input.span();
    let Ok(given) = input.call(Ident::parse_any) else { return Err(wrong(span)) };
    match choices.iter().find(|(name, _)| given == name) {
        Some((_, tokens)) => Ok(tokens.clone()),
        None => Err(wrong(given.span())),
    }
}

fn parse_string(input: ParseStream<'_>, what: &str) -> syn::Result<LitStr> {
    input.parse().map_err(|error| syn::Error::new(error.span(), format!("write {what}, in quotes")))
}

fn parse_name(input: ParseStream<'_>, what: &str) -> syn::Result<LitStr> {
    let name = parse_string(input, "the name")?;
    check_name(&name.value(), name.span(), what)?;
    Ok(name)
}

fn parse_description(input: ParseStream<'_>) -> syn::Result<LitStr> {
    let text = parse_string(input, "what the model is told of the tool")?;
    if text.value().trim().is_empty() {
        return Err(syn::Error::new(text.span(), "the model needs a description; say what the tool does"));
    }
    Ok(text)
}

fn parse_positive(input: ParseStream<'_>, otherwise: &str) -> syn::Result<Expr> {
    let number: Expr = input.parse()?;
    if let Expr::Lit(literal) = &number
        && let Lit::Int(whole) = &literal.lit
        && is_zero(whole)
    {
        return Err(syn::Error::new(whole.span(), format!("with 0, {otherwise}")));
    }
    Ok(number)
}

fn is_zero(number: &LitInt) -> bool {
    number.base10_parse::<u64>().is_ok_and(|number| number == 0)
}

fn parse_list(input: ParseStream<'_>) -> syn::Result<Vec<Expr>> {
    match input.parse::<Expr>()? {
        Expr::Array(list) => Ok(list.elems.into_iter().collect()),
        other => Err(syn::Error::new(other.span(), "write a list: `[first, second]`")),
    }
}
