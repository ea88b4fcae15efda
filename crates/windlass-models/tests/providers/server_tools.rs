//! Tools that the provider runs, beside functions in one request.

use serde_json::json;
use windlass::core::item::Item;
use windlass::model::{ModelSettings, ToolChoice};

use crate::support::{TestRequest, function_tool, hosted_tool, send_to};

#[tokio::test]
async fn tools_of_the_provider_stand_beside_functions_with_a_choice() {
    let settings = || ModelSettings { tool_choice: Some(ToolChoice::Required), ..ModelSettings::default() };
    let request = |definition| TestRequest {
        tools: vec![function_tool("weather"), hosted_tool(definition)],
        settings: settings(),
        ..TestRequest::from_items([Item::user("Is it raining?")])
    };
    let search = json!({ "type": "web_search_20250305", "name": "web_search", "max_uses": 2 });
    let anthropic = ("anthropic", "ANTHROPIC_BASE_URL", "messages");
    let sent = send_to(anthropic, &request(search.clone())).await.expect("an answer").body;
    let names: Vec<_> = sent["tools"].as_array().expect("a list").iter().map(|tool| &tool["name"]).collect();
    assert_eq!(names, ["weather", "web_search"], "{sent}");
    let mut hosted = sent["tools"][1].clone();
    hosted.as_object_mut().expect("an object").remove("cache_control");
    assert_eq!((hosted, &sent["tool_choice"]), (search, &json!({ "type": "any" })));
    assert!(sent["tools"][0]["input_schema"].is_object(), "{sent}");

    let search = json!({ "type": "web_search", "search_context_size": "low" });
    let openai = ("openai", "OPENAI_BASE_URL", "responses");
    let sent = send_to(openai, &request(search.clone())).await.expect("an answer").body;
    assert_eq!((&sent["tools"][0]["name"], &sent["tools"][1]), (&json!("weather"), &search), "{sent}");
    assert_eq!(sent["tool_choice"], "required");
}
