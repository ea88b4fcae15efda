//! A headless Chromium, driven by the Chrome DevTools Protocol.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use data_encoding::BASE64;
use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;

/// Time for a condition to come true; the machine may be busy.
const WAIT: Duration = Duration::from_secs(240);
/// Width of the window while no other one is emulated.
const WINDOW_WIDTH: u32 = 900;
/// Names under which Chromium is installed.
const PROGRAMS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// A tab of a browser, which is killed at the end of the test.
pub(crate) struct BrowserTab {
    child: Child,
    socket: WebSocketStream<tokio::net::TcpStream>,
    session: Value,
    next_id: u64,
    /// Errors of the page: exceptions, console errors, and what the browser logged as an error.
    pub(crate) errors: Vec<String>,
    _profile: tempfile::TempDir,
}

impl BrowserTab {
    /// Starts Chromium with a microphone that plays a file again and again; `None` if it is not installed.
    pub(crate) async fn launch(microphone: &Path) -> Option<Self> {
        let profile = tempfile::tempdir().expect("there is room");
        let child = PROGRAMS.iter().find_map(|program| {
            Command::new(program)
                .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--mute-audio", "--no-first-run"])
                .args(["--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream"])
                .arg(format!("--use-file-for-fake-audio-capture={}", microphone.display()))
                .arg(format!("--user-data-dir={}", profile.path().display()))
                .args(["--remote-debugging-port=0", "about:blank"])
                .arg(format!("--window-size={WINDOW_WIDTH},1000"))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .ok()
        })?;
        let port_file = profile.path().join("DevToolsActivePort");
        let started = Instant::now();
        let (port, path) = loop {
            let text = std::fs::read_to_string(&port_file).unwrap_or_default();
            if let Some((port, path)) = text.split_once('\n').filter(|(_, path)| !path.is_empty()) {
                break (port.to_owned(), path.trim().to_owned());
            }
            assert!(started.elapsed() < WAIT, "Chromium does not start");
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        let stream = tokio::net::TcpStream::connect(format!("127.0.0.1:{port}")).await.expect("it listens");
        let url = format!("ws://127.0.0.1:{port}{path}");
        let (socket, _) = tokio_tungstenite::client_async(url, stream).await.expect("it opens");
        let mut tab =
            Self { child, socket, session: Value::Null, next_id: 1, errors: Vec::new(), _profile: profile };
        let target = tab.command("Target.createTarget", json!({ "url": "about:blank" })).await;
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        tab.session = tab.command("Target.attachToTarget", attach).await["sessionId"].clone();
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            tab.command(domain, json!({})).await;
        }
        Some(tab)
    }

    /// Runs a script in every page before the page's own scripts.
    pub(crate) async fn run_before_pages(&mut self, script: &str) {
        self.command("Page.addScriptToEvaluateOnNewDocument", json!({ "source": script })).await;
    }

    /// Sends a command and returns its result.
    async fn command(&mut self, method: &str, params: Value) -> Value {
        let id = self.next_id;
        self.next_id += 1;
        let mut command = json!({ "id": id, "method": method, "params": params });
        if !self.session.is_null() {
            command["sessionId"] = self.session.clone();
        }
        self.socket.send(Message::text(command.to_string())).await.expect("Chromium is there");
        loop {
            let message = tokio::time::timeout(WAIT, self.socket.next()).await.expect("in time");
            let Message::Text(text) = message.expect("Chromium is there").expect("it is readable") else {
                continue;
            };
            let value: Value = serde_json::from_str(text.as_str()).expect("it is JSON");
            if value["id"] == id {
                assert!(value["error"].is_null(), "{method}: {}", value["error"]);
                return value["result"].clone();
            }
            self.note_event(&value);
        }
    }

    fn note_event(&mut self, event: &Value) {
        let params = &event["params"];
        let error = match event["method"].as_str().unwrap_or_default() {
            "Runtime.exceptionThrown" => Some(params["exceptionDetails"].to_string()),
            "Runtime.consoleAPICalled"
                if ["error", "warning", "assert"].contains(&params["type"].as_str().unwrap_or_default()) =>
            {
                Some(params["args"].to_string())
            }
            "Log.entryAdded" if params["entry"]["level"] == "error" => Some(params["entry"].to_string()),
            _ => None,
        };
        self.errors.extend(error);
    }

    pub(crate) async fn navigate(&mut self, url: &str) {
        self.command("Page.navigate", json!({ "url": url })).await;
    }

    /// Evaluates an expression and returns its value.
    pub(crate) async fn evaluate(&mut self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let result = self.command("Runtime.evaluate", params).await;
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Waits until an expression is true. While a page loads, it may have no value.
    pub(crate) async fn wait_for(&mut self, condition: &str) {
        let guarded = format!("(() => {{ try {{ return {condition}; }} catch {{ return false; }} }})()");
        let started = Instant::now();
        while self.evaluate(&guarded).await != true {
            if started.elapsed() > WAIT {
                let text = self.evaluate("document.body.innerText").await;
                panic!("{condition} never became true; errors {:?}; the page:\n{text}", self.errors);
            }
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
    }

    /// Clicks the middle of an element with the mouse, as a user does.
    pub(crate) async fn click(&mut self, selector: &str) {
        let place = format!(
            "(() => {{ const found = document.querySelector({}); found.scrollIntoView({{ block: 'center' }}); \
             const box = found.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; }})()",
            json!(selector)
        );
        let place = self.evaluate(&place).await;
        for kind in ["mousePressed", "mouseReleased"] {
            let params =
                json!({ "type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1 });
            self.command("Input.dispatchMouseEvent", params).await;
        }
    }

    /// Looks at the page in a light, a dark and a narrow window: nothing is wider than the window. Saves screenshots if
    /// `WINDLASS_SCREENSHOTS` names a folder.
    pub(crate) async fn look(&mut self, name: &str) {
        for (window, width, scheme) in
            [("light", 900, "light"), ("dark", 900, "dark"), ("phone", 390, "light")]
        {
            let size = json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false });
            self.command("Emulation.setDeviceMetricsOverride", size).await;
            let scheme = json!({ "name": "prefers-color-scheme", "value": scheme });
            self.command("Emulation.setEmulatedMedia", json!({ "features": [scheme] })).await;
            let overflow = self
                .evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
                .await;
            assert_eq!(overflow, 0, "{name} in a {window} window is too wide");
            self.save_screenshot(&format!("{name}-{window}")).await;
        }
        // The command returns before the page has its former size; until then elements stand elsewhere.
        self.command("Emulation.clearDeviceMetricsOverride", json!({})).await;
        self.wait_for(&format!("innerWidth === {WINDOW_WIDTH}")).await;
    }

    async fn save_screenshot(&mut self, name: &str) {
        let Some(folder) = std::env::var_os("WINDLASS_SCREENSHOTS") else { return };
        let shot = self.command("Page.captureScreenshot", json!({ "format": "png" })).await;
        let png = BASE64.decode(shot["data"].as_str().expect("an image").as_bytes()).expect("base64");
        std::fs::create_dir_all(&folder).expect("it can be made");
        std::fs::write(Path::new(&folder).join(format!("{name}.png")), png).expect("it can be written");
    }
}

impl Drop for BrowserTab {
    fn drop(&mut self) {
        let _killed = self.child.kill();
        let _reaped = self.child.wait();
    }
}
