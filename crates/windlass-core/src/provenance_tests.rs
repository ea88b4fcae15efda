//! Tests of content sources.

#![allow(clippy::expect_used)]

use serde_json::json;

use super::*;

#[test]
fn a_set_is_a_list_of_names_in_a_fixed_order() {
    let sources: ContentSources = [ContentSource::File, ContentSource::Web].into_iter().collect();
    assert_eq!(serde_json::to_value(sources).expect("it is JSON"), json!(["web", "file"]));
    let read: ContentSources = serde_json::from_value(json!(["file", "web", "file"])).expect("it is a set");
    assert_eq!(read, sources);
    assert!(
        serde_json::from_value::<ContentSources>(json!(["moon"])).is_err(),
        "an unknown source is refused"
    );
    for source in ContentSource::ALL {
        assert_eq!(serde_json::to_value(source).expect("it is JSON"), json!(source.name()));
    }
}

#[test]
fn a_set_reads_as_words() {
    let all: ContentSources = ContentSource::ALL.into_iter().collect();
    let words = |sources: ContentSources| sources.to_string();
    assert_eq!(words(ContentSources::NONE), "");
    assert_eq!(words(ContentSource::Web.into()), "the web");
    assert_eq!(
        words(ContentSources::from(ContentSource::Web).with(ContentSource::File)),
        "the web and files"
    );
    assert_eq!(words(all), "the web, an MCP server, files, a command, a screen and an unknown place");
}

#[test]
fn results_of_hosted_tools_have_a_source() {
    let of = |kind: &str| ContentSources::of_item(&Item::HostedTool(OpaqueItem::new(kind, json!({}))));
    for (kind, source) in [
        ("web_search_call", ContentSource::Web),
        ("web_search_tool_result", ContentSource::Web),
        ("mcp_call", ContentSource::Mcp),
        ("mcp_list_tools", ContentSource::Mcp),
        ("file_search_call", ContentSource::File),
        ("code_interpreter_call", ContentSource::Command),
        ("computer_call_output", ContentSource::Computer),
        ("tomorrow's_tool", ContentSource::Unknown),
    ] {
        assert_eq!(of(kind), source.into(), "{kind}");
    }
}
