//! `ask_person` sends a question to the person and the answer to the model.

use windlass::core::decision::HoldReason;
use windlass::prelude::*;
use windlass_tools::ask_person;

#[tokio::test]
async fn the_run_waits_for_the_answer_and_the_model_is_told_it() {
    let asked = json!({ "question": "Which berth?", "choices": ["north", "south"] });
    let model = ScriptedModel::new([
        ScriptedResponse::call("c1", "ask_person", asked),
        ScriptedResponse::text("To the south."),
    ]);
    let agent = Agent::new("pilot").model(model.clone()).tool(ask_person());
    let mut paused =
        agent.run("Moor.").await.expect("it pauses").into_paused().expect("it waits for a person");
    let pending = paused.pending_calls();
    let HoldReason::Question(question) = &pending[0].reason else { panic!("{:?}", pending[0].reason) };
    assert_eq!(question.text, "Which berth?");
    assert!(paused.answer_question("c1", json!("east")).is_err(), "it is none of the choices");
    paused.answer_question("c1", json!("south")).expect("it fits");
    let outcome = agent.resume(paused).await.expect("it ends");
    assert_eq!(outcome.output_text().expect("the run finished"), "To the south.");
    assert_eq!(model.requests()[1].input_text().last().map(String::as_str), Some("output c1 south"));
}
