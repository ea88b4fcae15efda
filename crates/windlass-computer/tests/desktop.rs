//! A real X server with a real Chromium on it. The effects of the desktop's input are verified by the page's
//! own record of events.

#![cfg(feature = "x11")]
#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod support;

use std::io::Write;

use support::{TestPageServer, point_at, poll_until, recorded_value, start_browser};
use windlass_computer::{
    Browser, BrowserOptions, BrowserWindow, Computer, ComputerError, Desktop, DesktopOptions, KeyChord,
    MouseButton, ScreenRegion,
};

const NONE: KeyChord = KeyChord::EMPTY;

/// Starts a virtual desktop; returns `None` with a message if Xvfb is not installed.
async fn start_desktop() -> Option<Desktop> {
    match Desktop::start(DesktopOptions::Virtual { width: 1024, height: 700 }).await {
        Ok(desktop) => Some(desktop),
        Err(ComputerError::Missing { what, hint }) => {
            let _ = writeln!(std::io::stderr(), "not shown: {what} is not here; {hint}");
            None
        }
        Err(error) => panic!("the desktop does not start: {error}"),
    }
}

/// Starts a browser that covers a desktop and shows a page.
async fn open_covering_browser(desktop: &Desktop, pages: &TestPageServer, page: &str) -> Option<Browser> {
    let options = BrowserOptions {
        width: 1024,
        height: 700,
        window: BrowserWindow::Visible { display: Some(desktop.display_name().to_owned()) },
        extra_flags: vec![
            "--kiosk".to_owned(),
            "--window-position=0,0".to_owned(),
            "--disable-gpu".to_owned(),
        ],
        ..BrowserOptions::default()
    };
    let browser = start_browser(options).await?;
    browser.navigate(&pages.url(page)).await.expect("the page opens");
    browser.screenshot().await.expect("a picture");
    // The window appears shortly after the page has loaded.
    let is_there = poll_until(async || {
        desktop.move_to(point_at(5, 5), &NONE).await.expect("it moves");
        desktop.click(Some(point_at(500, 650)), MouseButton::Left, 1, &NONE).await.expect("it clicks");
        browser.evaluate("document.hasFocus()").await.expect("a value") == true
    })
    .await;
    assert!(is_there, "the window is there");
    Some(browser)
}

#[tokio::test]
async fn any_text_is_typed_and_things_are_clicked() {
    let Some(desktop) = start_desktop().await else { return };
    let pages = TestPageServer::serve().await;
    let Some(browser) = open_covering_browser(&desktop, &pages, "form.html").await else { return };
    desktop.click(Some(point_at(100, 55)), MouseButton::Left, 1, &NONE).await.expect("it clicks");
    let text = "Ada LÖVE: é, 日本語, Ω, ≠ & \"quotes\" 🚀";
    desktop.type_text(text).await.expect("it types");
    let value = "document.querySelector('[name=name]').value";
    let is_typed = poll_until(async || browser.evaluate(value).await.expect("a value") == text).await;
    assert!(is_typed, "{:?}", browser.evaluate(value).await);
    desktop.press_keys(&KeyChord::parse("Tab").expect("a key")).await.expect("the key works");
    desktop.type_text("wrong").await.expect("it types");
    desktop.press_keys(&KeyChord::parse("ctrl+a").expect("keys")).await.expect("the keys work");
    desktop.type_text("right").await.expect("it types");
    desktop.press_keys(&KeyChord::parse("Return").expect("a key")).await.expect("the key works");
    assert!(poll_until(async || !pages.submissions().is_empty()).await, "the form is submissions");
    assert!(pages.submissions()[0].contains("&note=right"), "{:?}", pages.submissions());
    browser.close().await;
    desktop.close().await;
}

#[tokio::test]
async fn things_are_dragged_scrolled_and_drawn() {
    let Some(desktop) = start_desktop().await else { return };
    let pages = TestPageServer::serve().await;
    let Some(browser) = open_covering_browser(&desktop, &pages, "play.html").await else { return };
    desktop.drag(&[point_at(60, 60), point_at(440, 80)], &NONE).await.expect("it drags");
    assert!(poll_until(async || recorded_value(&browser, "dropped").await == true).await);
    desktop
        .drag(&[point_at(60, 320), point_at(160, 420), point_at(260, 340)], &NONE)
        .await
        .expect("it draws");
    assert!(
        poll_until(async || browser.evaluate("ink()").await.expect("a number").as_u64() > Some(300)).await
    );
    let ctrl = KeyChord::parse("ctrl").expect("a key");
    desktop.click(Some(point_at(650, 420)), MouseButton::Left, 1, &ctrl).await.expect("it clicks");
    assert!(poll_until(async || recorded_value(&browser, "ctrl").await == true).await);
    desktop.click(None, MouseButton::Left, 2, &NONE).await.expect("it clicks");
    assert!(poll_until(async || recorded_value(&browser, "double").await == true).await);
    desktop.click(None, MouseButton::Right, 1, &NONE).await.expect("it clicks");
    assert!(poll_until(async || recorded_value(&browser, "menu").await == true).await);
    assert_eq!(desktop.cursor_position().await.expect("a place"), point_at(650, 420));
    desktop.scroll(Some(point_at(900, 600)), 0, 500, &NONE).await.expect("it scrolls");
    assert!(
        poll_until(async || browser.evaluate("scrollY").await.expect("a number").as_f64() > Some(100.0))
            .await
    );

    let whole = desktop.screenshot().await.expect("a picture");
    assert_eq!(whole.size(), Some((1024, 700)));
    let part = desktop
        .zoom(ScreenRegion { top_left: point_at(40, 40), bottom_right: point_at(240, 140) })
        .await
        .expect("a picture");
    assert_eq!(part.size(), Some((200, 100)));
    browser.close().await;
    desktop.close().await;
}

#[tokio::test]
async fn without_a_display_the_error_says_what_to_do() {
    let options = DesktopOptions::Existing { display: Some(":4711".to_owned()) };
    let error = Desktop::start(options).await.err().expect("there is none");
    let text = error.to_string();
    assert!(text.contains("DISPLAY") && text.contains("apt-get install xvfb"), "{text}");
}
