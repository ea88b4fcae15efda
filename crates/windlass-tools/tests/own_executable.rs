//! A program that is its own helper, and whose executable is renamed and replaced while it runs.
//!
//! This test has its own `main`, because the program must call `main_if_asked` first.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::json;
use windlass_tools::sandbox::SandboxRequirement;
use windlass_tools::{BuiltInApprovalPolicy, Sandbox, Workspace};

fn main() {
    windlass_tools::sandbox::main_if_asked();
    match std::env::var_os("WINDLASS_TEST_WORKSPACE") {
        Some(folder) => run_agent(&PathBuf::from(folder)),
        // `cargo test -- --list` and filters are for other tests.
        None if std::env::args().any(|word| word == "--list") => {}
        None => {
            a_replaced_executable_is_not_started();
            a_program_beneath_its_workspace_refuses_to_run_commands();
            println!("2 tests passed");
        }
    }
}

/// The agent: runs a command for each line of its input.
fn run_agent(folder: &Path) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let workspace = Workspace::new(folder)
        .expect("is there")
        .approve_commands(BuiltInApprovalPolicy::Never)
        .sandbox(Sandbox::default().requirement(SandboxRequirement::BestEffort));
    for line in std::io::stdin().lines() {
        let shell = line.expect("text");
        let told = runtime.block_on(support::call_tool(&workspace, "run_command", json!({ "shell": shell })));
        println!("{told}");
    }
}

struct AgentProcess {
    child: std::process::Child,
    output: BufReader<std::process::ChildStdout>,
}

impl AgentProcess {
    fn start(program: &Path, workspace: &Path) -> Self {
        let mut child = Command::new(program)
            .env("WINDLASS_TEST_WORKSPACE", workspace)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        let output = BufReader::new(child.stdout.take().expect("is piped"));
        Self { child, output }
    }

    fn run(&mut self, shell: &str) -> String {
        writeln!(self.child.stdin.as_mut().expect("is piped"), "{shell}").expect("written");
        let mut told = String::new();
        self.output.read_line(&mut told).expect("an answer");
        told
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().expect("ends").success());
    }
}

fn copy_self(to: &Path) {
    fs::create_dir_all(to.parent().expect("has one")).expect("made");
    fs::copy(std::env::current_exe().expect("a test"), to).expect("copied");
}

fn plant(path: &Path, marker: &Path) {
    fs::write(path, format!("#!/bin/sh\ntouch {}\n", marker.display())).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("set");
}

/// The path of a running program that was replaced reads `agent (deleted)`. A file of that name must not be started.
fn a_replaced_executable_is_not_started() {
    let world = tempfile::tempdir().expect("a folder");
    let (program, workspace) = (world.path().join("bin/agent"), world.path().join("work"));
    copy_self(&program);
    fs::create_dir(&workspace).expect("made");
    let mut agent = AgentProcess::start(&program, &workspace);
    assert!(agent.run("echo first").contains("first"));
    let marker = world.path().join("owned");
    fs::remove_file(&program).expect("removed");
    plant(&program, &marker);
    plant(&world.path().join("bin/agent (deleted)"), &marker);
    let told = agent.run("echo second");
    assert!(told.contains("second") && !marker.exists(), "{told}");
    agent.end();
}

fn a_program_beneath_its_workspace_refuses_to_run_commands() {
    let world = tempfile::tempdir().expect("a folder");
    let program = world.path().join("target/debug/agent");
    copy_self(&program);
    let mut agent = AgentProcess::start(&program, world.path());
    let told = agent.run("echo x > made");
    assert!(told.contains("could replace it") && !world.path().join("made").exists(), "{told}");
    agent.end();
}
