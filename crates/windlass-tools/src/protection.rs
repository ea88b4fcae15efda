//! Files of a workspace that tools must not change, and files whose change a person approves each time.
//!
//! **Invariant:** the classification depends on names alone, and no policy changes it. The file tools and the
//! sandbox of commands share it.

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
pub(crate) fn is_bare_repository_file(name: &str) -> bool {
    folded_name(name) == BARE_REPOSITORY_FILE
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
