//! Browser latency of screenshots, clicks and typing, compared with Playwright on the same Chromium and page.
//!
//! Each library is measured in its own process and browser, sequentially, in several rounds. A pause after each
//! click keeps its after-effects out of the next operation; `both` has no pause.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::process::Command;
use windlass_computer::{
    Browser, BrowserOptions, Computer, ComputerError, KeyChord, MouseButton, PrivateNetworkPolicy,
    ScreenPoint,
};

const PAGE_HTML: &str = include_str!("../../../windlass-computer/tests/pages/form.html");
const PLAYWRIGHT_PYTHON: &str = include_str!("playwright.py");
const PLAYWRIGHT_NODE: &str = include_str!("playwright.cjs");
const TYPED_TEXT: &str = "hello world, 24 letters!";
/// The operations: the name shared with the Playwright scripts, and the label in the table.
const OPERATIONS: [(&str, &str); 6] = [
    ("start", "start a browser"),
    ("open", "open the page"),
    ("screenshot", "a screenshot, 1280 by 800"),
    ("click", "a click"),
    ("type", "24 letters"),
    ("both", "a click and at once a screenshot"),
];

/// Times in milliseconds by operation.
type BrowserTimings = BTreeMap<String, Vec<f64>>;

struct BrowserBenchOptions {
    rounds: usize,
    repetitions: usize,
    /// A Python interpreter that has Playwright.
    python: Option<PathBuf>,
    /// A folder whose `node_modules` contains `playwright-core`.
    node: Option<PathBuf>,
}

/// Measures all libraries and prints a table of medians with ninth deciles.
pub fn run_browser_bench(words: &[&str]) -> Result<(), String> {
    let options = BrowserBenchOptions::parse(words)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.map_err(|error| error.to_string())?.block_on(measure_all(&options))
}

impl BrowserBenchOptions {
    fn parse(words: &[&str]) -> Result<Self, String> {
        let mut options = Self { rounds: 3, repetitions: 40, python: None, node: None };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let value = words.next().ok_or_else(|| format!("`{word}` needs a value"))?;
            let number = || value.parse::<usize>().map_err(|_| format!("`{value}` is not a number"));
            match *word {
                "--rounds" => options.rounds = number()?,
                "--times" => options.repetitions = number()?,
                "--python" => options.python = Some(value.into()),
                "--node" => options.node = Some(value.into()),
                other => {
                    return Err(format!(
                        "`{other}` is not an option; options: --rounds N --times N --python PROGRAM --node FOLDER"
                    ));
                }
            }
        }
        Ok(options)
    }
}

async fn measure_all(options: &BrowserBenchOptions) -> Result<(), String> {
    let failed = |error: std::io::Error| error.to_string();
    let server = TcpListener::bind("127.0.0.1:0").await.map_err(failed)?;
    let url = format!("http://{}/", server.local_addr().map_err(failed)?);
    let serving = tokio::spawn(serve_page(server));
    let mut all: Vec<(&str, BrowserTimings)> = vec![("windlass", BrowserTimings::new())];
    all.extend(options.node.iter().map(|_| ("Playwright (Node)", BrowserTimings::new())));
    all.extend(options.python.iter().map(|_| ("Playwright (Python)", BrowserTimings::new())));
    for round in 0..options.rounds {
        for (who, times) in &mut all {
            let more = match *who {
                "windlass" => {
                    measure_windlass(&url, options.repetitions).await.map_err(|error| error.to_string())?
                }
                "Playwright (Node)" => {
                    measure_playwright(node_command(options)?, &url, options.repetitions).await?
                }
                _ => measure_playwright(python_command(options)?, &url, options.repetitions).await?,
            };
            eprintln!("round {}: {who}", round + 1);
            for (name, mut more) in more {
                times.entry(name).or_default().append(&mut more);
            }
        }
    }
    serving.abort();
    print_table(&all);
    Ok(())
}

async fn measure_windlass(url: &str, times: usize) -> Result<BrowserTimings, ComputerError> {
    let mut found = BrowserTimings::new();
    let mut note = |name: &str, begun: Instant| {
        found.entry(name.to_owned()).or_default().push(begun.elapsed().as_secs_f64() * 1000.0);
    };
    let at = Some(ScreenPoint { x: 100, y: 55 });
    let pause = || tokio::time::sleep(Duration::from_millis(50));
    let begun = Instant::now();
    let options =
        BrowserOptions { private_networks: PrivateNetworkPolicy::Allow, ..BrowserOptions::default() };
    let browser = Browser::start(options).await?;
    note("start", begun);
    let begun = Instant::now();
    browser.navigate(url).await?;
    note("open", begun);
    for _ in 0..times {
        let begun = Instant::now();
        browser.click(at, MouseButton::Left, 1, &KeyChord::EMPTY).await?;
        note("click", begun);
        pause().await;
        let begun = Instant::now();
        browser.type_text(TYPED_TEXT).await?;
        note("type", begun);
        pause().await;
        let begun = Instant::now();
        browser.screenshot().await?;
        note("screenshot", begun);
        let begun = Instant::now();
        browser.click(at, MouseButton::Left, 1, &KeyChord::EMPTY).await?;
        browser.screenshot().await?;
        note("both", begun);
    }
    browser.close().await;
    Ok(found)
}

fn node_command(options: &BrowserBenchOptions) -> Result<Command, String> {
    let folder = options.node.as_ref().ok_or("no folder")?;
    let modules = folder.join("node_modules").canonicalize().map_err(|error| error.to_string())?;
    let mut command = Command::new("node");
    command.env("NODE_PATH", modules).arg("-e").arg(PLAYWRIGHT_NODE).arg("--");
    Ok(command)
}

fn python_command(options: &BrowserBenchOptions) -> Result<Command, String> {
    let mut command = Command::new(options.python.as_ref().ok_or("no program")?);
    command.arg("-c").arg(PLAYWRIGHT_PYTHON);
    Ok(command)
}

async fn measure_playwright(mut command: Command, url: &str, times: usize) -> Result<BrowserTimings, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let program =
        std::env::split_paths(&path).map(|folder| folder.join("chromium")).find(|file| file.is_file());
    let program = program.ok_or("there is no chromium: apt-get install chromium")?;
    command.arg(url).arg(program).arg(times.to_string()).stdin(Stdio::null()).stderr(Stdio::inherit());
    let said = command.output().await.map_err(|error| format!("Playwright could not be started: {error}"))?;
    serde_json::from_slice(&said.stdout).map_err(|error| format!("Playwright did not measure: {error}"))
}

fn print_table(all: &[(&str, BrowserTimings)]) {
    let heads: Vec<&str> = all.iter().map(|(who, _)| *who).collect();
    println!("| milliseconds: median (ninth decile) | {} |", heads.join(" | "));
    println!("| --- |{}", " ---: |".repeat(heads.len()));
    for (name, what) in OPERATIONS {
        let at = |times: &BrowserTimings, part| times.get(name).map_or(f64::NAN, |times| decile(times, part));
        let first = all.first().map_or(f64::NAN, |(_, times)| at(times, 5));
        let cells = all.iter().enumerate().map(|(place, (_, times))| {
            let (median, ninth) = (at(times, 5), at(times, 9));
            let ratio = if place == 0 { String::new() } else { format!(", {:.2}×", median / first) };
            format!("{median:.1} ({ninth:.1}{ratio})")
        });
        println!("| {what} | {} |", cells.collect::<Vec<_>>().join(" | "));
    }
}

fn decile(times: &[f64], part: usize) -> f64 {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    times.get(times.len() * part / 10).copied().unwrap_or(f64::NAN)
}

async fn serve_page(server: TcpListener) {
    while let Ok((mut stream, _)) = server.accept().await {
        tokio::spawn(async move {
            let mut request = vec![0; 16 * 1024];
            let _ = stream.read(&mut request).await;
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nConnection: close\r\n";
            let answer = format!("{head}Content-Length: {}\r\n\r\n{PAGE_HTML}", PAGE_HTML.len());
            // The write fails if the browser has closed the connection.
            let _ = stream.write_all(answer.as_bytes()).await;
            let _ = stream.shutdown().await;
        });
    }
}
