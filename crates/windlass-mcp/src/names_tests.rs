use super::*;

fn taken_set(names: &[&str]) -> BTreeSet<Arc<str>> {
    names.iter().map(|&name| name.into()).collect()
}

fn assigned_names(tools: &[McpToolIdentity<'_>], own: &[&str], naming: ToolNaming) -> Vec<String> {
    let (names, _) = assign_names(tools, &taken_set(own), naming);
    names.into_iter().map(|name| name.unwrap_or_default()).collect()
}

#[test]
fn plain_names_stay_as_they_are() {
    let tools = [("files", "read"), ("files", "list.all"), ("web", "get")];
    assert_eq!(assigned_names(&tools, &[], ToolNaming::Plain), ["read", "list_all", "get"]);
    assert_eq!(
        assigned_names(&tools, &[], ToolNaming::Prefixed),
        ["mcp_files__read", "mcp_files__list_all", "mcp_web__get"]
    );
}

#[test]
fn whoever_shares_a_name_is_told_apart_in_any_order() {
    let tools = [("a", "read"), ("b", "read"), ("b", "write")];
    assert_eq!(assigned_names(&tools, &[], ToolNaming::Plain), ["mcp_a__read", "mcp_b__read", "write"]);
    let turned = [("b", "write"), ("b", "read"), ("a", "read")];
    assert_eq!(assigned_names(&turned, &[], ToolNaming::Plain), ["write", "mcp_b__read", "mcp_a__read"]);
    let (_, warnings) = assign_names(&tools, &taken_set(&[]), ToolNaming::Plain);
    assert_eq!(warnings.len(), 2);
    assert_eq!(warnings[0], "tool `read` of MCP server `a` shares its name and is offered as `mcp_a__read`");
}

#[test]
fn what_the_agent_has_itself_is_never_shadowed() {
    assert_eq!(assigned_names(&[("a", "read")], &["read"], ToolNaming::Plain), ["mcp_a__read"]);
    let both = assigned_names(&[("a", "read")], &["read", "mcp_a__read"], ToolNaming::Plain);
    assert!(both[0].starts_with("mcp_a__read_"), "{both:?}");
    assert_eq!(both[0].len(), "mcp_a__read".len() + 9);
}

#[test]
fn long_names_are_cut_and_stay_apart() {
    let (one, other) = ("x".repeat(100) + "one", "x".repeat(100) + "other");
    let tools = [("s", one.as_str()), ("s", other.as_str())];
    for naming in [ToolNaming::Plain, ToolNaming::Prefixed] {
        let cut = assigned_names(&tools, &[], naming);
        assert_ne!(cut[0], cut[1]);
        assert!(cut.iter().all(|name| name.len() == MAX_NAME_LENGTH), "{cut:?}");
        assert_eq!(cut, assigned_names(&tools, &[], naming), "the same every time");
    }
    let golden = assigned_names(&[("s", one.as_str())], &[], ToolNaming::Prefixed);
    assert_eq!(golden[0].len(), 64);
}

#[test]
fn names_that_become_equal_are_told_apart() {
    let tools = [("s", "a.b"), ("s", "a/b"), ("s.1", "c"), ("s_1", "c")];
    let names = assigned_names(&tools, &[], ToolNaming::Prefixed);
    let unique: BTreeSet<&String> = names.iter().collect();
    assert_eq!(unique.len(), 4, "{names:?}");
}

#[test]
fn a_tool_without_a_name_left_is_left_out() {
    let own = assigned_names(&[("a", "read")], &["read", "mcp_a__read"], ToolNaming::Plain);
    let (names, warnings) =
        assign_names(&[("a", "read")], &taken_set(&["read", "mcp_a__read", &own[0]]), ToolNaming::Plain);
    assert_eq!(names, [None]);
    assert!(warnings.last().is_some_and(|warning| warning.contains("has no name left")));
}
