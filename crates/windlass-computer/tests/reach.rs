//! A browser that runs already, stored state, languages and devices, and pages by reference. The browsers are
//! real.

#![expect(clippy::expect_used, reason = "a failed precondition fails the test")]

#[path = "support/paper.rs"]
mod paper;
mod support;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use paper::output_of;
use serde_json::json;
use support::{TestPageServer, poll_until, start_browser, start_guarded_browser};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use windlass::agent::Agent;
use windlass::model::{ScriptedModel, ScriptedResponse};
use windlass::tool::Tool;
use windlass_computer::{
    AllowedSites, Browser, BrowserOptions, Computer, ComputerSecret, ComputerTool, EmulatedDevice,
    PageReading, PrivateNetworkPolicy, StorageState, ThirdPartyPolicy, UploadPolicy,
};

/// A browser that another program started, with an open port on this machine.
struct RunningBrowser {
    child: Child,
    address: String,
    _profile: tempfile::TempDir,
}

impl RunningBrowser {
    fn start() -> Self {
        let profile = tempfile::tempdir().expect("a folder");
        let mut child = Command::new("chromium")
            .args([
                "--headless",
                "--no-sandbox",
                "--no-first-run",
                "--remote-debugging-port=0",
                "about:blank",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let errors = BufReader::new(child.stderr.take().expect("a pipe"));
        let line = errors.lines().map_while(Result::ok).find(|line| line.contains("DevTools listening on"));
        let address = line.and_then(|line| line.split("listening on ").nth(1).map(str::to_owned));
        Self { child, address: address.expect("an address"), _profile: profile }
    }
}

impl Drop for RunningBrowser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn a_list_that_a_running_browser_cannot_keep_is_refused() {
    let options = BrowserOptions {
        allowed_sites: AllowedSites::only(["shop.example"]),
        third_party: ThirdPartyPolicy::BlockAll,
        ..BrowserOptions::default()
    };
    // Nobody listens there; the options are refused before.
    let refused = Browser::connect("ws://127.0.0.1:1/", options.clone()).await.err().expect("it is refused");
    assert!(refused.to_string().contains("cannot hold back sockets"), "{refused}");
    options.validate().expect("a browser of our own can keep it");
    let reachable = BrowserOptions { third_party: ThirdPartyPolicy::AssetsOnly, ..options };
    let refused = Browser::connect("ws://127.0.0.1:1/", reachable).await.err().expect("nobody listens");
    assert!(refused.to_string().contains("could not be reached"), "{refused}");
}

#[tokio::test]
async fn a_browser_that_runs_already_is_used_and_left_as_it_was() {
    let pages = TestPageServer::serve().await;
    let Some(ours) = start_browser(BrowserOptions::default()).await else { return };
    ours.close().await;
    let running = RunningBrowser::start();
    let options =
        BrowserOptions { private_networks: PrivateNetworkPolicy::Allow, ..BrowserOptions::default() };
    let port = running.address.split(['/', ':']).nth(4).expect("a port").to_owned();
    for endpoint in [running.address.clone(), format!("http://127.0.0.1:{port}")] {
        let browser = Browser::connect(&endpoint, options.clone()).await.expect("it connects");
        browser.navigate(&pages.url("form.html")).await.expect("the page opens");
        assert_eq!(browser.screenshot().await.expect("a picture").size(), Some((1280, 800)));
        let tabs = browser.list_tabs().await.expect("tabs");
        assert_eq!(tabs.len(), 1, "the tabs of others are not ours: {tabs:?}");
        browser.evaluate("document.cookie = 'mine=1; max-age=1000'; 1").await.expect("a cookie");
        browser.close().await;
        assert!(
            poll_until(
                async || browser.is_closed() || browser.list_tabs().await.map_or(0, |tabs| tabs.len()) == 0
            )
            .await
        );
    }
    // Nothing of the first remains for the second.
    let browser = Browser::connect(&running.address, options).await.expect("it still runs");
    browser.navigate(&pages.url("form.html")).await.expect("the page opens");
    assert_eq!(browser.evaluate("document.cookie").await.expect("cookies"), "");
    browser.close().await;
    let error =
        Browser::connect("http://127.0.0.1:1", BrowserOptions::default()).await.err().expect("no browser");
    assert!(error.to_string().contains("could not be reached"), "{error}");
}

#[tokio::test]
async fn a_state_is_stored_and_a_later_browser_begins_with_it() {
    let pages = TestPageServer::serve().await;
    let Some(first) = start_browser(BrowserOptions::default()).await else { return };
    first.navigate(&pages.url("form.html")).await.expect("the page opens");
    let script =
        "document.cookie = 'user=ada; max-age=1000; path=/'; localStorage.setItem('basket', 'book'); 1";
    first.evaluate(script).await.expect("it is stored");
    let state = first.storage_state().await.expect("the state");
    first.close().await;
    assert!(!format!("{state:?}").contains("ada"), "it is not printed");
    let state = StorageState::from_json(state.to_json().clone()).expect("it is read again");
    StorageState::from_json(json!({})).expect_err("that is no state");

    let options = BrowserOptions {
        storage_state: Some(state),
        locale: Some("de-DE".to_owned()),
        time_zone: Some("Asia/Tokyo".to_owned()),
        device: Some(EmulatedDevice::android_phone()),
        width: 400,
        height: 800,
        ..BrowserOptions::default()
    };
    let Some(second) = start_browser(options).await else { return };
    second.navigate(&pages.url("form.html")).await.expect("the page opens");
    let seen = second
        .evaluate(
            "[document.cookie, localStorage.getItem('basket'), navigator.language, \
             Intl.DateTimeFormat().resolvedOptions().timeZone, /Android/.test(navigator.userAgent), \
             navigator.maxTouchPoints > 0, screen.width]",
        )
        .await
        .expect("the page answers");
    assert_eq!(seen, json!(["user=ada", "book", "de-DE", "Asia/Tokyo", true, true, 400]));
    second.close().await;
}

/// A page replaces functions of a frame's empty document, whose window the next document of the frame keeps. If the script
/// that restores local storage ran in that window, they would be called with the storage of every site.
#[tokio::test]
async fn a_hostile_page_reads_no_stored_data_of_other_sites() {
    let pages = TestPageServer::serve().await;
    let own = pages.url("trap").trim_end_matches("/trap").to_owned();
    let state = json!({
        "cookies": [],
        "origins": [
            { "origin": "https://bank.test", "localStorage": [{ "name": "token", "value": "s3cret" }] },
            { "origin": own, "localStorage": [{ "name": "mine", "value": "kept" }] },
        ],
    });
    pages.add("inner", "<p>inner");
    let url = pages.add(
        "trap",
        "<body><script>
        const frame = document.createElement('iframe');
        frame.src = 'inner';
        document.body.append(frame);
        const inside = frame.contentWindow;
        inside.kept = 'the window is the same';
        const spy = (owner, name) => { const real = owner[name]; owner[name] = function (...words) {
            document.body.dataset.seen += JSON.stringify([this, words]) + ';';
            return real.apply(this, words);
        }; };
        document.body.dataset.seen = '';
        spy(inside.Array.prototype, 'find'); spy(inside.Array.prototype, 'filter'); spy(inside.Array.prototype, 'map');
        spy(inside.Storage.prototype, 'setItem'); spy(inside.Storage.prototype, 'getItem');
        spy(inside.JSON, 'parse');
        frame.onload = () => {
            document.body.dataset.window = frame.contentWindow.kept;
            document.body.dataset.mine = localStorage.getItem('mine');
            document.body.dataset.done = 'yes';
        };
        </script>",
    );
    let options = BrowserOptions {
        storage_state: Some(StorageState::from_json(state).expect("a state")),
        ..BrowserOptions::default()
    };
    let Some(browser) = start_browser(options).await else { return };
    browser.navigate(&url).await.expect("the page opens");
    let script = "new Promise(resolve => { const look = () => { const { done, window, mine, seen } = \
                  document.body.dataset; done ? resolve([window, mine, seen]) : setTimeout(look, 20); }; look(); })";
    let seen = browser.evaluate(script).await.expect("the page answers");
    assert_eq!(seen, json!(["the window is the same", "kept", ""]));
    browser.close().await;
}

#[tokio::test]
async fn a_page_is_read_and_filled_in_by_reference() {
    let pages = TestPageServer::serve().await;
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("cv.txt"), "a life").expect("a file");
    pages.add("inner", "<label>Code <input id=code></label>");
    let framed = pages.other_site_url("inner");
    let url = pages.add(
        "long",
        &format!(
            "<h1>Apply</h1><p>Please fill in.</p><p style='display:none'>hidden words</p>\
             <form action=/sent method=post><label>Name <input name=name></label><label>Day <input type=date name=day></label>\
             <label>Country <select name=country><option>France<option value=de>Germany</select></label>\
             <label><input type=checkbox name=agree value=yes> I agree</label><input type=file id=file aria-label=CV>\
             <label>Password <input type=password name=word></label><div style='height:3000px'></div>\
             <button>Send it</button></form><iframe src='{framed}'></iframe>"
        ),
    );
    let options =
        BrowserOptions { uploads: UploadPolicy::From(folder.path().to_owned()), ..BrowserOptions::default() };
    let Some(browser) = start_browser(options).await else { return };
    let browser = Arc::new(browser);
    browser.navigate(&url).await.expect("the page opens");
    let text = browser.read_page(&PageReading::default()).await.expect("it is read");
    for part in [
        "# Apply",
        "Please fill in.",
        "text \"Name\"",
        "options: *France | Germany",
        "button \"Send it\"",
        "frame http://localhost",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("hidden words"), "{text}");
    let reference = async |query: &str| {
        let found = browser.find_elements(query).await.expect("it is found");
        let name = found.split(['[', ']']).nth(1).map(str::to_owned);
        name.unwrap_or_else(|| panic!("{query}: {found}"))
    };
    let code = reference("Code").await;
    let fill = |element: String, value: &str| json!({ "op": "fill", "element": element, "value": value });
    let steps = [
        fill(reference("Name").await, "Ada"),
        fill(reference("Day").await, "2026-05-17"),
        fill(reference("Country").await, "Germany"),
        fill(reference("agree").await, "true"),
        fill(code.clone(), "1234"),
        fill(reference("Password").await, "{{secret:word}}"),
        json!({ "op": "upload", "element": reference("CV").await, "files": ["cv.txt"] }),
        // The secret is not for the frame of another site.
        fill(code.clone(), "{{secret:word}}"),
        fill(reference("Country").await, "Atlantis"),
        json!({ "op": "read", "content": "interactive" }),
        json!({ "op": "click", "element": reference("Send it").await }),
        fill("e9999".to_owned(), "nothing"),
    ];
    let tool = ComputerTool::with_computer(browser.clone())
        .secret("word", ComputerSecret::new("hunter22").only_on(["127.0.0.1"]));
    let tool: Tool = tool.page_tool();
    let calls = steps.iter().enumerate();
    let calls = calls.map(|(at, step)| ScriptedResponse::call(&format!("c{at}"), "page", step.clone()));
    let model = ScriptedModel::new(calls.chain([ScriptedResponse::text("done")]));
    let agent = Agent::new("clerk").model(model).tools(tool);
    let outcome = agent.run("Apply").max_turns(30).await.expect("the run ends");
    let told = |at: usize| output_of(&outcome, &format!("c{at}")).text().into_owned();
    for (at, step) in steps.iter().enumerate().take(7) {
        assert!(!told(at).contains("failed"), "{step}: {}", told(at));
    }
    assert!(told(7).contains("is not filled in here"), "{}", told(7));
    assert!(told(8).contains("France | Germany"), "{}", told(8));
    assert!(told(9).contains("value \"Ada\"") && !told(9).contains("hunter22"), "{}", told(9));
    assert!(told(11).contains("read the page again"), "{}", told(11));
    assert_eq!(
        pages.submissions(),
        ["name=Ada&day=2026-05-17&country=de&agree=yes&word=hunter22"],
        "{}",
        told(10)
    );
    browser.close().await;
}

#[tokio::test]
async fn an_element_by_reference_is_approved_and_reviewed_like_one_in_the_picture() {
    let pages = TestPageServer::serve().await;
    let url = pages.add("shop", "<form action=/sent method=post><button>Pay €40</button></form>");
    let Some(browser) = start_browser(BrowserOptions::default()).await else { return };
    let browser = Arc::new(browser);
    for (change, submissions) in [("1", 1), ("document.querySelector('button').textContent = 'Pay €4000'", 1)]
    {
        browser.navigate(&url).await.expect("the page opens");
        let found = browser.find_elements("Pay").await.expect("it is found");
        let element = found.split(['[', ']']).nth(1).expect("a reference").to_owned();
        let tool: Tool = ComputerTool::with_computer(browser.clone()).approve_if(|_| true).page_tool();
        let click = ScriptedResponse::call("c1", "page", json!({ "op": "click", "element": element }));
        let model = ScriptedModel::new([click, ScriptedResponse::text("done")]);
        let agent = Agent::new("clerk").model(model).tools(tool);
        let mut paused = agent.run("go").await.expect("the run pauses").into_paused().expect("it waits");
        browser.evaluate(change).await.expect("the page changes");
        paused.approve("c1").expect("a person approves");
        agent.resume(paused).await.expect("the run ends");
        assert_eq!(pages.submissions().len(), submissions, "{change}");
    }
    browser.close().await;
}

/// A proxy that answers every request itself, and the first lines of the requests.
async fn start_answering_proxy() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("an address"));
    let lines: Arc<Mutex<Vec<String>>> = Arc::default();
    let log = lines.clone();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let log = log.clone();
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    let Ok(byte) = stream.read_u8().await else { return };
                    head.push(byte);
                }
                let head = String::from_utf8_lossy(&head).into_owned();
                log.lock().expect("no panic").push(head.lines().next().unwrap_or_default().to_owned());
                let page = "<title>Through the proxy</title>";
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{page}",
                    page.len()
                );
                let _gone = stream.write_all(answer.as_bytes()).await;
            });
        }
    });
    (address, lines)
}

/// All requests go through the proxy, which resolves names that this machine does not know. The lists still hold.
#[tokio::test]
async fn a_browser_uses_its_proxy_and_keeps_to_its_sites() {
    let (proxy, lines) = start_answering_proxy().await;
    let options = BrowserOptions {
        proxy: Some(proxy),
        allowed_sites: AllowedSites::only(["shop.windlass.test"]),
        ..BrowserOptions::default()
    };
    let Some(browser) = start_guarded_browser(options.clone()).await else { return };
    browser.navigate("http://shop.windlass.test/a").await.expect("the proxy answers");
    assert_eq!(browser.evaluate("document.title").await.expect("a title"), "Through the proxy");
    browser.navigate("http://other.windlass.test/b").await.expect_err("it is not listed");
    browser.navigate("http://127.0.0.1:1/c").await.expect_err("it is not listed, and this machine");
    let asked = lines.lock().expect("no panic").clone();
    assert!(asked.contains(&"GET http://shop.windlass.test/a HTTP/1.1".to_owned()), "{asked:?}");
    assert!(
        !asked.iter().any(|line| line.contains("other.windlass.test") || line.contains("127.0.0.1")),
        "{asked:?}"
    );
    browser.close().await;
    let closed = BrowserOptions { third_party: ThirdPartyPolicy::BlockAll, ..options };
    let refused = closed.validate().expect_err("it would not hold").to_string();
    assert!(refused.contains("BlockAll"), "{refused}");
}
