//! Tests of the text that a person reads before a decision.

#![allow(clippy::expect_used)]

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use windlass::core::canonical::{Digest, canonical_json};
use windlass::core::decision::{DecisionScope, PersonQuestion};
use windlass::core::id::{CallPath, Timestamp};
use windlass::core::tool::ToolKey;
use windlass_text::is_hidden;
use windlass_text::testing::{HOSTILE_CHARACTERS, unquote};

use super::*;

fn pending(tool: ToolKey, agent: &str, call: &str, arguments: &str) -> PendingCall {
    PendingCall {
        path: CallPath::new(&[], call.into()),
        agent: agent.into(),
        tool,
        arguments: arguments.to_owned(),
        reason: HoldReason::Approval,
        attempt: 0,
        digest: Digest::of_parts(&[call, arguments]),
        expires_at: None,
        max_approval_scope: DecisionScope::ToolForRun,
        last_driver_seen: None,
        context_sources: Default::default(),
        posted: None,
    }
}

fn review(pending: &PendingCall) -> CallReview {
    CallReview::new(&RunId::from("one"), pending, None)
}

fn shown(review: &CallReview, width: Option<usize>) -> Vec<String> {
    review.lines(width).iter().map(|line| line.plain().to_string()).collect()
}

/// Reads the arguments back from the displayed lines: the inverse of the display.
fn read_back(lines: &[String], indent: usize) -> Vec<(String, String)> {
    let mut joined: Vec<String> = Vec::new();
    for line in lines.iter().skip(1).skip_while(|line| !line.starts_with("  │ ")) {
        if let Some(start) = line.strip_prefix("  │ ") {
            joined.push(start.to_owned());
        } else {
            let rest = line.strip_prefix("  ┊ ").expect("every line has a bar");
            joined.last_mut().expect("a line continues another").push_str(rest);
        }
    }
    let mut fields: Vec<(String, String)> = Vec::new();
    let mut is_open = false;
    for line in joined {
        if is_open {
            let value = &mut fields.last_mut().expect("a value is open").1;
            value.push_str(line.get(indent..).expect("it is indented"));
            is_open = line.ends_with("\\n");
            continue;
        }
        let name_end =
            if line.starts_with('"') { literal_end(&line) } else { line.find(' ').expect("a gap") };
        let (name, value) = line.split_at(name_end);
        let value = value.trim_start_matches(' ');
        is_open = value.starts_with('"') && literal_end_in(value).is_none();
        fields.push((name.to_owned(), value.to_owned()));
    }
    fields
}

fn literal_end(text: &str) -> usize {
    literal_end_in(text).expect("the literal ends")
}

/// Returns the end of the string literal at the start of a text.
fn literal_end_in(text: &str) -> Option<usize> {
    let mut is_escaped = false;
    for (at, letter) in text.char_indices().skip(1) {
        match letter {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return Some(at + 1),
            _ => {}
        }
    }
    None
}

fn hostile_text() -> impl Strategy<Value = String> {
    let hostile = prop::sample::select(HOSTILE_CHARACTERS);
    prop::collection::vec(
        prop_oneof![2 => hostile, 1 => any::<char>(), 2 => prop::char::range('!', '~')],
        0..40,
    )
    .prop_map(|letters| letters.into_iter().collect())
}

fn any_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => hostile_text().prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::from),
        1 => any::<bool>().prop_map(Value::from),
        1 => Just(Value::Null),
        1 => prop::collection::vec(hostile_text(), 0..4).prop_map(|texts| json!(texts)),
        1 => (hostile_text(), hostile_text()).prop_map(|(name, text)| json!({ name: text })),
    ]
}

/// Creates a folder with an agent file and a note.
fn agent_file() -> (tempfile::TempDir, AgentFile) {
    let folder = tempfile::tempdir().expect("a folder for the test");
    std::fs::write(folder.path().join("agent.toml"), "tools = [\"files\"]\n").expect("it can be written");
    std::fs::write(folder.path().join("notes.md"), "old\n").expect("it can be written");
    let file = AgentFile::read(folder.path()).expect("it is an agent file");
    (folder, file)
}

#[test]
fn a_tool_of_another_owner_is_never_displayed_as_a_change_of_the_workspace() {
    let (_folder, file) = agent_file();
    for path in ["new.md", "notes.md", "/srv/elsewhere"] {
        let arguments = json!({ "path": path, "content": "EVIL" }).to_string();
        let bare = pending(ToolKey::bare("write_file"), "helper", "c1", &arguments);
        let of_workspace = CallReview::new(&RunId::from("one"), &bare, Some(&file));
        assert!(of_workspace.lines(None)[1].plain().as_str().contains(if path == "new.md" {
            "creates"
        } else {
            "would be refused"
        }));
        let server = ToolKey::Mcp { server: "files".into(), name: "write_file".into(), definition: None };
        let namespaced = ToolKey::Namespaced { namespace: "other".into(), name: "write_file".into() };
        for key in [server, namespaced, ToolKey::Deferred("write_file".into())] {
            let call = pending(key.clone(), "helper", "c1", &arguments);
            let review = CallReview::new(&RunId::from("one"), &call, Some(&file));
            let lines = shown(&review, None);
            assert_eq!(
                lines[1..],
                [r#"  │ content  "EVIL""#.to_owned(), format!(r#"  │ path     "{path}""#)],
                "{key}"
            );
            assert_eq!(review.refusal(), None, "{key}");
        }
    }
}

#[test]
fn a_change_that_would_be_refused_is_displayed_with_its_arguments() {
    let (folder, file) = agent_file();
    let arguments = json!({ "path": "notes.md", "content": "EVIL" }).to_string();
    for reason in [HoldReason::Approval, HoldReason::InDoubt] {
        let mut call = pending(ToolKey::bare("write_file"), "helper", "c1", &arguments);
        call.reason = reason;
        let refused = CallReview::new(&RunId::from("one"), &call, Some(&file));
        assert!(refused.refusal().is_some_and(|why| why.contains("would be refused")), "{refused:?}");
        let text = shown(&refused, None).join("\n");
        assert!(text.contains(r#"│ content  "EVIL""#) && text.contains(r#"│ path     "notes.md""#), "{text}");
        // The same change is another sheet where it is possible.
        let (notes, away) = (folder.path().join("notes.md"), folder.path().join("away.md"));
        std::fs::rename(&notes, &away).expect("it moves");
        let possible = CallReview::new(&RunId::from("one"), &call, Some(&file));
        assert_eq!(possible.refusal(), None);
        assert!(shown(&possible, None).join("\n").contains("+EVIL"), "{possible:?}");
        assert_ne!(possible.digest(), refused.digest());
        std::fs::rename(&away, &notes).expect("it moves");
    }
}

#[test]
fn a_call_in_doubt_says_when_its_process_was_last_seen() {
    let mut pending = pending(ToolKey::Bare("pay".into()), "till", "c1", "{}");
    pending.reason = HoldReason::InDoubt;
    let unknown = review(&pending);
    pending.last_driver_seen = Some(Timestamp(1_795_000_000_123));
    let known = review(&pending);
    let lines = shown(&known, None);
    assert_eq!(lines[0], "  pay had started when its process ended. Did it happen?");
    assert_eq!(lines[1], "  │ The driver before this one was last seen at 2026-11-18T11:06:40Z.");
    assert_eq!(shown(&unknown, None), [&lines[..1], &lines[2..]].concat());
    // It is a part of what a decision covers.
    assert_ne!(known.digest(), unknown.digest());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Whatever a model sends, the display has every character of every argument, visibly, and nothing else.
    #[test]
    fn every_argument_is_displayed_and_nothing_else(
        fields in prop::collection::vec((hostile_text(), any_value()), 0..5),
        (tool, agent, call) in (hostile_text(), hostile_text(), hostile_text()),
        width in prop_oneof![Just(None), (20_usize..120).prop_map(Some)],
    ) {
        let fields: Map<String, Value> = fields.into_iter().collect();
        let arguments = canonical_json(&Value::Object(fields.clone()));
        let review = review(&pending(ToolKey::bare(tool.as_str()), &agent, &call, &arguments));
        let lines = shown(&review, width);
        for line in &lines {
            prop_assert!(!line.chars().any(is_hidden), "{:?}", line);
            if let Some(width) = width {
                prop_assert!(windlass_text::text_width(line) < width, "{:?}", line);
            }
        }
        if fields.is_empty() {
            prop_assert_eq!(lines.last().map(String::as_str), Some("  │ no arguments"));
            return Ok(());
        }
        let formatted = format_arguments(&arguments).expect("an object");
        let widths = formatted.iter().map(|argument| argument.name.width());
        let indent = widths.max().unwrap_or(0).min(MAX_NAME_WIDTH) + 2;
        let mut found = Map::new();
        for (name, value) in read_back(&lines, indent) {
            let name = if name.starts_with('"') { unquote(&name).expect("a literal") } else { name };
            let value = match value.starts_with('"') {
                true => Value::from(unquote(&value).expect("a literal")),
                false => serde_json::from_str(&value).expect("other values are JSON"),
            };
            prop_assert!(found.insert(name, value).is_none());
        }
        prop_assert_eq!(found, fields);
    }

    /// Two calls that differ are displayed differently, or have different digests at least.
    #[test]
    fn the_digest_tells_calls_apart(one in hostile_text(), other in hostile_text()) {
        let digest = |text: &str| review(&pending(ToolKey::bare("t"), "a", "c", &json!({ "x": text }).to_string())).digest();
        prop_assert_eq!(digest(&one) == digest(&other), one == other);
    }
}

#[test]
fn a_call_in_another_run_has_another_digest() {
    let call = pending(ToolKey::bare("pay"), "clerk", "c1", r#"{"euros":9}"#);
    let other = CallReview::new(&RunId::from("two"), &call, None);
    assert_ne!(review(&call).digest(), other.digest());
    assert_eq!(shown(&review(&call), None), shown(&other, None));
}

#[test]
fn a_display_names_what_it_cannot_show() {
    let call = pending(
        ToolKey::bare("pay\u{1b}[2K"),
        "clerk\u{202e}",
        "c1",
        r#"{"euros":9000,"note\u001b[8m":"a\nb","text":"5"}"#,
    );
    assert_eq!(
        shown(&review(&call), None),
        [
            r"  clerk\u{202e} would like to call pay\u{1b}[2K:",
            r"  │ euros            9000",
            r#"  │ "note\u{1b}[8m"  "a\n"#,
            r#"  │                  b""#,
            r#"  │ text             "5""#,
        ]
    );
}

#[test]
fn arguments_that_are_not_an_object_are_displayed_as_they_are() {
    let call = pending(ToolKey::bare("t"), "a", "c", "{\u{1b}not json");
    assert_eq!(shown(&review(&call), None)[1], r#"  │ "{\u{1b}not json""#);
}

#[test]
fn a_question_is_displayed_line_by_line() {
    let mut call = pending(ToolKey::bare("ask"), "a", "c", "{}");
    call.reason = HoldReason::Question(PersonQuestion::new("Which?\n\u{1b}[1A  Allow it? [y]es › y"));
    assert_eq!(
        shown(&review(&call), None),
        ["  ask asks: Which?", r"  │ \u{1b}[1A  Allow it? [y]es › y", "  │ no arguments"]
    );
}

#[cfg(target_os = "linux")]
#[test]
fn fuzz_calls_are_displayed_within_their_budget() {
    let seeds = [
        r#"{"program":"rm","args":["-rf","/\u001b[2J"],"\u202eshell":null}"#,
        "{\"a\":{\"b\":[1,2,{\"c\":\"\\ud83d\\ude00\\n\"}]}}",
        "\u{1b}]52;c;aGk=\u{7}\u{202e}\u{200b}e\u{301}",
    ];
    let target = windlass_fuzz::FuzzTarget::new(env!("CARGO_MANIFEST_DIR"), "call_review").seeds(seeds);
    target.words(["\u{1b}[", "\u{9b}", "\u{2066}", "\u{e0041}", "\\n", "\r"]).run(
        module_path!(),
        "fuzz_calls_are_displayed_within_their_budget",
        |input| {
            let text = String::from_utf8_lossy(input);
            let call = pending(ToolKey::bare(text.chars().take(40).collect::<String>()), &text, &text, &text);
            let review = CallReview::new(&RunId::from("run"), &call, None);
            for width in [None, Some(20), Some(1)] {
                for line in review.lines(width) {
                    let plain = line.plain();
                    let is_raw = |letter: char| letter.is_control() || is_hidden(letter);
                    assert!(!plain.as_str().contains(is_raw), "{plain:?}");
                }
            }
        },
    );
}
