//! Commands that try to leave their sandbox.

use std::fs;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::path::Path;

use serde_json::{Value, json};
use tempfile::{TempDir, tempdir};
use windlass_tools::sandbox::{NetworkAccess, ResourceLimits, SandboxRequirement};
use windlass_tools::{Sandbox, Workspace};

use crate::support::{call_tool, open_workspace};
use crate::{has_program, report_skipped};

fn test_sandbox() -> Sandbox {
    Sandbox::default()
        .helper(env!("CARGO_BIN_EXE_windlass-sandbox"))
        .requirement(SandboxRequirement::BestEffort)
}

pub(crate) fn make_workspace() -> (TempDir, Workspace) {
    let world = tempdir().expect("a folder");
    fs::create_dir(world.path().join("work")).expect("made");
    let workspace = open_workspace(&world.path().join("work"));
    (world, workspace)
}

pub(crate) async fn run(workspace: &Workspace, arguments: Value) -> Value {
    let told = call_tool(workspace, "run_command", arguments).await;
    serde_json::from_str(&told).unwrap_or_else(|_| panic!("a command that ran is told as JSON: {told}"))
}

async fn run_perl(workspace: &Workspace, script: &str) -> Value {
    run(workspace, json!({ "program": "perl", "args": ["-MSocket", "-e", script] })).await
}

/// Returns true if the restriction was applied, according to the command's own report.
fn is_applied(told: &Value, gap: &str) -> bool {
    let is_open = told["open"].as_array().is_some_and(|open| open.contains(&json!(gap)));
    if is_open {
        report_skipped(&format!("this machine does not restrict `{gap}`, and the report says so"));
        assert_ne!(told["confined"], "full");
    }
    !is_open
}

/// A helper in the workspace could be replaced by a command, which the next command would start unconfined.
#[tokio::test]
async fn a_helper_that_a_command_could_replace_is_refused() {
    let (world, workspace) = make_workspace();
    let planted = workspace.folder().join("target/debug/agent");
    fs::create_dir_all(planted.parent().expect("has one")).expect("made");
    fs::copy(env!("CARGO_BIN_EXE_windlass-sandbox"), &planted).expect("copied");
    for (named, sandbox) in [
        ("the workspace", Sandbox::default().helper(&planted)),
        ("a link", {
            let link = world.path().join("link");
            std::os::unix::fs::symlink(&planted, &link).expect("linked");
            Sandbox::default().helper(link)
        }),
        ("a writable folder", {
            let other = world.path().join("other");
            fs::create_dir(&other).expect("made");
            fs::copy(env!("CARGO_BIN_EXE_windlass-sandbox"), other.join("agent")).expect("copied");
            Sandbox::default().allow_write(&other).helper(other.join("agent"))
        }),
    ] {
        let told =
            call_tool(&workspace.clone().sandbox(sandbox), "run_command", json!({ "program": "true" })).await;
        assert!(told.contains("could replace it"), "{named}: {told}");
    }
}

#[tokio::test]
async fn daemons_are_not_reached_through_unix_sockets() {
    if !has_program("perl") {
        return;
    }
    let (world, workspace) = make_workspace();
    // A daemon's socket in the workspace: a socket there is writable for the command.
    let inside = workspace.folder().join("daemon.sock");
    let by_path = UnixListener::bind(&inside).expect("bound");
    let outside = world.path().join("docker.sock");
    let by_outer_path = UnixListener::bind(&outside).expect("bound");
    let name = format!("windlass-hostile-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).expect("a name");
    let by_name = UnixListener::bind_addr(&address).expect("bound");
    let datagrams = UnixDatagram::bind(workspace.folder().join("log.sock")).expect("bound");
    for listener in [&by_path, &by_outer_path, &by_name] {
        listener.set_nonblocking(true).expect("set");
    }
    datagrams.set_nonblocking(true).expect("set");
    let script = format!(
        r#"for my $a (pack_sockaddr_un("{}"), pack_sockaddr_un("{}"), pack_sockaddr_un("\0{name}")) {{
               print "reached\n" if socket(S, AF_UNIX, SOCK_STREAM, 0) && connect(S, $a);
           }}
           if (socketpair(A, B, AF_UNIX, SOCK_DGRAM, 0)) {{
               print "sent\n" if defined send(A, "out", 0, pack_sockaddr_un("{}"));
           }}
           socketpair(A, B, AF_UNIX, SOCK_STREAM, 0) or print "no pair: $!\n";
           print "end\n";"#,
        inside.display(),
        outside.display(),
        workspace.folder().join("log.sock").display()
    );
    let told = run_perl(&workspace, &script).await;
    if !is_applied(&told, "sockets") {
        return;
    }
    assert_eq!((&told["stdout"], &told["stderr"]), (&json!("end\n"), &json!("")), "{told}");
    for listener in [&by_path, &by_outer_path, &by_name] {
        assert!(listener.accept().is_err(), "a command connected");
    }
    assert!(datagrams.recv(&mut [0; 16]).is_err(), "a command sent a message");
    // With a network, the sockets of daemons stay closed.
    let open = workspace.clone().sandbox(test_sandbox().network(NetworkAccess::Allowed));
    assert_eq!(run_perl(&open, &script).await["stdout"], "end\n");
}

#[tokio::test]
async fn datagrams_and_other_sockets_do_not_leave() {
    let (_world, workspace) = make_workspace();
    let receiver = std::net::UdpSocket::bind("127.0.0.1:0").expect("a port");
    receiver.set_read_timeout(Some(std::time::Duration::from_millis(200))).expect("set");
    let port = receiver.local_addr().expect("has one").port();
    let send = json!({ "program": "bash", "args": ["-c", format!("echo out > /dev/udp/127.0.0.1/{port}")] });
    let told = run(&workspace, send.clone()).await;
    if is_applied(&told, "sockets") {
        assert!(receiver.recv(&mut [0; 16]).is_err(), "a datagram left: {told}");
    }
    let open = workspace.clone().sandbox(test_sandbox().network(NetworkAccess::Allowed));
    run(&open, send).await;
    assert_eq!(receiver.recv(&mut [0; 16]).expect("it arrives"), 4);
    if has_program("perl") {
        // AF_VSOCK, AF_PACKET, AF_ALG, AF_NETLINK, and MPTCP, which Landlock does not know.
        let script = "for my $s ([40, 1, 0], [17, 3, 0], [38, 5, 0], [16, 3, 0], [2, 1, 262]) { \
                      print \"$$s[0]\\n\" if socket(S, $$s[0], $$s[1], $$s[2]) }";
        let told = run_perl(&workspace, script).await;
        if is_applied(&told, "sockets") {
            assert_eq!(told["stdout"], "", "{told}");
        }
    }
}

/// A descriptor that the program forgot to mark reaches no command.
#[tokio::test]
async fn descriptors_of_the_program_are_not_inherited() {
    let (world, workspace) = make_workspace();
    let secret = world.path().join("secret");
    fs::write(&secret, "of the program\n").expect("written");
    let leaked = fs::File::open(&secret).expect("opened");
    rustix::io::fcntl_setfd(&leaked, rustix::io::FdFlags::empty()).expect("set");
    let descriptor = leaked.as_raw_fd();
    let script = format!("cat <&{descriptor}; ls /proc/self/fd | tr '\\n' ' '");
    let told = run(&workspace, json!({ "program": "bash", "args": ["-c", script] })).await;
    // `ls` itself has a fourth descriptor.
    assert_eq!(told["stdout"], "0 1 2 3 ", "{told}");
    let mut text = String::new();
    let mut leaked = leaked;
    leaked.read_to_string(&mut text).expect("it is open here");
    assert_eq!(text, "of the program\n");
}

#[tokio::test]
async fn the_temporary_folder_has_a_name_that_nobody_can_predict() {
    let (_world, workspace) = make_workspace();
    let mut names = Vec::new();
    for _ in 0..2 {
        let told = run(&workspace, json!({ "shell": "echo $TMPDIR; stat -c %a $TMPDIR" })).await;
        let text = told["stdout"].as_str().expect("text").to_owned();
        let (path, mode) = text.trim_end().split_once('\n').expect("two lines");
        assert_eq!(mode, "700");
        let name = Path::new(path).file_name().and_then(|name| name.to_str()).expect("has a name").to_owned();
        let random = name.strip_prefix("windlass-command-").expect("the prefix");
        assert!(random.len() == 32 && random.bytes().all(|byte| byte.is_ascii_hexdigit()), "{name}");
        assert!(!random.starts_with("0000000000000000"), "it is no counter and no process id: {name}");
        assert!(!Path::new(path).exists(), "it is removed");
        names.push(name);
    }
    assert_ne!(names[0], names[1]);
}

#[tokio::test]
async fn shared_mappings_count_as_memory() {
    let python = "/usr/bin/python3";
    if !Path::new(python).exists() {
        return report_skipped("there is no python3");
    }
    let (_world, workspace) = make_workspace();
    let limits = ResourceLimits { memory_bytes: 64 * 1024 * 1024, ..ResourceLimits::default() };
    let workspace = workspace.sandbox(test_sandbox().resource_limits(limits));
    let script = "import mmap\nm = mmap.mmap(-1, 256 << 20)\nfor i in range(0, 256 << 20, 4096): m[i] = 1\nprint('had it')";
    let told = run(&workspace, json!({ "program": python, "args": ["-c", script] })).await;
    if is_applied(&told, "shared_memory") {
        assert_eq!((&told["stdout"], &told["signal"]), (&json!(""), &json!(9)), "{told}");
    }
}

#[tokio::test]
async fn the_keys_of_the_user_are_out_of_reach() {
    if !has_program("perl") {
        return;
    }
    let (_world, workspace) = make_workspace();
    // keyctl(KEYCTL_GET_KEYRING_ID, KEY_SPEC_USER_KEYRING, 1), and io_uring_setup.
    let keyctl = if cfg!(target_arch = "x86_64") { 250 } else { 219 };
    let script = format!(
        "print 'keys' if syscall({keyctl}, 0, -4, 1) > 0; print 'ring' if syscall(425, 1, 0) >= 0; print $!{{EACCES}} ? 'refused' : $!"
    );
    let told = run_perl(&workspace, &script).await;
    if is_applied(&told, "sockets") {
        assert_eq!(told["stdout"], "refused", "{told}");
    }
}

/// An argument that the tool ignores would let a person approve `dry_run: true` for a call that does everything.
#[tokio::test]
async fn unknown_arguments_are_refused() {
    let (_world, workspace) = make_workspace();
    for (tool, arguments) in [
        ("run_command", json!({ "shell": "echo x > made", "dry_run": true })),
        ("write_file", json!({ "path": "made", "content": "x", "dry_run": true })),
        (
            "patch_file",
            json!({ "path": "made", "version": "0", "edits": [{ "old": "a", "new": "b", "dry_run": 1 }] }),
        ),
        ("read_file", json!({ "path": "made", "dry_run": true })),
        ("list_files", json!({ "dry_run": false })),
        ("search_files", json!({ "text": "x", "dry_run": 1 })),
        ("git_commit", json!({ "message": "x", "dry_run": true })),
    ] {
        let told = call_tool(&workspace, tool, arguments).await;
        assert!(told.contains("dry_run"), "{told}");
        assert!(!workspace.folder().join("made").exists(), "{tool}: {told}");
    }
}

/// A limit of zero bytes or seconds ends a process as a signal does, and a priority starves it.
#[tokio::test]
async fn limits_and_priorities_of_other_processes_cannot_be_changed() {
    if !["prlimit", "renice", "ionice", "taskset"].into_iter().all(has_program) {
        return;
    }
    let (_world, workspace) = make_workspace();
    let mut other = std::process::Command::new("sleep").arg("600").spawn().expect("it starts");
    let pid = other.id();
    let limits = || fs::read_to_string(format!("/proc/{pid}/limits")).expect("it runs");
    let (before, nice_before) = (limits(), nice_value(pid));
    let script = format!(
        "prlimit --pid {pid} --fsize=0 && echo limited\n\
         prlimit --pid {pid} --cpu=1 && echo limited\n\
         renice -n 19 -p {pid} && echo starved\n\
         renice -n 19 -u \"$(id -u)\" && echo starved\n\
         ionice -c 3 -p {pid} && echo starved\n\
         ionice -c 3 -u \"$(id -u)\" && echo starved\n\
         taskset -pc 0 {pid} >&2 && echo pinned\n\
         ulimit -n 64 && nice -n 5 ionice -c 3 taskset -c 0 echo end\n"
    );
    let told = run(&workspace, json!({ "program": "sh", "args": ["-c", script] })).await;
    let (after, nice_after) = (limits(), nice_value(pid));
    other.kill().expect("it runs");
    other.wait().expect("it ends");
    if !is_applied(&told, "sockets") {
        return;
    }
    assert_eq!((after, nice_after), (before, nice_before), "{told}");
    assert_eq!(told["stdout"], "end\n", "its own limits and priorities are the command's: {told}");
}

/// Returns the priority of a process, as the kernel tells it.
fn nice_value(pid: u32) -> String {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    line.rsplit(')').next().and_then(|rest| rest.split(' ').nth(17)).unwrap_or_default().to_owned()
}

/// Chains of processes, each of which starts the next in a session of its own and ends, are never where a list of
/// processes says.
#[tokio::test]
async fn a_chain_of_short_processes_ends_with_its_command() {
    if !has_program("perl") {
        return;
    }
    let (_world, workspace) = make_workspace();
    let marker = format!("chain-of-{}", std::process::id());
    let script = format!(
        "use POSIX; # {marker}
         for my $i (1..40) {{
             next if fork;
             my $end = time + 30;
             while (time < $end) {{
                 defined(my $pid = fork) or next;
                 POSIX::_exit(0) if $pid;
                 POSIX::setsid();
             }}
             POSIX::_exit(0);
         }}
         POSIX::_exit(0);"
    );
    let told = run_perl(&workspace, &script).await;
    if !is_applied(&told, "left_processes") {
        return;
    }
    assert_eq!(told["exit_code"], 0, "{told}");
    // The processes that a look misses are found by another one.
    for _ in 0..50 {
        let left: Vec<String> = processes_with(&marker);
        assert!(left.is_empty(), "processes of the command are left: {left:?}");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
}

/// Returns the ids of the processes with a word in their command lines, other than this one.
fn processes_with(word: &str) -> Vec<String> {
    let ids = fs::read_dir("/proc").expect("is there").flatten().map(|entry| entry.file_name());
    let ids = ids.filter_map(|name| name.into_string().ok()).filter(|name| name.parse::<u32>().is_ok());
    let has_word = |id: &String| {
        fs::read(format!("/proc/{id}/cmdline"))
            .is_ok_and(|line| String::from_utf8_lossy(&line).contains(word))
    };
    ids.filter(has_word).collect()
}

/// The command lines of other programs often have secrets.
#[tokio::test]
async fn a_command_sees_its_own_processes_only() {
    let (_world, workspace) = make_workspace();
    let marker = format!("seen-{}", std::process::id());
    let mut other =
        // It waits for its input, and so leaves no process of its own behind.
        std::process::Command::new("sh")
            .args(["-c", "read line # sleep 600", &marker])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("it starts");
    let looks = format!(
        "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 600 {marker}'; ls -d /proc/[0-9]* | wc -l"
    );
    let told = run(&workspace, json!({ "program": "sh", "args": ["-c", looks] })).await;
    other.kill().expect("it runs");
    other.wait().expect("it ends");
    if !is_applied(&told, "process_list") {
        return;
    }
    let text = told["stdout"].as_str().expect("text");
    let (seen, count) = text.trim_end().split_once('\n').expect("two lines");
    // The command line of the shell that looks has the word, too.
    assert!(seen.parse::<u32>().expect("a number") <= 1, "{told}");
    assert!(count.trim().parse::<u32>().expect("a number") <= 6, "{told}");
}

/// A program of the workspace is not found under the name of a program of the system.
#[tokio::test]
async fn a_program_of_the_workspace_is_not_found_by_a_relative_path() {
    let (_world, workspace) = make_workspace();
    let planted = workspace.folder().join("ls");
    fs::write(&planted, "#!/bin/sh\necho planted\n").expect("written");
    fs::set_permissions(&planted, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("set");
    for path in [":/usr/bin:/bin", ".:/usr/bin:/bin", "/usr/bin/missing::/bin", "bin/..:/usr/bin:/bin"] {
        let workspace = workspace.clone().sandbox(test_sandbox().set_variable("PATH", path));
        let told = run(&workspace, json!({ "program": "ls" })).await;
        assert_eq!(told["stdout"], "ls\n", "{path}: {told}");
        let told = run(&workspace, json!({ "shell": "ls" })).await;
        assert_eq!(told["stdout"], "ls\n", "{path}: {told}");
    }
}

/// A program that a command planted in a folder of the search path is not found under the name of another one.
#[tokio::test]
async fn a_program_of_the_workspace_is_not_found_by_the_inherited_path() {
    let (_world, workspace) = make_workspace();
    let bin = workspace.folder().join(".venv/bin");
    fs::create_dir_all(&bin).expect("made");
    for program in ["ls", "env", "git", "planted"] {
        let planted = bin.join(program);
        fs::write(&planted, "#!/bin/sh\necho planted\n").expect("written");
        fs::set_permissions(&planted, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("set");
    }
    let program = std::env::current_exe().expect("a test");
    for (path, shown) in [
        (format!("{}:/usr/bin:/bin", bin.display()), ".venv\n"),
        (bin.display().to_string(), ".venv\n"),
        (format!("{}/../.venv/bin:/usr/bin:/bin", bin.display()), ".venv\n"),
    ] {
        let output = std::process::Command::new(&program)
            .args(["--exact", "commands::a_program_with_a_search_path", "--nocapture"])
            .env("WINDLASS_HOSTILE_FOLDER", workspace.folder())
            .env("PATH", &path)
            .output()
            .expect("it runs");
        let output = String::from_utf8_lossy(&output.stdout).into_owned();
        let told: Vec<Value> = output
            .lines()
            .filter_map(|line| line.split_once("TOLD "))
            .map(|(_, told)| serde_json::from_str(told).expect("it is JSON"))
            .collect();
        assert_eq!(told.len(), 2, "{path}: {output}");
        assert_eq!(told[0]["stdout"], shown, "{path}: {output}");
        assert!(!told[1].to_string().contains("planted"), "{path}: {output}");
    }
    // The application may name the folder itself. `git_commit`, which may write in `.git`, does not search it.
    let path = format!("{}:/usr/bin:/bin", bin.display());
    let workspace = workspace.sandbox(test_sandbox().set_variable("PATH", path));
    assert_eq!(run(&workspace, json!({ "program": "ls" })).await["stdout"], "planted\n");
    let told = call_tool(&workspace, "git_commit", json!({ "message": "x" })).await;
    assert!(!told.contains("planted"), "{told}");
}

/// The program that `a_program_of_the_workspace_is_not_found_by_the_inherited_path` starts with another search path.
#[test]
fn a_program_with_a_search_path() {
    let Some(folder) = std::env::var_os("WINDLASS_HOSTILE_FOLDER") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let workspace = open_workspace(Path::new(&folder));
    println!("TOLD {}", runtime.block_on(run(&workspace, json!({ "program": "ls", "args": ["-A"] }))));
    let told = runtime.block_on(call_tool(&workspace, "git_commit", json!({ "message": "x" })));
    println!("TOLD {}", json!(told));
}

/// A standing approval would cover any command, so it covers none, whoever asks.
#[tokio::test]
async fn no_standing_approval_covers_a_command() {
    use windlass::prelude::*;
    use windlass_tools::BuiltInApprovalPolicy;
    use windlass_tools::tool_policy::ToolPolicy;

    let asking = "[[rule]]\nname = 'ask'\ndecision = 'ask'\ntool = ['run_command', 'git_commit']\n";
    let asking = ToolPolicy::parse("p.toml", asking).expect("it is a policy");
    let (_world, workspace) = make_workspace();
    let workspace = workspace.approve_commands(BuiltInApprovalPolicy::Always);
    for (tool, first, second) in [
        ("run_command", json!({ "program": "true" }), json!({ "program": "touch", "args": ["made"] })),
        ("git_commit", json!({ "message": "one" }), json!({ "message": "two" })),
    ] {
        for policy in [None, Some(&asking)] {
            let model = ScriptedModel::new([
                ScriptedResponse::call("c1", tool, first.clone()),
                ScriptedResponse::call("c2", tool, second.clone()),
            ]);
            let tools = workspace.tools();
            let tools = policy.map_or(tools.clone(), |policy| policy.apply_to_all(tools));
            let agent = Agent::new("clerk").model(model).tools(tools);
            let mut paused = agent.run("go").await.expect("it pauses").into_paused().expect("it waits");
            paused.approve_always("c1").expect("it waits");
            let again = agent.resume(paused).await.expect("it pauses").into_paused().expect("it waits");
            let waiting: Vec<String> =
                again.pending_calls().iter().map(|pending| pending.call().to_string()).collect();
            assert_eq!(waiting, ["c2"], "{tool}");
            assert!(!workspace.folder().join("made").exists());
        }
    }
}
