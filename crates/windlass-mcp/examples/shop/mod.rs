//! An MCP server with two tools, for the examples. An example started with the argument `serve` is this server.

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

pub(crate) fn shop_server() -> McpServer {
    McpServer::new("shop").tools((stock, order))
}

/// Returns true if this process was started as the server.
pub(crate) fn is_server_process() -> bool {
    std::env::args().nth(1).as_deref() == Some("serve")
}

/// Returns the path of this program, with which an example starts the server.
pub(crate) fn current_program() -> io::Result<String> {
    Ok(std::env::current_exe()?.display().to_string())
}
