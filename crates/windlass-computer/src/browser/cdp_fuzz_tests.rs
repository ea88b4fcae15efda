//! Fuzzing of the messages of a browser.

#![cfg(target_os = "linux")]

use futures_util::FutureExt;
use windlass_fuzz::FuzzTarget;

use super::*;

const SEEDS: [&str; 3] = [
    r#"{"id":1,"result":{"frameId":"a"},"sessionId":"s"}"#,
    r#"{"id":2,"error":{"code":-32000,"message":"no"}}"#,
    r#"{"method":"Target.attachedToTarget","params":{"sessionId":"s","targetInfo":{"targetId":"t","type":"page","url":"x"}}}"#,
];

#[test]
fn messages_of_a_browser() {
    let words = ["\"id\":", "\"method\":", "\"params\":", "\"error\":{", "\"sessionId\":", "\0"];
    let target = FuzzTarget::new(env!("CARGO_MANIFEST_DIR"), "cdp_messages").seeds(SEEDS).words(words);
    target.run(module_path!(), "messages_of_a_browser", |input| {
        let (_pipe, _outgoing, incoming, mut events) = CdpPipe::with_channels();
        for message in input.split(|byte| *byte == 0) {
            let _ = incoming.handle_message(message).now_or_never();
            let _ = events.try_recv();
        }
    });
}
