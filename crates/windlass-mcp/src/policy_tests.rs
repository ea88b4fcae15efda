use serde_json::json;
use windlass::core::Gate;

use super::*;
use crate::client::Hints;

fn tool(hints: Hints) -> ToolInfo {
    ToolInfo {
        server: "files".into(),
        name: "write".into(),
        title: None,
        description: String::new(),
        input_schema: Arc::new(json!({})),
        output_schema: None,
        hints,
    }
}

const NOTHING: Hints = Hints { read_only: None, destructive: None, idempotent: None, open_world: None };
const READS: Hints = Hints { read_only: Some(true), ..NOTHING };
const REPEATS: Hints = Hints { idempotent: Some(true), ..NOTHING };
const GENTLE: Hints = Hints { destructive: Some(false), ..NOTHING };
const HARSH: Hints = Hints { destructive: Some(true), ..NOTHING };

#[test]
fn only_a_trusted_server_says_what_may_happen_again() {
    for (hints, trusted) in [
        (NOTHING, Effect::Once),
        (READS, Effect::Pure),
        (REPEATS, Effect::Idempotent),
        (GENTLE, Effect::Once),
        (HARSH, Effect::Once),
    ] {
        assert_eq!(effect(&tool(hints), Trust::Trusted), trusted, "{hints:?}");
        assert_eq!(effect(&tool(hints), Trust::Untrusted), Effect::Once, "{hints:?}");
    }
}

#[test]
fn only_a_trusted_server_says_what_needs_nobody() {
    let gate = |hints: Hints, trust: Trust| {
        let bare = Tool::<()>::dynamic("write", "", json!({ "type": "object" }), |_, _| async {
            Ok::<_, String>("written")
        });
        Approve::Hints.put_on(bare, &Arc::new(tool(hints)), trust).gate()
    };
    for (hints, trusted) in [
        (NOTHING, Gate::Closed),
        (READS, Gate::Open),
        (REPEATS, Gate::Closed),
        (GENTLE, Gate::Open),
        (HARSH, Gate::Closed),
    ] {
        assert_eq!(gate(hints, Trust::Trusted), trusted, "{hints:?}");
        assert_eq!(gate(hints, Trust::Untrusted), Gate::Closed, "{hints:?}");
    }
}
