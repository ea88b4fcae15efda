//! Completions and the history.

use super::{LineCompletions, append_history, read_history};

fn complete(completions: &LineCompletions, before: &str) -> (usize, Vec<String>) {
    let (start, found) = completions.complete(before);
    (start, found.into_iter().map(|pair| pair.replacement).collect())
}

#[test]
fn commands_their_arguments_and_files_are_completed() {
    let folder = tempfile::tempdir().expect("there is room");
    for name in ["notes.md", "notes.txt", ".hidden", "a\u{1b}[2J", "two words"] {
        std::fs::write(folder.path().join(name), "").expect("it can be written");
    }
    std::fs::create_dir(folder.path().join("src")).expect("there is room");
    std::fs::write(folder.path().join("src/main.rs"), "").expect("it can be written");
    let commands =
        vec![("/model".to_owned(), vec!["a:x".to_owned(), "b:y".to_owned()]), ("/undo".to_owned(), vec![])];
    let completions = LineCompletions { commands, folder: folder.path().to_owned() };
    assert_eq!(complete(&completions, "/m"), (0, vec!["/model ".to_owned()]));
    assert_eq!(complete(&completions, "/u"), (0, vec!["/undo".to_owned()]));
    assert_eq!(complete(&completions, "/model b"), (7, vec!["b:y".to_owned()]));
    assert_eq!(complete(&completions, "read not"), (5, vec!["notes.md".to_owned(), "notes.txt".to_owned()]));
    assert_eq!(complete(&completions, "read s"), (5, vec!["src/".to_owned()]));
    assert_eq!(complete(&completions, "read src/m"), (5, vec!["src/main.rs".to_owned()]));
    assert_eq!(complete(&completions, "read .h"), (5, vec![".hidden".to_owned()]));
    assert_eq!(
        complete(&completions, "read a"),
        (5, Vec::new()),
        "a name that a terminal would obey is not offered"
    );
}

#[test]
fn the_history_keeps_lines_with_line_breaks() {
    let folder = tempfile::tempdir().expect("there is room");
    let file = folder.path().join("history");
    for line in ["one", "two\nlines", "\"quoted\""] {
        append_history(&file, line).expect("it can be written");
    }
    assert_eq!(read_history(&file), ["one", "two\nlines", "\"quoted\""]);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(&file).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "only the user can read it");
    }
}
