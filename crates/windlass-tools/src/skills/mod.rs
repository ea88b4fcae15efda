//! Skills: folders with instructions, files and scripts that an agent loads when it needs them (`SKILL.md`).

mod front_matter;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use windlass::core::provenance::ContentSource;
use windlass::core::tool::ToolEffect;
use windlass::tool::Tool;

use crate::command::{CommandRequest, CommandToolOutput, execute};
use crate::error::{SkillError, ToolRefusal};
use crate::files::{WalkControl, WorkspacePath};
use crate::policy::BuiltInApprovalPolicy;
use crate::read::{ReadFile, read_lines};
use crate::sandbox::GitAccess;
use crate::workspace::Workspace;
use front_matter::parse_skill;

/// The file with the name, the description and the instructions of a skill.
const SKILL_FILE: &str = "SKILL.md";
const LOAD_SKILL: &str = "load_skill";
const READ_SKILL_FILE: &str = "read_skill_file";
const RUN_SKILL_SCRIPT: &str = "run_skill_script";
/// Maximum number of files of a skill that are listed.
const MAX_LISTED_FILES: usize = 200;

/// Programs that run scripts, by the extension of their names.
const INTERPRETERS: [(&str, &str); 7] = [
    ("py", "python3"),
    ("sh", "sh"),
    ("bash", "bash"),
    ("js", "node"),
    ("mjs", "node"),
    ("rb", "ruby"),
    ("pl", "perl"),
];

/// Folders with skills. Each skill is a folder with a `SKILL.md`: YAML front matter with a name and a description, then
/// instructions. Other files and scripts may lie beside it.
///
/// The model sees names and descriptions. `load_skill` shows the instructions of one skill and loads the tools
/// `read_skill_file` and `run_skill_script`, which are [deferred](windlass::tool::Tool::deferred) until then. All of it is
/// in the journal, so that a resumed run goes on with the skills that it had loaded. Files outside a skill's folder cannot
/// be reached by `..`, absolute paths or links. Scripts run in the sandbox of the workspace, where they can read but not
/// change their skill, and need the same approval as commands.
///
/// ```
/// use windlass::prelude::*;
/// use windlass_tools::{Skills, Workspace};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let skill = folder.path().join("skills/knots");
/// # std::fs::create_dir_all(&skill)?;
/// # std::fs::create_dir(folder.path().join("work"))?;
/// # std::fs::write(skill.join("SKILL.md"), "---\nname: knots\ndescription: Ties ropes.\n---\nUse a bowline.\n")?;
/// # let folder = folder.path();
/// let skills = Skills::open(folder.join("skills"))?;
/// let workspace = Workspace::new(folder.join("work"))?.skills(skills);
/// let model = ScriptedModel::new([
///     ScriptedResponse::call("c1", "load_skill", json!({ "name": "knots" })),
///     ScriptedResponse::text("A bowline."),
/// ]);
/// let agent = Agent::new("deckhand").model(model.clone()).tools(workspace.skill_tools());
///
/// assert_eq!(agent.run("How do I tie the rope?").await?.output_text()?, "A bowline.");
/// assert!(model.requests()[1].input_text()[2].contains("Use a bowline."));
/// assert_eq!(model.requests()[1].tools, ["load_skill", "read_skill_file", "run_skill_script"]);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Skills {
    skills: Arc<[Skill]>,
    /// The folders that they were opened from, in which a new folder is a new skill.
    folders: Arc<[PathBuf]>,
}

/// A skill.
#[derive(Clone, Debug)]
pub struct Skill {
    name: String,
    description: String,
    /// The folder of the skill, as a workspace that is only read.
    files: Workspace,
}

impl Skill {
    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the description, by which the model decides to load the skill.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Returns the folder.
    pub fn folder(&self) -> &Path {
        self.files.folder()
    }

    /// Opens a folder. The name of a skill is that of its folder.
    fn open(folder: &Path) -> Result<Self, SkillError> {
        let invalid = |reason: String| SkillError::Invalid { folder: folder.to_owned(), reason };
        let files = Workspace::new(folder).map_err(|error| invalid(error.to_string()))?;
        let text = read_skill_text(&files).map_err(|refusal| invalid(refusal.to_string()))?;
        let (front, _) = parse_skill(&text).map_err(invalid)?;
        if folder.file_name().is_none_or(|name| name != front.name.as_str()) {
            return Err(invalid(format!("its name is `{}`, and its folder has another one", front.name)));
        }
        Ok(Self { name: front.name, description: front.description, files })
    }

    /// Returns the instructions, and the list of the other files.
    fn load(&self) -> Result<String, ToolRefusal> {
        let text = read_skill_text(&self.files)?;
        let (_, instructions) = parse_skill(&text).map_err(|reason| ToolRefusal::InvalidArguments {
            reason: format!("`{SKILL_FILE}`: {reason}"),
        })?;
        let files = self.list_files()?;
        let mut shown = format!("Skill `{}`\n\n{instructions}", self.name);
        if !files.is_empty() {
            shown.push_str(&format!(
                "\n\nFiles of the skill, for {READ_SKILL_FILE} and {RUN_SKILL_SCRIPT}:\n- {}",
                files.join("\n- ")
            ));
        }
        Ok(shown)
    }

    fn list_files(&self) -> Result<Vec<String>, ToolRefusal> {
        let root = self.files.open_folder(None)?;
        let mut files = Vec::new();
        self.files.walk(&root, &mut |entry| {
            if files.len() >= MAX_LISTED_FILES {
                files.push("…".to_owned());
                return WalkControl::Stop;
            }
            let path = entry.path.to_string();
            if !entry.is_folder && path != SKILL_FILE {
                files.push(path);
            }
            WalkControl::Continue
        })?;
        Ok(files)
    }

    /// Returns the program and the absolute path of a script.
    fn find_script(&self, path: &str) -> Result<(String, PathBuf), ToolRefusal> {
        let place = self.files.file_path(path)?;
        // The file is opened beneath the folder of the skill, so that no link leads out of it.
        let real = self.files.resolve_file(&place)?;
        let absolute = self.folder().join(real.as_path());
        let extension = Path::new(real.as_path()).extension().and_then(|extension| extension.to_str());
        let interpreter = INTERPRETERS.iter().find(|(known, _)| Some(*known) == extension);
        if let Some((_, program)) = interpreter {
            return Ok(((*program).to_owned(), absolute));
        }
        let is_executable = std::fs::metadata(&absolute)
            .is_ok_and(|file| std::os::unix::fs::PermissionsExt::mode(&file.permissions()) & 0o111 != 0);
        if is_executable {
            return Ok((absolute.to_string_lossy().into_owned(), absolute));
        }
        let reason = format!(
            "`{place}` is no script: it is not executable, and no interpreter is known for its name; read it with {READ_SKILL_FILE}"
        );
        Err(ToolRefusal::InvalidArguments { reason })
    }
}

fn read_skill_text(files: &Workspace) -> Result<String, ToolRefusal> {
    files.read_text(&files.file_path(SKILL_FILE)?, LOAD_SKILL)
}

/// Arguments of `read_skill_file`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ReadSkillFile {
    /// The skill.
    skill: String,
    /// The file, relative to the skill.
    path: String,
    /// The first line to show, counted from 1. Without it: the first.
    from_line: Option<usize>,
    /// How many lines to show. Without it: as many as are shown at once.
    lines: Option<usize>,
}

/// Arguments of `run_skill_script`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RunSkillScript {
    /// The skill.
    skill: String,
    /// The script, relative to the skill.
    script: String,
    /// Its arguments, each as it is: no shell reads them.
    args: Option<Vec<String>>,
    /// Where to run, relative to the workspace. Without it: the workspace.
    folder: Option<String>,
    /// How long it may take, in seconds.
    seconds: Option<u64>,
}

impl Skills {
    /// Opens the skills in a folder: its folders with a `SKILL.md`. Links are not followed.
    ///
    /// # Errors
    ///
    /// Returns an error if the folder cannot be read, or a skill in it is invalid.
    pub fn open(folder: impl AsRef<Path>) -> Result<Self, SkillError> {
        Self::default().and_open(folder)
    }

    /// Adds the skills in another folder.
    ///
    /// # Errors
    ///
    /// As [`Skills::open`], and if two skills have the same name.
    pub fn and_open(self, folder: impl AsRef<Path>) -> Result<Self, SkillError> {
        let folder = folder.as_ref();
        let unreadable = |source| SkillError::Unreadable { folder: folder.to_owned(), source };
        let mut folders = Vec::new();
        for entry in std::fs::read_dir(folder).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            let is_folder = entry.file_type().map_err(unreadable)?.is_dir();
            if is_folder && entry.path().join(SKILL_FILE).symlink_metadata().is_ok() {
                folders.push(entry.path());
            }
        }
        // The order of a folder is not stable, and the beginning of a prompt must be.
        folders.sort();
        let mut skills = self.skills.to_vec();
        for folder in folders {
            let skill = Skill::open(&folder)?;
            if skills.iter().any(|known| known.name == skill.name) {
                let reason = "another skill has the same name".to_owned();
                return Err(SkillError::Invalid { folder, reason });
            }
            skills.push(skill);
        }
        let folders = self.folders.iter().cloned().chain([folder.canonicalize().map_err(unreadable)?]);
        Ok(Self { skills: skills.into(), folders: folders.collect() })
    }

    /// Returns the skills, in the order in which the model sees them.
    pub fn iter(&self) -> impl Iterator<Item = &Skill> {
        self.skills.iter()
    }

    fn find(&self, name: &str) -> Result<&Skill, ToolRefusal> {
        self.skills.iter().find(|skill| skill.name == name).ok_or_else(|| {
            let known: Vec<&str> = self.skills.iter().map(Skill::name).collect();
            let reason = format!("there is no skill of that name: there are {}", known.join(", "));
            ToolRefusal::InvalidArguments { reason }
        })
    }

    /// Returns the tools of the skills. Scripts run in the sandbox of the workspace.
    pub(crate) fn tools<C: Send + Sync + 'static>(&self, workspace: &Workspace) -> Vec<Tool<C>> {
        if self.skills.is_empty() {
            return Vec::new();
        }
        vec![self.load_skill(), self.read_skill_file(), self.run_skill_script(workspace)]
    }

    fn load_skill<C: Send + Sync + 'static>(&self) -> Tool<C> {
        let entries: Vec<String> =
            self.skills.iter().map(|skill| format!("- {}: {}", skill.name, skill.description)).collect();
        let description = format!(
            "Shows the instructions of a skill. Load a skill before you begin a task that its description fits.\n\n\
             Skills:\n{}",
            entries.join("\n")
        );
        let names: Vec<&str> = self.skills.iter().map(Skill::name).collect();
        let schema = json!({
            "type": "object",
            "properties": { "name": { "type": "string", "enum": names } },
            "required": ["name"],
            "additionalProperties": false,
        });
        let skills = self.clone();
        Tool::dynamic(LOAD_SKILL, &description, schema, move |_, arguments: Value| {
            let skills = skills.clone();
            async move {
                let name = arguments["name"].as_str().unwrap_or_default().to_owned();
                let loaded = tokio::task::spawn_blocking(move || skills.find(&name)?.load()).await;
                let loaded = loaded.unwrap_or_else(|error| {
                    Err(ToolRefusal::CommandNotRun { reason: format!("the skill was not read: {error}") })
                });
                loaded.map_err(ToolRefusal::into_tool_error)
            }
        })
        .effect(ToolEffect::Pure)
        .content_source(ContentSource::File)
        .loads([READ_SKILL_FILE, RUN_SKILL_SCRIPT])
    }

    fn read_skill_file<C: Send + Sync + 'static>(&self) -> Tool<C> {
        let skills = self.clone();
        Tool::blocking(
            READ_SKILL_FILE,
            "Reads a text file of a skill that was loaded.",
            move |_, asked: ReadSkillFile| {
                let skill = skills.find(&asked.skill).map_err(ToolRefusal::into_tool_error)?;
                let file = ReadFile { path: asked.path, from_line: asked.from_line, lines: asked.lines };
                let shown = read_lines(&skill.files, &file).map_err(|refusal| of_skill(refusal, &skill.name));
                shown.map_err(ToolRefusal::into_tool_error)
            },
        )
        .effect(ToolEffect::Pure)
        .content_source(ContentSource::File)
        .deferred()
    }

    fn run_skill_script<C: Send + Sync + 'static>(&self, workspace: &Workspace) -> Tool<C> {
        let (skills, here, rule) = (self.clone(), workspace.clone(), workspace.command_approval.clone());
        let tool = Tool::function(
            RUN_SKILL_SCRIPT,
            "Runs a script of a skill that was loaded, in the workspace and without input, and tells its exit code and \
             output. It may write only in the workspace, and processes that it leaves behind are ended.",
            move |_, asked: RunSkillScript| {
                let (skills, here) = (skills.clone(), here.clone());
                async move { skills.run_script(&here, asked).await.map_err(ToolRefusal::into_tool_error) }
            },
        )
        .content_source(ContentSource::Command)
        .without_standing_approvals()
        .needs_approval_if(move |asked: &RunSkillScript| match &rule {
            BuiltInApprovalPolicy::Always => true,
            BuiltInApprovalPolicy::Never => false,
            BuiltInApprovalPolicy::ExceptFor(commands) => {
                // Only a script without arguments is the same command each time.
                let script = format!("{}/{}", asked.skill, asked.script);
                asked.args.iter().any(|args| !args.is_empty()) || !commands.contains(&script)
            }
        })
        // Scripts are commands: they may change the same files.
        .conflict_key(|_: &RunSkillScript| "commands".to_owned())
        .deferred();
        workspace.sandbox.apply_to(tool)
    }

    async fn run_script(
        &self,
        workspace: &Workspace,
        asked: RunSkillScript,
    ) -> Result<CommandToolOutput, ToolRefusal> {
        let skill = self.find(&asked.skill)?;
        let found = skill.find_script(&asked.script).map_err(|refusal| of_skill(refusal, &skill.name));
        let (program, script) = found?;
        let is_direct = Path::new(&program) == script;
        let mut args = asked.args.unwrap_or_default();
        if !is_direct {
            args.insert(0, script.to_string_lossy().into_owned());
        }
        let mut workspace = workspace.clone();
        workspace.sandbox = workspace.sandbox.allow_read(skill.folder());
        let request = CommandRequest {
            program,
            args,
            folder: asked.folder.as_deref(),
            timeout: asked.seconds.map(Duration::from_secs),
            git_access: GitAccess::ReadOnly,
        };
        execute(&workspace, request).await
    }
}

/// Rewords a refusal of a path of a skill: the messages of the file tools speak of the workspace.
fn of_skill(refusal: ToolRefusal, skill: &str) -> ToolRefusal {
    let (path, reason) = match refusal {
        ToolRefusal::InvalidPath { path, reason } => (path, reason),
        ToolRefusal::NotFound { path } => (path, "is not there"),
        ToolRefusal::LinkRefused { path, .. } => (path, "is a link that leads out of the skill"),
        other => return other,
    };
    let reason = format!("`{path}` {reason}: give a path of the skill `{skill}`, as {LOAD_SKILL} lists them");
    ToolRefusal::InvalidArguments { reason }
}

impl Workspace {
    /// Adds skills. The folders that they were opened from become read-only for the file tools and for commands, so that
    /// nothing in the workspace adds a skill. Of a folder that has the workspace in it, only the skills do.
    #[must_use]
    pub fn skills(mut self, skills: Skills) -> Self {
        let around: Vec<&PathBuf> =
            skills.folders.iter().filter(|folder| !self.folder().starts_with(folder)).collect();
        let alone = skills.iter().map(Skill::folder);
        let alone = alone.filter(|skill| !around.iter().any(|folder| skill.starts_with(folder)));
        let read_only: Vec<PathBuf> =
            alone.map(Path::to_owned).chain(around.iter().map(|folder| folder.to_path_buf())).collect();
        for folder in read_only {
            self = self.protect(folder);
        }
        self.skills = skills;
        self
    }

    /// Returns the tools that load skills, read their files and run their scripts; none if there are no skills.
    pub fn skill_tools<C: Send + Sync + 'static>(&self) -> Vec<Tool<C>> {
        self.skills.tools(self)
    }

    /// Returns the path of a file with all links resolved.
    fn resolve_file(&self, place: &WorkspacePath) -> Result<WorkspacePath, ToolRefusal> {
        let file = self.root().open_file(place)?;
        Ok(self.root().resolve_opened(&file).unwrap_or_else(|| place.clone()))
    }
}
