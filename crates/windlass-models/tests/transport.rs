//! The transport of requests: HTTP/2, proxies, compression, and the parts that an application can supply.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::collections::VecDeque;
use std::io::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use windlass::agent::Agent;
use windlass::core::item::Item;
use windlass::model::{ModelError, ModelErrorKind, ModelResponse, RetryAdvice, SharedModel};
use windlass_models::net::{
    BoxFuture, Bytes, HttpClient, HttpTransport, HttpVersionPolicy, ProxySettings, TransportBody,
    TransportError, TransportOptions, http,
};
use windlass_models::protocol::{
    ChatProtocol, DeltaBuffer, EncodedRequest, ModelProtocol, ProtocolRequest, ResponseDecoder,
    ResponseError, ResponsesProtocol, StreamProgress,
};
use windlass_models::sse::SseEvent;
use windlass_models::testing::{FakeProvider, FakeReply};
use windlass_models::{
    ModelProvider, OpenAi, ProviderRegistry, ProviderTimeouts, RequestSigner, SignError, StreamingMode,
};

const CHAT_BODY: &str =
    r#"{"id":"1","choices":[{"index":0,"message":{"content":"Hello."},"finish_reason":"stop"}]}"#;

/// Asks a model once and returns its answer, or the error.
async fn ask(model: impl Into<SharedModel>) -> Result<String, (ModelErrorKind, RetryAdvice, String)> {
    let agent = windlass::core::id::AgentName::from("host");
    let settings = windlass::model::ModelSettings::default();
    let request = windlass::model::ModelRequest {
        agent: &agent,
        turn: 1,
        instructions: None,
        input: &[Arc::new(Item::user("Good morning."))],
        tools: &[],
        deferred_tools: &[],
        handoffs: &[],
        settings: &settings,
        output_schema: None,
        previous_response_id: None,
        conversation_id: None,
    };
    let answer = model.into().respond(request, &windlass::model::DeltaSink::discarding()).await;
    match answer {
        Ok(answer) => Ok(windlass::model::describe_item(&answer.items[0])),
        Err(error) => Err((error.kind(), error.retry_advice(), error.to_string())),
    }
}

/// Serves HTTP/2 without TLS, and counts the connections.
async fn serve_http2(listener: TcpListener, connections: Arc<AtomicUsize>) {
    while let Ok((stream, _)) = listener.accept().await {
        connections.fetch_add(1, Ordering::Relaxed);
        let service = service_fn(|request: hyper::Request<hyper::body::Incoming>| async move {
            assert_eq!(request.uri().path(), "/v1/chat/completions");
            Ok::<_, std::convert::Infallible>(hyper::Response::new(CHAT_BODY.to_owned()))
        });
        tokio::spawn(
            hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service),
        );
    }
}

#[tokio::test]
async fn http2_without_tls_is_spoken_on_request_and_named_otherwise() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/v1", listener.local_addr().expect("an address"));
    let connections = Arc::new(AtomicUsize::new(0));
    let server = tokio::spawn(serve_http2(listener, connections.clone()));
    let client = HttpClient::new().version(HttpVersionPolicy::Http2);
    let model: SharedModel = OpenAi::at(&url).http_client(client).chat("m").expect("a model").into();
    assert_eq!(ask(model.clone()).await.as_deref(), Ok("assistant: Hello."));
    let all = (0..10).map(|_| tokio::spawn(ask(model.clone())));
    for answer in all.collect::<Vec<_>>() {
        assert_eq!(answer.await.expect("it ran").as_deref(), Ok("assistant: Hello."));
    }
    assert_eq!(connections.load(Ordering::Relaxed), 1, "ten requests at once share a connection");

    let (kind, advice, said) = ask(OpenAi::at(&url).chat("m").expect("a model")).await.expect_err("HTTP/1.1");
    assert_eq!((kind, advice), (ModelErrorKind::Unreachable, RetryAdvice::Never), "{said}");
    assert!(said.contains("HttpVersionPolicy::Http2"), "{said}");
    server.abort();
}

/// Serves HTTP/2 without TLS; the first connection never answers.
async fn serve_http2_after_a_silent_connection(listener: TcpListener, connections: Arc<AtomicUsize>) {
    while let Ok((stream, _)) = listener.accept().await {
        let is_silent = connections.fetch_add(1, Ordering::Relaxed) == 0;
        let service = service_fn(move |_: hyper::Request<hyper::body::Incoming>| async move {
            if is_silent {
                std::future::pending::<()>().await;
            }
            Ok::<_, std::convert::Infallible>(hyper::Response::new(CHAT_BODY.to_owned()))
        });
        tokio::spawn(
            hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service),
        );
    }
}

#[tokio::test]
async fn an_http2_connection_that_went_silent_is_not_used_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}/v1", listener.local_addr().expect("an address"));
    let connections = Arc::new(AtomicUsize::new(0));
    let server = tokio::spawn(serve_http2_after_a_silent_connection(listener, connections.clone()));
    let total = std::time::Duration::from_millis(400);
    let client = HttpClient::new().version(HttpVersionPolicy::Http2);
    let ask_within = |total| {
        let timeouts = ProviderTimeouts { total, ..ProviderTimeouts::default() };
        ask(OpenAi::at(&url).http_client(client.clone()).timeouts(timeouts).chat("m").expect("a model"))
    };
    let (kind, ..) = ask_within(total).await.expect_err("silence");
    assert_eq!(kind, ModelErrorKind::TimedOut);
    assert_eq!(ask_within(total * 50).await.as_deref(), Ok("assistant: Hello."));
    assert_eq!(connections.load(Ordering::Relaxed), 2);
    server.abort();
}

/// Reads the head of a request.
async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        if stream.read_buf(&mut head).await.unwrap_or(0) == 0 {
            break;
        }
    }
    String::from_utf8_lossy(&head).into_owned()
}

/// A proxy that gives each connection the next of these replies, and returns the head of each request, and the first
/// byte that follows a reply.
async fn start_proxy(
    replies: &[&'static str],
) -> (String, tokio::task::JoinHandle<Vec<(String, Option<u8>)>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    let mut replies: VecDeque<&'static str> = replies.iter().copied().collect();
    let proxy = tokio::spawn(async move {
        let mut heads = Vec::new();
        while let Some(reply) = replies.pop_front() {
            let (mut stream, _) = listener.accept().await.expect("a client");
            let head = read_head(&mut stream).await;
            stream.write_all(reply.as_bytes()).await.expect("it is there");
            let mut next = [0];
            let is_tunnel = head.starts_with("CONNECT") && reply.contains(" 200 ");
            let next =
                if is_tunnel { stream.read_exact(&mut next).await.ok().map(|_| next[0]) } else { None };
            heads.push((head, next));
        }
        heads
    });
    (address, proxy)
}

fn client_with(variable: &'static str, proxy: &str) -> HttpClient {
    let proxy = proxy.to_owned();
    HttpClient::new().proxies(ProxySettings::from_vars(move |name| (name == variable).then(|| proxy.clone())))
}

#[tokio::test]
async fn requests_without_tls_go_through_a_proxy() {
    let reply = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 88\r\n\r\n{\"id\":\"1\",\"choices\":[{\"index\":0,\"message\":{\"content\":\"Hello.\"},\"finish_reason\":\"stop\"}]}";
    assert!(reply.ends_with(CHAT_BODY) && CHAT_BODY.len() == 88);
    let (address, proxy) = start_proxy(&[reply]).await;
    let client = client_with("HTTP_PROXY", &format!("http://u:p@{address}"));
    let model = OpenAi::at("http://model.example:8000/v1").http_client(client).chat("m").expect("a model");
    assert_eq!(ask(model).await.as_deref(), Ok("assistant: Hello."));
    let (head, _) = proxy.await.expect("it ran").remove(0);
    assert!(head.starts_with("POST http://model.example:8000/v1/chat/completions HTTP/1.1\r\n"), "{head}");
    let head = head.to_ascii_lowercase();
    assert!(
        head.contains("proxy-authorization: basic dtpw\r\n") && head.contains("host: model.example:8000\r\n"),
        "{head}"
    );
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn requests_with_tls_go_through_a_tunnel() {
    let (address, proxy) = start_proxy(&[
        "HTTP/1.1 200 Connection established\r\n\r\n",
        "HTTP/1.1 502 Bad Gateway\r\n\r\n",
        "HTTP/1.1 407 Proxy Authentication Required\r\n\r\n",
    ])
    .await;
    let client = client_with("https_proxy", &format!("http://u:p@{address}"));
    let model: SharedModel =
        OpenAi::at("https://model.example/v1").http_client(client).chat("m").expect("a model").into();
    ask(model.clone()).await.expect_err("the tunnel leads nowhere");
    let (kind, advice, said) = ask(model.clone()).await.expect_err("the proxy is in trouble");
    assert_eq!((kind, advice), (ModelErrorKind::Unreachable, RetryAdvice::Safe), "{said}");
    let (kind, advice, said) = ask(model).await.expect_err("the proxy refuses");
    assert_eq!((kind, advice), (ModelErrorKind::Unreachable, RetryAdvice::Never), "{said}");
    assert!(said.contains("407"), "{said}");
    let heads = proxy.await.expect("it ran");
    for (head, _) in &heads {
        assert!(
            head.starts_with("CONNECT model.example:443 HTTP/1.1\r\nHost: model.example:443\r\n"),
            "{head}"
        );
        assert!(head.contains("Proxy-Authorization: Basic dTpw\r\n"), "{head}");
    }
    assert_eq!(heads[0].1, Some(0x16), "a TLS handshake follows");
}

/// A provider with TLS behind a proxy that requires a user name and a password.
#[cfg(feature = "tls")]
#[tokio::test]
async fn a_model_answers_through_a_proxy_with_a_login() {
    use windlass_models::net::testing::{TestProxy, start_tls_front, test_roots};

    let provider = FakeProvider::start((0..2).map(|_| FakeReply::text("Hello."))).await.expect("one");
    let address = provider.base_url().split('/').nth(2).expect("an authority").parse().expect("an address");
    let front = start_tls_front(address).await.expect("a port");
    let proxy = TestProxy::start([("model.windlass.test", front)]).await.expect("a proxy");
    let model = |proxy: &str, streaming| {
        let client = HttpClient::new()
            .proxies(ProxySettings::everywhere(proxy).expect("an address"))
            .trusted_roots(test_roots().expect("certificates"));
        let openai = OpenAi::at("https://model.windlass.test/v1").http_client(client);
        openai.chat("m").expect("a model").streaming(streaming)
    };
    for streaming in [StreamingMode::Never, StreamingMode::Always] {
        assert_eq!(ask(model(&proxy.url(), streaming)).await.as_deref(), Ok("assistant: Hello."));
    }
    assert_eq!(proxy.requests(), ["CONNECT model.windlass.test:443 HTTP/1.1"; 2]);

    let wrong = proxy.url_with_login("worker:guessed");
    let (kind, advice, said) = ask(model(&wrong, StreamingMode::Never)).await.expect_err("a refusal");
    assert_eq!((kind, advice), (ModelErrorKind::Unreachable, RetryAdvice::Never), "{said}");
    assert!(said.contains(&proxy.place()) && said.contains("user name and password"), "{said}");
    assert!(!said.contains("guessed"), "{said}");
}

fn compress(text: &str) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(text.as_bytes()).expect("memory");
    encoder.finish().expect("memory")
}

#[tokio::test]
async fn compressed_answers_are_read() {
    let events = "data: {\"choices\":[{\"delta\":{\"content\":\"Hel\"}}]}\n\n\
                  data: {\"choices\":[{\"delta\":{\"content\":\"lo.\"},\"finish_reason\":\"stop\"}]}\n\n";
    for (streaming, reply) in [
        (StreamingMode::Never, FakeReply::json_body(compress(CHAT_BODY))),
        (StreamingMode::Always, FakeReply::event_body(compress(events))),
    ] {
        for bytes in [1, 7, 10_000] {
            let reply = reply.clone().header("content-encoding", "GZIP").in_chunks_of(bytes);
            let provider = FakeProvider::start([reply]).await.expect("one");
            let model = provider.openai().chat("m").expect("a model").streaming(streaming);
            assert_eq!(ask(model).await.as_deref(), Ok("assistant: Hello."), "{streaming:?} in {bytes}");
            let asked = provider.requests()[0].headers.get("accept-encoding").cloned();
            let expected = (streaming == StreamingMode::Never).then_some("gzip");
            assert_eq!(asked.as_deref(), expected, "a stream that is compressed may be held back");
        }
    }
    let cut = compress(CHAT_BODY)[..40].to_vec();
    let provider = FakeProvider::start([FakeReply::json_body(cut).header("content-encoding", "gzip")])
        .await
        .expect("one");
    let (kind, advice, said) =
        ask(provider.openai().chat("m").expect("a model")).await.expect_err("half of it");
    assert_eq!((kind, advice), (ModelErrorKind::ConnectionLost, RetryAdvice::Safe), "{said}");
    let reply = FakeReply::json_body("this is plain text").header("content-encoding", "gzip");
    let provider = FakeProvider::start([reply]).await.expect("one");
    let (kind, advice, said) = ask(provider.openai().chat("m").expect("a model")).await.expect_err("damaged");
    assert_eq!((kind, advice), (ModelErrorKind::InvalidResponse, RetryAdvice::Never), "{said}");
}

#[tokio::test]
async fn providers_can_share_a_client() {
    let provider = FakeProvider::start((0..4).map(|_| FakeReply::text("Hello."))).await.expect("one");
    let client = HttpClient::new();
    for _ in 0..2 {
        let openai = provider.openai().http_client(client.clone());
        ask(openai.chat("m").expect("a model")).await.expect("an answer");
        ask(openai.responses("m").expect("a model")).await.expect("an answer");
    }
    assert_eq!(provider.connections(), 1);
}

/// A transport of the application's own.
#[derive(Debug, Default)]
struct RecordingTransport {
    requests: Arc<Mutex<Vec<String>>>,
}

struct OneChunk(Option<Bytes>);

impl TransportBody for OneChunk {
    fn next_chunk(&mut self) -> BoxFuture<'_, Result<Option<Bytes>, TransportError>> {
        Box::pin(async { Ok(self.0.take()) })
    }
}

impl HttpTransport for RecordingTransport {
    fn send<'a>(
        &'a self,
        request: http::Request<Bytes>,
        _: TransportOptions,
    ) -> BoxFuture<'a, Result<http::Response<Box<dyn TransportBody>>, TransportError>> {
        self.requests.lock().expect("nobody panicked").push(format!(
            "{} {}",
            request.method(),
            request.uri()
        ));
        Box::pin(async {
            let body: Box<dyn TransportBody> = Box::new(OneChunk(Some(CHAT_BODY.into())));
            Ok(http::Response::new(body))
        })
    }
}

#[tokio::test]
async fn an_application_can_supply_the_transport() {
    let transport = RecordingTransport::default();
    let requests = transport.requests.clone();
    let model = OpenAi::at("https://model.example/v1?a=b").http_client(transport).chat("m").expect("a model");
    assert_eq!(ask(model).await.as_deref(), Ok("assistant: Hello."));
    assert_eq!(*requests.lock().expect("it"), ["POST https://model.example/v1/chat/completions?a=b"]);
}

/// A transport and a signer that never come back.
#[derive(Debug)]
struct EndlessWait;

impl HttpTransport for EndlessWait {
    fn send<'a>(
        &'a self,
        _: http::Request<Bytes>,
        _: TransportOptions,
    ) -> BoxFuture<'a, Result<http::Response<Box<dyn TransportBody>>, TransportError>> {
        Box::pin(std::future::pending())
    }
}

impl RequestSigner for EndlessWait {
    fn sign<'a>(&'a self, _: &'a mut http::Request<Bytes>) -> BoxFuture<'a, Result<(), SignError>> {
        Box::pin(std::future::pending())
    }
}

#[tokio::test(start_paused = true)]
async fn a_transport_or_a_signer_that_never_comes_back_times_out() {
    let model = OpenAi::at("https://model.example/v1").http_client(EndlessWait).chat("m").expect("a model");
    let (kind, advice, said) = ask(model).await.expect_err("nothing comes");
    assert_eq!((kind, advice), (ModelErrorKind::TimedOut, RetryAdvice::Safe), "{said}");
    let signed =
        OpenAi::at("https://model.example/v1").http_client(RecordingTransport::default()).signer(EndlessWait);
    let (kind, advice, said) = ask(signed.chat("m").expect("a model")).await.expect_err("nothing comes");
    assert_eq!((kind, advice), (ModelErrorKind::Unauthorised, RetryAdvice::Safe), "{said}");
}

/// A signer with a token for each request, which fails once.
#[derive(Debug, Default)]
struct CountingSigner(AtomicUsize);

impl RequestSigner for CountingSigner {
    fn sign<'a>(&'a self, request: &'a mut http::Request<Bytes>) -> BoxFuture<'a, Result<(), SignError>> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            let number = self.0.fetch_add(1, Ordering::Relaxed);
            if number == 1 {
                return Err(TransportError::Unreachable("the token server is away".to_owned()).into());
            }
            let value = format!("Signed {number} {}", request.body().len()).parse()?;
            request.headers_mut().insert(http::header::AUTHORIZATION, value);
            Ok(())
        })
    }
}

#[tokio::test]
async fn every_request_is_signed() {
    let provider =
        FakeProvider::start([FakeReply::status(500).header("retry-after", "0"), FakeReply::text("Hello.")])
            .await
            .expect("one");
    let signed = ModelProvider::new("lab", &provider.base_url()).signer(CountingSigner::default());
    let model = signed.model(ChatProtocol::default(), "m").expect("a model");
    let outcome = Agent::new("host").model(model).run("Good morning.").await.expect("it ends");
    assert_eq!(outcome.output_text().expect("it finished"), "Hello.");
    let requests = provider.requests();
    let headers: Vec<&str> =
        requests.iter().map(|request| request.headers["authorization"].as_str()).collect();
    let [first, second] = headers[..] else { panic!("{headers:?}") };
    assert!(first.starts_with("Signed 0 ") && second.starts_with("Signed 2 "), "also a retry: {headers:?}");
}

/// A protocol of the application's own: one line each way.
#[derive(Debug)]
struct LineProtocol;

struct LineDecoder;

impl ModelProtocol for LineProtocol {
    fn name(&self) -> &str {
        "line"
    }

    fn encode(&self, request: &ProtocolRequest<'_>) -> Result<EncodedRequest, ModelError> {
        let body = json!({ "ask": request.request.input.len(), "model": request.model });
        Ok(EncodedRequest::new(
            format!("/models/{}/chat/completions?alt=json", request.model),
            body.to_string().into(),
        ))
    }

    fn decoder<'a>(&'a self, _: ProtocolRequest<'a>) -> Box<dyn ResponseDecoder + 'a> {
        Box::new(LineDecoder)
    }
}

impl ResponseDecoder for LineDecoder {
    fn decode_body(&mut self, body: &str) -> Result<ModelResponse, ResponseError> {
        let body: Value = serde_json::from_str(body).map_err(|error| ResponseError::invalid_json(&error))?;
        let said = body["said"].as_str().ok_or_else(|| ResponseError::invalid("it says nothing"))?;
        Ok(ModelResponse { items: vec![Arc::new(Item::assistant(said))], ..ModelResponse::default() })
    }

    fn decode_event(
        &mut self,
        _: SseEvent<'_>,
        _: &mut DeltaBuffer,
    ) -> Result<StreamProgress, ResponseError> {
        Ok(StreamProgress::Advanced)
    }

    fn is_complete(&self) -> bool {
        false
    }

    fn take_response(&mut self) -> Result<ModelResponse, ResponseError> {
        Err(ResponseError::Truncated)
    }
}

#[tokio::test]
async fn an_application_can_supply_the_protocol_and_the_provider() {
    let provider =
        FakeProvider::start([FakeReply::json_body(r#"{"said":"Hello."}"#), FakeReply::text("Hi.")])
            .await
            .expect("one");
    let lab = ModelProvider::new("lab", &format!("{}?v=1", provider.base_url()));
    let providers = ProviderRegistry::from_vars(|_| None)
        .with_provider("line", {
            let lab = lab.clone();
            move |name| Ok(lab.model(LineProtocol, name)?.into())
        })
        .with_provider("openai", move |name| Ok(lab.model(ResponsesProtocol::default(), name)?.into()));
    assert_eq!(ask(providers.model("line:big").expect("a model")).await.as_deref(), Ok("assistant: Hello."));
    assert_eq!(ask(providers.model("openai:big").expect("a model")).await.as_deref(), Ok("assistant: Hi."));
    let requests = provider.requests();
    assert_eq!(requests[0].path, "/v1/models/big/chat/completions?alt=json&v=1");
    assert_eq!(requests[0].body, json!({ "ask": 1, "model": "big" }));
    assert_eq!(requests[1].path, "/v1/responses?v=1");
}
