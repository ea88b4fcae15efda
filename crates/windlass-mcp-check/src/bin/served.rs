//! A server of one tool over HTTP, which a test runs under a limit of descriptors.
//!
//! Usage: `served`. It prints its address and serves until it is killed.

use std::io::Write;

use windlass::prelude::*;
use windlass_mcp::McpServer;

/// Says it again.
#[tool(effect = pure)]
async fn echo(text: String) -> String {
    text
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    writeln!(std::io::stdout(), "{}", listener.local_addr()?)?;
    McpServer::new("served").tool(echo).serve_http(listener, std::future::pending()).await?;
    Ok(())
}
