//! Conversion to tools, for [`Agent::tools`](crate::agent::Agent::tools): one tool, a tuple of tools of different
//! types, or a list.

use super::Tool;

/// A type that converts to a tool.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a tool for agents with context `{C}`",
    note = "put `#[tool]` on the function, or build a `Tool` with `Tool::function` or `Tool::dynamic`"
)]
pub trait IntoTool<C> {
    /// Converts to a tool.
    fn into_tool(self) -> Tool<C>;
}

/// A type that converts to any number of tools.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a set of tools for agents with context `{C}`",
    note = "give one tool as `(weather,)`, several as `(weather, refund)`, or a `Vec<Tool<_>>`"
)]
pub trait IntoTools<C> {
    /// Converts to tools.
    fn into_tools(self) -> Vec<Tool<C>>;
}

impl<C> IntoTool<C> for Tool<C> {
    fn into_tool(self) -> Self {
        self
    }
}

/// A function that returns a tool converts to it: `#[tool]` generates such functions.
impl<C, F: FnOnce() -> Tool<C>> IntoTool<C> for F {
    fn into_tool(self) -> Tool<C> {
        self()
    }
}

impl<C> IntoTools<C> for Tool<C> {
    fn into_tools(self) -> Vec<Self> {
        vec![self]
    }
}

impl<C, T: IntoTool<C>> IntoTools<C> for Vec<T> {
    fn into_tools(self) -> Vec<Tool<C>> {
        self.into_iter().map(IntoTool::into_tool).collect()
    }
}

impl<C, T: IntoTool<C>, const N: usize> IntoTools<C> for [T; N] {
    fn into_tools(self) -> Vec<Tool<C>> {
        self.into_iter().map(IntoTool::into_tool).collect()
    }
}

macro_rules! tuples {
    ($($name:ident)*) => {
        impl<C, $($name: IntoTool<C>),*> IntoTools<C> for ($($name,)*) {
            #[allow(non_snake_case)]
            fn into_tools(self) -> Vec<Tool<C>> {
                let ($($name,)*) = self;
                vec![$($name.into_tool()),*]
            }
        }
    };
}

tuples!(T1);
tuples!(T1 T2);
tuples!(T1 T2 T3);
tuples!(T1 T2 T3 T4);
tuples!(T1 T2 T3 T4 T5);
tuples!(T1 T2 T3 T4 T5 T6);
tuples!(T1 T2 T3 T4 T5 T6 T7);
tuples!(T1 T2 T3 T4 T5 T6 T7 T8);
tuples!(T1 T2 T3 T4 T5 T6 T7 T8 T9);
tuples!(T1 T2 T3 T4 T5 T6 T7 T8 T9 T10);
tuples!(T1 T2 T3 T4 T5 T6 T7 T8 T9 T10 T11);
tuples!(T1 T2 T3 T4 T5 T6 T7 T8 T9 T10 T11 T12);
