//! The session of a run: it gets the run's input and the items of settled turns, derived from the journal.
//!
//! Invariant: the session has the items of the run up to a position that the session itself stores, so that every
//! driver continues where the last one stopped, whatever happened in between.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use windlass_core::{
    id::{RunId, SessionId},
    run::{Run, RunEnd},
};

use super::session_hold::{ForeignSessionHold, SessionWait};
use super::{Session, SessionFence, SessionWrite};
use crate::error::{ConfigError, RunError, StoreError};
use crate::journal::RunJournal;
use crate::lock_unpoisoned;
use crate::redaction::SecretRegistry;
use crate::run::{CancelSignal, OnSessionBusy};
use crate::store::{HISTORY_ARTEFACT, Store};

/// The means to hold a session for a driver.
pub(crate) struct SessionHold<'a> {
    pub(crate) journal: &'a RunJournal,
    pub(crate) policy: OnSessionBusy,
    pub(crate) lease_duration: Duration,
    pub(crate) cancel: &'a CancelSignal,
    /// The hold of a session that is not in the run's store, if the driver has it already.
    pub(crate) acquired: Option<ForeignSessionHold>,
}

/// The session of a run.
pub(crate) struct RunSession {
    session: Session,
    /// True if the session is in the run's own store, so that both are written in one transaction.
    is_in_store: bool,
    /// Position of the run up to which items were written.
    position: AtomicU64,
    /// The right to append, which the store compares.
    fence: SessionFence,
    /// The hold of a session that is not in the run's store.
    hold: Mutex<Option<ForeignSessionHold>>,
}

impl RunSession {
    /// Finds the session of a run. `given` is the one that the application handed over.
    ///
    /// # Errors
    ///
    /// Returns an error if the run belongs to another session than the given one, or to one that cannot be reached.
    pub(crate) async fn find(
        run: &Run,
        given: Option<Session>,
        store: Option<&Arc<dyn Store>>,
        hold: SessionHold<'_>,
    ) -> Result<Option<Self>, RunError> {
        let is_given = given.is_some();
        let session = match (run.session(), given) {
            (None, None) => return Ok(None),
            (Some(expected), Some(given)) if given.id() == expected => given,
            (expected, Some(given)) => {
                let (expected, given) = (expected.cloned(), given.id().clone());
                return Err(ConfigError::OtherSession { run: run.id().clone(), expected, given }.into());
            }
            (Some(session), None) => {
                // A run that refers to its session has it in its store; any other session was elsewhere.
                let store = store.filter(|_| run.referenced_history().is_some());
                let found = store.and_then(|store| Session::in_run_store(session.clone(), store));
                found.ok_or_else(|| no_session(run.id(), session))?
            }
        };
        let is_in_store = store.is_some_and(|store| session.is_in_store(&**store));
        let SessionHold { journal, policy, lease_duration, cancel, acquired } = hold;
        let hold = match acquired {
            Some(hold) => Some(hold),
            None if is_in_store => {
                let mut wait = SessionWait::new(policy, cancel, store.map(|store| (session.id(), store)));
                while let Err(error) = journal.hold_session(session.id()).await {
                    wait.wait_after(error).await?;
                }
                None
            }
            None => Some(ForeignSessionHold::acquire(&session, policy, lease_duration, cancel).await?),
        };
        let position = session.run_position(run.id()).await.map_err(RunError::Session)?;
        if let Some(store) = store.filter(|_| position == 0 && !is_given) {
            check_not_imported(&**store, session.id(), run.id()).await?;
        }
        let fence = match (&hold, journal.store_and_lease()) {
            (Some(hold), _) => hold.fence(),
            (None, Some((_, lease))) => SessionFence::Lease(lease.clone()),
            (None, None) => SessionFence::Unheld,
        };
        let (position, hold) = (AtomicU64::new(position), Mutex::new(hold));
        Ok(Some(Self { session, is_in_store, position, fence, hold }))
    }

    /// Returns the session, for the application.
    pub(crate) fn session(&self) -> &Session {
        &self.session
    }

    /// Releases a session that is not in the run's store. One that is goes with the run's lease.
    pub(crate) async fn release_hold(&self) {
        let hold = lock_unpoisoned(&self.hold).take();
        if let Some(hold) = hold {
            hold.release().await;
        }
    }

    /// Appends items of the run.
    ///
    /// # Errors
    ///
    /// Returns an error if another driver may hold the session by now.
    pub(crate) async fn append_items(&self, write: SessionWrite) -> Result<(), StoreError> {
        if lock_unpoisoned(&self.hold).as_ref().is_some_and(ForeignSessionHold::is_lost) {
            return Err(StoreError::session_lost(self.session.id()));
        }
        self.session.append_run_items(write, self.fence.clone()).await
    }

    /// Returns what the session lacks of the run, up to its last settled turn. The message of a run that was cancelled
    /// before the model answered is not part of the conversation.
    fn missing_items(&self, run: &Run) -> Option<SessionWrite> {
        let from = self.position.load(Ordering::Relaxed);
        let is_void = matches!(run.outcome(), Some(RunEnd::Cancelled)) && run.turn() == 0;
        let to = 1 + run.settled_item_count() as u64;
        if to <= from || (from == 0 && is_void) {
            return None;
        }
        let mut items = if from == 0 { run.input().to_vec() } else { Vec::new() };
        items.extend(run.session_items(from.saturating_sub(1) as usize));
        let (session, run) = (self.session.id().clone(), run.id().clone());
        Some(SessionWrite { session, run, from, to, items })
    }

    /// Returns true if the session is in the store of the run, which writes both in one transaction.
    pub(crate) fn is_in_store(&self) -> bool {
        self.is_in_store
    }

    /// Returns the items that the session lacks, without secrets, and counts them as written.
    pub(crate) fn take_missing_items(&self, run: &Run, secrets: &SecretRegistry) -> Option<SessionWrite> {
        let mut write = self.missing_items(run)?;
        write.items = secrets.redact_items(&[], write.items);
        self.position.store(write.to, Ordering::Relaxed);
        Some(write)
    }
}

/// Checks that a run which comes from another store may find its session in this one: the session has items of the run, as
/// it has after a migration. Without them, a session of the same name is another one.
///
/// # Errors
///
/// Returns an error if the session is to be handed over.
pub(crate) async fn check_session_moved(
    store: &dyn Store,
    session: &SessionId,
    run: &RunId,
) -> Result<(), RunError> {
    let position = match store.sessions() {
        Some(sessions) => sessions.run_position(session, run).await.map_err(RunError::Session)?,
        None => 0,
    };
    if position > 0 { Ok(()) } else { Err(no_session(run, session)) }
}

/// Checks that a run whose session has no item of it began in this store.
async fn check_not_imported(store: &dyn Store, session: &SessionId, run: &RunId) -> Result<(), RunError> {
    match store.load_artefact(run, HISTORY_ARTEFACT).await? {
        Some(_) => Err(no_session(run, session)),
        None => Ok(()),
    }
}

fn no_session(run: &RunId, session: &SessionId) -> RunError {
    ConfigError::NoSession { run: run.clone(), session: session.clone() }.into()
}
