//! The macros of Windlass: [`macro@tool`] for functions, [`macro@toolbox`] for methods, [`tool_fn!`] for
//! closures.
//!
//! All three generate a tool from a signature. The name, the description and the schema of the arguments come
//! from the function itself, so the tool definition sent to the model always matches the code. Use the macros
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

/// Creates a tool from a function.
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
/// #[tool(effect = once, timeout = "30s", needs_approval = |args| args.cents > 10_000)]
/// async fn refund(ctx: &ToolContext<Desk>, order: String, cents: u64) -> Result<String, ToolError> {
///     Ok(ctx.pay(&order, cents).await?)
/// }
///
/// # let model = ScriptedModel::new([]);
/// let agent = Agent::new("desk").model(model).tools((weather, refund));
/// # drop(agent);
/// ```
///
/// The macro replaces the function by one that creates the tool; pass that one to `.tools(…)`. The original
/// function remains available as `weather::call(…)`, for tests and for other code.
///
/// An `async fn` runs on the runtime and can be dropped. A plain `fn` may block: it runs on a blocking thread.
///
/// # Parameters
///
/// Every parameter is an argument that the model supplies. Its type implements `Deserialize` and `JsonSchema`.
/// A call with unknown arguments is rejected.
///
/// - The doc comment becomes the argument's description.
/// - An omitted `Option` is `None`.
/// - `#[default = value]` sets the value of an omitted argument; `#[default]` uses the type's own default.
/// - `#[serde(…)]` and `#[schemars(…)]` apply as they do to a struct field.
///
/// The context is the first parameter, is borrowed, and is hidden from the model. `&ToolContext<Desk>` is for
/// agents with the context `Desk`, `&ToolContext` for agents without one, and `&ToolContext<_>` for all agents.
/// A tool without a context parameter works with all agents, too.
///
/// # Result
///
/// Any type that implements `Serialize`, or a `Result` of one (also through an alias). The error type
/// implements `Display`.
///
/// # Options
///
/// | option | meaning |
/// | --- | --- |
/// | `name = "…"` | tool name, instead of the function's: 1 to 64 ASCII letters, digits, `_` and `-` |
/// | `description = "…"` | description for the model, instead of the doc comment |
/// | `namespace = "…"` | namespace of the tool |
/// | `effect = once`, `idempotent`, `pure` | side effect of a call |
/// | `needs_approval = always` | every call requires approval |
/// | `needs_approval = each_time` | every call requires its own approval; a standing approval is refused |
/// | `needs_approval = \|args\| …` | calls for which the rule returns true require approval |
/// | `needs_approval = \|ctx, args\| …` | the same, with the call's context |
/// | `enabled = …` | true if the tool is offered: a value, or `\|ctx\| …`, evaluated every turn |
/// | `timeout = "30s"` | time limit of a call: `ms`, `s`, `m` or `h` |
/// | `on_timeout = tell_model`, `fail_run` | reports the timeout to the model, or fails the run |
/// | `on_timeout = \|ctx, timeout\| …` | reports this text to the model |
/// | `on_failure = hide_error`, `show_error`, `fail_run` | reports the failure without its text, with its text, or fails the run |
/// | `on_failure = \|ctx, error\| …` | reports this text to the model |
/// | `retry = (3, "200ms")` | total number of attempts, and the first delay |
/// | `max_concurrent_calls = 4` | maximum number of concurrent calls |
/// | `conflict_key = \|args\| …` | calls with the same key keep the model's order |
/// | `max_output_bytes = 4096` | maximum number of output bytes shown to the model |
/// | `input_guardrails = […]`, `output_guardrails = […]` | checks before and after the body |
/// | `reconcile = …` | called after a crash to find out if the call took effect |
/// | `strict = false` | sends the schema unmodified, for types that the strict form cannot express; a tool with a map is sent unmodified in any case, with a warning |
/// | `context = Desk` | context type for the rules, if the function takes no context |
/// | `args = RefundArgs` | name of the argument struct |
///
/// A rule can also be a function, if the argument struct has a name:
///
/// ```
/// # use windlass::prelude::*;
/// fn is_large(args: &RefundArgs) -> bool {
///     args.cents > 10_000
/// }
///
/// /// Give a guest their money back.
/// #[tool(args = RefundArgs, needs_approval = is_large)]
/// async fn refund(order: String, cents: u64) -> String {
///     format!("{cents} cents for {order}")
/// }
/// # let _: Tool = refund();
/// ```
#[proc_macro_attribute]
pub fn tool(options: TokenStream, item: TokenStream) -> TokenStream {
    function::expand_function(options.into(), item.into()).into()
}

/// Creates tools from methods that share a value.
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
/// Methods with `#[tool]` become tools; all methods stay callable. A marked method takes `&self`, then
/// optionally the context, then its arguments, and accepts the options of [`macro@tool`].
///
/// Pass the value to `.tools(…)`. If the application keeps the value too, share it in an `Arc` and pass
/// `desk.tools()`.
///
/// `#[toolbox(namespace = "desk")]` sets the namespace of all its tools, and `#[toolbox(context = App)]` the
/// context type for their rules. An option on a tool overrides the toolbox.
#[proc_macro_attribute]
pub fn toolbox(options: TokenStream, item: TokenStream) -> TokenStream {
    toolbox::expand_toolbox(options.into(), item.into()).into()
}

/// Creates a tool from a closure and its captured values.
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
/// let agent = Agent::new("desk").model(model).tool(convert);
/// # drop(agent);
/// ```
///
/// The input is doc comments, then the options of [`macro@tool`] (`name` is required), then the closure. Its
/// parameters have types, and may have doc comments and attributes. Captured values move into the tool, and
/// every call borrows them. `async |…| { … }` and `|…| async move { … }` are equivalent; a plain `|…| { … }`
/// may block. If the error type cannot be inferred, annotate it: `async |id: u64| -> Result<Order, Error> { …
/// }`.
///
/// The macro expands to an expression of type `Tool<C>`.
#[proc_macro]
pub fn tool_fn(input: TokenStream) -> TokenStream {
    closure::expand_closure(input.into()).into()
}
