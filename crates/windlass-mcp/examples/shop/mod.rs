//! A shop with two tools, for the examples to talk to. Started with `serve`, an example is the shop itself.

#![allow(dead_code, reason = "not every example starts it")]

use std::io;

use windlass::prelude::*;
use windlass_mcp::McpServer;

/// What is in stock.
#[tool(effect = pure)]
async fn stock(item: String) -> String {
    format!("3 {item}")
}

/// Orders more.
#[tool]
async fn order(item: String, count: u32) -> String {
    format!("ordered {count} {item}")
}

pub(crate) fn server() -> McpServer {
    McpServer::new("shop").tools((stock, order))
}

/// Whether this program was started to be the shop.
pub(crate) fn is_wanted() -> bool {
    std::env::args().nth(1).as_deref() == Some("serve")
}

/// This program, for whoever starts the shop.
pub(crate) fn program() -> io::Result<String> {
    Ok(std::env::current_exe()?.display().to_string())
}
