//! A real X server with a real Chromium on it. The effects of the desktop's input are verified by the page's
//! own record of events.

#![cfg(feature = "x11")]
#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod support;

use std::io::Write;

use support::{TestPageServer, point_at, poll_until, recorded_value, start_browser};
use windlass_computer::{
    Browser, BrowserOptions, BrowserWindow, Computer, ComputerError, ComputerProvider, Desktop,
    DesktopOptions, KeyChord, MouseButton, ScreenRegion,
};

const NONE: KeyChord = KeyChord::EMPTY;

/// Starts a virtual desktop; returns `None` with a message if Xvfb is not installed.
async fn start_desktop() -> Option<Desktop> {
    match Desktop::start(DesktopOptions::virtual_display(1024, 700)).await {
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
    assert_eq!(part.size(), Some((800, 400)), "it is magnified");
    browser.close().await;
    desktop.close().await;
}

#[tokio::test]
async fn without_a_display_the_error_says_what_to_do() {
    let error = Desktop::start(DesktopOptions::existing(Some(":4711"))).await.err().expect("there is none");
    let text = error.to_string();
    assert!(text.contains("DISPLAY") && text.contains("apt-get install xvfb"), "{text}");
}

/// Decodes a picture and returns the function from positions to colours.
fn decode_pixels(picture: &windlass_computer::Screenshot) -> impl Fn(u32, u32) -> [u8; 3] + use<> {
    let mut decoder = png::Decoder::new(std::io::Cursor::new(picture.to_png()));
    decoder.set_transformations(png::Transformations::EXPAND);
    let mut reader = decoder.read_info().expect("a picture");
    let mut bytes = vec![0; reader.output_buffer_size().expect("a size")];
    let info = reader.next_frame(&mut bytes).expect("pixels");
    move |x, y| {
        let at = y as usize * info.line_size + x as usize * info.color_type.samples();
        [bytes[at], bytes[at + 1], bytes[at + 2]]
    }
}

#[tokio::test]
async fn a_picture_shows_the_effect_of_the_action_and_the_pointer() {
    let Some(desktop) = start_desktop().await else { return };
    let pages = TestPageServer::serve().await;
    // The page changes its colour shortly after each click, as programs do, and says when it was painted.
    pages.add(
        "blink",
        "<body style='margin:0;background:#f00'><script>let clicks = 0, painted = 0; onclick = () => setTimeout(() => { \
         clicks++; document.body.style.background = clicks % 2 ? '#00f' : '#f00'; requestAnimationFrame(() => \
         requestAnimationFrame(() => painted = Date.now())); }, 120)</script>",
    );
    let Some(browser) = open_covering_browser(&desktop, &pages, "blink").await else { return };
    let number =
        async |name: &str| browser.evaluate(name).await.expect("a number").as_u64().expect("a number");
    let colour = |clicks: u64| if clicks % 2 == 1 { [0, 0, 255] } else { [255, 0, 0] };
    let (mut tries, mut shown) = (0, 0);
    // A page that is late because the machine is busy says nothing about the picture.
    for _ in 0..200 {
        let settled = poll_until(async || {
            let picture = desktop.screenshot().await.expect("a picture");
            decode_pixels(&picture)(900, 300) == colour(number("clicks").await)
        });
        assert!(settled.await, "the screen shows the page");
        let clicks = number("clicks").await;
        let clicked = std::time::UNIX_EPOCH.elapsed().expect("a time").as_millis();
        desktop.click(Some(point_at(300, 300)), MouseButton::Left, 1, &NONE).await.expect("it clicks");
        let pixels = decode_pixels(&desktop.screenshot().await.expect("a picture"));
        let around = (290..320).flat_map(|x| (290..330).map(move |y| (x, y)));
        assert!(
            around.into_iter().any(|(x, y)| pixels(x, y) != pixels(900, 300)),
            "the pointer is in the picture"
        );
        assert!(poll_until(async || number("clicks").await > clicks).await, "the click arrives");
        let is_painted = poll_until(async || u128::from(number("painted").await) > clicked);
        assert!(is_painted.await, "the page is painted");
        if u128::from(number("painted").await) < clicked + 220 {
            tries += 1;
            shown += usize::from(pixels(900, 300) == colour(clicks + 1));
        }
        if tries == 6 {
            break;
        }
    }
    assert!(tries > 0, "the page was painted in time at least once");
    // One picture of six may miss a page that said so just before its pixels arrived.
    assert!(shown + tries / 6 >= tries, "the picture shows the effect: {shown} of {tries}");
    browser.close().await;
    desktop.close().await;
}

/// The model is told the size of an existing display before a run uses it, and acts within it.
#[tokio::test]
async fn a_provider_announces_the_size_of_an_existing_display() {
    let Some(desktop) = start_desktop().await else { return };
    let existing = || DesktopOptions::existing(Some(desktop.display_name()));
    let scaled = DesktopOptions { max_side: 512, ..existing() };
    for (options, size) in [(existing(), (1024, 700)), (scaled, (512, 350))] {
        let provider = Desktop::provider(options).await.expect("the display is there");
        let announced = provider.display();
        assert_eq!((announced.width, announced.height), size);
        let computer = provider.create(&"run".into()).await.expect("it connects");
        assert_eq!(computer.display(), announced);
        assert_eq!(computer.screenshot().await.expect("a picture").size(), Some(size));
        provider.dispose(computer).await;
    }
    assert!(Desktop::provider(DesktopOptions::existing(Some(":59999"))).await.is_err());
    desktop.close().await;
}

/// Keys are approved for the content of a window, which its title alone does not tell.
#[tokio::test]
async fn a_window_with_other_content_is_another_target_of_keys() {
    use windlass_computer::TargetPlace;
    let Some(desktop) = start_desktop().await else { return };
    let pages = TestPageServer::serve().await;
    pages.add(
        "note",
        "<body style='margin:0;background:#fff'><textarea autofocus style='width:900px;height:600px;border:0;\
         font-size:20px'></textarea>",
    );
    let Some(browser) = open_covering_browser(&desktop, &pages, "note").await else { return };
    desktop.click(Some(point_at(100, 55)), MouseButton::Left, 1, &NONE).await.expect("it clicks");
    let describe = async || desktop.describe_target(TargetPlace::Focus).await.expect("a target");
    let is_at_rest = poll_until(async || describe().await == describe().await).await;
    assert!(is_at_rest, "the window is there");
    let before = describe().await;
    // The caret blinks.
    for _ in 0..20 {
        assert_eq!(before.difference(&describe().await), None);
        tokio::time::sleep(std::time::Duration::from_millis(80)).await;
    }
    browser.evaluate("document.body.innerHTML = '<h1>Delete everything?</h1>'; document.body.style.background = '#c00'; 1")
        .await
        .expect("it changes");
    let is_other = poll_until(async || before.difference(&describe().await).is_some()).await;
    assert!(is_other, "the title is the same, the content is not");
    browser.close().await;
    desktop.close().await;
}

#[tokio::test]
async fn a_program_is_started_on_the_display_and_a_large_screen_is_scaled() {
    use windlass_computer::DesktopProgram;
    let pages = TestPageServer::serve().await;
    // The page tells the server where it was clicked.
    let url = pages.add(
        "large",
        "<body style='margin:0;background:#0a0'><script>onclick = event => \
         fetch('/clicked?' + event.screenX + ',' + event.screenY)</script>",
    );
    let profile = tempfile::tempdir().expect("a folder");
    let program = DesktopProgram::new("chromium")
        .arguments(["--no-sandbox", "--kiosk", "--no-first-run", "--disable-gpu", "--window-position=0,0"])
        .arguments([
            "--window-size=2000,1250".to_owned(),
            format!("--user-data-dir={}", profile.path().display()),
            url,
        ]);
    let options = DesktopOptions::virtual_display(2000, 1250).program(program);
    let desktop = match Desktop::start(options).await {
        Ok(desktop) => desktop,
        Err(ComputerError::Missing { what, hint }) => {
            let _ = writeln!(std::io::stderr(), "not shown: {what} is not here; {hint}");
            return;
        }
        Err(error) => panic!("the desktop does not start: {error}"),
    };
    let display = desktop.display();
    assert_eq!((display.width, display.height), (1568, 980));
    let mut size = None;
    let is_shown = poll_until(async || {
        let picture = desktop.screenshot().await.expect("a picture");
        size = picture.size();
        // The pointer is in the middle.
        decode_pixels(&picture)(300, 300) == [0, 170, 0]
    });
    assert!(is_shown.await, "the program is shown");
    assert_eq!(size, Some((1568, 980)));
    let clicked = poll_until(async || {
        desktop.click(Some(point_at(784, 490)), MouseButton::Left, 1, &NONE).await.expect("it clicks");
        pages.requests().iter().any(|asked| asked.contains("/clicked?1000,625"))
    });
    assert!(clicked.await, "coordinates are mapped: {:?}", pages.requests());
    assert_eq!(desktop.cursor_position().await.expect("a place"), point_at(784, 490));
    let target = desktop.describe_target(windlass_computer::TargetPlace::At(point_at(784, 490))).await;
    let element = target.expect("a target").element.expect("a window");
    assert!(element.contains("Chromium"), "{element}");

    let profile = profile.path().display().to_string();
    let runs = || {
        let folders = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let lines = folders.filter_map(|folder| std::fs::read(folder.path().join("cmdline")).ok());
        lines.map(|line| String::from_utf8_lossy(&line).into_owned()).any(|line| line.contains(&profile))
    };
    assert!(runs(), "it runs");
    desktop.close().await;
    assert!(poll_until(async || !runs()).await, "the program ends with the desktop");
}

/// With a window manager, windows have frames: they are recognised, used and moved by their title bars.
#[tokio::test]
async fn windows_with_frames_are_used_and_moved() {
    use windlass_computer::{DesktopProgram, TargetPlace};
    let pages = TestPageServer::serve().await;
    let url = pages.add(
        "framed",
        "<body style='margin:0;background:#0a0'><input id=field autofocus style='width:100%;height:100%;\
         position:fixed;border:0;background:#0a0'><script>onclick = event => fetch('/clicked?' + event.clientX + ',' + \
         event.clientY); field.oninput = () => fetch('/typed?' + field.value); setInterval(() => fetch('/at?' + screenX \
         + ',' + screenY), 200)</script>",
    );
    let profile = tempfile::tempdir().expect("a folder");
    let manager = DesktopProgram::new("openbox").arguments(["--sm-disable"]);
    let program = DesktopProgram::new("chromium")
        .arguments(["--no-sandbox", "--no-first-run", "--disable-gpu", "--window-position=100,100"])
        .arguments([
            "--window-size=600,400".to_owned(),
            format!("--user-data-dir={}", profile.path().display()),
            format!("--app={url}"),
        ]);
    let options = DesktopOptions::virtual_display(1280, 800).program(manager).program(program);
    let desktop = match Desktop::start(options).await {
        Ok(desktop) => desktop,
        Err(ComputerError::Missing { what, hint }) => {
            let _ = writeln!(std::io::stderr(), "not shown: {what} is not here; {hint}");
            return;
        }
        Err(error) => panic!("the desktop does not start: {error}"),
    };
    let place = || {
        let requests = pages.requests();
        let last =
            requests.iter().rev().find_map(|asked| asked.split_once("/at?").map(|(_, at)| at.to_owned()));
        let (x, y) = last?.split_once(',').map(|(x, y)| (x.parse::<u32>(), y.parse::<u32>()))?;
        Some((x.ok()?, y.ok()?))
    };
    let is_shown = poll_until(async || {
        let picture = desktop.screenshot().await.expect("a picture");
        decode_pixels(&picture)(400, 350) == [0, 170, 0]
    });
    assert!(is_shown.await, "the program is shown");
    let target = desktop.describe_target(TargetPlace::At(point_at(400, 350))).await.expect("a target");
    assert!(target.element.as_deref().is_some_and(|element| element.contains("framed")), "{target:?}");
    assert!(poll_until(async || place().is_some()).await, "the page listens");
    // One click: a second one that arrived between the keys would select what they have typed.
    desktop.click(Some(point_at(400, 350)), MouseButton::Left, 1, &NONE).await.expect("it clicks");
    let is_clicked = poll_until(async || pages.requests().iter().any(|asked| asked.contains("/clicked?")));
    assert!(is_clicked.await, "{:?}", pages.requests());
    desktop.type_text("rope").await.expect("it types");
    let is_typed = poll_until(async || pages.requests().iter().any(|asked| asked.ends_with("/typed?rope")));
    assert!(is_typed.await, "{:?}", pages.requests());
    // The frame is above the window.
    let (left, top) = place().expect("the page tells where its window is");
    let path = [point_at(left + 200, top - 10), point_at(left + 350, top + 140)];
    let is_moved = poll_until(async || {
        desktop.drag(&path, &NONE).await.expect("it drags");
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        place().is_some_and(|now| now != (left, top))
    });
    assert!(is_moved.await, "from {left}, {top} to {:?}", place());
    desktop.close().await;
}
