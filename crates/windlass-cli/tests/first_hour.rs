//! The README and the quickstart, followed to the letter: their commands are typed into a shell in an empty folder
//! outside the repository, with a clone beside it, and their programs are built with their dependency lines.
//!
//! It installs the command as a user does, which takes minutes, so it runs only if `WINDLASS_FIRST_HOUR` is set
//! (`./check --long`).

#![cfg(unix)]
#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod pty_screen;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use pty_screen::PtyScreen;
use windlass_models::testing::{FAKE_KEY, FakeProvider, FakeReply};

const FIRST_HOUR_VARIABLE: &str = "WINDLASS_FIRST_HOUR";
/// Time without a sign of life after which the test fails: a linker is silent for long.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(20 * 60);

/// A person at a shell with a toolchain, the registries, and a clone of the repository.
struct Newcomer {
    shell: PtyScreen,
    home: tempfile::TempDir,
    /// The commands that were typed.
    typed: Vec<String>,
}

impl Newcomer {
    fn new() -> Self {
        let home = tempfile::tempdir().expect("there is room");
        let root = home.path().canonicalize().expect("it is there");
        copy_repository(&root.join("windlass"));
        let cargo = PathBuf::from(env!("CARGO"));
        let own_home = std::env::var("HOME").unwrap_or_default();
        let var = |name: &str, default: String| std::env::var(name).unwrap_or(default);
        let tools = cargo.parent().expect("cargo is in a folder").display();
        let cargo_home = var("CARGO_HOME", format!("{own_home}/.cargo"));
        let variables = [
            ("HOME", root.display().to_string()),
            ("PATH", format!("{}/installed/bin:{cargo_home}/bin:{tools}:/usr/bin:/bin", root.display())),
            // The registries' files are shared; what is installed is not.
            ("CARGO_HOME", cargo_home),
            ("RUSTUP_HOME", var("RUSTUP_HOME", format!("{own_home}/.rustup"))),
            ("CARGO_INSTALL_ROOT", root.join("installed").display().to_string()),
            // Kept between runs of the test, so that only the first one builds everything.
            ("CARGO_TARGET_DIR", format!("{}/first-hour", env!("CARGO_TARGET_TMPDIR"))),
            // What is installed is tried, and its speed does not matter.
            ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0".to_owned()),
            ("CARGO_PROFILE_RELEASE_LTO", "off".to_owned()),
            ("CARGO_PROFILE_RELEASE_DEBUG", "none".to_owned()),
            // Probes for local servers find nobody, whatever runs on this machine.
            ("OLLAMA_HOST", "127.0.0.1:9".to_owned()),
            ("LMSTUDIO_BASE_URL", "127.0.0.1:9".to_owned()),
            ("LLAMACPP_BASE_URL", "127.0.0.1:9".to_owned()),
            ("VLLM_BASE_URL", "127.0.0.1:9".to_owned()),
        ];
        let mut shell = PtyScreen::start_shell(&root, 200, 140, &variables, SILENCE_TIMEOUT);
        shell.wait_for("[exit 0]");
        Self { shell, home, typed: Vec::new() }
    }

    fn folder(&self) -> PathBuf {
        self.home.path().canonicalize().expect("it is there")
    }

    /// Types a command on a clear screen.
    fn type_command(&mut self, command: &str) {
        let _ = writeln!(std::io::stderr(), "first hour: {command}");
        self.shell.type_keys("\x0c");
        while self.shell.screen_text().lines().count() != 1 {
            self.shell.wait_for_change();
        }
        self.typed.push(command.to_owned());
        self.shell.type_keys(command);
        self.shell.type_keys("\n");
    }

    /// Waits for the prompt of the shell, and returns the screen. The command must have succeeded.
    fn wait_for_end(&mut self) -> String {
        loop {
            let shown = self.shell.screen_text();
            let last = shown.lines().next_back().unwrap_or_default();
            if shown.lines().count() > 1 && last.starts_with("[exit ") && last.ends_with(']') {
                assert_eq!(last, "[exit 0]", "{shown}");
                return shown;
            }
            self.shell.wait_for_change();
        }
    }

    /// Types a command that asks nothing.
    fn run(&mut self, command: &str) -> String {
        self.type_command(command);
        self.wait_for_end()
    }

    /// Types a command of a page, and answers what it asks.
    fn follow(&mut self, command: &str) {
        match command {
            "windlass demo" => {
                self.type_command(command);
                self.shell.wait_for_question("Allow it?");
                self.shell.type_keys("y\n");
                self.shell.wait_for("Press Enter to resume the run.");
                self.shell.type_keys("\n");
                let shown = self.wait_for_end();
                assert!(shown.contains("each exactly once"), "{shown}");
            }
            "windlass demo --by-hand" => {
                self.type_command(command);
                self.shell.wait_for_question("Allow it?");
                self.shell.type_keys("y\n");
                self.shell.wait_for("kill -9 ");
                let shown = self.shell.screen_text();
                let pid = shown.split("kill -9 ").nth(1).and_then(|rest| {
                    rest.split(|letter: char| !letter.is_ascii_digit()).next().map(str::to_owned)
                });
                let killed = Command::new("kill").args(["-9", &pid.expect("a process id")]).status();
                assert!(killed.expect("it runs").success());
                self.shell.wait_for("Press Enter to resume the run.");
                self.shell.type_keys("\n");
                assert!(self.wait_for_end().contains("each exactly once"));
            }
            "windlass init" => {
                self.type_command(command);
                while self.shell.screen_text().matches("Allow it?").count() < 2 {
                    self.shell.wait_for_change();
                }
                self.shell.wait_for_question("Allow it?");
                self.shell.type_keys("y\n");
                let shown = self.wait_for_end();
                assert!(shown.contains("the change happened once, after you approved it"), "{shown}");
            }
            "windlass chat" => {
                self.type_command(command);
                self.shell.wait_for_prompt();
                self.shell.type_keys("/help\n");
                self.shell.wait_for("/undo");
                self.shell.type_keys("/quit\n");
                self.wait_for_end();
            }
            command if command.ends_with("cargo test && cargo run") => {
                let shown = self.run(command);
                assert!(shown.contains("2 passed"), "{shown}");
                assert!(shown.contains("Rope was running out. I ordered 20."), "{shown}");
            }
            command => drop(self.run(command)),
        }
    }
}

/// Copies the files of the repository, as a clone of it has them.
fn copy_repository(target: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let listed = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(&root)
        .output()
        .expect("there is git");
    assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    for path in String::from_utf8(listed.stdout).expect("names are text").split_terminator('\0') {
        let place = target.join(path);
        std::fs::create_dir_all(place.parent().expect("it is in a folder")).expect("there is room");
        // A file that was deleted and not committed is not there.
        if root.join(path).is_file() {
            std::fs::copy(root.join(path), place).expect("it can be copied");
        }
    }
}

fn read_page(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::fs::read_to_string(root.join(path)).expect("the page is there")
}

/// Returns the fenced blocks of a page whose language begins with `language`.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(named) = line.strip_prefix("```").filter(|named| !named.is_empty()) {
            let block: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            if named.starts_with(language) {
                found.push(block.join("\n"));
            }
        }
    }
    found
}

/// Returns the commands of a page's shell blocks, without their comments.
fn commands(page: &str) -> Vec<String> {
    let lines: Vec<String> =
        blocks(page, "sh").iter().flat_map(|block| block.lines().map(str::to_owned)).collect();
    let bare = lines.iter().map(|line| line.split("  #").next().unwrap_or_default().trim().to_owned());
    bare.filter(|line| !line.is_empty() && !line.starts_with('#')).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_readme_and_the_quickstart_work_to_the_letter() {
    if std::env::var_os(FIRST_HOUR_VARIABLE).is_none() {
        let text = "not shown: the README was not followed, because WINDLASS_FIRST_HOUR is not set";
        let _ = writeln!(std::io::stderr(), "{text}");
        return;
    }
    let replies = [
        FakeReply::call("c1", "stock", r#"{"article":"rope"}"#),
        FakeReply::text("There is enough rope."),
        FakeReply::call("c1", "refund", r#"{"order":"7","cents":900}"#),
        FakeReply::text("Order 7 is refunded."),
    ];
    let provider = FakeProvider::start(replies).await.expect("there is a port");
    let url = provider.base_url();
    let followed = tokio::task::spawn_blocking(move || follow_pages(&url));
    followed.await.expect("it ends");
    assert_eq!(provider.requests().len(), 4);
}

fn follow_pages(provider_url: &str) {
    let (readme, quickstart) = (read_page("README.md"), read_page("docs/guide/quickstart.md"));
    let mut newcomer = Newcomer::new();
    newcomer.run("cd windlass");
    for command in commands(&readme) {
        newcomer.follow(&command);
    }
    newcomer.run("cd ~ && mkdir elsewhere && cd elsewhere");
    for command in commands(&quickstart) {
        if command.starts_with("cargo install") {
            // Once is enough; the README's line is the same.
            assert!(newcomer.typed.contains(&command), "{command}");
        } else if command.starts_with("cargo run --features models") {
            newcomer.run(&format!("export OPENAI_API_KEY={FAKE_KEY} OPENAI_BASE_URL={provider_url}"));
            let shown = newcomer.run(&command);
            assert!(shown.contains("There is enough rope."), "{shown}");
        } else {
            newcomer.follow(&command);
        }
    }

    // The program of the README in a project of one's own, with the dependency lines of the README.
    newcomer.run("cd ~ && cargo new --quiet refunds && cd refunds");
    let project = newcomer.folder().join("refunds");
    let manifest = std::fs::read_to_string(project.join("Cargo.toml")).expect("cargo made it");
    let (package, _) = manifest.split_once("[dependencies]").expect("cargo writes the table");
    let dependencies = blocks(&readme, "toml").remove(0);
    std::fs::write(project.join("Cargo.toml"), format!("{package}{dependencies}\n")).expect("there is room");
    std::fs::write(project.join("src/main.rs"), blocks(&readme, "rust").remove(0)).expect("there is room");
    let shown = newcomer.run("cargo run");
    assert!(shown.contains("Order 7 is refunded."), "{shown}");
}
