//! Fuzzing of the actions of models.

#![cfg(target_os = "linux")]

use windlass_fuzz::FuzzTarget;

use crate::action_parser::{parse_action, parse_call};

const SEEDS: [&str; 4] = [
    r#"{"actions":[{"type":"click","button":"left","x":1,"y":2},{"type":"keypress","keys":["CTRL","a"]},{"type":"drag","path":[{"x":1,"y":2},[3,4]]}],"pending_safety_checks":[{"id":"a","code":"b","message":"c"}]}"#,
    r#"{"action":"left_click_drag","start_coordinate":[1,2],"coordinate":[3,4]}"#,
    r#"{"type":"scroll","x":0,"y":0,"scroll_x":-2147483648,"scroll_y":2147483647}"#,
    r#"{"action":"hold_key","text":"ctrl+shift+F12","duration":0.5}"#,
];
const WORDS: [&str; 8] = [
    "\"action\":",
    "\"type\":",
    "\"wait\"",
    "\"key\"",
    "\"text\":",
    "\"coordinate\":[",
    "\"duration\":1e300",
    "+",
];

#[test]
fn actions_of_a_model() {
    let target = FuzzTarget::new(env!("CARGO_MANIFEST_DIR"), "computer_actions").seeds(SEEDS).words(WORDS);
    target.run(module_path!(), "actions_of_a_model", |input| {
        let Ok(value) = serde_json::from_slice(input) else { return };
        let _ = parse_call(&value);
        let _ = parse_action(&value);
    });
}
