//! The API: runs, events, decisions and journals over HTTP.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use serde_json::{Value, json};
use support::{TestServer, clerk};
use windlass::core::authenticity::{MacKey, MacKeyring};
use windlass::core::id::Timestamp;
use windlass::fleet::{QueuedState, RunQueue, RunSubmission};
use windlass::store::{MemoryStore, RunQuery, SqliteStore, Store};
use windlass_server::ServerLimits;

fn decision(item: &Value, decision: Value) -> Value {
    json!({ "call": item["call"], "attempt": item["attempt"], "displayed": item["sheet"]["digest"], "decision": decision })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_started_once_and_its_approval_is_decided_from_the_inbox() {
    let server = TestServer::start().await;
    let client = server.client();
    let paused = client.start_until("r1", "pay Ropeworks", "paused").await;
    assert_eq!(paused["pending"].as_array().unwrap().len(), 1);
    let start = json!({ "run": "r1", "agent": "clerk", "input": "pay Ropeworks" });
    let (code, again) = client.post("/v1/runs", &start).await;
    assert_eq!((code, &again["is_repeated"]), (200, &json!(true)));
    let other = json!({ "run": "r1", "agent": "clerk", "input": "another" });
    assert_eq!(client.post("/v1/runs", &other).await.0, 409);

    let (code, inbox) = client.get("/v1/inbox").await;
    assert_eq!((code, &inbox["total"]), (200, &json!(1)), "{inbox}");
    let item = &inbox["calls"][0];
    assert_eq!((&item["tool"], &item["reason"]), (&json!("pay"), &json!("approval")));
    let invoice = item["sheet"]["arguments"].as_array().unwrap().iter().find(|one| one["name"] == "invoice");
    let shown = invoice.unwrap()["lines"][0].as_str().unwrap();
    assert!(shown.contains("202e") && !shown.contains('\u{202e}'), "{shown}");

    let (code, posted) =
        client.post("/v1/runs/r1/decisions", &decision(item, json!({ "type": "approve" }))).await;
    assert_eq!((code, &posted["decided_by"]), (200, &json!("tess")), "{posted}");
    let done = client.wait_for("r1", "finished").await;
    assert_eq!(done["output"], "Done after 2 outputs.");
    assert_eq!(client.get("/v1/inbox").await.1["total"], 0);
    let (code, taken) =
        client.post("/v1/runs/r1/decisions", &decision(item, json!({ "type": "reject" }))).await;
    assert_eq!((code, &taken["error"]["code"]), (409, &json!("already_taken")), "{taken}");
    let (_, records) = client.get("/v1/runs/r1/records").await;
    let decided =
        records["records"].as_array().unwrap().iter().find(|one| one.get("decision_recorded").is_some());
    let decided = &decided.unwrap()["decision_recorded"];
    assert_eq!((&decided["decided_by"], &decided["displayed"]), (&json!("tess"), &item["sheet"]["digest"]));
}

/// The approver of a click sees the screen that the click would hit, as in the terminal.
#[tokio::test(flavor = "multi_thread")]
async fn an_approver_is_shown_what_the_tool_saw_and_its_picture() {
    let server = TestServer::start().await;
    let client = server.client();
    let paused = client.start_until("r1", "click it", "paused").await;
    let evidence = &paused["pending"][0]["sheet"]["evidence"];
    assert_eq!(
        evidence["lines"],
        json!(["The page is https://shop.example/pay.", "button \"Pay\\u{202e}\""]),
        "{evidence}"
    );
    let inbox = client.get("/v1/inbox").await.1["calls"][0].clone();
    assert_eq!(inbox["sheet"], paused["pending"][0]["sheet"], "the inbox has the same sheet");
    let picture = evidence["picture"].as_str().unwrap();
    let (code, page) = client.get_text("/").await;
    assert!(code == 200 && page.contains(&format!("src=\"{picture}\"")), "{page}");
    let response = client.send(client.request("GET", picture).body(Default::default()).unwrap()).await;
    assert_eq!(
        (response.status().as_u16(), &response.headers()["content-type"]),
        (200, &"image/png".parse().unwrap())
    );
    let (code, body) =
        client.post("/v1/runs/r1/decisions", &decision(&inbox, json!({ "type": "approve" }))).await;
    assert_eq!(code, 200, "{body}");
    client.wait_for("r1", "finished").await;
    let (_, page) = client.get_text("/runs/r1").await;
    assert!(page.contains("class=\"shot\"") && page.contains("/media?url=artefact%3Ar1%2F"), "{page}");
}

/// A run whose file is dropped on the page of another server is shown with its pictures, and its import has them.
#[tokio::test(flavor = "multi_thread")]
async fn a_downloaded_run_has_its_pictures() {
    let server = TestServer::start().await;
    let client = server.client();
    let paused = client.start_until("r1", "click it", "paused").await;
    let approve = decision(&paused["pending"][0], json!({ "type": "approve" }));
    assert_eq!(client.post("/v1/runs/r1/decisions", &approve).await.0, 200);
    client.wait_for("r1", "finished").await;
    let (_, text) = client.get_text("/v1/runs/r1/export").await;
    assert_eq!(text.matches(support::PICTURE).count(), 1, "{text}");
    let address = "src=\"/media?url=artefact%3Ar1%2F";
    let post = async |to: &support::TestClient, path: &str, text: String| {
        let request = to.request("POST", path).header("content-type", "text/plain");
        to.send(request.body(text.into()).unwrap()).await
    };
    let shown_picture = async |to: &support::TestClient, page: &str| -> u16 {
        let (_, page) = to.get_text(page).await;
        let start = page.find(address).unwrap() + "src=\"".len();
        let picture = page[start..].split('"').next().unwrap();
        to.get_text(picture).await.0
    };
    // Another store has neither the run nor its pictures.
    let other = TestServer::start().await;
    let to = other.client();
    let damaged = text.replace(support::PICTURE, &support::PICTURE.replace("AAAADUlE", "AAAADUlF"));
    for (text, code) in [(damaged, 404), (text.clone(), 200)] {
        let look = support::read_json(post(&to, "/look", text).await).await.1;
        assert_eq!(shown_picture(&to, look.as_str().unwrap()).await, code, "{look}");
    }
    let stored = TestServer::start().await;
    let to = stored.client();
    assert_eq!(post(&to, "/v1/runs/import", text).await.status(), 201);
    assert_eq!(shown_picture(&to, "/runs/r1").await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_about_another_sheet_is_refused() {
    let server = TestServer::start().await;
    let client = server.client();
    let paused = client.start_until("r1", "pay Ropeworks", "paused").await;
    let item = &paused["pending"][0];
    let mut wrong = decision(item, json!({ "type": "approve" }));
    wrong["displayed"] = json!("0".repeat(64));
    let (code, body) = client.post("/v1/runs/r1/decisions", &wrong).await;
    assert_eq!((code, &body["error"]["code"]), (409, &json!("sheet_changed")));
    // Edited arguments are another sheet, and need its digest.
    let edited = json!({ "to": "Pilots", "euros": 1, "invoice": "P" });
    let edit = json!({ "type": "approve_edited", "arguments": edited });
    assert_eq!(client.post("/v1/runs/r1/decisions", &decision(item, edit.clone())).await.0, 409);
    let review = json!({ "call": item["call"], "arguments": edited });
    let (code, shown) = client.post("/v1/runs/r1/review", &review).await;
    assert_eq!(code, 200, "{shown}");
    let (code, body) = client.post("/v1/runs/r1/decisions", &decision(&shown, edit)).await;
    assert_eq!(code, 200, "{body}");
    client.wait_for("r1", "finished").await;
    let (_, state) = client.get("/v1/runs/r1/state").await;
    assert!(state["model_input"].to_string().contains("paid 1 euros"), "{state}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_comes_back_misses_nothing_and_ends_with_the_run() {
    let server = TestServer::start().await;
    let client = server.client();
    client.start_until("r1", "pay Ropeworks", "paused").await;
    let mut first = client.events("/v1/runs/r1/events", None).await;
    let (mut seen, mut last) = (Vec::new(), String::new());
    for _ in 0..2 {
        let event = first.next().await.unwrap();
        last = event.id.clone().unwrap();
        seen.push(event.json());
    }
    drop(first);
    let mut again = client.events("/v1/runs/r1/events", Some(&last)).await;
    let item = &client.get("/v1/inbox").await.1["calls"][0].clone();
    client.post("/v1/runs/r1/decisions", &decision(item, json!({ "type": "approve" }))).await;
    while let Some(event) = again.next().await {
        if event.event.as_deref() == Some("end") {
            break;
        }
        seen.push(event.json());
    }
    let seqs: Vec<u64> = seen.iter().map(|record| record["seq"].as_u64().unwrap()).collect();
    assert_eq!(seqs, (0..seen.len() as u64).collect::<Vec<_>>());
    let (_, all) = client.get("/v1/runs/r1/records?limit=500").await;
    assert_eq!(all["records"].as_array().unwrap(), &seen);
    assert!(seen.last().unwrap().get("run_finished").is_some());
    // A stream from after the end ends at once.
    let mut late = client.events(&format!("/v1/runs/r1/events?from={}", seen.len()), None).await;
    assert_eq!(late.next().await.unwrap().event.as_deref(), Some("end"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_goes_on_after_a_restart_of_the_server() {
    let server = TestServer::start().await;
    server.client().start_until("r1", "pay Ropeworks", "paused").await;
    let (store, folder) = server.stop().await;
    let server = TestServer::start_on(store, |server| server).await;
    let client = server.client();
    let item = client.get("/v1/inbox").await.1["calls"][0].clone();
    let (code, body) =
        client.post("/v1/runs/r1/decisions", &decision(&item, json!({ "type": "approve" }))).await;
    assert_eq!(code, 200, "{body}");
    client.wait_for("r1", "finished").await;
    drop((server, folder));
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_are_answered_and_rejections_have_reasons() {
    let server = TestServer::start().await;
    let client = server.client();
    let paused = client.start_until("q", "ask me", "paused").await;
    let item = &paused["pending"][0];
    assert_eq!(item["reason"], "question");
    assert_eq!(item["sheet"]["question"], json!(["One word."]));
    let answer = decision(item, json!({ "type": "answer", "value": "green" }));
    assert_eq!(client.post("/v1/runs/q/decisions", &answer).await.0, 200);
    client.wait_for("q", "finished").await;
    let paused = client.start_until("n", "pay Ropeworks", "paused").await;
    let reject = decision(&paused["pending"][0], json!({ "type": "reject", "message": "too much" }));
    assert_eq!(client.post("/v1/runs/n/decisions", &reject).await.0, 200);
    client.wait_for("n", "finished").await;
    let (_, state) = client.get("/v1/runs/n/state").await;
    assert!(state["model_input"].to_string().contains("too much"), "{state}");
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_are_listed_in_pages_searched_cancelled_and_given_input() {
    let server = TestServer::start().await;
    let client = server.client();
    for n in 0..5 {
        client.start_until(&format!("r{n}"), "hello", "finished").await;
    }
    client.start_until("waiting", "pay Ropeworks", "paused").await;
    // The status in lists follows the journal when the worker leaves the run.
    while client.get("/v1/runs?status=paused").await.1["runs"].as_array().unwrap().is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let (_, first) = client.get("/v1/runs?limit=4").await;
    let next = first["next"].as_str().unwrap();
    let (_, second) = client.get(&format!("/v1/runs?limit=4&after={next}")).await;
    let ids = |page: &Value| -> Vec<String> {
        page["runs"].as_array().unwrap().iter().map(|run| run["run"].as_str().unwrap().to_owned()).collect()
    };
    let all: Vec<String> = ids(&first).into_iter().chain(ids(&second)).collect();
    assert_eq!(all, ["waiting", "r4", "r3", "r2", "r1", "r0"]);
    assert_eq!(ids(&client.get("/v1/runs?status=paused").await.1), ["waiting"]);
    assert_eq!(ids(&client.get("/v1/runs?search=ait").await.1), ["waiting"]);
    assert_eq!(ids(&client.get("/v1/runs?agent=nobody").await.1), Vec::<String>::new());
    assert_eq!(client.get("/v1/runs?limit=0").await.0, 400);
    assert_eq!(client.get("/v1/runs?colour=red").await.0, 400);
    assert_eq!(client.post("/v1/runs/waiting/input", &json!({ "input": "hurry" })).await.0, 202);
    assert_eq!(client.post("/v1/runs/waiting/cancel", &Value::Null).await.0, 202);
    client.wait_for("waiting", "cancelled").await;
    assert_eq!(client.post("/v1/runs/waiting/cancel", &Value::Null).await.0, 409);
    assert_eq!(client.post("/v1/runs/none/cancel", &Value::Null).await.0, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_forked_compared_exported_and_imported() {
    let server = TestServer::start().await;
    let client = server.client();
    client.start_until("r1", "pay Ropeworks", "paused").await;
    let change = json!({ "type": "reject", "call": "pay-1", "message": "not now" });
    let (_, records) = client.get("/v1/runs/r1/records").await;
    let at = records["records"].as_array().unwrap().len() - 1;
    let fork = json!({ "run": "f1", "at": at, "change": change, "start": true });
    let (code, body) = client.post("/v1/runs/r1/fork", &fork).await;
    assert_eq!(code, 201, "{body}");
    client.wait_for("f1", "finished").await;
    let queued = server.queue.load_queued_run(&"f1".into()).await.unwrap().unwrap();
    assert_eq!(queued.submission.tenant, "tess");
    let (code, diff) = client.get("/v1/runs/f1/diff?with=r1").await;
    assert_eq!((code, &diff["is_same"]), (200, &json!(false)), "{diff}");
    assert_eq!(diff["common_records"], at + 1);
    let (_, text) = client.get_text("/v1/runs/f1/export").await;
    let other = TestServer::start().await;
    let to = other.client();
    let request = to.request("POST", "/v1/runs/import").header("content-type", "text/plain");
    let (code, body) = support::read_json(to.send(request.body(text.clone().into()).unwrap()).await).await;
    assert_eq!((code, &body["status"]), (201, &json!("finished")), "{body}");
    let (_, verified) = to.get("/v1/runs/f1/verify").await;
    assert_eq!(verified["is_whole"], true, "{verified}");
    let (_, same) = to.get_text("/v1/runs/f1/export").await;
    assert_eq!(same.lines().filter(|line| line.contains("run_finished")).count(), 1);
    let request = to.request("POST", "/v1/runs/import").header("content-type", "text/plain");
    let damaged = text.replace("not now", "right now");
    assert_eq!(to.send(request.body(damaged.into()).unwrap()).await.status(), 422);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_not_submitted_is_not_adopted_by_a_start() {
    let server = TestServer::start().await;
    let outside: Arc<dyn Store> = server.queue.clone();
    clerk().run("pay Ropeworks").store(outside).run_id("own").await.unwrap();
    let client = server.client();
    let start = json!({ "run": "own", "agent": "clerk", "input": "pay Ropeworks" });
    assert_eq!(client.post("/v1/runs", &start).await.0, 409);
    let item = client.get("/v1/inbox").await.1["calls"][0].clone();
    assert_eq!(item["run"], "own");
    // A decision lets a worker continue it.
    let (code, body) =
        client.post("/v1/runs/own/decisions", &decision(&item, json!({ "type": "approve" }))).await;
    assert_eq!(code, 200, "{body}");
    client.wait_for("own", "finished").await;
    let queued = server.queue.load_queued_run(&"own".into()).await.unwrap().unwrap();
    assert_eq!(queued.submission.tenant, "tess");
    assert_eq!(server.queue.list_runs(&RunQuery::default()).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_of_scheduled_and_of_queued_runs_are_not_taken() {
    let limits = ServerLimits { concurrent_runs: 0, ..ServerLimits::default() };
    let server = TestServer::start_with(|server| server.limits(limits)).await;
    let client = server.client();
    let start = async |client: &support::TestClient, run: &str| {
        let body = json!({ "run": run, "agent": "clerk", "input": "hello" });
        let (code, answer) = client.post("/v1/runs", &body).await;
        (code, answer["error"]["code"].as_str().map(str::to_owned))
    };
    // A schedule would take it for the run of its time, and submit none.
    assert_eq!(start(&client, "tidy@1794987000").await, (409, Some("reserved_id".to_owned())));
    assert_eq!(start(&client, "me@home").await.0, 201);
    let outside: Arc<dyn Store> = server.queue.clone();
    clerk().run("hello").store(outside).run_id("own").await.unwrap();
    // The queued run would go on with the journal of the fork, or of the import.
    for (run, code) in [("me@home", "already_exists"), ("tidy@1794987000", "reserved_id")] {
        let (status, answer) = client.post("/v1/runs/own/fork", &json!({ "run": run, "at": 1 })).await;
        assert_eq!((status, &answer["error"]["code"]), (409, &json!(code)), "{answer}");
    }
    let (_, text) = client.get_text("/v1/runs/own/export").await;
    let other = TestServer::start_with(|server| server.limits(limits)).await;
    let to = other.client();
    assert_eq!(start(&to, "own").await.0, 201);
    let request = to.request("POST", "/v1/runs/import").header("content-type", "text/plain");
    let (code, body) = support::read_json(to.send(request.body(text.into()).unwrap()).await).await;
    assert_eq!((code, &body["error"]["code"]), (409, &json!("already_exists")), "{body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_description_has_every_route_and_every_route_answers() {
    let server = TestServer::start().await;
    let client = server.client();
    let (code, described) = client.get("/v1/openapi.json").await;
    assert_eq!(code, 200);
    assert_eq!(described, windlass_server::openapi_description());
    let mut count = 0;
    for (path, operations) in described["paths"].as_object().unwrap() {
        let real = path.replace("{run}", "none").replace("{session}", "none");
        for method in ["GET", "POST", "PUT", "DELETE"] {
            let is_described = operations.get(method.to_lowercase()).is_some();
            count += usize::from(is_described);
            let request = client.request(method, &real).body(Default::default()).unwrap();
            let response = client.send(request).await;
            let is_missing = response.status() == 405;
            assert_eq!(is_described, !is_missing, "{method} {path}: {}", response.status());
        }
    }
    assert_eq!(count, 28);
    // Every reference has its definition.
    let text = described.to_string();
    for reference in text.split("#/components/schemas/").skip(1) {
        let name = reference.split('"').next().unwrap();
        assert!(described["components"]["schemas"].get(name).is_some(), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_follow_a_run_from_its_start_all_get_its_end() {
    let server = TestServer::start().await;
    let client = server.client();
    let mut readers = Vec::new();
    for n in 0..40 {
        let start = json!({ "run": format!("r{n}"), "agent": "clerk", "input": "many files" });
        assert_eq!(client.post("/v1/runs", &start).await.0, 201);
        let mut events = client.events(&format!("/v1/runs/r{n}/events"), None).await;
        readers.push(tokio::spawn(async move {
            let mut last = Value::Null;
            while let Some(event) = events.next().await {
                match event.event.as_deref() {
                    Some("end") => break,
                    _ => last = event.json(),
                }
            }
            last
        }));
    }
    for reader in readers {
        let last = reader.await.unwrap();
        assert!(last.get("run_finished").is_some(), "{last}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn costs_and_metrics_say_what_was_spent_and_what_is_unknown() {
    let prices = r#"{ "as_of": "2026-01-01", "source": "a test", "currency": "USD",
        "models": [{ "model": "clerk-1", "input": 1000, "output": 1000 }] }"#;
    let prices = Arc::new(windlass::price::PriceList::parse(prices).unwrap());
    let server = TestServer::start_with(|server| server.prices(prices)).await;
    let client = server.client();
    client.start_until("r1", "hello", "finished").await;
    client.start_until("waiting", "pay Ropeworks", "paused").await;
    // The status in lists follows the journal when the worker leaves the run.
    while client.get("/v1/runs?status=paused").await.1["runs"].as_array().unwrap().is_empty() {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let (code, costs) = client.get("/v1/costs").await;
    assert_eq!((code, &costs["total"]["requests"]), (200, &json!(2)), "{costs}");
    // Each of the two requests has 812 tokens in and 31 out.
    assert_eq!(costs["total"]["cost"], json!(1.686));
    for (place, name) in [("agents", "clerk"), ("models", "clerk-1"), ("runs", "r1")] {
        assert!(costs[place][name]["cost"].as_f64().unwrap() > 0.0, "{place} {name}: {costs}");
    }
    assert_eq!(costs["days"].as_object().unwrap().len(), 1);
    // The records that a fork has of its origin were paid for once.
    let (code, fork) = client.post("/v1/runs/r1/fork", &json!({ "run": "f1", "at": 1 })).await;
    assert_eq!((code, &fork["status"]), (201, &json!("running")), "{fork}");
    let (_, costs) = client.get("/v1/costs").await;
    assert_eq!((&costs["total"]["requests"], &costs["total"]["cost"]), (&json!(2), &json!(1.686)), "{costs}");
    assert_eq!(client.get("/v1/costs?days=0").await.0, 400);
    // The driver of the server has no price for the model: the run says that its cost is unknown.
    let (_, run) = client.get("/v1/runs/r1").await;
    assert_eq!((&run["cost"], &run["unpriced_requests"]), (&Value::Null, &json!(1)));
    let (code, page) = client.get_text("/costs").await;
    assert!(code == 200 && page.contains("$1.6860") && page.contains("<svg"), "{page}");

    let (code, metrics) = client.get_text("/metrics").await;
    assert_eq!(code, 200);
    for line in [
        "windlass_runs{state=\"finished\"} 1",
        "windlass_runs{state=\"paused\"} 1",
        "windlass_model_requests_total{model=\"clerk-1\"} 2",
        "windlass_model_requests_of_unknown_cost_total{model=\"clerk-1\"} 2",
        "windlass_model_input_tokens_total{model=\"clerk-1\"} 1624",
        "windlass_calls_total{status=\"succeeded\"} 1",
        "windlass_model_seconds_count 2",
        "windlass_inbox_calls 1",
        "windlass_workers 1",
    ] {
        assert!(metrics.lines().any(|one| one == line), "{line} is not in\n{metrics}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_budget_question_is_answered_from_the_inbox() {
    use windlass::core::budget::SpendingBudget;
    use windlass::fleet::{AgentRegistry, DeployedAgent};
    let budget = SpendingBudget::new().requests(1).ask_person();
    let deployed = DeployedAgent::new(clerk()).configure_runs(move |run| run.budget(budget.clone()));
    let server = TestServer::start_registry(AgentRegistry::new().deploy(deployed)).await;
    let client = server.client();
    let paused = client.start_until("r1", "fail please", "paused").await;
    let item = &paused["pending"][0];
    assert_eq!((&item["tool"], &item["reason"]), (&json!("windlass.budget"), &json!("question")));
    assert_eq!(item["answer_schema"], json!({ "type": "integer", "minimum": 0 }));
    assert!(client.get_text("/").await.1.contains("How many more requests"));
    let answer = decision(item, json!({ "type": "answer", "value": 5 }));
    let (code, body) = client.post("/v1/runs/r1/decisions", &answer).await;
    assert_eq!(code, 200, "{body}");
    client.wait_for("r1", "finished").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_of_a_store_with_keys_is_exported_and_imported_with_its_mac() {
    let keyed = |number: u8| {
        let keys = MacKeyring::new(MacKey::from_bytes([number; 32]));
        Arc::new(MemoryStore::default().with_keys(keys))
    };
    let server = TestServer::start_on(keyed(1), |server| server).await;
    let client = server.client();
    client.start_until("r1", "hello", "finished").await;
    let (code, text) = client.get_text("/v1/runs/r1/export").await;
    assert_eq!(code, 200, "{text}");
    for (number, expected) in [(1, 201), (2, 422)] {
        let other = TestServer::start_on(keyed(number), |server| server).await;
        let to = other.client();
        let request = to.request("POST", "/v1/runs/import").header("content-type", "text/plain");
        let (code, body) =
            support::read_json(to.send(request.body(text.clone().into()).unwrap()).await).await;
        assert_eq!(code, expected, "{body}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_is_cancelled_and_takes_no_other_order() {
    let limits = ServerLimits { concurrent_runs: 0, ..ServerLimits::default() };
    let server = TestServer::start_with(|server| server.limits(limits)).await;
    let client = server.client();
    let run = windlass::core::id::RunId::from("r");
    support::bury_run(&*server.queue, "r").await;
    for (path, body) in [("/v1/runs/r/input", json!({ "input": "more" })), ("/v1/runs/r/resume", Value::Null)]
    {
        let (code, refused) = client.post(path, &body).await;
        assert_eq!((code, &refused["error"]["code"]), (409, &json!("dead_letter")), "{path}");
    }
    assert_eq!(client.post("/v1/runs/r/cancel", &Value::Null).await.0, 202);
    let queued = server.queue.load_queued_run(&run).await.unwrap().unwrap();
    assert_eq!(queued.state, QueuedState::Ready);
}

/// Dead letters are found among many runs, and one that is revived is driven like any other.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_letter_is_found_and_revived() {
    let folder = tempfile::tempdir().unwrap();
    let store: Arc<dyn RunQueue> = Arc::new(SqliteStore::open(folder.path().join("store.db")).unwrap());
    for number in 0..3 {
        let submission = RunSubmission::new(format!("a{number}").as_str(), "clerk", "hello");
        store.submit_run(&submission.start_at(Timestamp(4_000_000_000_000)), Timestamp(1_000)).await.unwrap();
    }
    support::bury_run(&*store, "r").await;
    let server = TestServer::start_on(store, |server| server).await;
    let client = server.client();
    let queue = async |query: &str| {
        let (code, fleet) = client.get(&format!("/v1/fleet?{query}")).await;
        assert_eq!(code, 200, "{fleet}");
        fleet["queue"].as_array().unwrap().iter().map(|one| one["run"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(queue("limit=9").await.len(), 4);
    assert_eq!(queue("state=dead_letter&limit=1").await, [json!("r")]);
    assert_eq!(client.get("/v1/fleet?state=other").await.0, 400);
    let (_, page) = client.get_text("/fleet?state=dead_letter").await;
    assert!(page.contains("data-act=\"revive\"") && !page.contains(">a0</a>"), "{page}");
    let (code, body) = client.post("/v1/runs/r/revive", &Value::Null).await;
    assert!((200..300).contains(&code), "{code} {body}");
    client.wait_for("r", "finished").await;
    assert!(queue("state=dead_letter").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_run_of_a_long_queue_is_on_a_page() {
    let limits = ServerLimits { concurrent_runs: 0, ..ServerLimits::default() };
    let server = TestServer::start_with(|server| server.limits(limits)).await;
    for n in 0..201 {
        let submission = RunSubmission::new(format!("run-{n:03}").as_str(), "clerk", "hello");
        server.queue.submit_run(&submission, Timestamp(1_000)).await.unwrap();
    }
    let client = server.client();
    let (_, first) = client.get_text("/fleet").await;
    assert!(first.contains("run-199") && !first.contains("run-200"), "{first}");
    assert!(first.contains("href=\"/fleet?after=run-199\""), "{first}");
    let (_, second) = client.get_text("/fleet?after=run-199").await;
    assert!(second.contains("run-200") && !second.contains("rel=\"next\""), "{second}");
    // Nobody has taken the run: it can be cancelled from its page.
    let (_, page) = client.get_text("/runs/run-200").await;
    assert!(page.contains("data-act=\"cancel\"") && page.contains("No worker has taken it"), "{page}");
}
