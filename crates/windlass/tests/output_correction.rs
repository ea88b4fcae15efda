//! Typed outputs: the model is told what is wrong with an output, and asked again.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};
use windlass::core::failure::RunFailure;
use windlass::core::journal::JournalEntry;
use windlass::prelude::*;

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
struct Count {
    count: u32,
}

fn counter(replies: &[&str]) -> (Agent, ScriptedModel) {
    let model = ScriptedModel::new(replies.iter().map(|text| ScriptedResponse::text(*text)));
    (Agent::new("counter").model(model.clone()).output_type::<Count>(), model)
}

const RIGHT: &str = r#"{ "count": 7 }"#;

#[tokio::test]
async fn prose_around_json_is_corrected() {
    let (agent, model) = counter(&["There are seven: {\"count\": 7}", RIGHT]);
    let session = Session::in_memory("s");
    let result = agent.run("How many?").session(&session).await.expect("it ends");
    assert_eq!(result.output_as::<Count>().expect("it fits"), Count { count: 7 });
    let asked = model.requests()[1].input_text();
    assert_eq!(asked[..2], ["user: How many?", "assistant: There are seven: {\"count\": 7}"]);
    assert!(asked[2].starts_with("user: Your answer does not match"), "{}", asked[2]);
    let stored = session.items().await.expect("memory can be read");
    assert_eq!(stored.len(), 4, "the session has the whole exchange: {stored:?}");
}

#[tokio::test]
async fn prose_after_json_is_corrected() {
    let (agent, model) = counter(&["{\"count\": 7} That is all.", RIGHT]);
    let result = agent.run("How many?").await.expect("it ends");
    assert_eq!(result.output_as::<Count>().expect("it fits"), Count { count: 7 });
    assert!(model.requests()[1].input_text()[2].contains("trailing characters"), "it says what is wrong");
}

/// A type that cannot be read.
#[derive(JsonSchema)]
struct Unreadable {
    #[expect(dead_code, reason = "it gives the type a schema of an object")]
    count: u32,
}

impl<'de> Deserialize<'de> for Unreadable {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        unreachable!("a test panics here")
    }
}

#[tokio::test]
async fn a_type_that_panics_is_an_output_that_does_not_fit() {
    let model = ScriptedModel::new([RIGHT, RIGHT].map(ScriptedResponse::text));
    let agent = Agent::new("counter").model(model).output_type::<Unreadable>().max_output_corrections(1);
    let error = agent.run("How many?").await.expect_err("nothing can be read");
    let Some(RunFailure::InvalidOutput { message }) = error.failure() else { panic!("{error}") };
    assert_eq!(message, "it cannot be read; the model was asked once to correct its output");
}

#[tokio::test]
async fn the_model_is_told_the_path_of_what_is_wrong_and_asked_a_bounded_number_of_times() {
    let wrong = r#"{ "count": "many" }"#;
    let (agent, model) = counter(&[wrong, wrong, wrong, RIGHT]);
    let error = agent.run("How many?").await.expect_err("it was asked often enough");
    let Some(RunFailure::InvalidOutput { message }) = error.failure() else { panic!("{error}") };
    assert!(message.starts_with("count: "), "{message}");
    assert!(message.ends_with("; the model was asked 2 times to correct its output"), "{message}");
    assert_eq!(model.requests().len(), 3);
    assert!(model.requests()[1].input_text()[2].contains("count: invalid type"), "it names the path");
}

#[tokio::test]
async fn corrections_can_be_switched_off_and_need_a_turn() {
    let (agent, model) = counter(&["seven", RIGHT]);
    let error = agent.max_output_corrections(0).run("How many?").await.expect_err("once is all");
    assert!(matches!(error.failure(), Some(RunFailure::InvalidOutput { .. })), "{error}");
    assert_eq!(model.requests().len(), 1);

    let (agent, model) = counter(&["seven", RIGHT]);
    let error = agent.run("How many?").max_turns(1).await.expect_err("there is no turn left");
    assert!(matches!(error.failure(), Some(RunFailure::InvalidOutput { .. })), "{error}");
    assert_eq!(model.requests().len(), 1);
}

#[tokio::test]
async fn a_run_that_is_resumed_counts_the_corrections_before() {
    let wrong = "seven";
    let (agent, model) = counter(&[wrong, wrong]);
    let result = agent.run("How many?").run_id("r").await.expect_err("the script has an end");
    let journal = result.record().expect("it ran").journal();
    let corrections =
        journal.iter().filter(|record| matches!(record.entry, JournalEntry::OutputRejected(_))).count();
    assert_eq!((corrections, model.requests().len()), (2, 3));
    let replayed = windlass::core::run::Run::replay(journal).expect("the journal adds up").run;
    assert_eq!(replayed.output_corrections(), 2);
}
