use super::*;

fn taken(names: &[&str]) -> BTreeSet<Arc<str>> {
    names.iter().map(|&name| name.into()).collect()
}

fn names(tools: &[Identity<'_>], own: &[&str], naming: Naming) -> Vec<String> {
    let (names, _) = assign(tools, &taken(own), naming);
    names.into_iter().map(|name| name.unwrap_or_default()).collect()
}

#[test]
fn plain_names_stay_as_they_are() {
    let tools = [("files", "read"), ("files", "list.all"), ("web", "get")];
    assert_eq!(names(&tools, &[], Naming::Plain), ["read", "list_all", "get"]);
    assert_eq!(
        names(&tools, &[], Naming::Prefixed),
        ["mcp_files__read", "mcp_files__list_all", "mcp_web__get"]
    );
}

#[test]
fn whoever_shares_a_name_is_told_apart_in_any_order() {
    let tools = [("a", "read"), ("b", "read"), ("b", "write")];
    assert_eq!(names(&tools, &[], Naming::Plain), ["mcp_a__read", "mcp_b__read", "write"]);
    let turned = [("b", "write"), ("b", "read"), ("a", "read")];
    assert_eq!(names(&turned, &[], Naming::Plain), ["write", "mcp_b__read", "mcp_a__read"]);
    let (_, warnings) = assign(&tools, &taken(&[]), Naming::Plain);
    assert_eq!(warnings.len(), 2);
    assert_eq!(warnings[0], "tool `read` of MCP server `a` shares its name and is offered as `mcp_a__read`");
}

#[test]
fn what_the_agent_has_itself_is_never_shadowed() {
    assert_eq!(names(&[("a", "read")], &["read"], Naming::Plain), ["mcp_a__read"]);
    let both = names(&[("a", "read")], &["read", "mcp_a__read"], Naming::Plain);
    assert!(both[0].starts_with("mcp_a__read_"), "{both:?}");
    assert_eq!(both[0].len(), "mcp_a__read".len() + 9);
}

#[test]
fn long_names_are_cut_and_stay_apart() {
    let (one, other) = ("x".repeat(100) + "one", "x".repeat(100) + "other");
    let tools = [("s", one.as_str()), ("s", other.as_str())];
    for naming in [Naming::Plain, Naming::Prefixed] {
        let cut = names(&tools, &[], naming);
        assert_ne!(cut[0], cut[1]);
        assert!(cut.iter().all(|name| name.len() == LONGEST), "{cut:?}");
        assert_eq!(cut, names(&tools, &[], naming), "the same every time");
    }
    let golden = names(&[("s", one.as_str())], &[], Naming::Prefixed);
    assert_eq!(golden[0].len(), 64);
}

#[test]
fn names_that_become_equal_are_told_apart() {
    let tools = [("s", "a.b"), ("s", "a/b"), ("s.1", "c"), ("s_1", "c")];
    let names = names(&tools, &[], Naming::Prefixed);
    let unique: BTreeSet<&String> = names.iter().collect();
    assert_eq!(unique.len(), 4, "{names:?}");
}

#[test]
fn a_tool_without_a_name_left_is_left_out() {
    let own = names(&[("a", "read")], &["read", "mcp_a__read"], Naming::Plain);
    let (names, warnings) =
        assign(&[("a", "read")], &taken(&["read", "mcp_a__read", &own[0]]), Naming::Plain);
    assert_eq!(names, [None]);
    assert!(warnings.last().is_some_and(|warning| warning.contains("has no name left")));
}
