//! Tests of servers as child processes.

#![allow(clippy::expect_used)]

use std::path::{Path, PathBuf};

use super::*;

/// Waits until a condition holds, with a generous bound.
async fn wait_until(what: &str, condition: impl Fn() -> bool) {
    for _ in 0..6_000 {
        if condition() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("{what} did not happen");
}

/// Returns true if a process exists and has not ended.
fn is_running(id: &str) -> bool {
    let state = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    !matches!(state.rsplit(')').next().and_then(|rest| rest.trim().chars().next()), None | Some('Z' | 'X'))
}

fn written_ids(file: &Path) -> Vec<String> {
    std::fs::read_to_string(file).unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

/// A child that starts a session of its own, and a grandchild of it, end with their server.
#[tokio::test]
async fn a_child_in_a_session_of_its_own_ends_with_its_server() {
    if !Path::new("/usr/bin/setsid").exists() && !Path::new("/bin/setsid").exists() {
        let said = "not shown: children in a session of their own, because `setsid` is missing\n";
        let _ = std::io::Write::write_all(&mut std::io::stderr(), said.as_bytes());
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let ids: PathBuf = folder.path().join("ids");
    let script = folder.path().join("child.sh");
    let text = "echo $$ >> \"$IDS\"\n[ \"$1\" = child ] && setsid sh \"$0\" grandchild &\nexec sleep 600\n";
    std::fs::write(&script, text).expect("it can be written");
    let path = |path: &Path| path.to_str().expect("a path").to_owned();
    let config = StdioTransportConfig {
        command: "sh".to_owned(),
        args: vec!["-c".to_owned(), "setsid sh \"$SCRIPT\" child & cat".to_owned()],
        env: [("IDS".to_owned(), path(&ids)), ("SCRIPT".to_owned(), path(&script))].into(),
        inheritance: EnvironmentInheritance::AllowList,
        cwd: None,
    };
    let (server, output, input) = spawn_server(&config).expect("it starts");
    wait_until("the start of the children", || written_ids(&ids).len() == 2).await;
    let children = written_ids(&ids);
    assert!(children.iter().all(|id| is_running(id)), "{children:?}");
    drop((input, output));
    server.shut_down().await;
    wait_until("the end of the children", || !children.iter().any(|id| is_running(id))).await;
}
