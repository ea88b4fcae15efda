//! The page in a real Chromium: a spoken question, a tool call, an approval by click, an interruption and reconnections.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use windlass_realtime::audio::{WavAudio, resample};
use windlass_realtime::testing::{
    ConversationView, FaultTrigger, LoopbackReply, LoopbackServer, WireFault, WireRecord, tone,
};

use crate::chromium::BrowserTab;
use crate::process::TalkProcess;
use crate::support::TestProject;

/// Sample rate of the fake microphone.
const MICROPHONE_RATE: u32 = 48_000;

/// Writes a microphone's recording: silence, a spoken question, and silence. Chromium plays it again and again. Returns
/// false if espeak-ng is not installed.
fn record_question(path: &Path) -> bool {
    let Ok(output) =
        Command::new("espeak-ng").args(["--stdout", "Please order some rope for the boat."]).output()
    else {
        return false;
    };
    let spoken = WavAudio::from_bytes(&output.stdout).expect("espeak-ng writes a WAV file");
    let silence = |seconds: u32| vec![0; (MICROPHONE_RATE * seconds) as usize];
    let mut samples = silence(1);
    samples.extend(resample(&spoken.samples, spoken.sample_rate, MICROPHONE_RATE));
    samples.extend(silence(5));
    let wav = WavAudio { sample_rate: MICROPHONE_RATE, samples };
    std::fs::write(path, wav.to_bytes()).expect("it can be written");
    true
}

/// Replies to the first spoken question with a call, and to its output with a long tale, which the user interrupts.
fn reply(view: &ConversationView) -> LoopbackReply {
    let has_called = view.items.iter().any(|item| item["type"] == "function_call");
    let content = "rope\n".repeat(60) + "<img src=x onerror=alert(1)>\u{202e}\n";
    let arguments = json!({ "path": "order.txt", "content": content, "version": null }).to_string();
    match (has_called, view.new_call_outputs().is_empty()) {
        (false, _) => LoopbackReply::call("w1", "write_file", arguments),
        (true, false) => {
            let tale = "It is ordered. <b>Now</b> a tale of the sea. ".repeat(40);
            LoopbackReply::speech(tale, tone(60_000)).with_speed(2)
        }
        (true, true) => LoopbackReply::message("Aye.").with_speed(1),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_speaks_approves_interrupts_and_is_reconnected() {
    let place = tempfile::tempdir().expect("there is room");
    let microphone = place.path().join("question.wav");
    if !record_question(&microphone) {
        let _ = writeln!(std::io::stderr(), "not shown: espeak-ng is not installed here");
        return;
    }
    let Some(mut tab) = BrowserTab::launch(&microphone).await else {
        let _ = writeln!(std::io::stderr(), "not shown: Chromium is not installed here");
        return;
    };
    let heard: Arc<std::sync::Mutex<Vec<usize>>> = Arc::default();
    let hearing = heard.clone();
    let server = LoopbackServer::with_reply_function(reply).with_transcriber(move |samples| {
        hearing.lock().expect("is not poisoned").push(samples.len());
        "Please order some <i>rope</i>\u{202e} for the boat.".to_owned()
    });
    let (address, _accepting) = server.listen().await.expect("it listens");
    let project = TestProject::new("tools = [\"files\"]", "");
    let url = format!("ws://{address}/v1/realtime");
    let talk = TalkProcess::start(&project, &["--url", &url]);

    tab.navigate(talk.url()).await;
    tab.wait_for("document.body.dataset.link === 'live'").await;
    tab.look("1-ready").await;

    // A spoken question: the recording reaches the server through microphone, page, relay and session.
    tab.click("#start").await;
    tab.wait_for("document.body.dataset.microphone === 'on'").await;
    tab.wait_for("document.querySelector('#transcript li.user .text')?.textContent.includes('rope')").await;
    let samples = *heard.lock().expect("is not poisoned").first().expect("it was heard");
    assert!(samples > 24_000, "more than a second of audio arrived: {samples}");
    let said = tab.evaluate("document.querySelector('#transcript li.user .text').textContent").await;
    assert_eq!(
        said, "Please order some <i>rope</i>\\u{202e} for the boat.",
        "text is text, and nothing is hidden"
    );

    // A tool call and its approval by a click.
    tab.wait_for("document.querySelector('.card .reject:not(:disabled)') !== null").await;
    assert_eq!(
        tab.evaluate("document.querySelector('.card .approve').disabled").await,
        true,
        "not all was seen"
    );
    tab.look("2-unread").await;
    tab.evaluate("document.querySelector('.card pre').scrollTop = 1e6").await;
    tab.wait_for("document.querySelector('.card .approve:not(:disabled)') !== null").await;
    let call = tab.evaluate("document.querySelector('.card pre').textContent").await;
    let call = call.as_str().expect("a text");
    assert!(
        call.contains("creates order.txt") && call.contains("<img src=x onerror=alert(1)>\\u{202e}"),
        "{call}"
    );
    tab.look("2-read").await;
    assert!(!project.file("order.txt").exists());
    tab.click(".card .approve").await;
    tab.wait_for("document.querySelector('#transcript li.call')?.dataset.status === 'succeeded'").await;
    tab.wait_for("document.querySelector('.card') === null").await;
    assert!(project.file("order.txt").exists());

    // An interruption: the recording speaks again while the answer is played.
    tab.wait_for("Number(document.getElementById('output').value) > 0").await;
    tab.look("3-answer").await;
    tab.wait_for("Number(document.body.dataset.interruptions) > 0").await;
    tab.wait_for("document.querySelector('#transcript li.interrupted') !== null").await;
    tab.look("4-interrupted").await;
    let cuts = server.client_events(Some("conversation.item.truncate"));
    let played = cuts[0]["audio_end_ms"].as_u64().expect("a position");
    assert!(played > 0 && played < 60_000, "the page reported what it played: {played} ms");

    // The voice's connection is lost and restored. The new one takes a while, and the page says so.
    let greeting = FaultTrigger::on_send("session.created");
    server.inject_fault(WireFault::delay_event(greeting, Duration::from_secs(6)));
    server.drop_connections();
    tab.wait_for("document.body.dataset.provider === 'lost'").await;
    tab.wait_for("document.getElementById('status').textContent.includes('Reconnecting')").await;
    assert_eq!(tab.evaluate("document.getElementById('stop').disabled").await, true, "nothing is played");
    tab.look("5-reconnecting").await;
    tab.wait_for("Number(document.body.dataset.reconnects) > 0").await;
    tab.look("6-reconnected").await;

    // The page is loaded again, and shows the conversation.
    tab.navigate(talk.url()).await;
    tab.wait_for("document.body.dataset.link === 'live'").await;
    tab.wait_for("document.querySelector('#transcript li.user .text')?.textContent.includes('rope')").await;
    assert_eq!(tab.evaluate("document.querySelectorAll('#transcript img, #transcript b').length").await, 0);
    tab.wait_for("document.querySelector('#transcript li.call .result')?.textContent.includes('is written')")
        .await;
    tab.look("7-reloaded").await;
    assert_eq!(tab.errors, Vec::<String>::new(), "no console error");
    assert_eq!(talk.interrupt(), Some(0));
}

/// Replaces the start of the sound by one that the test releases, as on a machine whose output device does not start.
const SILENT_SOUND: &str = "
    let state = 'suspended';
    Object.defineProperty(AudioContext.prototype, 'state', { get: () => state });
    AudioContext.prototype.resume = function () {
        window.startSound = () => { state = 'running'; this.dispatchEvent(new Event('statechange')); };
        return new Promise(() => {});
    };
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_browser_whose_sound_does_not_start_can_still_type() {
    let place = tempfile::tempdir().expect("there is room");
    let microphone = place.path().join("silence.wav");
    let silence = WavAudio { sample_rate: MICROPHONE_RATE, samples: vec![0; MICROPHONE_RATE as usize] };
    std::fs::write(&microphone, silence.to_bytes()).expect("it can be written");
    let Some(mut tab) = BrowserTab::launch(&microphone).await else {
        let _ = writeln!(std::io::stderr(), "not shown: Chromium is not installed here");
        return;
    };
    let server = LoopbackServer::with_reply_function(|_| LoopbackReply::message("Aye."));
    let (address, _accepting) = server.listen().await.expect("it listens");
    let project = TestProject::new("tools = [\"files\"]", "");
    let url = format!("ws://{address}/v1/realtime");
    let talk = TalkProcess::start(&project, &["--url", &url]);
    tab.run_before_pages(SILENT_SOUND).await;
    tab.navigate(talk.url()).await;
    tab.wait_for("document.body.dataset.link === 'live'").await;

    // The page gives up waiting, says so, and offers the button again.
    tab.click("#start").await;
    tab.wait_for("document.getElementById('status').textContent.includes('has not started its sound')").await;
    tab.wait_for("!document.getElementById('start').disabled").await;
    assert_eq!(tab.evaluate("document.body.dataset.microphone").await, "off");
    tab.look("8-silent").await;
    tab.evaluate("document.getElementById('text').value = 'Are you there?'").await;
    tab.click("#compose button").await;
    tab.wait_for("document.querySelector('#transcript li.assistant .text')?.textContent.includes('Aye.')")
        .await;

    // An answer that was read and not heard is not taken back: neither by the next message nor by a lost connection.
    tab.evaluate("document.getElementById('text').value = 'Still there?'").await;
    tab.click("#compose button").await;
    tab.wait_for("document.querySelectorAll('#transcript li.assistant').length === 2").await;
    tab.wait_for("document.getElementById('usage').textContent.includes('output')").await;
    tab.evaluate("document.getElementById('stop').click()").await;
    server.drop_connections();
    tab.wait_for("Number(document.body.dataset.reconnects) > 0").await;
    tab.evaluate("document.getElementById('text').value = 'And now?'").await;
    tab.click("#compose button").await;
    tab.wait_for("document.querySelectorAll('#transcript li.assistant').length === 3").await;
    let created = server.wire_log();
    let is_answer = |seen: &&WireRecord| {
        seen.connection == 2
            && seen.event["type"] == "conversation.item.create"
            && seen.event["item"]["content"][0]["text"] == "Aye."
    };
    assert_eq!(created.iter().filter(is_answer).count(), 2, "the model remembers its answers");
    assert_eq!(tab.evaluate("document.querySelectorAll('#transcript li.interrupted').length").await, 0);

    // The sound starts late: the microphone is on without another click.
    tab.evaluate("window.startSound()").await;
    tab.wait_for("document.body.dataset.microphone === 'on'").await;
    assert_eq!(
        tab.evaluate("document.getElementById('status').textContent.includes('not started')").await,
        false
    );
    assert_eq!(tab.errors, Vec::<String>::new(), "no console error");
    assert_eq!(talk.interrupt(), Some(0));
}
