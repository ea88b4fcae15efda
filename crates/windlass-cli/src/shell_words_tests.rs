//! Tests of the words of a shell, with a real shell.

use std::path::Path;

use super::shell_path;

#[test]
fn a_shell_reads_the_path_that_was_meant() {
    for path in ["demo", "My Agent", "it's here", "$HOME", "a;b", "a\\b", "*", "", "über/straße"] {
        let script = format!("printf %s {}", shell_path(Path::new(path)));
        let shell = std::process::Command::new("sh").args(["-c", &script]).output().expect("a shell");
        assert_eq!(String::from_utf8_lossy(&shell.stdout), path, "{script}");
    }
    assert_eq!(shell_path(Path::new("notes/demo-1")), "notes/demo-1", "plain paths are not quoted");
}
