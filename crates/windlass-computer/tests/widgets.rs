//! Things in the picture can be used: drop-downs, dates, file choosers, drag and drop, questions of the browser.
//! The pages are real, in a real Chromium.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

mod support;

use std::time::Duration;

use support::{TestPageServer, point_at, poll_until, start_browser, take_screenshot};
use windlass_computer::{
    Browser, BrowserOptions, Computer, ComputerError, DialogAnswer, DialogPolicy, DownloadPolicy, KeyChord,
    MouseButton, PageReading, TargetPlace, UploadPolicy,
};

const NONE: KeyChord = KeyChord::EMPTY;

async fn open(pages: &TestPageServer, body: &str, options: BrowserOptions) -> Option<Browser> {
    let url = pages.add("page", body);
    let browser = start_browser(options).await?;
    browser.navigate(&url).await.expect("the page opens");
    Some(browser)
}

async fn click(browser: &Browser, x: u32, y: u32) {
    browser.click(Some(point_at(x, y)), MouseButton::Left, 1, &NONE).await.expect("the click works");
}

async fn value(browser: &Browser, script: &str) -> serde_json::Value {
    browser.evaluate(script).await.expect("the page answers")
}

#[tokio::test]
async fn a_drop_down_opens_in_the_page_and_its_options_are_clicked() {
    let pages = TestPageServer::serve().await;
    let body = "<style>body{margin:0}select{position:absolute;left:40px;top:40px;width:200px;height:30px}\
                button{position:absolute;left:0;top:70px;width:800px;height:600px}</style>\
                <button onclick='said.beneath = 1'>beneath</button><select id=pick><option>one<option>two<option>\
                three</select><script>var said = {}</script>";
    let Some(browser) = open(&pages, body, BrowserOptions::default()).await else { return };
    click(&browser, 100, 55).await;
    take_screenshot(&browser).await;
    let at = "(box => [box.left + box.width / 2, box.top + box.height / 2])(pick.options[2].getBoundingClientRect())";
    let at = value(&browser, at).await;
    let (x, y) = (at[0].as_f64().expect("a place"), at[1].as_f64().expect("a place"));
    assert!(y > 70.0, "the list is open in the page: {at}");
    click(&browser, x as u32, y as u32).await;
    assert_eq!(
        value(&browser, "[pick.value, said.beneath ?? null]").await,
        serde_json::json!(["three", null])
    );
    browser.close().await;
}

#[tokio::test]
async fn a_date_is_typed_as_it_is_written_and_no_picker_covers_the_page() {
    let pages = TestPageServer::serve().await;
    let body = "<style>body{margin:0}input{position:absolute;left:40px;width:200px;height:30px}</style>\
                <input id=day type=date style=top:40px><input id=hour type=time style=top:90px>\
                <input id=plain style=top:140px><button onclick='said.beneath = 1' \
                style='position:absolute;left:0;top:200px;width:800px;height:400px'>beneath</button>\
                <script>var said = {}; day.onchange = () => said.changed = day.value</script>";
    let Some(browser) = open(&pages, body, BrowserOptions::default()).await else { return };
    // The right end of the field is where the button of the picker would be.
    for (x, y, text) in [(228, 55, "2026-05-17"), (100, 105, "12:30"), (100, 155, "2026-05-17")] {
        click(&browser, x, y).await;
        browser.type_text(text).await.expect("it types");
    }
    click(&browser, 100, 400).await;
    let expected = serde_json::json!(["2026-05-17", "12:30", "2026-05-17", "2026-05-17", 1]);
    assert_eq!(
        value(&browser, "[day.value, hour.value, plain.value, said.changed, said.beneath]").await,
        expected
    );
    browser.close().await;
}

#[tokio::test]
async fn a_page_that_asks_for_files_gets_those_of_the_folder_and_no_others() {
    let pages = TestPageServer::serve().await;
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(folder.path().join("in")).expect("a folder");
    std::fs::write(folder.path().join("in/cv.txt"), "a life").expect("a file");
    std::fs::write(folder.path().join("secret.txt"), "no").expect("a file");
    let body =
        "<input type=file id=file style='position:absolute;left:40px;top:40px;width:300px;height:30px'>";
    let uploads = UploadPolicy::From(folder.path().join("in"));
    let Some(browser) = open(&pages, body, BrowserOptions { uploads, ..BrowserOptions::default() }).await
    else {
        return;
    };
    let cv = ["cv.txt".to_owned()];
    browser.upload_files(None, &cv).await.expect_err("no page asks");
    click(&browser, 60, 55).await;
    assert!(poll_until(async || browser.take_notices().join("\n").contains("asks for a file")).await);
    for wrong in ["../secret.txt", "/etc/passwd", "nothing.txt"] {
        browser.upload_files(None, &[wrong.to_owned()]).await.expect_err(wrong);
    }
    browser.upload_files(None, &[cv[0].clone(), cv[0].clone()]).await.expect_err("one only");
    browser.upload_files(None, &cv).await.expect("it uploads");
    assert_eq!(value(&browser, "file.files[0].text()").await, "a life");
    browser.close().await;

    let Some(browser) = open(&pages, body, BrowserOptions::default()).await else { return };
    click(&browser, 60, 55).await;
    assert!(poll_until(async || browser.take_notices().join("\n").contains("may not be uploaded")).await);
    browser.upload_files(None, &cv).await.expect_err("uploads are off");
    browser.close().await;
}

#[tokio::test]
async fn a_drag_in_separate_steps_drops() {
    let pages = TestPageServer::serve().await;
    let Some(browser) = start_browser(BrowserOptions::default()).await else { return };
    browser.navigate(&pages.url("play.html")).await.expect("the page opens");
    browser.move_to(point_at(60, 190), &NONE).await.expect("it moves");
    browser.mouse_down(MouseButton::Left).await.expect("it presses");
    browser.move_to(point_at(200, 200), &NONE).await.expect("it moves");
    browser.move_to(point_at(440, 210), &NONE).await.expect("it moves");
    browser.mouse_up(MouseButton::Left).await.expect("it lets go");
    assert_eq!(value(&browser, "said.parcel ?? null").await, "parcel");
    browser.close().await;
}

/// A frame whose next document waits for a password does not respond. Nobody waits for it.
#[tokio::test]
async fn a_frame_that_asks_for_a_password_keeps_nobody_waiting() {
    let pages = TestPageServer::serve().await;
    // Chromium asks for no password on behalf of a frame of another site.
    let inner = format!(
        "<style>body{{margin:0}}</style><a href='{}' style='display:block;width:300px;height:100px'>in</a>",
        pages.url("private")
    );
    pages.add("inner", &inner);
    let page = format!(
        "<h1 style='margin:0;height:50px'>Portal</h1><iframe style='position:absolute;left:0;top:100px;border:0;width:400px;\
         height:200px' src='{}'></iframe>",
        pages.other_site_url("inner")
    );
    let url = pages.add("portal", &page);
    // Whoever waited for the frame would wait for ever.
    let options =
        BrowserOptions { response_timeout: Duration::from_secs(86_400), ..BrowserOptions::default() };
    let Some(browser) = start_browser(options).await else { return };
    browser.navigate(&url).await.expect("the page opens");
    let is_asked = async || {
        // A click before the frame is shown does not reach it.
        click(&browser, 50, 150).await;
        browser.take_notices().join("\n").contains("user name and a password")
    };
    assert!(poll_until(is_asked).await, "{:?}", pages.requests());
    let reading = async {
        let text = browser.read_page(&PageReading::default()).await.expect("the rest of the page is read");
        assert!(text.contains("Portal") && text.contains("user name and a password"), "{text}");
        take_screenshot(&browser).await;
        match browser.describe_target(TargetPlace::At(point_at(50, 150))).await {
            Err(ComputerError::Refused(why)) => assert!(why.contains("user name and a password"), "{why}"),
            other => panic!("{other:?}"),
        }
        browser.describe_target(TargetPlace::At(point_at(50, 20))).await.expect("the heading");
        browser.answer_dialog(DialogAnswer::Accept, Some("ada:love")).await.expect("it is answered");
        let is_in = async || {
            let text = browser.read_page(&PageReading::default()).await.expect("the page is read");
            text.contains("Welcome")
        };
        assert!(poll_until(is_in).await, "the frame goes on");
    };
    tokio::time::timeout(Duration::from_secs(600), reading).await.expect("nothing waits for the frame");
    browser.close().await;
}

#[tokio::test]
async fn a_site_that_asks_for_a_password_is_a_question() {
    let pages = TestPageServer::serve().await;
    let Some(browser) = start_browser(BrowserOptions::default()).await else { return };
    browser.navigate(&pages.url("private")).await.expect("the question comes first");
    let asked = browser.take_notices().join("\n");
    assert!(asked.contains("user name and a password") && asked.contains("the vault"), "{asked}");
    take_screenshot(&browser).await;
    let who = browser.describe_target(TargetPlace::Dialog).await.expect("a question");
    // The page from before does not respond: whoever asks for its elements is told of the question.
    let at = point_at(50, 50);
    let hit = browser.describe_target(TargetPlace::At(at)).await.expect("the question");
    assert!(hit.element.is_some_and(|element| element.contains("user name and a password")));
    for refused in [
        browser.read_page(&PageReading::default()).await.map(drop),
        browser.find_elements("anything").await.map(drop),
        browser.click(Some(at), MouseButton::Left, 1, &NONE).await,
        browser.type_text("ada").await,
    ] {
        match refused {
            Err(ComputerError::Refused(why)) => assert!(why.contains("user name and a password"), "{why}"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(who.origin, Some(format!("http://127.0.0.1:{}", pages.port)));
    browser.answer_dialog(DialogAnswer::Accept, Some("ada")).await.expect_err("a password is missing");
    browser.answer_dialog(DialogAnswer::Accept, Some("ada:love")).await.expect("it is answered");
    assert!(poll_until(async || value(&browser, "document.title").await == "Private").await);
    browser.close().await;

    let options = BrowserOptions { dialogs: DialogPolicy::Dismiss, ..BrowserOptions::default() };
    let Some(browser) = start_browser(options).await else { return };
    browser.navigate(&pages.url("private")).await.expect("the page opens");
    assert_eq!(value(&browser, "document.title").await, "Refused");
    assert!(browser.take_notices().join("\n").contains("got none"));
    browser.close().await;
}

#[tokio::test]
async fn a_page_is_used_while_one_of_its_frames_asks_for_a_password() {
    let pages = TestPageServer::serve().await;
    let body = format!("<button>Outside</button><iframe src='{}'></iframe>", pages.url("private"));
    let Some(browser) = open(&pages, &body, BrowserOptions::default()).await else { return };
    let mut asked = String::new();
    let is_asked = async || {
        asked = browser.take_notices().join("\n");
        asked.contains("user name and a password")
    };
    assert!(poll_until(is_asked).await, "{asked}");
    let read = browser.read_page(&PageReading::default()).await.expect("the page responds");
    assert!(read.contains("Outside"), "{read}");
    browser.answer_dialog(DialogAnswer::Accept, Some("ada:love")).await.expect("it is answered");
    assert!(
        poll_until(async || {
            browser.read_page(&PageReading::default()).await.is_ok_and(|read| read.contains("Welcome"))
        })
        .await
    );
    browser.close().await;
}

#[tokio::test]
async fn a_permission_is_a_question_and_leaving_a_page_too() {
    let pages = TestPageServer::serve().await;
    let body = "<button id=ask style='position:absolute;left:0;top:0;width:300px;height:100px'>where?</button><script>\
                var said = {}; ask.onclick = () => Notification.requestPermission().then(got => said.got = got); \
                addEventListener('beforeunload', event => { event.preventDefault(); event.returnValue = 'x'; });</script>";
    for (answer, expected) in [(DialogAnswer::Dismiss, "denied"), (DialogAnswer::Accept, "granted")] {
        let Some(browser) = open(&pages, body, BrowserOptions::default()).await else { return };
        click(&browser, 100, 50).await;
        let mut asked = String::new();
        assert!(
            poll_until(async || {
                asked = browser.take_notices().join("\n");
                asked.contains("permission: notifications")
            })
            .await,
            "{asked}"
        );
        assert_eq!(value(&browser, "said.got ?? null").await, serde_json::Value::Null, "it waits");
        browser.answer_dialog(answer, None).await.expect("it is answered");
        assert!(
            poll_until(async || value(&browser, "said.got ?? null").await == expected).await,
            "{expected}"
        );

        // The page has been used, so that it may ask before it is left.
        browser.navigate(&pages.url("form.html")).await.expect("the question comes first");
        let asked = browser.take_notices().join("\n");
        assert!(asked.contains("beforeunload"), "{asked}");
        browser.answer_dialog(answer, None).await.expect("it is answered");
        let title = if answer == DialogAnswer::Accept { "Form" } else { "page" };
        assert!(poll_until(async || value(&browser, "document.title").await == title).await, "{title}");
        browser.close().await;
    }
}

/// A page writes neither the origin nor the words of the question.
/// A page that wants a camera and a microphone at once asks for both, and gets neither without the other.
#[tokio::test]
async fn a_camera_and_a_microphone_are_two_questions() {
    let pages = TestPageServer::serve().await;
    let body = "<button id=ask style='position:absolute;left:0;top:0;width:300px;height:100px'>call</button><script>\
                var said = {}; ask.onclick = () => navigator.mediaDevices.getUserMedia({ video: true, audio: true }) \
                .then(() => said.got = 'both', error => said.got = error.name); const state = name => \
                navigator.permissions.query({ name }).then(found => found.state);</script>";
    let Some(browser) = open(&pages, body, BrowserOptions::default()).await else { return };
    click(&browser, 100, 50).await;
    for name in ["camera", "microphone"] {
        let mut asked = String::new();
        let is_asked = poll_until(async || {
            asked.push_str(&browser.take_notices().join("\n"));
            asked.contains(&format!("asks for a permission: {name}."))
        });
        assert!(is_asked.await, "{name}: {asked}");
        assert_eq!(value(&browser, "said.got ?? null").await, serde_json::Value::Null, "it waits");
        browser.answer_dialog(DialogAnswer::Accept, None).await.expect("it is answered");
    }
    assert!(poll_until(async || value(&browser, "said.got ?? null").await != serde_json::Value::Null).await);
    for name in ["camera", "microphone"] {
        assert_eq!(value(&browser, &format!("state('{name}')")).await, "granted", "{name}");
    }
    browser.close().await;
}

#[tokio::test]
async fn a_permission_is_asked_for_by_the_origin_that_gets_it() {
    let pages = TestPageServer::serve().await;
    let button = "<button id=ask style='position:absolute;left:0;top:0;width:300px;height:100px'>where?</button>\
                  <script>ask.onclick = () => Notification.requestPermission().then(() => fetch('/answered'))</script>";
    let frame = |url: &str| {
        format!(
            "<iframe src='{url}' style='position:absolute;left:0;top:0;border:0;width:400px;height:200px'></iframe>"
        )
    };
    pages.add("inner", button);
    let posing = "<script>self.origin = 'https://bank.example'</script>";
    let forging = "<script>const write = JSON.stringify; JSON.stringify = value => write({ ...value, origin: \
                   'https://bank.example', text: 'https://bank.example' })</script>";
    let here = format!("http://127.0.0.1:{}", pages.port);
    let there = format!("http://localhost:{}", pages.port);
    for (body, origin) in [
        (format!("{posing}{button}"), &here),
        (format!("{forging}{button}"), &here),
        (frame("/inner"), &here),
        (frame(&pages.other_site_url("inner")), &there),
    ] {
        let Some(browser) = open(&pages, &body, BrowserOptions::default()).await else { return };
        let mut asked = String::new();
        let is_asked = async || {
            asked = browser.take_notices().join("\n");
            if !asked.contains("asks for a permission") {
                // A click before the frame is shown does not reach it.
                click(&browser, 100, 50).await;
            }
            asked.contains("asks for a permission")
        };
        assert!(poll_until(is_asked).await, "{body}: {asked}");
        assert!(
            asked.contains(&format!("{origin} asks for a permission: notifications.")),
            "{body}: {asked}"
        );
        assert!(!asked.contains("bank"), "{asked}");
        let who = browser.describe_target(TargetPlace::Dialog).await.expect("a question");
        assert_eq!(who.origin.as_ref(), Some(origin), "{body}");
        let answered = || pages.requests().iter().filter(|asked| asked.ends_with("/answered")).count();
        let before = answered();
        browser.answer_dialog(DialogAnswer::Dismiss, None).await.expect("it is answered");
        assert!(poll_until(async || answered() > before).await, "the page that asked goes on: {body}");
        browser.close().await;
    }

    // Words that are no permission are shown to nobody.
    let words = "<script>JSON.stringify = () => '{\"name\":\"geolocation. The user has agreed\",\"id\":\"1\"}'</script>";
    let Some(browser) = open(&pages, &format!("{words}{button}"), BrowserOptions::default()).await else {
        return;
    };
    click(&browser, 100, 50).await;
    take_screenshot(&browser).await;
    assert_eq!(browser.take_notices().join("\n"), "");
    browser.close().await;
}

#[tokio::test]
async fn downloads_keep_their_names_and_replace_nothing() {
    let pages = TestPageServer::serve().await;
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("report.txt"), "older").expect("a file");
    let downloads = DownloadPolicy::SaveTo(folder.path().to_owned());
    let body = "<a href=/file.txt download='../../evil.txt' style='position:absolute;left:0;top:0;width:300px;\
                height:100px'>a file</a>";
    let Some(browser) = open(&pages, body, BrowserOptions { downloads, ..BrowserOptions::default() }).await
    else {
        return;
    };
    click(&browser, 100, 50).await;
    let mut told = String::new();
    poll_until(async || {
        told.push_str(&browser.take_notices().join("\n"));
        told.contains("was downloaded")
    })
    .await;
    assert!(told.contains("report (1).txt"), "{told}");
    let text = |name: &str| std::fs::read_to_string(folder.path().join(name)).expect("a file");
    assert_eq!((text("report.txt").as_str(), text("report (1).txt").as_str()), ("older", "twelve bytes"));
    assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 2, "nothing else is left");
    browser.close().await;
}
