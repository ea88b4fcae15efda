//! The decider changes sessions beside their runs: she compacts them and rewinds them. Her own log has every item that she
//! took out, so that the verdict can put it back.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use windlass::core::item::{Item, Role};
use windlass::error::{StoreError, StoreErrorKind};
use windlass::session::{CompactionPolicy, Session, SessionStore};
use windlass_sim::SimRng;

use crate::files::{RoundFolder, append_line, read_lines};

/// Number of items above which a session is compacted.
const COMPACTED_ABOVE: usize = 12;

/// One line of the log.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum EditLine {
    /// Items are about to be replaced by a summary, whose text has the id.
    Summarising { id: String, items: Vec<Arc<Item>> },
    /// The newest items of a session are about to be removed.
    Removing(ItemRemoval),
    /// The store has replied to a removal.
    Replied { id: String, is_removed: bool },
}

/// A removal of the newest items of a session.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ItemRemoval {
    id: String,
    session: String,
    items: Vec<Arc<Item>>,
    /// The item before them.
    before: Option<Arc<Item>>,
}

/// Compacts or rewinds a session.
///
/// # Errors
/// Returns the error of the store or of the log.
pub async fn edit_session(
    folder: &RoundFolder,
    (session, store): (&str, &Arc<dyn SessionStore>),
    id: String,
    rng: &mut SimRng,
) -> Result<(), StoreError> {
    if rng.chance(30) {
        return rewind(folder, (session, &**store), id, rng).await;
    }
    let (folder, keep) = (folder.clone(), rng.index(8));
    let policy = CompactionPolicy::above_items(COMPACTED_ABOVE, keep).with_summariser(move |items| {
        let summary = format!("#{id}");
        let logged = log_edit(&folder, &EditLine::Summarising { id: id.clone(), items });
        std::future::ready(logged.map(|()| summary))
    });
    Session::new(session, store.clone()).compact(&policy).await.map(|_| ())
}

/// Removes the last messages of the user and everything after them, as [`Session::rewind`] does, and at a version whose items
/// are in the log.
async fn rewind(
    folder: &RoundFolder,
    (session, store): (&str, &dyn SessionStore),
    id: String,
    rng: &mut SimRng,
) -> Result<(), StoreError> {
    let name = session.into();
    let state = store.load_session(&name).await?;
    let is_of_user =
        |item: &Arc<Item>| matches!(&**item, Item::Message(message) if message.role == Role::User);
    let turns = match rng.below(20) {
        0 => usize::MAX,
        1..=5 => 2,
        _ => 1,
    };
    let places: Vec<usize> = (0..state.items.len()).filter(|at| is_of_user(&state.items[*at])).collect();
    let Some(from) = places.len().checked_sub(turns).map(|at| places[at]).or(places.first().copied()) else {
        return Ok(());
    };
    let mut kept = state.items;
    let items = kept.split_off(from);
    let removal =
        ItemRemoval { id: id.clone(), session: session.to_owned(), items, before: kept.last().cloned() };
    log_edit(folder, &EditLine::Removing(removal))?;
    match store.replace_items(&name, state.version, kept).await {
        Ok(()) => log_edit(folder, &EditLine::Replied { id, is_removed: true }),
        Err(error) if error.kind() == StoreErrorKind::Stale => {
            log_edit(folder, &EditLine::Replied { id, is_removed: false })
        }
        // It is unknown.
        Err(error) => Err(error),
    }
}

fn log_edit(folder: &RoundFolder, line: &EditLine) -> Result<(), StoreError> {
    append_line(&folder.session_edits(), line)
        .map_err(|error| StoreError::new(format!("the log of the edits cannot be written: {error}")))
}

/// The changes that were made to the sessions of a round.
#[derive(Debug, Default)]
pub struct SessionEdits {
    summaries: BTreeMap<String, Vec<Arc<Item>>>,
    removals: Vec<ItemRemoval>,
    replies: BTreeMap<String, bool>,
}

impl SessionEdits {
    /// Loads the log.
    ///
    /// # Errors
    /// Returns the error of the read.
    pub fn load(folder: &RoundFolder) -> io::Result<Self> {
        let mut edits = Self::default();
        for line in read_lines(&folder.session_edits())? {
            match line {
                EditLine::Summarising { id, items } => drop(edits.summaries.insert(id, items)),
                EditLine::Removing(removal) => edits.removals.push(removal),
                EditLine::Replied { id, is_removed } => drop(edits.replies.insert(id, is_removed)),
            }
        }
        Ok(edits)
    }

    /// Returns the number of compactions and rewinds, also of those that another writer prevented.
    pub fn count(&self) -> u64 {
        (self.summaries.len() + self.removals.len()) as u64
    }

    /// Returns all items that a session ever had, in the order in which they were appended.
    ///
    /// # Errors
    /// Returns a message if a part of a removal took place, or if the place of removed items is gone.
    pub fn restore(&self, session: &str, items: &[Arc<Item>]) -> Result<Vec<Arc<Item>>, String> {
        let mut whole = self.expand(items);
        // The place of what was removed first may be in what was removed last.
        for removal in self.removals.iter().rev().filter(|removal| removal.session == session) {
            let removed = self.expand(&removal.items);
            let is_there = |item: &&Arc<Item>| find(&whole, item).is_some();
            let is_removed = match (self.replies.get(&removal.id), removed.iter().filter(is_there).count()) {
                (Some(is_removed), _) => *is_removed,
                (None, 0) => true,
                (None, count) if count == removed.len() => false,
                (None, count) => {
                    return Err(format!("{count} of {} items of a rewind are there", removed.len()));
                }
            };
            if !is_removed {
                continue;
            }
            let place = match self.expand(removal.before.as_slice()).last() {
                None => 0,
                Some(before) => 1 + find(&whole, before).ok_or_else(|| format!("{before:?} is gone"))?,
            };
            whole.splice(place..place, removed);
        }
        Ok(whole)
    }

    /// Replaces summaries by what they stand for.
    fn expand(&self, items: &[Arc<Item>]) -> Vec<Arc<Item>> {
        let summarised = |item: &Arc<Item>| match &**item {
            Item::Message(message) => self.summaries.get(message.text().rsplit_once("\n#")?.1),
            _ => None,
        };
        let expand = |item: &Arc<Item>| match summarised(item) {
            Some(items) => self.expand(items),
            None => vec![item.clone()],
        };
        items.iter().flat_map(expand).collect()
    }
}

/// Returns the place of an item. Messages have words, and calls and outputs ids, that no other item of a round has.
fn find(items: &[Arc<Item>], wanted: &Item) -> Option<usize> {
    items.iter().position(|item| match (&**item, wanted) {
        (Item::Message(one), Item::Message(other)) => one.text() == other.text(),
        (Item::Call(one), Item::Call(other)) => one.id == other.id,
        (Item::Output(one), Item::Output(other)) => one.call == other.call,
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(words: &[&str]) -> Vec<Arc<Item>> {
        words.iter().map(|word| Arc::new(Item::user(*word))).collect()
    }

    fn removal(id: &str, removed: &[&str], before: &[&str]) -> ItemRemoval {
        let before = items(before).pop();
        ItemRemoval { id: id.to_owned(), session: "s".to_owned(), items: items(removed), before }
    }

    #[test]
    fn what_was_taken_out_is_put_back() {
        // a b c; c goes; d comes; d goes; a and b are summarised; e comes.
        let edits = SessionEdits {
            removals: vec![removal("1", &["c"], &["b"]), removal("2", &["d"], &["b"])],
            summaries: BTreeMap::from([("3".to_owned(), items(&["a", "b"]))]),
            replies: BTreeMap::from([("1".to_owned(), true), ("2".to_owned(), true)]),
        };
        let shown = items(&["Summary:\n#3", "e"]);
        assert_eq!(edits.restore("s", &shown), Ok(items(&["a", "b", "c", "d", "e"])));
        assert_eq!(edits.restore("other", &shown), Ok(items(&["a", "b", "e"])));
    }

    #[test]
    fn a_removal_without_a_reply_has_taken_place_as_a_whole_or_not_at_all() {
        let removals = vec![removal("1", &["b", "c"], &["a"])];
        let mut edits = SessionEdits { removals, ..SessionEdits::default() };
        let whole = items(&["a", "b", "c", "d"]);
        assert_eq!(edits.restore("s", &whole), Ok(whole.clone()));
        assert_eq!(edits.restore("s", &items(&["a", "d"])), Ok(whole));
        assert!(edits.restore("s", &items(&["a", "c", "d"])).is_err());
        edits.replies.insert("1".to_owned(), true);
        assert_eq!(edits.restore("s", &items(&["d"])).map_err(|_| ()), Err(()), "its place is gone");
    }
}
