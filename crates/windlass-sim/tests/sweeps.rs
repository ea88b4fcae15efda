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

#[test]
fn a_call_that_is_never_made_keeps_no_contract() {
    let schema = json!({ "type": "object", "properties": { "cents": { "type": "integer" } },
        "required": ["cents"], "additionalProperties": false });
    for (arguments, body_fails) in [(json!({ "cent": 500 }), false), (json!({ "cents": 500 }), true)] {
        let text = failure_text(|| {
            ToolContract::new(arguments.clone()).check(|_| {
                let books = TestBooks::default();
                let pay = Tool::dynamic("pay", "Pays.", schema.clone(), move |_, _| async move {
                    if body_fails { Err("the bank is closed") } else { Ok("paid") }
                });
                ContractCase::new(pay.effect(ToolEffect::Idempotent), move || books.entries())
            });
        });
        assert!(text.contains("the call does not succeed without a crash"), "{text}");
    }
}

/// A bank behind a socket, on a thread of its own. It takes its time, and knows the keys of its payments.
struct RemoteBank {
    address: std::net::SocketAddr,
    payments: Arc<Mutex<Vec<String>>>,
}

impl RemoteBank {
    #[expect(clippy::expect_used, reason = "a failed precondition fails the test")]
    fn start() -> Self {
        use std::io::{BufRead, BufReader, Write};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let payments = Arc::new(Mutex::new(Vec::new()));
        let ledger = payments.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let mut key = String::new();
                // A caller that died before it had sent its key has ordered nothing.
                if BufReader::new(&stream).read_line(&mut key).is_err() || !key.ends_with('\n') {
                    continue;
                }
                std::thread::sleep(std::time::Duration::from_millis(5));
                let mut ledger = ledger.lock().unwrap_or_else(PoisonError::into_inner);
                if !ledger.contains(&key) {
                    ledger.push(key);
                }
                // The process of the caller may be dead.
                let _ = (&stream).write_all(b"paid\n");
            }
        });
        Self { address, payments }
    }
}

#[test]
fn a_tool_may_reach_its_world_over_a_socket() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let report = ToolContract::new(json!({})).sweep(CrashSweep::new().with_io()).check(|_| {
        let bank = RemoteBank::start();
        let address = bank.address;
        let pay = Tool::dynamic("pay", "Pays.", empty_schema(), move |ctx: ToolContext, _| async move {
            let paying = async {
                let mut stream = tokio::net::TcpStream::connect(address).await?;
                stream.write_all(format!("{}\n", ctx.idempotency_key()).as_bytes()).await?;
                let mut answer = String::new();
                stream.read_to_string(&mut answer).await?;
                Ok::<_, std::io::Error>(answer)
            };
            // A virtual clock would jump to the end of this hour at once.
            match tokio::time::timeout(std::time::Duration::from_secs(3_600), paying).await {
                Ok(answer) => answer.map_err(|error| error.to_string()),
                Err(_) => Err("the bank does not answer".to_owned()),
            }
        });
        ContractCase::new(pay.effect(ToolEffect::Idempotent), move || {
            bank.payments.lock().unwrap_or_else(PoisonError::into_inner).len()
        })
    });
    assert!(report.case_count > 5, "{report:?}");
}
