//! What stands in `#[tool(…)]`.

use std::time::Duration;

use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::ext::IdentExt;
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::{Expr, ExprClosure, Ident, Lit, LitInt, LitStr, Pat, Token, Type};

use crate::expand::local;
use crate::words::{check_name, duration, duration_tokens};

const KNOWN: &str = "name, description, namespace, effect, approve, enabled, timeout, on_timeout, on_failure, retry, \
                     concurrency, conflict, output_budget, input_guardrails, output_guardrails, reconcile, strict, \
                     context, args";

/// The options of one tool.
#[derive(Default)]
pub(crate) struct Options {
    pub(crate) name: Option<LitStr>,
    pub(crate) description: Option<LitStr>,
    pub(crate) namespace: Option<LitStr>,
    /// The application's context, where no parameter says it.
    pub(crate) context: Option<Type>,
    /// A name for the struct of the arguments.
    pub(crate) args: Option<Ident>,
    rules: Vec<Rule>,
    seen: Vec<Ident>,
}

/// An option that becomes a call of a method of the tool.
enum Rule {
    Effect(TokenStream),
    ApproveAlways,
    ApproveEach,
    ApproveIf(Expr),
    ApproveWhen(ExprClosure),
    Enabled(Expr),
    EnabledIf(ExprClosure),
    Timeout(Duration),
    OnTimeout(TokenStream),
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

impl Parse for Options {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let mut options = Self::default();
        while !input.is_empty() {
            options.parse_one(input)?;
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        options.check()?;
        Ok(options)
    }
}

impl Options {
    /// Reads one `option = value`.
    pub(crate) fn parse_one(&mut self, input: ParseStream<'_>) -> syn::Result<()> {
        let key = input.call(Ident::parse_any)?;
        if self.seen.contains(&key) {
            return Err(syn::Error::new(key.span(), format!("`{key}` is given twice; keep one of them")));
        }
        let name = key.to_string();
        if !KNOWN.split(", ").any(|known| known == name) {
            return Err(syn::Error::new(key.span(), format!("`{key}` is not an option; there are: {KNOWN}")));
        }
        if !input.peek(Token![=]) {
            return Err(syn::Error::new(key.span(), format!("`{key}` needs a value: `{key} = …`")));
        }
        input.parse::<Token![=]>()?;
        self.seen.push(key);
        match name.as_str() {
            "name" => self.name = Some(named(input, "name")?),
            "namespace" => self.namespace = Some(named(input, "namespace")?),
            "description" => self.description = Some(told(input)?),
            "context" => self.context = Some(input.parse()?),
            "args" => self.args = Some(input.parse()?),
            _ => {
                let rule = Rule::parse(&name, input)?;
                self.rules.extend(rule);
            }
        }
        Ok(())
    }

    /// For options that could not be read: nothing more is asked of them.
    pub(crate) fn unread() -> Self {
        let unread = || Some(LitStr::new("unread", Span::call_site()));
        Self { name: unread(), description: unread(), ..Self::default() }
    }

    /// What only all options together can say.
    pub(crate) fn check(&self) -> syn::Result<()> {
        match self.given("on_timeout") {
            Some(key) if self.given("timeout").is_none() => {
                Err(syn::Error::new(key.span(), "`on_timeout` says nothing without `timeout = \"…\"`"))
            }
            _ => Ok(()),
        }
    }

    /// The key of an option that is given.
    pub(crate) fn given(&self, name: &str) -> Option<&Ident> {
        self.seen.iter().find(|key| *key == name)
    }

    /// The keys of all options that are given.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &Ident> {
        self.seen.iter()
    }

    /// Takes over what a box says for all its tools, where the tool does not say it itself.
    pub(crate) fn inherit(&mut self, shared: &Self) {
        self.namespace = self.namespace.take().or_else(|| shared.namespace.clone());
        self.context = self.context.take().or_else(|| shared.context.clone());
    }

    /// The calls that set the options, for a tool with these arguments and this context.
    pub(crate) fn chain(&self, args: &Ident, context: &TokenStream) -> TokenStream {
        let namespace = self.namespace.as_ref().map(|namespace| quote!(.namespace(#namespace)));
        let rules = self.rules.iter().map(|rule| rule.tokens(args, context));
        quote!(#namespace #(#rules)*)
    }
}

impl Rule {
    fn parse(name: &str, input: ParseStream<'_>) -> syn::Result<Option<Self>> {
        Ok(Some(match name {
            "effect" => Self::Effect(one_of(
                input,
                "an effect",
                &[
                    ("once", quote!(::windlass::Effect::Once)),
                    ("idempotent", quote!(::windlass::Effect::Idempotent)),
                    ("pure", quote!(::windlass::Effect::Pure)),
                ],
            )?),
            "on_timeout" => Self::OnTimeout(one_of(
                input,
                "what a timeout does",
                &[
                    ("tell", quote!(::windlass::OnTimeout::Tell)),
                    ("fail", quote!(::windlass::OnTimeout::Fail)),
                ],
            )?),
            "on_failure" => match input.fork().parse::<Expr>() {
                Ok(Expr::Closure(_)) => Self::OnFailureSay(closure(input, 2, "|ctx, error| …")?),
                _ => Self::OnFailure(one_of(
                    input,
                    "what a failure does",
                    &[
                        ("hide", quote!(::windlass::OnFailure::Hide)),
                        ("show", quote!(::windlass::OnFailure::Show)),
                        ("fail", quote!(::windlass::OnFailure::Fail)),
                    ],
                )?),
            },
            "timeout" => Self::Timeout(duration(&literal(input, "a duration such as `\"30s\"`")?)?),
            "approve" => Self::parse_approve(input)?,
            "enabled" => match input.parse::<Expr>()? {
                Expr::Closure(rule) => Self::EnabledIf(with_inputs(rule, 1, "|ctx| …")?),
                value => Self::Enabled(value),
            },
            "retry" => Self::parse_retry(input)?,
            "concurrency" => {
                Self::Concurrency(at_least_one(input, "no call could ever run; allow at least 1")?)
            }
            "output_budget" => {
                Self::OutputBudget(at_least_one(input, "the model would see nothing; allow more")?)
            }
            "conflict" => match input.parse::<Expr>()? {
                Expr::Closure(rule) => Self::Conflict(Expr::Closure(with_inputs(rule, 1, "|args| …")?)),
                rule => Self::Conflict(rule),
            },
            "input_guardrails" => Self::InputGuardrails(listed(input)?),
            "output_guardrails" => Self::OutputGuardrails(listed(input)?),
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
            Expr::Path(path) if path.path.is_ident("each") => Self::ApproveEach,
            Expr::Closure(rule) if rule.inputs.len() == 2 => Self::ApproveWhen(rule),
            Expr::Closure(rule) => {
                Self::ApproveIf(Expr::Closure(with_inputs(rule, 1, "|args| …` or `|ctx, args| …")?))
            }
            Expr::Path(path) => Self::ApproveIf(Expr::Path(path)),
            other => {
                let message = "say when a person decides: `always`, `each`, `|args| …`, `|ctx, args| …` or the name \
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
        Ok(Self::Retry(number, duration(base)?))
    }

    fn tokens(&self, args: &Ident, context: &TokenStream) -> TokenStream {
        match self {
            Self::Effect(effect) => quote!(.effect(#effect)),
            Self::ApproveAlways => quote!(.approve_always()),
            Self::ApproveEach => quote!(.approve_each()),
            Self::ApproveIf(rule) => {
                let rule = moving_expr(rule);
                quote_spanned!(rule.span()=> .approve_if::<#args>(#rule))
            }
            Self::ApproveWhen(rule) => {
                let (rule, own, ctx, given) = (moving(rule), local("own"), local("ctx"), local("args"));
                quote_spanned! {rule.span()=>
                    .approve_when::<#args, _>({
                        // Says the closure's type, so that its parameters need none.
                        fn __windlass_rule<C, A, F: Fn(&::windlass::ToolContext<C>, &A) -> bool>(#own: F) -> F {
                            #own
                        }
                        let #own = __windlass_rule::<#context, #args, _>(#rule);
                        move |#ctx, #given| ::std::future::ready(#own(&#ctx, #given))
                    })
                }
            }
            Self::Enabled(value) => quote_spanned!(value.span()=> .enabled(#value)),
            Self::EnabledIf(rule) => {
                let rule = moving(rule);
                quote_spanned!(rule.span()=> .enabled_if(#rule))
            }
            Self::Timeout(timeout) => {
                let timeout = duration_tokens(*timeout);
                quote!(.timeout(#timeout))
            }
            Self::OnTimeout(policy) => quote!(.on_timeout(#policy)),
            Self::OnFailure(policy) => quote!(.on_failure(#policy)),
            Self::OnFailureSay(text) => {
                let text = moving(text);
                quote_spanned!(text.span()=> .on_failure(::windlass::OnFailure::<#context>::say(#text)))
            }
            Self::Retry(attempts, base) => {
                let base = duration_tokens(*base);
                quote!(.retry(#attempts, #base))
            }
            Self::Concurrency(limit) => quote_spanned!(limit.span()=> .concurrency(#limit)),
            Self::Conflict(key) => {
                let key = moving_expr(key);
                quote_spanned!(key.span()=> .conflict::<#args>(#key))
            }
            Self::OutputBudget(bytes) => quote_spanned!(bytes.span()=> .output_budget(#bytes)),
            Self::InputGuardrails(list) => quote!(#(.input_guardrail(#list))*),
            Self::OutputGuardrails(list) => quote!(#(.output_guardrail(#list))*),
            Self::Reconcile(ask) => {
                let ask = moving_expr(ask);
                quote_spanned!(ask.span()=> .reconcile(#ask))
            }
            Self::NonStrict => quote!(.non_strict()),
        }
    }
}

/// A tool outlives the place where it is made, so its rules own what they use.
fn moving(rule: &ExprClosure) -> ExprClosure {
    let mut rule = rule.clone();
    rule.capture.get_or_insert_with(Default::default);
    rule
}

fn moving_expr(rule: &Expr) -> Expr {
    match rule {
        Expr::Closure(rule) => Expr::Closure(moving(rule)),
        other => other.clone(),
    }
}

fn closure(input: ParseStream<'_>, inputs: usize, form: &str) -> syn::Result<ExprClosure> {
    with_inputs(input.parse()?, inputs, form)
}

fn with_inputs(rule: ExprClosure, inputs: usize, form: &str) -> syn::Result<ExprClosure> {
    if rule.inputs.len() == inputs {
        return Ok(rule);
    }
    let span = rule.inputs.first().map_or(rule.inputs_begin.span(), Pat::span);
    Err(syn::Error::new(span, format!("write this closure as `{form}`")))
}

fn one_of(input: ParseStream<'_>, what: &str, choices: &[(&str, TokenStream)]) -> syn::Result<TokenStream> {
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

fn literal(input: ParseStream<'_>, what: &str) -> syn::Result<LitStr> {
    input.parse().map_err(|error| syn::Error::new(error.span(), format!("write {what}, in quotes")))
}

fn named(input: ParseStream<'_>, what: &str) -> syn::Result<LitStr> {
    let name = literal(input, "the name")?;
    check_name(&name.value(), name.span(), what)?;
    Ok(name)
}

fn told(input: ParseStream<'_>) -> syn::Result<LitStr> {
    let text = literal(input, "what the model is told of the tool")?;
    if text.value().trim().is_empty() {
        return Err(syn::Error::new(text.span(), "the model needs a description; say what the tool does"));
    }
    Ok(text)
}

fn at_least_one(input: ParseStream<'_>, otherwise: &str) -> syn::Result<Expr> {
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

fn listed(input: ParseStream<'_>) -> syn::Result<Vec<Expr>> {
    match input.parse::<Expr>()? {
        Expr::Array(list) => Ok(list.elems.into_iter().collect()),
        other => Err(syn::Error::new(other.span(), "write a list: `[first, second]`")),
    }
}
