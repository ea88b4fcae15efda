//! Sweeps find crashes that no seed at the writes finds: between two effects of one body.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use windlass::core::item::{Item, OutputContent};
use windlass::core::tool::ToolEffect;
use windlass::prelude::*;
use windlass::tool::ReconcileOutcome;
use windlass::tool::ToolError;
use windlass_sim::{ContractCase, CrashSweep, RunStart, SimModel, SimWorld, ToolContract};

/// The two books of a transfer.
#[derive(Clone, Default)]
struct TestBooks {
    entries: Arc<Mutex<Vec<&'static str>>>,
}

impl TestBooks {
    fn write(&self, entry: &'static str) {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
    }

    fn entries(&self) -> Vec<&'static str> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn empty_schema() -> Value {
    json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false })
}

/// A tool with two effects. Its reconcile function looks at `witness`.
fn transfer(books: &TestBooks, witness: &'static str) -> Tool {
    let (written, asked) = (books.clone(), books.clone());
    Tool::dynamic("transfer", "Moves money between two books.", empty_schema(), move |_, _| {
        let books = written.clone();
        async move {
            books.write("debit");
            tokio::task::yield_now().await;
            books.write("credit");
            Ok::<_, ToolError>("moved")
        }
    })
    .reconcile(move |_| {
        let books = asked.clone();
        async move {
            match books.entries() {
                entries if entries.contains(&witness) => {
                    ReconcileOutcome::Executed(OutputContent::from("moved"))
                }
                entries if entries.is_empty() => ReconcileOutcome::NotExecuted,
                _ => ReconcileOutcome::Unknown,
            }
        }
    })
}

fn failure_text(check: impl FnOnce()) -> String {
    match catch_unwind(AssertUnwindSafe(check)) {
        Ok(()) => panic!("no case fails"),
        Err(panic) => panic.downcast_ref::<String>().cloned().unwrap_or_default(),
    }
}

#[test]
fn a_reconcile_function_that_looks_at_the_first_of_two_effects_is_found() {
    let text = failure_text(|| {
        ToolContract::new(json!({})).check(|_| {
            let books = TestBooks::default();
            ContractCase::new(transfer(&books, "debit"), move || books.entries())
        });
    });
    assert!(
        text.contains(r#"one call leaves ["debit", "credit"]; after the crash it is ["debit"]"#),
        "{text}"
    );
    assert!(text.contains("in the body of call c1, await 1   <- crash"), "{text}");
    assert!(text.contains("journal of run `run-1`"), "{text}");
    assert!(text.contains("replay it: WINDLASS_CRASH_AT="), "{text}");
}

#[test]
fn a_reconcile_function_that_looks_at_the_last_effect_keeps_the_contract() {
    let report = ToolContract::new(json!({})).check(|_| {
        let books = TestBooks::default();
        ContractCase::new(transfer(&books, "credit"), move || books.entries())
    });
    assert!(report.case_count > report.point_count, "{report:?}");
}

#[test]
fn a_tool_that_is_not_as_idempotent_as_it_declares_is_found() {
    let text = failure_text(|| {
        ToolContract::new(json!({})).check(|_| {
            let books = TestBooks::default();
            let written = books.clone();
            let add = Tool::dynamic("add", "Adds a line.", empty_schema(), move |_, _| {
                let books = written.clone();
                async move {
                    tokio::task::yield_now().await;
                    books.write("line");
                    Ok::<_, ToolError>("added")
                }
            });
            ContractCase::new(add.effect(ToolEffect::Idempotent), move || books.entries())
        });
    });
    assert!(text.contains(r#"one call leaves ["line"]; after the crash it is ["line", "line"]"#), "{text}");
}

#[test]
fn a_pure_tool_that_changes_the_world_is_found() {
    let text = failure_text(|| {
        ToolContract::new(json!({})).check(|_| {
            let books = TestBooks::default();
            let written = books.clone();
            let look = Tool::dynamic("look", "Looks.", empty_schema(), move |_, _| {
                written.write("visit");
                async move { Ok::<_, ToolError>("seen") }
            });
            ContractCase::new(look.effect(ToolEffect::Pure), move || books.entries())
        });
    });
    assert!(
        text.contains("the case without a crash fails: a call of a pure tool changed the world"),
        "{text}"
    );
}

/// Two sibling calls, up to two crashes: no effect occurs twice, and no result is lost.
#[test]
fn siblings_survive_every_crash() {
    let report = CrashSweep::new().max_crashes(2).check(|case| {
        let world = SimWorld::new();
        let agent = || {
            let world = world.clone();
            let pay = Tool::dynamic("pay", "Pays.", empty_schema(), move |ctx, _| {
                let world = world.clone();
                async move {
                    tokio::task::yield_now().await;
                    world.record_effect(&ctx);
                    tokio::task::yield_now().await;
                    Ok::<_, ToolError>("paid")
                }
            });
            let model = SimModel::scripted(
                case.sim(),
                [
                    vec![Item::call("c1", "pay", "{}"), Item::call("c2", "pay", "{ }")],
                    vec![Item::assistant("Done.")],
                ],
            );
            Agent::new("desk").model(model).tool(pay)
        };
        let result = case.run(|start| match start {
            RunStart::Fresh => agent().run("Pay both."),
            RunStart::Recovered { run, store } => agent().recover(run, store),
        });
        let result = result.expect("it ends or pauses");
        for call in ["c1", "c2"] {
            let count = world.count_by_call(call);
            assert!(count == 1 || (count == 0 && result.is_paused()), "{call}: {count} effects");
        }
    });
    assert!(report.case_count > 100, "{report:?}");
}

#[test]
fn a_sweep_with_too_many_cases_leaves_none_out_silently() {
    let text = failure_text(|| {
        CrashSweep::new().max_cases(3).check(|case| {
            let model = SimModel::scripted(case.sim(), [vec![Item::assistant("Hello.")]]);
            let agent = Agent::new("desk").model(model);
            let result = case.run(|start| match start {
                RunStart::Fresh => agent.run("Hello."),
                RunStart::Recovered { run, store } => agent.recover(run, store),
            });
            result.expect("it ends");
        });
    });
    assert!(text.contains("more than 3 cases"), "{text}");
}
