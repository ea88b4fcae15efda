//! Slow, busy and dead pages and browsers, in a real Chromium.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

#[path = "support/paper.rs"]
mod paper;
mod support;

use std::sync::Arc;
use std::time::Duration;

use paper::{agent_with_tool, click_action, computer_call, image_count, output_of};
use serde_json::json;
use support::{TestPageServer, point_at, poll_until, start_browser, take_screenshot};
use windlass::model::ScriptedResponse;
use windlass_computer::{
    AllowedSites, Browser, BrowserOptions, Computer, ComputerError, ComputerTool, HistoryNavigation,
    KeyChord, MouseButton, PrivateNetworkPolicy,
};

const NONE: KeyChord = KeyChord::EMPTY;

#[tokio::test]
async fn a_page_that_is_busy_for_a_while_is_used_again_afterwards() {
    let pages = TestPageServer::serve().await;
    let url = pages.add(
        "busy",
        "<button id=work style='position:absolute;left:0;top:0;width:300px;height:100px' onclick='const held = new \
         XMLHttpRequest(); held.open(\"GET\", \"/held\", false); held.send(); said.done = 1'>work</button>\
         <script>var said = {}</script>",
    );
    let options = BrowserOptions { response_timeout: Duration::from_secs(5), ..BrowserOptions::default() };
    let Some(browser) = start_browser(options).await else { return };
    browser.navigate(&url).await.expect("the page opens");
    let busy = browser.click(Some(point_at(50, 50)), MouseButton::Left, 1, &NONE).await;
    let busy = busy.expect_err("it is busy");
    assert!(matches!(busy, ComputerError::Unresponsive { .. }), "{busy}");
    assert!(busy.to_string().contains("may still take effect"), "{busy}");
    // The page waits for a response in its only thread until here.
    pages.released.send_replace(true);
    let came_back = poll_until(async || browser.screenshot().await.is_ok()).await;
    assert!(came_back, "slow is not broken");
    assert_eq!(browser.evaluate("said.done").await.expect("the page answers"), 1);
    assert_eq!(browser.list_tabs().await.expect("tabs").len(), 1, "it is the same tab");
    browser.close().await;
}

#[tokio::test]
async fn a_site_that_answers_late_is_opened() {
    let pages = TestPageServer::serve().await;
    // Longer than a page may take to answer a command.
    let options = BrowserOptions {
        response_timeout: Duration::from_secs(1),
        load_timeout: Duration::from_secs(1),
        ..BrowserOptions::default()
    };
    let Some(browser) = start_browser(options).await else { return };
    browser.navigate(&pages.url("slow/3000/a")).await.expect("it waits for the site");
    let is_there =
        poll_until(async || matches!(browser.evaluate("document.title").await, Ok(title) if title == "Slow"));
    assert!(is_there.await, "it is the page that was asked for");
    browser.close().await;

    let options = BrowserOptions { navigation_timeout: Duration::from_secs(1), ..BrowserOptions::default() };
    let Some(browser) = start_browser(options).await else { return };
    browser.navigate(&pages.url("form.html")).await.expect("the page opens");
    browser.navigate(&pages.url("slow/4000/b")).await.expect("it is still being loaded");
    let told = browser.take_notices().join("\n");
    assert!(told.contains("still being loaded"), "{told}");
    let arrived =
        poll_until(async || matches!(browser.evaluate("document.title").await, Ok(title) if title == "Slow"));
    assert!(arrived.await, "the navigation goes on");
    browser.close().await;
}

#[tokio::test]
async fn a_resource_that_never_comes_delays_one_action_and_not_every_one() {
    let pages = TestPageServer::serve().await;
    let url = pages.add(
        "heavy",
        "<button style='position:absolute;left:0;top:0;width:300px;height:100px' onclick='said += 1'>more</button>\
         <img src=/hanging><script>var said = 0</script>",
    );
    // A page that waits for a script of its own is not complete; one that waits for an image is.
    let options = BrowserOptions { load_timeout: Duration::from_secs(86_400), ..BrowserOptions::default() };
    let Some(browser) = start_browser(options).await else { return };
    browser.navigate(&url).await.expect("the page opens");
    take_screenshot(&browser).await;
    // If each click waited for the image, the clicks would not end within the limit.
    let clicks = async {
        for _ in 0..250 {
            browser.click(Some(point_at(50, 50)), MouseButton::Left, 1, &NONE).await.expect("it clicks");
        }
    };
    tokio::time::timeout(Duration::from_secs(300), clicks).await.expect("no click waits for the image");
    assert_eq!(browser.evaluate("said").await.expect("a number"), 250);
    browser.close().await;
}

/// Chromium stops parsing a page whose script goes elsewhere. If it does not get there, the page would have no picture
/// and take no input for ever.
#[tokio::test]
async fn a_page_that_went_elsewhere_in_vain_is_replaced_by_an_empty_one() {
    let pages = TestPageServer::serve().await;
    let sites = AllowedSites::only([format!("127.0.0.1:{}", pages.port)]);
    let options = BrowserOptions { allowed_sites: sites, ..BrowserOptions::default() };
    let Some(browser) = start_browser(options).await else { return };
    let leaves = |to: &str| format!("<script>location.href = '{to}'</script><h1>Never parsed</h1>");
    pages.add("leaves", &leaves(&pages.other_site_url("form.html")));
    pages.add("downloads", &leaves("/file.txt"));
    let refused = browser.navigate(&pages.url("leaves")).await.expect_err("it leads to another site");
    assert!(refused.to_string().contains("localhost"), "{refused}");
    take_screenshot(&browser).await;

    // The same by a click, and where the address is a download.
    for target in ["leaves", "downloads"] {
        let link = format!(
            "<a href='/{target}' style='position:absolute;left:0;top:0;width:200px;height:100px'>on</a>"
        );
        let begin = pages.add(&format!("begin-{target}"), &link);
        browser.navigate(&begin).await.expect("it is listed");
        browser.take_notices();
        browser.click(Some(point_at(50, 50)), MouseButton::Left, 1, &NONE).await.expect("the click works");
        let mut notices = String::new();
        let is_replaced = poll_until(async || {
            take_screenshot(&browser).await;
            notices.push_str(&browser.take_notices().join("\n"));
            browser.evaluate("location.href").await.is_ok_and(|url| url == "about:blank")
        });
        assert!(is_replaced.await, "{target}");
        assert!(notices.contains("before it had any content"), "{notices}");
        browser.navigate_history(HistoryNavigation::Back).await.expect("it goes back");
        take_screenshot(&browser).await;
    }

    // A page that continues by itself after a moment is left alone.
    let other = pages.other_site_url("form.html");
    let patient = format!(
        "<script>location.href = '{other}'; setTimeout(() => location.href = '/form.html', 300)</script>"
    );
    pages.add("patient", &patient);
    browser.navigate(&pages.url("patient")).await.expect_err("its first attempt is refused");
    assert!(
        poll_until(async || browser.evaluate("document.title").await.is_ok_and(|title| title == "Form"))
            .await
    );
    take_screenshot(&browser).await;
    browser.close().await;
}

#[tokio::test]
async fn a_crashed_page_is_replaced_and_the_model_is_told() {
    let pages = TestPageServer::serve().await;
    let Some(browser) = start_browser(BrowserOptions::default()).await else { return };
    let browser = Arc::new(browser);
    browser.navigate(&pages.url("form.html")).await.expect("the page opens");
    take_screenshot(&browser).await;
    browser.crash_page().await;
    let look = |id: &str| computer_call(id, json!([{ "type": "screenshot" }]));
    let (agent, model) = agent_with_tool(
        &ComputerTool::with_computer(browser.clone()),
        [look("c1"), look("c2"), ScriptedResponse::text("done")],
    );
    let outcome = agent.run("go").await.expect("the run ends");
    let told = output_of(&outcome, "c1").text().into_owned();
    assert!(told.contains("the page crashed") && told.contains("an empty tab replaces it"), "{told}");
    assert!(!told.contains("try again"), "{told}");
    assert_eq!(output_of(&outcome, "c2").text().find("failed"), None, "{}", output_of(&outcome, "c2").text());
    assert_eq!(image_count(&model.requests()[2].input), 2);
    browser.close().await;
}

#[tokio::test]
async fn a_browser_that_died_is_replaced_and_nothing_is_clicked_on_the_new_one_unseen() {
    let pages = TestPageServer::serve().await;
    if start_browser(BrowserOptions::default()).await.is_none() {
        return;
    }
    let start = pages.add(
        "start",
        "<button style='position:absolute;left:0;top:0;width:300px;height:100px' \
         onclick='fetch(\"/clicked\")'>here</button>",
    );
    let folder = tempfile::tempdir().expect("a folder");
    let options = BrowserOptions {
        start_url: Some(start),
        private_networks: PrivateNetworkPolicy::Allow,
        extra_flags: vec![format!("--crash-dumps-dir={}", folder.path().display())],
        ..BrowserOptions::default()
    };
    let marker = folder.path().display().to_string();
    let served = pages.clone();
    let tool = ComputerTool::with_provider(Browser::provider(options)).review_actions(move |proposed| {
        let (marker, pages) = (marker.clone(), served.clone());
        async move {
            // The browser dies between two calls, or in the middle of one, after the first click has arrived.
            if proposed.action.kind() == "wait" {
                wait_for_request(pages, "/clicked").await;
                kill_browsers_of(&marker);
            }
            windlass_computer::ActionVerdict::Allow
        }
    });
    let click = json!([click_action(50, 50)]);
    let (agent, model) = agent_with_tool(
        &tool,
        [
            computer_call("c1", click.clone()),
            computer_call("c2", json!([{ "type": "wait", "ms": 1500 }])),
            computer_call("c3", click.clone()),
            computer_call("c4", click),
            ScriptedResponse::text("done"),
        ],
    );
    let outcome = agent.run("go").await.expect("the run ends");
    let told: Vec<String> =
        ["c1", "c2", "c3", "c4"].iter().map(|call| output_of(&outcome, call).text().into_owned()).collect();
    let replaced =
        told.iter().position(|text| text.contains("was replaced by a new one")).expect("it is told");
    assert!(replaced == 1 || replaced == 2, "{told:?}");
    assert!(told.iter().all(|text| !text.contains("try again")), "{told:?}");
    let clicked = || pages.requests().iter().filter(|asked| asked.ends_with("/clicked")).count();
    // A click that follows the death is made only if the model has seen the new screen.
    let expected = if replaced == 1 { 3 } else { 2 };
    assert!(poll_until(async || clicked() == expected).await, "{} {told:?}", clicked());
    assert_eq!(image_count(&model.requests()[4].input), 4, "each call has a picture");
}

/// Waits until the server has been asked for a path.
async fn wait_for_request(pages: TestPageServer, path: &'static str) {
    while !pages.requests().iter().any(|asked| asked.ends_with(path)) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Kills the browsers whose command lines contain a text.
fn kill_browsers_of(marker: &str) {
    let folders = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for folder in folders {
        let line = std::fs::read(folder.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(marker) && !line.contains("/bin/sh -c") {
            let id = folder.file_name().to_string_lossy().into_owned();
            let _ =
                std::process::Command::new("/bin/sh").args(["-c", "kill -KILL \"$1\"", "sh", &id]).status();
        }
    }
}

#[tokio::test]
async fn the_waits_of_one_call_are_bounded_together() {
    let paper = paper::RecordingComputer::default();
    let tool = ComputerTool::with_computer(Arc::new(paper.clone()));
    let waits: Vec<_> = (0..3).map(|_| json!({ "type": "wait", "ms": 150_000 })).collect();
    let mut actions = vec![click_action(1, 1)];
    actions.extend(waits);
    let (agent, _) =
        agent_with_tool(&tool, [computer_call("c1", json!(actions)), ScriptedResponse::text("done")]);
    let outcome = agent.run("go").await.expect("the run ends");
    let told = output_of(&outcome, "c1").text().into_owned();
    assert!(told.contains("300 seconds together") && told.contains("450"), "{told}");
    assert!(paper.operations().is_empty());
}
