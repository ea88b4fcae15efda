//! A real Chromium that is held to a list of sites: `127.0.0.1` is listed, `localhost` is not, and both are the same server,
//! which says what reached it.

#![expect(clippy::expect_used, reason = "a test fails where what it stands on does not hold")]

mod support;

use std::collections::BTreeSet;

use support::{Pages, at, browser, screenshot, soon};
use windlass_computer::{Browser, BrowserOptions, Button, Chord, Computer, Elsewhere, Sites, Travel};

async fn held_to_the_list(pages: &Pages, elsewhere: Elsewhere) -> Option<Browser> {
    let sites = Sites::only([format!("127.0.0.1:{}", pages.port)]);
    browser(BrowserOptions { sites, elsewhere, ..BrowserOptions::default() }).await
}

/// What reached the site that is not listed.
fn reached(pages: &Pages) -> BTreeSet<String> {
    let asked = pages.asked();
    asked
        .iter()
        .filter_map(|asked| asked.strip_prefix("localhost")?.split_once('/'))
        .map(|(_, path)| path.into())
        .collect()
}

#[tokio::test]
async fn only_listed_sites_are_visited_by_whatever_way() {
    let pages = Pages::serve().await;
    let Some(browser) = held_to_the_list(&pages, Elsewhere::Anything).await else { return };
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
        // Nothing that was refused is still ending: the page that is gone to is the one that is there.
        browser.navigate(&pages.url("play.html")).await.expect("it is listed");
        assert_eq!(browser.evaluate("document.title").await.expect("a title"), "Play", "{script}");
        browser.notes();
        // By a click, because pages may not open tabs of their own accord.
        let wired = format!("document.getElementById('menu').onclick = () => {{ {script} }}; 1");
        browser.evaluate(&wired).await.expect("the script runs");
        browser.click(Some(at(650, 420)), Button::Left, 1, &Chord::NONE).await.expect("the click works");
        assert!(soon(async || browser.notes().join("\n").contains("`localhost`")).await, "{script}");
        // Another tab may have been opened, and shows nothing.
        while browser.tabs().await.expect("tabs").len() > 1 {
            browser.close_tab(1).await.expect("it closes");
        }
        assert_eq!(browser.evaluate("document.title").await.expect("a title"), "Play", "{script}");
    }
    browser.click(Some(at(650, 355)), Button::Left, 1, &Chord::NONE).await.expect("the click works");
    screenshot(&browser).await;
    assert!(browser.notes().join("\n").contains("localhost"));
    browser.navigate(&pages.url("form.html")).await.expect("it is listed");
    browser.travel(Travel::Back).await.expect("it goes back");
    screenshot(&browser).await;
    assert_eq!(browser.evaluate("document.title").await.expect("a title"), "Play");
    assert_eq!(reached(&pages), BTreeSet::new());
    browser.close().await;
}

/// Everything that a page can ask of another site without going there. Each part ends before the next begins.
const ASKING: &str = r"(async to => {
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

async fn ask_everything(elsewhere: Elsewhere) -> Option<(Pages, Browser)> {
    let pages = Pages::serve().await;
    let browser = held_to_the_list(&pages, elsewhere).await?;
    browser.navigate(&pages.url("play.html")).await.expect("it is listed");
    let asked = browser.evaluate(&format!("{ASKING}('http://localhost:{}')", pages.port)).await;
    assert_eq!(asked.expect("the page asks"), 200, "what is listed is not held back");
    Some((pages, browser))
}

#[tokio::test]
async fn nothing_is_asked_of_other_sites_where_that_is_said() {
    let Some((pages, browser)) = ask_everything(Elsewhere::Nothing).await else { return };
    let notes = browser.notes().join("\n");
    assert_eq!(notes.matches("did not get it").count(), 1, "it is told once: {notes}");
    assert_eq!(reached(&pages), BTreeSet::new());
    browser.close().await;
}

#[tokio::test]
async fn pages_have_what_they_are_made_of_from_other_sites_and_tell_them_nothing() {
    let Some((pages, browser)) = ask_everything(Elsewhere::default()).await else { return };
    let expected = ["picture", "script", "style", "socket", "socket-of-worker"];
    assert_eq!(
        reached(&pages),
        expected.map(str::to_owned).into(),
        "sockets are not held back, and we say so"
    );
    browser.close().await;
}

#[tokio::test]
async fn where_only_visits_are_held_to_the_list_all_of_it_arrives() {
    let Some((pages, browser)) = ask_everything(Elsewhere::Anything).await else { return };
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
    assert!(soon(async || reached(&pages) == expected).await, "{:?}", reached(&pages));
    browser.close().await;
}
