//! Hostile requests: they are refused, and nothing changes.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use serde_json::{Value, json};
use support::{TestClient, TestServer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use windlass::core::decision::{Decision, DecisionScope};
use windlass::store::{
    ApproverPolicy, ApproverSigner, DecisionReview, RunQuery, SqliteStore, post_signed_decision,
    prepare_decision, verify_run,
};
use windlass_server::{
    AccessPolicy, AccessRole, AgentServer, CallPreview, ServerError, ServerLimits, TokenDigest, TrustedProxy,
};

fn people() -> AccessPolicy {
    let person = |policy: AccessPolicy, name: &str, role| {
        policy.with_person(name, TokenDigest::of_token(&format!("{name}-token")), [("clerk", role)])
    };
    let policy = person(AccessPolicy::default(), "vera", AccessRole::View);
    let policy = person(policy, "rob", AccessRole::Run);
    let policy = person(policy, "anna", AccessRole::Approve);
    policy.with_person("root", TokenDigest::of_token("root-token"), [("*", AccessRole::Administer)])
}

async fn server() -> TestServer {
    TestServer::start_with(|server| server.access(people())).await
}

async fn count_runs(server: &TestServer) -> usize {
    server.queue.list_runs(&RunQuery::default()).await.unwrap().len()
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_without_a_token_reads_or_changes_anything() {
    let server = server().await;
    for client in [server.client(), server.client_with("wrong"), server.client_with("")] {
        for path in
            ["/v1/runs", "/v1/inbox", "/v1/openapi.json", "/v1/me", "/v1/sessions", "/v1/inbox/events"]
        {
            assert_eq!(client.get(path).await.0, 401, "{path}");
        }
        let start = json!({ "run": "r", "agent": "clerk", "input": "hello" });
        assert!([401, 429].contains(&client.post("/v1/runs", &start).await.0));
    }
    assert_eq!(count_runs(&server).await, 0);
    // A browser is sent to the page that asks for the token, which says nothing about runs.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let request =
        server.client().request("GET", "/").header("accept", "text/html").body(Default::default()).unwrap();
    let response = server.client().send(request).await;
    assert_eq!(
        (response.status().as_u16(), response.headers()["location"].to_str().unwrap()),
        (303, "/login")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn each_right_allows_its_own_acts_and_the_decider_is_the_authenticated_person() {
    let server = server().await;
    let [vera, rob, anna, root] =
        ["vera", "rob", "anna", "root"].map(|name| server.client_with(&format!("{name}-token")));
    let start = json!({ "run": "r", "agent": "clerk", "input": "pay Ropeworks" });
    for client in [&vera, &anna] {
        assert_eq!(
            client.post("/v1/runs", &start).await.0,
            404,
            "an agent that one may not run does not exist"
        );
    }
    assert_eq!(rob.post("/v1/runs", &start).await.0, 201);
    let paused = vera.wait_for("r", "paused").await;
    let item = &paused["pending"][0];
    let body = json!({ "call": item["call"], "attempt": 0, "displayed": item["sheet"]["digest"], "decision": { "type": "approve" } });
    for client in [&vera, &rob] {
        let (code, refused) = client.post("/v1/runs/r/decisions", &body).await;
        assert_eq!((code, &refused["error"]["code"]), (403, &json!("missing_right")));
        let import = client.request("POST", "/v1/runs/import").header("content-type", "text/plain");
        let status = client.send(import.body("windlass 1".into()).unwrap()).await.status();
        assert!(status == 403 || status == 422, "{status}");
    }
    assert_eq!(vera.post("/v1/runs/r/cancel", &Value::Null).await.0, 403);
    assert_eq!(vera.post("/v1/runs/r/fork", &json!({ "at": 1 })).await.0, 403);
    assert_eq!(vera.get("/v1/sessions").await.0, 403);
    let mut forged = body.clone();
    forged["decided_by"] = json!("root");
    assert_eq!(anna.post("/v1/runs/r/decisions", &forged).await.0, 400, "nobody names the decider");
    assert_eq!(anna.post("/v1/runs/r/decisions", &body).await.1["decided_by"], "anna");
    vera.wait_for("r", "finished").await;
    // Runs of agents that one may not view do not exist, in lists, by id and in the inbox.
    let other = json!({ "run": "secret", "agent": "bank", "input": "pay Bank" });
    assert_eq!(root.post("/v1/runs", &other).await.0, 201);
    root.wait_for("secret", "paused").await;
    assert_eq!(vera.get("/v1/runs/secret").await.0, 404);
    assert_eq!(vera.get("/v1/inbox").await.1["total"], 0);
    assert_eq!(root.get("/v1/inbox").await.1["total"], 1);
    assert!(!vera.get("/v1/runs").await.1.to_string().contains("secret"));
    assert!(!vera.get("/v1/fleet").await.1.to_string().contains("secret"));
    assert_eq!(vera.get("/v1/runs/r/diff?with=secret").await.0, 404);
    assert!(!vera.get_text("/").await.1.contains("secret"));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_other_sites_and_hosts_are_refused() {
    let server = TestServer::start().await;
    let client = server.client();
    let own = client.address.to_string();
    let send = async |method: &str, path: &str, headers: &[(&str, &str)]| -> u16 {
        let mut request =
            hyper::Request::builder().method(method).uri(path).header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = json!({ "run": "x", "agent": "clerk", "input": "hello" }).to_string();
        client.send(request.body(body.into()).unwrap()).await.status().as_u16()
    };
    let host = ("host", own.as_str());
    let own_origin = format!("http://{own}");
    assert_eq!(send("POST", "/v1/runs", &[("host", "evil.example")]).await, 403, "DNS rebinding");
    assert_eq!(send("GET", "/v1/runs", &[("host", "evil.example:4816")]).await, 403);
    for origin in ["http://evil.example", "null", "https://127.0.0.1", "http://127.0.0.1:1", "file://"] {
        assert_eq!(send("POST", "/v1/runs", &[host, ("origin", origin)]).await, 403, "{origin}");
    }
    for site in ["cross-site", "same-site", "odd"] {
        assert_eq!(send("POST", "/v1/runs", &[host, ("sec-fetch-site", site)]).await, 403, "{site}");
        assert_eq!(
            send("GET", "/v1/runs", &[host, ("sec-fetch-site", site), ("sec-fetch-mode", "cors")]).await,
            403
        );
    }
    assert_eq!(
        send("GET", "/", &[host, ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")]).await,
        200
    );
    assert_eq!(count_runs(&server).await, 0);
    // A form of another site sends no JSON.
    let plain = client.request("POST", "/v1/runs").header("content-type", "text/plain");
    assert_eq!(client.send(plain.body("{}".into()).unwrap()).await.status(), 415);
    assert_eq!(
        send("POST", "/v1/runs", &[host, ("origin", own_origin.as_str()), ("sec-fetch-site", "same-origin")])
            .await,
        201
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_answer_has_a_strict_policy_and_no_token() {
    let server = server().await;
    let client = server.client_with("root-token");
    for path in ["/", "/runs", "/v1/me", "/assets/inspector.js", "/nothing", "/login"] {
        let response = client.send(client.request("GET", path).body(Default::default()).unwrap()).await;
        let policy = response.headers()["content-security-policy"].to_str().unwrap().to_owned();
        assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
        assert_eq!(response.headers()["x-content-type-options"], "nosniff");
        let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
        assert!(!String::from_utf8_lossy(&body).contains("root-token"), "{path}");
    }
}

/// Logs in, and returns the cookie and the page key.
async fn log_in(client: &TestClient, token: &str) -> Option<(String, String)> {
    let request =
        client.request("POST", "/login").header("content-type", "application/x-www-form-urlencoded");
    let response = client.send(request.body(format!("token={token}").into()).unwrap()).await;
    let cookie = response.headers().get("set-cookie")?.to_str().unwrap().to_owned();
    let body = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
    let page = String::from_utf8_lossy(&body).into_owned();
    let key = page.split_once("data-page-key=\"")?.1.split_once('"')?.0.to_owned();
    Some((cookie, key))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_gives_the_browser_no_token_and_a_cookie_alone_changes_nothing() {
    let server = server().await;
    let client = server.client();
    assert_eq!(log_in(&client, "wrong").await, None);
    let (cookie, key) = log_in(&client, "root-token").await.unwrap();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    assert!(!cookie.contains("root-token") && !key.contains("root-token"), "{cookie}");
    let pair = cookie.split(';').next().unwrap();
    let send = async |method: &str, path: &str, headers: &[(&str, &str)], body: &str| {
        let mut request = client.request(method, path).header("content-type", "application/json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        support::read_json(client.send(request.body(body.to_owned().into()).unwrap()).await).await
    };
    let (cookie, key) = (("cookie", pair), ("x-windlass-page-key", key.as_str()));
    assert_eq!(send("GET", "/v1/me", &[cookie], "").await.1["name"], "root");
    let start = json!({ "run": "r", "agent": "clerk", "input": "hello" }).to_string();
    // Another server of this machine that the browser opens is sent the cookie, and nothing else.
    for headers in [&[cookie][..], &[cookie, ("x-windlass-page-key", "0")]] {
        let (code, refused) = send("POST", "/v1/runs", headers, &start).await;
        assert_eq!((code, &refused["error"]["code"]), (403, &json!("page_key")));
    }
    assert_eq!(send("POST", "/v1/runs", &[key], &start).await.0, 401);
    for half in [pair.split_once('=').unwrap().1, key.1] {
        let bearer = format!("Bearer {half}");
        assert_eq!(send("GET", "/v1/me", &[("authorization", bearer.as_str())], "").await.0, 401);
    }
    assert_eq!(count_runs(&server).await, 0);
    assert_eq!(send("POST", "/v1/runs", &[cookie, key], &start).await.0, 201);
    // The login ends in the server, and not only in the browser.
    assert_eq!(send("POST", "/logout", &[cookie, key], "").await.0, 303);
    assert_eq!(send("GET", "/v1/me", &[cookie], "").await.0, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_of_an_agent_that_a_person_may_not_run_is_not_continued() {
    let policy = people().with_person(
        "vic",
        TokenDigest::of_token("vic-token"),
        [("clerk", AccessRole::Run), ("bank", AccessRole::View)],
    );
    let server = TestServer::start_with(|server| server.access(policy)).await;
    let [rob, vic, root] = ["rob", "vic", "root"].map(|name| server.client_with(&format!("{name}-token")));
    let start = |run: &str, agent: &str, session: &str| json!({ "run": run, "agent": agent, "input": "hello", "session": session });
    assert_eq!(root.post("/v1/runs", &start("b", "bank", "s")).await.0, 201);
    root.wait_for("b", "finished").await;
    for (place, client) in [&rob, &vic].into_iter().enumerate() {
        let (code, refused) = client.post("/v1/runs", &start(&format!("x{place}"), "clerk", "s")).await;
        assert_eq!((code, &refused["error"]["code"]), (404, &json!("session_not_found")), "{refused}");
    }
    // A response that one may view is not continued, either.
    let (_, response) = root.post("/v1/responses", &json!({ "model": "bank", "input": "hello" })).await;
    let next = json!({ "model": "clerk", "input": "and?", "previous_response_id": response["id"] });
    assert_eq!(vic.post("/v1/responses", &next).await.0, 404);
    // Items of no known run are nobody's.
    let kept = windlass::store::Store::sessions(&*server.queue).unwrap();
    let item = Arc::new(windlass::core::item::Item::user("an import"));
    kept.append_items(&"old".into(), vec![item]).await.unwrap();
    assert_eq!(rob.post("/v1/runs", &start("o", "clerk", "old")).await.0, 404);
    // New sessions and sessions of one's own agents are.
    assert_eq!(rob.post("/v1/runs", &start("c", "clerk", "own")).await.0, 201);
    rob.wait_for("c", "finished").await;
    assert_eq!(vic.post("/v1/runs", &start("d", "clerk", "own")).await.0, 201);
    assert_eq!(root.post("/v1/runs", &start("e", "clerk", "old")).await.0, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_nested_call_is_approved_by_a_person_with_the_right_for_its_agent() {
    let policy = AccessPolicy::default()
        .with_person("fay", TokenDigest::of_token("fay-token"), [("front", AccessRole::Approve)])
        .with_person(
            "bo",
            TokenDigest::of_token("bo-token"),
            [("front", AccessRole::Approve), ("clerk", AccessRole::Approve)],
        )
        .with_person("root", TokenDigest::of_token("root-token"), [("*", AccessRole::Administer)]);
    let agents = [support::clerk(), support::front()];
    let server = TestServer::start_agents(agents, |server| server.access(policy)).await;
    let [fay, bo, root] = ["fay", "bo", "root"].map(|name| server.client_with(&format!("{name}-token")));
    let start = json!({ "run": "r", "agent": "front", "input": "research it" });
    assert_eq!(root.post("/v1/runs", &start).await.0, 201);
    let paused = fay.wait_for("r", "paused").await;
    let item = &paused["pending"][0];
    assert_eq!(item["agent"], "clerk");
    let body = json!({ "call": item["call"], "attempt": item["attempt"], "displayed": item["sheet"]["digest"], "decision": { "type": "approve" } });
    let (code, refused) = fay.post("/v1/runs/r/decisions", &body).await;
    assert_eq!((code, &refused["error"]["code"]), (403, &json!("missing_right")), "{refused}");
    assert_eq!(bo.post("/v1/runs/r/decisions", &body).await.0, 200);
}

/// A standing approval of a tool that has none is neither offered nor accepted.
#[tokio::test(flavor = "multi_thread")]
async fn no_standing_approval_is_offered_for_a_tool_that_has_none() {
    let server = TestServer::start().await;
    let client = server.client();
    for (run, input, is_offered) in [("pays", "pay Ropeworks", true), ("clicks", "click", false)] {
        let start = json!({ "run": run, "agent": "clerk", "input": input });
        assert_eq!(client.post("/v1/runs", &start).await.0, 201);
        let item = client.wait_for(run, "paused").await["pending"][0].clone();
        assert_eq!(item["sheet"]["covers_always"].is_string(), is_offered, "{item}");
        let body = json!({
            "call": item["call"], "attempt": item["attempt"], "displayed": item["sheet"]["digest"],
            "decision": { "type": "approve" }, "for_run": true
        });
        let (code, told) = client.post(&format!("/v1/runs/{run}/decisions"), &body).await;
        assert_eq!(code == 400, !is_offered, "{code} {told}");
        assert_eq!(told.to_string().contains("covers no later one"), !is_offered, "{told}");
    }
}

/// The right to approve on a server, its token and its process are no signature: in a store with approvers, a decision over
/// HTTP is refused with its reason, whatever protocol it comes by, and the call waits for an approver.
#[tokio::test(flavor = "multi_thread")]
async fn a_decision_over_http_does_not_count_in_a_store_with_approvers() {
    let signer = Arc::new(ApproverSigner::from_seed(&[7; 32]).unwrap());
    let policy = ApproverPolicy::new().approver("anna", signer.key().clone());
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("store.db")).unwrap().with_approvers(policy);
    let server = TestServer::start_on(Arc::new(store), |server| server.access(people())).await;
    let [rob, anna] = ["rob", "anna"].map(|name| server.client_with(&format!("{name}-token")));
    let mut calls = Vec::new();
    for run in ["signed", "rejected"] {
        let start = json!({ "run": run, "agent": "clerk", "input": "pay Ropeworks" });
        assert_eq!(rob.post("/v1/runs", &start).await.0, 201);
        calls.push(anna.wait_for(run, "paused").await["pending"][0].clone());
    }
    let item = &calls[0];
    let edited = json!({ "to": "Anna", "euros": 1, "invoice": "x" });
    let review = json!({ "call": item["call"], "arguments": edited });
    let (code, reviewed) = anna.post("/v1/runs/signed/review", &review).await;
    assert_eq!(code, 200, "{reviewed}");
    for (decision, displayed, for_run) in [
        (json!({ "type": "approve" }), &item["sheet"]["digest"], false),
        (json!({ "type": "approve" }), &item["sheet"]["digest"], true),
        (json!({ "type": "approve_edited", "arguments": edited }), &reviewed["sheet"]["digest"], false),
    ] {
        let body = json!({ "call": item["call"], "attempt": 0, "displayed": displayed, "decision": decision, "for_run": for_run });
        let (code, refused) = anna.post("/v1/runs/signed/decisions", &body).await;
        assert_eq!((code, &refused["error"]["code"]), (403, &json!("not_an_approver")), "{refused}");
        assert!(refused.to_string().contains("no approver has signed it"), "{refused}");
    }
    let target = json!({
        "run": "signed", "call": item["call"], "attempt": 0, "displayed": item["sheet"]["digest"], "reason": "tool_call"
    });
    let hex: String = target.to_string().bytes().map(|byte| format!("{byte:02x}")).collect();
    let answer = json!({ "interruptId": format!("interrupt-{hex}"), "status": "resolved", "payload": { "approved": true } });
    let input = json!({ "threadId": "signed", "runId": "again", "messages": [], "resume": [answer] });
    let (code, refused) = anna.post("/v1/ag-ui/clerk", &input).await;
    assert_eq!((code, &refused["error"]["code"]), (403, &json!("not_an_approver")), "{refused}");
    assert!(anna.get("/v1/runs/signed").await.1["pending"][0]["call"] == item["call"], "it still waits");

    // The approver decides with her own key, from elsewhere, and the server goes on.
    let call = item["call"].as_str().unwrap();
    let review = DecisionReview { decided_by: "anna".to_owned(), displayed: None, attempt: Some(0) };
    let (decision, scope) = (Decision::Approve, DecisionScope::ThisCall);
    post_signed_decision(&*server.queue, &"signed".into(), call, decision, scope, review, &signer)
        .await
        .unwrap();
    anna.wait_for("signed", "finished").await;
    // Nothing runs after a rejection, which needs no signature.
    let body = json!({
        "call": calls[1]["call"], "attempt": 0, "displayed": calls[1]["sheet"]["digest"], "decision": { "type": "reject" }
    });
    assert_eq!(anna.post("/v1/runs/rejected/decisions", &body).await.0, 200);
    anna.wait_for("rejected", "finished").await;
}

/// The preview of a change reads the file that the arguments name.
#[tokio::test(flavor = "multi_thread")]
async fn who_may_not_approve_sees_no_call_with_arguments_of_their_own() {
    let previewed = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = previewed.clone();
    let server = TestServer::start_with(|server| {
        server.access(people()).preview(Arc::new(move |_, call| {
            seen.lock().unwrap().push(call.arguments.clone());
            let lines = vec![format!("+{}", call.arguments)];
            Some(CallPreview { title: "changes a file".to_owned(), is_refused: false, lines })
        }))
    })
    .await;
    let [vera, rob, anna, root] =
        ["vera", "rob", "anna", "root"].map(|name| server.client_with(&format!("{name}-token")));
    let start = json!({ "run": "notes", "agent": "clerk", "input": "write the notes" });
    assert_eq!(root.post("/v1/runs", &start).await.0, 201);
    anna.wait_for("notes", "paused").await;
    let call = anna.get("/v1/runs/notes").await.1["pending"][0]["call"].clone();
    let asked = json!({ "call": call, "arguments": { "path": ".env", "text": "" } });
    for person in [&vera, &rob] {
        assert_eq!(person.post("/v1/runs/notes/review", &json!({ "call": call })).await.0, 200);
        let (code, refused) = person.post("/v1/runs/notes/review", &asked).await;
        assert_eq!((code, &refused["error"]["code"]), (403, &json!("missing_right")), "{refused}");
    }
    assert!(!previewed.lock().unwrap().iter().any(|arguments| arguments.contains(".env")));
    assert_eq!(anna.post("/v1/runs/notes/review", &asked).await.0, 200);
}

/// Returns a decision over HTTP with the signature of a person, as a client makes it: the bytes that it signs are those of
/// the server's statement.
async fn sign_body(
    server: &TestServer,
    client: &TestClient,
    signer: &ApproverSigner,
    run: &str,
    body: &Value,
) -> Value {
    let question = json!({ "decision": body, "key": signer.key() });
    let (code, statement) = client.post(&format!("/v1/runs/{run}/statement"), &question).await;
    assert_eq!(code, 200, "{statement}");
    let decision: Decision = serde_json::from_value(statement["recorded_decision"].clone()).unwrap();
    let scope: DecisionScope = serde_json::from_value(statement["recorded_scope"].clone()).unwrap();
    let review = DecisionReview {
        decided_by: statement["decided_by"].as_str().unwrap().to_owned(),
        displayed: Some(statement["displayed"].as_str().unwrap().parse().unwrap()),
        attempt: None,
    };
    let call = body["call"].as_str().unwrap();
    let unsigned =
        prepare_decision(&*server.queue, &run.into(), call, decision, scope, review).await.unwrap();
    let bytes: String = unsigned.message(signer.key()).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(statement["message"], bytes, "the statement has the exact bytes");
    let mut signed = statement["decision"].clone();
    signed["signature"] = json!(signer.sign(&unsigned.to_sign()));
    signed
}

/// The signature is that of the person with the token, for this call of this run, its arguments, decision and scope. Any other
/// is refused with its reason, and the call waits.
#[tokio::test(flavor = "multi_thread")]
async fn a_decision_over_http_counts_with_the_signature_of_an_approver_and_no_other() {
    let [anna_key, root_key, stranger] =
        [7, 8, 9].map(|seed| ApproverSigner::from_seed(&[seed; 32]).unwrap());
    let policy = ApproverPolicy::new()
        .approver("anna", anna_key.key().clone())
        .approver("root", root_key.key().clone())
        .with_domain("production");
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("store.db")).unwrap().with_approvers(policy);
    let server = TestServer::start_on(Arc::new(store), |server| server.access(people())).await;
    let [rob, anna, root] = ["rob", "anna", "root"].map(|name| server.client_with(&format!("{name}-token")));
    let mut items = Vec::new();
    for run in ["signed", "other"] {
        let start = json!({ "run": run, "agent": "clerk", "input": "pay Ropeworks" });
        assert_eq!(rob.post("/v1/runs", &start).await.0, 201);
        items.push(anna.wait_for(run, "paused").await["pending"][0].clone());
    }
    let approve = |item: &Value| json!({ "call": item["call"], "attempt": 0, "displayed": item["sheet"]["digest"], "decision": { "type": "approve" } });
    let [body, other] = [approve(&items[0]), approve(&items[1])];
    let [signer, root_signer] = [&anna_key, &root_key].map(|key| key.key().clone());
    let anna_signer = ApproverSigner::from_seed(&[7; 32]).unwrap().with_domain("production");
    let signed = sign_body(&server, &anna, &anna_signer, "signed", &body).await;
    assert_eq!(signed["signature"]["key"], json!(signer));

    // A statement is for the key of the person who asks.
    for (client, key, reason) in [
        (&anna, stranger.key(), "which is not that of an approver"),
        (&anna, &root_signer, "signed with the key of"),
        (&root, &signer, "signed with the key of"),
    ] {
        let question = json!({ "decision": body, "key": key });
        let (code, refused) = client.post("/v1/runs/signed/statement", &question).await;
        assert_eq!((code, &refused["error"]["code"]), (403, &json!("not_an_approver")), "{refused}");
        assert!(refused.to_string().contains(reason), "{refused}");
    }

    let with = |body: &Value, signature: Value| {
        let mut body = body.clone();
        body["signature"] = signature;
        body
    };
    let mut changed = signed["signature"].clone();
    let value = changed["value"].as_str().unwrap();
    let flipped = if value.starts_with('0') { "1" } else { "0" };
    changed["value"] = json!(format!("{flipped}{}", &value[1..]));
    let unsigned = {
        let review = DecisionReview {
            decided_by: "anna".to_owned(),
            displayed: Some(items[0]["sheet"]["digest"].as_str().unwrap().parse().unwrap()),
            attempt: None,
        };
        let (decision, scope) = (Decision::Approve, DecisionScope::ThisCall);
        let call = items[0]["call"].as_str().unwrap();
        prepare_decision(&*server.queue, &"signed".into(), call, decision, scope, review).await.unwrap()
    };
    let of_stranger = json!(stranger.sign(&unsigned.to_sign()));
    let of_root = json!(root_key.sign(&unsigned.to_sign()));
    let of_other_domain = json!(anna_key.sign(&unsigned.to_sign()));
    let edited = json!({ "to": "Anna", "euros": 1, "invoice": "x" });
    let review = json!({ "call": items[0]["call"], "arguments": edited });
    let (_, reviewed) = anna.post("/v1/runs/signed/review", &review).await;
    let mut edit = body.clone();
    edit["displayed"] = reviewed["sheet"]["digest"].clone();
    edit["decision"] = json!({ "type": "approve_edited", "arguments": edited });
    let mut for_run = body.clone();
    for_run["for_run"] = json!(true);
    let mismatch = "does not match";
    for (client, run, body, reason) in [
        (&anna, "signed", with(&body, changed), mismatch),
        (&anna, "signed", with(&body, of_stranger), "which is not that of an approver"),
        (&anna, "signed", with(&body, of_root), "signed with the key of"),
        (&anna, "signed", with(&body, of_other_domain), mismatch),
        (&anna, "other", with(&other, signed["signature"].clone()), mismatch),
        (&anna, "signed", with(&edit, signed["signature"].clone()), mismatch),
        (&anna, "signed", with(&for_run, signed["signature"].clone()), mismatch),
        (&root, "signed", with(&body, signed["signature"].clone()), "signed with the key of"),
    ] {
        let (code, refused) = client.post(&format!("/v1/runs/{run}/decisions"), &body).await;
        assert_eq!((code, &refused["error"]["code"]), (403, &json!("not_an_approver")), "{body}: {refused}");
        assert!(refused.to_string().contains(reason), "{body}: {refused}");
        assert_eq!(anna.get(&format!("/v1/runs/{run}")).await.1["status"], "paused", "it still waits");
    }
    let malformed = with(&body, json!({ "key": "ed25519:12", "value": "00" }));
    assert_eq!(anna.post("/v1/runs/signed/decisions", &malformed).await.0, 400);

    let (code, posted) = anna.post("/v1/runs/signed/decisions", &signed).await;
    assert_eq!((code, &posted["decided_by"]), (200, &json!("anna")), "{posted}");
    anna.wait_for("signed", "finished").await;
    verify_run(&*server.queue, &"signed".into()).await.unwrap();
    let journal = server.queue.load_journal(&"signed".into(), 0).await.unwrap();
    let value = signed["signature"]["value"].as_str().unwrap();
    assert!(journal.iter().any(|line| line.body.contains(value)), "the journal has the signature");
    // An edit counts with its own signature.
    let (_, reviewed) =
        anna.post("/v1/runs/other/review", &json!({ "call": items[1]["call"], "arguments": edited })).await;
    edit["call"] = items[1]["call"].clone();
    edit["displayed"] = reviewed["sheet"]["digest"].clone();
    let signed = sign_body(&server, &anna, &anna_signer, "other", &edit).await;
    assert_eq!(anna.post("/v1/runs/other/decisions", &signed).await.0, 200);
    anna.wait_for("other", "finished").await;
}

/// A server whose store has no approvers neither states what to sign nor accepts a signature that nobody verifies.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_without_approvers_takes_no_signature() {
    let server = server().await;
    let [root, anna] = ["root", "anna"].map(|name| server.client_with(&format!("{name}-token")));
    let paused = root.start_until("r", "pay Ropeworks", "paused").await;
    let item = &paused["pending"][0];
    let signer = ApproverSigner::from_seed(&[7; 32]).unwrap();
    let mut body = json!({
        "call": item["call"], "attempt": 0, "displayed": item["sheet"]["digest"], "decision": { "type": "approve" }
    });
    let question = json!({ "decision": body, "key": signer.key() });
    let (code, refused) = anna.post("/v1/runs/r/statement", &question).await;
    assert_eq!((code, &refused["error"]["code"]), (409, &json!("no_approvers")), "{refused}");
    body["signature"] = json!({ "key": signer.key(), "value": "00".repeat(64) });
    let (code, refused) = anna.post("/v1/runs/r/decisions", &body).await;
    assert_eq!((code, &refused["error"]["code"]), (409, &json!("no_approvers")), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_name_only_agents_that_a_person_may_view_and_looks_are_at_calls() {
    let server = server().await;
    let [vera, anna, root] =
        ["vera", "anna", "root"].map(|name| server.client_with(&format!("{name}-token")));
    for path in ["/fleet", "/runs"] {
        assert!(!vera.get_text(path).await.1.contains("bank"), "{path}");
        assert!(root.get_text(path).await.1.contains("bank"), "{path}");
    }
    root.start_until("r", "pay Ropeworks", "paused").await;
    for (call, expected) in [("made up", json!([])), ("pay-1", json!(["vera"]))] {
        let look = json!({ "run": "r", "call": call });
        assert_eq!(vera.post("/v1/inbox/looking", &look).await.0, 200);
        assert_eq!(anna.post("/v1/inbox/looking", &look).await.1["others"], expected, "{call}");
    }
    // Numbers of any size in an address.
    let largest = u64::MAX;
    for path in [format!("/?skip={largest}"), format!("/runs/r?at={largest}")] {
        assert_eq!(root.get_text(&path).await.0, 200, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_picture_of_a_run_that_one_may_not_view_does_not_exist() {
    let server = server().await;
    let [vera, root] = ["vera", "root"].map(|name| server.client_with(&format!("{name}-token")));
    for (run, agent) in [("own", "clerk"), ("secret", "bank")] {
        let start = json!({ "run": run, "agent": agent, "input": "click it" });
        assert_eq!(root.post("/v1/runs", &start).await.0, 201);
        let paused = root.wait_for(run, "paused").await;
        let address = paused["pending"][0]["sheet"]["evidence"]["picture"].as_str().unwrap().to_owned();
        assert_eq!(root.get_text(&address).await.0, 200);
        let expected = if run == "own" { 200 } else { 404 };
        assert_eq!(vera.get_text(&address).await.0, expected, "{run}");
    }
    // Neither is anything else of the store a picture.
    for url in
        ["artefact:own/evidence:click-1", "artefact:own/../secret/x", "file:///etc/passwd", "artefact:own"]
    {
        let (code, _) = root.get_text(&format!("/media?url={url}")).await;
        assert!([400, 404].contains(&code), "{url}: {code}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_names_people_only_from_its_own_address() {
    let with_proxy = |addresses: Vec<std::net::IpAddr>| {
        let mut policy = people();
        policy.proxy = Some(TrustedProxy { addresses, header: "X-User".to_owned() });
        policy
    };
    for (addresses, expected) in
        [(vec!["127.0.0.1".parse().unwrap()], 200), (vec!["10.9.9.9".parse().unwrap()], 401)]
    {
        let server = TestServer::start_with(|server| server.access(with_proxy(addresses))).await;
        let client = server.client();
        let request =
            client.request("GET", "/v1/me").header("x-user", "anna").body(Default::default()).unwrap();
        assert_eq!(client.send(request).await.status().as_u16(), expected);
        let twice = client.request("GET", "/v1/me").header("x-user", "root").header("x-user", "anna");
        let code = client.send(twice.body(Default::default()).unwrap()).await.status().as_u16();
        assert_eq!(code, if expected == 200 { 403 } else { 401 });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_would_answer_anybody_does_not_start() {
    let agents = support::clerk();
    let refused = AgentServer::new(agents)
        .store(Arc::new(windlass::store::MemoryStore::default()))
        .address("0.0.0.0:0")
        .serve()
        .await;
    assert!(matches!(refused, Err(ServerError::OpenToAnybody { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_rates_streams_and_connections_are_limited() {
    let limits = ServerLimits {
        body_bytes: 1000,
        requests_per_second: 20,
        streams: 2,
        connections: 8,
        ..ServerLimits::default()
    };
    let server = TestServer::start_with(|server| server.limits(limits)).await;
    let client = server.client();
    let large = json!({ "run": "x", "agent": "clerk", "input": "y".repeat(2000) });
    assert_eq!(client.post("/v1/runs", &large).await.0, 413);
    let (_one, _two) =
        (client.events("/v1/inbox/events", None).await, client.events("/v1/inbox/events", None).await);
    assert_eq!(client.get("/v1/inbox/events").await.0, 429);
    // Together, so that they come within a second on a slow machine, too.
    let waiting = (0..60).map(|_| client.get("/v1/me"));
    let codes: Vec<u16> =
        futures_util::future::join_all(waiting).await.into_iter().map(|(code, _)| code).collect();
    assert!(codes.contains(&200) && codes.contains(&429), "{codes:?}");
    assert_eq!(count_runs(&server).await, 0);
    // More connections than there is room for wait, and are served when others end.
    let mut idle = Vec::new();
    for _ in 0..20 {
        idle.push(tokio::net::TcpStream::connect(server.address).await.unwrap());
    }
    drop(idle);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(client.get("/v1/me").await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_requests_are_refused_and_the_server_lives() {
    let server = TestServer::start().await;
    let client = server.client();
    let raw = async |bytes: &[u8]| -> String {
        let mut stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream.shutdown().await.ok();
        let mut answer = Vec::new();
        tokio::time::timeout(Duration::from_secs(5), stream.read_to_end(&mut answer)).await.ok();
        String::from_utf8_lossy(&answer).lines().next().unwrap_or_default().to_owned()
    };
    for bytes in [
        &b"\x16\x03\x01\x02\x00"[..],
        b"GET /v1/runs HTTP/1.1\r\n\r\n",
        b"GET /v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n",
        b"POST /v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /v1/runs/%ff%fe HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
    ] {
        let line = raw(bytes).await;
        assert!(!line.contains(" 200 ") && !line.contains(" 201 "), "{line}");
    }
    for body in ["", "{", "[]", "{\"agent\":1}", "{\"agent\":\"clerk\",\"input\":\"x\",\"extra\":1}", "\u{0}"]
    {
        let request = client.request("POST", "/v1/runs").header("content-type", "application/json");
        assert_eq!(client.send(request.body(body.to_owned().into()).unwrap()).await.status(), 400, "{body}");
    }
    for id in ["", "a/b", "a b", "\u{202e}", &"x".repeat(201)] {
        let start = json!({ "run": id, "agent": "clerk", "input": "hello" });
        assert_eq!(client.post("/v1/runs", &start).await.0, 400, "{id}");
    }
    assert_eq!(count_runs(&server).await, 0);
    assert_eq!(client.get("/v1/me").await.0, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn text_of_a_run_is_never_markup_on_a_page() {
    let server = TestServer::start().await;
    let client: TestClient = server.client();
    let hostile = "pay <script>alert(1)</script>\u{202e}\"'><img src=x onerror=alert(2)>";
    client.start_until("r", hostile, "paused").await;
    for path in ["/", "/runs", "/runs/r", "/runs/r?at=0", "/diff?first=r&second=%3Cb%3E", "/fleet"] {
        let (code, page) = client.get_text(path).await;
        assert_eq!(code, 200, "{path}");
        assert!(
            !page.contains("<script>alert") && !page.contains("<img src=x") && !page.contains('\u{202e}'),
            "{path}"
        );
    }
    assert!(client.get_text("/").await.1.contains("&lt;script&gt;alert(1)"));
}

/// Every process of the machine reaches the loopback interface: a server that is given no policy has a token.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_policy_makes_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let store: Arc<dyn windlass::fleet::RunQueue> =
        Arc::new(SqliteStore::open(folder.path().join("store.db")).unwrap());
    let server = AgentServer::new([support::clerk()]).store(store).address("127.0.0.1:0");
    let stop = server.stop_handle();
    let listener = server.listen().await.unwrap();
    let address = listener.local_addr().unwrap();
    let serving = tokio::spawn(server.serve_on(listener));
    let client = TestClient { address, token: None };
    assert_eq!(client.get("/v1/inbox").await.0, 401);
    let start = json!({ "agent": "clerk", "input": "pay Ropeworks" });
    assert_eq!(client.post("/v1/runs", &start).await.0, 401);
    let guessing = TestClient { address, token: Some("0".repeat(64)) };
    assert_eq!(guessing.get("/v1/inbox").await.0, 401);
    stop.stop();
    serving.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_of_the_origin_executes_nothing_in_a_fork_of_somebody_without_the_right() {
    let server = server().await;
    let (runner, approver) = (server.client_with("rob-token"), server.client_with("anna-token"));
    runner.start_until("origin", "pay Ropeworks", "paused").await;
    let (_, run) = approver.get("/v1/runs/origin").await;
    let item = &run["pending"][0];
    let body = json!({ "call": item["call"], "attempt": item["attempt"],
        "displayed": item["sheet"]["digest"], "decision": { "type": "approve" } });
    assert_eq!(approver.post("/v1/runs/origin/decisions", &body).await.0, 200);
    runner.wait_for("origin", "finished").await;
    let (_, page) = runner.get("/v1/runs/origin/records").await;
    let records = page["records"].as_array().unwrap();
    let decided = records.iter().find(|record| !record["decision_recorded"].is_null()).unwrap();
    let fork = |at: u64, name: &str| json!({ "run": name, "at": at, "start": true });
    let at = decided["seq"].as_u64().unwrap();
    let (code, answer) = runner.post("/v1/runs/origin/fork", &fork(at, "again")).await;
    assert_eq!((code, answer["error"]["code"].as_str()), (403, Some("missing_right")), "{answer}");
    assert_eq!(runner.get("/v1/runs/again").await.0, 404);
    // A rejection in place of the approval, and a fork before it, grant nothing.
    let reject = json!({ "run": "rejected", "at": at, "start": true,
        "change": { "type": "reject", "call": item["call"] } });
    assert_eq!(runner.post("/v1/runs/origin/fork", &reject).await.0, 201);
    runner.wait_for("rejected", "finished").await;
    assert_eq!(runner.post("/v1/runs/origin/fork", &fork(at - 1, "asks")).await.0, 201);
    runner.wait_for("asks", "paused").await;
    let (_, page) = runner.get("/v1/runs/rejected/records").await;
    let records = page["records"].as_array().unwrap();
    assert!(records.iter().all(|record| record["call_started"]["call"] != item["call"]), "{page}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_granted_to_a_budget_is_not_spent_again_by_a_fork_of_somebody_without_the_right() {
    use windlass::core::budget::SpendingBudget;
    use windlass::fleet::{AgentRegistry, DeployedAgent};
    let budget = SpendingBudget::new().requests(1).ask_person();
    let deployed = DeployedAgent::new(support::clerk()).configure_runs(move |run| run.budget(budget.clone()));
    let registry = AgentRegistry::new().deploy(deployed);
    let server = TestServer::start_registry_with(registry, |server| server.access(people())).await;
    let (runner, approver) = (server.client_with("rob-token"), server.client_with("anna-token"));
    let paused = runner.start_until("origin", "fail please", "paused").await;
    let item = &paused["pending"][0];
    let body = json!({ "call": item["call"], "attempt": item["attempt"],
        "displayed": item["sheet"]["digest"], "decision": { "type": "answer", "value": 50 } });
    assert_eq!(approver.post("/v1/runs/origin/decisions", &body).await.0, 200);
    runner.wait_for("origin", "finished").await;
    let (_, page) = runner.get("/v1/runs/origin/records").await;
    let records = page["records"].as_array().unwrap();
    let granted = records.iter().find(|record| !record["decision_recorded"].is_null()).unwrap();
    let at = granted["seq"].as_u64().unwrap();
    let fork = |at: u64, name: &str| json!({ "run": name, "at": at });
    for at in [at, at + 1] {
        let (code, answer) = runner.post("/v1/runs/origin/fork", &fork(at, "again")).await;
        assert_eq!((code, answer["error"]["code"].as_str()), (403, Some("missing_right")), "{answer}");
    }
    assert_eq!(runner.post("/v1/runs/origin/fork", &fork(at - 1, "asks")).await.0, 201);
    assert_eq!(
        server.client_with("root-token").post("/v1/runs/origin/fork", &fork(at, "granted")).await.0,
        201
    );
}

/// Without MAC keys, nobody knows who has made the decisions in a text.
#[tokio::test(flavor = "multi_thread")]
async fn an_import_brings_no_decision_about_an_agent_that_the_importer_may_not_approve() {
    let policy = AccessPolicy::default()
        .with_person("fay", TokenDigest::of_token("fay-token"), [("front", AccessRole::Administer)])
        .with_person("root", TokenDigest::of_token("root-token"), [("*", AccessRole::Administer)]);
    let agents = [support::clerk(), support::front()];
    // Nobody drives the run, so that the decision is recorded and nothing is executed.
    let limits = ServerLimits { concurrent_runs: 0, ..ServerLimits::default() };
    let server =
        TestServer::start_agents(agents, |server| server.access(policy.clone()).limits(limits)).await;
    let other = TestServer::start_agents([support::clerk(), support::front()], |server| {
        server.access(policy).limits(limits)
    })
    .await;
    // A run that pauses for its nested call, and the decision about it.
    let paused = match support::front().run("research it").run_id("r").await.unwrap() {
        windlass::run::RunResult::Paused(mut paused) => {
            let call = paused.pending_calls()[0].path.clone();
            paused.approve(call).unwrap();
            paused
        }
        _ => panic!("the run waits"),
    };
    let send = async |server: &TestServer, token: &str| {
        let client = server.client_with(token);
        let post = client.request("POST", "/v1/runs/import").header("content-type", "text/plain");
        support::read_json(client.send(post.body(paused.to_text().into()).unwrap()).await).await
    };
    let (code, answer) = send(&server, "fay-token").await;
    assert_eq!((code, &answer["error"]["code"]), (403, &json!("missing_right")), "{answer}");
    assert_eq!(count_runs(&server).await, 0);
    let (code, answer) = send(&other, "root-token").await;
    assert_eq!(code, 201, "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn anybody_may_send_only_a_small_form_and_must_send_it_in_time() {
    let limits = ServerLimits { body_timeout: Duration::from_millis(300), ..ServerLimits::default() };
    let server = TestServer::start_with(|server| server.access(people()).limits(limits)).await;
    let client = server.client();
    let form = format!("token={}", "x".repeat(8 * 1024));
    let request =
        client.request("POST", "/login").header("content-type", "application/x-www-form-urlencoded");
    let response = client.send(request.body(Full::from(form)).unwrap()).await;
    assert_eq!(response.status().as_u16(), 413);
    // A body that does not arrive is not waited for.
    for path in ["/login", "/v1/runs"] {
        let mut stream = tokio::net::TcpStream::connect(server.address).await.unwrap();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer rob-token\r\n\
             content-type: application/json\r\ncontent-length: 100\r\n\r\n{{",
            server.address
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = vec![0; 64];
        let read = tokio::time::timeout(support::PATIENCE, stream.read(&mut answer)).await.unwrap().unwrap();
        let answer = String::from_utf8_lossy(&answer[..read]).into_owned();
        assert!(answer.starts_with("HTTP/1.1 408"), "{path}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_never_reads_loses_its_stream_and_a_person_has_a_share_of_them() {
    let limits = ServerLimits {
        streams: 3,
        streams_per_person: 1,
        write_timeout: Duration::from_secs(5),
        ..ServerLimits::default()
    };
    let server = TestServer::start_with(|server| server.access(people()).limits(limits)).await;
    let (viewer, runner) = (server.client_with("vera-token"), server.client_with("rob-token"));
    // Far more than the buffers of a connection take.
    let text = "long ".repeat(2_000_000);
    runner.post("/v1/runs", &json!({ "run": "long", "agent": "clerk", "input": text })).await;
    runner.wait_for("long", "finished").await;
    let mut silent = tokio::net::TcpStream::connect(server.address).await.unwrap();
    let head = format!(
        "GET /v1/runs/long/events HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer vera-token\r\n\r\n",
        server.address
    );
    silent.write_all(head.as_bytes()).await.unwrap();
    let deadline = tokio::time::Instant::now() + support::PATIENCE;
    let status = async |client: &TestClient| {
        let request = client.request("GET", "/v1/runs/long/events").body(Full::default()).unwrap();
        client.send(request).await.status().as_u16()
    };
    // It reads the status of its answer, and nothing more.
    let mut line = [0; 12];
    silent.read_exact(&mut line).await.unwrap();
    assert_eq!(&line, b"HTTP/1.1 200");
    // The person's one stream is taken, and another person has theirs.
    assert_eq!(status(&viewer).await, 429);
    assert_eq!(status(&runner).await, 200);
    // The stream of the client that does not read ends, and its place is free again.
    while status(&viewer).await != 200 {
        assert!(tokio::time::Instant::now() < deadline, "the stream was never given back");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    drop(silent);
}
