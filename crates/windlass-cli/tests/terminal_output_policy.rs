//! Only the terminal module writes: everything else goes through text that is escaped, and libraries write nothing.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::path::{Path, PathBuf};

/// Words with which a module could write to a terminal itself, or make a control sequence. They are compared without
/// case and spaces.
const FORBIDDEN: [&str; 22] = [
    "print!(",
    "println!(",
    "eprint!(",
    "eprintln!(",
    "dbg!(",
    "print!{",
    "println!{",
    "print![",
    "println![",
    "/dev/tty",
    "/dev/std",
    "/dev/fd",
    "/dev/pts",
    "/proc/self/fd",
    "\\x1b",
    "\\x9b",
    "\\u{1b}",
    "\\u{9b}",
    ".ansi()",
    "error.print()",
    "rustix::stdio",
    "fromrawfd",
];
/// Names of the standard streams. A module may use them as methods of a child process, and not as functions.
const STREAMS: [&str; 4] = ["stdout", "stderr", "Stdout", "Stderr"];
/// Modules that start programs, with the reason why these may write to the terminal, or cannot.
const STARTERS: [(&str, &str); 7] = [
    ("run_driver/argument_editor.rs", "the person's own editor, on a file"),
    ("command/talk.rs", "the person's own browser, without streams"),
    ("talk/scripted_voice.rs", "a speech program whose output is read"),
    ("demo/mod.rs", "this command itself"),
    ("command/init/first_steps.rs", "this command itself"),
    ("command/new/crate_source.rs", "git, whose output is read"),
    ("shell_words_tests.rs", "a shell of a test, whose output is read"),
];

/// Places outside `terminal/` that may use a word, each with the reason.
const EXCEPTIONS: [(&str, &str, &str); 2] = [
    ("run_driver/call_review_tests.rs", "\\u{1b}", "hostile texts of tests"),
    ("run_driver/call_review_tests.rs", "\\u{9b}", "hostile texts of tests"),
];

/// The crates that the command links. None of them writes to the terminal that the command writes to.
const LIBRARIES: [&str; 16] = [
    "windlass",
    "windlass-computer",
    "windlass-core",
    "windlass-html",
    "windlass-local",
    "windlass-macros",
    "windlass-mcp",
    "windlass-models",
    "windlass-net",
    "windlass-otel",
    "windlass-postgres",
    "windlass-realtime",
    "windlass-search",
    "windlass-server",
    "windlass-text",
    "windlass-tools",
];
/// Words with which a library could write to a standard stream.
const WRITING: [&str; 18] = [
    "print!(",
    "println!(",
    "eprint!(",
    "eprintln!(",
    "dbg!(",
    "print!{",
    "println!{",
    "print![",
    "println![",
    "/dev/tty",
    "/dev/std",
    "/dev/fd",
    "/dev/pts",
    "/proc/self/fd/1",
    "/proc/self/fd/2",
    "rustix::stdio",
    "from_raw_fd",
    "FromRawFd",
];
/// Types of the standard streams, which only their users name.
const STREAM_TYPES: [&str; 4] = ["Stdout", "Stderr", "StdoutLock", "StderrLock"];
/// Files of libraries that use a standard stream, with the reason.
const LIBRARY_EXCEPTIONS: [(&str, &str); 3] = [
    ("windlass-mcp/src/serve/mod.rs", "the protocol of an MCP server, which is a program of its own"),
    ("windlass-server/src/server.rs", "the path of a token, which the server has made"),
    ("windlass-tools/src/bin/windlass-sandbox.rs", "a program of its own, with a fixed text"),
];

/// Returns the words in a line of a library with which it writes to a standard stream.
fn writing_words(line: &str) -> Vec<&'static str> {
    // Comments have examples for applications.
    if line.trim_start().starts_with("//") {
        return Vec::new();
    }
    let packed: String = line.chars().filter(|letter| !letter.is_whitespace()).collect();
    let mut found: Vec<&str> = WRITING.into_iter().filter(|word| packed.contains(word)).collect();
    let is_word =
        |letter: Option<char>| letter.is_some_and(|letter| letter.is_alphanumeric() || letter == '_');
    // A function of that name is called, or imported. A method belongs to a child process.
    let is_import = packed.starts_with("usestd::io") || packed.starts_with("pubusestd::io");
    for stream in ["stdout", "stderr"] {
        found.extend(packed.match_indices(stream).filter_map(|(at, _)| {
            let (before, after) = (packed[..at].chars().next_back(), &packed[at + stream.len()..]);
            let is_call = after.starts_with("()") && before != Some('.') && !is_word(before);
            (is_call || is_import).then_some(stream)
        }));
    }
    for stream in STREAM_TYPES {
        found.extend(packed.match_indices(stream).filter_map(|(at, _)| {
            let (before, after) =
                (packed[..at].chars().next_back(), packed[at + stream.len()..].chars().next());
            (!is_word(before) && !is_word(after)).then_some(stream)
        }));
    }
    found
}

/// Returns the words in a line with which a module could go past the terminal module.
fn forbidden_words(name: &str, line: &str) -> Vec<String> {
    // Leading zeros in an escape change nothing.
    let without_spaces: String = line.chars().filter(|letter| !letter.is_whitespace()).collect();
    let mut packed = without_spaces.to_lowercase();
    while packed.contains("\\u{0") {
        packed = packed.replace("\\u{0", "\\u{");
    }
    let is_excepted = |word: &str| EXCEPTIONS.iter().any(|(file, used, _)| *file == name && *used == word);
    let words = FORBIDDEN.iter().filter(|word| packed.contains(**word) && !is_excepted(word));
    let mut found: Vec<String> = words.map(|word| (*word).to_owned()).collect();
    for stream in STREAMS {
        for (at, _) in line.match_indices(stream) {
            let is_letter =
                |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '.' || letter == '-';
            let before = line[..at].chars().next_back();
            let after = line[at + stream.len()..].chars().next();
            // A method or field of a child process, an option of a program, or a part of a longer name.
            if before.is_none_or(|letter| !is_letter(letter))
                && after.is_none_or(|letter| !letter.is_alphanumeric() && letter != '_')
            {
                found.push(stream.to_owned());
            }
        }
    }
    if without_spaces.contains("Command::new") && !STARTERS.iter().any(|(file, _)| *file == name) {
        found.push("Command::new".to_owned());
    }
    found
}

#[test]
fn only_the_terminal_module_writes() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    collect_files(&source, &mut files);
    assert!(files.len() > 40, "the files are found: {}", files.len());
    let mut found = Vec::new();
    for path in files {
        let name = path.strip_prefix(&source).expect("it is below").to_string_lossy().into_owned();
        if name.starts_with("terminal/") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("it can be read");
        for (number, line) in text.lines().enumerate() {
            let words = forbidden_words(&name, line).into_iter();
            found.extend(words.map(|word| format!("{name}:{}: {word}", number + 1)));
        }
    }
    assert!(found.is_empty(), "these lines go past the terminal module: {found:#?}");
}

#[test]
fn libraries_write_to_no_standard_stream() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the folder of the crates");
    let mut found = Vec::new();
    for library in LIBRARIES {
        let mut files = Vec::new();
        collect_files(&crates.join(library).join("src"), &mut files);
        for path in files {
            let name = path.strip_prefix(crates).expect("it is below").to_string_lossy().into_owned();
            if name.ends_with("_tests.rs") || LIBRARY_EXCEPTIONS.iter().any(|(file, _)| *file == name) {
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("it can be read");
            for (number, line) in text.lines().enumerate() {
                let words = writing_words(line).into_iter();
                found.extend(words.map(|word| format!("{name}:{}: {word}", number + 1)));
            }
        }
    }
    assert!(found.is_empty(), "these lines write past the command: {found:#?}");
    for line in [
        r#"println ! ("{name}");"#,
        "let out = std :: io :: stderr ();",
        r#"dbg!(value)"#,
        "use std::io::{Write, stderr};",
        "use std::io::stdout as out;",
        "stderr ().write_all(text)",
        "fn print(out: &mut std::io::Stdout) {",
        "let lock: StderrLock<'_> = out;",
        r#"File::options().write(true).open("/dev/tty")"#,
        r#"std::fs::write("/proc/self/fd/2", text)"#,
        "rustix::io::write(rustix::stdio::stderr(), text)",
    ] {
        assert!(!writing_words(line).is_empty(), "{line}");
    }
    for line in [
        "command.stdout(Stdio::piped())",
        "child.stderr().take()",
        "let stdout = output.stdout;",
        "struct StdoutTail {",
    ] {
        assert_eq!(writing_words(line), Vec::<&str>::new(), "{line}");
    }
    assert!(writing_words("/// println!(\"an example\");").is_empty());
}

#[test]
fn ways_around_the_terminal_module_are_found() {
    for line in [
        r#"println!("{name}");"#,
        r#"println ! ("{name}");"#,
        r#"println!{"{name}"}"#,
        "use std::io::stdout as out;",
        "use std::io::{Write, stderr};",
        "let mut out = std :: io :: stdout ();",
        "let out: std::io::Stdout = open();",
        r#"std::fs::write("/dev/stdout", text)"#,
        r#"OpenOptions::new().write(true).open("/proc/self/fd/1")"#,
        "rustix::io::write(rustix::stdio::stdout(), text)",
        r#"let red = "\x1B[31m";"#,
        r#"let red = "\u{001b}[31m";"#,
        r#"let red = "\u{009B}31m";"#,
        r#"std::process::Command::new("echo").arg(text).status()"#,
    ] {
        assert!(!forbidden_words("command/show.rs", line).is_empty(), "{line}");
    }
    for line in
        ["command.stdout(Stdio::piped())", r#".args(["--stdin", "--stdout"])"#, "term.is_stdout_terminal()"]
    {
        assert_eq!(forbidden_words("command/show.rs", line), Vec::<String>::new(), "{line}");
    }
}

fn collect_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("the folder is there") {
        let path = entry.expect("it can be read").path();
        if path.is_dir() {
            collect_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}
