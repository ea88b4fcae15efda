//! A real Chromium restricted to an allow list of sites: `127.0.0.1` is listed, `localhost` is not, and both
//! reach the same server, which records its requests.

#![expect(clippy::expect_used, clippy::panic, reason = "a failed precondition fails the test")]

mod support;

use std::collections::BTreeSet;

use support::hostile::{SeededNumbers, WAYS_OUT, add_visit_lure, hostile_seeds};
use support::{TestPageServer, point_at, poll_until, start_browser, take_screenshot};
use windlass_computer::{
    AllowedSites, Browser, BrowserOptions, Computer, HistoryNavigation, KeyChord, MouseButton,
    ThirdPartyPolicy,
};

async fn restricted_browser(pages: &TestPageServer, elsewhere: ThirdPartyPolicy) -> Option<Browser> {
    let sites = AllowedSites::only([format!("127.0.0.1:{}", pages.port)]);
    start_browser(BrowserOptions {
        allowed_sites: sites,
        third_party: elsewhere,
        ..BrowserOptions::default()
    })
    .await
}

/// Returns the requests that reached the site that is not listed.
fn requests_to_unlisted(pages: &TestPageServer) -> BTreeSet<String> {
    let requests = pages.requests();
    requests
        .iter()
        .filter_map(|asked| asked.strip_prefix("localhost")?.split_once('/'))
        .map(|(_, path)| path.into())
        .collect()
}

#[tokio::test]
async fn only_listed_sites_are_visited_by_whatever_way() {
    let pages = TestPageServer::serve().await;
    let Some(browser) = restricted_browser(&pages, ThirdPartyPolicy::AllowAll).await else { return };
    let elsewhere = format!("http://localhost:{}/form.html", pages.port);
    let refused = browser.navigate(&elsewhere).await.expect_err("it is not listed");
    assert!(refused.to_string().contains("localhost"), "{refused}");
    browser.navigate("file:///etc/passwd").await.expect_err("it is no page");
    browser.navigate(&pages.url("play.html")).await.expect("it is listed");
    let refused =
        browser.navigate(&pages.url("away")).await.expect_err("it sends on to a site that is not listed");
    assert!(refused.to_string().contains("localhost"), "{refused}");
    assert_eq!(
        browser.evaluate("document.title").await.expect("a title"),
        "Play",
        "the page is where it was"
    );

    let form = |more: &str| {
        format!(
            "const f = document.createElement('form'); f.action = '{elsewhere}'; f.method = 'post'; {more}; \
             document.body.append(f); f.submit();"
        )
    };
    let frame =
        |more: &str| format!("const f = document.createElement('iframe'); {more}; document.body.append(f);");
    for script in [
        "document.getElementById('away').click()".to_owned(),
        format!("location.href = '{elsewhere}';"),
        format!("location.replace('{elsewhere}');"),
        "location.href = '/away';".to_owned(),
        format!("window.open('{elsewhere}');"),
        format!(
            "document.getElementById('tab').href = '{elsewhere}'; document.getElementById('tab').click()"
        ),
        form(""),
        form("f.target = '_blank'"),
        frame(&format!("f.src = '{elsewhere}'")),
        frame("f.src = '/away'"),
        frame(&format!("f.srcdoc = `<meta http-equiv=refresh content='0;url={elsewhere}'>`")),
        frame(&format!("f.srcdoc = `<script>top.location.href = '{elsewhere}'</script>`")),
    ] {
        // No refused navigation is still in progress: the current page is the one that was navigated to.
        browser.navigate(&pages.url("play.html")).await.expect("it is listed");
        assert_eq!(browser.evaluate("document.title").await.expect("a title"), "Play", "{script}");
        browser.take_notices();
        // A click is needed, because pages may not open tabs without a user gesture.
        let wired = format!("document.getElementById('menu').onclick = () => {{ {script} }}; 1");
        browser.evaluate(&wired).await.expect("the script runs");
        browser
            .click(Some(point_at(650, 420)), MouseButton::Left, 1, &KeyChord::EMPTY)
            .await
            .expect("the click works");
        assert!(
            poll_until(async || browser.take_notices().join("\n").contains("`localhost`")).await,
            "{script}"
        );
        // A new tab that the refused page was to open in is closed; one that a page opened before is blank.
        while browser.list_tabs().await.expect("tabs").len() > 1 {
            browser.close_tab(1).await.expect("it closes");
        }
        assert_eq!(browser.evaluate("document.title").await.expect("a title"), "Play", "{script}");
    }
    browser
        .click(Some(point_at(650, 355)), MouseButton::Left, 1, &KeyChord::EMPTY)
        .await
        .expect("the click works");
    take_screenshot(&browser).await;
    assert!(browser.take_notices().join("\n").contains("localhost"));
    browser.navigate(&pages.url("form.html")).await.expect("it is listed");
    browser.navigate_history(HistoryNavigation::Back).await.expect("it goes back");
    take_screenshot(&browser).await;
    assert_eq!(browser.evaluate("document.title").await.expect("a title"), "Play");
    assert_eq!(requests_to_unlisted(&pages), BTreeSet::new());
    browser.close().await;
}

/// Springs every lure of the seeds in a browser, and returns the ways out by which the other site was reached.
async fn spring_lures(pages: &TestPageServer, browser: &Browser, seeds: std::ops::Range<u64>) -> LuredVisits {
    let mut lured = LuredVisits::default();
    for seed in seeds {
        let mut numbers = SeededNumbers(seed);
        for way_out in WAYS_OUT {
            let lure = add_visit_lure(pages, &mut numbers, way_out);
            browser.navigate(&lure.url).await.expect("it is listed");
            browser.take_notices();
            let clicked = browser.click(Some(point_at(50, 50)), MouseButton::Left, 1, &KeyChord::EMPTY).await;
            clicked.expect("the click works");
            // A form adds a question mark and its fields.
            let is_reached = || {
                let requests = pages.requests();
                let mut paths = requests.iter().map(|asked| asked.split('?').next().unwrap_or_default());
                paths.any(|path| path.ends_with(&lure.reached))
            };
            let has_outcome =
                async || is_reached() || browser.take_notices().join("\n").contains("`localhost`");
            assert!(poll_until(has_outcome).await, "nothing happened: seed {seed}, {lure:?}");
            if let Err(error) = browser.screenshot().await {
                panic!("the page is gone: {error}, seed {seed}, {lure:?}");
            }
            while browser.list_tabs().await.expect("tabs").len() > 1 {
                browser.close_tab(1).await.expect("it closes");
            }
            let reached = is_reached().then_some(());
            match reached {
                Some(()) => lured.reached.push(format!("seed {seed}, {lure:?}")),
                None => lured.refused.push(format!("seed {seed}, {lure:?}")),
            }
        }
    }
    lured
}

#[derive(Debug, Default)]
struct LuredVisits {
    reached: Vec<String>,
    refused: Vec<String>,
}

#[tokio::test]
async fn a_hostile_site_takes_no_visitor_away_by_any_lure() {
    let pages = TestPageServer::serve().await;
    let Some(browser) = restricted_browser(&pages, ThirdPartyPolicy::AllowAll).await else { return };
    let lured = spring_lures(&pages, &browser, hostile_seeds(1)).await;
    assert_eq!(lured.reached, Vec::<String>::new());
    assert_eq!(requests_to_unlisted(&pages), BTreeSet::new());
    browser.close().await;
}

/// The lures are real: without a list, each of them takes its visitor away.
#[tokio::test]
async fn without_a_list_every_lure_works() {
    let pages = TestPageServer::serve().await;
    let Some(browser) = start_browser(BrowserOptions::default()).await else { return };
    let lured = spring_lures(&pages, &browser, hostile_seeds(1)).await;
    assert_eq!(lured.refused, Vec::<String>::new());
    browser.close().await;
}

/// Every kind of request that a page can send to another site without navigating there. Each request ends
/// before the next begins.
const REQUEST_SCRIPT: &str = r"(async to => {
    const ended = (thing, ...names) => new Promise(done => names.forEach(name => thing['on' + name] = done));
    const element = (kind, set) => {
        const made = Object.assign(document.createElement(kind), set);
        const loaded = ended(made, 'load', 'error');
        document.body.append(made);
        return loaded;
    };
    await element('img', { src: to + '/picture' });
    await element('script', { src: to + '/script' });
    await element('link', { rel: 'stylesheet', href: to + '/style' });
    await fetch(to + '/fetch', { method: 'POST', body: 'x', mode: 'no-cors' }).catch(() => 0);
    const request = new XMLHttpRequest();
    request.open('GET', to + '/request');
    request.send();
    await ended(request, 'loadend');
    const events = new EventSource(to + '/events');
    await ended(events, 'error');
    events.close();
    await ended(new WebSocket(to.replace('http', 'ws') + '/socket'), 'close');
    const worker = new Worker('/worker.js?to=' + to);
    await ended(worker, 'message');
    const found = await navigator.serviceWorker.register('/worker.js?of=service&to=' + to);
    await new Promise(done => {
        const look = () => found.active ? done() : setTimeout(look, 20);
        look();
    });
    navigator.sendBeacon(to + '/beacon', 'x');
    return (await fetch('/form.html')).status;
})";

async fn send_every_request(elsewhere: ThirdPartyPolicy) -> Option<(TestPageServer, Browser)> {
    let pages = TestPageServer::serve().await;
    let browser = restricted_browser(&pages, elsewhere).await?;
    browser.navigate(&pages.url("play.html")).await.expect("it is listed");
    let asked = browser.evaluate(&format!("{REQUEST_SCRIPT}('http://localhost:{}')", pages.port)).await;
    assert_eq!(asked.expect("the page asks"), 200, "what is listed is not held back");
    Some((pages, browser))
}

#[tokio::test]
async fn nothing_is_asked_of_other_sites_where_that_is_said() {
    let Some((pages, browser)) = send_every_request(ThirdPartyPolicy::BlockAll).await else { return };
    let notes = browser.take_notices().join("\n");
    assert_eq!(notes.matches("did not get it").count(), 1, "it is told once: {notes}");
    assert_eq!(requests_to_unlisted(&pages), BTreeSet::new());
    browser.close().await;
}

#[tokio::test]
async fn pages_have_what_they_are_made_of_from_other_sites_and_tell_them_nothing() {
    let Some((pages, browser)) = send_every_request(ThirdPartyPolicy::default()).await else { return };
    let expected = ["picture", "script", "style", "socket", "socket-of-worker"];
    assert_eq!(
        requests_to_unlisted(&pages),
        expected.map(str::to_owned).into(),
        "sockets are not held back, and we say so"
    );
    browser.close().await;
}

#[tokio::test]
async fn where_only_visits_are_held_to_the_list_all_of_it_arrives() {
    let Some((pages, browser)) = send_every_request(ThirdPartyPolicy::AllowAll).await else { return };
    let expected = [
        "picture",
        "script",
        "style",
        "fetch",
        "request",
        "events",
        "socket",
        "from-worker",
        "socket-of-worker",
        "beacon",
    ];
    let expected: BTreeSet<String> = expected.map(str::to_owned).into();
    assert!(
        poll_until(async || requests_to_unlisted(&pages) == expected).await,
        "{:?}",
        requests_to_unlisted(&pages)
    );
    browser.close().await;
}
