//! A real Chromium on local test pages. Each effect is verified by the page's own record of events.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod support;

use std::time::Duration;

use serde_json::{Value, json};
use support::{TestPageServer, point_at, poll_until, recorded_value, start_browser, take_screenshot};
use windlass_computer::{
    Browser, BrowserOptions, BrowserWindow, Computer, ComputerError, DialogPolicy, DownloadPolicy, KeyChord,
    MouseButton, ScreenRegion,
};

const NONE: KeyChord = KeyChord::EMPTY;

async fn open_page(page: &str, options: BrowserOptions) -> Option<(TestPageServer, Browser)> {
    let pages = TestPageServer::serve().await;
    let browser = start_browser(options).await?;
    browser.navigate(&pages.url(page)).await.expect("the page opens");
    Some((pages, browser))
}

async fn left_click(browser: &Browser, x: u32, y: u32) {
    browser.click(Some(point_at(x, y)), MouseButton::Left, 1, &NONE).await.expect("the click works");
}

#[tokio::test]
async fn a_form_is_filled_and_sent() {
    let Some((pages, browser)) = open_page("form.html", BrowserOptions::default()).await else { return };
    left_click(&browser, 100, 55).await;
    browser.type_text("Ada Löve 日本 🚀").await.expect("it types");
    browser.press_keys(&KeyChord::parse("Tab").expect("a key")).await.expect("the key works");
    browser.type_text("wrong").await.expect("it types");
    browser.press_keys(&KeyChord::parse("ctrl+a").expect("keys")).await.expect("the keys work");
    browser.type_text("right & ready").await.expect("it types");
    left_click(&browser, 55, 155).await;
    assert!(browser.evaluate("keys").await.expect("a value").as_u64() > Some(10), "pages hear keys");
    left_click(&browser, 100, 205).await;
    take_screenshot(&browser).await;
    assert_eq!(browser.evaluate("document.title").await.expect("a title"), "Sent");
    let name = "Ada+L%C3%B6ve+%E6%97%A5%E6%9C%AC+%F0%9F%9A%80";
    assert_eq!(pages.submissions(), [format!("name={name}&note=right+%26+ready&agree=yes")]);
    browser.navigate_history(windlass_computer::HistoryNavigation::Back).await.expect("it goes back");
    take_screenshot(&browser).await;
    assert_eq!(browser.evaluate("document.title").await.expect("a title"), "Form");
    browser.close().await;
}

#[tokio::test]
async fn things_are_dragged_scrolled_drawn_and_clicked() {
    let Some((_, browser)) = open_page("play.html", BrowserOptions::default()).await else { return };
    let picture = take_screenshot(&browser).await;
    assert_eq!(picture.size(), Some((1280, 800)));
    browser.drag(&[point_at(60, 60), point_at(440, 80)], &NONE).await.expect("it drags");
    assert_eq!(recorded_value(&browser, "dropped").await, true);
    assert!(recorded_value(&browser, "moves").await.as_u64() >= Some(4));
    browser
        .drag(&[point_at(60, 190), point_at(200, 200), point_at(440, 210)], &NONE)
        .await
        .expect("it drags");
    assert_eq!(recorded_value(&browser, "parcel").await, "parcel", "what pages let be dragged is dropped");
    assert_eq!(browser.evaluate("ink()").await.expect("a number"), 0);
    browser
        .drag(&[point_at(60, 320), point_at(160, 420), point_at(260, 340)], &NONE)
        .await
        .expect("it draws");
    assert!(browser.evaluate("ink()").await.expect("a number").as_u64() > Some(300));
    let around = ScreenRegion { top_left: point_at(40, 300), bottom_right: point_at(340, 500) };
    let zoomed = browser.zoom(around).await.expect("a picture");
    assert!(zoomed.size() > Some((600, 400)), "{:?}", zoomed.size());

    let ctrl = KeyChord::parse("ctrl").expect("a key");
    browser.click(Some(point_at(650, 420)), MouseButton::Left, 1, &ctrl).await.expect("it clicks");
    assert_eq!(recorded_value(&browser, "ctrl").await, true);
    browser.click(Some(point_at(650, 420)), MouseButton::Left, 2, &NONE).await.expect("it clicks");
    assert_eq!(recorded_value(&browser, "double").await, true);
    browser.click(None, MouseButton::Right, 1, &NONE).await.expect("it clicks where the pointer is");
    assert_eq!(recorded_value(&browser, "menu").await, true);
    assert_eq!(browser.cursor_position().await.expect("a place"), point_at(650, 420));

    browser.scroll(Some(point_at(900, 600)), 0, 700, &NONE).await.expect("it scrolls");
    let scrolled = poll_until(async || browser.evaluate("scrollY").await.expect("a number") == 700).await;
    assert!(scrolled, "{:?}", browser.evaluate("scrollY").await);
    browser.close().await;
}

#[tokio::test]
async fn a_dialog_waits_for_its_answer() {
    let Some((_, browser)) = open_page("play.html", BrowserOptions::default()).await else { return };
    let before = take_screenshot(&browser).await;
    left_click(&browser, 650, 60).await;
    assert_eq!(take_screenshot(&browser).await, before, "the picture is from before");
    let notes = browser.take_notices().join("\n");
    assert!(notes.contains("confirm") && notes.contains("Really?"), "{notes}");
    let refused =
        browser.click(Some(point_at(10, 10)), MouseButton::Left, 1, &NONE).await.expect_err("it waits");
    assert!(matches!(refused, ComputerError::Refused(_)), "{refused}");
    browser.answer_dialog(windlass_computer::DialogAnswer::Accept, None).await.expect("it is answered");
    assert!(poll_until(async || recorded_value(&browser, "asked").await == true).await);
    left_click(&browser, 650, 120).await;
    browser
        .answer_dialog(windlass_computer::DialogAnswer::Accept, Some("Zoë"))
        .await
        .expect("it is answered");
    assert!(poll_until(async || recorded_value(&browser, "prompted").await == "Zoë").await);
    browser.answer_dialog(windlass_computer::DialogAnswer::Accept, None).await.expect_err("there is none");
    browser.close().await;

    let options = BrowserOptions { dialogs: DialogPolicy::Dismiss, ..BrowserOptions::default() };
    let Some((_, browser)) = open_page("play.html", options).await else { return };
    left_click(&browser, 650, 60).await;
    assert!(poll_until(async || recorded_value(&browser, "asked").await == false).await);
    assert!(browser.take_notices().join("\n").contains("dismissed"));
    browser.close().await;
}

#[tokio::test]
async fn a_new_tab_is_followed_and_can_be_left() {
    let Some((_, browser)) = open_page("play.html", BrowserOptions::default()).await else { return };
    left_click(&browser, 620, 175).await;
    let picture = take_screenshot(&browser).await;
    assert_eq!(browser.evaluate("document.title").await.expect("a title"), "Form");
    assert_eq!(picture.size(), Some((1280, 800)), "a new tab has the same size");
    assert!(browser.take_notices().join("\n").contains("new tab"));
    let tabs = browser.list_tabs().await.expect("tabs");
    assert_eq!(tabs.iter().map(|tab| tab.is_current).collect::<Vec<_>>(), [false, true]);
    browser.switch_tab(0).await.expect("it switches");
    assert_eq!(browser.evaluate("document.title").await.expect("a title"), "Play");
    browser.close_tab(1).await.expect("it closes");
    assert_eq!(browser.list_tabs().await.expect("tabs").len(), 1);
    browser.close_tab(0).await.expect_err("the last one stays");
    browser.close().await;
}

#[tokio::test]
async fn a_page_that_hangs_or_crashes_is_an_error_with_a_picture() {
    let options = BrowserOptions { response_timeout: Duration::from_secs(5), ..BrowserOptions::default() };
    let Some((pages, browser)) = open_page("play.html", options).await else { return };
    let before = take_screenshot(&browser).await;
    let hung = browser
        .click(Some(point_at(650, 300)), MouseButton::Left, 1, &NONE)
        .await
        .expect_err("the page hangs");
    let still = browser.screenshot().await.expect_err("the page still hangs");
    for error in [hung, still] {
        assert!(matches!(&error, ComputerError::Unresponsive { .. }), "{error}");
        assert_eq!(error.last_screenshot(), Some(&before));
    }
    // Navigating elsewhere leaves the broken page.
    browser.navigate(&pages.url("form.html")).await.expect("another page opens");
    let form = take_screenshot(&browser).await;
    assert_eq!(browser.evaluate("document.title").await.expect("a title"), "Form");

    browser.crash_page().await;
    let error = browser.screenshot().await.expect_err("the page crashed");
    assert!(matches!(&error, ComputerError::PageCrashed { .. }), "{error}");
    assert_eq!(error.last_screenshot(), Some(&form));
    browser.navigate(&pages.url("play.html")).await.expect("another page opens");
    take_screenshot(&browser).await;
    browser.close().await;
}

#[tokio::test]
async fn downloads_are_refused_or_kept_under_a_name_of_ours() {
    let Some((_, browser)) = open_page("play.html", BrowserOptions::default()).await else { return };
    left_click(&browser, 620, 235).await;
    assert!(
        poll_until(async || browser.take_notices().join("\n").contains("`report.txt` was refused")).await
    );
    browser.close().await;

    let folder = tempfile::tempdir().expect("a folder");
    let downloads = DownloadPolicy::SaveTo(folder.path().to_owned());
    let Some((_, browser)) =
        open_page("play.html", BrowserOptions { downloads, ..BrowserOptions::default() }).await
    else {
        return;
    };
    left_click(&browser, 620, 235).await;
    let mut told = String::new();
    poll_until(async || {
        told.push_str(&browser.take_notices().join("\n"));
        told.contains("downloaded")
    })
    .await;
    assert!(told.contains("`report.txt` was downloaded"), "{told}");
    let files: Vec<_> =
        std::fs::read_dir(folder.path()).expect("the folder").map(|file| file.expect("a file")).collect();
    assert_eq!(files.len(), 1);
    assert_eq!(std::fs::read_to_string(files[0].path()).expect("text"), "twelve bytes");
    browser.close().await;
}

#[tokio::test]
async fn what_is_held_is_let_go_when_nobody_waits_any_more() {
    let Some((_, browser)) = open_page("play.html", BrowserOptions::default()).await else { return };
    let path: Vec<_> = (0..200).map(|step| point_at(60 + step, 60)).collect();
    let none = NONE;
    tokio::select! {
        ended = browser.drag(&path, &none) => panic!("it is not to end by itself: {ended:?}"),
        // The drag's future is dropped half-way.
        moved = poll_until(async || recorded_value(&browser, "moves").await.as_u64() >= Some(2)) => assert!(moved),
    }
    let is_released = poll_until(async || recorded_value(&browser, "dropped").await != Value::Null).await;
    assert!(is_released, "the button is let go");
    browser.close().await;
}

#[tokio::test]
async fn a_browser_ends_with_us_and_leaves_nothing() {
    let Some(browser) = start_browser(BrowserOptions::default()).await else { return };
    let group = browser.process_group().expect("a process");
    browser.close().await;
    assert!(!is_alive(group), "it is gone when closing returns");

    let browser = start_browser(BrowserOptions::default()).await.expect("there is one");
    let group = browser.process_group().expect("a process");
    drop(browser);
    assert!(poll_until(async || !is_alive(group)).await, "a browser that is dropped ends too");
}

fn is_alive(group: u32) -> bool {
    let status = std::process::Command::new("/bin/sh")
        .args(["-c", "kill -0 -- \"-$1\" 2>/dev/null", "sh", &group.to_string()])
        .status();
    status.expect("the shell runs").success()
}

#[tokio::test]
async fn without_a_browser_the_error_says_what_to_install() {
    let options = BrowserOptions { program: Some("/nowhere/chromium".into()), ..BrowserOptions::default() };
    let error = Browser::start(options).await.err().expect("there is none");
    let text = error.to_string();
    assert!(text.contains("/nowhere/chromium") && text.contains("apt-get install chromium"), "{text}");
    // A program that exits at once is reported with its standard error.
    let options = BrowserOptions { program: Some("/bin/false".into()), ..BrowserOptions::default() };
    let error = Browser::start(options).await.err().expect("it does not work");
    assert!(error.to_string().contains("did not start"), "{error}");
}

#[tokio::test]
async fn options_say_what_is_shown() {
    let options = BrowserOptions { width: 800, height: 600, ..BrowserOptions::default() };
    assert_eq!(options.window, BrowserWindow::Headless);
    let Some((_, browser)) = open_page("form.html", options).await else { return };
    assert_eq!(take_screenshot(&browser).await.size(), Some((800, 600)));
    let display = browser.display();
    assert_eq!((display.width, display.height, display.environment.as_str()), (800, 600, "browser"));
    let inner = browser.evaluate("[innerWidth, innerHeight]").await.expect("a size");
    assert_eq!(inner, json!([800, 600]));
    browser.close().await;
}
