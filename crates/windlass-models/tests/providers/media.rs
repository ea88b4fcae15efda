//! Images and files in every form: a form that an API lacks is refused by name, and no request leaves it out.

use serde_json::json;
use windlass::core::item::{
    CallOutput, ContentPart, Item, MediaSource, Message, OutputContent, OutputStatus, Role,
};
use windlass::model::{ModelErrorKind, OutputSchema};

use crate::support::{PROVIDERS, TestRequest, function_tool, send_to};

const URL: &str = "https://pictures.example/cat.png";
const FILE_ID: &str = "file-314";
const BYTES: &str = "aGVsbG8=";

fn media() -> [(&'static str, MediaSource); 3] {
    let empty = || MediaSource { media_type: Some("image/png".to_owned()), ..MediaSource::default() };
    [
        (URL, MediaSource { url: Some(URL.to_owned()), ..empty() }),
        (FILE_ID, MediaSource { file_id: Some(FILE_ID.to_owned()), ..empty() }),
        (BYTES, MediaSource { data: Some(BYTES.to_owned()), ..empty() }),
    ]
}

fn message(part: ContentPart) -> Item {
    let content = vec![ContentPart::text("See:"), part];
    Item::Message(Message { role: Role::User, content, item_id: None, sources: Default::default() })
}

/// The forms that a provider refuses, as `image` or `file` with the data that is sent.
fn refused_forms(provider: &str, api: &str) -> Vec<(&'static str, &'static str)> {
    match (provider, api) {
        (_, "converse") => vec![("image", URL), ("image", FILE_ID), ("file", URL), ("file", FILE_ID)],
        ("openrouter", _) => vec![("image", FILE_ID)],
        (_, "chat") => vec![("image", FILE_ID), ("file", URL)],
        _ => Vec::new(),
    }
}

#[tokio::test]
async fn every_form_of_media_is_sent_or_refused_by_name() {
    for provider in PROVIDERS {
        let refused = refused_forms(provider.0, provider.2);
        for (data, source) in media() {
            for (kind, part) in
                [("image", ContentPart::Image(source.clone())), ("file", ContentPart::File(source))]
            {
                match send_to(provider, &TestRequest::from_items([message(part)])).await {
                    Ok(sent) => {
                        assert!(!refused.contains(&(kind, data)), "{provider:?} {kind} {data}");
                        assert!(
                            sent.body.to_string().contains(data),
                            "{provider:?} {kind} {data}: {}",
                            sent.body
                        );
                    }
                    Err(error) => {
                        assert!(refused.contains(&(kind, data)), "{provider:?} {kind} {data}: {error}");
                        assert_eq!(error.kind(), ModelErrorKind::InvalidRequest);
                        assert!(error.to_string().contains(&format!("accepts no {kind} by")), "{error}");
                    }
                }
            }
        }
    }
}

/// The call has happened, so its output is no reason to end the run. The model reads what is missing.
#[tokio::test]
async fn a_note_stands_for_refused_media_in_the_output_of_a_tool() {
    let output = |part: ContentPart| {
        let content = OutputContent::Parts(vec![ContentPart::text("Seen:"), part]);
        Item::Output(CallOutput {
            call: "c1".into(),
            content,
            status: OutputStatus::Ok,
            sources: Default::default(),
        })
    };
    for provider in PROVIDERS.into_iter().filter(|(_, _, api)| *api != "responses") {
        let refused = refused_forms(provider.0, provider.2);
        for (data, source) in media() {
            let items =
                [Item::user("Look."), Item::call("c1", "look", "{}"), output(ContentPart::Image(source))];
            let request =
                TestRequest { tools: vec![function_tool("look")], ..TestRequest::from_items(items) };
            let sent = send_to(provider, &request).await.expect("it is sent").body.to_string();
            let is_refused = refused.contains(&("image", data));
            assert_eq!(sent.contains("accepts no image by"), is_refused, "{provider:?} {data}: {sent}");
            assert_eq!(sent.contains(data), !is_refused, "{provider:?} {data}: {sent}");
        }
    }
}

#[tokio::test]
async fn media_without_data_are_refused_everywhere() {
    for provider in PROVIDERS {
        let request = TestRequest::from_items([message(ContentPart::Image(MediaSource::default()))]);
        let error = send_to(provider, &request).await.expect_err("there is nothing to send");
        assert!(error.to_string().contains("neither bytes nor a URL"), "{provider:?}: {error}");
    }
}

/// A schema with maps has no strict form.
#[tokio::test]
async fn an_output_without_a_strict_schema_is_not_sent_as_a_strict_one() {
    let schema = json!({ "type": "object", "title": "R7", "additionalProperties": { "type": "integer" } });
    for provider in PROVIDERS {
        let mut request = TestRequest::from_items([Item::user("Count.")]);
        let output = OutputSchema { name: "Counts".to_owned(), schema: schema.clone(), is_strict: false };
        request.output = Some(output);
        let sent = send_to(provider, &request).await.expect("it is sent").body;
        assert!(sent.to_string().contains("R7"), "{provider:?}: the model learns the schema: {sent}");
        let strict =
            [sent.pointer("/response_format/json_schema/strict"), sent.pointer("/text/format/strict")];
        assert!(strict.into_iter().flatten().all(|strict| strict == false), "{provider:?}: {sent}");
        // Anthropic's schemas are always strict.
        let formats = [sent.pointer("/output_config/format"), sent.pointer("/outputConfig/textFormat")];
        assert!(formats.into_iter().flatten().next().is_none(), "{provider:?}: {sent}");
    }
}
