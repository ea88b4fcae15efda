//! The macros of Windlass: [`macro@tool`] for functions, [`macro@toolbox`] for methods, [`tool_fn!`] for closures.
//!
//! All three read a signature and make a tool of it: the name, the description and the schema of the arguments
//! come from the function itself, so what the model is told and what the code takes cannot drift apart. Use them
//! through the `windlass` crate, which the generated code refers to.

mod closure;
mod errors;
mod expand;
mod function;
mod options;
mod params;
mod toolbox;
mod words;

use proc_macro::TokenStream;

/// Makes a tool of a function.
///
/// ```
/// use windlass::prelude::*;
/// # use schemars::JsonSchema;
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize, JsonSchema)] enum Unit { Celsius, Fahrenheit }
/// # #[derive(Serialize)] struct Weather { degrees: i8 }
/// # struct Desk;
/// # impl Desk { async fn pay(&self, _: &str, cents: u64) -> Result<String, std::io::Error> { Ok(cents.to_string()) } }
///
/// /// Current weather for a city.
/// #[tool(effect = pure)]
/// async fn weather(
///     /// The city, in English.
///     city: String,
///     unit: Option<Unit>,
///     #[default = 3] days: u8,
/// ) -> Result<Weather, String> {
///     if city.is_empty() { Err("which city?".into()) } else { Ok(Weather { degrees: 7 }) }
/// }
///
/// /// Give a guest their money back.
/// #[tool(effect = once, timeout = "30s", approve = |args| args.cents > 10_000)]
/// async fn refund(ctx: &ToolContext<Desk>, order: String, cents: u64) -> Result<String, ToolError> {
///     Ok(ctx.pay(&order, cents).await?)
/// }
///
/// # let model = ScriptedModel::new([]);
/// let agent = Agent::new("desk").model(model).tools((weather, refund));
/// # drop(agent);
/// ```
///
/// In its place stands a function that makes the tool, which `.tools(…)` takes. The function itself is there as
/// `weather::call(…)`, for tests and for other code.
///
/// An `async fn` runs on the runtime and can be dropped. A plain `fn` may block: it gets a thread of its own.
///
/// # Parameters
///
/// Every parameter is an argument that the model fills in. Its type implements `Deserialize` and `JsonSchema`.
/// What the model sends beside them is refused.
///
/// - Doc comments become its description.
/// - An `Option` may be left out, and is `None` then.
/// - `#[default = value]` says what it is when it is left out; `#[default]` takes the type's own default.
/// - `#[serde(…)]` and `#[schemars(…)]` apply to it as to the field of a struct.
///
/// The context comes first, is borrowed, and is not shown to the model. `&ToolContext<Desk>` is for agents with
/// the context `Desk`, `&ToolContext` for those without one, and `&ToolContext<_>` for all. Without a context
/// parameter, the tool is for all agents as well.
///
/// # Result
///
/// Anything that implements `Serialize`, or a `Result` of it, by whatever alias. The error implements `Display`.
///
/// # Options
///
/// | option | meaning |
/// | --- | --- |
/// | `name = "…"` | the name, in place of the function's: 1 to 64 ASCII letters, digits, `_` and `-` |
/// | `description = "…"` | what the model is told, in place of the doc comment |
/// | `namespace = "…"` | puts the tool into a namespace |
/// | `effect = once`, `idempotent`, `pure` | what running it does to the world |
/// | `approve = always` | a person decides before every call |
/// | `approve = each` | the same, and an approval for good is refused: each call is asked about |
/// | `approve = \|args\| …` | a person decides before calls for which this is true |
/// | `approve = \|ctx, args\| …` | the same, with the call's context |
/// | `enabled = …` | whether the tool is there: a value, or `\|ctx\| …`, asked for every turn |
/// | `timeout = "30s"` | how long a call may take: `ms`, `s`, `m` or `h` |
/// | `on_timeout = tell`, `fail` | the model is told, or the run ends |
/// | `on_failure = hide`, `show`, `fail` | the model is told of it, is told the error's text, or the run ends |
/// | `on_failure = \|ctx, error\| …` | the model is told this text |
/// | `retry = (3, "200ms")` | attempts in all, and the first wait |
/// | `concurrency = 4` | how many calls may run at once |
/// | `conflict = \|args\| …` | calls with the same key keep the model's order |
/// | `output_budget = 4096` | how many bytes of the output the model is shown |
/// | `input_guardrails = […]`, `output_guardrails = […]` | checks around the body |
/// | `reconcile = …` | asked after a crash: did the call happen? |
/// | `strict = false` | offers the schema as it is, for what the strict form cannot express, such as maps |
/// | `context = Desk` | the context that the rules need, where the function itself takes none |
/// | `args = RefundArgs` | names the struct of the arguments |
///
/// A rule can be a function too, once its argument has a name:
///
/// ```
/// # use windlass::prelude::*;
/// fn is_large(args: &RefundArgs) -> bool {
///     args.cents > 10_000
/// }
///
/// /// Give a guest their money back.
/// #[tool(args = RefundArgs, approve = is_large)]
/// async fn refund(order: String, cents: u64) -> String {
///     format!("{cents} cents for {order}")
/// }
/// # let _: Tool = refund();
/// ```
#[proc_macro_attribute]
pub fn tool(options: TokenStream, item: TokenStream) -> TokenStream {
    function::expand(options.into(), item.into()).into()
}

/// Makes tools of methods that share a value.
///
/// ```
/// use windlass::prelude::*;
///
/// struct Desk {
///     tables: Vec<u8>,
/// }
///
/// #[toolbox]
/// impl Desk {
///     /// How many people a table has room for.
///     #[tool(effect = pure)]
///     async fn room(&self, table: usize) -> Option<u8> {
///         self.table(table)
///     }
///
///     /// How many tables there are.
///     #[tool(effect = pure)]
///     fn tables(&self) -> usize {
///         self.tables.len()
///     }
///
///     fn table(&self, number: usize) -> Option<u8> {
///         self.tables.get(number).copied()
///     }
/// }
///
/// # let model = ScriptedModel::new([]);
/// let agent = Agent::<()>::new("desk").model(model).tools(Desk { tables: vec![2, 4] });
/// # drop(agent);
/// ```
///
/// Methods with `#[tool]` become tools; all methods stay what they are. The marked ones take `&self`, then
/// maybe the context, then their arguments, and have the options of [`macro@tool`].
///
/// The value itself is what `.tools(…)` takes. Where the application keeps it too, share it in an `Arc` and give
/// `desk.tools()`.
///
/// `#[toolbox(namespace = "desk")]` puts all of them into a namespace, and `#[toolbox(context = App)]` says the
/// context that their rules need. A tool that says otherwise for itself has its way.
#[proc_macro_attribute]
pub fn toolbox(options: TokenStream, item: TokenStream) -> TokenStream {
    toolbox::expand(options.into(), item.into()).into()
}

/// Makes a tool of a closure, with what it captures.
///
/// ```
/// use windlass::prelude::*;
///
/// let rate = 11.5;
/// let convert: Tool = tool_fn! {
///     /// Converts an amount of euros.
///     name = "convert",
///     effect = pure,
///     async |
///         /// In cents.
///         amount: u64,
///         places: Option<usize>,
///     | {
///         format!("{:.*} kroner", places.unwrap_or(2), amount as f64 * rate / 100.0)
///     }
/// };
/// # let model = ScriptedModel::new([]);
/// let agent = Agent::new("desk").model(model).tools((convert,));
/// # drop(agent);
/// ```
///
/// First come doc comments, then the options of [`macro@tool`], of which `name` must be there, and the closure
/// comes last. Its parameters have types, and may have doc comments and attributes. What it captures is moved
/// into the tool and lent to every call. `async |…| { … }` and `|…| async move { … }` mean the same; a plain
/// `|…| { … }` may block. Where the error's type is not clear, say it: `async |id: u64| -> Result<Order, Error> { … }`.
///
/// The whole is an expression of type `Tool<C>`.
#[proc_macro]
pub fn tool_fn(input: TokenStream) -> TokenStream {
    closure::expand(input.into()).into()
}
