//! Skills: what the model sees of them, what it loads, scripts in the sandbox, and paths that lead out of a skill.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod support;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use support::{call_tool, open_workspace};
use tempfile::{TempDir, tempdir};
use windlass::core::decision::{Decision, DecisionScope};
use windlass::prelude::*;
use windlass::store::{SqliteStore, Store, post_decision};
use windlass_tools::{BuiltInApprovalPolicy, Skills, Workspace};

/// Writes a skill with a script and a reference.
fn write_skill(skills: &Path, name: &str, description: &str) {
    let folder = skills.join(name);
    fs::create_dir_all(folder.join("scripts")).expect("made");
    let text = format!(
        "---\nname: {name}\ndescription: {description}\n---\n# How to\nCount with `scripts/count.sh`.\n"
    );
    fs::write(folder.join("SKILL.md"), text).expect("written");
    fs::write(folder.join("reference.md"), "One, two, three.\n").expect("written");
    let script = "echo \"$1 in $(pwd)\"; cat \"$(dirname \"$0\")/../reference.md\"; echo x > counted.txt; \
                  echo changed > \"$0\" || echo refused\n";
    fs::write(folder.join("scripts/count.sh"), script).expect("written");
}

/// Creates a workspace beside a folder with skills, and a secret outside both.
fn make_world() -> (TempDir, Workspace) {
    let world = tempdir().expect("a folder");
    fs::create_dir(world.path().join("work")).expect("made");
    fs::write(world.path().join("secret.txt"), "secret\n").expect("written");
    write_skill(&world.path().join("skills"), "counting", "Counts things.");
    write_skill(
        &world.path().join("skills"),
        "adding",
        "Adds numbers: all of them.".replace(':', ",").as_str(),
    );
    let skills = Skills::open(world.path().join("skills")).expect("skills");
    let workspace = open_workspace(&world.path().join("work")).skills(skills);
    (world, workspace)
}

fn script_arguments(skill: &str, script: &str) -> Value {
    json!({ "skill": skill, "script": script, "args": ["six"] })
}

#[tokio::test]
async fn the_model_sees_descriptions_and_loads_the_rest() {
    let (_world, workspace) = make_world();
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "load_skill", json!({ "name": "counting" })),
        ScriptedResponse::call(
            "c2",
            "read_skill_file",
            json!({ "skill": "counting", "path": "reference.md" }),
        ),
        ScriptedResponse::text("Done."),
    ]);
    let agent = Agent::new("clerk").model(model.clone()).tools(workspace.skill_tools());
    agent.run("Count.").await.expect("it ends");
    let requests = model.requests();
    assert_eq!(requests[0].tools, ["load_skill"], "one tool for all skills");
    let description = &requests[0].tool_definitions[0].description;
    assert!(
        description.ends_with("- adding: Adds numbers, all of them.\n- counting: Counts things."),
        "{description}"
    );
    assert!(!description.contains("How to"), "the instructions are not in the prompt");
    let names = &requests[0].tool_definitions[0].parameters["properties"]["name"]["enum"];
    assert_eq!(*names, json!(["adding", "counting"]));
    assert_eq!(requests[1].tools, ["load_skill", "read_skill_file", "run_skill_script"]);
    let loaded = requests[1].input_text().pop().expect("an output");
    assert!(loaded.contains("Count with `scripts/count.sh`."), "{loaded}");
    assert!(loaded.ends_with("- reference.md\n- scripts/count.sh"), "{loaded}");
    assert!(requests[2].input_text().pop().expect("an output").ends_with("One, two, three.\n"));
}

#[tokio::test]
async fn a_script_runs_in_the_sandbox_of_the_workspace() {
    let (world, workspace) = make_world();
    let told =
        call_tool(&workspace, "run_skill_script", script_arguments("counting", "scripts/count.sh")).await;
    let told: Value = serde_json::from_str(&told).unwrap_or_else(|_| panic!("it ran: {told}"));
    let stdout = told["stdout"].as_str().expect("text");
    assert!(stdout.starts_with("six in /") && stdout.contains("One, two, three."), "{told}");
    assert_eq!(fs::read_to_string(world.path().join("work/counted.txt")).expect("written"), "x\n");
    let script = world.path().join("skills/counting/scripts/count.sh");
    if told["confined"] != "none" {
        assert!(stdout.ends_with("refused\n"), "a script cannot change its skill: {told}");
        assert!(fs::read_to_string(&script).expect("text").starts_with("echo \"$1"));
        // The secret is beside the skills, and neither readable nor named.
        fs::write(&script, "cat \"$(dirname \"$0\")/../../../secret.txt\"\n").expect("written");
        let told =
            call_tool(&workspace, "run_skill_script", script_arguments("counting", "scripts/count.sh")).await;
        assert!(!told.contains("secret\\n") && !told.contains("\"exit_code\":0"), "{told}");
    }
}

#[tokio::test]
async fn no_path_leads_out_of_a_skill() {
    let (world, workspace) = make_world();
    let skill = world.path().join("skills/counting");
    symlink(world.path().join("secret.txt"), skill.join("link.txt")).expect("linked");
    symlink(world.path().join("secret.txt"), skill.join("link.sh")).expect("linked");
    symlink(world.path(), skill.join("up")).expect("linked");
    symlink("reference.md", skill.join("inside.md")).expect("linked");
    let absolute = world.path().join("secret.txt").to_string_lossy().into_owned();
    let ways = [
        "../../secret.txt",
        "scripts/../../../secret.txt",
        "link.txt",
        "link.sh",
        "up/secret.txt",
        &absolute,
        "..",
        "",
    ];
    for path in ways {
        for (tool, arguments) in [
            ("read_skill_file", json!({ "skill": "counting", "path": path })),
            ("run_skill_script", json!({ "skill": "counting", "script": path })),
        ] {
            let told = call_tool(&workspace, tool, arguments).await;
            assert!(!told.contains("secret\n") && !told.contains("exit_code"), "{tool} {path}: {told}");
            assert!(
                !told.contains(&*world.path().to_string_lossy()) || path == absolute,
                "{tool} {path}: {told}"
            );
        }
    }
    for name in ["..", "../counting", "counting/../adding", "nothing"] {
        let told =
            call_tool(&workspace, "read_skill_file", json!({ "skill": name, "path": "reference.md" })).await;
        assert!(
            told.contains("there is no skill of that name: there are adding, counting"),
            "{name}: {told}"
        );
    }
    let inside =
        call_tool(&workspace, "read_skill_file", json!({ "skill": "counting", "path": "inside.md" })).await;
    assert!(inside.ends_with("One, two, three.\n"), "links within a skill are followed: {inside}");
}

#[test]
fn folders_that_are_no_skills_are_told_and_links_are_not_followed() {
    let world = tempdir().expect("a folder");
    let skills = world.path().join("skills");
    write_skill(&skills, "counting", "Counts things.");
    write_skill(&world.path().join("elsewhere"), "hidden", "Elsewhere.");
    symlink(world.path().join("elsewhere/hidden"), skills.join("hidden")).expect("linked");
    fs::create_dir(skills.join("notes")).expect("made");
    let opened = Skills::open(&skills).expect("skills");
    let names: Vec<&str> = opened.iter().map(|skill| skill.name()).collect();
    assert_eq!(names, ["counting"], "a link to a folder elsewhere is no skill");
    // The text of a skill may not come from elsewhere either.
    fs::write(skills.join("notes/real.md"), "---\nname: notes\ndescription: x\n---\n").expect("written");
    symlink(world.path().join("elsewhere/hidden/SKILL.md"), skills.join("notes/SKILL.md")).expect("linked");
    let error = Skills::open(&skills).expect_err("it leads out").to_string();
    assert!(error.contains("notes") && error.contains("link"), "{error}");
    fs::remove_dir_all(skills.join("notes")).expect("removed");
    write_skill(&skills, "other", "x");
    fs::rename(skills.join("other"), skills.join("another")).expect("renamed");
    let error = Skills::open(&skills).expect_err("another name").to_string();
    assert!(error.contains("its folder has another one"), "{error}");
    let twice = opened.and_open(world.path().join("elsewhere")).expect("skills");
    let error = twice.and_open(world.path().join("elsewhere")).expect_err("the same name").to_string();
    assert!(error.contains("another skill has the same name"), "{error}");
    assert!(Skills::open(world.path().join("missing")).is_err());
}

#[tokio::test]
async fn the_other_tools_cannot_change_a_skill() {
    let world = tempdir().expect("a folder");
    write_skill(&world.path().join("work/skills"), "counting", "Counts things.");
    let skills = Skills::open(world.path().join("work/skills")).expect("skills");
    let workspace = open_workspace(&world.path().join("work")).skills(skills);
    let arguments = json!({ "path": "skills/counting/scripts/count.sh", "content": "echo mine" });
    let told = call_tool(&workspace, "write_file", arguments).await;
    assert!(told.contains("is protected"), "{told}");
    call_tool(&workspace, "run_command", json!({ "shell": "echo mine > skills/counting/scripts/count.sh" }))
        .await;
    let script =
        fs::read_to_string(world.path().join("work/skills/counting/scripts/count.sh")).expect("text");
    assert!(script.starts_with("echo \"$1"), "{script}");
}

/// Scripts wait for a person as commands do; another process goes on with the skill that was loaded.
#[tokio::test]
async fn a_run_that_waits_for_a_script_goes_on_in_another_process() {
    let (world, workspace) = make_world();
    let workspace = workspace.approve_commands(BuiltInApprovalPolicy::Always);
    let open =
        || -> Arc<dyn Store> { Arc::new(SqliteStore::open(world.path().join("runs.db")).expect("a store")) };
    let first = ScriptedModel::new([
        ScriptedResponse::call("c1", "load_skill", json!({ "name": "counting" })),
        ScriptedResponse::call("c2", "run_skill_script", script_arguments("counting", "scripts/count.sh")),
    ]);
    let agent = |model: ScriptedModel| Agent::new("clerk").model(model).tools(workspace.skill_tools());
    let store = open();
    let paused = agent(first).run("Count.").run_id("run-1").store(store.clone()).await.expect("it pauses");
    assert!(paused.is_paused(), "the script needs approval");
    assert!(!world.path().join("work/counted.txt").exists());
    drop((paused, store));
    let store = open();
    post_decision(&*store, &"run-1".into(), "c2", Decision::Approve, DecisionScope::ThisCall, "dee")
        .await
        .expect("posted");
    let second = ScriptedModel::new([ScriptedResponse::text("Counted.")]);
    let done = agent(second.clone()).recover("run-1", store).await.expect("it ends");
    assert_eq!(done.output_text().expect("text"), "Counted.");
    assert!(world.path().join("work/counted.txt").exists());
    let request = &second.requests()[0];
    assert_eq!(request.tools, ["load_skill", "read_skill_file", "run_skill_script"]);
    assert!(request.input_text().iter().any(|line| line.contains("# How to")), "{:?}", request.input_text());
}

#[tokio::test]
async fn a_script_without_arguments_can_be_exempt() {
    let (_world, workspace) = make_world();
    let exempt = BuiltInApprovalPolicy::except_for(["counting/scripts/count.sh"]);
    let workspace = workspace.approve_commands(exempt);
    let waits = |arguments: Value| {
        let model = ScriptedModel::new([
            ScriptedResponse::call("c1", "run_skill_script", arguments),
            ScriptedResponse::text("Done."),
        ]);
        let agent = Agent::new("clerk").model(model).tools(workspace.skill_tools());
        async move { agent.run("Count.").await.expect("it ends or pauses").is_paused() }
    };
    assert!(!waits(json!({ "skill": "counting", "script": "scripts/count.sh" })).await);
    assert!(waits(script_arguments("counting", "scripts/count.sh")).await, "arguments are another command");
    assert!(waits(json!({ "skill": "adding", "script": "scripts/count.sh" })).await);
}
