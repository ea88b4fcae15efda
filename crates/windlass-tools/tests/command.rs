//! Sandboxed commands in real processes: file access, environment, limits and termination.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod support;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use support::{call_tool, open_workspace};
use tempfile::{TempDir, tempdir};
use windlass::prelude::*;
use windlass_tools::sandbox::{
    ConfinementLevel, NetworkAccess, ResourceLimits, SandboxRequirement, confinement_support as kernel,
};
use windlass_tools::{Sandbox, ToolLimits, Workspace};

fn test_sandbox() -> Sandbox {
    Sandbox::default()
        .helper(env!("CARGO_BIN_EXE_windlass-sandbox"))
        .requirement(SandboxRequirement::BestEffort)
}

/// Creates a workspace next to a folder outside it.
fn make_world() -> (TempDir, Workspace) {
    let world = tempdir().expect("a folder");
    fs::create_dir(world.path().join("work")).expect("made");
    fs::create_dir(world.path().join("outside")).expect("made");
    fs::write(world.path().join("outside/s.txt"), "secret\n").expect("written");
    let workspace = open_workspace(&world.path().join("work"));
    (world, workspace)
}

async fn run_command(workspace: &Workspace, arguments: Value) -> Value {
    let told = call_tool(workspace, "run_command", arguments).await;
    serde_json::from_str(&told).unwrap_or_else(|_| panic!("a command that ran is told as JSON: {told}"))
}

async fn run_shell(workspace: &Workspace, text: &str) -> Value {
    run_command(workspace, json!({ "shell": text })).await
}

/// Returns true if the kernel can confine commands; otherwise prints a note, and the test is skipped.
fn can_confine() -> bool {
    let restricted = kernel() != ConfinementLevel::None;
    if !restricted {
        let _ = writeln!(
            std::io::stderr(),
            "not shown: this kernel has no Landlock, so commands are not kept from files"
        );
    }
    restricted
}

/// Returns true if a process with this word in its command line is running.
fn is_running(word: &str) -> bool {
    fs::read_dir("/proc").expect("is there").flatten().any(|entry| {
        let mine =
            entry.file_name().to_str().and_then(|pid| pid.parse::<u32>().ok()) == Some(std::process::id());
        !mine
            && fs::read(entry.path().join("cmdline"))
                .is_ok_and(|line| String::from_utf8_lossy(&line).split('\0').any(|part| part == word))
    })
}

/// Waits until a condition holds, and fails the test after about 20 seconds.
async fn wait_until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..2_000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("in vain: {what}");
}

#[tokio::test]
async fn a_program_runs_in_the_workspace_without_a_shell() {
    let (_world, workspace) = make_world();
    fs::create_dir(workspace.folder().join("sub")).expect("made");
    let told =
        run_command(&workspace, json!({ "program": "printf", "args": ["%s|", "$HOME", "a b", "*"] })).await;
    assert_eq!((told["exit_code"].as_i64(), told["stdout"].as_str()), (Some(0), Some("$HOME|a b|*|")));
    let told = run_command(&workspace, json!({ "program": "pwd", "folder": "sub" })).await;
    assert_eq!(told["stdout"], format!("{}/sub\n", workspace.folder().display()));
    let told = run_shell(&workspace, "echo out; echo err >&2; cat; exit 7").await;
    assert_eq!(
        (&told["exit_code"], &told["stdout"], &told["stderr"]),
        (&json!(7), &json!("out\n"), &json!("err\n"))
    );
    let told = run_shell(&workspace, "kill -TERM $$").await;
    assert_eq!((&told["exit_code"], &told["signal"]), (&Value::Null, &json!(15)));
    let told = call_tool(&workspace, "run_command", json!({ "program": "no-such-program" })).await;
    assert!(told.contains("there is no program `no-such-program`"), "{told}");
    let told = call_tool(&workspace, "run_command", json!({ "program": "ls", "folder": "../outside" })).await;
    assert!(told.contains("has `..` in it"), "{told}");
    for arguments in [json!({}), json!({ "program": "ls", "shell": "ls" })] {
        let told = call_tool(&workspace, "run_command", arguments).await;
        assert!(told.contains("give `program` with `args`, or `shell`"), "{told}");
    }
}

#[tokio::test]
async fn files_outside_are_neither_read_nor_written() {
    if !can_confine() {
        return;
    }
    let (world, workspace) = make_world();
    let outside = world.path().join("outside");
    let told =
        run_shell(&workspace, &format!("cat {}/s.txt; ls {}", outside.display(), outside.display())).await;
    assert_eq!(told["stdout"], "", "{told}");
    run_shell(
        &workspace,
        &format!(
            "echo x > {0}/new; rm {0}/s.txt; ln {0}/s.txt l; ln -s {0}/s.txt s; cat s",
            outside.display()
        ),
    )
    .await;
    assert_eq!(fs::read_dir(&outside).expect("is there").count(), 1);
    assert_eq!(fs::read_to_string(outside.join("s.txt")).expect("is there"), "secret\n");
    let told = run_shell(&workspace, "cat /etc/shadow /root/.profile; echo x > /usr/windlass-test").await;
    assert_eq!(told["stdout"], "", "{told}");
    // The workspace, the temporary folder and the home folder are writable.
    let told = run_shell(
        &workspace,
        "echo one > a && cat a && echo two > $TMPDIR/b && cat $HOME/b && ls / >/dev/null 2>&1; echo $?",
    )
    .await;
    assert!(told["stdout"].as_str().is_some_and(|text| text.starts_with("one\ntwo\n")), "{told}");
    assert_eq!(fs::read_to_string(workspace.folder().join("a")).expect("is there"), "one\n");
    // An additional readable path is readable, but not writable.
    let wider = workspace.clone().sandbox(test_sandbox().allow_read(&outside));
    assert_eq!(run_shell(&wider, &format!("cat {}/s.txt", outside.display())).await["stdout"], "secret\n");
    let told = run_shell(&wider, &format!("echo x > {}/new", outside.display())).await;
    assert_ne!(told["exit_code"], 0, "{told}");
}

#[tokio::test]
async fn connections_and_signals_to_the_outside_are_refused() {
    if kernel() != ConfinementLevel::Full {
        let _ =
            writeln!(std::io::stderr(), "not shown: this kernel does not restrict connections and signals");
        return;
    }
    let (_world, workspace) = make_world();
    let server = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = server.local_addr().expect("has one").port();
    let connect = json!({ "program": "bash", "args": ["-c", format!("exec 3<>/dev/tcp/127.0.0.1/{port} && echo there")] });
    let told = run_command(&workspace, connect.clone()).await;
    assert_eq!(told["stdout"], "", "{told}");
    let open = workspace.clone().sandbox(test_sandbox().network(NetworkAccess::Allowed));
    assert_eq!(run_command(&open, connect).await["stdout"], "there\n");
    let told = run_shell(&workspace, &format!("kill -0 {} && echo reached", std::process::id())).await;
    assert_eq!(told["stdout"], "", "{told}");
    // The supervisor is the first process of the command's namespace, which ignores its signals.
    let told = run_shell(&workspace, "kill -9 $PPID; kill -9 1; echo on").await;
    assert!(told["stdout"] == "on\n" || told["open"].to_string().contains("left_processes"), "{told}");
    let told = run_shell(&workspace, &format!("cat /proc/{}/environ", std::process::id())).await;
    assert_eq!(told["stdout"], "", "{told}");
}

#[tokio::test]
async fn the_environment_is_an_allow_list() {
    let (_world, workspace) = make_world();
    // Cargo's own variables stand for secrets here.
    assert!(std::env::var("CARGO_PKG_NAME").is_ok());
    let told = run_shell(&workspace, "env").await;
    let names: Vec<&str> = told["stdout"]
        .as_str()
        .expect("text")
        .lines()
        .filter_map(|line| Some(line.split_once('=')?.0))
        .collect();
    assert!(names.contains(&"PATH") && names.contains(&"HOME"), "{names:?}");
    let known = ["PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "HOME", "TMPDIR", "PWD", "SHLVL", "_", "OLDPWD"];
    assert!(names.iter().all(|name| known.contains(name)), "{names:?}");
    let told = run_shell(&workspace, "tr '\\0' '\\n' < /proc/$PPID/environ | grep -c CARGO").await;
    assert_ne!(told["stdout"], "1\n", "the helper has none either: {told}");
    let kept = workspace.sandbox(test_sandbox().keep_variable("CARGO_PKG_NAME").set_variable("MORE", "1"));
    assert_eq!(run_shell(&kept, "echo $CARGO_PKG_NAME $MORE").await["stdout"], "windlass-tools 1\n");
}

#[tokio::test]
async fn a_command_has_no_terminal() {
    let (_world, workspace) = make_world();
    // The seventh field of `stat` is the controlling terminal; 0 means none.
    let told =
        run_shell(&workspace, "cut -d ' ' -f 7 /proc/self/stat; (: < /dev/tty) 2>/dev/null || echo none")
            .await;
    assert_eq!(told["stdout"], "0\nnone\n", "{told}");
}

#[tokio::test]
async fn limits_of_the_system_hold() {
    let (_world, workspace) = make_world();
    let uses = ResourceLimits {
        file_size_bytes: 4096,
        open_files: 20,
        memory_bytes: 64 << 20,
        ..ResourceLimits::default()
    };
    let workspace = workspace.sandbox(test_sandbox().resource_limits(uses));
    let told = run_shell(&workspace, "head -c 100000 /dev/zero > big").await;
    assert_ne!(told["exit_code"], 0, "{told}");
    assert_eq!(fs::metadata(workspace.folder().join("big")).expect("is there").len(), 4096);
    let told = run_shell(&workspace, "ulimit -n; ulimit -c; ulimit -t; ulimit -d").await;
    assert_eq!(told["stdout"], "20\n0\n300\n65536\n", "{told}");
    let told = run_shell(&workspace, "head -c 200000000 /dev/zero | tail -n 1 | wc -c").await;
    assert_ne!(told["stdout"], "200000000\n", "{told}");
}

#[tokio::test]
async fn long_output_is_cut_in_the_middle() {
    let (_world, workspace) = make_world();
    let mut limits = ToolLimits::default();
    limits.max_output_bytes = 100;
    let told = run_shell(&workspace.limits(limits), "echo begin; seq 100000; echo end").await;
    let out = told["stdout"].as_str().expect("text");
    assert!(out.starts_with("begin\n1\n2\n") && out.ends_with("100000\nend\n"), "{out}");
    assert!(out.contains("bytes left out") && out.len() < 200, "{out}");
}

#[tokio::test]
async fn the_end_of_its_time_is_the_end_of_all_its_descendants() {
    let (_world, workspace) = make_world();
    // One process in the group, one in its own session, and orphans whose parent has ended.
    let text = "sleep 98761 & setsid sleep 98762 & (setsid sh -c 'sleep 98763 & sleep 98764' &) ; echo on; sleep 98765";
    let told = run_command(&workspace, json!({ "shell": text, "seconds": 1 })).await;
    assert_eq!(
        (&told["stdout"], &told["timed_out"]),
        (&json!("on\n"), &json!("it was ended after 1 seconds"))
    );
    for word in ["98761", "98762", "98763", "98764", "98765"] {
        assert!(!is_running(word), "{word} is still there");
    }
    // A command that ends normally leaves no descendants behind either.
    let told = run_shell(&workspace, "setsid sleep 98766 & echo $!").await;
    assert_eq!(told["exit_code"], 0);
    assert!(!is_running("98766"));
}

#[tokio::test]
async fn cancelling_the_run_ends_the_command() {
    let (_world, workspace) = make_world();
    let model = ScriptedModel::new([ScriptedResponse::call(
        "c1",
        "run_command",
        json!({ "shell": "setsid sleep 98771 & sleep 98772" }),
    )]);
    let agent = Agent::new("clerk").model(model).tools(workspace.tools());
    let run = tokio::spawn(agent.run("Go."));
    wait_until("the command runs", || is_running("98771") && is_running("98772")).await;
    run.abort();
    assert!(run.await.is_err());
    wait_until("the command is gone", || !is_running("98771") && !is_running("98772")).await;
}

/// The program that `killed_with_its_program` starts and kills while it runs a command.
#[test]
fn a_program_that_runs_a_command() {
    let Some(folder) = std::env::var_os("WINDLASS_TEST_FOLDER") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(run_shell(&open_workspace(Path::new(&folder)), "setsid sleep 98781 & sleep 98782"));
}

#[tokio::test]
async fn killed_with_its_program() {
    let (_world, workspace) = make_world();
    let mut program = std::process::Command::new(std::env::current_exe().expect("a test"))
        .args(["--exact", "a_program_that_runs_a_command"])
        .env("WINDLASS_TEST_FOLDER", workspace.folder())
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("starts");
    wait_until("the command runs", || is_running("98781") && is_running("98782")).await;
    program.kill().expect("is there");
    program.wait().expect("ends");
    wait_until("the command is gone", || !is_running("98781") && !is_running("98782")).await;
}

#[tokio::test]
async fn a_program_that_cannot_help_says_so_and_nothing_runs() {
    let (_world, workspace) = make_world();
    let told =
        call_tool(&workspace.clone().sandbox(Sandbox::default()), "run_command", json!({ "program": "ls" }))
            .await;
    assert!(told.contains("main_if_asked()"), "{told}");
    let told = call_tool(
        &workspace.clone().sandbox(Sandbox::default().helper("/bin/true")),
        "run_command",
        json!({ "program": "ls" }),
    )
    .await;
    assert!(told.contains("main_if_asked()"), "{told}");
    let strict = workspace.sandbox(test_sandbox().requirement(SandboxRequirement::Required));
    let told = call_tool(&strict, "run_command", json!({ "program": "true" })).await;
    assert_eq!(told.contains("Landlock"), kernel() == ConfinementLevel::None, "{told}");
}
