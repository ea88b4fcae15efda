//! Files of a workspace that tools must not change, and files whose change a person approves each time.
//!
//! **Invariant:** the classification depends on names alone, and for Git repositories on the names in their folder. No policy
//! changes it. The file tools and the sandbox of commands share it.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;

/// The protection of a path of the workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PathProtection {
    /// Tools never change it, for this reason.
    ReadOnly(&'static str),
    /// Every change requires approval, each time. Commands do not change it.
    AskEachTime,
}

/// Names that make a path read-only, wherever they occur in it.
const READ_ONLY_NAMES: [(&str, &str); 8] = [
    (".git", "belongs to Git, which executes its hooks and its configuration"),
    (".gitattributes", "selects programs that Git executes"),
    (".gitmodules", "selects repositories that Git fetches"),
    (".gitconfig", "belongs to Git, which executes its configuration"),
    (".hg", "belongs to Mercurial, which executes its hooks"),
    ("agent.toml", "has the rules for agents"),
    (".mcp.json", "names programs that agents start"),
    (".windlass", "has the record of the runs"),
];

/// The file by which Git recognises a folder as a repository, whose configuration it then executes.
const BARE_REPOSITORY_FILE: &str = "head";

/// The files and folders of a Git folder that determine the programs that Git executes.
pub(crate) const GIT_PROGRAM_PATHS: [&str; 8] =
    ["config", "config.worktree", "hooks", "info", "commondir", "gitdir", "worktrees", "modules"];

/// Names of files and folders that other agents and tools obey or execute.
const INSTRUCTION_NAMES: [&str; 23] = [
    "agents.md",
    "agents.override.md",
    "agent.md",
    "claude.md",
    "claude.local.md",
    "gemini.md",
    "skill.md",
    "copilot-instructions.md",
    ".cursorrules",
    ".windsurfrules",
    ".clinerules",
    ".goosehints",
    ".agents",
    ".aider.conf.yml",
    ".claude",
    ".codex",
    ".cursor",
    ".gemini",
    ".husky",
    ".vscode",
    ".idea",
    ".devcontainer",
    ".envrc",
];

/// Returns the protection of a path with these components, or `None`.
pub(crate) fn protection_of<'a>(parts: impl IntoIterator<Item = &'a str>) -> Option<PathProtection> {
    let mut found = None;
    let mut last = None;
    for part in parts {
        match protection_of_name(part) {
            Some(PathProtection::ReadOnly(reason)) => return Some(PathProtection::ReadOnly(reason)),
            Some(PathProtection::AskEachTime) => found = Some(PathProtection::AskEachTime),
            None => {}
        }
        last = Some(part);
    }
    if last.is_some_and(is_bare_repository_file) {
        return Some(PathProtection::ReadOnly("would make its folder a Git repository"));
    }
    found
}

/// Returns true if a file of this name makes its folder a Git repository, together with `objects` and `refs`.
fn is_bare_repository_file(name: &str) -> bool {
    folded_name(name) == BARE_REPOSITORY_FILE
}

/// Returns the protection of a path beneath a folder, with these components, by which a Git folder of any name selects
/// programs, as `.bare/config`.
pub(crate) fn repository_protection_of<'a>(
    root: &Path,
    parts: impl IntoIterator<Item = &'a str>,
) -> Option<PathProtection> {
    let mut folder = root.to_owned();
    for part in parts {
        if GIT_PROGRAM_PATHS.contains(&folded_name(part).as_str())
            && BareRepository::of_folder(&folder).is_whole()
        {
            return Some(PathProtection::ReadOnly("belongs to a Git repository, which executes it"));
        }
        folder.push(part);
    }
    None
}

/// The parts by which Git takes a folder for a repository of its own, whose configuration it executes.
#[derive(Default)]
pub(crate) struct BareRepository {
    heads: Vec<OsString>,
    has_objects: bool,
    has_references: bool,
}

impl BareRepository {
    fn of_folder(folder: &Path) -> Self {
        let mut found = Self::default();
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            found.add(&entry.file_name());
        }
        found
    }

    /// Adds the name of a file or folder in the folder.
    pub(crate) fn add(&mut self, name: &OsStr) {
        if is_bare_repository_file(&name.to_string_lossy()) {
            self.heads.push(name.to_owned());
        }
        self.has_objects |= name.eq_ignore_ascii_case("objects");
        self.has_references |= name.eq_ignore_ascii_case("refs");
    }

    fn is_whole(&self) -> bool {
        !self.heads.is_empty() && self.has_objects && self.has_references
    }

    /// Returns the names in the folder that commands do not change.
    pub(crate) fn protected_parts(self) -> Vec<OsString> {
        if !self.is_whole() {
            return Vec::new();
        }
        let programs = ["config", "config.worktree", "hooks"].map(OsString::from);
        self.heads.into_iter().chain(programs).collect()
    }
}

/// Returns the protection that one name gives to itself and to everything beneath it.
pub(crate) fn protection_of_name(name: &str) -> Option<PathProtection> {
    let name = folded_name(name);
    if let Some((_, reason)) = READ_ONLY_NAMES.iter().find(|(known, _)| *known == name) {
        return Some(PathProtection::ReadOnly(reason));
    }
    INSTRUCTION_NAMES.contains(&name.as_str()).then_some(PathProtection::AskEachTime)
}

/// Returns a name as file systems that ignore case and invisible characters compare it.
fn folded_name(name: &str) -> String {
    let is_invisible = |c: &char| matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    let name: String = name.chars().filter(|c| !is_invisible(c)).flat_map(char::to_lowercase).collect();
    // Some file systems drop trailing dots and spaces.
    name.trim_end_matches(['.', ' ']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::{PathProtection, protection_of};

    fn protection(path: &str) -> Option<PathProtection> {
        protection_of(path.split('/'))
    }

    #[test]
    fn rules_and_programs_of_git_are_read_only_under_every_spelling() {
        for path in [
            ".git/hooks/pre-commit",
            ".GIT/config",
            "sub/.git",
            ".g\u{200c}it/config",
            ".git./config",
            "agent.toml",
            "deep/Agent.TOML",
            ".mcp.json",
            ".gitattributes",
            "sub/HEAD",
            ".windlass/runs.db",
            ".claude/.git/config",
        ] {
            assert!(matches!(protection(path), Some(PathProtection::ReadOnly(_))), "{path}");
        }
    }

    #[test]
    fn instructions_are_asked_about_and_ordinary_files_are_not() {
        for path in ["AGENTS.md", "sub/claude.md", ".claude/settings.json", ".github/copilot-instructions.md"]
        {
            assert_eq!(protection(path), Some(PathProtection::AskEachTime), "{path}");
        }
        for path in ["src/main.rs", "git", "agents.txt", ".gitignore", "HEAD/readme.md", "head.rs"] {
            assert_eq!(protection(path), None, "{path}");
        }
    }
}
