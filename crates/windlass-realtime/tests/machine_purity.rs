//! Holds the session machine to its contract: it does no I/O, reads no clock, makes no random choice and awaits nothing.

use std::path::Path;

/// Words that stand for a clock, randomness, I/O or a runtime.
const FORBIDDEN: [&str; 17] = [
    "async",
    "await",
    "tokio",
    "Instant",
    "SystemTime",
    "HashMap",
    "HashSet",
    "RandomState",
    "uuid",
    "rand",
    "fs",
    "net",
    "env",
    "process",
    "thread",
    "println",
    "eprintln",
];

#[test]
fn the_session_machine_is_pure() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/machine");
    let mut files = 0;
    for entry in std::fs::read_dir(folder).expect("the machine has a folder") {
        let path = entry.expect("the folder can be listed").path();
        if path.to_string_lossy().ends_with("_tests.rs") {
            continue;
        }
        files += 1;
        let text = std::fs::read_to_string(&path).expect("the file can be read");
        for (line, code) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim_start().starts_with("//")) {
            let found = forbidden_word(code);
            assert_eq!(found, None, "{}:{line}: `{}`", path.display(), code.trim());
        }
    }
    assert!(files > 5, "the machine is where this test looks for it");
}

fn forbidden_word(code: &str) -> Option<&str> {
    code.split(|letter: char| !letter.is_alphanumeric() && letter != '_')
        .find(|word| FORBIDDEN.contains(word))
}

#[test]
fn forbidden_words_are_found() {
    assert_eq!(forbidden_word("let now = Instant::now();"), Some("Instant"));
    assert_eq!(forbidden_word("use std::fs::File;"), Some("fs"));
    assert_eq!(forbidden_word("let instants = 3;"), None);
}
