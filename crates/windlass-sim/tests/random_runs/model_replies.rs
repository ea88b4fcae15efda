//! The responses of the random model, a function of the seed and the conversation.

use std::sync::Arc;

use serde_json::json;
use windlass::core::item::{ContentPart, Item, Message, OpaqueItem, ReasoningItem, Role};
use windlass::model::{ModelError, ModelRequest, ToolDefinition};
use windlass_sim::SimRng;

/// Draws the response to a request.
pub(crate) fn draw_reply(request: &ModelRequest<'_>, rng: &mut SimRng) -> Result<Vec<Item>, ModelError> {
    if rng.chance(1) {
        return Err(ModelError::new("the simulated provider has lost the conversation"));
    }
    let ends = 12 + 9 * u64::from(request.turn);
    if rng.chance(ends) {
        return Ok(draw_final_items(rng));
    }
    let mut items = Vec::new();
    if rng.chance(15) {
        items.push(Item::assistant("Let me see."));
    }
    let calls = 1 + rng.index(4);
    for at in 0..calls {
        if rng.chance(8) {
            items.push(Item::Reasoning(ReasoningItem {
                summary: "hm".into(),
                item_id: None,
                raw: json!({"r": at}),
                origin: None,
            }));
        }
        items.push(draw_call(request, rng, at));
        if rng.chance(3) {
            // The same call twice in one response.
            items.extend(items.last().cloned());
        }
    }
    if rng.chance(5) {
        items.extend(repeat_call(request, rng));
    }
    if rng.chance(5) {
        items.push(Item::assistant("That should do."));
    }
    Ok(items)
}

fn draw_final_items(rng: &mut SimRng) -> Vec<Item> {
    match rng.below(30) {
        0 => {
            let content = vec![ContentPart::Refusal { text: "I would rather not.".into() }];
            vec![Item::Message(Message {
                role: Role::Assistant,
                content,
                item_id: None,
                sources: Default::default(),
            })]
        }
        1 => vec![Item::HostedTool(OpaqueItem::new("search", json!({"q": rng.below(100)})))],
        2 => vec![],
        _ => vec![Item::assistant(format!("Done, {}.", rng.below(100)))],
    }
}

fn draw_call(request: &ModelRequest<'_>, rng: &mut SimRng, at: usize) -> Item {
    let id = format!("c{:06x}{at}", rng.below(1 << 24));
    if !request.handoffs.is_empty() && rng.chance(12) {
        return Item::call(id, rng.pick(request.handoffs).name.to_string(), "{}");
    }
    let tool: Option<&ToolDefinition> = (!request.tools.is_empty()).then(|| rng.pick(request.tools));
    let Some(tool) = tool.filter(|_| !rng.chance(4)) else {
        return Item::call(id, "no_such_tool", json!({"n": rng.below(3)}).to_string());
    };
    let is_agent = tool.parameters.pointer("/properties/input").is_some();
    let arguments = match (is_agent, rng.below(40)) {
        (_, 0) => "{\"n\": ".to_owned(),
        (_, 1) => json!({"other": true}).to_string(),
        (true, _) => json!({"input": format!("please {}", rng.below(4))}).to_string(),
        (false, 2) => format!("{{ \"n\" : {} }}", rng.below(3)),
        (false, _) => json!({"n": rng.below(3)}).to_string(),
    };
    let id = if rng.chance(1) && rng.chance(30) { String::new() } else { id };
    Item::call(id, tool.name.to_string(), arguments)
}

/// Repeats a call of an earlier response; sometimes with the same id and other arguments.
fn repeat_call(request: &ModelRequest<'_>, rng: &mut SimRng) -> Option<Item> {
    let calls: Vec<&Arc<Item>> =
        request.input.iter().filter(|item| matches!(***item, Item::Call(_))).collect();
    if calls.is_empty() {
        return None;
    }
    let picked = *rng.pick(&calls);
    let mut item = Item::clone(picked);
    if let Item::Call(call) = &mut item
        && rng.chance(15)
    {
        call.arguments = json!({"n": 99}).to_string();
    }
    Some(item)
}
