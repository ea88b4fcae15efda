//! Projects whose agent file lists approvers: decisions count with the signature of one of them only. The attackers have the
//! store and its key; each attack is seen to work on the same project without approvers.

#![cfg(unix)]
#![expect(clippy::expect_used, clippy::panic, reason = "a failed precondition fails the test")]

mod pty_screen;
mod support;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use pty_screen::PtyScreen;
use serde_json::json;
use windlass::core::id::Timestamp;
use windlass::store::{LeaseClaim, SqliteStore, Store};

use support::{CommandOutput, TestProject, windlass_command};

const AGENT: &str = "name = \"helper\"\nmodel = \"scripted:answers.jsonl\"\ntools = [\"shell\", \"files\"]\n";

/// A project with one call that waits, and people with keys of their own.
struct SignedProject(TestProject);

impl SignedProject {
    /// Creates the project. `approvers` are listed in its agent file.
    fn new(approvers: &[&str]) -> Self {
        let project = Self(TestProject::new("", ""));
        let touch = json!({ "program": "touch", "args": ["made"] });
        let call = json!({ "call": [{ "id": "c1", "tool": "run_command", "arguments": touch }] });
        let answers = format!("{call}\n{}\n", json!({ "text": "Done." }));
        std::fs::write(project.0.file("answers.jsonl"), answers).expect("it can be written");
        project.list_approvers(approvers);
        project
    }

    /// Writes the agent file with these approvers; without any, it has no such section.
    fn list_approvers(&self, approvers: &[&str]) {
        let lines: String =
            approvers.iter().map(|name| format!("{name} = \"{}\"\n", self.public_key(name))).collect();
        let section = if approvers.is_empty() { String::new() } else { format!("[approvers]\n{lines}") };
        std::fs::write(self.0.file("agent.toml"), format!("{AGENT}{section}")).expect("it can be written");
    }

    /// Returns the file with the key of a person.
    fn key_file(&self, person: &str) -> PathBuf {
        self.0.state().join("people").join(format!("{person}.key"))
    }

    fn public_key(&self, person: &str) -> String {
        let shown = self.run_as(person, &["key", "approver", "--json"]);
        assert_eq!(shown.code, Some(0), "{}", shown.stderr);
        shown.json_lines()[0]["key"].as_str().expect("a key").to_owned()
    }

    /// Runs the command as a person does, with the key of that person.
    fn run_as(&self, person: &str, words: &[&str]) -> CommandOutput {
        let mut command = windlass_command(&self.0.folder(), words);
        command.env("USER", person).env("WINDLASS_APPROVER_KEY", self.key_file(person));
        CommandOutput::from_output(command.output().expect("it runs"))
    }

    /// Starts the run `one`, which waits.
    fn start(&self) -> String {
        let started = self.run_as("carl", &["run", ".", "Go.", "--run-id", "one"]);
        assert_eq!(started.code, Some(3), "{}", started.stderr);
        self.0.digest_of("one")
    }

    fn is_made(&self) -> bool {
        self.0.file("made").exists()
    }
}

fn only_entry(folder: &Path) -> PathBuf {
    let entries = std::fs::read_dir(folder).expect("the folder is there").flatten().map(|entry| entry.path());
    let found: Vec<PathBuf> = entries.collect();
    let [only] = found.as_slice() else { panic!("one entry: {found:?}") };
    only.clone()
}

#[test]
fn the_key_of_an_approver_is_private_and_its_secret_is_not_shown() {
    let project = SignedProject::new(&["ann"]);
    let file = project.key_file("ann");
    let mode = |path: &Path| path.metadata().expect("it is there").permissions().mode() & 0o777;
    assert_eq!((mode(&file), mode(file.parent().expect("a folder"))), (0o600, 0o700));
    let secret = std::fs::read_to_string(&file).expect("the user can read it");
    let secret = secret.lines().nth(1).expect("a secret").to_owned();
    let shown = project.run_as("ann", &["key", "approver"]);
    assert!(shown.stdout.contains(&format!("ann = \"{}\"", project.public_key("ann"))), "{}", shown.stdout);
    assert!(secret.len() == 64 && !shown.stdout.contains(&secret));
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).expect("it is ours");
    project.start();
    let refused = project.run_as("ann", &["approve", "one", "c1"]);
    assert!(refused.stderr.contains("other users can read or change"), "{}", refused.stderr);
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).expect("it is ours");
    // The tools of an agent would read a key in the workspace.
    let mut command = windlass_command(&project.0.folder(), &["run", ".", "Go."]);
    let inside = project.0.file("ann.key");
    std::fs::copy(&file, &inside).expect("it can be copied");
    let ran = command.env("WINDLASS_APPROVER_KEY", &inside).output().expect("it runs");
    let told = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(told.contains("in the folder in which the agent's tools work"), "{told}");
}

#[test]
fn an_approver_signs_and_a_stranger_does_not_count() {
    let project = SignedProject::new(&["ann", "bob"]);
    let digest = project.start();
    // Carl has no key, and then one that nobody listed.
    let refused = project.run_as("carl", &["approve", "--digest", &digest]);
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(
        refused.stderr.contains("only ann or bob can decide here, and you have no"),
        "{}",
        refused.stderr
    );
    let key = project.public_key("carl");
    let refused = project.run_as("carl", &["approve", "--digest", &digest]);
    assert!(refused.stderr.contains(&format!("your key {key} is not listed")), "{}", refused.stderr);
    let refused = project.run_as("bob", &["approve", "--digest", &digest, "--by", "ann"]);
    assert!(refused.stderr.contains("your key is that of `bob`"), "{}", refused.stderr);
    let refused = project.run_as("ann", &["resume", "one", "--yes"]);
    assert!(refused.stderr.contains("this project has approvers"), "{}", refused.stderr);
    let waits = project.run_as("carl", &["resume", "one"]);
    assert_eq!((waits.code, project.is_made()), (Some(3), false), "{}", waits.stderr);

    // The name is that of the key, whatever the user is called.
    let mut command = windlass_command(&project.0.folder(), &["approve", "--digest", &digest]);
    command.env("USER", "somebody").env("WINDLASS_APPROVER_KEY", project.key_file("ann"));
    assert!(command.status().expect("it runs").success());
    let resumed = project.run_as("carl", &["resume", "one"]);
    assert_eq!((resumed.code, project.is_made()), (Some(0), true), "{}", resumed.stderr);
    let verified = project.run_as("carl", &["verify", "one", "--json"]).json_lines().remove(0);
    assert_eq!(verified["decisions"][0]["decided_by"], "ann");
    assert!(verified["signatures"].as_str().expect("a text").contains("signed by an approver"), "{verified}");
    // Whoever is no approver any more has approved nothing.
    project.list_approvers(&["bob"]);
    let verified = project.run_as("carl", &["verify", "one"]);
    assert_eq!(verified.code, Some(6), "{}", verified.stdout);
    assert!(verified.stderr.contains("which is not that of an approver"), "{}", verified.stderr);
}

#[test]
fn whoever_has_the_store_and_its_key_approves_nothing() {
    let project = SignedProject::new(&["ann"]);
    let digest = project.start();
    // Mallory has the same account files, and an agent file without approvers for her own commands.
    let agent = std::fs::read_to_string(project.0.file("agent.toml")).expect("it can be read");
    project.list_approvers(&[]);
    let posted = project.run_as("mallory", &["approve", "--digest", &digest, "--by", "ann"]);
    assert_eq!(posted.code, Some(0), "{}", posted.stderr);
    std::fs::write(project.0.file("agent.toml"), &agent).expect("it can be written");
    let resumed = project.run_as("carl", &["resume", "one"]);
    assert_eq!((resumed.code, project.is_made()), (Some(3), false), "{}", resumed.stderr);
    assert!(resumed.stderr.contains("no approver has signed it"), "{}", resumed.stderr);
    let verified = project.run_as("carl", &["verify", "one"]);
    assert_eq!(verified.code, Some(6), "{}", verified.stdout);
    assert!(verified.stderr.contains("no approver has signed it"), "{}", verified.stderr);
    // Without approvers the same decision is carried out.
    project.list_approvers(&[]);
    let resumed = project.run_as("carl", &["resume", "one"]);
    assert_eq!((resumed.code, project.is_made()), (Some(0), true), "{}", resumed.stderr);
    // And then it is in the journal, where it does not count either.
    std::fs::write(project.0.file("agent.toml"), &agent).expect("it can be written");
    let verified = project.run_as("carl", &["verify", "one"]);
    assert_eq!(verified.code, Some(6), "{}", verified.stdout);
}

#[test]
fn a_rejection_an_answer_and_a_file_are_judged_by_their_signatures() {
    let project = SignedProject::new(&["ann"]);
    project.start();
    let exported = project.run_as("carl", &["export", "one"]).stdout;
    let mut paused = windlass::run::PausedRun::from_text(&exported).expect("it can be read");
    paused.decide_as("ann");
    paused.approve("c1").expect("it waits");
    std::fs::write(project.0.file("forged.windlass"), paused.to_text()).expect("it can be written");
    for words in [
        &["verify", "forged.windlass"][..],
        &["resume", "forged.windlass"][..],
        &["resume", "forged.windlass", "--trust-text"][..],
    ] {
        let refused = project.run_as("carl", words);
        assert_eq!(refused.code, Some(6), "{words:?}: {}", refused.stderr);
        assert!(refused.stderr.contains("no approver has signed it"), "{}", refused.stderr);
    }
    assert!(!project.is_made());
    let digest = project.0.digest_of("one");
    let rejected = project.run_as("carl", &["reject", "--digest", &digest]);
    assert_eq!(rejected.code, Some(0), "a rejection needs no signature: {}", rejected.stderr);
    let resumed = project.run_as("carl", &["resume", "one"]);
    assert_eq!((resumed.code, project.is_made()), (Some(0), false), "{}", resumed.stderr);
}

#[test]
fn an_agent_file_cannot_bring_other_approvers_along() {
    let project = SignedProject::new(&["ann"]);
    let other = format!("{AGENT}[approvers]\nmallory = \"{}\"\n", project.public_key("mallory"));
    std::fs::write(project.0.file("other.toml"), other).expect("it can be written");
    let refused = project.run_as("mallory", &["run", "other.toml", "Go."]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("are not those of the project"), "{}", refused.stderr);
    for (section, reason) in [
        ("[approvers]\nann = \"ed25519:12\"\n", "is not `ed25519:` and 64 hex digits"),
        ("[approvers]\nann = 7\n", "ann = 7"),
        ("[approvers\n", "TOML parse error"),
    ] {
        std::fs::write(project.0.file("agent.toml"), format!("{AGENT}{section}")).expect("it can be written");
        for words in [&["runs"][..], &["run", ".", "Go."][..]] {
            let refused = project.run_as("ann", words);
            assert_ne!(refused.code, Some(0), "{section}");
            assert!(words[0] == "runs" || refused.stderr.contains(reason), "{}", refused.stderr);
        }
    }
}

/// Writes the agent file with Ann and Bob as approvers, and a rule whose commands are Ann's to decide.
fn write_rule(project: &SignedProject, file: &str, rule: &str) {
    let [ann, bob] = ["ann", "bob"].map(|name| project.public_key(name));
    let text =
        format!("{AGENT}[approvers]\nann = \"{ann}\"\nbob = \"{bob}\"\n[policy]\ndefault = \"tool\"\n{rule}");
    std::fs::write(project.0.file(file), text).expect("it can be written");
}

const COMMANDS_ARE_ANNS: &str = "[[policy.rule]]\nname = \"commands\"\ndecision = \"ask_each_time\"\ntool = \"run_command\"\ncommand = [{ program = \"touch\", args = [\"**\"] }]\napprovers = [\"ann\"]\n";

#[test]
fn a_rule_says_which_approver_decides_about_a_call() {
    let project = SignedProject::new(&[]);
    write_rule(&project, "agent.toml", COMMANDS_ARE_ANNS);
    let digest = project.start();
    let refused = project.run_as("bob", &["approve", "--digest", &digest]);
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(
        refused.stderr.contains("\"bob\" has signed it, and only ann decides about this call"),
        "{}",
        refused.stderr
    );
    // Another program is any approver's to decide.
    let edited = ["approve", "one", "c1", "--arguments", "{\"program\":\"true\",\"args\":[]}"];
    let in_pipe = project.run_as("bob", &edited);
    assert!(in_pipe.stderr.contains("there is no terminal"), "{}", in_pipe.stderr);
    // The prompt offers Bob no yes.
    let key = project.key_file("bob").to_string_lossy().into_owned();
    let words = ["resume", "one"];
    let mut screen =
        PtyScreen::start_with(project.0.folder(), 30, 110, &words, &[("WINDLASS_APPROVER_KEY", &key)]);
    screen.wait_for("It waits for an approver.");
    let shown = screen.screen_text();
    assert!(shown.contains("only ann can decide about this call") && !shown.contains("[y]es"), "{shown}");
    screen.type_keys("l\n");
    screen.wait_for_exit();
    // The rule is what refuses him: he decides in the project without it, and the decision does not outlive that.
    write_rule(&project, "agent.toml", "");
    let approved = project.run_as("bob", &["approve", "--digest", &digest]);
    assert_eq!(approved.code, Some(0), "{}", approved.stderr);
    write_rule(&project, "agent.toml", COMMANDS_ARE_ANNS);
    let resumed = project.run_as("carl", &["resume", "one"]);
    assert_eq!((resumed.code, project.is_made()), (Some(3), false), "{}", resumed.stderr);
    assert!(resumed.stderr.contains("only ann decides about this call"), "{}", resumed.stderr);
    let approved = project.run_as("ann", &["approve", "--digest", &digest]);
    assert_eq!(approved.code, Some(0), "{}", approved.stderr);
    let resumed = project.run_as("carl", &["resume", "one"]);
    assert_eq!((resumed.code, project.is_made()), (Some(0), true), "{}", resumed.stderr);
    let verified = project.run_as("carl", &["verify", "one"]);
    assert_eq!(verified.code, Some(0), "{}", verified.stderr);
}

#[test]
fn a_rule_with_approvers_is_refused_if_it_could_be_evaded() {
    let project = SignedProject::new(&[]);
    write_rule(&project, "agent.toml", "");
    project.start();
    for (rule, reason) in [
        (
            COMMANDS_ARE_ANNS.replace("ask_each_time", "ask"),
            "`approvers` needs `decision = \"ask_each_time\"`",
        ),
        (COMMANDS_ARE_ANNS.replace("[\"ann\"]", "[]"), "`approvers` names nobody"),
        (COMMANDS_ARE_ANNS.replace("[\"ann\"]", "[\"Ann\"]"), "the rule names the approver `Ann`"),
    ] {
        write_rule(&project, "agent.toml", &rule);
        for words in [&["run", ".", "Go."][..], &["runs"][..]] {
            let refused = project.run_as("ann", words);
            assert_ne!(refused.code, Some(0), "{words:?}: {rule}");
            assert!(refused.stderr.contains(reason), "{words:?}: {}", refused.stderr);
        }
    }
    // The store of the project knows its own rules only.
    write_rule(&project, "agent.toml", "");
    write_rule(&project, "other.toml", COMMANDS_ARE_ANNS);
    let refused = project.run_as("ann", &["run", "other.toml", "Go."]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("only rules in the agent.toml of the project can"), "{}", refused.stderr);
}

/// Points the run `one` at another agent file, as somebody does who can write to the store.
fn forge_agent_path(store: &Path, agent: &Path) {
    let forge = async {
        let store = SqliteStore::open(store).expect("a store");
        let now = Timestamp(u64::MAX / 4);
        let claim = LeaseClaim { owner: "mallory", now, duration: Duration::from_millis(1) };
        let lease = store.acquire_lease(&"one".into(), claim, None).await.expect("nobody drives it");
        let forged = json!({ "path": agent }).to_string();
        store.save_artefact(&lease, ".agent", forged.as_bytes()).await.expect("it can be written");
        store.release_lease(&lease).await.expect("it can be released");
    };
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(forge);
}

#[test]
fn a_store_does_not_choose_the_agent_file() {
    let project = SignedProject::new(&[]);
    project.start();
    // The attacker's agent works in a folder of the attacker.
    let evil = project.0.state().with_file_name("evil");
    std::fs::create_dir(&evil).expect("it can be made");
    std::fs::write(evil.join("agent.toml"), AGENT).expect("it can be written");
    std::fs::copy(project.0.file("answers.jsonl"), evil.join("answers.jsonl")).expect("it can be copied");
    let store = only_entry(&project.0.state().join("windlass/projects")).join("windlass.db");
    forge_agent_path(&store, &evil.join("agent.toml"));
    for words in [&["resume", "one"][..], &["approve", "one", "c1"][..], &["fork", "one"][..]] {
        let refused = project.run_as("carl", words);
        assert_eq!(refused.code, Some(1), "{words:?}: {}", refused.stderr);
        assert!(refused.stderr.contains("that cannot be believed: it has no MAC"), "{}", refused.stderr);
    }
    let shown = project.run_as("carl", &["show", "one"]);
    assert!(shown.code == Some(0) && shown.stderr.contains("cannot be believed"), "{}", shown.stderr);
    let named = project.run_as("carl", &["resume", "one", "--agent", "."]);
    assert_eq!(named.code, Some(3), "the user names the file: {}", named.stderr);

    // The attack works on a store without keys: what the user approves happens where the attacker says.
    forge_agent_path(&store, &evil.join("agent.toml"));
    let run = |words: &[&str]| {
        let mut command = windlass_command(&project.0.folder(), words);
        CommandOutput::from_output(command.env("WINDLASS_STORE", &store).output().expect("it runs"))
    };
    let shown = run(&["show", "one", "--json"]).json_lines().remove(0);
    let digest = shown["pending"][0]["digest"].as_str().expect("a call waits").to_owned();
    assert_eq!(run(&["approve", "--digest", &digest]).code, Some(0));
    let believed = run(&["resume", "one"]);
    assert_eq!((believed.code, evil.join("made").exists()), (Some(0), true), "{}", believed.stderr);
}

#[test]
fn the_prompt_signs_for_an_approver_and_offers_a_stranger_no_yes() {
    let project = SignedProject::new(&["ann"]);
    project.public_key("carl");
    let folder = project.0.folder();
    let key = |person: &str| project.key_file(person).to_string_lossy().into_owned();
    let run = |person: &str, words: &[&str]| {
        PtyScreen::start_with(&folder, 30, 110, words, &[("WINDLASS_APPROVER_KEY", &key(person))])
    };
    let mut screen = run("carl", &["run", ".", "Go.", "--run-id", "one"]);
    screen.wait_for("It waits for an approver.");
    let shown = screen.screen_text();
    assert!(shown.contains("You cannot allow it: only ann can decide here"), "{shown}");
    assert!(shown.contains("\"touch\"") && !shown.contains("[y]es"), "{shown}");
    for answer in ["y", "a"] {
        screen.type_keys(&format!("{answer}\n"));
        screen.wait_for(&format!("› {answer}\n  It waits for an approver."));
    }
    screen.type_keys("l\n");
    screen.wait_for_exit();
    assert!(!project.is_made());
    let mut screen = run("ann", &["resume", "one"]);
    screen.wait_for_question("Allow it?");
    screen.type_keys("y\n");
    screen.wait_for("Done.");
    screen.wait_for_exit();
    assert!(project.is_made());
    let verified = project.run_as("carl", &["verify", "one"]);
    assert_eq!(verified.code, Some(0), "{}", verified.stderr);
    assert!(verified.stdout.contains("is signed by an approver of the project"), "{}", verified.stdout);
}
