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
use windlass::model::{ScriptedModel, ScriptedResponse};
use windlass::store::{MemoryStore, Store};
use windlass::tool::{Tool, fetch_evidence};
use windlass_computer::{
    ActionVerdict, Browser, BrowserOptions, Computer, ComputerTool, PausePolicy, PrivateNetworkPolicy,
    SafetyCheckDecision, TargetPlace,
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
    for seed in hostile_seeds(2) {
        let mut numbers = SeededNumbers(seed);
        for name in CLICK_TRAPS {
            let url = add_click_trap(&pages, &mut numbers, name);
            browser.navigate(&url).await.expect("the page opens");
            let tool = ComputerTool::with_computer(browser.clone()).approve_if(|_| true);
            let replies =
                [computer_call("c1", json!([click_action(120, 70)])), ScriptedResponse::text("done")];
            let (agent, _) = agent_with_tool(&tool, replies);
            let mut paused = agent.run("go").await.expect("the run pauses").into_paused().expect("it waits");
            let at = || TargetPlace::At(point_at(120, 70));
            let seen = browser.describe_target(at()).await.expect("a target");
            browser.evaluate("spring(); 1").await.ok();
            let is_sprung = poll_until(async || match browser.describe_target(at()).await {
                Ok(now) => now != seen,
                Err(_) => false,
            });
            assert!(is_sprung.await, "{name}, seed {seed}");
            paused.approve("c1").expect("a person approves");
            let outcome = agent.resume(paused).await.expect("the run ends");
            let told = output_of(&outcome, "c1").text().into_owned();
            let is_refused = told.contains("not the one that this call was decided for");
            assert!(is_refused, "{name}, seed {seed}: {told}");
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
    let click = computer_call("c1", json!([click_action(1, 2)]));
    let agent =
        Agent::new("clerk").model(ScriptedModel::new([click, ScriptedResponse::text("done")])).tools(tool);
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
        |tool| tool.needs_approval_unless(|_| Some(false)),
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
