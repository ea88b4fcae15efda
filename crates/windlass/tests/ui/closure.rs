use windlass::{tool::Tool, tool_fn};

fn main() {
    let _: Tool = tool_fn!(
        /// Has no name.
        || 1
    );
    let _: Tool = tool_fn!(name = "undescribed", || 1);
    let _: Tool = tool_fn!(
        /// Has no type.
        name = "untyped",
        |city| 1
    );
    let _: Tool = tool_fn!(
        /// Has named arguments.
        name = "named",
        args = NamedArgs,
        || 1
    );
    let _: Tool = tool_fn!(
        /// Is no closure.
        name = "value",
        3
    );
    let _: Tool = tool_fn!(
        /// Is marked.
        #[tool(name = "marked")]
        || 1
    );
    let _: Tool = tool_fn!(
        /// Has an unknown option.
        name = "unknown",
        speed = fast,
        || 1
    );
}
