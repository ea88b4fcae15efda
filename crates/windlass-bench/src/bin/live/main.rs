//! Many live sessions at once, with audio both ways: what one of them costs, what a session adds to the wait, and that
//! nothing is lost.
//!
//! `live [SESSIONS] [SECONDS] [ROUNDS]`. The server is a process of its own, so that the memory measured here is the
//! sessions' alone. Bare connections do the same before the sessions do: what is more than theirs is what sessions add.
//!
//! Everything here ends: a session that does not come to its end in time is an error that says how far it came, and
//! the server ends with whoever started it.

mod bare;
mod figures;
mod serve;
mod session;

use std::time::{Duration, Instant};

use figures::{Figures, Seen, resident_kib};
use serve::Server;

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The length of a piece of audio.
pub(crate) const PIECE_MS: u64 = 100;

/// What is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// A connection that does what a session would, and nothing else.
    Bare,
    /// A session.
    Session,
}

#[derive(Clone, Copy, Debug)]
struct Load {
    sessions: u64,
    seconds: u64,
}

fn main() -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [first, seconds] = words.as_slice()
        && first == serve::WORD
    {
        return runtime.block_on(serve::serve(seconds.parse()?));
    }
    let number = |place: usize, default: u64| match words.get(place) {
        Some(word) => word.parse().map_err(|_| format!("`{word}` is not a number")),
        None => Ok(default),
    };
    let load = Load { sessions: number(0, 1000)?.max(1), seconds: number(1, 5)?.max(1) };
    let rounds = number(2, 1)?.max(1);
    for round in 1..=rounds {
        if rounds > 1 {
            println!("round {round} of {rounds}");
        }
        runtime.block_on(measure(load))?;
    }
    Ok(())
}

async fn measure(load: Load) -> Result<(), Failure> {
    let server = Server::start(load.seconds)?;
    let alone = talk(Kind::Session, &server.address, load.seconds).await?;
    println!(
        "{} connections of {} s with audio both ways; first audio alone after {:.1} ms",
        load.sessions,
        load.seconds,
        figures::millis(alone.to_first_audio)
    );
    let mut failed = 0;
    for kind in [Kind::Bare, Kind::Session] {
        let figures = all(kind, &server.address, load).await;
        println!("{kind:?}: {figures}");
        failed += figures.failed.len();
    }
    match failed {
        0 => Ok(()),
        failed => Err(format!("{failed} did not come to a whole end").into()),
    }
}

async fn all(kind: Kind, address: &str, load: Load) -> Figures {
    let before = resident_kib();
    let began = Instant::now();
    let tasks: Vec<_> = (0..load.sessions)
        .map(|number| {
            let address = address.to_owned();
            tokio::spawn(async move {
                // They do not all begin in one moment.
                tokio::time::sleep(Duration::from_millis(number * 2)).await;
                talk(kind, &address, load.seconds).await
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(load.sessions * 2 + load.seconds * 500)).await;
    let kib_each = resident_kib().saturating_sub(before) / load.sessions;
    let mut figures = Figures::default();
    figures.kib_each = kib_each;
    for task in tasks {
        match task.await.map_err(Failure::from).and_then(|seen| seen) {
            Ok(seen) => figures.add(seen, load.seconds),
            Err(error) => figures.failed.push(error.to_string()),
        }
    }
    figures.took = began.elapsed();
    figures
}

async fn talk(kind: Kind, address: &str, seconds: u64) -> Result<Seen, Failure> {
    match kind {
        Kind::Bare => bare::talk(address, seconds).await,
        Kind::Session => session::talk(address, seconds).await,
    }
}

/// Longer than any of them takes on a machine that does other work too.
pub(crate) fn bound(seconds: u64) -> Duration {
    Duration::from_secs(seconds * 4 + 60)
}
