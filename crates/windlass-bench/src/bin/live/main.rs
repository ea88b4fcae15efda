//! Many live sessions at once, with audio both ways: what one of them costs, what a session adds to the wait, and that
//! nothing is lost.
//!
//! `live [SESSIONS] [SECONDS] [ROUNDS]`. Bare connections do the same before the sessions do: what is more than theirs is
//! what sessions add. The server, the connections and the sessions are processes of their own, so that the memory
//! measured is theirs alone.
//!
//! Everything here ends: a session that does not come to its end in time is an error that says how far it came, and
//! the server ends with whoever started it.

mod bare;
mod figures;
mod serve;
mod session;

use std::process::Command;
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
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words.as_slice() {
        [serve::WORD, seconds] => runtime()?.block_on(serve::serve(seconds.parse()?)),
        ["bare", rest @ ..] => measure(Kind::Bare, rest),
        ["session", rest @ ..] => measure(Kind::Session, rest),
        rest => {
            let number = |place: usize, default: u64| match rest.get(place) {
                Some(word) => word.parse().map_err(|_| format!("`{word}` is not a number")),
                None => Ok(default),
            };
            let load = Load { sessions: number(0, 1000)?.max(1), seconds: number(1, 5)?.max(1) };
            (0..number(2, 1)?.max(1)).try_for_each(|_| compare(load))
        }
    }
}

fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build()
}

/// Measures connections and sessions, each in a process of its own.
fn compare(load: Load) -> Result<(), Failure> {
    let Load { sessions, seconds } = load;
    println!("{sessions} at once, {seconds} s each, with audio both ways");
    let server = Server::start(seconds)?;
    for kind in ["bare", "session"] {
        let status = Command::new(std::env::current_exe()?)
            .args([kind, &server.address, &sessions.to_string(), &seconds.to_string()])
            .status()?;
        if !status.success() {
            return Err(format!("{kind}: {status}").into());
        }
    }
    Ok(())
}

fn measure(kind: Kind, words: &[&str]) -> Result<(), Failure> {
    let [address, sessions, seconds] = words else {
        return Err("an address and two numbers are wanted".into());
    };
    let load = Load { sessions: sessions.parse()?, seconds: seconds.parse()? };
    let figures = runtime()?.block_on(async {
        // The first of its kind pays for what all of them share.
        let alone = talk(kind, address, load.seconds).await?;
        Ok::<_, Failure>(Figures { alone: alone.to_first_audio, ..all(kind, address, load).await })
    })?;
    println!("{kind:?}: {figures}");
    match figures.failed.len() {
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
    let mut figures = Figures { kib_each, ..Figures::default() };
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
