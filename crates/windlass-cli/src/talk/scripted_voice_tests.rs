use serde_json::json;
use windlass_realtime::testing::ConversationView;

use super::demonstration_reply;

fn view(items: &[serde_json::Value], tools: &[&str]) -> ConversationView {
    let tools: Vec<_> = tools.iter().map(|name| json!({ "type": "function", "name": name })).collect();
    ConversationView { items: items.to_vec(), session: json!({ "tools": tools }) }
}

#[test]
fn the_demonstration_uses_only_tools_that_the_agent_has() {
    let user = json!({ "role": "user", "content": [{ "type": "input_text", "text": "Hm" }] });
    let turns = |count: usize, tools: &[&str]| demonstration_reply(&view(&vec![user.clone(); count], tools));
    assert!(turns(1, &["list_files"]).calls.is_empty());
    assert_eq!(turns(2, &["list_files"]).calls[0].1, "list_files");
    assert_eq!(turns(3, &["write_file"]).calls[0].1, "write_file");
    assert!(turns(2, &[]).calls.is_empty() && turns(3, &["list_files"]).calls.is_empty());
    let output = json!({ "type": "function_call_output", "call_id": "c", "output": "a.txt\nb.txt" });
    assert_eq!(demonstration_reply(&view(&[user, output], &[])).text, "The tool says: a.txt b.txt.");
}
