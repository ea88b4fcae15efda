//! An approval and a reviewer's verdict hold for what was seen: address, frame, element and picture. The
//! computer is a real Chromium.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

#[path = "support/paper.rs"]
mod paper;
mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use paper::{
    RecordingComputer, agent_with_tool, call_with_safety_check, click_action, computer_call, image_count,
    output_of,
};
use serde_json::{Value, json};
use support::hostile::{CLICK_TRAPS, SeededNumbers, add_click_trap, hostile_seeds};
use support::{TestPageServer, point_at, poll_until, start_browser};
use windlass::agent::Agent;
use windlass::artefact::fetch_media;
use windlass::core::item::OutputContent;
use windlass::core::run::ApprovalRequirement;
use windlass::model::{ScriptedModel, ScriptedResponse};
use windlass::store::{MemoryStore, Store};
use windlass::tool::{Tool, fetch_evidence};
use windlass_computer::{
    ActionVerdict, Browser, BrowserOptions, Computer, ComputerTool, KeyChord, MouseButton, PausePolicy,
    PrivateNetworkPolicy, SafetyCheckDecision, TargetPlace, UploadPolicy,
};

/// A page with a button in a form, and the same page in a frame of another site.
const SHOP: &str = "<style>body{margin:0}</style><form id=pay action=/sent method=post><p id=what>Pay for \
                    one book</p><input type=hidden name=amount value=40><button style='position:absolute;left:40px;\
                    top:40px;width:200px;height:40px'>Pay €40</button></form>";

/// Opens the shop in a shared browser and runs an agent until it waits for the approval of a click.
async fn run_until_approval(
    pages: &TestPageServer,
    url: &str,
    actions: Value,
) -> Option<(Arc<Browser>, Agent, windlass::run::PausedRun)> {
    pages.add("shop", SHOP);
    let browser = Arc::new(start_browser(BrowserOptions::default()).await?);
    browser.navigate(url).await.expect("the page opens");
    let tool = ComputerTool::with_computer(browser.clone()).approve_if(|_| true);
    let (agent, _) = agent_with_tool(&tool, [computer_call("c1", actions), ScriptedResponse::text("done")]);
    let paused = agent.run("go").await.expect("the run pauses").into_paused().expect("it waits");
    Some((browser, agent, paused))
}

#[tokio::test]
async fn an_approved_click_lands_on_what_was_seen_or_nowhere() {
    let pages = TestPageServer::serve().await;
    pages.add(
        "other",
        "<button style='position:absolute;left:40px;top:40px;width:200px;height:40px'>Pay €40</button>",
    );
    let framed = format!(
        "<style>body{{margin:0}}</style><iframe style='border:0;width:600px;height:400px' src='{}'></iframe>",
        pages.other_site_url("shop")
    );
    pages.add("frame", &framed);
    let (shop, frame) = (pages.url("shop"), pages.url("frame"));
    for (url, change, expected) in [
        (&shop, "1".to_owned(), None),
        (&frame, "1".to_owned(), None),
        (&shop, format!("location.href = '{}'", pages.url("other")), Some("the page was")),
        (
            &shop,
            "document.querySelector('button').textContent = 'Pay €4000'".to_owned(),
            Some("the element was"),
        ),
        (&shop, "document.querySelector('button').outerHTML = ''".to_owned(), Some("the element was")),
        (&shop, "what.textContent = 'Delete everything'".to_owned(), Some("the text around")),
        (&shop, "document.querySelector('input').value = 4000".to_owned(), Some("other values")),
        (&shop, "pay.action = '/elsewhere'".to_owned(), Some("the element was")),
        (
            &frame,
            format!("document.querySelector('iframe').src = '{}'", pages.url("shop")),
            Some("the frame was"),
        ),
    ] {
        let before = pages.submissions().len();
        let Some((browser, agent, mut paused)) =
            run_until_approval(&pages, url, json!([click_action(100, 60)])).await
        else {
            return;
        };
        let at = || TargetPlace::At(point_at(100, 60));
        let before_change = browser.describe_target(at()).await.expect("a target");
        browser.evaluate(&format!("{change}; 1")).await.ok();
        // The navigation of a frame takes its time, and nobody waits for it before the click.
        if expected.is_some() {
            let is_changed = poll_until(async || match browser.describe_target(at()).await {
                Ok(now) => now != before_change,
                Err(_) => false,
            });
            assert!(is_changed.await, "{change}");
        }
        paused.approve("c1").expect("a person approves");
        let outcome = agent.resume(paused).await.expect("the run ends");
        let output = output_of(&outcome, "c1");
        match expected {
            None => {
                assert_eq!(pages.submissions().len(), before + 1, "{url} {change}: {}", output.text());
            }
            Some(why) => {
                assert_eq!(pages.submissions().len(), before, "{url} {change}");
                assert!(output.text().contains(why), "{change}: {}", output.text());
                assert!(matches!(output, OutputContent::Parts(_)), "the model is shown the screen");
            }
        }
        browser.close().await;
    }
}

#[tokio::test]
async fn a_hostile_site_gets_no_click_by_any_trap() {
    let pages = TestPageServer::serve().await;
    let Some(browser) = start_browser(BrowserOptions::default()).await else { return };
    let browser = Arc::new(browser);
    // The ways to act at a place: by naming it, at the pointer, and at the end of a path.
    let ways = [
        json!([click_action(120, 70)]),
        json!([{ "action": "left_click" }]),
        json!([{ "action": "left_mouse_down" }]),
        json!([{ "type": "drag", "path": [[1000, 700], [120, 70]] }]),
    ];
    for seed in hostile_seeds(ways.len() as u64) {
        let mut numbers = SeededNumbers(seed);
        let way = &ways[seed as usize % ways.len()];
        for name in CLICK_TRAPS {
            let url = add_click_trap(&pages, &mut numbers, name);
            browser.navigate(&url).await.expect("the page opens");
            browser.move_to(point_at(120, 70), &KeyChord::EMPTY).await.expect("the pointer moves");
            let tool = ComputerTool::with_computer(browser.clone()).approve_if(|_| true);
            let replies = [computer_call("c1", way.clone()), ScriptedResponse::text("done")];
            let (agent, _) = agent_with_tool(&tool, replies);
            let mut paused = agent.run("go").await.expect("the run pauses").into_paused().expect("it waits");
            let at = || TargetPlace::At(point_at(120, 70));
            let seen = browser.describe_target(at()).await.expect("a target");
            browser.evaluate("spring(); 1").await.ok();
            let is_sprung = poll_until(async || match browser.describe_target(at()).await {
                Ok(now) => now != seen,
                Err(_) => false,
            });
            assert!(is_sprung.await, "{name}, seed {seed}, {way}");
            paused.approve("c1").expect("a person approves");
            let outcome = agent.resume(paused).await.expect("the run ends");
            let told = output_of(&outcome, "c1").text().into_owned();
            let is_refused = told.contains("not the one that this call was decided for");
            assert!(is_refused, "{name}, seed {seed}, {way}: {told}");
            let stolen = pages.requests().into_iter().find(|asked| asked.contains("/stolen"));
            assert_eq!((stolen, pages.submissions().len()), (None, 0), "{name}, seed {seed}");
            browser.answer_dialog(windlass_computer::DialogAnswer::Dismiss, None).await.ok();
        }
    }
    browser.close().await;
}

#[tokio::test]
async fn the_later_actions_of_an_approved_call_stop_where_the_page_changes() {
    let pages = TestPageServer::serve().await;
    let actions = json!([click_action(100, 55), { "type": "type", "text": "Ada" }, click_action(100, 205), click_action(100, 55)]);
    let Some((browser, agent, mut paused)) =
        run_until_approval(&pages, &pages.url("form.html"), actions).await
    else {
        return;
    };
    paused.approve("c1").expect("a person approves");
    let outcome = agent.resume(paused).await.expect("the run ends");
    assert_eq!(pages.submissions(), ["name=Ada&note="], "what was seen is done");
    let text = output_of(&outcome, "c1").text().into_owned();
    assert!(text.contains("`actions[3]`") && text.contains("the page was"), "{text}");
    browser.close().await;
}

#[tokio::test]
async fn a_target_is_described_with_its_own_page_also_while_pages_change() {
    let pages = TestPageServer::serve().await;
    for (page, other) in [("left", "right"), ("right", "left")] {
        let body = format!(
            "<button style='position:absolute;left:40px;top:40px;width:200px;height:40px'>{page}</button><script>\
             setTimeout(() => location.href = '/{other}', Math.random() * 60)</script>"
        );
        pages.add(page, &body);
    }
    let Some(browser) = start_browser(BrowserOptions::default()).await else { return };
    browser.navigate(&pages.url("left")).await.expect("the page opens");
    let mut described = 0;
    for _ in 0..200 {
        // A page that does not come to rest is not described at all.
        let Ok(target) = browser.describe_target(TargetPlace::At(point_at(100, 60))).await else { continue };
        let (Some(address), Some(element)) = (&target.address, &target.element) else { continue };
        let page = address.rsplit('/').next().unwrap_or_default();
        assert_eq!(*element, format!("button \"{page}\""), "{target:?}");
        described += 1;
        if described == 40 {
            break;
        }
    }
    assert!(described > 0, "pages that come and go are described");
    browser.close().await;
}

#[tokio::test]
async fn the_default_keeps_the_browser_while_a_person_decides() {
    let pages = TestPageServer::serve().await;
    let page = pages.add("shop", SHOP);
    for (policy, submissions) in [(None, 1), (Some(PausePolicy::Dispose), 1)] {
        let options = BrowserOptions {
            start_url: Some(pages.url("form.html")),
            private_networks: PrivateNetworkPolicy::Allow,
            ..BrowserOptions::default()
        };
        if start_browser(BrowserOptions::default()).await.is_none() {
            return;
        }
        let mut tool = ComputerTool::with_provider(Browser::provider(options))
            .approve_if(|actions| actions.iter().any(|action| action.kind() == "click"));
        if let Some(policy) = policy {
            tool = tool.on_pause(policy);
        }
        let (agent, model) = agent_with_tool(
            &tool,
            [
                computer_call("c1", json!([{ "type": "navigate", "url": page }])),
                computer_call("c2", json!([click_action(100, 60)])),
                ScriptedResponse::text("done"),
            ],
        );
        let mut paused = agent.run("go").await.expect("the run pauses").into_paused().expect("it waits");
        paused.approve("c2").expect("a person approves");
        let outcome = agent.resume(paused).await.expect("the run ends");
        assert_eq!(pages.submissions().len(), submissions, "{policy:?}");
        let text = output_of(&outcome, "c2").text().into_owned();
        assert_eq!(text.contains("Nothing of this call was done"), policy.is_some(), "{text}");
        assert_eq!(image_count(&model.requests()[2].input), 2, "the model sees the screen in any case");
    }
}

#[tokio::test]
async fn a_person_is_shown_the_address_the_element_and_the_picture() {
    let pages = TestPageServer::serve().await;
    let page = pages.add("shop", SHOP);
    let Some(browser) = start_browser(BrowserOptions::default()).await else { return };
    browser.navigate(&page).await.expect("the page opens");
    let browser = Arc::new(browser);
    let tool = ComputerTool::with_computer(browser.clone()).approve_if(|_| true);
    let (agent, _) = agent_with_tool(
        &tool,
        [computer_call("c1", json!([click_action(100, 60)])), ScriptedResponse::text("ok")],
    );
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let run = agent.run("go").store(store.clone()).run_id("shown");
    let paused = run.await.expect("the run pauses").into_paused().expect("it waits");
    let call = paused.pending_calls()[0].path.clone();
    let evidence = fetch_evidence(&*store, &"shown".into(), &call).await.expect("the store answers");
    let evidence = evidence.expect("the tool saved it");
    for shown in [page.as_str(), "button \"Pay €40\"", "of the form for", "is kept for 3600 seconds"] {
        assert!(evidence.summary.contains(shown), "{shown}: {}", evidence.summary);
    }
    assert_eq!(evidence.details["address"], page.as_str());
    let picture = evidence.picture.clone().and_then(|picture| picture.url).expect("a picture");
    let picture = fetch_media(&*store, &picture).await.expect("the store answers").expect("it is there");
    let picture = windlass_computer::Screenshot::from_base64(picture);
    assert_eq!(picture.size(), Some((1280, 800)));
    assert_eq!(evidence.details["picture"], picture.digest().to_string());
    assert!(evidence.summary.contains(&picture.digest().to_string()));
    browser.close().await;
}

/// Runs an agent with a tool that waits for the approval of a click, and returns the evidence of the call.
async fn run_to_evidence(tool: Tool) -> (Agent, windlass::run::PausedRun, windlass::tool::CallEvidence) {
    run_call_to_evidence(tool, computer_call("c1", json!([click_action(1, 2)]))).await
}

/// Runs an agent with a tool that waits for the approval of the call `c1`, and returns the evidence of the call.
async fn run_call_to_evidence(
    tool: Tool,
    call: ScriptedResponse,
) -> (Agent, windlass::run::PausedRun, windlass::tool::CallEvidence) {
    let agent =
        Agent::new("clerk").model(ScriptedModel::new([call, ScriptedResponse::text("done")])).tools(tool);
    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let run = agent.run("go").store(store.clone()).run_id("shown");
    let paused = run.await.expect("the run pauses").into_paused().expect("it waits");
    let call = paused.pending_calls()[0].path.clone();
    let evidence = fetch_evidence(&*store, &"shown".into(), &call).await.expect("the store answers");
    (agent, paused, evidence.expect("the tool saved it"))
}

#[tokio::test]
async fn whoever_requires_an_approval_the_person_sees_the_screen_and_the_click_is_bound_to_it() {
    let gates: [fn(Tool) -> Tool; 6] = [
        Tool::needs_approval,
        Tool::needs_approval_each_time,
        |tool| tool.needs_approval_if(|_: &windlass_computer::ComputerCall| true),
        |tool| tool.needs_approval_unless(|_| Some(ApprovalRequirement::Required)),
        |tool| tool.also_needs_approval_each_time_if(|_| true),
        |tool| tool.needs_approval_each_time().also_needs_approval_each_time_if(|_| true),
    ];
    for (place, gate) in gates.into_iter().enumerate() {
        for (later, expected) in [("button \"Pay €40\"", 1), ("button \"Pay €4000\"", 0)] {
            let paper = RecordingComputer::default();
            paper.show_element("button \"Pay €40\"");
            let tool = gate(ComputerTool::with_computer(Arc::new(paper.clone())).screen_tool());
            let (agent, mut paused, evidence) = run_to_evidence(tool).await;
            assert!(evidence.summary.contains("button \"Pay €40\""), "{place}: {}", evidence.summary);
            assert!(evidence.picture.is_some(), "{place}");
            // The person decides within a moment, and the screen changes meanwhile.
            paper.show_element(later);
            paused.approve("c1").expect("a person approves");
            let outcome = agent.resume(paused).await.expect("the run ends");
            let told = output_of(&outcome, "c1").text().into_owned();
            assert_eq!(paper.operations().len(), expected, "{place}: {told}");
            let is_refused = told.contains("the element was button \"Pay €40\"");
            assert_eq!(is_refused, expected == 0, "{place}: {told}");
        }
    }
}

/// Approves the call `c1` and returns what the model is told.
async fn approve_call(agent: &Agent, mut paused: windlass::run::PausedRun) -> String {
    paused.approve("c1").expect("a person approves");
    let outcome = agent.resume(paused).await.expect("the run ends");
    output_of(&outcome, "c1").text().into_owned()
}

/// Returns the reference of the element that a query finds.
async fn find_reference(browser: &Browser, query: &str) -> String {
    let found = browser.find_elements(query).await.expect("it is found");
    found.split(['[', ']']).nth(1).expect("a reference").to_owned()
}

/// Opens a page in a new tab, which becomes the current one.
async fn open_tab_at(browser: &Browser, url: &str) {
    browser.open_unchecked_tab(url).await.expect("the browser opens it");
    let is_current = poll_until(async || {
        let tabs = browser.list_tabs().await.expect("tabs");
        tabs.iter().any(|tab| tab.is_current && tab.url == url)
    });
    assert!(is_current.await, "{url}");
}

#[tokio::test]
async fn an_element_of_another_tab_is_neither_clicked_nor_filled_in() {
    let pages = TestPageServer::serve().await;
    let button = |name: &str, path: &str| {
        format!(
            "<style>body{{margin:0}}</style><button onclick=\"fetch('{path}')\" style='position:absolute;left:40px;\
             top:40px;width:200px;height:40px'>{name}</button>"
        )
    };
    let fields = "<input id=own aria-label=Code style='position:absolute;left:40px;top:140px'>\
                  <input id=file type=file aria-label=CV style='position:absolute;left:40px;top:240px'>";
    let first = pages.add("first", &format!("{}{fields}", button("Cancel", "/cancelled")));
    let second = pages.add("second", &button("Pay", "/paid"));
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("cv.txt"), "a life").expect("a file");
    let uploads = UploadPolicy::From(folder.path().to_owned());
    let Some(browser) = start_browser(BrowserOptions { uploads, ..BrowserOptions::default() }).await else {
        return;
    };
    let browser = Arc::new(browser);
    browser.navigate(&first).await.expect("the page opens");
    let cancel = find_reference(&browser, "Cancel").await;
    let (code, cv) = (find_reference(&browser, "Code").await, find_reference(&browser, "CV").await);
    let tool = || ComputerTool::with_computer(browser.clone()).page_tool::<()>().needs_approval();
    let click = || ScriptedResponse::call("c1", "page", json!({ "op": "click", "element": cancel }));

    // The page opens the tab while a person decides, and before.
    let (agent, paused, evidence) = run_call_to_evidence(tool(), click()).await;
    assert!(evidence.summary.contains("button \"Cancel\""), "{}", evidence.summary);
    open_tab_at(&browser, &second).await;
    let told = approve_call(&agent, paused).await;
    assert!(told.contains("Nothing of it was done"), "{told}");
    let (agent, paused, evidence) = run_call_to_evidence(tool(), click()).await;
    assert!(!evidence.summary.contains("Cancel"), "nobody sees that tab: {}", evidence.summary);
    let told = approve_call(&agent, paused).await;
    assert!(told.contains("could not be described"), "{told}");

    // Nor without any approval.
    let none = &KeyChord::EMPTY;
    let files = ["cv.txt".to_owned()];
    for refused in [
        browser.click_element(&cancel, MouseButton::Left, 1, none).await,
        browser.hover_element(&cancel).await,
        browser.scroll_to_element(&cancel).await,
        browser.fill_field(&code, "1234", &[]).await,
        browser.upload_files(Some(&cv), &files).await,
    ] {
        let refused = refused.expect_err("it is in another tab").to_string();
        assert!(refused.contains("another tab"), "{refused}");
    }

    browser.switch_tab(0).await.expect("the tab is there");
    let (agent, paused, _) = run_call_to_evidence(tool(), click()).await;
    approve_call(&agent, paused).await;
    let asked = |path: &str| pages.requests().iter().any(|asked| asked.ends_with(path));
    assert!(poll_until(async || asked("/cancelled")).await, "in its own tab it is clicked");
    assert!(!asked("/paid"));
    let values = browser.evaluate("[own.value, file.files.length]").await.expect("values");
    assert_eq!(values, json!(["", 0]));
    browser.close().await;
}

#[tokio::test]
async fn files_go_to_the_field_that_the_person_saw() {
    let pages = TestPageServer::serve().await;
    let field = |name: &str, top: u32| {
        format!(
            "<input type=file aria-label={name} id={name} onchange=\"fetch('/taken-by-{name}')\" \
             style='position:absolute;left:40px;top:{top}px;width:300px;height:30px'>"
        )
    };
    pages.add("thief", &format!("<style>body{{margin:0}}</style>{}", field("Backup", 10)));
    let frame = format!(
        "<iframe style='position:absolute;left:0;top:200px;border:0;width:600px;height:200px' src='{}'></iframe>",
        pages.other_site_url("thief")
    );
    let url = pages.add("cv", &format!("<style>body{{margin:0}}</style>{}{frame}", field("CV", 40)));
    let other = pages.add("shop", SHOP);
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("cv.txt"), "a life").expect("a file");
    let uploads = UploadPolicy::From(folder.path().to_owned());
    let Some(browser) = start_browser(BrowserOptions { uploads, ..BrowserOptions::default() }).await else {
        return;
    };
    let browser = Arc::new(browser);
    browser.navigate(&url).await.expect("the page opens");
    let choose = async |y: u32, shown: &str| {
        // A click before the frame is shown does not reach it.
        let is_asked = async || {
            browser
                .click(Some(point_at(60, y)), MouseButton::Left, 1, &KeyChord::EMPTY)
                .await
                .expect("a click");
            let target = browser.describe_target(TargetPlace::FileChooser).await.expect("a target");
            target.element.is_some_and(|element| element.contains(shown))
        };
        assert!(poll_until(is_asked).await, "{shown}");
    };
    let tool = || ComputerTool::with_computer(browser.clone()).browser_tool::<()>().needs_approval();
    let upload = || ScriptedResponse::call("c1", "browser", json!({ "op": "upload", "files": ["cv.txt"] }));
    let taken =
        || pages.requests().into_iter().filter(|asked| asked.contains("/taken-by-")).collect::<Vec<_>>();

    // A frame of another site takes the place of the field while the person decides.
    choose(55, "CV").await;
    let (agent, paused, evidence) = run_call_to_evidence(tool(), upload()).await;
    assert!(evidence.summary.contains("file \"CV\" on http://127.0.0.1"), "{}", evidence.summary);
    choose(225, "Backup").await;
    let told = approve_call(&agent, paused).await;
    assert!(told.contains("the frame was nothing and is http://localhost"), "{told}");

    // The person sees whose field it is.
    let (_, _, evidence) = run_call_to_evidence(tool(), upload()).await;
    let shown = format!("file \"Backup\" on {url}, in the frame {}", pages.other_site_url("thief"));
    assert!(evidence.summary.contains(&shown), "{}", evidence.summary);

    // The chooser of a tab is not that of the tab that is seen.
    open_tab_at(&browser, &other).await;
    let (agent, paused, evidence) = run_call_to_evidence(tool(), upload()).await;
    assert!(!evidence.summary.contains("Backup"), "{}", evidence.summary);
    let told = approve_call(&agent, paused).await;
    assert!(told.contains("no page asks for a file"), "{told}");
    assert_eq!(taken(), Vec::<String>::new());

    browser.switch_tab(0).await.expect("the tab is there");
    choose(55, "CV").await;
    let (agent, paused, _) = run_call_to_evidence(tool(), upload()).await;
    let told = approve_call(&agent, paused).await;
    assert!(poll_until(async || taken().len() == 1).await, "{told}");
    assert!(taken()[0].ends_with("/taken-by-CV"), "{:?}", taken());
    browser.close().await;
}

#[tokio::test]
async fn the_keys_of_an_approved_call_go_to_what_was_seen_or_nowhere() {
    let pages = TestPageServer::serve().await;
    let field = "position:absolute;left:40px;top:40px;width:300px;height:30px";
    pages.add(
        "thief",
        "<style>body{margin:0}</style><input id=field autofocus><script>field.oninput = () => \
         fetch('/stolen?' + field.value)</script>",
    );
    let form = format!(
        "<style>body{{margin:0}}</style><form action=/sent method=post><input name=name aria-label=Name style='{field}'>\
         </form><button onclick=\"fetch('/stolen?pressed')\" style='position:absolute;left:40px;top:140px'>Delete</button>"
    );
    let moving = format!(
        "{form}<iframe style='position:absolute;left:0;top:300px' src='{}'></iframe><script>\
         document.querySelector('input').onfocus = () => setTimeout(() => document.querySelector('iframe').focus())\
         </script>",
        pages.other_site_url("thief")
    );
    let (still, moving) = (pages.add("still", &form), pages.add("moving", &moving));
    let Some(browser) = start_browser(BrowserOptions::default()).await else { return };
    let browser = Arc::new(browser);
    let key = |name: &str| json!({ "type": "keypress", "keys": [name] });
    let typed = json!({ "type": "type", "text": "Ada" });
    let click = click_action(100, 55);
    for (url, actions, expected, sent) in [
        (&still, json!([click, typed, key("Enter")]), None, 1),
        (&still, json!([click, key("Tab"), key("Enter")]), Some("nobody has seen the element"), 0),
        (
            &still,
            json!([click, { "type": "type", "text": "Ada\t" }, key("Enter")]),
            Some("nobody has seen"),
            0,
        ),
        (&moving, json!([click, typed]), Some("the keys would go to"), 0),
    ] {
        let before = pages.submissions().len();
        browser.navigate(url).await.expect("the page opens");
        let tool = ComputerTool::with_computer(browser.clone()).screen_tool().needs_approval();
        let (agent, paused, evidence) =
            run_call_to_evidence(tool, computer_call("c1", actions.clone())).await;
        let told = approve_call(&agent, paused).await;
        assert_eq!(pages.submissions().len(), before + sent, "{actions}: {told}");
        match expected {
            Some(why) => assert!(told.contains(why), "{actions}: {told}"),
            None => assert!(!told.contains("failed"), "{actions}: {told}"),
        }
        let is_named = evidence.summary.contains("keypress Enter: not done in this call");
        assert_eq!(is_named, expected.is_some_and(|why| why.contains("nobody")), "{}", evidence.summary);
        let stolen = pages.requests().into_iter().find(|asked| asked.contains("/stolen"));
        assert_eq!(stolen, None, "{actions}: {told}");
    }
    browser.close().await;
}

#[tokio::test]
async fn the_picture_shows_what_the_approval_is_bound_to() {
    let paper = RecordingComputer::default();
    paper.show_element("button \"Cancel\"");
    // The page is replaced after it was described, before its picture is taken.
    paper.later_elements.lock().expect("no panic").push_back("button \"Pay €40\"".to_owned());
    let tool = ComputerTool::with_computer(Arc::new(paper.clone())).screen_tool().needs_approval();
    let (agent, mut paused, evidence) = run_to_evidence(tool).await;
    assert!(evidence.summary.contains("button \"Pay €40\""), "{}", evidence.summary);
    paused.approve("c1").expect("a person approves");
    agent.resume(paused).await.expect("the run ends");
    assert_eq!(paper.operations(), ["click (1, 2) 1"]);

    // A screen that never comes to rest is not approved by a picture of something else.
    let paper = RecordingComputer::default();
    let endless = (0..100).map(|number| format!("button \"{number}\""));
    paper.later_elements.lock().expect("no panic").extend(endless);
    let tool = ComputerTool::with_computer(Arc::new(paper.clone())).screen_tool().needs_approval();
    let (agent, mut paused, evidence) = run_to_evidence(tool).await;
    assert!(evidence.summary.contains("did not come to rest"), "{}", evidence.summary);
    paused.approve("c1").expect("a person approves");
    agent.resume(paused).await.expect("the run ends");
    assert!(paper.operations().is_empty());
}

/// A caret that blinks changes the picture around it and back.
#[tokio::test(start_paused = true)]
async fn a_blinking_caret_refuses_no_approved_click() {
    for (fingerprints, phase, clicks) in
        [(["dark", "light"], 0, 1), (["dark", "light"], 1, 1), (["other", "another"], 0, 0)]
    {
        let paper = RecordingComputer::default();
        paper.fingerprints.lock().expect("no panic").extend(["dark".to_owned(), "light".to_owned()]);
        let tool = ComputerTool::with_computer(Arc::new(paper.clone())).screen_tool().needs_approval();
        let (agent, mut paused, _) = run_to_evidence(tool).await;
        {
            // The phase of the caret is another one than the picture shows.
            let mut phases = paper.fingerprints.lock().expect("no panic");
            phases.clear();
            phases.extend(fingerprints.map(str::to_owned));
            phases.rotate_left(phase);
        }
        paused.approve("c1").expect("a person approves");
        let outcome = agent.resume(paused).await.expect("the run ends");
        assert_eq!(paper.operations().len(), clicks, "{}", output_of(&outcome, "c1").text());
    }
}

#[tokio::test]
async fn the_reviewer_sees_what_the_action_would_hit_and_is_asked_once() {
    let pages = TestPageServer::serve().await;
    let page = pages.add("shop", SHOP);
    let Some(browser) = start_browser(BrowserOptions::default()).await else { return };
    browser.navigate(&page).await.expect("the page opens");
    let browser = Arc::new(browser);
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let (told, changed) = (seen.clone(), browser.clone());
    let tool = ComputerTool::with_computer(browser.clone()).review_actions(move |proposed| {
        let target = proposed.target.clone().unwrap_or_default();
        let picture = proposed.screenshot.as_ref().map(|picture| picture.digest());
        assert_eq!(picture, proposed.picture_digest);
        assert!(picture.is_some(), "there is a picture");
        told.lock().expect("no panic").push(format!("{} | {target}", proposed.address.unwrap_or_default()));
        let (count, browser) = (told.lock().expect("no panic").len(), changed.clone());
        async move {
            // A page that changes while it is judged is not clicked.
            if count == 1 {
                browser.evaluate("what.textContent = 'Delete everything'").await.expect("it changes");
            }
            if count == 3 { ActionVerdict::AskPerson } else { ActionVerdict::Allow }
        }
    });
    let click = |id: &str| computer_call(id, json!([click_action(100, 60)]));
    let (agent, _) =
        agent_with_tool(&tool, [click("c1"), click("c2"), click("c3"), ScriptedResponse::text("ok")]);
    let mut paused = agent.run("go").await.expect("the run pauses").into_paused().expect("it waits");
    assert_eq!(pages.submissions().len(), 1, "the first was withheld, the second done");
    paused.approve("c3").expect("a person approves");
    let outcome = agent.resume(paused).await.expect("the run ends");
    assert!(output_of(&outcome, "c1").text().contains("the text around"));
    let seen = seen.lock().expect("no panic").clone();
    assert_eq!(seen.len(), 3, "each call is judged once, also after a person decided: {seen:?}");
    let shown = format!("{page} | button \"Pay €40\" of the form for {} on {page}", pages.url("sent"));
    assert_eq!(seen[..2], [shown.clone(), shown]);
    browser.close().await;
}

#[tokio::test]
async fn a_safety_check_is_asked_about_once_and_the_person_has_the_last_word() {
    let paper = RecordingComputer::default();
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let tool = ComputerTool::with_computer(Arc::new(paper.clone())).on_safety_check(move |_| {
        let count = counted.fetch_add(1, Ordering::SeqCst);
        async move {
            // A service that would answer otherwise the second time.
            match count {
                0 => SafetyCheckDecision::AskPerson,
                _ => SafetyCheckDecision::Refused("not again".to_owned()),
            }
        }
    });
    let (agent, _) = agent_with_tool(&tool, [call_with_safety_check("c1"), ScriptedResponse::text("done")]);
    let mut paused = agent.run("go").await.expect("the run pauses").into_paused().expect("it waits");
    paused.approve("c1").expect("a person approves");
    agent.resume(paused).await.expect("the run ends");
    assert_eq!(asked.load(Ordering::SeqCst), 1);
    assert_eq!(paper.operations(), ["click (1, 2) 1"], "the person's decision stands");
}
