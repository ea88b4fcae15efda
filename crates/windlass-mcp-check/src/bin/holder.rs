//! A process that connects to the scripted server and waits until a test kills it.
//!
//! Usage: `holder SERVER LEDGER`

use windlass_mcp::{McpConfig, McpConnections, McpServerConfig};

#[tokio::main]
async fn main() {
    let words: Vec<String> = std::env::args().collect();
    let (server, ledger) = (words[1].clone(), words[2].clone());
    let server = McpServerConfig::stdio("scripted", server).args(["legacy", &ledger, "child", "stubborn"]);
    let servers = McpConnections::connect(McpConfig::new().server(server)).await;
    for process in servers.process_ids("scripted").await {
        windlass_mcp_check::append_line(&ledger, &format!("process {process}"));
    }
    windlass_mcp_check::append_line(&ledger, "ready");
    std::future::pending::<()>().await;
}
