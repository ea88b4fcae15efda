//! Cassettes: exchanges with a provider, recorded once and replayed in tests. Request headers are never written,
//! so a key never is; of the response headers only [`RECORDED_HEADERS`] are written.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use data_encoding::BASE64;
use hyper::header::{HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::endpoint::ResponseHead;

/// The response headers that are recorded.
const RECORDED_HEADERS: [&str; 5] =
    ["content-type", "x-request-id", "request-id", "retry-after", "retry-after-ms"];

/// A file of recorded exchanges. If the file exists, the exchanges are replayed in order and nothing is sent;
/// otherwise requests go to the provider and the exchanges are written to the file.
///
/// A request that differs from the recorded one fails at once, with the place of the first difference and both values. If
/// the program has changed, delete the file to record it again. [`Cassette::play`] never records, for tests that must
/// not reach a provider. [`Cassette::unplayed`] counts the exchanges that no request has used.
#[derive(Clone, Debug)]
pub struct Cassette {
    state: Arc<CassetteState>,
    /// Fields of requests that are not compared, as JSON pointers.
    ignored_fields: Vec<String>,
}

#[derive(Debug)]
struct CassetteState {
    path: PathBuf,
    mode: CassetteMode,
    exchanges: Mutex<Vec<RecordedExchange>>,
    next_index: Mutex<usize>,
    /// The reason why the last exchange could not be written.
    write_error: Mutex<Option<String>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CassetteMode {
    Play,
    Record,
}

/// An error of opening a cassette: its file exists, but cannot be read or is not a cassette.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CassetteError {
    /// The file cannot be read.
    #[error("the cassette {} cannot be read: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The file does not exist, and the cassette is only played.
    #[error("there is no cassette {}; hint: `Cassette::open` records it with a key of the provider", path.display())]
    NotRecorded {
        /// The file.
        path: PathBuf,
    },
    /// The folder of a new cassette cannot be created.
    #[error("the cassette {} cannot be recorded: {source}", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The file is not a cassette.
    #[error("{} is not a cassette: {source}; hint: delete it to record it again", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: serde_json::Error,
    },
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct RecordedExchange {
    path: String,
    request: Value,
    status: u16,
    headers: Vec<(String, String)>,
    chunks: Vec<RecordedChunk>,
}

/// A part of a response's body.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum RecordedChunk {
    Text(String),
    /// Bytes that are no text, such as those of Amazon's event streams.
    Binary {
        base64: String,
    },
}

impl RecordedChunk {
    fn from_binary(bytes: &[u8]) -> Self {
        Self::Binary { base64: BASE64.encode(bytes) }
    }

    fn to_bytes(&self) -> Result<Bytes, String> {
        match self {
            Self::Text(text) => Ok(Bytes::from(text.clone())),
            Self::Binary { base64 } => match BASE64.decode(base64.as_bytes()) {
                Ok(bytes) => Ok(bytes.into()),
                Err(error) => {
                    Err(format!("a chunk is no base64: {error}; hint: delete the file to record it again"))
                }
            },
        }
    }
}

impl Cassette {
    /// Opens a cassette: for replay if the file exists, for recording otherwise.
    ///
    /// # Errors
    ///
    /// Fails if the file is no cassette, or if the folder of a new one cannot be created: nothing is sent that could not
    /// be recorded.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, CassetteError> {
        let path = path.as_ref().to_owned();
        match Self::play(&path) {
            Err(CassetteError::NotRecorded { .. }) => {}
            played => return played,
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        if let Some(folder) = folder {
            fs::create_dir_all(folder)
                .map_err(|source| CassetteError::Unwritable { path: path.clone(), source })?;
        }
        Ok(Self::new(path, CassetteMode::Record, Vec::new()))
    }

    /// Opens a cassette for replay only.
    ///
    /// # Errors
    ///
    /// Fails if the file does not exist, cannot be read or is no cassette.
    pub fn play(path: impl AsRef<Path>) -> Result<Self, CassetteError> {
        let path = path.as_ref().to_owned();
        match fs::read(&path) {
            Ok(bytes) => {
                let exchanges = serde_json::from_slice(&bytes)
                    .map_err(|source| CassetteError::Malformed { path: path.clone(), source })?;
                Ok(Self::new(path, CassetteMode::Play, exchanges))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Err(CassetteError::NotRecorded { path })
            }
            Err(source) => Err(CassetteError::Unreadable { path, source }),
        }
    }

    fn new(path: PathBuf, mode: CassetteMode, exchanges: Vec<RecordedExchange>) -> Self {
        let (exchanges, next_index) = (Mutex::new(exchanges), Mutex::new(0));
        let write_error = Mutex::new(None);
        let state = Arc::new(CassetteState { path, mode, exchanges, next_index, write_error });
        Self { state, ignored_fields: Vec::new() }
    }

    /// Leaves a field out of the comparison of requests, for values that differ in every run: a JSON pointer such as
    /// `/metadata/trace_id`. The segment `*` stands for every element or field. The key of the prompt cache is never
    /// compared.
    #[must_use]
    pub fn ignore_field(mut self, pointer: impl Into<String>) -> Self {
        self.ignored_fields.push(pointer.into());
        self
    }

    /// Returns a request without the fields that are not compared.
    fn comparable_request(&self, mut request: Value) -> Value {
        // A run has another one each time, and no answer depends on it.
        remove_field(&mut request, &["prompt_cache_key"]);
        for pointer in &self.ignored_fields {
            let segments: Vec<&str> = pointer.split('/').skip(1).collect();
            remove_field(&mut request, &segments);
        }
        request
    }

    /// Returns the number of recorded exchanges that no request has used yet; 0 while the cassette is recorded.
    pub fn unplayed(&self) -> usize {
        match self.state.mode {
            CassetteMode::Play => {
                let played = *self.state.next_index.lock().unwrap_or_else(PoisonError::into_inner);
                self.len().saturating_sub(played)
            }
            CassetteMode::Record => 0,
        }
    }

    /// Returns the number of exchanges.
    pub fn len(&self) -> usize {
        self.state.exchanges.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Returns true if there are no exchanges.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the next recorded response, or `None` if the cassette is being recorded.
    ///
    /// # Errors
    ///
    /// Returns a description if the request differs from the recorded one or no exchange is left.
    pub(crate) fn replay_next(
        &self,
        path: &str,
        body: &[u8],
    ) -> Result<Option<(ResponseHead, VecDeque<Bytes>)>, String> {
        if self.state.mode == CassetteMode::Record {
            let failed = self.state.write_error.lock().unwrap_or_else(PoisonError::into_inner);
            return failed.as_ref().map_or(Ok(None), |why| Err(why.clone()));
        }
        let exchanges = self.state.exchanges.lock().unwrap_or_else(PoisonError::into_inner);
        let mut next = self.state.next_index.lock().unwrap_or_else(PoisonError::into_inner);
        let file = self.state.path.display();
        let Some(exchange) = exchanges.get(*next) else {
            let count = exchanges.len();
            return Err(format!(
                "the cassette {file} has only {count} exchanges; hint: delete it to record it again"
            ));
        };
        let asked = self.comparable_request(serde_json::from_slice(body).unwrap_or_default());
        let recorded = self.comparable_request(exchange.request.clone());
        if exchange.path != path || recorded != asked {
            let place = if exchange.path == path {
                first_difference(&recorded, &asked, "$")
            } else {
                format!("the path is `{path}`, recorded is `{}`", exchange.path)
            };
            return Err(format!(
                "request {} is not the one in the cassette {file}: {place}; hint: delete it to record it again, or \
                 leave the field out with `ignore_field` if it differs in every run",
                *next + 1
            ));
        }
        *next += 1;
        let mut head = ResponseHead { status: exchange.status, ..ResponseHead::default() };
        for (name, value) in &exchange.headers {
            if let (Ok(name), Ok(value)) = (name.parse::<HeaderName>(), HeaderValue::from_str(value)) {
                head.headers.insert(name, value);
            }
        }
        let chunks: Result<_, String> = exchange.chunks.iter().map(RecordedChunk::to_bytes).collect();
        let chunks = chunks.map_err(|why| format!("the cassette {file}: {why}"))?;
        Ok(Some((head, chunks)))
    }

    /// Starts to record a response.
    pub(crate) fn start_recording(&self, path: &str, body: &[u8], head: &ResponseHead) -> ExchangeRecorder {
        let header = |name: &&str| {
            let value = head.headers.get(*name)?.to_str().ok()?;
            Some(((*name).to_owned(), value.to_owned()))
        };
        let exchange = RecordedExchange {
            path: path.to_owned(),
            request: serde_json::from_slice(body).unwrap_or_default(),
            status: head.status,
            headers: RECORDED_HEADERS.iter().filter_map(header).collect(),
            chunks: Vec::new(),
        };
        ExchangeRecorder { cassette: self.clone(), exchange: Some(exchange), pending: Vec::new() }
    }

    fn save_exchange(&self, exchange: RecordedExchange) {
        let mut exchanges = self.state.exchanges.lock().unwrap_or_else(PoisonError::into_inner);
        exchanges.push(exchange);
        let written = serde_json::to_vec_pretty(&*exchanges).map_err(std::io::Error::from);
        if let Err(error) = written.and_then(|text| fs::write(&self.state.path, text)) {
            let message = format!("the cassette {} cannot be written: {error}", self.state.path.display());
            // The next request fails with it: no more is sent that is not recorded.
            *self.state.write_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(message);
        }
    }
}

/// A response that is being recorded.
pub(crate) struct ExchangeRecorder {
    cassette: Cassette,
    exchange: Option<RecordedExchange>,
    /// Bytes at the end of a chunk that do not yet form a character.
    pending: Vec<u8>,
}

impl ExchangeRecorder {
    pub(crate) fn push_chunk(&mut self, chunk: &[u8]) {
        let Some(exchange) = &mut self.exchange else { return };
        self.pending.extend_from_slice(chunk);
        let whole = match std::str::from_utf8(&self.pending) {
            Ok(_) => self.pending.len(),
            // A character may continue in the next chunk.
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            Err(_) => {
                exchange.chunks.push(RecordedChunk::from_binary(&std::mem::take(&mut self.pending)));
                return;
            }
        };
        let rest = self.pending.split_off(whole);
        let text = std::mem::replace(&mut self.pending, rest);
        if let Ok(text) = String::from_utf8(text)
            && !text.is_empty()
        {
            exchange.chunks.push(RecordedChunk::Text(text));
        }
    }

    pub(crate) fn finish(&mut self) {
        if let Some(mut exchange) = self.exchange.take() {
            if !self.pending.is_empty() {
                exchange.chunks.push(RecordedChunk::from_binary(&std::mem::take(&mut self.pending)));
            }
            self.cassette.save_exchange(exchange);
        }
    }
}

/// Removes the fields that a JSON pointer names.
fn remove_field(value: &mut Value, segments: &[&str]) {
    let Some((first, rest)) = segments.split_first() else { return };
    let name = first.replace("~1", "/").replace("~0", "~");
    match value {
        Value::Object(fields) if rest.is_empty() && name == "*" => fields.clear(),
        Value::Object(fields) if rest.is_empty() => {
            fields.remove(&name);
        }
        Value::Object(fields) if name == "*" => {
            fields.values_mut().for_each(|field| remove_field(field, rest))
        }
        Value::Object(fields) => {
            if let Some(field) = fields.get_mut(&name) {
                remove_field(field, rest);
            }
        }
        // An element keeps its place: the number of elements is compared.
        Value::Array(elements) => {
            for (index, element) in elements.iter_mut().enumerate() {
                if name == "*" || name == index.to_string() {
                    match rest {
                        [] => *element = Value::Null,
                        _ => remove_field(element, rest),
                    }
                }
            }
        }
        _ => {}
    }
}

/// Describes the first difference between two values.
fn first_difference(recorded: &Value, asked: &Value, place: &str) -> String {
    match (recorded, asked) {
        (Value::Object(recorded), Value::Object(asked)) => {
            let keys = recorded.keys().chain(asked.keys());
            let null = Value::Null;
            let differs = |key: &&String| recorded.get(*key) != asked.get(*key);
            keys.into_iter().find(differs).map_or_else(String::new, |key| {
                let of = |map: &serde_json::Map<String, Value>| map.get(key).unwrap_or(&null).clone();
                first_difference(&of(recorded), &of(asked), &format!("{place}.{key}"))
            })
        }
        (Value::Array(recorded), Value::Array(asked)) if recorded.len() == asked.len() => {
            let pairs = recorded.iter().zip(asked).enumerate();
            let mut differing = pairs.filter(|(_, (recorded, asked))| recorded != asked);
            differing.next().map_or_else(String::new, |(index, (recorded, asked))| {
                first_difference(recorded, asked, &format!("{place}[{index}]"))
            })
        }
        (Value::Array(recorded), Value::Array(asked)) => {
            format!("{place} has {} elements, recorded are {}", asked.len(), recorded.len())
        }
        _ => format!("{place} is {}, recorded is {}", shorten(asked), shorten(recorded)),
    }
}

/// Returns a value as JSON, cut to a length that fits an error message.
fn shorten(value: &Value) -> String {
    const MAX_CHARS: usize = 200;
    let text = value.to_string();
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    }
}
