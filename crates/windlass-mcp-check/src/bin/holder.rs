//! Connects to the scripted server and does nothing more, until somebody kills it.
//!
//! `holder SERVER LEDGER`

use windlass_mcp::{Config, ServerConfig, Servers};

#[tokio::main]
async fn main() {
    let words: Vec<String> = std::env::args().collect();
    let (server, ledger) = (words[1].clone(), words[2].clone());
    let server = ServerConfig::stdio("scripted", server).args(["legacy", &ledger, "child", "stubborn"]);
    let servers = Servers::connect(Config::new().server(server)).await;
    for process in servers.processes("scripted").await {
        windlass_mcp_check::note(&ledger, &format!("process {process}"));
    }
    windlass_mcp_check::note(&ledger, "ready");
    std::future::pending::<()>().await;
}
