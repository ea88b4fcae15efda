use std::io::Write;

use serde_json::{Value, json};
use windlass::agent::ToolChoiceReset;
use windlass::model::ToolChoice;
use windlass::prelude::*;

use super::*;
use crate::inference::test_model::tiny_model;

fn tiny(options: LoadOptions) -> LocalModel {
    let mut file = tempfile::NamedTempFile::new().expect("there is a disk");
    file.write_all(&tiny_model("llama").bytes()).expect("written");
    LocalModel::load_with(&Weights::from_path(file.path()).expect("there"), &options.threads(1))
        .expect("loaded")
}

fn respond_settings() -> ModelSettings {
    ModelSettings { max_tokens: Some(60), temperature: Some(1.0), seed: Some(3), ..ModelSettings::default() }
}

async fn respond(
    model: &LocalModel,
    settings: &ModelSettings,
    text: &str,
) -> Result<ModelResponse, ModelError> {
    let input = [Arc::new(Item::user(text))];
    let request = ModelRequest {
        agent: &"guide".into(),
        turn: 1,
        instructions: None,
        input: &input,
        tools: &[],
        handoffs: &[],
        settings,
        output_schema: None,
        previous_response_id: None,
        conversation_id: None,
        deferred_tools: &[],
    };
    model.respond(request, &DeltaSink::discarding()).await
}

/// Each turn costs its new tokens: what the model wrote, and the result of the tool.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_of_ten_turns_costs_its_new_tokens() {
    let schema = json!({
        "type": "object",
        "properties": { "size": { "enum": ["small", "large"] } },
        "required": ["size"],
        "additionalProperties": false,
    });
    let cut = Tool::dynamic("cut", "Cuts.", schema, |_: ToolContext, _: Value| async {
        Ok::<_, String>("It is cut, and this is a result of some length.".to_owned())
    });
    let settings = ModelSettings { tool_choice: Some(ToolChoice::Required), ..ModelSettings::default() };
    let agent = Agent::new("guide")
        .instructions("You cut things. ".repeat(20))
        .model(tiny(LoadOptions::default()))
        .model_settings(settings)
        .tool_choice_reset(ToolChoiceReset::Never)
        .tool(cut);
    let outcome = agent.run("Cut ten things.").max_turns(10).await;
    let error = outcome.expect_err("the turns are used up");
    let record = error.record().expect("the run was recorded");
    let usage = record.usage();
    assert_eq!(usage.requests, 10);
    let new = usage.input_tokens - usage.cached_tokens;
    // Ten whole prompts are about ten times the longest; the new tokens are about the longest once.
    let longest = usage.input_tokens / 10 * 2;
    assert!(new <= longest, "{new} of {} tokens were read", usage.input_tokens);
    assert!(new * 5 < usage.input_tokens, "{new} of {} tokens were read", usage.input_tokens);
}

#[tokio::test]
async fn settings_are_honoured() {
    let model = tiny(LoadOptions::default());
    let said = async |settings: ModelSettings| {
        let response = respond(&model, &settings, "Say something.").await;
        let partial = response.as_ref().err().and_then(ModelError::partial_response).cloned();
        let response = response.ok().or(partial).expect("some text");
        let Item::Message(message) = &*response.items[0] else { panic!("a message") };
        message.text()
    };
    let greedy = ModelSettings { max_tokens: Some(60), ..ModelSettings::default() };
    assert_eq!(said(greedy.clone()).await, said(greedy.clone()).await);
    let warm = respond_settings();
    assert_eq!(said(warm.clone()).await, said(warm.clone()).await, "the seed decides");
    assert_ne!(said(warm.clone()).await, said(greedy.clone()).await, "the temperature is used");
    assert_ne!(said(ModelSettings { seed: Some(4), ..warm.clone() }).await, said(warm.clone()).await);
    let cold = ModelSettings { top_p: Some(1e-6), ..warm.clone() };
    assert_eq!(said(cold).await, said(greedy.clone()).await, "only the most likely token is left");
    let varied =
        ModelSettings { frequency_penalty: Some(2.0), presence_penalty: Some(2.0), ..greedy.clone() };
    assert_ne!(said(varied).await, said(greedy).await);
}

#[tokio::test]
async fn a_setting_that_a_local_model_lacks_is_refused_by_name() {
    let model = tiny(LoadOptions::default());
    for (name, settings) in [
        (
            "reasoning_effort",
            ModelSettings { reasoning_effort: Some("low".to_owned()), ..Default::default() },
        ),
        ("top_logprobs", ModelSettings { top_logprobs: Some(2), ..Default::default() }),
        (
            "extra",
            ModelSettings { extra: [("n".to_owned(), json!(1))].into_iter().collect(), ..Default::default() },
        ),
    ] {
        let error = respond(&model, &settings, "Hello.").await.expect_err("refused");
        assert_eq!(error.kind(), ModelErrorKind::InvalidRequest);
        assert!(error.to_string().contains(&format!("`{name}`")), "{error}");
    }
}

/// The defaults in words change nothing.
#[tokio::test]
async fn the_defaults_of_tool_search_and_prompt_cache_are_accepted() {
    let model = tiny(LoadOptions::default());
    let spelt_out = ModelSettings {
        tool_search: Some(ToolSearchPlace::Local),
        prompt_cache: Some(PromptCaching::Automatic),
        on_length_limit: Some(LengthLimitPolicy::KeepText),
        ..respond_settings()
    };
    respond(&model, &spelt_out, "Hello.").await.expect("accepted");
    let elsewhere = ModelSettings { tool_search: Some(ToolSearchPlace::Provider), ..spelt_out };
    assert!(respond(&model, &elsewhere, "Hello.").await.is_err());
}

#[tokio::test]
async fn a_response_ends_at_its_limit_or_at_a_stop_text() {
    let model = tiny(LoadOptions::default());
    let settings = ModelSettings { max_tokens: Some(30), ..respond_settings() };
    let error = respond(&model, &settings, "Say something.").await.expect_err("cut off");
    assert_eq!(error.kind(), ModelErrorKind::Incomplete);
    assert_eq!(error.usage().map(|usage| usage.output_tokens), Some(30));
    let keep = ModelSettings { on_length_limit: Some(LengthLimitPolicy::KeepText), ..settings.clone() };
    let kept = respond(&model, &keep, "Say something.").await.expect("kept");
    assert_eq!(kept.details.finish_reason, Some(FinishReason::LengthLimit));
    let Item::Message(message) = &*kept.items[0] else { panic!("a message") };
    let text = message.text();
    let stop: String = text.chars().skip(5).take(1).collect();
    let stopping = ModelSettings { stop: Some(vec![stop.clone()]), ..settings };
    let stopped = respond(&model, &stopping, "Say something.").await.expect("stopped");
    assert_eq!(stopped.details.finish_reason, Some(FinishReason::StopSequence));
    assert_eq!(stopped.details.stop_sequence, Some(stop.clone()));
    let Item::Message(message) = &*stopped.items[0] else { panic!("a message") };
    assert_eq!(Some(message.text().as_str()), text.split(&stop).next());
    // An empty text is at every place, and at none.
    let empty = ModelSettings { stop: Some(vec![String::new(), stop.clone()]), ..stopping.clone() };
    let again = respond(&model, &empty, "Say something.").await.expect("stopped");
    assert_eq!((&again.details.stop_sequence, &again.items), (&Some(stop), &stopped.items));
}

#[tokio::test]
async fn a_conversation_beyond_the_context_is_told_apart() {
    let model = tiny(LoadOptions::default().context_length(500));
    assert_eq!(model.context_window(), Some(500));
    let error = respond(&model, &respond_settings(), &"word ".repeat(500)).await.expect_err("too long");
    assert_eq!(error.kind(), ModelErrorKind::ContextLengthExceeded);
    assert_eq!(tiny(LoadOptions::default()).context_window(), Some(16_384));
}

#[test]
fn a_started_stop_text_is_held_back() {
    let stops = ["END".to_owned()];
    assert_eq!(end_before_stop("The E", &stops), 4);
    assert_eq!(end_before_stop("The EN", &stops), 4);
    assert_eq!(end_before_stop("The ENx", &stops), 7);
    assert_eq!(end_before_stop("", &stops), 0);
}

/// A caller that gives up while another response is written leaves the queue.
#[tokio::test(flavor = "multi_thread")]
async fn requests_wait_for_their_turn_and_can_give_up() {
    let model = tiny(LoadOptions::default());
    let turn = model.read_prompts.clone().lock_owned().await;
    let waiting = tokio::spawn({
        let model = model.clone();
        async move { respond(&model, &respond_settings(), "one").await.is_err() }
    });
    waiting.abort();
    assert!(waiting.await.is_err_and(|error| error.is_cancelled()));
    drop(turn);
    let settings = ModelSettings { on_length_limit: Some(LengthLimitPolicy::KeepText), ..respond_settings() };
    respond(&model, &settings, "two").await.expect("its turn came");
}

/// Images and files of the user are refused before anything is computed; a note stands for those of a tool.
#[tokio::test]
async fn media_that_a_local_model_cannot_read_are_refused_by_name() {
    use windlass::core::item::{ContentPart, MediaSource, Message};
    let model = tiny(LoadOptions::default());
    for (part, kind) in [
        (ContentPart::Image(MediaSource::default()), "an image"),
        (ContentPart::File(MediaSource::default()), "a file"),
    ] {
        let content = vec![ContentPart::text("Look:"), part];
        let message = Message { role: Role::User, content, item_id: None, sources: Default::default() };
        let input = [Arc::new(Item::Message(message))];
        let request = ModelRequest {
            agent: &"guide".into(),
            turn: 1,
            instructions: None,
            input: &input,
            tools: &[],
            handoffs: &[],
            settings: &ModelSettings::default(),
            output_schema: None,
            previous_response_id: None,
            conversation_id: None,
            deferred_tools: &[],
        };
        let error = model.respond(request, &DeltaSink::discarding()).await.expect_err("it reads texts");
        assert_eq!(error.kind(), ModelErrorKind::InvalidRequest);
        assert!(error.to_string().contains(kind), "{error}");
    }
}
