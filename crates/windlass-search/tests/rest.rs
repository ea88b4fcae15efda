//! The REST API of vector stores: with hand-written requests, and with the official Python client.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::io::Write;
use std::process::Command;

use serde_json::{Value, json};
use windlass_search::Index;
use windlass_search::rest::{RestRequest, RestServer, respond};

/// The key that the official client sends.
const API_KEY: &str = "none";

fn send_json(index: &Index, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let request = RestRequest {
        method: method.into(),
        path: path.into(),
        body: body.to_string().into_bytes(),
        content_type: "application/json".into(),
        ..RestRequest::default()
    };
    let response = respond(index, &request);
    (response.status, serde_json::from_slice(&response.body).expect("is JSON"))
}

fn upload_text(index: &Index, name: &str, text: &str) -> String {
    let body = format!(
        "--x\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nassistants\r\n--x\r\nContent-Disposition: \
         form-data; name=\"file\"; filename=\"{name}\"\r\nContent-Type: text/plain\r\n\r\n{text}\r\n--x--\r\n"
    );
    let request = RestRequest {
        method: "POST".into(),
        path: "/v1/files".into(),
        content_type: "multipart/form-data; boundary=x".into(),
        body: body.into_bytes(),
        ..RestRequest::default()
    };
    let response = respond(index, &request);
    let value: Value = serde_json::from_slice(&response.body).expect("is JSON");
    assert_eq!(response.status, 200, "{value}");
    value["id"].as_str().expect("an id").to_owned()
}

#[test]
fn stores_are_searched_apart() {
    let folder = tempfile::tempdir().expect("a folder");
    let index = Index::open(folder.path().join("rest.index")).expect("opens");
    let file = upload_text(&index, "../../etc/herons.txt", "the quiet heron\r\nwaits");
    let (_, one) =
        send_json(&index, "POST", "/v1/vector_stores", &json!({ "name": "one", "file_ids": [file] }));
    let (_, two) = send_json(&index, "POST", "/v1/vector_stores", &json!({ "name": "two" }));
    assert_eq!(one["file_counts"]["completed"], 1, "{one}");
    let search = |store: &Value| {
        let path = format!("/v1/vector_stores/{}/search", store["id"].as_str().expect("an id"));
        send_json(&index, "POST", &path, &json!({ "query": "heron" })).1
    };
    assert_eq!(search(&one)["data"][0]["filename"], "herons.txt", "a name is not a path");
    assert_eq!(search(&one)["data"][0]["content"][0]["text"], "the quiet heron\r\nwaits");
    assert_eq!(search(&two)["data"], json!([]));
    assert_eq!(
        index.search("heron").run().expect("searches").hits.len(),
        0,
        "nor is it in the store of local files"
    );
}

#[test]
fn what_does_not_fit_is_refused_in_words() {
    let folder = tempfile::tempdir().expect("a folder");
    let index = Index::open(folder.path().join("rest.index")).expect("opens");
    for (method, path, body, status, words) in [
        ("GET", "/v1/vector_stores/vs_none", json!({}), 404, "there is no vector store `vs_none`"),
        ("POST", "/v1/files", json!({}), 400, "form"),
        ("POST", "/v1/vector_stores/vs_default/search", json!({ "query": [] }), 400, "empty"),
        ("POST", "/v1/vector_stores/vs_default/search", json!({ "question": "x" }), 400, "query"),
        ("POST", "/v1/vector_stores/vs_default/files", json!({ "file_id": "file-none" }), 404, "file-none"),
        ("POST", "/v1/vector_stores/vs_default/file_batches", json!({}), 400, "1 to 2000"),
        ("GET", "/v2/elsewhere", json!({}), 404, "there is no"),
    ] {
        let (came, value) = send_json(&index, method, path, &body);
        assert_eq!(came, status, "{path}: {value}");
        assert!(
            value["error"]["message"].as_str().is_some_and(|text| text.contains(words)),
            "{path}: {value}"
        );
    }
    let file = upload_text(&index, "a.txt", "text");
    let many: serde_json::Map<String, Value> = (0..17).map(|at| (format!("k{at}"), json!(1))).collect();
    let body = json!({ "file_id": file, "attributes": many });
    let (status, value) = send_json(&index, "POST", "/v1/vector_stores/vs_default/files", &body);
    assert_eq!(status, 400, "{value}");
}

/// A request that is refused changes nothing.
#[test]
fn a_refused_request_leaves_nothing_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    let index = Index::open(folder.path().join("rest.index")).expect("opens");
    let files = ["a.txt", "b.txt"].map(|name| upload_text(&index, name, "text"));
    let state = || {
        let (_, stores) = send_json(&index, "GET", "/v1/vector_stores", &json!({}));
        let (_, attached) = send_json(&index, "GET", "/v1/vector_stores/vs_default/files", &json!({}));
        (stores["data"].clone(), attached["data"].clone())
    };
    let before = state();
    let chunks = |size: u64, overlap: u64| json!({ "type": "static", "static": { "max_chunk_size_tokens": size, "chunk_overlap_tokens": overlap } });
    let long = json!({ "note": "x".repeat(513) });
    const STORES: &str = "/v1/vector_stores";
    const BATCHES: &str = "/v1/vector_stores/vs_default/file_batches";
    for (path, body) in [
        (STORES, json!({ "file_ids": files, "chunking_strategy": chunks(99, 0) })),
        (STORES, json!({ "file_ids": files, "chunking_strategy": chunks(100, 51) })),
        // Twice this overlap is beyond 64 bits.
        (STORES, json!({ "file_ids": files, "chunking_strategy": chunks(100, 1 << 63) })),
        (STORES, json!({ "chunking_strategy": chunks(5000, 0) })),
        (STORES, json!({ "file_ids": files, "expires_after": { "anchor": "last_active_at", "days": 0 } })),
        (BATCHES, json!({ "files": [{ "file_id": files[0] }, { "file_id": files[1], "attributes": long }] })),
        (
            BATCHES,
            json!({ "files": [{ "file_id": files[0] }, { "file_id": files[1], "chunking_strategy": chunks(1, 0) }] }),
        ),
        (BATCHES, json!({ "files": [{ "file_id": files[0] }, { "file_id": "file-none" }] })),
    ] {
        let (status, value) = send_json(&index, "POST", path, &body);
        assert!(matches!(status, 400 | 404), "{body}: {value}");
        assert_eq!(state(), before, "{body}");
    }
}

/// Returns a Python interpreter with the official client, or the reason why there is none.
fn find_python() -> Result<String, String> {
    let wanted = std::env::var("WINDLASS_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    match Command::new(&wanted).args(["-c", "import openai; print(openai.__version__)"]).output() {
        Ok(output) if output.status.success() => Ok(wanted),
        Ok(_) => Err(format!("`{wanted}` has no package `openai`")),
        Err(error) => Err(format!("`{wanted}` does not run: {error}")),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_official_client_works_with_it() {
    let python = match find_python() {
        Ok(python) => python,
        Err(why) => {
            let _ = writeln!(
                std::io::stderr(),
                "not shown: the contract with the official Python client, because {why}; set WINDLASS_PYTHON"
            );
            return;
        }
    };
    let folder = tempfile::tempdir().expect("a folder");
    let index = Index::open(folder.path().join("rest.index")).expect("opens");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("an address");
    let server = tokio::spawn(RestServer::new(index, API_KEY).serve(listener));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/contract.py");
    let output = tokio::task::spawn_blocking(move || {
        Command::new(python).args([script, &format!("http://{address}/v1")]).output().expect("runs")
    });
    let output = output.await.expect("ends");
    server.abort();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("the contract holds"), "{said}");
}

/// A page in the user's browser and a rebound host name reach the loopback interface too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_clients_with_the_key_are_served() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let folder = tempfile::tempdir().expect("a folder");
    let index = Index::open(folder.path().join("rest.index")).expect("opens");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("an address");
    let rules =
        RestServer::new(index.clone(), API_KEY).allow_host("search.test").allow_origin("https://app.test");
    assert!(!format!("{rules:?}").contains(API_KEY));
    let server = tokio::spawn(rules.serve(listener));
    let good = format!("host: {address}\r\nauthorization: Bearer {API_KEY}\r\n");
    let key = format!("authorization: Bearer {API_KEY}\r\n");
    for (status, head) in [
        (200, good.clone()),
        (200, format!("host: localhost\r\n{key}")),
        (200, format!("host: SEARCH.test:80\r\n{key}")),
        (200, format!("host: [::1]:80\r\n{key}")),
        (200, format!("{good}origin: https://app.test\r\n")),
        (401, format!("host: {address}\r\n")),
        (401, format!("host: {address}\r\nauthorization: Bearer non\r\n")),
        (401, format!("host: {address}\r\nauthorization: Bearer none \u{1f}\r\n")),
        (401, format!("host: {address}\r\nauthorization: Basic {API_KEY}\r\n")),
        (401, format!("{good}authorization: Bearer other\r\n")),
        (403, format!("{good}origin: https://evil.test\r\n")),
        (403, format!("{good}origin: null\r\n")),
        (421, format!("host: evil.test\r\n{key}")),
        (421, format!("host: localhost.evil.test\r\n{key}")),
        (421, format!("host: localhost:80@evil.test\r\n{key}")),
        (421, key.clone()),
        (421, format!("{good}host: localhost\r\n")),
    ] {
        let mut stream = tokio::net::TcpStream::connect(address).await.expect("connects");
        let request = format!("GET /v1/vector_stores HTTP/1.1\r\n{head}connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        let came: u16 =
            answer.split_whitespace().nth(1).and_then(|code| code.parse().ok()).expect("a status");
        // The HTTP library itself refuses control characters.
        assert!(came == status || (came == 400 && head.contains('\u{1f}')), "{head}: {answer}");
    }
    server.abort();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("an address");
    let server = tokio::spawn(RestServer::new(index, "").serve(listener));
    let mut stream = tokio::net::TcpStream::connect(address).await.expect("connects");
    stream
        .write_all(format!("GET /v1/files HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer \r\nconnection: close\r\n\r\n").as_bytes())
        .await
        .expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 401"), "no key opens nothing: {answer}");
    server.abort();
}

/// The memory of a body that does not arrive is not kept from other requests for ever.
#[tokio::test(start_paused = true)]
async fn a_slow_body_ends_its_request() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let folder = tempfile::tempdir().expect("a folder");
    let index = Index::open(folder.path().join("rest.index")).expect("opens");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let address = listener.local_addr().expect("is bound");
    let server = tokio::spawn(RestServer::new(index, API_KEY).serve(listener));
    let mut stream = tokio::net::TcpStream::connect(address).await.expect("connects");
    let head = format!(
        "POST /v1/files HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {API_KEY}\r\nconnection: close\r\n\
         content-length: 500000000\r\n\r\n--x"
    );
    stream.write_all(head.as_bytes()).await.expect("sends");
    let mut answer = Vec::new();
    let ended = tokio::time::timeout(std::time::Duration::from_secs(3600), stream.read_to_end(&mut answer));
    ended.await.expect("it ends before an hour has passed").expect("reads");
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("too slowly"), "{answer}");
    server.abort();
}
