//! Embeddings of a provider, against a local server that answers correctly and incorrectly.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use std::io::Write;
use std::process::Command;

use windlass_models::OpenAi;
use windlass_models::testing::{FakeProvider, FakeReply};
use windlass_search::{
    Embedder, EmbeddingPurpose, Index, IndexDocument, ProviderEmbedder, SearchError, SearchSignals,
};

const DIMENSIONS: usize = 2048;

fn provider_embedder(openai: &OpenAi) -> ProviderEmbedder {
    let model = openai.embeddings("fake-embedding").expect("is set up").dimensions(DIMENSIONS);
    ProviderEmbedder::new(model, DIMENSIONS).expect("starts")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_found_by_a_providers_vectors() {
    let provider = FakeProvider::start((0..20).map(|_| FakeReply::embeddings())).await.expect("starts");
    let folder = tempfile::tempdir().expect("a folder");
    let options = Index::options().embedder(provider_embedder(&provider.openai()));
    let index = options.open(folder.path().join("provider.index")).expect("opens");
    assert_eq!(provider.requests().len(), 0, "opening asks nothing");
    let documents = (0..300).map(|at| IndexDocument::new(format!("{at}.txt"), format!("lantern number{at}")));
    // Called on a runtime thread on purpose: a careless caller only blocks that thread.
    let report = index.put_documents(documents).expect("put");
    assert_eq!((report.added, report.problems.len()), (300, 0), "{report}");
    let requests = provider.requests();
    assert_eq!(requests.len(), 3, "300 texts in batches of 128");
    assert_eq!(requests[0].path, "/v1/embeddings");
    assert_eq!(requests[0].body["model"], "fake-embedding");
    assert_eq!(requests[0].body["dimensions"], DIMENSIONS);
    assert_eq!(requests[2].body["input"].as_array().map(Vec::len), Some(44));
    assert!(requests[0].headers["authorization"].starts_with("Bearer "));
    let found =
        index.search("lantern number217").signals(SearchSignals::VectorsOnly).run().expect("searches");
    assert_eq!(found.hits[0].file_name, "217.txt");
    // Searching by BM25 only sends no request.
    let before = provider.requests().len();
    index.search("lantern").signals(SearchSignals::Bm25Only).run().expect("searches");
    assert_eq!(provider.requests().len(), before, "words alone ask nobody");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_help_is_tried_again_and_what_does_not_is_told() {
    let busy = || FakeReply::status(429).header("retry-after-ms", "1");
    let cut = FakeReply::embeddings().reset_at(10);
    let provider = FakeProvider::start([busy(), cut, FakeReply::embeddings()]).await.expect("starts");
    let vectors = provider_embedder(&provider.openai())
        .embed(&["a pump", "  ", "a valve"], EmbeddingPurpose::Document)
        .expect("embeds");
    assert_eq!(provider.requests().len(), 3, "refused, cut short, answered");
    assert_eq!(vectors.len(), 3);
    assert!(vectors[1].iter().all(|value| *value == 0.0) && vectors[1].len() == DIMENSIONS);
    assert_eq!(provider.requests()[2].body["input"].as_array().map(Vec::len), Some(2), "nothing is not sent");

    // An error omits a key that the server echoes, and a rejected request is not retried.
    let said =
        r#"{"error":{"message":"the key sk-very-secret-1 is not valid","type":"authentication_error"}}"#;
    let provider = FakeProvider::start([FakeReply::json_body(said).with_status(401)]).await.expect("starts");
    let asks = provider_embedder(&OpenAi::at(&provider.base_url()).key("sk-very-secret-1"));
    let error = asks.embed(&["a pump"], EmbeddingPurpose::Query).expect_err("is refused").to_string();
    assert!(error.contains("401") && !error.contains("sk-very-secret-1"), "{error}");
    assert!(!format!("{asks:?}").contains("sk-very-secret-1"));
    assert_eq!(provider.requests().len(), 1);

    // Retries end if every request is rejected.
    let provider = FakeProvider::start((0..50).map(|_| busy())).await.expect("starts");
    let error = provider_embedder(&provider.openai())
        .embed(&["a pump"], EmbeddingPurpose::Query)
        .expect_err("is refused");
    assert!(error.to_string().contains("429"), "{error}");
    assert_eq!(provider.requests().len(), 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_do_not_fit_are_errors() {
    let one = r#"{"data":[{"index":0,"embedding":[1.0,2.0]}]}"#;
    let twice = r#"{"data":[{"index":0,"embedding":[1.0]},{"index":0,"embedding":[1.0]}]}"#;
    let unordered = r#"{"data":[{"index":1,"embedding":[0.0,2.0]},{"index":0,"embedding":[1.0,0.0]}]}"#;
    for (body, words) in [
        (one, "2 vectors were asked for, and 1 came"),
        (twice, "nobody asked for"),
        ("{", "ended before it was complete"),
    ] {
        // An unreadable body is requested again.
        let replies = (0..5).map(|_| FakeReply::json_body(body));
        let provider = FakeProvider::start(replies).await.expect("starts");
        let error = provider_embedder(&provider.openai())
            .embed(&["a", "b"], EmbeddingPurpose::Query)
            .expect_err("does not fit");
        assert!(error.to_string().contains(words), "{body}: {error}");
    }
    let provider = FakeProvider::start([FakeReply::json_body(unordered)]).await.expect("starts");
    let model = provider.openai().embeddings("any").expect("is set up");
    assert_eq!(model.embed(&["a", "b"]).await.expect("embeds"), [vec![1.0, 0.0], vec![0.0, 2.0]]);

    // A mismatch of dimensions is an error, and nothing is written.
    let provider = FakeProvider::start([FakeReply::embeddings()]).await.expect("starts");
    let model = provider.openai().embeddings("any").expect("is set up").dimensions(7);
    let folder = tempfile::tempdir().expect("a folder");
    let options = Index::options().embedder(ProviderEmbedder::new(model, 8).expect("starts"));
    let index = options.open(folder.path().join("x.index")).expect("opens");
    let error = index.put_documents([IndexDocument::new("a.txt", "a pump")]).expect_err("does not fit");
    assert!(matches!(&error, SearchError::Embed(_)) && error.to_string().contains("7 dimensions"), "{error}");
    assert_eq!(index.chunk_count().expect("counts"), 0);
}

/// The official client accepts our request and reads the same vectors from the same server.
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
    let provider =
        FakeProvider::start([FakeReply::embeddings(), FakeReply::embeddings()]).await.expect("starts");
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
