//! Files that try to uncover what is hidden, and pages that lead elsewhere.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use windlass::prelude::*;
use windlass_tools::{BuiltInApprovalPolicy, ToolPolicy, WebFetcher};

use crate::commands::make_workspace;
use crate::support::{call_tool, open_workspace, parse_version};

#[tokio::test]
async fn a_hard_link_does_not_uncover_a_hidden_file() {
    let (_world, workspace) = make_workspace();
    let root = workspace.folder().to_owned();
    fs::create_dir(root.join("secret")).expect("made");
    for hidden in [".env", "secret/key"] {
        fs::write(root.join(hidden), "needle\n").expect("written");
    }
    fs::hard_link(root.join(".env"), root.join("notes.txt")).expect("linked");
    fs::hard_link(root.join("secret/key"), root.join("more.txt")).expect("linked");
    fs::write(root.join("open.txt"), "needle in the open\n").expect("written");
    fs::hard_link(root.join("open.txt"), root.join("also_open.txt")).expect("linked");
    let workspace = workspace.hide([".env", "secret/"]).expect("patterns");
    for path in ["notes.txt", "more.txt"] {
        let told = call_tool(&workspace, "read_file", json!({ "path": path })).await;
        assert!(told.contains("hard link") && !told.contains("needle"), "{path}: {told}");
        let edit = json!({ "path": path, "version": "0", "edits": [{ "old": "x", "new": "y" }] });
        let told = call_tool(&workspace, "patch_file", edit.clone()).await;
        assert!(!told.contains("needle") && told.contains("hard link"), "{path}: {told}");
        let preview = workspace.preview("patch_file", &edit.to_string()).expect("it is a change");
        assert!(!preview.text.contains("needle"), "{preview:?}");
    }
    let told = call_tool(&workspace, "search_files", json!({ "text": "needle" })).await;
    assert_eq!(
        told.lines().collect::<Vec<_>>(),
        ["also_open.txt:1: needle in the open", "open.txt:1: needle in the open"]
    );
    let told = call_tool(&workspace, "read_file", json!({ "path": "also_open.txt" })).await;
    assert!(told.ends_with("needle in the open\n"), "{told}");
}

/// Serves a redirect to another host name of this machine, and counts the requests of the target.
async fn start_redirecting_server() -> (u16, Arc<AtomicUsize>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("has one").port();
    let reached = Arc::new(AtomicUsize::new(0));
    let count = reached.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = vec![0; 4096];
            let length = stream.read(&mut request).await.unwrap_or_default();
            let request = String::from_utf8_lossy(&request[..length]).into_owned();
            let answer = if request.starts_with("GET /out ") {
                format!(
                    "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:{port}/stolen?secret\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                )
            } else if request.starts_with("GET /same ") {
                "HTTP/1.1 302 Found\r\nlocation: /page\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                    .to_owned()
            } else {
                count.fetch_add(1, Ordering::Relaxed);
                "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 4\r\nconnection: close\r\n\r\npage".to_owned()
            };
            stream.write_all(answer.as_bytes()).await.ok();
        }
    });
    (port, reached)
}

#[tokio::test]
async fn a_redirect_is_asked_about_like_a_first_request() {
    let (port, reached) = start_redirecting_server().await;
    let rule = "[[rule]]\nname = 'docs'\ndecision = 'allow'\ntool = 'fetch_url'\nwhen = { url = { host = 'localhost' } }\n\
                examples = [{ decision = 'allow', arguments = { url = 'http://localhost/' } }, { decision = 'ask' }]\n";
    let policy = ToolPolicy::parse("p", rule).expect("it is a policy");
    let near = || WebFetcher::new().allow_private_host("localhost").allow_private_host("127.0.0.1");
    for web in [near().approve(BuiltInApprovalPolicy::except_for(["localhost"])), near().policy(&policy)] {
        for (path, is_followed) in [("out", false), ("same", true)] {
            let model = ScriptedModel::new([
                ScriptedResponse::call(
                    "c1",
                    "fetch_url",
                    json!({ "url": format!("http://localhost:{port}/{path}") }),
                ),
                ScriptedResponse::text("done"),
            ]);
            let before = reached.load(Ordering::Relaxed);
            let agent = Agent::new("reader").model(model.clone()).tool(web.tool());
            let outcome = agent.run("Go.").await.expect("it ends");
            assert_eq!(outcome.output_text().expect("it finished"), "done");
            let told = model.requests()[1].input_text().pop().expect("an output");
            assert_eq!(reached.load(Ordering::Relaxed) - before, usize::from(is_followed), "{told}");
            assert_eq!(told.contains("which nobody approved"), !is_followed, "{told}");
        }
    }
    // The second request is a call of its own, and waits for a person.
    let model = ScriptedModel::new([ScriptedResponse::call(
        "c1",
        "fetch_url",
        json!({ "url": format!("http://127.0.0.1:{port}/stolen?secret") }),
    )]);
    let agent = Agent::new("reader").model(model).tool(near().policy(&policy).tool());
    assert!(agent.run("Go.").await.expect("it pauses").into_paused().is_some());
}

/// A carriage return in a file hides no changed line behind an unchanged one.
#[test]
fn every_changed_line_has_a_line_of_its_own_in_the_diff() {
    let world = tempfile::tempdir().expect("a folder");
    fs::write(world.path().join("a.sh"), "echo fine\r\necho same\rstays\n").expect("written");
    let workspace = open_workspace(world.path());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let read = runtime.block_on(call_tool(&workspace, "read_file", json!({ "path": "a.sh" })));
    let content = "echo fine\r\necho same\rrm -rf x\rstays\n";
    let arguments = json!({ "path": "a.sh", "content": content, "version": parse_version(&read) });
    let diff = workspace.preview("write_file", &arguments.to_string()).expect("it is a change");
    let changed = diff
        .text
        .split('\n')
        .filter(|line| line.starts_with(['+', '-']) && !line.starts_with("+++") && !line.starts_with("---"));
    let changed: Vec<&str> = changed.collect();
    assert_eq!(changed, ["-echo same\rstays", "+echo same\rrm -rf x\rstays"]);
    assert_eq!((diff.added, diff.removed), (1, 1));
}
