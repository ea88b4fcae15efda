//! The claim to execute an idempotent call ends with the call, whatever is on its way to the store.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use serde_json::{Value, json};
use tokio::sync::Notify;
use windlass::agent::Agent;
use windlass::core::id::Timestamp;
use windlass::core::tool::ToolEffect;
use windlass::error::StoreError;
use windlass::model::{ScriptedModel, ScriptedResponse};
use windlass::store::{
    LeaseClaim, MemoryStore, ReceiptClaim, ReceiptKey, Store, StoreFuture, StoreWrapper, StoredLease,
};
use windlass::tool::{ReceiptPolicy, ReceiptScope, Tool, ToolContext, ToolError};

/// A store as a server is one: a request that has been sent is executed, also if nobody waits for its answer any more. The
/// renewal of a claim takes long.
#[derive(Clone, Default)]
struct SlowServer {
    inner: Arc<MemoryStore>,
    state: Arc<ServerState>,
}

#[derive(Default)]
struct ServerState {
    claimed: Mutex<Option<ReceiptKey>>,
    renewal_sent: Notify,
    renewal_done: Notify,
}

impl StoreWrapper for SlowServer {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    fn claim_receipt<'a>(
        &'a self,
        key: &'a ReceiptKey,
        claim: LeaseClaim<'a>,
        abandoned: Option<&'a StoredLease>,
    ) -> StoreFuture<'a, ReceiptClaim> {
        let mut claimed = self.state.claimed.lock().unwrap_or_else(PoisonError::into_inner);
        if claimed.replace(key.clone()).is_none() {
            return self.inner.claim_receipt(key, claim, abandoned);
        }
        let LeaseClaim { owner, now, duration } = claim;
        let (server, key, owner) = (self.clone(), key.clone(), owner.to_owned());
        let renewal = tokio::spawn(async move {
            server.state.renewal_sent.notify_one();
            tokio::time::sleep(Duration::from_secs(1)).await;
            let claim = LeaseClaim { owner: &owner, now, duration };
            let renewed = server.inner.claim_receipt(&key, claim, None).await;
            server.state.renewal_done.notify_one();
            renewed
        });
        async move { renewal.await.unwrap_or_else(|error| Err(StoreError::new(error.to_string()))) }.boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_on_its_way_does_not_claim_a_call_again_that_has_ended() {
    let store = SlowServer::default();
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    let state = store.state.clone();
    let order = Tool::dynamic("order", "Orders.", schema, move |_: ToolContext, _: Value| {
        let state = state.clone();
        async move {
            state.renewal_sent.notified().await;
            Err::<String, _>(ToolError::visible("sold out"))
        }
    });
    let order = order.effect(ToolEffect::Idempotent);
    let receipts = ReceiptPolicy { scope: ReceiptScope::Store, expire_after: None };
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "order", json!({})),
        ScriptedResponse::text("It is sold out."),
    ]);
    let agent = Agent::new("shop").model(model).tools(order.receipt_policy(receipts));
    agent.run("Order.").store(Arc::new(store.clone())).await.expect("the run ends");
    store.state.renewal_done.notified().await;
    let key = store.state.claimed.lock().expect("nobody panics").clone().expect("the call was claimed");
    // The next identical call does not wait.
    let claim = LeaseClaim { owner: "next", now: Timestamp(0), duration: Duration::from_secs(30) };
    let claimed = store.inner.claim_receipt(&key, claim, None).await.expect("the store answers");
    assert_eq!(claimed, ReceiptClaim::Acquired { generation: 0 });
}
