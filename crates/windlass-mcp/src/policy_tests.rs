use serde_json::json;
use windlass::core::tool::ApprovalPolicy;

use super::*;
use crate::client::ToolHints;

fn tool_with_hints(hints: ToolHints) -> McpToolInfo {
    McpToolInfo {
        server: "files".into(),
        name: "write".into(),
        title: None,
        description: String::new(),
        input_schema: Arc::new(json!({})),
        output_schema: None,
        hints,
    }
}

const NO_HINTS: ToolHints =
    ToolHints { read_only: None, destructive: None, idempotent: None, open_world: None };
const READ_ONLY: ToolHints = ToolHints { read_only: Some(true), ..NO_HINTS };
const IDEMPOTENT: ToolHints = ToolHints { idempotent: Some(true), ..NO_HINTS };
const NON_DESTRUCTIVE: ToolHints = ToolHints { destructive: Some(false), ..NO_HINTS };
const DESTRUCTIVE: ToolHints = ToolHints { destructive: Some(true), ..NO_HINTS };

#[test]
fn only_a_trusted_server_says_what_may_happen_again() {
    for (hints, trusted) in [
        (NO_HINTS, ToolEffect::Once),
        (READ_ONLY, ToolEffect::Pure),
        (IDEMPOTENT, ToolEffect::Idempotent),
        (NON_DESTRUCTIVE, ToolEffect::Once),
        (DESTRUCTIVE, ToolEffect::Once),
    ] {
        assert_eq!(declared_effect(&tool_with_hints(hints), ServerTrust::Trusted), trusted, "{hints:?}");
        assert_eq!(
            declared_effect(&tool_with_hints(hints), ServerTrust::Untrusted),
            ToolEffect::Once,
            "{hints:?}"
        );
    }
}

#[test]
fn only_a_trusted_server_says_what_needs_nobody() {
    let gate = |hints: ToolHints, trust: ServerTrust| {
        let bare = Tool::<()>::dynamic("write", "", json!({ "type": "object" }), |_, _| async {
            Ok::<_, String>("written")
        });
        McpApprovalPolicy::ByHints.apply_to(bare, &Arc::new(tool_with_hints(hints)), trust).approval_policy()
    };
    for (hints, trusted) in [
        (NO_HINTS, ApprovalPolicy::Required),
        (READ_ONLY, ApprovalPolicy::NotRequired),
        (IDEMPOTENT, ApprovalPolicy::Required),
        (NON_DESTRUCTIVE, ApprovalPolicy::NotRequired),
        (DESTRUCTIVE, ApprovalPolicy::Required),
    ] {
        assert_eq!(gate(hints, ServerTrust::Trusted), trusted, "{hints:?}");
        assert_eq!(gate(hints, ServerTrust::Untrusted), ApprovalPolicy::Required, "{hints:?}");
    }
}
