//! One run at a time appends to a session: others wait or are refused, and parked or crashed runs block nobody.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::sync::Notify;
use windlass::core::{id::Timestamp, item::Item};
use windlass::error::{RunError, StoreErrorKind};
use windlass::model::describe_item;
use windlass::prelude::*;
use windlass::run::{OnSessionBusy, RunBuilder};
use windlass::session::{Session, SessionClaim, SessionStore};
use windlass::store::{LeaseClaim, MemoryStore, SqliteStore, Store, StoredLease};

/// A place for runs and their session.
struct Place {
    _folder: tempfile::TempDir,
    session: Session,
    store: Option<Arc<dyn Store>>,
    /// A second handle on the same session and store, as another process would have.
    other: (Session, Option<Arc<dyn Store>>),
}

/// Returns the places: one store for both by one or two handles, and a session without a store.
fn places() -> Vec<Place> {
    let folder = || tempfile::tempdir().expect("a folder");
    let (_folder, memory) = (folder(), Arc::new(MemoryStore::default()));
    let in_memory = Session::new("s", memory.clone());
    let (disk, here) = (folder(), folder());
    let path = disk.path().join("windlass.db");
    let one = Arc::new(SqliteStore::open(&path).expect("the store opens"));
    let two = Arc::new(SqliteStore::open(&path).expect("the store opens"));
    let alone = Session::in_memory("s");
    vec![
        Place {
            _folder,
            session: in_memory.clone(),
            store: Some(memory.clone()),
            other: (in_memory, Some(memory)),
        },
        Place {
            _folder: disk,
            session: Session::new("s", one.clone()),
            store: Some(one),
            other: (Session::new("s", two.clone()), Some(two)),
        },
        Place { _folder: here, session: alone.clone(), store: None, other: (alone, None) },
    ]
}

fn with_store(run: RunBuilder, store: &Option<Arc<dyn Store>>) -> RunBuilder {
    match store {
        Some(store) => run.store(store.clone()),
        None => run,
    }
}

/// Returns an agent whose tool says that it is working, and waits until it may go on.
fn slow_agent(working: &Arc<Notify>, go_on: &Arc<Notify>) -> Agent {
    let schema = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    let (working, go_on) = (working.clone(), go_on.clone());
    let wait = Tool::dynamic("wait", "Waits.", schema, move |_, _| {
        let (working, go_on) = (working.clone(), go_on.clone());
        async move {
            working.notify_one();
            go_on.notified().await;
            Ok::<_, ToolError>("done")
        }
    });
    let model = ScriptedModel::new([
        ScriptedResponse::items([Item::call("c1", "wait", "{}")]),
        ScriptedResponse::text("That took long."),
    ]);
    Agent::new("slow").model(model).tool(wait)
}

fn quick_agent() -> (Agent, ScriptedModel) {
    let model = ScriptedModel::new([ScriptedResponse::text("Quick.")]);
    (Agent::new("quick").model(model.clone()), model)
}

async fn conversation(session: &Session) -> Vec<String> {
    let items = session.items().await.expect("the session can be read");
    items.iter().map(|item| describe_item(item)).collect()
}

fn is_busy(error: &RunError) -> bool {
    matches!(error, RunError::Session(error) if error.kind() == StoreErrorKind::SessionBusy)
}

#[tokio::test]
async fn a_run_waits_for_another_or_is_refused() {
    for place in places() {
        let (working, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let slow = slow_agent(&working, &go_on).run("Slowly.").session(&place.session);
        let slow = tokio::spawn(with_store(slow, &place.store).into_future());
        working.notified().await;
        for policy in [OnSessionBusy::Refuse, OnSessionBusy::Wait(Duration::from_millis(20))] {
            let quick = quick_agent().0.run("Quickly.").session(&place.other.0).on_session_busy(policy);
            let error = with_store(quick, &place.other.1).await.expect_err("the session is in use");
            assert!(is_busy(&error), "{error}");
        }
        let (agent, model) = quick_agent();
        let quick = with_store(agent.run("Quickly.").session(&place.other.0), &place.other.1);
        let waiting = tokio::spawn(quick.into_future());
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(model.requests().len(), 0, "it waits");
        go_on.notify_one();
        slow.await.expect("no panic").expect("it ends");
        waiting.await.expect("no panic").expect("it ends");
        // The one that waited has seen all that came before it.
        assert_eq!(model.requests()[0].input.len(), 5);
        assert_eq!(
            conversation(&place.session).await,
            [
                "user: Slowly.",
                "call c1 wait {}",
                "output c1 done",
                "assistant: That took long.",
                "user: Quickly.",
                "assistant: Quick."
            ]
        );
    }
}

#[tokio::test]
async fn a_paused_run_blocks_nobody_and_its_items_come_after_theirs() {
    for place in places() {
        let schema =
            json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
        let pay = Tool::dynamic("pay", "Pays.", schema, |_, _| async { Ok::<_, ToolError>("paid 40") });
        let model = ScriptedModel::new([
            ScriptedResponse::items([Item::call("c1", "pay", "{}")]),
            ScriptedResponse::text("It is paid."),
        ]);
        let payer = Agent::new("till").model(model).tool(pay.needs_approval());
        let run = with_store(payer.run("Pay.").session(&place.session), &place.store);
        let mut paused = run.await.expect("it pauses").into_paused().expect("it pauses");
        let quick = quick_agent().0.run("Quickly.").session(&place.other.0);
        let quick = with_store(quick.on_session_busy(OnSessionBusy::Refuse), &place.other.1);
        quick.await.expect("a paused run holds nothing");
        paused.approve("c1").expect("it waits");
        // The session need not be attached again.
        with_store(payer.resume(paused), &place.store).await.expect("it ends");
        assert_eq!(
            conversation(&place.session).await,
            [
                "user: Pay.",
                "user: Quickly.",
                "assistant: Quick.",
                "call c1 pay {}",
                "output c1 paid 40",
                "assistant: It is paid."
            ]
        );
    }
}

#[tokio::test]
async fn a_run_that_was_dropped_blocks_nobody_for_good() {
    for place in places() {
        let (working, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let slow = slow_agent(&working, &go_on).run("Slowly.").session(&place.session);
        let slow = with_store(slow.lease_duration(Duration::from_secs(2)), &place.store);
        let slow = tokio::spawn(slow.into_future());
        working.notified().await;
        slow.abort();
        assert!(slow.await.is_err(), "it was dropped");
        let quick = with_store(quick_agent().0.run("Quickly.").session(&place.other.0), &place.other.1);
        quick.await.expect("the other one is dead");
        let said = conversation(&place.session).await;
        assert_eq!(said[said.len() - 2..], ["user: Quickly.", "assistant: Quick."]);
    }
}

#[tokio::test]
async fn a_nested_agent_works_on_the_session_of_its_parent() {
    for place in places() {
        let nested = quick_agent().0.as_tool("ask", "Asks.");
        let model = ScriptedModel::new([
            ScriptedResponse::items([Item::call("c1", "ask", r#"{"input":"Quickly."}"#)]),
            ScriptedResponse::text("I asked."),
        ]);
        let outer = Agent::new("outer").model(model).tool(nested);
        let run = outer.run("Ask.").session(&place.session).on_session_busy(OnSessionBusy::Refuse);
        with_store(run, &place.store).await.expect("it ends");
        assert_eq!(conversation(&place.session).await.len(), 4);
    }
}

#[tokio::test]
async fn runs_on_one_session_take_turns() {
    for place in places() {
        let runs = (0..6).map(|number| {
            let (session, store) = if number % 2 == 0 {
                (&place.session, &place.store)
            } else {
                (&place.other.0, &place.other.1)
            };
            let agent = quick_agent().0;
            tokio::spawn(with_store(agent.run(format!("{number}")).session(session), store).into_future())
        });
        for run in runs.collect::<Vec<_>>() {
            run.await.expect("no panic").expect("it ends");
        }
        let said = conversation(&place.session).await;
        assert_eq!(said.len(), 12);
        assert!(
            said.chunks(2).all(|turn| turn[0].starts_with("user") && turn[1] == "assistant: Quick."),
            "{said:?}"
        );
    }
}

/// Claims session `s` for a driver of another store.
async fn claim(store: &SqliteStore, owner: &str, abandoned: Option<&StoredLease>) -> SessionClaim {
    let claim = LeaseClaim { owner, now: Timestamp(1_000), duration: Duration::from_millis(50) };
    SessionStore::claim_session(store, &"s".into(), claim, abandoned).await.expect("it can be asked")
}

/// Its process stood still for longer than its lease, and it does not know that another driver has the session.
#[tokio::test]
async fn a_driver_that_was_replaced_without_noticing_appends_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let sessions = Arc::new(SqliteStore::open(folder.path().join("sessions.db")).expect("it opens"));
    let (session, runs) = (Session::new("s", sessions.clone()), Arc::new(MemoryStore::default()));
    let (working, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let agent = slow_agent(&working, &go_on);
    // Long enough that no renewal tells it.
    let slow = agent.run("Slowly.").session(&session).store(runs.clone()).run_id("slow");
    let slow = tokio::spawn(slow.lease_duration(Duration::from_secs(3_600)).into_future());
    working.notified().await;
    let before = conversation(&session).await;
    let holder = sessions.session_holder(&"s".into()).await.expect("it can be asked").expect("it is held");
    assert_eq!(holder.run, None, "the run is in another store");
    assert_eq!(claim(&sessions, "other", Some(&holder.lease)).await, SessionClaim::Granted);
    go_on.notify_one();
    let error = slow.await.expect("it ends").expect_err("another driver has the session");
    assert!(is_busy(&error), "{error}");
    assert_eq!(conversation(&session).await, before, "nothing was appended after the session was lost");

    SessionStore::release_session(&*sessions, &"s".into(), "other").await.expect("it is released");
    agent.recover("slow", runs).session(&session).await.expect("it goes on");
    let whole = conversation(&session).await;
    assert!(whole.len() > before.len() && whole.last().is_some_and(|last| last.contains("That took long.")));
}

#[tokio::test]
async fn a_run_of_the_sessions_store_waits_for_a_driver_of_another() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = Arc::new(SqliteStore::open(folder.path().join("windlass.db")).expect("it opens"));
    let session = Session::new("s", store.clone());
    assert_eq!(claim(&store, "elsewhere", None).await, SessionClaim::Granted);
    let refused = quick_agent().0.run("Quickly.").session(&session).store(store.clone());
    let error = refused.on_session_busy(OnSessionBusy::Refuse).await.expect_err("the session is claimed");
    assert!(is_busy(&error), "{error}");
    // The claimant does not renew its claim.
    let waits = quick_agent().0.run("Quickly.").session(&session).store(store.clone());
    let waits = waits.on_session_busy(OnSessionBusy::Wait(Duration::from_secs(600))).await;
    assert_eq!(waits.expect("the claim was abandoned").output_text().expect("it finished"), "Quick.");
}
