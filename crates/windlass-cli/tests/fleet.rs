//! The command on a fleet: runs are submitted, workers drive them, and any process decides and cancels.
//!
//! Each story is played on a SQLite file, and with the feature `postgres` on a PostgreSQL server.

#![cfg(unix)]
#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

#[cfg(feature = "postgres")]
#[path = "../../windlass-postgres/tests/server/mod.rs"]
#[expect(dead_code, reason = "the tests of the store crash the server, too")]
mod server;
mod support;

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use support::{CommandOutput, TestProject, windlass_command};

const ORDER_SCRIPT: &str = r#"
[[answer]]
[[answer.call]]
id = "w1"
tool = "write_file"
arguments = { path = "order.txt", content = "rope\n" }

[[answer]]
text = "Done."
"#;

const SLOW_SCRIPT: &str = r#"
[[answer]]
[[answer.call]]
id = "s1"
tool = "run_command"
arguments = { program = "sh", args = ["slow.sh"] }

[[answer]]
text = "Done."
"#;

/// Says that it has begun, waits for the file `go`, and says that it has ended.
const SLOW_COMMAND: &str = "echo begun >> log; while [ ! -e go ]; do sleep 0.05; done; echo ended >> log";

const ALLOW_COMMANDS: &str = r#"
tools = ["shell"]
[[policy.rule]]
name = "commands"
decision = "allow"
tool = "run_command"
command = [{ program = "sh", args = ["slow.sh"] }]
examples = [
    { decision = "allow", arguments = { program = "sh", args = ["slow.sh"] } },
    { decision = "ask", arguments = { program = "sh", args = ["other.sh"] } },
]
"#;

/// A project whose commands use one store.
struct FleetProject {
    project: TestProject,
    /// Address of a database; the file of the project if absent.
    store: Option<String>,
}

impl FleetProject {
    fn new(more: &str, script: &str, store: Option<String>) -> Self {
        let project = TestProject::new(more, script);
        std::fs::write(project.file("slow.sh"), SLOW_COMMAND).expect("it can be written");
        Self { project, store }
    }

    fn words<'a>(&'a self, words: &[&'a str]) -> Vec<&'a str> {
        let store = self.store.iter().flat_map(|store| ["--store", store.as_str()]);
        words.iter().copied().chain(store).collect()
    }

    fn run(&self, words: &[&str]) -> CommandOutput {
        self.project.run_windlass(&self.words(words))
    }

    fn start(&self, words: &[&str]) -> Child {
        let mut command = windlass_command(&self.project.folder(), &self.words(words));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts")
    }

    fn digest_of(&self, run: &str) -> String {
        let shown = self.run(&["show", run, "--json"]);
        shown.json_lines()[0]["pending"][0]["digest"].as_str().expect("a call is pending").to_owned()
    }

    /// Returns the states of the queue, by run.
    fn queue(&self) -> Vec<(String, String)> {
        let listed = self.run(&["fleet", "queue", "--json"]);
        let text = |value: &serde_json::Value| value.as_str().expect("a text").to_owned();
        listed.json_lines().iter().map(|run| (text(&run["run"]), text(&run["state"]))).collect()
    }
}

/// Plays a story on a SQLite file, and on a PostgreSQL server if the command has it.
fn play_on_stores(more: &str, script: &str, story: impl Fn(&FleetProject)) {
    story(&FleetProject::new(more, script, None));
    #[cfg(feature = "postgres")]
    if let Some(server) = server::TestServer::start() {
        story(&FleetProject::new(more, script, Some(server.address())));
    }
}

fn wait_for(mut is_met: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !is_met() {
        assert!(begun.elapsed() < Duration::from_secs(120), "the condition is met in time");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn log_lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

/// Sends SIGTERM, and returns the output of the process.
fn terminate(child: Child) -> CommandOutput {
    let pid = child.id().to_string();
    let sent = std::process::Command::new("kill").args(["-TERM", &pid]).status().expect("it runs");
    assert!(sent.success());
    CommandOutput::from_output(child.wait_with_output().expect("it ends"))
}

#[test]
fn a_submitted_run_is_parked_decided_elsewhere_and_finished_by_a_later_worker() {
    play_on_stores("tools = [\"files\"]", ORDER_SCRIPT, |fleet| {
        let submit = ["submit", ".", "Order rope.", "--run-id", "order-1"];
        let submitted = fleet.run(&submit);
        assert_eq!(
            (submitted.code, submitted.stdout.as_str()),
            (Some(0), "order-1\n"),
            "{}",
            submitted.stderr
        );
        let again = fleet.run(&submit);
        assert_eq!(again.code, Some(0));
        assert!(again.stderr.contains("was submitted before"), "{}", again.stderr);
        let other = fleet.run(&["submit", ".", "Order sails.", "--run-id", "order-1"]);
        assert_eq!(other.code, Some(1), "{}", other.stderr);

        let worked = fleet.run(&["work", ".", "--until-idle"]);
        assert_eq!(worked.code, Some(0), "{}", worked.stderr);
        assert!(worked.stderr.contains("run order-1 waits for a person"), "{}", worked.stderr);
        assert_eq!(fleet.queue(), [("order-1".to_owned(), "parked".to_owned())]);

        let approved = fleet.run(&["approve", "order-1", "w1", "--digest", &fleet.digest_of("order-1")]);
        assert_eq!(approved.code, Some(0), "{}", approved.stderr);
        assert!(approved.stderr.contains("a worker goes on with the run"), "{}", approved.stderr);
        assert_eq!(fleet.queue(), [("order-1".to_owned(), "ready".to_owned())]);

        let worked = fleet.run(&["work", ".", "--until-idle", "--json"]);
        let last = worked.json_lines().pop().expect("a report");
        assert_eq!((last["type"].as_str(), last["ended"].as_u64()), (Some("worker_stopped"), Some(1)));
        assert_eq!(std::fs::read_to_string(fleet.project.file("order.txt")).expect("a file"), "rope\n");
        assert_eq!(fleet.queue(), []);
        assert_eq!(fleet.run(&["verify"]).code, Some(0));
        assert_eq!(fleet.run(&["fleet", "workers", "--json"]).stdout, "", "the workers have retired");
    });
}

#[test]
fn sigterm_drains_a_worker_and_the_next_one_repeats_nothing() {
    play_on_stores(ALLOW_COMMANDS, SLOW_SCRIPT, |fleet| {
        let log = fleet.project.file("log");
        assert_eq!(fleet.run(&["submit", ".", "Go.", "--run-id", "slow"]).code, Some(0));
        assert_eq!(fleet.run(&["submit", ".", "Go.", "--run-id", "later"]).code, Some(0));
        let mut worker = fleet.start(&["work", ".", "--concurrency", "1", "--drain", "100"]);
        wait_for(|| log_lines(&log) == ["begun"]);
        assert_eq!(fleet.run(&["fleet", "workers", "--json"]).json_lines().len(), 1);

        let pid = worker.id().to_string();
        std::process::Command::new("kill").args(["-TERM", &pid]).status().expect("it runs");
        // The call may only finish after the worker has said that it drains: it gets the time for that.
        let mut said = BufReader::new(worker.stderr.take().expect("it is piped"));
        let mut stderr = String::new();
        while !stderr.contains("draining") {
            assert_ne!(said.read_line(&mut stderr).expect("it is text"), 0, "the worker drains: {stderr}");
        }
        std::fs::write(fleet.project.file("go"), "").expect("it can be written");
        said.read_to_string(&mut stderr).expect("it is text");
        assert_eq!(worker.wait().expect("it ends").code(), Some(0), "{stderr}");
        assert_eq!(log_lines(&log), ["begun", "ended"], "no other run was taken");
        assert_eq!(fleet.run(&["fleet", "workers", "--json"]).stdout, "", "the worker has retired");

        let worked = fleet.run(&["work", ".", "--until-idle"]);
        assert_eq!(worked.code, Some(0), "{}", worked.stderr);
        assert_eq!(log_lines(&log), ["begun", "ended", "begun", "ended"], "each run made its call once");
        for run in ["slow", "later"] {
            let shown = fleet.run(&["show", run, "--json"]);
            assert_eq!(shown.json_lines()[0]["status"], "finished", "{}", shown.stdout);
        }
    });
}

#[test]
fn a_cancellation_reaches_the_worker_of_a_run_and_a_run_that_nobody_drives() {
    play_on_stores(ALLOW_COMMANDS, SLOW_SCRIPT, |fleet| {
        let log = fleet.project.file("log");
        assert_eq!(fleet.run(&["submit", ".", "Go.", "--run-id", "slow"]).code, Some(0));
        assert_eq!(fleet.run(&["submit", ".", "Go.", "--run-id", "waiting"]).code, Some(0));
        let worker = fleet.start(&["work", ".", "--concurrency", "1"]);
        wait_for(|| !log_lines(&log).is_empty());
        for run in ["slow", "waiting"] {
            let cancelled = fleet.run(&["cancel", run]);
            assert_eq!(
                (cancelled.code, cancelled.stdout),
                (Some(0), format!("a worker cancels run {run}\n"))
            );
        }
        wait_for(|| fleet.queue().is_empty());
        let worked = terminate(worker);
        assert_eq!(worked.code, Some(0), "{}", worked.stderr);
        assert_eq!(log_lines(&log), ["begun"]);
        for run in ["slow", "waiting"] {
            let shown = fleet.run(&["show", run, "--json"]);
            assert_eq!(shown.json_lines()[0]["status"], "cancelled", "{}", shown.stdout);
        }
        let again = fleet.run(&["cancel", "slow"]);
        assert_eq!(again.code, Some(2), "{}", again.stderr);
    });
}

#[test]
fn a_check_before_a_deploy_names_the_runs_that_the_new_agent_cannot_finish() {
    play_on_stores("tools = [\"files\"]", ORDER_SCRIPT, |fleet| {
        assert_eq!(fleet.run(&["submit", ".", "Order rope.", "--run-id", "order-1"]).code, Some(0));
        assert_eq!(fleet.run(&["work", ".", "--until-idle"]).code, Some(0));
        let same = fleet.run(&["fleet", "check"]);
        assert_eq!((same.code, same.stdout.as_str()), (Some(0), ""), "{}", same.stderr);

        let newer = fleet.project.folder().join("newer.toml");
        let text = "name = \"helper\"\nmodel = \"scripted:answers.toml\"\ntools = [\"read\"]\n";
        std::fs::write(newer, text).expect("it can be written");
        let checked = fleet.run(&["fleet", "check", "newer.toml"]);
        assert_eq!(checked.code, Some(1), "{}", checked.stderr);
        assert!(
            checked.stdout.contains("order-1") && checked.stdout.contains("`write_file`"),
            "{}",
            checked.stdout
        );

        // The new worker leaves the run alone, and the old one finishes it.
        let digest = fleet.digest_of("order-1");
        assert_eq!(fleet.run(&["approve", "order-1", "w1", "--digest", &digest]).code, Some(0));
        let declined = fleet.run(&["work", "newer.toml", "--until-idle"]);
        assert!(declined.stderr.contains("needs another build"), "{}", declined.stderr);
        assert_eq!(fleet.queue(), [("order-1".to_owned(), "ready".to_owned())]);
        assert_eq!(fleet.run(&["work", ".", "--until-idle"]).code, Some(0));
        assert_eq!(fleet.queue(), []);
        assert_eq!(std::fs::read_to_string(fleet.project.file("order.txt")).expect("a file"), "rope\n");
    });
}

#[test]
fn a_schedule_is_kept_listed_and_removed() {
    play_on_stores("tools = [\"files\"]", ORDER_SCRIPT, |fleet| {
        let wrong = fleet.run(&["schedule", "add", "report", "61 * * * *", ".", "Write."]);
        assert_eq!(wrong.code, Some(2), "{}", wrong.stderr);
        let added = fleet.run(&["schedule", "add", "report", "* * * * *", ".", "Write.", "--missed", "all"]);
        assert_eq!(added.code, Some(0), "{}", added.stderr);
        let listed = fleet.run(&["schedule", "list", "--json"]).json_lines();
        assert_eq!(
            (listed.len(), &listed[0]["times"], &listed[0]["agent"]),
            (1, &"* * * * *".into(), &"helper".into())
        );
        assert_eq!(fleet.run(&["schedule", "remove", "report"]).code, Some(0));
        assert_eq!(fleet.run(&["schedule", "remove", "report"]).code, Some(5));
    });
}

#[cfg(not(feature = "postgres"))]
#[test]
fn a_build_without_postgresql_says_so_and_shows_no_password() {
    let project = TestProject::new("tools = [\"files\"]", ORDER_SCRIPT);
    let ran = project.run_windlass(&["runs", "--store", "postgres://ann:s3cret@127.0.0.1:1/fleet"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("--features postgres"), "{}", ran.stderr);
    assert!(!ran.stderr.contains("s3cret"), "{}", ran.stderr);
}

#[cfg(feature = "postgres")]
#[test]
fn a_store_moves_between_a_file_and_a_database() {
    let Some(server) = server::TestServer::start() else { return };
    let file = FleetProject::new("tools = [\"files\"]", ORDER_SCRIPT, None);
    let path = file.project.folder().parent().expect("a folder").join("runs.db").display().to_string();
    let ran =
        file.project.run_windlass(&["run", ".", "Order rope.", "--run-id", "o", "--yes", "--store", &path]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let moved = file.project.run_windlass(&["migrate", &path, &server.address()]);
    assert_eq!(moved.code, Some(0), "{}", moved.stderr);
    let verified = file.project.run_windlass(&["verify", "o", "--store", &server.address()]);
    assert_eq!(verified.code, Some(0), "{}", verified.stderr);
    let backup = file.project.run_windlass(&["backup", "copy.db", "--store", &server.address()]);
    assert_eq!(backup.code, Some(2), "{}", backup.stderr);
    let unreachable =
        file.project.run_windlass(&["runs", "--store", "postgres://ann:s3cret@127.0.0.1:1/fleet"]);
    assert_eq!(unreachable.code, Some(1), "{}", unreachable.stderr);
    assert!(!unreachable.stderr.contains("s3cret"), "{}", unreachable.stderr);
}

/// The server refuses connections without TLS, and the command those to a server that its machine does not trust.
#[cfg(feature = "postgres")]
#[test]
fn a_database_is_reached_by_tls_if_its_certificate_is_trusted() {
    let Some(server) = server::TestServer::start_with(server::ServerEncryption::Required) else { return };
    let project = TestProject::new("tools = [\"files\"]", ORDER_SCRIPT);
    let list_runs = |address: &str, authority: &Path| {
        let mut command = windlass_command(&project.folder(), &["doctor", "--json", "--store", address]);
        let output = command.env("SSL_CERT_FILE", authority).output().expect("it runs");
        let findings = CommandOutput::from_output(output).json_lines();
        let store = findings.into_iter().find(|finding| finding["what"] == "store").expect("a finding");
        format!(
            "{}: {}",
            store["health"].as_str().expect("a health"),
            store["text"].as_str().expect("a text")
        )
    };
    let trusted = list_runs(&server.address(), &server.authority());
    assert!(trusted.starts_with("ok") && trusted.ends_with("0 runs, 0 wait for a person"), "{trusted}");
    let other = server::TestServer::start_with(server::ServerEncryption::Required).expect("another server");
    let untrusted = list_runs(&server.address(), &other.authority());
    assert!(untrusted.starts_with("bad") && untrusted.contains("certificate"), "{untrusted}");
    let plain =
        list_runs(&server.address().replace("sslmode=require", "sslmode=disable"), &server.authority());
    assert!(plain.starts_with("bad"), "{plain}");
}
