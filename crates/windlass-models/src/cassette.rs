//! Cassettes: exchanges with a provider, recorded once and played in tests. Of the headers only those that mean
//! something to a reader are written; a request's are not, so a key never is.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::endpoint::Head;

/// The headers of answers that are kept.
const KEPT_HEADERS: [&str; 5] =
    ["content-type", "x-request-id", "request-id", "retry-after", "retry-after-ms"];

/// A file with exchanges. Where it is there, they are played, in order, and nothing is sent; where it is not, the
/// provider is asked, and what it answers is written.
///
/// A request that differs from the recorded one is an error that says where: the program has changed, and the
/// cassette is to be recorded again (delete the file).
#[derive(Clone, Debug)]
pub struct Cassette {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    mode: Mode,
    exchanges: Mutex<Vec<Exchange>>,
    next: Mutex<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Play,
    Record,
}

/// Why a cassette cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CassetteError {
    /// The file cannot be read.
    #[error("the cassette {} cannot be read: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The file is not a cassette.
    #[error("{} is not a cassette: {source}; hint: delete it to record it again", path.display())]
    NotACassette {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: serde_json::Error,
    },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Exchange {
    path: String,
    request: Value,
    status: u16,
    headers: Vec<(String, String)>,
    chunks: Vec<String>,
}

impl Cassette {
    /// The cassette in this file: played where it is there, recorded where it is not.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CassetteError> {
        let path = path.as_ref().to_owned();
        let (mode, exchanges) = match fs::read(&path) {
            Ok(bytes) => {
                let exchanges = serde_json::from_slice(&bytes)
                    .map_err(|source| CassetteError::NotACassette { path: path.clone(), source })?;
                (Mode::Play, exchanges)
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => (Mode::Record, Vec::new()),
            Err(source) => return Err(CassetteError::Unreadable { path, source }),
        };
        let exchanges = Mutex::new(exchanges);
        Ok(Self { inner: Arc::new(Inner { path, mode, exchanges, next: Mutex::new(0) }) })
    }

    /// How many exchanges it holds.
    pub fn len(&self) -> usize {
        self.inner.exchanges.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The next recorded answer; none where the cassette is being recorded.
    pub(crate) fn play(&self, path: &str, body: &[u8]) -> Result<Option<(Head, VecDeque<Bytes>)>, String> {
        if self.inner.mode == Mode::Record {
            return Ok(None);
        }
        let exchanges = self.inner.exchanges.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = self.inner.next.lock().unwrap_or_else(PoisonError::into_inner);
        let file = self.inner.path.display();
        let Some(exchange) = exchanges.get(*next) else {
            return Err(format!("the cassette {file} has only {} exchanges", exchanges.len()));
        };
        let asked: Value = serde_json::from_slice(body).unwrap_or_default();
        if exchange.path != path || exchange.request != asked {
            let place = if exchange.path == path {
                difference(&exchange.request, &asked, "$")
            } else {
                format!("the path is `{path}`, and was `{}`", exchange.path)
            };
            return Err(format!("request {} is not the one in the cassette {file}: {place}", *next + 1));
        }
        *next += 1;
        let mut head = Head { status: exchange.status, ..Head::default() };
        for (name, value) in &exchange.headers {
            if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(value)) {
                head.headers.insert(name, value);
            }
        }
        let chunks = exchange.chunks.iter().map(|chunk| Bytes::from(chunk.clone())).collect();
        Ok(Some((head, chunks)))
    }

    /// Begins to record an answer.
    pub(crate) fn record(&self, path: &str, body: &[u8], head: &Head) -> Recording {
        let header = |name: &&str| {
            let value = head.headers.get(*name)?.to_str().ok()?;
            Some(((*name).to_owned(), value.to_owned()))
        };
        let exchange = Exchange {
            path: path.to_owned(),
            request: serde_json::from_slice(body).unwrap_or_default(),
            status: head.status,
            headers: KEPT_HEADERS.iter().filter_map(header).collect(),
            chunks: Vec::new(),
        };
        Recording { cassette: self.clone(), exchange: Some(exchange), pending: Vec::new() }
    }

    fn keep(&self, exchange: Exchange) {
        let mut exchanges = self.inner.exchanges.lock().unwrap_or_else(PoisonError::into_inner);
        exchanges.push(exchange);
        // A cassette that cannot be written is missing the next time, and recorded then.
        if let Ok(text) = serde_json::to_vec_pretty(&*exchanges) {
            let _ = fs::write(&self.inner.path, text);
        }
    }
}

/// An answer that is being recorded.
pub(crate) struct Recording {
    cassette: Cassette,
    exchange: Option<Exchange>,
    /// Bytes at the end of a chunk that are not yet a character.
    pending: Vec<u8>,
}

impl Recording {
    pub(crate) fn add(&mut self, chunk: &[u8]) {
        let Some(exchange) = &mut self.exchange else { return };
        self.pending.extend_from_slice(chunk);
        let whole = match std::str::from_utf8(&self.pending) {
            Ok(_) => self.pending.len(),
            Err(error) => error.valid_up_to(),
        };
        let rest = self.pending.split_off(whole);
        let text = std::mem::replace(&mut self.pending, rest);
        if let Ok(text) = String::from_utf8(text)
            && !text.is_empty()
        {
            exchange.chunks.push(text);
        }
    }

    pub(crate) fn end(&mut self) {
        if let Some(exchange) = self.exchange.take() {
            self.cassette.keep(exchange);
        }
    }
}

/// Where two values differ first.
fn difference(recorded: &Value, asked: &Value, place: &str) -> String {
    match (recorded, asked) {
        (Value::Object(recorded), Value::Object(asked)) => {
            let keys = recorded.keys().chain(asked.keys());
            let null = Value::Null;
            let differs = |key: &&String| recorded.get(*key) != asked.get(*key);
            keys.into_iter().find(differs).map_or_else(String::new, |key| {
                let of = |map: &serde_json::Map<String, Value>| map.get(key).unwrap_or(&null).clone();
                difference(&of(recorded), &of(asked), &format!("{place}.{key}"))
            })
        }
        (Value::Array(recorded), Value::Array(asked)) if recorded.len() == asked.len() => {
            let pairs = recorded.iter().zip(asked).enumerate();
            let mut differing = pairs.filter(|(_, (recorded, asked))| recorded != asked);
            differing.next().map_or_else(String::new, |(index, (recorded, asked))| {
                difference(recorded, asked, &format!("{place}[{index}]"))
            })
        }
        (Value::Array(recorded), Value::Array(asked)) => {
            format!("{place} has {} elements, and had {}", asked.len(), recorded.len())
        }
        _ => format!("{place} differs"),
    }
}
