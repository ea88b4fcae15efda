//! An agent that fills in a form in a real browser, and a recording of the run: `cargo run -p
//! windlass-computer --example form`.
//!
//! The model is scripted, so the example needs no API key and no network. The recording is written as one
//! page, `film.html`, to the folder given on the command line or to the system's temporary folder.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use windlass::prelude::*;
use windlass::store::{MemoryStore, Store};
use windlass_computer::{
    ActionVerdict, AllowedSites, Browser, BrowserOptions, BrowserWindow, ComputerError, ComputerTool,
    ScreenRecording, keep_recent_screenshots,
};

const PAGE: &str = include_str!("../tests/pages/form.html");

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = TcpListener::bind("127.0.0.1:0").await?;
    let address = server.local_addr()?;
    let serving = tokio::spawn(serve_form(server));

    // `--show` opens a window on the current display.
    let is_shown = std::env::args().any(|word| word == "--show");
    let options = BrowserOptions {
        width: 800,
        height: 500,
        allowed_sites: AllowedSites::only([address.to_string()]),
        window: if is_shown { BrowserWindow::Visible { display: None } } else { BrowserWindow::Headless },
        ..BrowserOptions::default()
    };
    if let Err(error @ ComputerError::Missing { .. }) = Browser::start(options.clone()).await {
        println!("not shown: {error}");
        return Ok(());
    }
    let computer = ComputerTool::with_provider(Browser::provider(options)).max_actions(50).review_actions(
        |proposed| async move {
            println!("{}", proposed.action);
            ActionVerdict::Allow
        },
    );

    let act = |id: &str, actions| ScriptedResponse::call(id, "computer", json!({ "actions": actions }));
    let model = ScriptedModel::new([
        ScriptedResponse::call(
            "open",
            "browser",
            json!({ "op": "navigate", "url": format!("http://{address}/") }),
        ),
        act(
            "name",
            json!([{ "type": "click", "x": 150, "y": 55 }, { "type": "type", "text": "Ada Lovelace" }]),
        ),
        act("note", json!([{ "type": "keypress", "keys": ["TAB"] }, { "type": "type", "text": "Grüße 🚀" }])),
        act("agree", json!([{ "type": "click", "x": 55, "y": 155 }])),
        act("send", json!([{ "type": "click", "x": 150, "y": 205 }])),
        ScriptedResponse::text("The form was sent."),
    ]);
    let agent = Agent::new("clerk").model(model).tools((computer.screen_tool(), computer.browser_tool()));

    let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    let run = agent.run("Fill in the form.").store(store.clone()).input_filter(keep_recent_screenshots(2));
    let outcome = run.await?;
    println!("{}", outcome.output_text()?);

    let film = ScreenRecording::from_journal(outcome.record().journal(), Some(&*store)).await?;
    let folder = std::env::args().skip(1).find(|word| word != "--show").map(PathBuf::from);
    let file = folder.unwrap_or_else(std::env::temp_dir).join("film.html");
    std::fs::write(&file, film.to_html("A form is filled in"))?;
    println!("{} frames in {}", film.frames.len(), file.display());

    serving.abort();
    assert_eq!(film.frames.len(), 5);
    assert_eq!(outcome.output_text()?, "The form was sent.");
    Ok(())
}

/// Serves the form page, and a thank-you page for submissions.
async fn serve_form(server: TcpListener) {
    while let Ok((mut stream, _)) = server.accept().await {
        tokio::spawn(async move {
            let mut request = vec![0; 16 * 1024];
            let read = stream.read(&mut request).await.unwrap_or(0);
            let is_sent = request[..read].starts_with(b"POST");
            let body = if is_sent { "<title>Sent</title><h1>Thank you</h1>" } else { PAGE };
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nConnection: close\r\n";
            let answer = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
            // The browser may have closed the connection.
            let _ = stream.write_all(answer.as_bytes()).await;
            let _ = stream.shutdown().await;
        });
    }
}
