//! The journal of a realtime session: the conversation, the current agent, and the runs that execute tool
//! calls. A session is resumed from it. The results of the calls are in the journals of their runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use windlass::core::{
    budget::{BudgetLedger, BudgetSpending, OnBudgetReached, ReachedBudget},
    id::{AgentName, CallId, RunId},
    item::Role,
    usage::Usage,
};
use windlass::error::{StoreError, StoreErrorKind};

use crate::history::{RealtimeHistory, RealtimeItem, RealtimeItemKind};
use crate::id::{ItemId, ResponseId};
use crate::machine::RespondWhen;
use crate::sync::lock;

/// The version of the session journal's format. Version 2 added the entries of budgets.
pub const REALTIME_JOURNAL_FORMAT: u32 = 2;

/// A journal entry of a realtime session.
///
/// Exhaustive on purpose: a replay must handle every entry of its format, and a new kind of entry is a new
/// format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum RealtimeEntry {
    /// The session started or was resumed.
    Opened {
        /// The format version.
        format: u32,
        /// The current agent.
        agent: AgentName,
    },
    /// An item was added to the conversation or changed.
    ItemChanged {
        /// The item.
        item: RealtimeItem,
        /// The preceding item; absent if the item is the first.
        after: Option<ItemId>,
        /// The time of the model's response to the item.
        #[serde(default, skip_serializing_if = "RespondWhen::is_now")]
        respond: RespondWhen,
    },
    /// An item was removed.
    ItemRemoved {
        /// Id of the item.
        item: ItemId,
    },
    /// Another agent became current.
    AgentChanged {
        /// The agent.
        agent: AgentName,
    },
    /// The calls of a response are about to be executed (write-ahead).
    CallsPlanned {
        /// The run that executes them.
        run: RunId,
        /// The response that contains them.
        response: ResponseId,
        /// The agent that made them.
        agent: AgentName,
        /// The calls.
        calls: Vec<RealtimeItem>,
    },
    /// A response, or a model request of a call, is about to be sent and is reserved in the budgets that cover it.
    BudgetReserved {
        /// Id of the request.
        request: CallId,
        /// The agent whose response it is; absent for a request inside a call.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent: Option<AgentName>,
        /// The estimate.
        estimate: BudgetSpending,
        /// Time in milliseconds that the session has been open, without waits for people about budgets.
        active_ms: u64,
    },
    /// A reserved request was answered or counts as answered.
    BudgetSpent {
        /// Id of the request.
        request: CallId,
        /// The agent whose response it was; absent for a request inside a call.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent: Option<AgentName>,
        /// The usage.
        usage: Usage,
        /// Time in milliseconds that the session has been open, without waits for people about budgets.
        active_ms: u64,
    },
    /// A budget does not allow the next request.
    BudgetReached {
        /// The budget.
        budget: ReachedBudget,
        /// The reaction.
        reaction: OnBudgetReached,
        /// Time in milliseconds that the session has been open, without waits for people about budgets.
        active_ms: u64,
    },
    /// A person has granted more.
    BudgetGranted {
        /// The budget.
        budget: ReachedBudget,
        /// The amount, in the unit of the ledger.
        amount: u64,
    },
    /// The session ended.
    Closed,
}

/// A store of session journals.
pub trait RealtimeJournal: Send + Sync + 'static {
    /// Appends entries atomically; the first has the index `at`, which must be the next index. The entries must
    /// be durable when the future resolves.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`StoreErrorKind::Stale`] if another process has appended to the session.
    fn append<'a>(
        &'a self,
        session: &'a RunId,
        at: u64,
        entries: Vec<RealtimeEntry>,
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// Returns all entries of a session; empty if the session is unknown.
    fn load<'a>(&'a self, session: &'a RunId) -> BoxFuture<'a, Result<Vec<RealtimeEntry>, StoreError>>;
}

/// An in-memory store of session journals. Clones share the journals.
#[derive(Clone, Debug, Default)]
pub struct MemoryJournal {
    sessions: Arc<Mutex<BTreeMap<RunId, Vec<RealtimeEntry>>>>,
}

impl RealtimeJournal for MemoryJournal {
    fn append<'a>(
        &'a self,
        session: &'a RunId,
        at: u64,
        entries: Vec<RealtimeEntry>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        let mut sessions = lock(&self.sessions);
        let known = sessions.entry(session.clone()).or_default();
        if known.len() as u64 != at {
            return std::future::ready(Err(StoreError::stale_read(session, known.len() as u64, at))).boxed();
        }
        known.extend(entries);
        std::future::ready(Ok(())).boxed()
    }

    fn load<'a>(&'a self, session: &'a RunId) -> BoxFuture<'a, Result<Vec<RealtimeEntry>, StoreError>> {
        let entries = lock(&self.sessions).get(session).cloned().unwrap_or_default();
        std::future::ready(Ok(entries)).boxed()
    }
}

/// A store of session journals in a folder: one file per session, one JSON entry per line. The file has the name of the
/// session; bytes other than lower-case letters, digits and `-` are escaped as `_` and two hexadecimal digits, so that two
/// sessions never share a file.
#[derive(Clone, Debug)]
pub struct FolderJournal {
    folder: PathBuf,
    /// The ends of journals that this process has written, so that an append does not read the whole file.
    known_ends: Arc<Mutex<BTreeMap<RunId, JournalEnd>>>,
}

/// The end of a journal file after an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct JournalEnd {
    bytes: u64,
    entries: u64,
}

/// Number of journals whose ends are remembered.
const MAX_KNOWN_ENDS: usize = 4096;

impl FolderJournal {
    /// Creates a store in this folder. The folder is created by the first append.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into(), known_ends: Arc::default() }
    }

    fn file_path(&self, session: &RunId) -> PathBuf {
        let mut name = String::new();
        for byte in session.as_str().bytes() {
            match byte {
                b'a'..=b'z' | b'0'..=b'9' | b'-' => name.push(char::from(byte)),
                // File systems may not tell upper-case letters from lower-case ones.
                _ => name.push_str(&format!("_{byte:02x}")),
            }
        }
        self.folder.join(format!("{name}.jsonl"))
    }
}

impl RealtimeJournal for FolderJournal {
    fn append<'a>(
        &'a self,
        session: &'a RunId,
        at: u64,
        entries: Vec<RealtimeEntry>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        let (path, folder, session) = (self.file_path(session), self.folder.clone(), session.clone());
        let known_ends = self.known_ends.clone();
        run_blocking(move || {
            let known_end = lock(&known_ends).remove(&session);
            let (mut file, end) = open_journal_file(&folder, &path, known_end).map_err(to_store_error)?;
            if end.entries != at {
                return Err(StoreError::stale_read(&session, end.entries, at));
            }
            let mut lines = String::new();
            for entry in &entries {
                lines.push_str(&serde_json::to_string(entry).unwrap_or_default());
                lines.push('\n');
            }
            file.write_all(lines.as_bytes()).and_then(|()| file.sync_data()).map_err(to_store_error)?;
            let end = JournalEnd {
                bytes: end.bytes + lines.len() as u64,
                entries: end.entries + entries.len() as u64,
            };
            if entries.last() != Some(&RealtimeEntry::Closed) {
                let mut ends = lock(&known_ends);
                if ends.len() >= MAX_KNOWN_ENDS {
                    ends.pop_first();
                }
                ends.insert(session, end);
            }
            Ok(())
        })
    }

    fn load<'a>(&'a self, session: &'a RunId) -> BoxFuture<'a, Result<Vec<RealtimeEntry>, StoreError>> {
        let (path, session) = (self.file_path(session), session.clone());
        run_blocking(move || {
            let bytes = match std::fs::read(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
                read => read.map_err(to_store_error)?,
            };
            let lines = whole_lines(&bytes).split_inclusive(|byte| *byte == b'\n');
            let entries = lines.map(serde_json::from_slice).collect::<Result<_, _>>();
            entries.map_err(|error| {
                let message = format!("the journal of session `{session}` cannot be read: {error}");
                StoreError::with_kind(StoreErrorKind::Corrupt, message)
            })
        })
    }
}

/// Returns the lines of a journal file that were written to their end. A torn line may end inside a letter.
fn whole_lines(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
    &bytes[..end]
}

/// Opens and locks a journal file for appending, and returns it with its end. A torn last line is removed. A file that has
/// the known length is not read: a journal only grows.
fn open_journal_file(
    folder: &Path,
    path: &Path,
    known_end: Option<JournalEnd>,
) -> std::io::Result<(File, JournalEnd)> {
    std::fs::create_dir_all(folder)?;
    let mut file = File::options().create(true).append(true).read(true).open(path)?;
    // The exclusive lock makes concurrent appends of two processes sequential, so that the second sees a stale
    // index.
    file.lock()?;
    let length = file.metadata()?.len();
    if let Some(end) = known_end.filter(|end| end.bytes == length) {
        return Ok((file, end));
    }
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    let whole = whole_lines(&bytes);
    if whole.len() < bytes.len() {
        // A process crashed while it wrote the last line.
        file.set_len(whole.len() as u64)?;
    }
    let entries = whole.iter().filter(|byte| **byte == b'\n').count();
    Ok((file, JournalEnd { bytes: whole.len() as u64, entries: entries as u64 }))
}

/// Converts an error from a journal file.
fn to_store_error(error: std::io::Error) -> StoreError {
    let message = format!("the journal file cannot be accessed: {error}");
    StoreError::with_kind(StoreErrorKind::Disk, message).with_source(error)
}

/// Runs blocking file I/O on the blocking thread pool.
fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> BoxFuture<'static, Result<T, StoreError>> {
    async {
        let task_failed = |error| StoreError::new(format!("the journal writer task failed: {error}"));
        tokio::task::spawn_blocking(work).await.map_err(task_failed)?
    }
    .boxed()
}

/// The state of a session, replayed from its journal.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplayedSession {
    /// Number of journal entries.
    pub entry_count: u64,
    /// The conversation.
    pub history: RealtimeHistory,
    /// The agent that was current last.
    pub agent: Option<AgentName>,
    /// The calls, with the runs that execute them.
    pub calls: Vec<CallBatchRecord>,
    /// Items that do not request a response of their own.
    pub deferred_items: BTreeSet<ItemId>,
    /// The reserved and spent amounts of the session.
    pub ledger: BudgetLedger,
    /// Number of questions to people about budgets.
    pub budget_questions: u64,
    /// The budget about which a person is asked.
    pub open_budget_question: Option<ReachedBudget>,
}

/// The calls of one response, from the journal of a session.
#[derive(Clone, Debug, PartialEq)]
pub struct CallBatchRecord {
    /// The run that executes them.
    pub run: RunId,
    /// Id of the response.
    pub response: ResponseId,
    /// The agent that made them.
    pub agent: AgentName,
    /// The calls.
    pub calls: Vec<RealtimeItem>,
}

impl ReplayedSession {
    /// Replays journal entries.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`StoreErrorKind::UnsupportedVersion`] if the journal's format is newer than
    /// [`REALTIME_JOURNAL_FORMAT`].
    pub fn replay(entries: &[RealtimeEntry]) -> Result<Self, StoreError> {
        let mut record = Self { entry_count: entries.len() as u64, ..Self::default() };
        for entry in entries {
            match entry.clone() {
                RealtimeEntry::Opened { format, .. } if format > REALTIME_JOURNAL_FORMAT => {
                    let message = format!(
                        "session format {format} is newer than the supported {REALTIME_JOURNAL_FORMAT}"
                    );
                    return Err(StoreError::with_kind(StoreErrorKind::UnsupportedVersion, message));
                }
                RealtimeEntry::Opened { agent, .. } | RealtimeEntry::AgentChanged { agent } => {
                    record.agent = Some(agent)
                }
                RealtimeEntry::ItemChanged { item, after, respond } => {
                    if !respond.is_now() {
                        record.deferred_items.insert(item.id.clone());
                    }
                    drop(record.history.overwrite_item(item, after.as_ref()));
                }
                RealtimeEntry::ItemRemoved { item } => drop(record.history.remove_item(&item)),
                RealtimeEntry::CallsPlanned { run, response, agent, calls } => {
                    record.calls.push(CallBatchRecord { run, response, agent, calls });
                }
                RealtimeEntry::BudgetReserved { request, agent, estimate, active_ms } => {
                    record.ledger.reserve(&[request], agent.into_iter().collect(), estimate, active_ms);
                }
                RealtimeEntry::BudgetSpent { request, agent, usage, active_ms } => {
                    record.ledger.note_time(active_ms);
                    record.ledger.spend(&[request], agent.as_slice(), &usage, true);
                }
                RealtimeEntry::BudgetReached { budget, reaction, active_ms } => {
                    record.ledger.note_time(active_ms);
                    if reaction == OnBudgetReached::AskPerson {
                        record.budget_questions += 1;
                        record.open_budget_question = Some(budget);
                    }
                }
                RealtimeEntry::BudgetGranted { budget, amount } => {
                    record.ledger.grant(&budget, amount);
                    record.open_budget_question = None;
                }
                // A session that ended because nobody granted more asks anew when it is resumed.
                RealtimeEntry::Closed => record.open_budget_question = None,
            }
        }
        Ok(record)
    }

    /// Returns the newest item if it requests a response and has none.
    pub fn unanswered_item(&self) -> Option<&ItemId> {
        let newest = self.history.items().iter().rev().find(|item| match &item.kind {
            RealtimeItemKind::Message { role: Role::System, .. } | RealtimeItemKind::Other { .. } => false,
            RealtimeItemKind::Message { .. }
            | RealtimeItemKind::Call { .. }
            | RealtimeItemKind::Output { .. } => !self.deferred_items.contains(&item.id),
        })?;
        match &newest.kind {
            RealtimeItemKind::Message { role: Role::User, .. } | RealtimeItemKind::Output { .. } => {
                Some(&newest.id)
            }
            RealtimeItemKind::Message { .. }
            | RealtimeItemKind::Call { .. }
            | RealtimeItemKind::Other { .. } => None,
        }
    }
}
