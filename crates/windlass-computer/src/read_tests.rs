use serde_json::json;

use super::*;
use crate::key::{KeyboardKey, NamedKey};

fn point(x: u32, y: u32) -> ScreenPoint {
    ScreenPoint { x, y }
}

#[test]
fn openai_and_anthropic_ask_for_the_same_things() {
    let both = [
        (
            json!({ "type": "click", "x": 10, "y": 20, "button": "left" }),
            json!({ "action": "left_click", "coordinate": [10, 20] }),
        ),
        (
            json!({ "type": "double_click", "x": 10, "y": 20 }),
            json!({ "action": "double_click", "coordinate": [10, 20] }),
        ),
        (
            json!({ "type": "click", "x": 1, "y": 2, "button": "right", "keys": ["CTRL"] }),
            json!({ "action": "right_click", "coordinate": [1, 2], "text": "ctrl" }),
        ),
        (
            json!({ "type": "click", "x": 1, "y": 2, "button": "wheel" }),
            json!({ "action": "middle_click", "coordinate": [1, 2] }),
        ),
        (json!({ "type": "move", "x": 3, "y": 4 }), json!({ "action": "mouse_move", "coordinate": [3, 4] })),
        (
            json!({ "type": "drag", "path": [{ "x": 1, "y": 2 }, { "x": 3, "y": 4 }] }),
            json!({ "action": "left_click_drag", "start_coordinate": [1, 2], "coordinate": [3, 4] }),
        ),
        (
            json!({ "type": "scroll", "x": 5, "y": 6, "scroll_x": 0, "scroll_y": 300 }),
            json!({ "action": "scroll", "coordinate": [5, 6], "scroll_direction": "down", "scroll_amount": 3 }),
        ),
        (json!({ "type": "type", "text": "né" }), json!({ "action": "type", "text": "né" })),
        (json!({ "type": "keypress", "keys": ["CTRL", "s"] }), json!({ "action": "key", "text": "ctrl+s" })),
        (json!({ "type": "screenshot" }), json!({ "action": "screenshot" })),
        (json!({ "type": "wait", "ms": 2000 }), json!({ "action": "wait", "duration": 2 })),
    ];
    for (openai, anthropic) in both {
        let read = ComputerAction::from_json(&openai).expect("OpenAI's is read");
        assert_eq!(
            ComputerAction::from_json(&anthropic).expect("Anthropic's is read"),
            read,
            "{openai} {anthropic}"
        );
    }
}

#[test]
fn what_only_one_provider_has_is_read() {
    let read = |value| ComputerAction::from_json(&value).expect("it is read");
    let region = ScreenRegion { top_left: point(10, 20), bottom_right: point(110, 70) };
    assert_eq!(
        read(json!({ "action": "zoom", "region": [10, 20, 110, 70] })),
        ComputerAction::Zoom { region }
    );
    assert_eq!(
        read(json!({ "action": "left_mouse_down" })),
        ComputerAction::MouseDown { button: MouseButton::Left }
    );
    assert_eq!(read(json!({ "action": "cursor_position" })), ComputerAction::CursorPosition);
    let chord = KeyChord::parse("Return").expect("a key");
    assert_eq!(chord.keys(), [KeyboardKey::Named(NamedKey::Enter)]);
    assert_eq!(
        read(json!({ "action": "hold_key", "text": "Return", "duration": 1.5 })),
        ComputerAction::HoldKeys { chord, duration: Duration::from_millis(1500) }
    );
    assert_eq!(KeyChord::parse("ctrl++").expect("keys").keys().len(), 3, "a plus is a key too");
}

#[test]
fn a_call_is_read_in_every_form() {
    let one = ComputerCall::from_json(&json!({ "action": "screenshot" })).expect("Anthropic's own form");
    assert_eq!(one.actions, [ComputerAction::Screenshot]);
    let preview = json!({ "action": { "type": "click", "x": 1, "y": 2 } });
    assert!(!ComputerCall::from_json(&preview).expect("OpenAI's preview").is_read_only());
    let wrapped = json!({
        "actions": [{ "action": "left_click", "coordinate": [1, 2] }, { "type": "screenshot" }],
        "pending_safety_checks": [{ "id": "s1", "code": "malicious", "message": "look out" }],
    });
    let call = ComputerCall::from_json(&wrapped).expect("the usual form");
    assert_eq!((call.actions.len(), call.pending_safety_checks.len()), (2, 1));
}

#[test]
fn what_is_wrong_is_said_with_its_place() {
    let wrong = |value| ComputerCall::from_json(&value).expect_err("it is wrong");
    assert_eq!(wrong(json!({})), "`actions` is missing: a list of actions");
    assert_eq!(
        wrong(json!({ "actions": [{ "type": "screenshot" }, { "type": "click", "x": 1 }] })),
        "`actions[1]` needs `y`"
    );
    assert!(wrong(json!({ "actions": [{ "type": "click", "x": -1, "y": 2 }] })).contains("from 0"));
    assert!(wrong(json!({ "actions": [{ "type": "fly" }] })).contains("`fly`"));
    assert!(wrong(json!({ "actions": [{ "action": "key", "text": "hyper+q" }] })).contains("`hyper`"));
    assert!(wrong(json!({ "actions": [{ "action": "wait", "duration": 1e9 }] })).contains("at most"));
    assert!(wrong(json!({ "actions": [] })).contains("empty"));
}

/// The names that models use: those of the web, of X11 and of xdotool, in any case.
#[test]
fn the_usual_names_of_keys_are_known() {
    let named = [
        ("Return KP_Enter NumpadEnter", NamedKey::Enter),
        ("Prior Page_Up pgup KP_Prior", NamedKey::PageUp),
        ("Next Page_Down PGDN", NamedKey::PageDown),
        ("Left ARROWLEFT LeftArrow KP_Left", NamedKey::ArrowLeft),
        ("Super_L cmd WIN Meta", NamedKey::Meta),
        ("Control_L ctrl ControlRight", NamedKey::Control),
        ("BackSpace bksp", NamedKey::Backspace),
        ("ISO_Left_Tab tab", NamedKey::Tab),
        ("Print PrintScreen prtsc", NamedKey::PrintScreen),
        ("Menu apps", NamedKey::ContextMenu),
    ];
    for (names, key) in named {
        for name in names.split(' ') {
            assert_eq!(KeyboardKey::from_name(name), Ok(KeyboardKey::Named(key)), "{name}");
        }
    }
    for (names, char) in [
        ("space Spacebar KP_Space", ' '),
        ("plus KP_Add", '+'),
        ("slash KP_Divide", '/'),
        ("KP_7 Digit7", '7'),
    ] {
        for name in names.split(' ') {
            assert_eq!(KeyboardKey::from_name(name), Ok(KeyboardKey::Char(char)), "{name}");
        }
    }
    assert!(KeyboardKey::from_name("hyperdrive").is_err());
}
