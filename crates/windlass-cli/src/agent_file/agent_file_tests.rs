use super::scripted_model::ScriptFileModel;
use super::*;

/// Returns the TOML code blocks of a page.
fn toml_blocks(page: &str) -> Vec<&str> {
    let blocks = page.split("```toml\n").skip(1);
    blocks.map(|rest| rest.split("```").next().unwrap_or_default()).collect()
}

#[test]
fn the_files_of_the_guide_are_read() {
    let command = toml_blocks(include_str!("../../../../docs/guide/command.md"));
    let [agent, script] = command[..] else { panic!("the page has two files") };
    let spec: AgentFileSpec = toml::from_str(agent).expect("it is an agent's file");
    assert_eq!(spec.model.as_deref(), Some("openai:gpt-5-mini"));
    assert_eq!(spec.mcp["files"].allowed_tools(), ["read_text_file"]);
    let folder = tempfile::tempdir().expect("there is room");
    let path = folder.path().join("answers.toml");
    std::fs::write(&path, script).expect("it can be written");
    assert_eq!(ScriptFileModel::read(&path).expect("it is a script").len(), 2);
    for agent in toml_blocks(include_str!("../../../../docs/guide/quickstart.md")) {
        toml::from_str::<AgentFileSpec>(agent).expect("it is an agent's file");
    }
}

#[test]
fn lengths_of_time_are_read_as_people_write_them() {
    let limits = |lease: &str| toml::from_str::<RunLimitsSpec>(&format!("lease = \"{lease}\""));
    for (text, millis) in [("500ms", 500), ("5s", 5_000), ("2m", 120_000), ("1h", 3_600_000)] {
        let read =
            limits(text).expect("it is a length of time").lease.map(|lease| lease.as_duration().as_millis());
        assert_eq!(read, Some(millis), "{text}");
    }
    for text in ["5", "s", "5 days", "-1s", "99999999999999999999s", "5124095576030432h"] {
        assert!(limits(text).is_err(), "{text}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn fuzz_agent_files_are_refused_or_read() {
    let guide = toml_blocks(include_str!("../../../../docs/guide/command.md"));
    let policy = toml_blocks(include_str!("../../../../docs/guide/policy.md"));
    let target =
        windlass_fuzz::FuzzTarget::new(env!("CARGO_MANIFEST_DIR"), "agent_file").seeds(guide).seeds(policy);
    target.words(["[policy]", "[[policy.rule]]", "[mcp.x]", "tools = [", "decision = 'allow'", "= { "]).run(
        module_path!(),
        "fuzz_agent_files_are_refused_or_read",
        |input| {
            let text = String::from_utf8_lossy(input);
            let _ = toml::from_str::<AgentFileSpec>(&text);
            let _ = AgentPolicy::parse("agent.toml", &text, Path::new("/w"));
        },
    );
}
