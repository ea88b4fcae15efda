//! Secrets that are typed reach the page and nothing else.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

#[path = "support/paper.rs"]
mod paper;
mod support;
use support::hostile::{SECRET_TRAPS, SeededNumbers, add_secret_trap, hostile_seeds};

use std::sync::{Arc, Mutex};

use paper::{
    RecordingComputer, agent_with_tool, call_with_safety_check, click_action, computer_call, output_of,
};
use serde_json::json;
use support::{TestPageServer, start_browser};
use windlass::model::ScriptedResponse;
use windlass::store::{MemoryStore, Store};
use windlass_computer::{
    ActionVerdict, AllowedSites, BrowserOptions, Computer, ComputerAction, ComputerSecret, ComputerTool,
    DialogAnswer, PageReading, ScreenRecording, TargetPlace,
};

const PASSWORD: &str = "correct horse";

#[tokio::test]
async fn a_secret_is_typed_by_its_name_and_written_down_nowhere() {
    let pages = TestPageServer::serve().await;
    let Some(browser) = start_browser(BrowserOptions::default()).await else { return };
    browser.navigate(&pages.url("form.html")).await.expect("the page opens");
    let browser = Arc::new(browser);
    let judged: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = judged.clone();
    let tool = ComputerTool::with_computer(browser.clone())
        .secret("password", ComputerSecret::new(PASSWORD).only_on(["127.0.0.1"]))
        .secret("other", ComputerSecret::new("elsewhere").only_on(["example.org"]))
        .review_actions(move |proposed| {
            if let ComputerAction::TypeText { text } = &proposed.action {
                seen.lock().expect("no panic").push(text.clone());
            }
            async { ActionVerdict::Allow }
        });
    let typed = |text: &str| json!([click_action(100, 55), { "type": "type", "text": text }]);
    let replies = [
        computer_call("c1", typed("me:{{secret:password}}!")),
        computer_call("c2", typed("{{secret:other}}")),
        computer_call("c3", typed("{{secret:nothing}}")),
        // The page echoes its input.
        computer_call("c4", json!([{ "type": "keypress", "keys": ["F9"] }])),
        computer_call("c5", json!([click_action(100, 205)])),
        ScriptedResponse::text("done"),
    ];
    browser
        .evaluate(
            r#"onkeydown = event => { if (event.key === "F9") alert(document.forms[0].name.value) }; 1"#,
        )
        .await
        .expect("it is wired");
    let (agent_with_tool, model) = agent_with_tool(&tool, replies);
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let outcome = agent_with_tool.run("Sign in").store(store.clone()).await.expect("the run ends");
    assert_eq!(judged.lock().expect("no panic")[0], "me:{{secret:password}}!");
    assert_eq!(browser.evaluate("1").await.ok(), None, "the page shows its dialog");
    browser.answer_dialog(DialogAnswer::Accept, None).await.expect("it is answered");
    let there = browser.evaluate("document.forms[0].elements.name.value").await.expect("a value");
    assert_eq!(there, format!("me:{PASSWORD}!"), "the page has it, and only what may be typed there");
    let elsewhere = output_of(&outcome, "c2").text().into_owned();
    assert!(elsewhere.contains("the secret `other` is not typed here"), "{elsewhere}");
    let unknown = output_of(&outcome, "c3").text().into_owned();
    assert!(unknown.contains("no secret `nothing`") && unknown.contains("{{secret:password}}"), "{unknown}");
    let said = output_of(&outcome, "c4").text().into_owned();
    assert!(said.contains("me:[secret]!"), "{said}");
    let film = ScreenRecording::from_journal(outcome.record().journal(), Some(&*store))
        .await
        .expect("the store answers");
    let asked =
        format!("{:?}", model.requests().iter().map(|request| request.input.clone()).collect::<Vec<_>>());
    for kept in [
        outcome.record().to_text(),
        film.to_html("Film"),
        asked,
        format!("{:?}", ComputerSecret::new(PASSWORD)),
    ] {
        assert!(!kept.contains(PASSWORD), "it is written down");
    }
    browser.close().await;
}

#[tokio::test]
async fn what_the_model_types_itself_can_be_left_out_of_the_journal() {
    let paper = RecordingComputer::default();
    let tool = ComputerTool::with_computer(Arc::new(paper.clone())).redact_typed_text();
    let anthropic = ScriptedResponse::call("c2", "computer", json!({ "action": "type", "text": PASSWORD }));
    let ours = computer_call("c1", json!([click_action(1, 1), { "type": "type", "text": PASSWORD }]));
    let (agent_with_tool, _) = agent_with_tool(
        &tool,
        [ours, anthropic, call_with_safety_check("c3"), ScriptedResponse::text("done")],
    );
    let mut paused =
        agent_with_tool.run("go").await.expect("the run pauses").into_paused().expect("it waits");
    assert_eq!(
        paper.operations(),
        ["click (1, 1) 1".to_owned(), format!("type {PASSWORD}"), format!("type {PASSWORD}")]
    );
    let text = paused.to_text();
    assert!(!text.contains(PASSWORD) && text.contains("[secret]"), "{text}");
    assert!(text.contains(r#"\"type\":\"click\""#), "what else was done is there");
    paused.approve("c3").expect("a person approves");
    agent_with_tool.resume(paused).await.expect("the run ends");
}

/// Runs an agent that clicks the field of a page and types a secret, in one call.
async fn type_secret_on(
    browser: &Arc<windlass_computer::Browser>,
    url: &str,
    host: &str,
) -> windlass::run::RunResult {
    browser.navigate(url).await.expect("the page opens");
    let tool = ComputerTool::with_computer(browser.clone())
        .secret("password", ComputerSecret::new(PASSWORD).only_on([host]));
    let actions = json!([click_action(100, 55), { "type": "type", "text": "{{secret:password}}" }]);
    let (agent, _) = agent_with_tool(&tool, [computer_call("c1", actions), ScriptedResponse::text("done")]);
    agent.run("Sign in").await.expect("the run ends")
}

#[tokio::test]
async fn a_hostile_site_gets_no_secret_by_any_trap() {
    let pages = TestPageServer::serve().await;
    let Some(browser) = start_browser(BrowserOptions::default()).await else { return };
    let browser = Arc::new(browser);
    for seed in hostile_seeds(3) {
        let mut numbers = SeededNumbers(seed);
        for name in SECRET_TRAPS {
            let trap = add_secret_trap(&pages, &mut numbers, name);
            let outcome = type_secret_on(&browser, &trap.url, "127.0.0.1").await;
            let told = output_of(&outcome, "c1").text().into_owned();
            assert!(told.contains("is not typed here"), "{trap:?}, seed {seed}: {told}");
            let stolen = pages.requests().into_iter().find(|asked| asked.contains("/stolen"));
            assert_eq!(stolen, None, "{trap:?}, seed {seed}");
            while browser.list_tabs().await.expect("tabs").len() > 1 {
                browser.close_tab(1).await.expect("it closes");
            }
        }
    }
    browser.close().await;
}

#[tokio::test]
async fn a_secret_is_typed_into_a_frame_of_its_own_site_and_into_pages_that_this_site_wrote() {
    let pages = TestPageServer::serve().await;
    pages.add(
        "signin",
        "<style>body{margin:0}</style><input autofocus style='position:absolute;left:40px;top:40px;width:300px;height:30px' \
         oninput='fetch(\"/typed?\" + encodeURIComponent(this.value))'>",
    );
    let framed = format!(
        "<style>body{{margin:0}}</style><iframe style='border:0;width:800px;height:600px' src='{}'></iframe>",
        pages.other_site_url("signin")
    );
    pages.add("portal", &framed);
    let writer = "<input id=own style='position:absolute;left:40px;top:40px;width:300px;height:30px'><script>\
                  own.onclick = () => { const opened = open('about:blank'); opened.document.write(\
                  '<input autofocus style=\"position:absolute;left:40px;top:40px;width:300px;height:30px\">'); \
                  opened.document.close(); opened.document.querySelector('input').focus(); \
                  opened.document.querySelector('input').oninput = event => fetch('/typed?' + \
                  encodeURIComponent(event.target.value)); }</script>";
    pages.add("writer", writer);
    let Some(browser) = start_browser(BrowserOptions::default()).await else { return };
    let browser = Arc::new(browser);
    // The frame is of another site than the tab: the frame counts, not the tab.
    for (page, host, is_typed) in [
        ("portal", "localhost", true),
        ("portal", "127.0.0.1", false),
        ("writer", "127.0.0.1", true),
        ("writer", "localhost", false),
    ] {
        pages.requests.lock().expect("no panic").clear();
        let outcome = type_secret_on(&browser, &pages.url(page), host).await;
        let told = output_of(&outcome, "c1").text().into_owned();
        assert_eq!(!told.contains("is not typed here"), is_typed, "{page} {host}: {told}");
        let arrived = || pages.requests().iter().any(|asked| asked.contains("/typed?correct%20horse"));
        if is_typed {
            assert!(support::poll_until(async || arrived()).await, "{page} {host}: {:?}", pages.requests());
        } else {
            assert!(!arrived(), "{page} {host}");
        }
        while browser.list_tabs().await.expect("tabs").len() > 1 {
            browser.close_tab(1).await.expect("it closes");
        }
    }
    browser.close().await;
}

#[tokio::test]
async fn a_secret_is_masked_in_addresses_and_black_in_pictures() {
    let pages = TestPageServer::serve().await;
    let page = pages.add(
        "search",
        "<style>body{margin:0;background:#fff}</style><form action=/echo><input name=q \
         style='position:absolute;left:40px;top:40px;width:300px;height:30px;border:0;background:#fff'></form>\
         <p id=echo style='position:absolute;left:40px;top:100px;width:300px;height:40px;margin:0'></p><script>\
         document.querySelector('input').oninput = event => echo.textContent = event.target.value</script>",
    );
    let Some(browser) = start_browser(BrowserOptions::default()).await else { return };
    let browser = Arc::new(browser);
    browser.navigate(&page).await.expect("the page opens");
    let tool = ComputerTool::with_computer(browser.clone())
        .secret("password", ComputerSecret::new(PASSWORD).only_on(["127.0.0.1"]));
    let actions = json!([click_action(100, 55), { "type": "type", "text": "{{secret:password}}" }]);
    let submit = json!([{ "type": "keypress", "keys": ["ENTER"] }, { "type": "tabs" }]);
    let replies = [computer_call("c1", actions), computer_call("c2", submit), ScriptedResponse::text("done")];
    let (agent, _) = agent_with_tool(&tool, replies);
    let outcome = agent.run("Search").await.expect("the run ends");
    let tabs = output_of(&outcome, "c2").text().into_owned();
    assert!(tabs.contains("/echo?q=[secret]"), "{tabs}");
    let windlass::core::item::OutputContent::Parts(parts) = output_of(&outcome, "c1") else {
        panic!("parts")
    };
    let picture = parts.iter().find_map(|part| match part {
        windlass::core::item::ContentPart::Image(media) => media.data.clone(),
        _ => None,
    });
    let pixels = decode_pixels(&picture.expect("a picture"));
    // The field and the text that the page made of it are black, the rest is not.
    assert_eq!([pixels(100, 55), pixels(60, 110), pixels(600, 600)], [[0, 0, 0], [0, 0, 0], [255, 255, 255]]);
    browser.close().await;
}

/// The dialog that is open when the answer arrives is compared with the sites of the secret.
#[tokio::test]
async fn a_secret_for_one_question_is_not_the_answer_to_another() {
    let pages = TestPageServer::serve().await;
    let body = "<p id=echo></p><script>function ask() { setTimeout(() => echo.textContent = prompt('Who?') ?? 'nobody') }\
                </script>";
    let bank = pages.add("bank", body);
    let Some(browser) = start_browser(BrowserOptions::default()).await else { return };
    let browser = Arc::new(browser);
    let tool = ComputerTool::with_computer(browser.clone())
        .secret("login", ComputerSecret::new("ada:love").only_on(["127.0.0.1"]));
    let tool: windlass::tool::Tool = tool.browser_tool();
    for (url, is_answered) in [(pages.other_site_url("bank"), false), (bank, true)] {
        browser.navigate(&url).await.expect("the page opens");
        browser.evaluate("ask(); 1").await.expect("the page opens its dialog");
        let is_asked = async || {
            let target = browser.describe_target(TargetPlace::Dialog).await.expect("a target");
            target.element.is_some_and(|element| element.contains("Who?"))
        };
        assert!(support::poll_until(is_asked).await, "{url}");
        let sites = [AllowedSites::only(["127.0.0.1"]), AllowedSites::only(["localhost"])];
        let answered = browser.answer_dialog_with_secret(DialogAnswer::Accept, "ada:love", &sites).await;
        let refused = answered.expect_err("no site is in both lists").to_string();
        assert!(refused.contains("the secret is not entered here"), "{refused}");
        let answer = json!({ "op": "answer_dialog", "accept": true, "text": "{{secret:login}}" });
        let replies = [ScriptedResponse::call("c1", "browser", answer), ScriptedResponse::text("done")];
        let model = windlass::model::ScriptedModel::new(replies);
        let agent = windlass::agent::Agent::new("clerk").model(model).tools(tool.clone());
        let outcome = agent.run("go").await.expect("the run ends");
        let told = output_of(&outcome, "c1").text().into_owned();
        assert_eq!(!told.contains("the secret is not entered here"), is_answered, "{url}: {told}");
        let expected = if is_answered { "ada:love" } else { "nobody" };
        if !is_answered {
            browser.answer_dialog(DialogAnswer::Dismiss, None).await.expect("it is dismissed");
        }
        let is_there = async || browser.evaluate("echo.textContent").await.is_ok_and(|text| text == expected);
        assert!(support::poll_until(is_there).await, "{url}: {told}");
    }
    browser.close().await;
}

/// A page shows the secret that it was given in a field or a dialog, without the text around it.
#[tokio::test]
async fn a_secret_within_another_text_is_black_in_pictures() {
    let pages = TestPageServer::serve().await;
    let page = pages.add(
        "token",
        "<style>body{margin:0;background:#fff}</style><input id=field aria-label=Token style='position:absolute;left:40px;top:40px;\
         width:300px;height:30px;border:0;background:#fff'><p id=echo style='position:absolute;left:40px;top:100px;\
         width:300px;height:40px;margin:0'></p><script>const show = text => echo.textContent = \
         text.replace('Bearer ', ''); field.oninput = () => show(field.value); onkeydown = event => { if (event.key \
         === 'F9') setTimeout(() => show(prompt('Which token?'))); }</script>",
    );
    let Some(browser) = start_browser(BrowserOptions::default()).await else { return };
    let browser = Arc::new(browser);
    let tool = ComputerTool::with_computer(browser.clone()).secret("token", ComputerSecret::new(PASSWORD));
    let pages_tool: windlass::tool::Tool = tool.page_tool();
    let browser_tool: windlass::tool::Tool = tool.browser_tool();
    let typed = "Bearer {{secret:token}}";
    for is_dialog in [false, true] {
        browser.navigate(&page).await.expect("the page opens");
        let found = browser.find_elements("Token").await.expect("it is found");
        let is_reference = |word: &&str| {
            word.strip_prefix('e')
                .is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|one| one.is_ascii_digit()))
        };
        let element =
            found.split(|letter: char| !letter.is_alphanumeric()).find(is_reference).expect("a reference");
        let entering = match is_dialog {
            false => vec![ScriptedResponse::call(
                "c2",
                "page",
                json!({ "op": "fill", "element": element, "value": typed }),
            )],
            true => vec![
                computer_call("c1", json!([click_action(100, 55), { "type": "keypress", "keys": ["F9"] }])),
                ScriptedResponse::call(
                    "c2",
                    "browser",
                    json!({ "op": "answer_dialog", "accept": true, "text": typed }),
                ),
            ],
        };
        let model =
            windlass::model::ScriptedModel::new(entering.into_iter().chain([ScriptedResponse::text("done")]));
        let agent = windlass::agent::Agent::new("clerk")
            .model(model)
            .tools(tool.screen_tool())
            .tools(pages_tool.clone())
            .tools(browser_tool.clone());
        let outcome = agent.run("go").await.expect("the run ends");
        let told = output_of(&outcome, "c2").text().into_owned();
        let shown = async || browser.evaluate("echo.textContent").await.ok() == Some(json!(PASSWORD));
        assert!(support::poll_until(shown).await, "the page shows the secret alone: {told}");
        let picture = browser.screenshot().await.expect("a picture");
        let pixels = decode_pixels(picture.as_base64());
        assert_eq!([pixels(60, 110), pixels(600, 600)], [[0, 0, 0], [255, 255, 255]], "{told}");
    }
    browser.close().await;
}

/// Types a secret into a frame, and returns the browser and the pages when the frame has it. The frame is at (100, 100)
/// of a white page, 400 pixels wide and 200 high, and its field is in its upper left corner.
async fn type_secret_in_frame(frame: &str) -> Option<(Arc<windlass_computer::Browser>, TestPageServer)> {
    let pages = TestPageServer::serve().await;
    let echo = "<style>body{margin:0;background:#fff}</style><script>function echo(field) { \
                document.querySelector('p').textContent = field.value; fetch('/typed'); }</script>";
    pages.add("signin", &format!("{echo}{frame}"));
    let page = format!(
        "<style>body{{margin:0;background:#fff}}</style><iframe style='position:absolute;left:100px;top:100px;border:0;\
         width:400px;height:200px' src='{}'></iframe>",
        pages.other_site_url("signin")
    );
    let url = pages.add("portal", &page);
    let browser = Arc::new(start_browser(BrowserOptions::default()).await?);
    browser.navigate(&url).await.expect("the page opens");
    let tool = ComputerTool::with_computer(browser.clone())
        .secret("password", ComputerSecret::new(PASSWORD).only_on(["localhost"]));
    let actions = json!([click_action(110, 110), { "type": "type", "text": "{{secret:password}}" }]);
    let (agent, _) = agent_with_tool(&tool, [computer_call("c1", actions), ScriptedResponse::text("done")]);
    agent.run("Sign in").await.expect("the run ends");
    let arrived = async || pages.requests().iter().any(|asked| asked.ends_with("/typed"));
    assert!(support::poll_until(arrived).await, "{:?}", pages.requests());
    Some((browser, pages))
}

/// The page of a frame can keep the browser from searching it: it is then black as a whole.
#[tokio::test]
async fn a_frame_that_cannot_be_searched_is_black_as_a_whole() {
    let colours = async |browser: &windlass_computer::Browser| {
        let picture = browser.screenshot().await.expect("a picture");
        let pixels = decode_pixels(picture.as_base64());
        // Inside of the frame, at its corners, and outside.
        [pixels(300, 200), pixels(105, 295), pixels(495, 105), pixels(95, 95), pixels(600, 400)]
    };
    let (black, white) = ([0, 0, 0], [255, 255, 255]);
    let is_masked = [black, black, black, white, white];
    // The names of the fields hide the properties of the form.
    let hidden = "<form style='margin:0'><input style='width:100px;height:20px' oninput='echo(this)'>\
                  <input type=hidden name=children><p></p></form>";
    let Some((browser, _pages)) = type_secret_in_frame(hidden).await else { return };
    assert_eq!(colours(&browser).await, is_masked, "a form with a field of the name `children`");
    browser.close().await;

    let many = "<input style='width:100px;height:20px' oninput='echo(this); for (let at = 0; at < 100; at++) \
                document.body.append(document.querySelector(\"p\").cloneNode(true))'><p style='margin:0;width:9px'></p>";
    let Some((browser, _pages)) = type_secret_in_frame(many).await else { return };
    assert_eq!(colours(&browser).await, is_masked, "more elements than are looked at one by one");
    browser.close().await;

    // The frame waits for a response in its only thread.
    let busy = "<input style='width:100px;height:20px' oninput='echo(this); setTimeout(() => { const held = new \
                XMLHttpRequest(); held.open(\"GET\", \"/held\", false); held.send(); }, 100)'><p></p>";
    let Some((browser, pages)) = type_secret_in_frame(busy).await else { return };
    let is_busy = async || pages.requests().iter().any(|asked| asked.ends_with("/held"));
    assert!(support::poll_until(is_busy).await, "{:?}", pages.requests());
    assert_eq!(colours(&browser).await, is_masked, "a frame that does not respond");
    let text = browser.read_page(&PageReading::default()).await.expect("the rest of the page is read");
    assert!(text.contains("frame that cannot be read"), "{text}");
    pages.released.send_replace(true);
    let is_back = async || colours(&browser).await == [white, white, white, white, white];
    assert!(support::poll_until(is_back).await, "only the secret is black when the frame responds again");
    browser.close().await;
}

/// Decodes a picture and returns the function from positions to colours.
fn decode_pixels(base64: &str) -> impl Fn(usize, usize) -> [u8; 3] + use<> {
    let png = windlass_computer::Screenshot::from_base64(base64).to_png();
    let mut decoder = png::Decoder::new(std::io::Cursor::new(png));
    decoder.set_transformations(png::Transformations::EXPAND);
    let mut reader = decoder.read_info().expect("a picture");
    let mut bytes = vec![0; reader.output_buffer_size().expect("a size")];
    let info = reader.next_frame(&mut bytes).expect("pixels");
    move |x, y| {
        let at = y * info.line_size + x * info.color_type.samples();
        [bytes[at], bytes[at + 1], bytes[at + 2]]
    }
}
