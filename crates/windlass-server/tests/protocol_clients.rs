//! The official OpenAI clients and the AG-UI client against the endpoints of their protocols. Python needs `openai` in the interpreter that
//! `WINDLASS_PYTHON` names, JavaScript needs it in the folder that `WINDLASS_BROWSER_MODULES` names.
#![allow(clippy::unwrap_used)]

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::Ordering;

use support::TestServer;
use windlass_server::{AgentServer, ServerLimits};

/// A server with the agents that the scripts expect.
async fn server() -> TestServer {
    TestServer::start_agents(
        [support::clerk(), support::clerk_named("bank"), support::front(), support::spender()],
        |server: AgentServer| {
            server.limits(ServerLimits { requests_per_second: 5_000, ..ServerLimits::default() })
        },
    )
    .await
}

async fn run_script(mut command: Command, url: String) -> Output {
    tokio::task::spawn_blocking(move || command.arg(url).output().unwrap()).await.unwrap()
}

fn check(output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.trim_end().ends_with("all seen"), "{text}\n{errors}");
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser").join(name)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_client_completes_streams_and_continues() {
    let Some(python) = std::env::var_os("WINDLASS_PYTHON") else {
        eprintln!("not shown: the Python client needs WINDLASS_PYTHON");
        return;
    };
    let server = server().await;
    let mut command = Command::new(python);
    command.arg(script("openai_client.py"));
    check(&run_script(command, format!("http://{}", server.address)).await);
    assert_eq!(support::SPENT.load(Ordering::SeqCst), 2, "each of the two runs that failed spends once");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_javascript_client_completes_and_streams() {
    let modules = std::env::var_os("WINDLASS_BROWSER_MODULES").map(PathBuf::from);
    let Some(modules) = modules.filter(|folder| folder.join("node_modules/openai").is_dir()) else {
        eprintln!("not shown: the JavaScript client needs WINDLASS_BROWSER_MODULES");
        return;
    };
    let server = server().await;
    let mut command = Command::new("node");
    command.arg(script("openai_client.mjs")).env("WINDLASS_BROWSER_MODULES", modules);
    check(&run_script(command, format!("http://{}", server.address)).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ag_ui_client_streams_pauses_and_answers() {
    let modules = std::env::var_os("WINDLASS_BROWSER_MODULES").map(PathBuf::from);
    let Some(modules) = modules.filter(|folder| folder.join("node_modules/@ag-ui/client").is_dir()) else {
        eprintln!("not shown: the AG-UI client needs WINDLASS_BROWSER_MODULES");
        return;
    };
    let server = server().await;
    let mut command = Command::new("node");
    command.arg(script("ag_ui_client.mjs")).env("WINDLASS_BROWSER_MODULES", modules);
    check(&run_script(command, format!("http://{}", server.address)).await);
}
