//! The hosted file search tool, against a local server with the provider's protocol, and the local tool.

use std::sync::{Arc, Mutex};

use serde_json::json;
use windlass::prelude::*;
use windlass_models::testing::{FakeProvider, FakeReply};
use windlass_search::{
    AttributeFilter, HostedFileSearch, HybridWeights, Index, IndexDocument, RankingOptions,
};

#[tokio::test]
async fn the_hosted_tool_has_all_its_options_and_its_results_are_seen() {
    let call = json!({
        "type": "file_search_call", "id": "fs_1", "status": "completed", "queries": ["parental leave"],
        "results": [{ "file_id": "file-1", "filename": "leave.md", "score": 0.9, "text": "Sixteen weeks.", "attributes": { "year": 2024 } }],
    });
    let reply = FakeReply::item(call).and_text("Sixteen weeks.");
    let provider = FakeProvider::start([reply]).await.expect("starts");
    let search = HostedFileSearch::new(["vs_1", "vs_2"])
        .max_results(7)
        .filters(AttributeFilter::and([
            AttributeFilter::eq("team", "people"),
            AttributeFilter::or([
                AttributeFilter::gte("year", 2023),
                AttributeFilter::one_of("kind", ["law"]),
            ]),
        ]))
        .ranking(RankingOptions {
            ranker: Some("auto".into()),
            score_threshold: Some(0.25),
            hybrid_search: Some(HybridWeights { embedding_weight: 1.0, text_weight: 3.0 }),
        })
        .include_results();
    let agent =
        Agent::new("clerk").model(provider.openai().responses("any").expect("is set up")).tool(search);
    let outcome = agent.run("How long is parental leave?").await.expect("runs");
    assert_eq!(outcome.output_text().expect("the run finished"), "Sixteen weeks.");
    let body = &provider.requests()[0].body;
    assert_eq!(
        body["tools"],
        json!([{
            "type": "file_search",
            "vector_store_ids": ["vs_1", "vs_2"],
            "max_num_results": 7,
            "filters": { "type": "and", "filters": [
                { "type": "eq", "key": "team", "value": "people" },
                { "type": "or", "filters": [
                    { "type": "gte", "key": "year", "value": 2023.0 },
                    { "type": "in", "key": "kind", "value": ["law"] },
                ] },
            ] },
            "ranking_options": {
                "ranker": "auto", "score_threshold": 0.25,
                "hybrid_search": { "embedding_weight": 1.0, "text_weight": 3.0 },
            },
        }])
    );
    let include = body["include"].as_array().expect("is a list");
    assert!(include.contains(&json!(HostedFileSearch::INCLUDE_RESULTS)), "{include:?}");
    let seen = serde_json::to_string(outcome.record().history()).expect("writes");
    assert!(seen.contains("file_search_call") && seen.contains("leave.md"), "{seen}");
}

#[tokio::test]
async fn a_provider_without_the_tool_says_so_when_the_run_starts() {
    let provider = FakeProvider::start([FakeReply::text("never asked")]).await.expect("starts");
    let agent = Agent::new("clerk")
        .model(provider.openai().chat("any").expect("is set up"))
        .tools((HostedFileSearch::new(["vs_1"]),));
    let error = agent.run("How long?").await.expect_err("there is no such tool");
    assert!(error.to_string().contains("file_search"), "{error}");
    assert_eq!(provider.requests().len(), 0, "nobody was asked");
}

#[tokio::test]
async fn the_local_tool_takes_the_same_options_and_shows_what_it_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let index = Index::open(folder.path().join("tool.index")).expect("opens");
    index
        .put_documents([
            IndexDocument::new("leave-2022.md", "# Leave\n\nParents have twelve weeks.")
                .attribute("year", 2022),
            IndexDocument::new("leave-2024.md", "# Leave\n\nParents have sixteen weeks.")
                .attribute("year", 2024),
            IndexDocument::new("tale.md", "An unrelated tale of dragons.").attribute("year", 2024),
        ])
        .expect("put");
    let seen = Arc::new(Mutex::new(Vec::new()));
    let shown = seen.clone();
    let tool = index
        .tool()
        .max_results(5)
        .filters(AttributeFilter::gte("year", 2023))
        .ranking(RankingOptions {
            ranker: Some("auto".into()),
            score_threshold: Some(0.5),
            hybrid_search: None,
        })
        .on_results(move |found| shown.lock().expect("is whole").push(found.clone()));
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "file_search", json!({ "queries": ["weeks of leave for parents", ""] })),
        ScriptedResponse::text("Sixteen."),
    ]);
    let agent = Agent::new("clerk").model(model.clone()).tool(tool);
    assert_eq!(
        agent.run("How long?").await.expect("runs").output_text().expect("the run finished"),
        "Sixteen."
    );
    let told = &model.requests()[1].input_text()[2];
    assert!(
        told.contains("leave-2024.md, lines 1 to 3, Leave (score ") && told.contains("sixteen"),
        "{told}"
    );
    assert!(!told.contains("twelve") && !told.contains("dragons"), "{told}");
    let seen = seen.lock().expect("is whole");
    assert_eq!(seen.len(), 1);
    let hit = &seen[0].hits[0];
    assert_eq!((hit.file_name.as_str(), hit.location.heading.as_str()), ("leave-2024.md", "Leave"));
    assert!(hit.score > 0.5 && hit.score <= 1.0 && hit.attributes["year"] == 2024.into());
}
