//! Fallback, rate limits and cassettes in whole runs.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

use windlass::agent::Agent;
use windlass::core::journal::JournalEntry;
use windlass::event::RunEventKind;
use windlass::model::{Model, ModelErrorKind};
use windlass::run::{ModelRetryPolicy, RetriesExhausted};
use windlass_models::testing::{FAKE_KEY, FakeProvider, FakeReply};
use windlass_models::{Cassette, ConversationState, FallbackModel, RateLimit};

const SINGLE_ATTEMPT: ModelRetryPolicy = ModelRetryPolicy {
    max_attempts: 1,
    base_delay: std::time::Duration::ZERO,
    max_delay: std::time::Duration::ZERO,
    max_provider_delay: std::time::Duration::ZERO,
    when_exhausted: RetriesExhausted::Fail,
};

async fn start_provider(replies: impl IntoIterator<Item = FakeReply>) -> FakeProvider {
    FakeProvider::start(replies).await.expect("a provider")
}

#[tokio::test]
async fn another_model_stands_in_where_that_was_declared() {
    let (first, second) =
        (start_provider([FakeReply::status(503)]).await, start_provider([FakeReply::text("Here.")]).await);
    let model = FallbackModel::new(first.openai().responses("first").expect("a model"))
        .then(second.anthropic().messages("second").expect("a model"));
    let outcome =
        Agent::new("host").model(model).run("x").model_retry(SINGLE_ATTEMPT).await.expect("an outcome");
    assert_eq!(outcome.output_text().expect("the run finished"), "Here.");
    let usage = outcome.record().usage();
    assert_eq!((usage.requests, usage.unknown_requests), (2, 1), "what failed is counted");
    let by = outcome.record().journal().iter().find_map(|record| match &record.entry {
        JournalEntry::ModelResponded(answered) => answered.model.clone(),
        _ => None,
    });
    assert_eq!(by.as_deref(), Some("second"), "and the journal says who answered");
}

#[tokio::test]
async fn nobody_stands_in_where_it_was_not_declared() {
    let (first, second) =
        (start_provider([FakeReply::status(400)]).await, start_provider([FakeReply::text("Here.")]).await);
    let model = FallbackModel::new(first.openai().chat("first").expect("a model"))
        .then(second.openai().chat("second").expect("a model"));
    let error =
        Agent::new("host").model(model).run("x").model_retry(SINGLE_ATTEMPT).await.expect_err("a failure");
    assert!(error.to_string().contains("400"), "{error}");
    assert!(second.requests().is_empty());
}

/// The window of any of the models may be the one that a request must fit.
#[tokio::test]
async fn a_fallback_has_the_smallest_window_and_says_that_a_conversation_is_stored() {
    let openai = windlass_models::OpenAi::new("sk-1");
    let chat = || openai.chat("any").expect("a model");
    assert_eq!(FallbackModel::new(chat()).context_window(), None);
    let model =
        FallbackModel::new(chat().context_window(64_000)).then(chat()).then(chat().context_window(32_000));
    assert_eq!(model.context_window(), Some(32_000));

    let responses =
        |state: ConversationState| openai.responses("any").expect("a model").conversation_state(state);
    for (state, last, is_stored) in [
        (ConversationState::ClientManaged, Some("resp_1"), false),
        (ConversationState::PreviousResponse, Some("resp_1"), true),
        // Nothing of this provider's is there yet, so the whole conversation is sent.
        (ConversationState::PreviousResponse, None, false),
        (ConversationState::PreviousResponse, Some("chatcmpl-1"), false),
        (ConversationState::Conversation("conv_1".to_owned()), None, true),
    ] {
        let model = FallbackModel::new(chat()).then(responses(state.clone()));
        assert_eq!(model.has_stored_conversation(last), is_stored, "{state:?} {last:?}");
    }
}

/// A test with a cassette sends nothing, also if another model could stand in.
#[tokio::test]
async fn a_cassette_that_lacks_a_request_is_no_reason_for_a_fallback() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("empty.json");
    std::fs::write(&file, "[]").expect("there is room");
    let live = start_provider([FakeReply::text("Here.")]).await;
    let cassette = Cassette::play(&file).expect("a cassette");
    let model = FallbackModel::new(live.openai().cassette(cassette).chat("first").expect("a model"))
        .then(live.openai().chat("second").expect("a model"));
    let error = Agent::new("host").model(model).run("x").await.expect_err("it was never recorded");
    assert!(error.to_string().contains("has only 0 exchanges"), "{error}");
    assert!(live.requests().is_empty());
}

#[tokio::test]
async fn the_last_error_is_told_where_all_fail() {
    let (first, second) =
        (start_provider([FakeReply::status(503)]).await, start_provider([FakeReply::status(429)]).await);
    let model = FallbackModel::new(first.openai().chat("first").expect("a model"))
        .then(second.openai().chat("second").expect("a model"))
        .on_errors([ModelErrorKind::Overloaded]);
    let error =
        Agent::new("host").model(model).run("x").model_retry(SINGLE_ATTEMPT).await.expect_err("a failure");
    assert!(error.to_string().contains("429"), "{error}");
}

#[tokio::test]
async fn a_limit_is_shared_by_the_models_of_a_provider() {
    let provider = start_provider((0..4).map(|_| FakeReply::text("Yes."))).await;
    let limit = RateLimit::new().requests_per_minute(3);
    let openai = provider.openai().rate_limit(limit);
    for _ in 0..3 {
        let model = openai.chat("m").expect("a model");
        Agent::new("host").model(model).run("x").await.expect("an outcome");
    }
    let waiting = Agent::new("host").model(openai.responses("m").expect("a model"));
    let waiting = async { waiting.run("x").await };
    let waited = tokio::time::timeout(std::time::Duration::from_millis(300), waiting).await;
    assert!(waited.is_err(), "the fourth has to wait");
    assert_eq!(provider.requests().len(), 3);
}

#[tokio::test]
async fn a_cassette_is_recorded_once_and_played_afterwards() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("morning.json");
    let replies = [
        FakeReply::status(429).header("retry-after-ms", "1").header("set-cookie", "session=secret"),
        FakeReply::reasoning("rs_1", "Grüße…").and_text("Good morning, 日本."),
    ];
    let provider = start_provider(replies).await;
    let agent = |cassette: Cassette| {
        let model = provider.openai().cassette(cassette).responses("m").expect("a model");
        Agent::new("host").model(model.streaming(windlass_models::StreamingMode::Always))
    };
    let recorded = agent(Cassette::open(&file).expect("a cassette")).run("Hello.").await.expect("an outcome");
    assert_eq!(provider.requests().len(), 2);

    let cassette = Cassette::open(&file).expect("a cassette");
    assert_eq!((cassette.len(), cassette.unplayed()), (2, 2));
    let played = agent(cassette.clone()).run("Hello.").await.expect("an outcome");
    assert_eq!(
        played.output_text().expect("the run finished"),
        recorded.output_text().expect("the run finished")
    );
    assert_eq!(played.record().history(), recorded.record().history());
    assert_eq!(provider.requests().len(), 2, "nothing was sent");
    assert_eq!(cassette.unplayed(), 0);

    let error = agent(Cassette::open(&file).expect("a cassette"))
        .run("Good evening.")
        .model_retry(SINGLE_ATTEMPT)
        .await;
    let said = error.expect_err("another request").to_string();
    assert!(said.contains("$.input[0].content is"), "{said}");
    assert!(said.contains("recorded is") && said.contains("Hello."), "both values are shown: {said}");
    assert!(said.contains("delete it to record it again"), "{said}");

    // A field that differs in every run is left out of the comparison, and only that one.
    let ignoring = |field: &str| Cassette::open(&file).expect("a cassette").ignore_field(field);
    let played = agent(ignoring("/input/*/content")).run("Good evening.").await.expect("it is played");
    assert_eq!(played.output_text().expect("the run finished"), "Good morning, 日本.");
    let other = agent(ignoring("/input/*/role")).run("Good evening.").model_retry(SINGLE_ATTEMPT).await;
    assert!(other.expect_err("another request").to_string().contains("$.input[0].content is"));

    let text = std::fs::read_to_string(&file).expect("the file");
    assert!(!text.contains(FAKE_KEY) && !text.contains("secret"), "{text}");
}

#[tokio::test]
async fn a_cassette_that_is_only_played_sends_nothing_and_one_that_cannot_be_written_sends_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = folder.path().join("sub/missing.json");
    let error = Cassette::play(&missing).expect_err("it was never recorded").to_string();
    assert!(
        error.contains("there is no cassette") && error.contains("`Cassette::open` records it"),
        "{error}"
    );
    // A missing folder is made, so that the exchange is recorded.
    let provider = start_provider([FakeReply::text("Good morning.")]).await;
    let cassette = Cassette::open(&missing).expect("a cassette");
    let model = provider.openai().cassette(cassette).responses("m").expect("a model");
    Agent::new("host").model(model).run("Hello.").await.expect("an outcome");
    assert_eq!(Cassette::play(&missing).expect("it was recorded").unplayed(), 1);
    // Beneath a file there is no folder.
    let file = folder.path().join("file");
    std::fs::write(&file, "").expect("there is room");
    assert!(Cassette::open(file.join("morning.json")).is_err());
}

/// The deltas of the model that broke off are void, so that nobody sees two answers as one.
#[tokio::test]
async fn a_fallback_in_the_middle_of_a_stream_begins_anew() {
    let broken = FakeReply::text("The total is four, or perhaps five.").in_deltas_of(4).end_at(1500);
    let (first, second) =
        (start_provider([broken]).await, start_provider([FakeReply::text("The total is 42.")]).await);
    let model = FallbackModel::new(first.openai().chat("first").expect("a model"))
        .then(second.openai().chat("second").expect("a model"));
    let mut stream = Agent::new("host").model(model).run("x").stream();
    let (mut text, mut voided) = (String::new(), String::new());
    while let Some(event) = stream.next().await {
        match event.kind {
            RunEventKind::TextDelta { delta } => text.push_str(&delta),
            RunEventKind::DeltasDiscarded => voided = std::mem::take(&mut text),
            _ => {}
        }
    }
    assert!(voided.starts_with("The"), "some of the first answer was streamed: {voided:?}");
    assert_eq!(text, "The total is 42.");
}
