//! Fuzzing of the decoders of untrusted text in this crate: diffs, policies, pages, and the arguments of calls.

use serde_json::{Value, json};
use windlass_fuzz::FuzzTarget;
use windlass_html::HtmlReader;
use windlass_tools::tool_policy::{PolicyCall, ToolPolicy};

use crate::commands::make_workspace;
use crate::support::{call_tool, parse_version};

/// Diffs, pages and policies that reach most branches of their decoders.
const CORPUS: [&str; 12] = [
    "--- a/x\n+++ b/x\n@@ -1,2 +1,3 @@\n one\n-two\n+three\n+four\n\\ No newline at end of file\n",
    "@@ -0,0 +1 @@\n+new\n@@ -18446744073709551615,9 +1 @@\n-x\n",
    "diff --git a/x b/x\n@@ -1 +1 @@ fn main()\n-a\r\n+b\r\n",
    "<html><head><title>T &amp; u</title><script>x<y</script></head><body><p a='1\" b=\"2'>one<br>two&#x41;&nbsp;</p>",
    "<title><title><textarea></title><svg><p>x</svg><!-- -- --><![CDATA[x]]><a href='",
    "&#99999999999;&#xD800;&amp&lt<h1>1<h2>2<table><tr><td>a<td>b",
    "[[rule]]\nname = 'r'\ndecision = 'allow'\ntool = ['a*', '?b']\norigin = 'x'\n",
    "[[rule]]\nname = 'r'\ndecision = 'deny'\nwhen = { 'a.b' = { at_most = 1e3, matches = '(a|b)+', host = '*.x' } }\nhours = '22:00-06:00+01:00'\n",
    "[[rule]]\nname = 'c'\ndecision = 'ask'\ntool = 't'\ncommand = [{ program = 'git', args = ['*', '**'] }]\nexamples = [{ decision = 'ask', tool = 't' }]\n",
    "default = 'tool'\n[[rule]]\nname = 'i'\ndecision = 'ask'\nwhen = { path = { inside = ['a', '/b'] , equals = [1, 'x', true] } }\n",
    r#"{"path":"a","version":"0","edits":[{"old":"x","new":"y","places":"all"}]}"#,
    r#"{"url":"https://user@docs.rs:443/a?b#c","amount":1e308,"program":"ls","args":["-l"],"path":"../x"}"#,
];

const WORDS: [&str; 14] = [
    "@@ -1,2 +3,4 @@",
    "\n-",
    "\n+",
    "<title>",
    "<script>",
    "&#x",
    "[[rule]]",
    "name = ",
    "decision = 'allow'",
    "when = { a = { ",
    "matches = '(a*)*$'",
    "command = [{ program = ",
    "https://",
    "hours = '00:00-23:59'",
];

#[test]
fn fuzz_inputs_neither_panic_nor_grow() {
    let (_world, workspace) = make_workspace();
    let text = "one\ntwo\nthree\n".repeat(50);
    std::fs::write(workspace.folder().join("a"), &text).expect("written");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let read = runtime.block_on(call_tool(&workspace, "read_file", json!({ "path": "a", "lines": 1 })));
    let version = parse_version(&read);
    let target = FuzzTarget::new(env!("CARGO_MANIFEST_DIR"), "tool_texts").seeds(CORPUS).words(WORDS);
    target.run(module_path!(), "fuzz_inputs_neither_panic_nor_grow", |input| {
        let input = String::from_utf8_lossy(input);
        let page: usize = HtmlReader::new(&input)
            .map(|token| match token.kind {
                windlass_html::HtmlTokenKind::Text(text) => text.len(),
                _ => 0,
            })
            .sum();
        // A character reference has more text than its name by a small factor at most.
        assert!(page <= input.len() * 4 + 64, "the text of a page is bounded by the page");
        let call: Value =
            serde_json::from_str(&input).unwrap_or_else(|_| json!({ "path": input, "url": input }));
        if let Ok(policy) = ToolPolicy::parse("fuzz", &input) {
            policy.decide(&PolicyCall::new("a", "ab", &call));
        }
        let diff = json!({ "path": "a", "version": version, "diff": input }).to_string();
        workspace.preview("patch_file", &diff);
        workspace.preview("patch_file", &input);
    });
}
