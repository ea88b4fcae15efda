//! Streams that stall, break and end too soon.

use std::time::Duration;

use windlass::model::{ModelErrorKind, RetryAdvice};
use windlass_models::Streaming;
use windlass_models::testing::{FakeProvider, FakeReply, Stop};

use crate::support::{ALL, Asked, BOTH, once, once_impatiently};

fn reply() -> FakeReply {
    FakeReply::text("Good morning to you.").and_call("c1", "weather", r#"{"city":"Oslo"}"#)
}

/// Places in a body of which nobody knows the length: more than it has means its end.
fn places() -> impl Iterator<Item = usize> {
    (0..12).chain((12..6000).step_by(41))
}

#[tokio::test]
async fn a_connection_that_breaks_anywhere_is_an_error_that_may_be_asked_again() {
    for adapter in ALL {
        for streaming in BOTH {
            let whole = once(adapter, streaming, reply()).await.expect("an answer");
            let mut broken = 0;
            for place in places() {
                match once(adapter, streaming, reply().resets_at(place)).await {
                    // A stream may break after its last event: the answer is there.
                    Ok(answer) => assert_eq!(answer, whole, "{adapter:?}, {streaming:?} at {place}"),
                    Err(error) => {
                        broken += 1;
                        assert_eq!(
                            error.kind(),
                            ModelErrorKind::CutShort,
                            "{adapter:?}, {streaming:?} at {place}: {error}"
                        );
                        assert_eq!(error.advice(), RetryAdvice::Safe);
                    }
                }
            }
            assert!(broken > 12, "{adapter:?}, {streaming:?}: only {broken} broke");
        }
    }
}

#[tokio::test]
async fn a_stream_that_ends_without_its_last_event_is_an_error() {
    for adapter in ALL {
        let whole = once(adapter, Streaming::Always, reply()).await.expect("an answer");
        let mut broken = 0;
        for place in places() {
            match once(adapter, Streaming::Always, reply().ends_at(place)).await {
                Ok(answer) => assert_eq!(answer.items, whole.items, "{adapter:?} at {place}"),
                Err(error) => {
                    broken += 1;
                    assert_eq!(error.kind(), ModelErrorKind::CutShort, "{adapter:?} at {place}: {error}");
                }
            }
        }
        assert!(broken > 12, "{adapter:?}: only {broken} broke");
    }
}

#[tokio::test]
async fn a_plain_answer_that_is_cut_cannot_be_read() {
    for adapter in ALL {
        for place in [0, 1, 50, 200] {
            let error =
                once(adapter, Streaming::Never, reply().ends_at(place)).await.expect_err("half of it");
            assert_eq!(error.kind(), ModelErrorKind::Unreadable, "{adapter:?} at {place}: {error}");
        }
    }
}

#[tokio::test]
async fn a_stall_is_noticed() {
    for adapter in ALL {
        for streaming in BOTH {
            for place in [0, 100, 500] {
                let error = once_impatiently(adapter, streaming, reply().stalls_at(place))
                    .await
                    .expect_err("a stall");
                assert_eq!(
                    error.kind(),
                    ModelErrorKind::TimedOut,
                    "{adapter:?}, {streaming:?} at {place}: {error}"
                );
                assert_eq!(error.advice(), RetryAdvice::Safe);
            }
        }
    }
}

#[tokio::test]
async fn s25_comments_that_keep_a_connection_alive_do_not_reset_the_idle_timeout() {
    for adapter in ALL {
        for place in [0, 300] {
            let reply = reply().only_keeps_alive_at(place, Duration::from_millis(10));
            let error = once_impatiently(adapter, Streaming::Always, reply).await.expect_err("nothing comes");
            assert_eq!(error.kind(), ModelErrorKind::TimedOut, "{adapter:?} at {place}: {error}");
        }
    }
}

#[tokio::test]
async fn endings_mean_what_they_say() {
    for adapter in ALL {
        for streaming in BOTH {
            let cut = reply().stop(Stop::MaxTokens).usage(7, 0, 3, 0);
            let error = once(adapter, streaming, cut).await.expect_err("it is incomplete");
            assert_eq!(error.kind(), ModelErrorKind::Incomplete, "{adapter:?}, {streaming:?}: {error}");
            assert_eq!(error.advice(), RetryAdvice::Never);
            assert_eq!(error.usage().map(|usage| (usage.input_tokens, usage.output_tokens)), Some((7, 3)));

            let failed = Stop::Failed { code: "server_error".to_owned(), message: "it broke".to_owned() };
            let error = once(adapter, streaming, reply().stop(failed)).await.expect_err("it failed");
            assert_eq!(error.kind(), ModelErrorKind::Server, "{adapter:?}, {streaming:?}: {error}");
            assert!(error.to_string().contains("it broke"), "{error}");
            assert_eq!(error.advice(), RetryAdvice::Safe);
        }
    }
}

#[tokio::test]
async fn rubbish_is_an_error() {
    let rubbish = [
        "data: {\"type\":\"response.completed\n\n",
        "data: \u{0}\u{1}\n\n",
        "data: [1,2\n\n",
        "data: <html>\n\n",
    ];
    for adapter in ALL {
        for text in rubbish {
            let error =
                once(adapter, Streaming::Always, FakeReply::event_body(text)).await.expect_err("rubbish");
            assert_eq!(error.kind(), ModelErrorKind::Unreadable, "{adapter:?} {text:?}: {error}");
        }
        for text in ["", "null", "{", "[]", "<html>gateway</html>", "{\"hello\":1}"] {
            let error =
                once(adapter, Streaming::Never, FakeReply::json_body(text)).await.expect_err("rubbish");
            assert_eq!(error.kind(), ModelErrorKind::Unreadable, "{adapter:?} {text:?}: {error}");
        }
        let error =
            once(adapter, Streaming::Always, FakeReply::event_body("data: \u{ff}\n\n".as_bytes())).await;
        assert!(error.is_err());
        let error = once(
            adapter,
            Streaming::Always,
            FakeReply::event_body(vec![b'd', b'a', b't', b'a', b':', 0xff, b'\n', b'\n']),
        )
        .await
        .expect_err("not text");
        assert_eq!(error.kind(), ModelErrorKind::Unreadable, "{adapter:?}: {error}");
    }
}

#[tokio::test]
async fn a_connection_is_used_again_and_one_that_was_closed_is_not_missed() {
    for adapter in ALL {
        for streaming in BOTH {
            let provider = FakeProvider::start((0..5).map(|_| reply())).await.expect("a provider");
            let model = adapter.model(&provider, streaming);
            for _ in 0..5 {
                Asked::text("x").ask(&model).await.expect("an answer");
            }
            assert_eq!(provider.connections(), 1, "{adapter:?}, {streaming:?}");

            provider.push(reply().resets_at(10));
            provider.push(reply());
            Asked::text("x").ask(&model).await.expect_err("it breaks");
            Asked::text("x").ask(&model).await.expect("another connection");
            assert_eq!(provider.connections(), 2, "{adapter:?}, {streaming:?}");
        }
    }
}
