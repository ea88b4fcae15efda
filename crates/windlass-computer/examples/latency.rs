//! How long a screenshot, a click and typing take, beside Playwright on the same page:
//! `cargo run --release -p windlass-computer --example latency`.
//!
//! It prints one line of JSON with medians and ninth deciles in milliseconds. With `--serve` it serves the page and waits,
//! so that `examples/latency.py` can measure Playwright on it.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use windlass::prelude::json;
use windlass_computer::{Browser, BrowserOptions, Button, Chord, Computer, ComputerError, Point};

const PAGE: &str = include_str!("../tests/pages/form.html");
const ROUNDS: usize = 50;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", server.local_addr()?);
    let serving = tokio::spawn(serve(server));
    if std::env::args().any(|word| word == "--serve") {
        println!("{url}");
        serving.await?;
        return Ok(());
    }
    let started = Instant::now();
    let browser = match Browser::start(BrowserOptions::default()).await {
        Err(error @ ComputerError::Missing { .. }) => {
            println!("not measured: {error}");
            return Ok(());
        }
        started => started?,
    };
    let start = started.elapsed();
    let opened = Instant::now();
    browser.navigate(&url).await?;
    let open = opened.elapsed();

    let (mut looks, mut clicks, mut types) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let at = Instant::now();
        browser.click(Some(Point { x: 100, y: 55 }), Button::Left, 1, &Chord::NONE).await?;
        clicks.push(at.elapsed());
        // What a click may lead to is waited for by whatever comes next; it is not typing that is slow.
        tokio::time::sleep(Duration::from_millis(50)).await;
        let at = Instant::now();
        browser.type_text("hello world, 24 letters!").await?;
        types.push(at.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
        let at = Instant::now();
        browser.screenshot().await?;
        looks.push(at.elapsed());
    }
    browser.close().await;
    let figures = json!({
        "who": "windlass-computer", "rounds": ROUNDS,
        "start_ms": ms(start), "open_ms": ms(open),
        "screenshot_ms": deciles(looks), "click_ms": deciles(clicks), "type_24_ms": deciles(types),
    });
    println!("{figures}");
    serving.abort();
    Ok(())
}

fn ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 10_000.0).round() / 10.0
}

/// The median and the ninth decile.
fn deciles(mut times: Vec<Duration>) -> serde_json::Value {
    times.sort();
    let at = |part: usize| times.get(times.len() * part / 10).copied().unwrap_or_default();
    json!({ "p50": ms(at(5)), "p90": ms(at(9)) })
}

async fn serve(server: TcpListener) {
    while let Ok((mut stream, _)) = server.accept().await {
        tokio::spawn(async move {
            let mut request = vec![0; 16 * 1024];
            let _ = stream.read(&mut request).await;
            let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\nConnection: close\r\n";
            let answer = format!("{head}Content-Length: {}\r\n\r\n{PAGE}", PAGE.len());
            let _ = stream.write_all(answer.as_bytes()).await;
            let _ = stream.shutdown().await;
        });
    }
}
