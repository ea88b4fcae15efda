//! Skills of an agent file: loaded, run in the sandbox under the policy, and refused if they are none.

#![cfg(unix)]
#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod support;

use support::TestProject;

const ANSWERS: &str = r#"{"call":[{"id":"c1","tool":"load_skill","arguments":{"name":"counting"}}]}
{"call":[{"id":"c2","tool":"run_skill_script","arguments":{"skill":"counting","script":"count.sh"}}]}
{"text":"Counted."}
"#;

fn project(more: &str) -> TestProject {
    let project = TestProject::new(&format!("skills = [\"skills\"]\n{more}"), "");
    let agent = std::fs::read_to_string(project.file("agent.toml")).expect("it is text");
    std::fs::write(project.file("agent.toml"), agent.replace("answers.toml", "answers.jsonl"))
        .expect("it can be written");
    std::fs::write(project.file("answers.jsonl"), ANSWERS).expect("it can be written");
    std::fs::create_dir_all(project.file("skills/counting")).expect("it can be made");
    let text = "---\nname: counting\ndescription: Counts things.\n---\nRun `count.sh`.\n";
    std::fs::write(project.file("skills/counting/SKILL.md"), text).expect("it can be written");
    std::fs::write(project.file("skills/counting/count.sh"), "echo three > counted.txt\n")
        .expect("it can be written");
    project
}

#[test]
fn a_script_waits_for_a_person_and_the_run_is_resumed() {
    let project = project("");
    let tools = project.run_windlass(&["tools", "."]);
    assert!(tools.stdout.contains("load_skill"), "{}{}", tools.stdout, tools.stderr);
    let first = project.run_windlass(&["run", ".", "Count.", "--run-id", "r1"]);
    assert_eq!(first.code, Some(3), "{}\n{}", first.stdout, first.stderr);
    assert!(!project.file("counted.txt").exists());
    let shown = project.run_windlass(&["show", "r1"]);
    assert!(shown.stdout.contains("run_skill_script"), "{}", shown.stdout);
    let approved =
        project.run_windlass(&["approve", "r1", "c2", "--digest", &project.digest_of("r1"), "--resume"]);
    assert_eq!(approved.code, Some(0), "{}\n{}", approved.stdout, approved.stderr);
    assert!(approved.stdout.contains("Counted."), "{}", approved.stdout);
    assert_eq!(std::fs::read_to_string(project.file("counted.txt")).expect("it ran"), "three\n");
}

#[test]
fn the_policy_holds_for_scripts() {
    let rule = |name: &str, tool: &str, decision: &str| {
        format!("[[policy.rule]]\nname = \"{name}\"\ntool = \"{tool}\"\ndecision = \"{decision}\"\n")
    };
    let rules = rule("skills", "load_skill", "allow") + &rule("no scripts", "run_skill_script", "deny");
    let project = project(&rules);
    let run = project.run_windlass(&["run", ".", "Count.", "--run-id", "r1"]);
    assert_eq!(run.code, Some(0), "nobody is asked: {}\n{}", run.stdout, run.stderr);
    assert!(!project.file("counted.txt").exists());
}

#[test]
fn a_folder_that_is_no_skill_is_named() {
    let project = project("");
    std::fs::write(project.file("skills/counting/SKILL.md"), "Run it.\n").expect("it can be written");
    let refused = project.run_windlass(&["run", ".", "Count."]);
    assert_ne!(refused.code, Some(0));
    assert!(refused.stderr.contains("is not a skill: it does not begin with `---`"), "{}", refused.stderr);
}
