//! Tests of what the actions of a call are expected to hit.

use serde_json::{Value, json};

use super::{ExpectedTarget, ScreenTarget, TargetPlace, expected_targets};
use crate::action::{ComputerAction, ComputerCall, ScreenPoint};

fn actions(list: Value) -> Vec<ComputerAction> {
    ComputerCall::from_json(&json!({ "actions": list })).expect("a call").actions
}

fn place(place: TargetPlace) -> Vec<ExpectedTarget> {
    vec![ExpectedTarget::Place(place)]
}

fn after_click(x: u32) -> Vec<ExpectedTarget> {
    vec![ExpectedTarget::FocusAfterClick(TargetPlace::At(ScreenPoint { x, y: 1 }))]
}

#[test]
fn an_action_of_the_pointer_hits_what_is_under_it_then() {
    let point = |x| TargetPlace::At(ScreenPoint { x, y: 1 });
    let cases = [
        (json!([{ "action": "left_click" }]), vec![place(TargetPlace::Pointer)]),
        (
            json!([{ "action": "left_mouse_down" }, { "action": "left_mouse_up" }]),
            vec![place(TargetPlace::Pointer), place(TargetPlace::Pointer)],
        ),
        (json!([{ "action": "scroll", "scroll_direction": "down" }]), vec![place(TargetPlace::Pointer)]),
        (
            json!([{ "type": "move", "x": 5, "y": 1 }, { "action": "left_click" }, { "action": "left_mouse_up" }]),
            vec![place(point(5)), place(point(5)), place(point(5))],
        ),
        (
            json!([{ "type": "drag", "path": [[1, 1], [2, 1], [3, 1]] }, { "action": "left_click" }]),
            vec![vec![ExpectedTarget::Place(point(1)), ExpectedTarget::Place(point(3))], place(point(3))],
        ),
        (
            json!([{ "type": "click_element", "element": "e1" }, { "action": "left_click" }]),
            vec![place(TargetPlace::Element("e1".to_owned())), vec![ExpectedTarget::Unseen]],
        ),
    ];
    for (list, expected) in cases {
        assert_eq!(expected_targets(&actions(list.clone())), expected, "{list}");
    }
    let upload = actions(json!([{ "type": "upload", "files": ["cv.txt"] }]));
    assert_eq!(expected_targets(&upload), [place(TargetPlace::FileChooser)]);
}

#[test]
fn keys_hit_what_the_call_has_clicked_until_a_key_may_move_the_focus() {
    let key = |name: &str| json!({ "type": "keypress", "keys": name.split('+').collect::<Vec<_>>() });
    let typed = |text: &str| json!({ "type": "type", "text": text });
    let click = json!({ "type": "click", "x": 7, "y": 1 });
    let unseen = vec![ExpectedTarget::Unseen];
    let focus = place(TargetPlace::Focus);
    let clicked = place(TargetPlace::At(ScreenPoint { x: 7, y: 1 }));
    let cases = [
        (json!([typed("a"), key("ctrl+a"), key("Backspace")]), vec![focus.clone(); 3]),
        (
            json!([click, key("ctrl+a"), typed("b"), key("Enter")]),
            vec![clicked.clone(), after_click(7), after_click(7), after_click(7)],
        ),
        (json!([click, key("Tab"), key("Enter")]), vec![clicked, after_click(7), unseen.clone()]),
        (
            json!([key("Tab"), key("shift+Tab"), typed("a")]),
            vec![focus.clone(), place(TargetPlace::Page), unseen.clone()],
        ),
        (json!([typed("Ada\t"), typed("b")]), vec![focus.clone(), unseen.clone()]),
        (json!([key("alt+x"), typed("b")]), vec![focus.clone(), unseen.clone()]),
        (json!([{ "action": "key", "text": "Return", "repeat": 2 }]), vec![unseen]),
        (json!([{ "action": "key", "text": "Tab", "repeat": 2 }]), vec![focus.clone()]),
        (json!([{ "action": "key", "text": "Down", "repeat": 2 }]), vec![focus]),
    ];
    for (list, expected) in cases {
        assert_eq!(expected_targets(&actions(list.clone())), expected, "{list}");
    }
}

#[test]
fn a_target_names_the_origin_that_its_url_does_not_tell() {
    let target = |frame: Option<&str>, origin: &str| ScreenTarget {
        address: Some("https://shop.example/a".to_owned()),
        frame: frame.map(str::to_owned),
        origin: Some(origin.to_owned()),
        element: Some("button \"Pay\"".to_owned()),
        ..ScreenTarget::default()
    };
    let shown = |frame, origin| target(frame, origin).to_string();
    assert_eq!(shown(None, "https://shop.example"), "button \"Pay\" on https://shop.example/a");
    assert_eq!(
        shown(Some("about:srcdoc"), "null"),
        "button \"Pay\" on https://shop.example/a, in the frame about:srcdoc (origin null)"
    );
    assert!(shown(None, "https://shop.exam").ends_with("(origin https://shop.exam)"));
}
