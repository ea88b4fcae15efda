//! The log of a session in memory: items are only appended, and a view says which of them the session shows.
//!
//! Invariant: a position in the log is never used for another item, so that a run can refer to items by their
//! positions. Items that the session no longer shows are removed when no run refers to them.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use windlass_core::{
    id::{RunId, SessionId},
    item::Item,
    journal::{HistoryReference, ItemRange},
};

use super::{SessionItemsPage, SessionState, SessionWrite};
use crate::error::StoreError;
use crate::store::StoredLease;

/// The log of one session.
#[derive(Debug, Default)]
pub(crate) struct SessionLog {
    version: u64,
    items: BTreeMap<u64, Arc<Item>>,
    next_position: u64,
    /// Positions that the session shows, in its order.
    view: Vec<ItemRange>,
    /// Positions of the runs in the session: see [`SessionWrite`].
    run_positions: BTreeMap<RunId, u64>,
    /// Items that stored runs refer to.
    references: BTreeMap<RunId, Vec<ItemRange>>,
    /// The run that appends to the session, and the epoch of its lease.
    pub(crate) holder: Option<(RunId, u64)>,
    /// The claim of a driver whose run is in another store.
    pub(crate) claim: Option<StoredLease>,
}

/// The logs of several sessions.
#[derive(Debug, Default)]
pub(crate) struct SessionLogs {
    pub(crate) logs: BTreeMap<SessionId, SessionLog>,
}

impl SessionLog {
    fn to_state(&self) -> SessionState {
        let items = self.load_items(&self.view).unwrap_or_default();
        SessionState { version: self.version, items, positions: self.view.clone() }
    }

    /// Returns the items at these positions, or `None` if one of them is missing.
    fn load_items(&self, ranges: &[ItemRange]) -> Option<Vec<Arc<Item>>> {
        let positions = ranges.iter().flat_map(|range| range.from..range.to);
        positions.map(|position| self.items.get(&position).cloned()).collect()
    }

    fn append(&mut self, items: Vec<Arc<Item>>) {
        self.version += 1;
        let range = self.append_to_log(items);
        push_range(&mut self.view, range);
    }

    fn append_to_log(&mut self, items: Vec<Arc<Item>>) -> ItemRange {
        let from = self.next_position;
        for item in items {
            self.items.insert(self.next_position, item);
            self.next_position += 1;
        }
        ItemRange { from, to: self.next_position }
    }

    fn replace(&mut self, items: &[Arc<Item>]) {
        let shown: Vec<u64> = self.view.iter().flat_map(|range| range.from..range.to).collect();
        let is_kept = |at: usize, new: &Arc<Item>| shown.get(at).is_some_and(|at| self.items[at] == *new);
        let (front, back) = kept_ends(shown.len(), items.len(), |old, new| is_kept(old, &items[new]));
        let middle = self.append_to_log(items[front..items.len() - back].to_vec());
        let kept_back = shown[shown.len() - back..].iter().copied();
        let positions = shown[..front].iter().copied().chain(middle.from..middle.to).chain(kept_back);
        self.view = ItemRange::from_positions(positions);
        self.version += 1;
        self.remove_unreferenced();
    }

    /// Removes the items that the session does not show and that no run refers to.
    fn remove_unreferenced(&mut self) {
        let kept: Vec<ItemRange> =
            self.view.iter().chain(self.references.values().flatten()).copied().collect();
        let is_kept = |position: u64| kept.iter().any(|range| (range.from..range.to).contains(&position));
        self.items.retain(|position, _| is_kept(*position));
    }
}

impl SessionLogs {
    pub(crate) fn load_session(&self, session: &SessionId) -> SessionState {
        self.logs.get(session).map(SessionLog::to_state).unwrap_or_default()
    }

    pub(crate) fn append_items(&mut self, session: &SessionId, items: Vec<Arc<Item>>) {
        self.logs.entry(session.clone()).or_default().append(items);
    }

    pub(crate) fn append_run_items(&mut self, write: SessionWrite) -> Result<(), StoreError> {
        let log = self.logs.entry(write.session.clone()).or_default();
        let position = log.run_positions.get(&write.run).copied().unwrap_or_default();
        if write.is_new_at(position)? {
            log.run_positions.insert(write.run, write.to);
            log.append(write.items);
        }
        Ok(())
    }

    pub(crate) fn run_position(&self, session: &SessionId, run: &RunId) -> u64 {
        let log = self.logs.get(session);
        log.and_then(|log| log.run_positions.get(run)).copied().unwrap_or_default()
    }

    pub(crate) fn list_run_positions(
        &self,
        session: &SessionId,
        after: Option<&RunId>,
        limit: u32,
    ) -> Vec<(RunId, u64)> {
        let Some(log) = self.logs.get(session) else { return Vec::new() };
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let later = log.run_positions.range::<RunId, _>((from, Bound::Unbounded));
        later.take(limit as usize).map(|(run, position)| (run.clone(), *position)).collect()
    }

    /// Removes the position of an earlier run of the same id.
    pub(crate) fn forget_run_position(&mut self, session: &SessionId, run: &RunId) {
        if let Some(log) = self.logs.get_mut(session) {
            log.run_positions.remove(run);
        }
    }

    pub(crate) fn replace_items(
        &mut self,
        session: &SessionId,
        version: u64,
        items: &[Arc<Item>],
    ) -> Result<(), StoreError> {
        let log = self.logs.entry(session.clone()).or_default();
        if log.version != version {
            return Err(StoreError::session_changed(session));
        }
        log.replace(items);
        Ok(())
    }

    pub(crate) fn load_session_items(&self, session: &SessionId, skip: u64, limit: u32) -> SessionItemsPage {
        let Some(log) = self.logs.get(session) else { return SessionItemsPage::default() };
        let (total, ranges) = ItemRange::page(&log.view, skip, limit);
        SessionItemsPage { total, items: log.load_items(&ranges).unwrap_or_default() }
    }

    pub(crate) fn list_sessions(&self, after: Option<&SessionId>, limit: u32) -> Vec<SessionId> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let later = self.logs.range::<SessionId, _>((from, Bound::Unbounded));
        let used = later.filter(|(_, log)| log.version > 0);
        used.take(limit as usize).map(|(session, _)| session.clone()).collect()
    }

    /// Returns the version of a session.
    pub(crate) fn version(&self, session: &SessionId) -> u64 {
        self.logs.get(session).map(|log| log.version).unwrap_or_default()
    }

    /// Returns the items that a run refers to, or `None` if one of them is missing.
    pub(crate) fn load_history(&self, reference: &HistoryReference) -> Option<Vec<Arc<Item>>> {
        match self.logs.get(&reference.session) {
            Some(log) => log.load_items(&reference.ranges),
            None => reference.ranges.is_empty().then(Vec::new),
        }
    }

    /// Keeps the items that a run refers to until [`SessionLogs::release_history`].
    pub(crate) fn keep_history(&mut self, run: &RunId, reference: &HistoryReference) {
        if !reference.ranges.is_empty() {
            let log = self.logs.entry(reference.session.clone()).or_default();
            log.references.insert(run.clone(), reference.ranges.clone());
        }
    }

    /// Returns true if the text of an item contains this one.
    pub(crate) fn has_item_with(&self, text: &str) -> bool {
        let mut items = self.logs.values().flat_map(|log| log.items.values());
        items.any(|item| serde_json::to_string(&**item).is_ok_and(|body| body.contains(text)))
    }

    /// Removes a run's references, and the items that only it referred to.
    pub(crate) fn release_history(&mut self, run: &RunId) {
        for log in self.logs.values_mut() {
            if log.references.remove(run).is_some() {
                log.remove_unreferenced();
            }
        }
    }
}

/// Appends a range to a list of ranges.
fn push_range(ranges: &mut Vec<ItemRange>, range: ItemRange) {
    match ranges.last_mut() {
        _ if range.is_empty() => {}
        Some(last) if last.to == range.from => last.to = range.to,
        _ => ranges.push(range),
    }
}

/// Returns how many items two lists share at the front, and after those at the back. `is_same` compares by index.
pub(crate) fn kept_ends(
    old_len: usize,
    new_len: usize,
    is_same: impl Fn(usize, usize) -> bool,
) -> (usize, usize) {
    let shorter = old_len.min(new_len);
    let front = (0..shorter).take_while(|at| is_same(*at, *at)).count();
    let from_back = |at: &usize| is_same(old_len - 1 - *at, new_len - 1 - *at);
    let back = (0..shorter - front).take_while(from_back).count();
    (front, back)
}
