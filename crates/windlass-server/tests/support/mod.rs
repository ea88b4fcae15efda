//! A server in the process of the test, its agents, and a small client.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used)]

pub mod counting_queue;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use windlass::agent::Agent;
use windlass::core::id::Timestamp;
use windlass::core::item::{Item, Message, Role};
use windlass::core::tool::ToolEffect;
use windlass::core::usage::Usage;
use windlass::fleet::{AgentOffer, NextStep, RunDeparture, RunQueue, RunSubmission, WorkRequest};
use windlass::guardrail::{GuardrailVerdict, OutputGuardrail};
use windlass::model::{DeltaSink, Model, ModelError, ModelRequest, ModelResponse};
use windlass::store::{LeaseClaim, SqliteStore};
use windlass::tool::{CallEvidence, ImagePart, Tool, ToolContext, ToolError};
use windlass_server::{AccessPolicy, AgentServer, ServerStop};

/// A model whose answers follow from the conversation alone, so that any process continues any run.
pub struct ClerkModel;

impl Model for ClerkModel {
    async fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        deltas: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        let asked = request
            .input
            .iter()
            .rev()
            .find_map(|item| match &**item {
                Item::Message(message) if message.role == Role::User => Some(message.text()),
                _ => None,
            })
            .unwrap_or_default();
        let last_user = request
            .input
            .iter()
            .rposition(|item| matches!(&**item, Item::Message(message) if message.role == Role::User))
            .unwrap_or(0);
        let outputs =
            request.input[last_user..].iter().filter(|item| matches!(&***item, Item::Output(_))).count();
        let turn = request.turn;
        let items: Vec<Arc<Item>> = match (asked.split(' ').next().unwrap_or_default(), outputs) {
            ("pay", 0) => {
                let to = asked.strip_prefix("pay ").unwrap_or("Ropeworks");
                let arguments = json!({ "to": to, "euros": 480, "invoice": "R-1931\u{202e}" });
                vec![
                    Arc::new(Item::assistant("I will look at the invoice and pay it.")),
                    Arc::new(Item::call(
                        format!("read-{turn}"),
                        "read_file",
                        json!({ "path": "inbox/ropeworks.txt" }).to_string(),
                    )),
                    Arc::new(Item::call(format!("pay-{turn}"), "pay", arguments.to_string())),
                ]
            }
            ("post", 0) => {
                let channel: u64 = asked.strip_prefix("post ").unwrap_or_default().parse().unwrap_or(7);
                let arguments = json!({ "channel": channel, "text": "draft" });
                vec![Arc::new(Item::call(format!("post-{turn}"), "post_message", arguments.to_string()))]
            }
            ("write", 0) => vec![Arc::new(Item::call(
                format!("w-{turn}"),
                "write_file",
                json!({ "path": "notes.md", "text": "# Notes\n\tnew\n" }).to_string(),
            ))],
            ("fail", 0) => vec![
                Arc::new(Item::call(format!("f-{turn}"), "broken", "{}")),
                Arc::new(Item::call(
                    format!("r-{turn}"),
                    "read_file",
                    json!({ "path": "a.txt" }).to_string(),
                )),
            ],
            ("research", 0) => vec![Arc::new(Item::call(
                format!("n-{turn}"),
                "ask_clerk",
                json!({ "input": "pay Pilots" }).to_string(),
            ))],
            ("wire", 0) => vec![Arc::new(Item::call(format!("wire-{turn}"), "wire", "{}"))],
            ("click", 0) => vec![Arc::new(Item::call(format!("click-{turn}"), "click", "{}"))],
            ("ask", 0) => vec![Arc::new(Item::call(format!("ask-{turn}"), "choose_colour", "{}"))],
            ("many", done) if done < 60 => (0..20)
                .map(|n| {
                    Arc::new(Item::call(
                        format!("r{turn}-{n}"),
                        "read_file",
                        json!({ "path": format!("f{n}") }).to_string(),
                    ))
                })
                .collect(),
            _ => {
                let text = format!("Done after {outputs} outputs.");
                for word in text.split_inclusive(' ') {
                    deltas.emit_text(word).await;
                }
                vec![Arc::new(Item::Message(Message::new(Role::Assistant, text)))]
            }
        };
        Ok(ModelResponse {
            items,
            usage: Some(Usage::of_tokens(812, 31)),
            model: Some("clerk-1".to_owned()),
            ..ModelResponse::default()
        })
    }
}

/// Longest time that a test waits for something to happen. A loaded machine may need long for anything.
pub const PATIENCE: Duration = Duration::from_secs(180);

/// A picture of one pixel.
pub const PICTURE: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

/// The number of payments in this process.
pub static PAYMENTS: AtomicU32 = AtomicU32::new(0);

pub fn clerk() -> Agent {
    clerk_named("clerk")
}

pub fn clerk_named(name: &str) -> Agent {
    let read = Tool::dynamic(
        "read_file",
        "Reads a file.",
        json!({ "type": "object", "properties": { "path": { "type": "string" } }, "required": ["path"], "additionalProperties": false }),
        |_: ToolContext, _: Value| async { Ok::<_, ToolError>("Ropeworks, invoice R-1931, 480 euros.") },
    )
    .effect(ToolEffect::Pure)
    .content_source(windlass::core::provenance::ContentSource::File);
    let pay = Tool::dynamic(
        "pay",
        "Pays an invoice.",
        json!({ "type": "object", "properties": {
            "to": { "type": "string", "description": "The payee." },
            "euros": { "type": "integer", "minimum": 1, "description": "The amount." },
            "invoice": { "type": "string" } },
            "required": ["to", "euros", "invoice"], "additionalProperties": false }),
        |_: ToolContext, arguments: Value| async move {
            PAYMENTS.fetch_add(1, Ordering::SeqCst);
            Ok::<_, ToolError>(format!("paid {} euros to {}", arguments["euros"], arguments["to"]))
        },
    )
    .needs_approval();
    let choose = Tool::dynamic(
        "choose_colour",
        "Asks for a colour.",
        json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false }),
        |ctx: ToolContext, _: Value| async move {
            let question = windlass::core::decision::PersonQuestion::new("Which colour?\nOne word.")
                .with_schema(json!({ "type": "string" }));
            let Some(answer) = ctx.answer_to(&question) else { return Err(ToolError::ask_person(question)) };
            Ok::<_, ToolError>(format!("the colour is {answer}"))
        },
    );
    let write = Tool::dynamic(
        "write_file",
        "Writes a file.",
        json!({ "type": "object", "properties": { "path": { "type": "string" }, "text": { "type": "string" } }, "required": ["path", "text"], "additionalProperties": false }),
        |_: ToolContext, _: Value| async { Ok::<_, ToolError>("written") },
    )
    .needs_approval();
    let post = Tool::dynamic(
        "post_message",
        "Posts a message.",
        json!({ "type": "object", "properties": {
            "channel": { "type": "integer" }, "text": { "type": "string" },
            "dry_run": { "type": "boolean", "description": "True unless it is given." }, "memo": { "type": "string" } },
            "required": ["channel", "text"], "additionalProperties": false }),
        |_: ToolContext, arguments: Value| async move { Ok::<_, ToolError>(format!("posted {arguments}")) },
    )
    .needs_approval();
    let broken = Tool::dynamic(
        "broken",
        "Fails.",
        json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false }),
        |_: ToolContext, _: Value| async { Err::<String, _>(ToolError::visible("the printer is on fire")) },
    );
    let click = Tool::dynamic(
        "click",
        "Clicks on the page.",
        json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false }),
        |ctx: ToolContext, _: Value| async move {
            let picture = ctx.save_media("image/png", PICTURE).await.unwrap();
            Ok::<_, ToolError>(ImagePart(picture))
        },
    )
    .needs_approval_if_async(|ctx: ToolContext, _: &Value| async move {
        let picture = ctx.save_media("image/png", PICTURE).await.unwrap();
        let evidence = CallEvidence::new("The page is https://shop.example/pay.\nbutton \"Pay\u{202e}\"");
        ctx.save_evidence(&evidence.with_picture(picture)).await.unwrap();
        true
    })
    .without_standing_approvals();
    Agent::new(name)
        .instructions("Pay what is due.")
        .model(windlass::model::SharedModel::new(ClerkModel))
        .tools(vec![read, pay, choose, write, post, broken, click])
}

/// An agent whose transfers never return while `WINDLASS_CLERK_HANGS` is set, so that they are in doubt in the next process.
pub fn banker() -> Agent {
    let wire = Tool::dynamic(
        "wire",
        "Transfers money.",
        json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false }),
        |_: ToolContext, _: Value| async {
            if std::env::var_os("WINDLASS_CLERK_HANGS").is_some() {
                std::future::pending::<()>().await;
            }
            Ok::<_, ToolError>("wired by the bank")
        },
    );
    Agent::new("banker").model(windlass::model::SharedModel::new(ClerkModel)).tool(wire)
}

/// An agent that may ask its model once, and then asks a person.
pub fn saver() -> Agent {
    let budget = windlass::core::budget::SpendingBudget::new().requests(1).ask_person();
    clerk_named("saver").budget(budget)
}

/// Submits a run, and leaves it as a dead letter.
pub async fn bury_run(queue: &dyn RunQueue, run: &str) {
    let (run, now) = (windlass::core::id::RunId::from(run), Timestamp(1_000));
    queue.submit_run(&RunSubmission::new(run.clone(), "clerk", "hello"), now).await.unwrap();
    let claim = LeaseClaim { owner: "gravedigger", now, duration: Duration::from_secs(60) };
    queue.register_worker(claim).await.unwrap();
    let offers = vec![AgentOffer { agent: "clerk".into(), build: "b".to_owned() }];
    let worker = "gravedigger".to_owned();
    let request =
        WorkRequest { worker: worker.clone(), now, held: None, offers, limit: 1, only: Some(run.clone()) };
    assert_eq!(queue.take_work(&request).await.unwrap().runs.len(), 1);
    let left = RunDeparture {
        worker: worker.clone(),
        run: run.clone(),
        lease: None,
        status: None,
        now,
        signals_seen: 0,
        orders_done: 0,
        next: NextStep::Bury { reason: "it is damaged".to_owned() },
    };
    queue.leave_run(&left).await.unwrap();
    queue.retire_worker(&worker, None).await.unwrap();
}

/// An agent that calls the clerk as a tool.
pub fn front() -> Agent {
    let model = windlass::model::SharedModel::new(ClerkModel);
    Agent::new("front").model(model).tool(clerk().as_tool("ask_clerk", "Asks the clerk."))
}

/// The number of times that money was spent by [`spender`] in this process.
pub static SPENT: AtomicU32 = AtomicU32::new(0);

/// An agent that spends money, and whose run fails then.
pub fn spender() -> Agent {
    let spend = Tool::dynamic(
        "spend",
        "Spends money.",
        json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false }),
        |_: ToolContext, _: Value| async {
            SPENT.fetch_add(1, Ordering::SeqCst);
            Ok::<_, ToolError>("spent")
        },
    );
    let refused = OutputGuardrail::new("no", |_, _| async { Ok(GuardrailVerdict::Tripwire) });
    Agent::new("spender")
        .model(windlass::model::SharedModel::new(SpenderModel))
        .tool(spend)
        .output_guardrail(refused)
}

/// A model that spends money and answers.
struct SpenderModel;

impl Model for SpenderModel {
    async fn respond<'a>(
        &'a self,
        request: ModelRequest<'a>,
        _: &'a DeltaSink,
    ) -> Result<ModelResponse, ModelError> {
        let has_spent = request.input.iter().any(|item| matches!(&**item, Item::Output(_)));
        let item = if has_spent { Item::assistant("It is spent.") } else { Item::call("s", "spend", "{}") };
        Ok(ModelResponse { items: vec![Arc::new(item)], ..ModelResponse::default() })
    }
}

/// A server in this process.
pub struct TestServer {
    pub address: std::net::SocketAddr,
    pub queue: Arc<dyn RunQueue>,
    stop: ServerStop,
    task: Option<tokio::task::JoinHandle<()>>,
    _folder: Option<tempfile::TempDir>,
}

impl TestServer {
    pub async fn start() -> Self {
        Self::start_with(|server| server).await
    }

    pub async fn start_with(configure: impl FnOnce(AgentServer) -> AgentServer) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store: Arc<dyn RunQueue> = Arc::new(SqliteStore::open(folder.path().join("store.db")).unwrap());
        let mut server = Self::start_on(store, configure).await;
        server._folder = Some(folder);
        server
    }

    pub async fn start_agents<const N: usize>(
        agents: [Agent; N],
        configure: impl FnOnce(AgentServer) -> AgentServer,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store: Arc<dyn RunQueue> = Arc::new(SqliteStore::open(folder.path().join("store.db")).unwrap());
        let mut server = Self::serve(AgentServer::new(agents), store, configure).await;
        server._folder = Some(folder);
        server
    }

    pub async fn start_on(
        store: Arc<dyn RunQueue>,
        configure: impl FnOnce(AgentServer) -> AgentServer,
    ) -> Self {
        Self::serve(AgentServer::new([clerk(), clerk_named("bank")]), store, configure).await
    }

    pub async fn start_agents_on<const N: usize>(
        agents: [Agent; N],
        store: Arc<dyn RunQueue>,
        configure: impl FnOnce(AgentServer) -> AgentServer,
    ) -> Self {
        Self::serve(AgentServer::new(agents), store, configure).await
    }

    /// Starts a server of deployed agents.
    pub async fn start_registry(registry: windlass::fleet::AgentRegistry) -> Self {
        Self::start_registry_with(registry, |server| server).await
    }

    pub async fn start_registry_with(
        registry: windlass::fleet::AgentRegistry,
        configure: impl FnOnce(AgentServer) -> AgentServer,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store: Arc<dyn RunQueue> = Arc::new(SqliteStore::open(folder.path().join("store.db")).unwrap());
        let mut server = Self::serve(AgentServer::new(registry), store, configure).await;
        server._folder = Some(folder);
        server
    }

    async fn serve(
        server: AgentServer,
        store: Arc<dyn RunQueue>,
        configure: impl FnOnce(AgentServer) -> AgentServer,
    ) -> Self {
        let access = AccessPolicy::for_local_user("tess");
        let server = server.store(store.clone()).access(access).address("127.0.0.1:0");
        let server = configure(server);
        let stop = server.stop_handle();
        let listener = server.listen().await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move { server.serve_on(listener).await.unwrap() });
        Self { address, queue: store, stop, task: Some(task), _folder: None }
    }

    pub async fn stop(mut self) -> (Arc<dyn RunQueue>, Option<tempfile::TempDir>) {
        self.stop.stop();
        self.task.take().unwrap().await.unwrap();
        (self.queue.clone(), self._folder.take())
    }

    pub fn client(&self) -> TestClient {
        TestClient { address: self.address, token: None }
    }

    pub fn client_with(&self, token: &str) -> TestClient {
        TestClient { address: self.address, token: Some(token.to_owned()) }
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stop.stop();
    }
}

/// A client of the server.
#[derive(Clone)]
pub struct TestClient {
    pub address: std::net::SocketAddr,
    pub token: Option<String>,
}

impl TestClient {
    pub async fn send(&self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        let stream = tokio::net::TcpStream::connect(self.address).await.unwrap();
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(async move { connection.await.ok() });
        sender.send_request(request).await.unwrap()
    }

    pub fn request(&self, method: &str, path: &str) -> hyper::http::request::Builder {
        let mut request =
            Request::builder().method(method).uri(path).header("host", self.address.to_string());
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        request
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        let request = self.request("GET", path).body(Full::default()).unwrap();
        read_json(self.send(request).await).await
    }

    pub async fn get_text(&self, path: &str) -> (u16, String) {
        let request = self.request("GET", path).header("accept", "text/html").body(Full::default()).unwrap();
        let response = self.send(request).await;
        let status = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8_lossy(&bytes).into_owned())
    }

    pub async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let request = self.request("POST", path).header("content-type", "application/json");
        let request = request.body(Full::from(body.to_string())).unwrap();
        read_json(self.send(request).await).await
    }

    /// Starts a run, and waits until it has this status.
    pub async fn start_until(&self, run: &str, input: &str, status: &str) -> Value {
        let (code, body) =
            self.post("/v1/runs", &json!({ "run": run, "agent": "clerk", "input": input })).await;
        assert!(code == 201 || code == 200, "{code} {body}");
        self.wait_for(run, status).await
    }

    /// Waits until a run has this status.
    pub async fn wait_for(&self, run: &str, status: &str) -> Value {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let (code, body) = self.get(&format!("/v1/runs/{run}")).await;
            if code == 200 && body["status"] == status {
                return body;
            }
            assert!(tokio::time::Instant::now() < deadline, "run {run} never became {status}: {body}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Opens a stream of events; `None` if the server does not answer.
    pub async fn try_events(&self, path: &str, last_id: Option<&str>) -> Option<EventReader> {
        let stream = tokio::net::TcpStream::connect(self.address).await.ok()?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.ok()?;
        tokio::spawn(async move { connection.await.ok() });
        let mut request = self.request("GET", path).header("accept", "text/event-stream");
        if let Some(id) = last_id {
            request = request.header("last-event-id", id);
        }
        let request: Request<Full<Bytes>> = request.body(Full::default()).ok()?;
        let response = sender.send_request(request).await.ok()?;
        (response.status().as_u16() == 200)
            .then(|| EventReader { body: response.into_body(), buffer: String::new() })
    }

    /// Opens a stream of events.
    pub async fn events(&self, path: &str, last_id: Option<&str>) -> EventReader {
        let mut request = self.request("GET", path).header("accept", "text/event-stream");
        if let Some(id) = last_id {
            request = request.header("last-event-id", id);
        }
        let response = self.send(request.body(Full::default()).unwrap()).await;
        assert_eq!(response.status().as_u16(), 200);
        EventReader { body: response.into_body(), buffer: String::new() }
    }
}

pub async fn read_json(response: Response<Incoming>) -> (u16, Value) {
    let status = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8_lossy(&bytes).into_owned();
    (status, serde_json::from_slice(&bytes).unwrap_or(Value::String(text)))
}

/// A server-sent event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SentEvent {
    pub id: Option<String>,
    pub event: Option<String>,
    pub data: String,
}

impl SentEvent {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.data).unwrap()
    }
}

/// Reads the events of a stream.
pub struct EventReader {
    body: Incoming,
    buffer: String,
}

impl EventReader {
    pub fn new(body: Incoming) -> Self {
        Self { body, buffer: String::new() }
    }

    /// Returns the next event; `None` at the end of the stream.
    pub async fn next(&mut self) -> Option<SentEvent> {
        loop {
            if let Some(end) = self.buffer.find("\n\n") {
                let block: String = self.buffer.drain(..end + 2).collect();
                let mut event = SentEvent::default();
                for line in block.lines() {
                    match line.split_once(": ").or_else(|| line.split_once(':')) {
                        Some(("id", text)) => event.id = Some(text.to_owned()),
                        Some(("event", text)) => event.event = Some(text.to_owned()),
                        Some(("data", text)) => {
                            if !event.data.is_empty() {
                                event.data.push('\n');
                            }
                            event.data.push_str(text);
                        }
                        _ => {}
                    }
                }
                if event != SentEvent::default() {
                    return Some(event);
                }
                continue;
            }
            let frame = tokio::time::timeout(PATIENCE, self.body.frame()).await.expect("no event came")?;
            if let Some(data) = frame.ok()?.data_ref() {
                self.buffer.push_str(&String::from_utf8_lossy(data));
            }
        }
    }
}
