//! Vectors of a provider, against a server on this machine that speaks its protocol, well and badly.

#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

use std::io::Write;
use std::process::Command;

use windlass_models::OpenAi;
use windlass_models::testing::{FakeProvider, FakeReply};
use windlass_search::{Document, Embedder, Index, ProviderEmbedder, Purpose, SearchError, Signals};

const DIMENSIONS: usize = 2048;

fn embedder(openai: &OpenAi) -> ProviderEmbedder {
    let model = openai.embeddings("fake-embedding").expect("is set up").dimensions(DIMENSIONS);
    ProviderEmbedder::new(model, DIMENSIONS).expect("starts")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_found_by_a_providers_vectors() {
    let provider = FakeProvider::start((0..20).map(|_| FakeReply::vectors())).await.expect("starts");
    let folder = tempfile::tempdir().expect("a folder");
    let options = Index::options().embedder(embedder(&provider.openai()));
    let index = options.open(folder.path().join("provider.index")).expect("opens");
    assert_eq!(provider.requests().len(), 0, "opening asks nothing");
    let documents = (0..300).map(|at| Document::new(format!("{at}.txt"), format!("lantern number{at}")));
    // From a thread of the runtime on purpose: whoever is careless there only blocks a thread.
    let report = index.put(documents).expect("put");
    assert_eq!((report.added, report.problems.len()), (300, 0), "{report}");
    let requests = provider.requests();
    assert_eq!(requests.len(), 3, "300 texts in batches of 128");
    assert_eq!(requests[0].path, "/v1/embeddings");
    assert_eq!(requests[0].body["model"], "fake-embedding");
    assert_eq!(requests[0].body["dimensions"], DIMENSIONS);
    assert_eq!(requests[2].body["input"].as_array().map(Vec::len), Some(44));
    assert!(requests[0].headers["authorization"].starts_with("Bearer "));
    let found = index.search("lantern number217").signals(Signals::Vectors).run().expect("searches");
    assert_eq!(found.hits[0].name, "217.txt");
    // What is there already is not asked for again.
    let before = provider.requests().len();
    index.search("lantern").signals(Signals::Words).run().expect("searches");
    assert_eq!(provider.requests().len(), before, "words alone ask nobody");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_help_is_tried_again_and_what_does_not_is_told() {
    let busy = || FakeReply::status(429).header("retry-after-ms", "1");
    let cut = FakeReply::vectors().resets_at(10);
    let provider = FakeProvider::start([busy(), cut, FakeReply::vectors()]).await.expect("starts");
    let vectors =
        embedder(&provider.openai()).embed(&["a pump", "  ", "a valve"], Purpose::Document).expect("embeds");
    assert_eq!(provider.requests().len(), 3, "refused, cut short, answered");
    assert_eq!(vectors.len(), 3);
    assert!(vectors[1].iter().all(|value| *value == 0.0) && vectors[1].len() == DIMENSIONS);
    assert_eq!(provider.requests()[2].body["input"].as_array().map(Vec::len), Some(2), "nothing is not sent");

    // A key that a server repeats is not repeated by us, and a refusal is not asked again.
    let said =
        r#"{"error":{"message":"the key sk-very-secret-1 is not valid","type":"authentication_error"}}"#;
    let provider = FakeProvider::start([FakeReply::json_body(said).with_status(401)]).await.expect("starts");
    let asks = embedder(&OpenAi::at(&provider.base_url()).key("sk-very-secret-1"));
    let error = asks.embed(&["a pump"], Purpose::Query).expect_err("is refused").to_string();
    assert!(error.contains("401") && !error.contains("sk-very-secret-1"), "{error}");
    assert!(!format!("{asks:?}").contains("sk-very-secret-1"));
    assert_eq!(provider.requests().len(), 1);

    // Always refused: it ends.
    let provider = FakeProvider::start((0..50).map(|_| busy())).await.expect("starts");
    let error = embedder(&provider.openai()).embed(&["a pump"], Purpose::Query).expect_err("is refused");
    assert!(error.to_string().contains("429"), "{error}");
    assert_eq!(provider.requests().len(), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_do_not_fit_are_errors() {
    let one = r#"{"data":[{"index":0,"embedding":[1.0,2.0]}]}"#;
    let twice = r#"{"data":[{"index":0,"embedding":[1.0]},{"index":0,"embedding":[1.0]}]}"#;
    let unordered = r#"{"data":[{"index":1,"embedding":[0.0,2.0]},{"index":0,"embedding":[1.0,0.0]}]}"#;
    for (body, words) in
        [(one, "2 vectors were asked for, and 1 came"), (twice, "nobody asked for"), ("{", "EOF")]
    {
        let provider = FakeProvider::start([FakeReply::json_body(body)]).await.expect("starts");
        let error =
            embedder(&provider.openai()).embed(&["a", "b"], Purpose::Query).expect_err("does not fit");
        assert!(error.to_string().contains(words), "{body}: {error}");
    }
    let provider = FakeProvider::start([FakeReply::json_body(unordered)]).await.expect("starts");
    let model = provider.openai().embeddings("any").expect("is set up");
    assert_eq!(model.embed(&["a", "b"]).await.expect("embeds"), [vec![1.0, 0.0], vec![0.0, 2.0]]);

    // A size that is not the index's is told, and nothing is written.
    let provider = FakeProvider::start([FakeReply::vectors()]).await.expect("starts");
    let model = provider.openai().embeddings("any").expect("is set up").dimensions(7);
    let folder = tempfile::tempdir().expect("a folder");
    let options = Index::options().embedder(ProviderEmbedder::new(model, 8).expect("starts"));
    let index = options.open(folder.path().join("x.index")).expect("opens");
    let error = index.put([Document::new("a.txt", "a pump")]).expect_err("does not fit");
    assert!(matches!(&error, SearchError::Embed(_)) && error.to_string().contains("7 numbers"), "{error}");
    assert_eq!(index.chunks().expect("counts"), 0);
}

/// What the official client reads of the same server, and whether its types take what we send.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_official_client_sees_the_same() {
    let python = std::env::var("WINDLASS_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has = Command::new(&python).args(["-c", "import openai, pydantic"]).output();
    if !has.is_ok_and(|output| output.status.success()) {
        let _ = writeln!(
            std::io::stderr(),
            "not shown: vectors by the official Python client, because `{python}` has no package `openai`"
        );
        return;
    }
    let provider = FakeProvider::start([FakeReply::vectors(), FakeReply::vectors()]).await.expect("starts");
    let texts = ["bleed the pump", "grease the valve"];
    let ours = provider.openai().embeddings("fake").expect("is set up").dimensions(8).embed(&texts).await;
    let sent = provider.requests()[0].body.to_string();
    let script = r#"
import json, sys
from openai import OpenAI
from openai.types import EmbeddingCreateParams
from pydantic import TypeAdapter
sent = json.loads(sys.argv[2])
TypeAdapter(EmbeddingCreateParams).validate_python(sent, extra="forbid")
client = OpenAI(base_url=sys.argv[1], api_key="none", max_retries=0, _strict_response_validation=True)
found = client.embeddings.create(**sent)
print(json.dumps([one.embedding for one in found.data]))
"#;
    let url = provider.base_url();
    let output = tokio::task::spawn_blocking(move || {
        Command::new(python).args(["-c", script, &url, &sent]).output().expect("runs")
    });
    let output = output.await.expect("ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let theirs: Vec<Vec<f32>> = serde_json::from_slice(&output.stdout).expect("is JSON");
    assert_eq!(theirs, ours.expect("embeds"));
}
