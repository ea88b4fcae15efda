use std::collections::BTreeSet;

use super::{IdempotencyKey, KeyNonce, KeyScope, UniqueCall, operation_digest};
use crate::canonical::Digest;
use crate::id::{AgentName, CallId, RunId, SessionId};
use crate::tool::ToolKey;

fn pay_digest(arguments: &str) -> Digest {
    operation_digest(&"bank".into(), &ToolKey::bare("pay"), arguments)
}

#[test]
fn every_part_of_a_key_counts() {
    let (one, two): (RunId, RunId) = ("one".into(), "two".into());
    let (ann, bo): (SessionId, SessionId) = ("ann".into(), "bo".into());
    let (first_nonce, second_nonce): (KeyNonce, KeyNonce) = ("x".into(), "one".into());
    let namespaced = ToolKey::Namespaced { namespace: "a".into(), name: "pay".into() };
    let operations = [
        pay_digest("{}"),
        pay_digest(r#"{"cents":5}"#),
        operation_digest(&"shop".into(), &ToolKey::bare("pay"), "{}"),
        operation_digest(&"bank".into(), &ToolKey::bare("a.pay"), "{}"),
        operation_digest(&"bank".into(), &namespaced, "{}"),
        operation_digest(&"bank".into(), &ToolKey::Deferred("pay".into()), "{}"),
        operation_digest(
            &"bank".into(),
            &ToolKey::Mcp { server: "a".into(), name: "pay".into(), definition: None },
            "{}",
        ),
    ];
    let redefined = ToolKey::Mcp {
        server: "a".into(),
        name: "pay".into(),
        definition: Some(Digest::of_text("a reworded description")),
    };
    assert_eq!(
        operation_digest(&"bank".into(), &redefined, "{}"),
        operations[6],
        "no definition is in a key"
    );
    let scopes = [
        KeyScope::Run { run: &one, nonce: None },
        KeyScope::Run { run: &two, nonce: None },
        KeyScope::Run { run: &one, nonce: Some(&first_nonce) },
        KeyScope::Run { run: &one, nonce: Some(&second_nonce) },
        KeyScope::Run { run: &two, nonce: Some(&first_nonce) },
        KeyScope::Session { session: &ann, store: None },
        KeyScope::Session { session: &bo, store: None },
        KeyScope::Session { session: &ann, store: Some("one") },
        KeyScope::Session { session: &ann, store: Some("two") },
        KeyScope::Session { session: &bo, store: Some("one") },
        KeyScope::Store("one"),
        KeyScope::Store("ann"),
    ];
    let mut keys = BTreeSet::new();
    for operation in operations {
        for scope in scopes {
            for generation in [0, 1] {
                let key = IdempotencyKey::derive(scope, &operation, generation);
                assert_eq!((key.as_str().len(), &key.as_str()[..3]), (35, "wl-"));
                assert_eq!(key, IdempotencyKey::derive(scope, &operation, generation));
                assert!(keys.insert(key), "{scope:?} {generation} {operation}");
            }
        }
    }
}

#[test]
fn every_part_of_a_unique_call_counts() {
    let (one, two): (RunId, RunId) = ("one".into(), "two".into());
    let (first_nonce, second_nonce): (KeyNonce, KeyNonce) = ("x".into(), "one".into());
    let (bank, shop): (AgentName, AgentName) = ("bank".into(), "shop".into());
    let (c1, c2): (CallId, CallId) = ("c1".into(), "c2".into());
    let parents = [CallId::from("x"), CallId::from("c1")];
    let (pay, other) = (ToolKey::bare("pay"), ToolKey::bare("pa"));
    let namespaced = ToolKey::Namespaced { namespace: "a".into(), name: "pay".into() };
    let mcp = |definition| ToolKey::Mcp { server: "a".into(), name: "pay".into(), definition };
    let (of_server, redefined) = (mcp(None), mcp(Some(Digest::of_text("a reworded description"))));
    let first = UniqueCall {
        run: &one,
        nonce: None,
        turn: 1,
        parent_calls: &[],
        call: &c1,
        agent: &bank,
        tool: &pay,
        arguments: "{}",
    };
    let calls = [
        first,
        UniqueCall { run: &two, ..first },
        UniqueCall { nonce: Some(&first_nonce), ..first },
        UniqueCall { nonce: Some(&second_nonce), ..first },
        UniqueCall { run: &two, nonce: Some(&first_nonce), ..first },
        UniqueCall { turn: 2, ..first },
        UniqueCall { parent_calls: &parents[..1], ..first },
        UniqueCall { parent_calls: &parents, ..first },
        UniqueCall { call: &c2, ..first },
        UniqueCall { agent: &shop, ..first },
        UniqueCall { tool: &other, ..first },
        UniqueCall { tool: &namespaced, ..first },
        UniqueCall { tool: &of_server, ..first },
        UniqueCall { arguments: r#"{"cents":5}"#, ..first },
    ];
    let mut keys = BTreeSet::new();
    for call in calls {
        let key = IdempotencyKey::of_unique_call(call);
        assert_eq!((key.as_str().len(), &key.as_str()[..3]), (35, "wl-"));
        assert!(keys.insert(key), "{call:?}");
    }
    let of_redefined = IdempotencyKey::of_unique_call(UniqueCall { tool: &redefined, ..first });
    assert!(keys.contains(&of_redefined), "no definition is in a key");
}
