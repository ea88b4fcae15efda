//! Deferred tools: the model is offered a search in place of two hundred definitions, and then the tools that it found.

use windlass::agent::SEARCH_TOOL;
use windlass::prelude::*;

/// Pays the money for an order back.
#[tool]
async fn refund_order(order: u32) -> String {
    format!("order {order} is refunded")
}

/// Returns a tool that reads one field of a customer.
fn field_tool(number: u32) -> Tool {
    let schema = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    let body = |_: ToolContext, _: serde_json::Value| async { Ok::<_, ToolError>("unknown") };
    let (name, description) =
        (format!("read_field_{number}"), format!("Reads field {number} of a customer."));
    Tool::dynamic(&name, &description, schema, body).deferred()
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = ScriptedModel::new([
        ScriptedResponse::call("s1", SEARCH_TOOL, json!({ "query": "refund an order", "limit": 1 })),
        ScriptedResponse::call("c1", "refund_order", json!({ "order": 17 })),
        ScriptedResponse::text("You have your money back."),
    ]);
    let agent = Agent::new("desk")
        .model(model.clone())
        .tools((0..200).map(field_tool).collect::<Vec<_>>())
        .tool(refund_order().deferred());

    let outcome = agent.run("I want my money back for order 17.").await?;
    println!("{}", outcome.output_text()?);
    for (place, request) in model.requests().iter().enumerate() {
        println!("request {}: {}", place + 1, request.tools.join(", "));
    }
    let requests = model.requests();
    assert_eq!(requests[0].tools, [SEARCH_TOOL], "201 deferred tools cost nothing");
    assert_eq!(requests[1].tools, [SEARCH_TOOL, "refund_order"]);
    assert!(requests[2].input_text().iter().any(|item| item.contains("order 17 is refunded")));
    Ok(())
}
