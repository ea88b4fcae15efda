//! A real X server, with a real Chromium on it: what the desktop does is checked by what the page says happened.

#![cfg(feature = "x11")]
#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

mod support;

use std::io::Write;

use support::{Pages, at, browser, said, soon};
use windlass_computer::{
    Browser, BrowserOptions, Button, Chord, Computer, ComputerError, Desktop, DesktopOptions, Region, Window,
};

const NONE: Chord = Chord::NONE;

/// A virtual desktop; none where there is none on this machine, which is said.
async fn desktop() -> Option<Desktop> {
    match Desktop::start(DesktopOptions::Virtual { width: 1024, height: 700 }).await {
        Ok(desktop) => Some(desktop),
        Err(ComputerError::Missing { what, hint }) => {
            let _ = writeln!(std::io::stderr(), "not shown: {what} is not here; {hint}");
            None
        }
        Err(error) => panic!("the desktop does not start: {error}"),
    }
}

/// A browser that covers a desktop, showing a page.
async fn covering(desktop: &Desktop, pages: &Pages, page: &str) -> Option<Browser> {
    let options = BrowserOptions {
        width: 1024,
        height: 700,
        window: Window::Shown { display: Some(desktop.name().to_owned()) },
        flags: vec!["--kiosk".to_owned(), "--window-position=0,0".to_owned(), "--disable-gpu".to_owned()],
        ..BrowserOptions::default()
    };
    let browser = browser(options).await?;
    browser.navigate(&pages.url(page)).await.expect("the page opens");
    browser.screenshot().await.expect("a picture");
    // The window comes up a little after the page.
    let is_there = soon(async || {
        desktop.move_to(at(5, 5), &NONE).await.expect("it moves");
        desktop.click(Some(at(500, 650)), Button::Left, 1, &NONE).await.expect("it clicks");
        browser.evaluate("document.hasFocus()").await.expect("a value") == true
    })
    .await;
    assert!(is_there, "the window is there");
    Some(browser)
}

#[tokio::test]
async fn any_text_is_typed_and_things_are_clicked() {
    let Some(desktop) = desktop().await else { return };
    let pages = Pages::serve().await;
    let Some(browser) = covering(&desktop, &pages, "form.html").await else { return };
    desktop.click(Some(at(100, 55)), Button::Left, 1, &NONE).await.expect("it clicks");
    let text = "Ada LÖVE: é, 日本語, Ω, ≠ & \"quotes\" 🚀";
    desktop.type_text(text).await.expect("it types");
    let value = "document.querySelector('[name=name]').value";
    let is_typed = soon(async || browser.evaluate(value).await.expect("a value") == text).await;
    assert!(is_typed, "{:?}", browser.evaluate(value).await);
    desktop.keys(&Chord::parse("Tab").expect("a key")).await.expect("the key works");
    desktop.type_text("wrong").await.expect("it types");
    desktop.keys(&Chord::parse("ctrl+a").expect("keys")).await.expect("the keys work");
    desktop.type_text("right").await.expect("it types");
    desktop.keys(&Chord::parse("Return").expect("a key")).await.expect("the key works");
    assert!(soon(async || !pages.sent().is_empty()).await, "the form is sent");
    assert!(pages.sent()[0].contains("&note=right"), "{:?}", pages.sent());
    browser.close().await;
    desktop.close().await;
}

#[tokio::test]
async fn things_are_dragged_scrolled_and_drawn() {
    let Some(desktop) = desktop().await else { return };
    let pages = Pages::serve().await;
    let Some(browser) = covering(&desktop, &pages, "play.html").await else { return };
    desktop.drag(&[at(60, 60), at(440, 80)], &NONE).await.expect("it drags");
    assert!(soon(async || said(&browser, "dropped").await == true).await);
    desktop.drag(&[at(60, 320), at(160, 420), at(260, 340)], &NONE).await.expect("it draws");
    assert!(soon(async || browser.evaluate("ink()").await.expect("a number").as_u64() > Some(300)).await);
    let ctrl = Chord::parse("ctrl").expect("a key");
    desktop.click(Some(at(650, 420)), Button::Left, 1, &ctrl).await.expect("it clicks");
    assert!(soon(async || said(&browser, "ctrl").await == true).await);
    desktop.click(None, Button::Left, 2, &NONE).await.expect("it clicks");
    assert!(soon(async || said(&browser, "double").await == true).await);
    desktop.click(None, Button::Right, 1, &NONE).await.expect("it clicks");
    assert!(soon(async || said(&browser, "menu").await == true).await);
    assert_eq!(desktop.cursor().await.expect("a place"), at(650, 420));
    desktop.scroll(Some(at(900, 600)), 0, 500, &NONE).await.expect("it scrolls");
    assert!(soon(async || browser.evaluate("scrollY").await.expect("a number").as_f64() > Some(100.0)).await);

    let whole = desktop.screenshot().await.expect("a picture");
    assert_eq!(whole.size(), Some((1024, 700)));
    let part = desktop.zoom(Region { from: at(40, 40), to: at(240, 140) }).await.expect("a picture");
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
