//! The journal of a live session: what was said, who is current, and which runs carry out which calls. A session is
//! resumed from it. What the calls did stands in the journals of their runs.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Seek, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use windlass::core::{AgentName, Role, RunId};
use windlass::{StoreError, StoreErrorKind};

use crate::history::{History, LiveItem, LiveItemKind};
use crate::id::{ItemId, ResponseId};
use crate::machine::Answer;

/// The version of the form that journals of sessions have.
pub const LIVE_FORMAT: u32 = 1;

/// Something that happened in a live session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum LiveEntry {
    /// It began, or was resumed.
    Opened {
        /// The version of the form.
        format: u32,
        /// The agent that is current.
        agent: AgentName,
    },
    /// An item is in the conversation, or is another than it was.
    Item {
        /// The item.
        item: LiveItem,
        /// The item before it.
        after: Option<ItemId>,
        /// Whether it is to be answered.
        #[serde(default, skip_serializing_if = "Answer::is_wanted")]
        answer: Answer,
    },
    /// An item is gone.
    Removed {
        /// Which.
        item: ItemId,
    },
    /// Another agent is current.
    Agent {
        /// Which.
        agent: AgentName,
    },
    /// The calls of an answer are about to be carried out.
    Calls {
        /// By which run.
        run: RunId,
        /// Of which answer.
        response: ResponseId,
        /// Made by which agent.
        agent: AgentName,
        /// The calls.
        calls: Vec<LiveItem>,
    },
    /// It ended.
    Closed,
}

/// Where journals of sessions are kept.
pub trait LiveJournal: Send + Sync + 'static {
    /// Adds entries, all or none: the first has the number `at`, which must be the next. They must survive the loss of
    /// the process when the future resolves. An error of kind [`StoreErrorKind::Stale`] says that somebody else goes
    /// on with the session.
    fn append<'a>(
        &'a self,
        session: &'a RunId,
        at: u64,
        entries: Vec<LiveEntry>,
    ) -> BoxFuture<'a, Result<(), StoreError>>;

    /// All entries of a session; none where it is not known.
    fn load<'a>(&'a self, session: &'a RunId) -> BoxFuture<'a, Result<Vec<LiveEntry>, StoreError>>;
}

/// Journals that last as long as somebody holds them.
#[derive(Clone, Debug, Default)]
pub struct MemoryJournal {
    sessions: Arc<Mutex<BTreeMap<RunId, Vec<LiveEntry>>>>,
}

impl LiveJournal for MemoryJournal {
    fn append<'a>(
        &'a self,
        session: &'a RunId,
        at: u64,
        entries: Vec<LiveEntry>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let known = sessions.entry(session.clone()).or_default();
        if known.len() as u64 != at {
            return std::future::ready(Err(StoreError::stale(session, known.len() as u64, at))).boxed();
        }
        known.extend(entries);
        std::future::ready(Ok(())).boxed()
    }

    fn load<'a>(&'a self, session: &'a RunId) -> BoxFuture<'a, Result<Vec<LiveEntry>, StoreError>> {
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        std::future::ready(Ok(sessions.get(session).cloned().unwrap_or_default())).boxed()
    }
}

/// Journals in a folder: one file for each session, one entry a line.
#[derive(Clone, Debug)]
pub struct FolderJournal {
    folder: PathBuf,
}

impl FolderJournal {
    /// Journals in this folder, which is made where it is missing.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    fn file(&self, session: &RunId) -> PathBuf {
        let name: String = session
            .as_str()
            .chars()
            .map(|letter| if letter.is_ascii_alphanumeric() || "-_".contains(letter) { letter } else { '_' })
            .collect();
        self.folder.join(format!("{name}.jsonl"))
    }
}

impl LiveJournal for FolderJournal {
    fn append<'a>(
        &'a self,
        session: &'a RunId,
        at: u64,
        entries: Vec<LiveEntry>,
    ) -> BoxFuture<'a, Result<(), StoreError>> {
        let (path, folder, session) = (self.file(session), self.folder.clone(), session.clone());
        off_the_runtime(move || {
            std::fs::create_dir_all(&folder)?;
            let mut file = std::fs::OpenOptions::new().create(true).append(true).read(true).open(&path)?;
            // Whoever writes holds the file, so that of two processes one finds that the other was first.
            file.lock()?;
            let mut text = String::new();
            file.rewind()?;
            file.read_to_string(&mut text)?;
            let whole = text.rfind('\n').map_or(0, |end| end + 1);
            if whole < text.len() {
                // A process died while it wrote its last line.
                file.set_len(whole as u64)?;
            }
            let known = text[..whole].lines().count() as u64;
            if known != at {
                return Ok(Err(StoreError::stale(&session, known, at)));
            }
            let mut lines = String::new();
            for entry in &entries {
                lines.push_str(&serde_json::to_string(entry).unwrap_or_default());
                lines.push('\n');
            }
            file.write_all(lines.as_bytes())?;
            file.sync_data()?;
            Ok(Ok(()))
        })
    }

    fn load<'a>(&'a self, session: &'a RunId) -> BoxFuture<'a, Result<Vec<LiveEntry>, StoreError>> {
        let (path, session) = (self.file(session), session.clone());
        off_the_runtime(move || {
            let text = match std::fs::read_to_string(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Ok(Vec::new())),
                read => read?,
            };
            let whole = text.rfind('\n').map_or("", |end| &text[..end]);
            let entries = whole.lines().map(serde_json::from_str).collect::<Result<_, _>>();
            Ok(entries.map_err(|error| {
                let message = format!("the journal of session `{session}` cannot be read: {error}");
                StoreError::of(StoreErrorKind::Corrupt, message)
            }))
        })
    }
}

fn off_the_runtime<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<Result<T, StoreError>> + Send + 'static,
) -> BoxFuture<'static, Result<T, StoreError>> {
    async {
        match tokio::task::spawn_blocking(work).await {
            Ok(Ok(result)) => result,
            Ok(Err(error)) => {
                Err(StoreError::of(StoreErrorKind::Disk, format!("the journal's file: {error}"))
                    .caused_by(error))
            }
            Err(error) => Err(StoreError::new(format!("the journal's writer is gone: {error}"))),
        }
    }
    .boxed()
}

/// What the journal of a session adds up to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LiveRecord {
    /// How many entries there are.
    pub entries: u64,
    /// What was said.
    pub history: History,
    /// The agent that was current last.
    pub agent: Option<AgentName>,
    /// The calls, and the runs that carry them out.
    pub calls: Vec<CallsRecord>,
    /// Items that are there for a later answer.
    pub not_yet: BTreeSet<ItemId>,
}

/// The calls of one answer, in the journal of a session.
#[derive(Clone, Debug, PartialEq)]
pub struct CallsRecord {
    /// The run that carries them out.
    pub run: RunId,
    /// The answer.
    pub response: ResponseId,
    /// The agent that made them.
    pub agent: AgentName,
    /// The calls.
    pub calls: Vec<LiveItem>,
}

impl LiveRecord {
    /// Adds entries up.
    pub fn replay(entries: &[LiveEntry]) -> Result<Self, StoreError> {
        let mut record = Self { entries: entries.len() as u64, ..Self::default() };
        for entry in entries {
            match entry.clone() {
                LiveEntry::Opened { format, .. } if format > LIVE_FORMAT => {
                    let message =
                        format!("the session was written in format {format}; this reads up to {LIVE_FORMAT}");
                    return Err(StoreError::of(StoreErrorKind::TooNew, message));
                }
                LiveEntry::Opened { agent, .. } | LiveEntry::Agent { agent } => record.agent = Some(agent),
                LiveEntry::Item { item, after, answer } => {
                    if !answer.is_wanted() {
                        record.not_yet.insert(item.id.clone());
                    }
                    drop(record.history.set(item, after.as_ref()));
                }
                LiveEntry::Removed { item } => drop(record.history.remove(&item)),
                LiveEntry::Calls { run, response, agent, calls } => {
                    record.calls.push(CallsRecord { run, response, agent, calls });
                }
                LiveEntry::Closed => {}
            }
        }
        Ok(record)
    }

    /// The newest item that was to be answered and was not.
    pub fn unanswered(&self) -> Option<&ItemId> {
        let newest = self.history.items().iter().rev().find(|item| match &item.kind {
            LiveItemKind::Message { role: Role::System, .. } | LiveItemKind::Other { .. } => false,
            LiveItemKind::Message { .. } | LiveItemKind::Call { .. } | LiveItemKind::Output { .. } => {
                !self.not_yet.contains(&item.id)
            }
        })?;
        match &newest.kind {
            LiveItemKind::Message { role: Role::User, .. } | LiveItemKind::Output { .. } => Some(&newest.id),
            LiveItemKind::Message { .. } | LiveItemKind::Call { .. } | LiveItemKind::Other { .. } => None,
        }
    }
}
