//! What a browser cannot reach: its own pages, windows outside of its profile, private networks; and lists that
//! would match nothing. The browser is a real Chromium.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

#[path = "support/paper.rs"]
mod paper;
mod support;

use std::sync::Arc;

use paper::{agent_with_tool, click_action, computer_call, output_of};
use serde_json::json;
use support::{TestPageServer, poll_until, start_browser, start_guarded_browser, take_screenshot};
use windlass::core::item::OutputContent;
use windlass::model::ScriptedResponse;
use windlass_computer::{
    AllowedSites, Browser, BrowserOptions, Computer, ComputerError, ComputerSecret, ComputerTool, KeyChord,
    ThirdPartyPolicy,
};

#[tokio::test]
async fn keys_open_no_page_of_the_browser_and_no_other_window() {
    let pages = TestPageServer::serve().await;
    let options = BrowserOptions {
        allowed_sites: AllowedSites::only([format!("127.0.0.1:{}", pages.port)]),
        ..BrowserOptions::default()
    };
    let Some(browser) = start_browser(options).await else { return };
    browser.navigate(&pages.url("form.html")).await.expect("the page opens");
    let chords = [
        "ctrl+t",
        "ctrl+n",
        "ctrl+shift+n",
        "ctrl+h",
        "ctrl+j",
        "ctrl+shift+o",
        "ctrl+shift+delete",
        "ctrl+u",
        "ctrl+shift+i",
        "ctrl+shift+j",
        "F12",
        "F1",
        "alt+f",
        "alt+e",
        "ctrl+shift+a",
        "shift+escape",
        "ctrl+w",
        "ctrl+tab",
        "ctrl+1",
        "alt+home",
    ];
    for chord in chords {
        let pressed = browser.press_keys(&KeyChord::parse(chord).expect("keys")).await;
        let refused = pressed.expect_err(chord);
        assert!(
            matches!(&refused, ComputerError::Refused(why) if why.contains("browser itself")),
            "{refused}"
        );
    }
    // What belongs to the page is left to it.
    for chord in ["ctrl+a", "ctrl+c", "ctrl+s", "ctrl+k", "ctrl+shift+z", "alt+1", "Tab", "F2", "F5"] {
        browser.press_keys(&KeyChord::parse(chord).expect("keys")).await.expect(chord);
    }
    take_screenshot(&browser).await;
    let tabs = browser.list_tabs().await.expect("tabs");
    assert_eq!(tabs.iter().map(|tab| tab.url.clone()).collect::<Vec<_>>(), [pages.url("form.html")]);
    browser.close().await;
}

#[tokio::test]
async fn a_page_of_the_browser_that_opens_anyway_is_closed() {
    let Some(browser) = start_browser(BrowserOptions::default()).await else { return };
    let pages = TestPageServer::serve().await;
    browser.navigate(&pages.url("form.html")).await.expect("the page opens");
    for url in ["chrome://version", "chrome://settings", "file:///etc/passwd", "view-source:about:blank"] {
        browser.open_unchecked_tab(url).await.expect("the browser opens it");
        let is_gone = poll_until(async || {
            let told = browser.take_notices().join("\n");
            told.contains("page of the browser itself was closed")
        });
        assert!(is_gone.await, "{url}");
        let is_left = poll_until(async || {
            let tabs = browser.list_tabs().await.expect("tabs");
            tabs.len() == 1 && tabs[0].url == pages.url("form.html")
        });
        assert!(is_left.await, "{url}: {:?}", browser.list_tabs().await);
    }
    browser.open_private_window().await.expect("the browser opens it");
    assert!(poll_until(async || browser.take_notices().join("\n").contains("outside of this profile")).await);
    assert_eq!(browser.list_tabs().await.expect("tabs").len(), 1);
    browser.close().await;
}

#[tokio::test]
async fn private_networks_are_out_of_reach_unless_they_are_listed() {
    let pages = TestPageServer::serve().await;
    let Some(browser) = start_guarded_browser(BrowserOptions::default()).await else { return };
    for url in [
        pages.url("form.html"),
        pages.other_site_url("form.html"),
        format!("http://[::1]:{}/form.html", pages.port),
        format!("http://2130706433:{}/form.html", pages.port),
        "http://169.254.169.254/latest/meta-data/".to_owned(),
    ] {
        let refused = browser.navigate(&url).await.expect_err(&url);
        assert!(refused.to_string().contains("private network"), "{url}: {refused}");
    }
    // A page that is not private cannot reach them either, by any kind of request.
    let script = format!(
        "(async to => {{ const ended = (thing, ...names) => new Promise(done => names.forEach(name => thing['on' + name] \
         = done)); const image = new Image(); image.src = 'http://' + to + '/image'; await ended(image, 'load', 'error'); \
         await fetch('http://' + to + '/fetch', {{ mode: 'no-cors' }}).catch(() => 0); \
         await ended(new WebSocket('ws://' + to + '/socket'), 'close', 'open'); return 1; }})('127.0.0.1:{}')",
        pages.port
    );
    assert_eq!(browser.evaluate(&script).await.expect("the page asks"), 1);
    // Sockets are not intercepted, so that every form of an address has its rule.
    for host in ["127.0.0.1", "2130706433", "localhost", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "0.0.0.0"] {
        let script = format!(
            "new Promise(done => {{ const socket = new WebSocket('ws://{host}:{}/socket'); socket.onopen = \
             socket.onclose = () => done(1); }})",
            pages.port
        );
        assert_eq!(browser.evaluate(&script).await.expect("the page asks"), 1, "{host}");
        assert_eq!(pages.requests(), Vec::<String>::new(), "{host}");
    }
    browser.close().await;

    for third_party in [ThirdPartyPolicy::AssetsOnly, ThirdPartyPolicy::AllowAll] {
        let allowed_sites = AllowedSites::only([format!("127.0.0.1:{}", pages.port)]);
        let options = BrowserOptions { allowed_sites, third_party, ..BrowserOptions::default() };
        let Some(browser) = start_guarded_browser(options).await else { return };
        browser.navigate(&pages.url("form.html")).await.expect("it is listed");
        let image = format!(
            "new Promise(done => {{ const image = new Image(); image.onload = image.onerror = () => done(1); \
             image.src = '{}'; }})",
            pages.other_site_url("image")
        );
        assert_eq!(browser.evaluate(&image).await.expect("the page asks"), 1);
        assert!(
            !pages.requests().iter().any(|asked| asked.starts_with("localhost")),
            "{:?}",
            pages.requests()
        );
        browser.close().await;
    }
}

/// The browser asks for the address once more, and the name server of the site may answer then.
#[tokio::test]
async fn a_site_whose_address_is_not_known_is_out_of_reach() {
    let Some(browser) = start_guarded_browser(BrowserOptions::default()).await else { return };
    let refused = browser.navigate("http://nobody.invalid/").await.expect_err("nobody knows where it is");
    assert!(refused.to_string().contains("could not be looked up"), "{refused}");
    browser.close().await;
}

#[tokio::test]
async fn a_list_of_sites_that_matches_nothing_is_an_error() {
    for wrong in
        [vec!["https://example.org"], vec!["example.org/path"], vec![], vec!["ok.test", "a b"], vec!["*"]]
    {
        let options =
            BrowserOptions { allowed_sites: AllowedSites::only(wrong.clone()), ..BrowserOptions::default() };
        let error = Browser::start(options).await.err().expect("it is refused").to_string();
        assert!(error.contains("`BrowserOptions::allowed_sites`"), "{wrong:?}: {error}");
        assert!(wrong.is_empty() || error.contains("write a host such as"), "{error}");
    }
    for right in [
        "example.org",
        "*.example.org",
        "example.org:8080",
        "127.0.0.1",
        "[::1]:80",
        "münchen.de",
        "example.org.",
    ] {
        AllowedSites::only([right]).validate().expect(right);
    }
    let paper = paper::RecordingComputer::default();
    let tool = ComputerTool::with_computer(Arc::new(paper.clone()))
        .secret("password", ComputerSecret::new("x").only_on(["https://example.org"]));
    let (agent, _) = agent_with_tool(
        &tool,
        [computer_call("c1", json!([click_action(1, 1)])), ScriptedResponse::text("done")],
    );
    agent.run("go").await.expect("the run ends");
    assert!(paper.operations().is_empty(), "a computer with a wrong list does nothing");
}

#[tokio::test]
async fn a_refused_call_is_answered_with_the_real_screen() {
    let pages = TestPageServer::serve().await;
    let Some(browser) = start_browser(BrowserOptions::default()).await else { return };
    let browser = Arc::new(browser);
    browser.navigate(&pages.url("form.html")).await.expect("the page opens");
    let (agent, _) = agent_with_tool(
        &ComputerTool::with_computer(browser.clone()),
        [computer_call("c1", json!([click_action(5000, 1)])), ScriptedResponse::text("done")],
    );
    let outcome = agent.run("go").await.expect("the run ends");
    let OutputContent::Parts(parts) = output_of(&outcome, "c1") else { panic!("there is a picture") };
    let picture = parts.iter().find_map(|part| match part {
        windlass::core::item::ContentPart::Image(media) => media.data.clone(),
        _ => None,
    });
    let picture = windlass_computer::Screenshot::from_base64(picture.expect("a picture"));
    assert_eq!(picture.size(), Some((1280, 800)));
    browser.close().await;
}

#[tokio::test]
async fn twenty_browsers_at_once_all_work_and_leave_nothing() {
    let pages = TestPageServer::serve().await;
    let Some(first) = start_browser(BrowserOptions::default()).await else { return };
    first.close().await;
    // The command line of a browser names its profile.
    let profile_of = |group: u32| {
        let line = std::fs::read(format!("/proc/{group}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        let mut words = line.split_whitespace().filter_map(|word| word.strip_prefix("--user-data-dir="));
        words.next().map(std::path::PathBuf::from)
    };
    let browsers = (0..20).map(|_| {
        let url = pages.url("form.html");
        tokio::spawn(async move {
            let browser = start_browser(BrowserOptions::default()).await.expect("it starts");
            browser.navigate(&url).await.expect("the page opens");
            let size = browser.screenshot().await.expect("a picture").size();
            let group = browser.process_group().expect("a process");
            let profile = profile_of(group).expect("a profile");
            assert!(profile.is_dir(), "{}", profile.display());
            browser.close().await;
            (size, group, profile)
        })
    });
    let mut groups = Vec::new();
    for browser in browsers.collect::<Vec<_>>() {
        let (size, group, profile) = browser.await.expect("no browser fails");
        assert_eq!(size, Some((1280, 800)));
        assert!(!profile.exists(), "{} is left", profile.display());
        groups.push(group);
    }
    assert_eq!(groups.len(), 20);
    for group in groups {
        let status = std::process::Command::new("/bin/sh")
            .args(["-c", "kill -0 -- \"-$1\" 2>/dev/null", "sh", &group.to_string()])
            .status();
        assert!(!status.expect("the shell runs").success(), "a process is left");
    }
}
