//! Budgets in an agent file: the run waits for a person, who grants more with `windlass answer`; costs are shown.

#![cfg(unix)]
#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod support;

use support::TestProject;

const ANSWERS: &str = r#"{"call":[{"id":"c1","tool":"list_files","arguments":{"path":"."}}]}
{"text":"Two files."}
"#;

fn project() -> TestProject {
    let more = "tools = [\"files\"]\n[budget]\nrequests = 1\n";
    let project = TestProject::new(more, "");
    let agent = std::fs::read_to_string(project.file("agent.toml")).expect("it is text");
    std::fs::write(project.file("agent.toml"), agent.replace("answers.toml", "answers.jsonl"))
        .expect("it can be written");
    std::fs::write(project.file("answers.jsonl"), ANSWERS).expect("it can be written");
    project
}

#[test]
fn a_run_waits_at_its_budget_until_a_person_grants_more() {
    let project = project();
    let first = project.run_windlass(&["run", ".", "What is here?", "--run-id", "r1"]);
    assert_eq!(first.code, Some(3), "{}\n{}", first.stdout, first.stderr);
    assert!(first.stderr.contains("the budget of the run is reached"), "{}", first.stderr);
    let shown = project.run_windlass(&["show", "r1"]);
    assert!(shown.stdout.contains("How many more requests"), "{}", shown.stdout);
    assert!(shown.stdout.contains("unknown cost"), "{}", shown.stdout);
    let unseen = project.run_windlass(&["answer", "r1", "windlass.budget", "2"]);
    assert_eq!(unseen.code, Some(2), "nobody saw the question: {}", unseen.stderr);
    assert!(unseen.stderr.contains("--digest"), "{}", unseen.stderr);
    let digest = project.digest_of("r1");
    let answer = ["answer", "r1", "windlass.budget", "much", "--digest", &digest];
    let wrong = project.run_windlass(&answer);
    assert_ne!(wrong.code, Some(0), "{}", wrong.stdout);
    let answer = ["answer", "r1", "windlass.budget", "2", "--resume", "--digest", &digest];
    let answered = project.run_windlass(&answer);
    assert_eq!(answered.code, Some(0), "{}\n{}", answered.stdout, answered.stderr);
    assert!(answered.stdout.contains("Two files."), "{}", answered.stdout);
    let runs = project.run_windlass(&["runs", "--json"]);
    assert_eq!(runs.json_lines()[0]["cost"], "unknown cost");
}

/// The budget of a session counts the messages of a conversation together.
#[test]
fn a_conversation_waits_at_the_budget_of_its_session() {
    let more = "[session_budget]\nrequests = 1\n";
    let project = TestProject::new(more, "[[answer]]\ntext = \"One.\"\n[[answer]]\ntext = \"Two.\"\n");
    let mut command = support::windlass_command(&project.folder(), &["chat", "--session", "s"]);
    let mut chat = command
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("it runs");
    std::io::Write::write_all(&mut chat.stdin.take().expect("it is piped"), b"first\nsecond\n")
        .expect("it reads");
    let ended = support::CommandOutput::from_output(chat.wait_with_output().expect("it ends"));
    assert_eq!(ended.code, Some(3), "the second message waits: {}\n{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.contains("One.") && !ended.stdout.contains("Two."), "{}", ended.stdout);
    assert!(ended.stderr.contains("the budget of the session is reached"), "{}", ended.stderr);
}

#[test]
fn a_worker_keeps_the_budget_of_sessions() {
    let project = project();
    let agent = std::fs::read_to_string(project.file("agent.toml")).expect("it is text");
    std::fs::write(project.file("agent.toml"), agent.replace("[budget]", "[session_budget]"))
        .expect("it can be written");
    for words in [
        vec!["submit", ".", "What is here?", "--run-id", "r1", "--session", "s"],
        vec!["submit", ".", "What is here?", "--run-id", "r2"],
        vec!["work", ".", "--until-idle"],
    ] {
        let done = project.run_windlass(&words);
        assert_eq!(done.code, Some(0), "{words:?}: {}", done.stderr);
    }
    let limited = project.run_windlass(&["show", "r1"]);
    assert!(limited.stdout.contains("the budget of the session is reached"), "{}", limited.stdout);
    let free = project.run_windlass(&["show", "r2"]);
    assert!(free.stdout.contains("Two files."), "a run without a session: {}", free.stdout);
}

#[test]
fn a_price_list_that_cannot_be_read_is_named() {
    let project = TestProject::new("prices_file = \"prices.json\"\n", "");
    std::fs::write(project.file("prices.json"), "{}").expect("it can be written");
    let refused = project.run_windlass(&["run", ".", "Hello?"]);
    assert_ne!(refused.code, Some(0));
    assert!(refused.stderr.contains("prices.json"), "{}", refused.stderr);
}

#[cfg(feature = "otlp")]
#[test]
fn a_trace_that_no_collector_received_is_a_failure() {
    let project = project();
    project.run_windlass(&["run", ".", "What is here?", "--run-id", "r1"]);
    let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let address = format!("--otlp=http://{}/v1/traces", closed.local_addr().expect("an address"));
    drop(closed);
    let refused = project.run_windlass(&["export", "r1", &address]);
    assert_eq!(refused.code, Some(1), "{}", refused.stderr);
    assert!(refused.stderr.contains("spans of run `r1` were not sent"), "{}", refused.stderr);
}

/// A collector that accepts one request.
#[cfg(feature = "otlp")]
#[test]
fn the_trace_of_a_stored_run_is_sent_to_a_collector() {
    use std::io::{Read, Write};
    let project = project();
    project.run_windlass(&["run", ".", "What is here?", "--run-id", "r1"]);
    let digest = project.digest_of("r1");
    project.run_windlass(&["answer", "r1", "windlass.budget", "2", "--resume", "--digest", &digest]);
    let collector = std::net::TcpListener::bind("127.0.0.1:0").expect("there is a port");
    let address = format!("--otlp=http://{}/v1/traces", collector.local_addr().expect("an address"));
    let received = std::thread::spawn(move || {
        let (mut stream, _) = collector.accept().expect("it connects");
        let mut request = Vec::new();
        let mut buffer = [0; 4096];
        loop {
            let count = stream.read(&mut buffer).expect("it is sent");
            request.extend_from_slice(&buffer[..count]);
            let text = String::from_utf8_lossy(&request).to_ascii_lowercase();
            let length = text.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
            let head = text.find("\r\n\r\n");
            if let (Some(head), Some(length)) = (head, length.and_then(|length| length.parse::<usize>().ok()))
                && request.len() >= head + 4 + length
            {
                break;
            }
            if count == 0 {
                break;
            }
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").expect("it is answered");
        String::from_utf8_lossy(&request).into_owned()
    });
    let sent = project.run_windlass(&["export", "r1", &address]);
    assert_eq!(sent.code, Some(0), "{}", sent.stderr);
    assert!(sent.stderr.contains("spans of run r1 were sent"), "{}", sent.stderr);
    let request = received.join().expect("it receives");
    assert!(request.starts_with("POST /v1/traces"), "{request}");
    assert!(request.contains("list_files"), "{request}");
}

/// The conversation of a run is compacted as its agent file says.
#[test]
fn the_context_of_the_agent_file_compacts_a_run() {
    let read = |number: u32| {
        format!(
            "[[answer]]\n[[answer.call]]\nid = \"c{number}\"\ntool = \"read_file\"\narguments = {{ path = \"page-{number}.txt\" }}\n"
        )
    };
    let script: String =
        (1..=4).map(read).chain(["[[answer]]\ntext = \"All are read.\"\n".to_owned()]).collect();
    let context = "tools = [\"read\"]\n[context]\nwindow = 6000\nkeep_newest = 1\nsummary_model = \"scripted:summary.toml\"\n\
                   pinned_texts = [\"ticket 7\"]\n";
    let run = |extra: &str| {
        let project = TestProject::new(&format!("{context}{extra}"), &script);
        std::fs::write(project.file("summary.toml"), "[[answer]]\ntext = \"Pages were read.\"\n".repeat(20))
            .expect("it can be written");
        for number in 1..=4 {
            let page = format!("page {number}: {}", "lorem ipsum ".repeat(300));
            std::fs::write(project.file(&format!("page-{number}.txt")), page).expect("it can be written");
        }
        let ran = project.run_windlass(&["run", ".", "Read all.", "--run-id", "one"]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        project.run_windlass(&["show", "one", "--journal"]).stdout
    };
    let journal = run("");
    assert!(journal.contains("compacted"), "{journal}");
    let journal = run("compaction = false\n");
    assert!(!journal.contains("compacted"), "{journal}");
}
