//! Calls with an idempotency key: a repeated call attaches to the run of the first one.
//!
//! **Invariant:** the runs of one key never overlap, and a call that may have acted is not executed again in this
//! process while it is one of the last 256 calls that ended. With a store, it is never executed again, in any process,
//! because the key is the id of the run.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rmcp::ErrorData;
use rmcp::model::CallToolResponse;
use tokio::sync::watch;
use windlass::core::id::RunId;

/// Maximum number of answered calls that are kept for repetitions; beyond it the oldest is dropped.
const MAX_ANSWERED_CALLS: usize = 256;

/// The calls with a key that are executed or were answered.
#[derive(Default)]
pub(super) struct KeyedCallTable(Mutex<VecDeque<Arc<KeyedCall>>>);

/// A call with a key.
struct KeyedCall {
    run: RunId,
    /// The canonical arguments.
    arguments: String,
    state: watch::Sender<KeyedCallState>,
}

/// The state of a call with a key.
#[derive(Clone)]
enum KeyedCallState {
    Executing,
    Answered(Box<Result<CallToolResponse, ErrorData>>),
    /// The request was given up while the call was executed.
    Abandoned,
}

/// The role of a request for a call with a key.
pub(super) enum KeyedCallRole {
    /// The request executes the call and publishes its answer.
    Leader(CallLeader),
    /// The request waits for the answer of another one.
    Follower(CallFollower),
    /// An earlier request executed the call and was given up.
    Successor(CallLeader),
}

/// The request that executes a call. If it is dropped without an answer, the call counts as abandoned.
pub(super) struct CallLeader {
    call: Arc<KeyedCall>,
    is_answered: bool,
}

/// A request that waits for the answer of another one.
pub(super) struct CallFollower(watch::Receiver<KeyedCallState>);

impl KeyedCallTable {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<KeyedCall>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the role of a request.
    ///
    /// # Errors
    ///
    /// Returns an error if the key was used with other arguments.
    pub(super) fn join(&self, run: &RunId, arguments: &str) -> Result<KeyedCallRole, ErrorData> {
        let mut calls = self.lock();
        let Some(call) = calls.iter().find(|call| call.run == *run).cloned() else {
            let (state, _) = watch::channel(KeyedCallState::Executing);
            let call = Arc::new(KeyedCall { run: run.clone(), arguments: arguments.to_owned(), state });
            calls.push_back(call.clone());
            evict_answered(&mut calls);
            return Ok(KeyedCallRole::Leader(CallLeader { call, is_answered: false }));
        };
        if call.arguments != arguments {
            return Err(key_reused());
        }
        let state = call.state.borrow().clone();
        Ok(match state {
            KeyedCallState::Executing | KeyedCallState::Answered(_) => {
                KeyedCallRole::Follower(CallFollower(call.state.subscribe()))
            }
            KeyedCallState::Abandoned => {
                call.state.send_replace(KeyedCallState::Executing);
                KeyedCallRole::Successor(CallLeader { call, is_answered: false })
            }
        })
    }

    /// Forgets a call, so that a repetition executes it again.
    pub(super) fn forget(&self, run: &RunId) {
        self.lock().retain(|call| call.run != *run);
    }

    /// Returns the leader of a call that an answer of the client continues, if the call is known.
    pub(super) fn reopen(&self, run: &RunId) -> Option<CallLeader> {
        let call = self.lock().iter().find(|call| call.run == *run).cloned()?;
        call.state.send_replace(KeyedCallState::Executing);
        Some(CallLeader { call, is_answered: false })
    }
}

/// Returns the error of a key that was used with other arguments.
pub(super) fn key_reused() -> ErrorData {
    ErrorData::invalid_params("this idempotency key was used for a call with other arguments", None)
}

fn evict_answered(calls: &mut VecDeque<Arc<KeyedCall>>) {
    let is_over = |call: &Arc<KeyedCall>| !matches!(*call.state.borrow(), KeyedCallState::Executing);
    while calls.iter().filter(|call| is_over(call)).count() > MAX_ANSWERED_CALLS {
        let Some(oldest) = calls.iter().position(is_over) else { return };
        calls.remove(oldest);
    }
}

impl CallLeader {
    /// Publishes the answer to all requests of the call.
    pub(super) fn publish(mut self, answer: &Result<CallToolResponse, ErrorData>) {
        self.is_answered = true;
        self.call.state.send_replace(KeyedCallState::Answered(Box::new(answer.clone())));
    }
}

impl Drop for CallLeader {
    fn drop(&mut self) {
        if !self.is_answered {
            self.call.state.send_replace(KeyedCallState::Abandoned);
        }
    }
}

impl CallFollower {
    /// Waits for the answer; `None` if the request that executed the call was given up.
    pub(super) async fn answer(mut self) -> Option<Result<CallToolResponse, ErrorData>> {
        let state = self.0.wait_for(|state| !matches!(state, KeyedCallState::Executing)).await.ok()?.clone();
        match state {
            KeyedCallState::Answered(answer) => Some(*answer),
            KeyedCallState::Executing | KeyedCallState::Abandoned => None,
        }
    }
}
