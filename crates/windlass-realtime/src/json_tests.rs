use serde_json::json;

use super::merge_json;

#[test]
fn objects_are_merged_and_other_values_replaced() {
    let mut value = json!({ "kept": 1, "inner": { "kept": 2, "list": [1, 2] }, "text": "old" });
    merge_json(&mut value, &json!({ "inner": { "list": [3], "new": 4 }, "text": { "now": "object" } }), &[]);
    let merged =
        json!({ "kept": 1, "inner": { "kept": 2, "list": [3], "new": 4 }, "text": { "now": "object" } });
    assert_eq!(value, merged);
}

#[test]
fn named_fields_are_replaced_at_every_depth() {
    let mut value = json!({ "audio": { "format": { "type": "pcm", "rate": 24000 }, "speed": 1 } });
    merge_json(&mut value, &json!({ "audio": { "format": { "type": "pcmu" } } }), &["format"]);
    assert_eq!(value, json!({ "audio": { "format": { "type": "pcmu" }, "speed": 1 } }));
}
