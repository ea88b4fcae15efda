//! A mutational loop over a kept corpus, for every decoder and extractor of untrusted text in this crate.
//!
//! It runs for a second or two in an ordinary test, and for `WINDLASS_FUZZ_SECONDS` if that is set. Inputs derive from
//! a seed, which a failure names. A decoder must neither panic nor take more than its budget of memory.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
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
    "[[rule]]\nname = 'c'\ndecision = 'ask'\ncommand = [{ program = 'git', args = ['*', '**'] }]\nexamples = [{ decision = 'ask', tool = 't' }]\n",
    "default = 'tool'\n[[rule]]\nname = 'i'\ndecision = 'ask'\nwhen = { path = { inside = ['a', '/b'] , equals = [1, 'x', true] } }\n",
    r#"{"path":"a","version":"0","edits":[{"old":"x","new":"y","places":"all"}]}"#,
    r#"{"url":"https://user@docs.rs:443/a?b#c","amount":1e308,"program":"ls","args":["-l"],"path":"../x"}"#,
];

/// A small generator of random numbers (xorshift), so that a seed stands for an input.
struct InputRng(u64);

impl InputRng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() >> 11).unwrap_or_default() % limit.max(1)
    }
}

/// Derives an input from the corpus: spliced, repeated, cut, and with changed bytes.
fn mutate(seed: u64) -> String {
    let mut rng = InputRng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut bytes = CORPUS[rng.below(CORPUS.len())].as_bytes().to_vec();
    for _ in 0..=rng.below(6) {
        let at = rng.below(bytes.len() + 1);
        match rng.below(6) {
            0 => bytes.truncate(at),
            1 => {
                let other = CORPUS[rng.below(CORPUS.len())].as_bytes();
                let from = rng.below(other.len());
                bytes.splice(at..at, other[from..].iter().copied());
            }
            2 => {
                let part = bytes[at..bytes.len().min(at + 1 + rng.below(16))].to_vec();
                let times = 1 + rng.below(200);
                bytes.splice(at..at, part.repeat(times));
            }
            3 => bytes.splice(at..at, rng.next().to_le_bytes()).for_each(drop),
            4 => bytes.splice(at..at, *b"18446744073709551615").for_each(drop),
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = rng.next().to_le_bytes()[3];
                }
            }
        }
        bytes.truncate(64 * 1024);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn mutated_inputs_neither_panic_nor_grow() {
    let seconds = std::env::var("WINDLASS_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let end = Instant::now() + Duration::from_secs(seconds.unwrap_or(1));
    let (_world, workspace) = make_workspace();
    let text = "one\ntwo\nthree\n".repeat(50);
    std::fs::write(workspace.folder().join("a"), &text).expect("written");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let read = runtime.block_on(call_tool(&workspace, "read_file", json!({ "path": "a", "lines": 1 })));
    let version = parse_version(&read);
    let first = u64::from(std::process::id()) << 20;
    let mut seed = first;
    while seed < first + 50 || Instant::now() < end {
        seed += 1;
        let input = mutate(seed);
        let ran = std::panic::catch_unwind(|| {
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
        assert!(ran.is_ok(), "seed {seed}: {input:?}");
    }
}
