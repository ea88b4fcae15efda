//! Calls with an idempotency key: a repeated call attaches to the run of the first one.
//!
//! **Invariant:** the runs of one key never overlap, and a call that may have acted is not executed again in this
//! process while it is one of the last 256 calls that ended. With a store, it is never executed again, in any process,
//! because the key is the id of the run. Only the outcome of a run that has ended is kept as the answer of its key.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rmcp::ErrorData;
use rmcp::model::CallToolResponse;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
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
    /// A request executes the call. The token cancels it.
    Executing(CancellationToken),
    Answered(Box<Result<CallToolResponse, ErrorData>>),
    /// No request executes the call, and its run has not ended: it was given up or interrupted, or it waits.
    Unfinished,
}

/// The role of a request for a call with a key.
pub(super) enum KeyedCallRole {
    /// The request executes the call and publishes its answer.
    Leader(CallLeader),
    /// The request waits for the answer of another one.
    Follower(CallFollower),
    /// An earlier request executed the call and did not finish it.
    Successor(CallLeader),
}

/// The request that executes a call. If it is dropped without an answer, the next request takes its place.
pub(super) struct CallLeader {
    call: Arc<KeyedCall>,
    cancel_token: CancellationToken,
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
            return Ok(KeyedCallRole::Leader(begin_call(&mut calls, run, arguments)));
        };
        if call.arguments != arguments {
            return Err(key_reused());
        }
        let state = call.state.borrow().clone();
        Ok(match state {
            KeyedCallState::Executing(_) | KeyedCallState::Answered(_) => {
                KeyedCallRole::Follower(CallFollower(call.state.subscribe()))
            }
            KeyedCallState::Unfinished => KeyedCallRole::Successor(CallLeader::new(call)),
        })
    }

    /// Forgets a call, so that a repetition executes it again.
    pub(super) fn forget(&self, run: &RunId) {
        self.lock().retain(|call| call.run != *run);
    }

    /// Returns the leader of a call that an answer of the client continues.
    pub(super) fn reopen(&self, run: &RunId, arguments: &str) -> CallLeader {
        let mut calls = self.lock();
        match calls.iter().find(|call| call.run == *run) {
            Some(call) => CallLeader::new(call.clone()),
            None => begin_call(&mut calls, run, arguments),
        }
    }

    /// Cancels a call that outlives its request, if it is executed.
    pub(super) fn cancel(&self, run: &RunId) {
        let call = self.lock().iter().find(|call| call.run == *run).cloned();
        if let Some(call) = call
            && let KeyedCallState::Executing(cancel_token) = &*call.state.borrow()
        {
            cancel_token.cancel();
        }
    }
}

fn begin_call(calls: &mut VecDeque<Arc<KeyedCall>>, run: &RunId, arguments: &str) -> CallLeader {
    let (state, _) = watch::channel(KeyedCallState::Unfinished);
    let call = Arc::new(KeyedCall { run: run.clone(), arguments: arguments.to_owned(), state });
    let leader = CallLeader::new(call.clone());
    calls.push_back(call);
    evict_answered(calls);
    leader
}

/// Returns the error of a key that was used with other arguments.
pub(super) fn key_reused() -> ErrorData {
    ErrorData::invalid_params("this idempotency key was used for a call with other arguments", None)
}

fn evict_answered(calls: &mut VecDeque<Arc<KeyedCall>>) {
    let is_over = |call: &Arc<KeyedCall>| !matches!(*call.state.borrow(), KeyedCallState::Executing(_));
    while calls.iter().filter(|call| is_over(call)).count() > MAX_ANSWERED_CALLS {
        let Some(oldest) = calls.iter().position(is_over) else { return };
        calls.remove(oldest);
    }
}

impl CallLeader {
    fn new(call: Arc<KeyedCall>) -> Self {
        let cancel_token = CancellationToken::new();
        call.state.send_replace(KeyedCallState::Executing(cancel_token.clone()));
        Self { call, cancel_token, is_answered: false }
    }

    /// Returns the token that is cancelled with the call.
    pub(super) fn cancel_token(&self) -> CancellationToken {
        self.cancel_token.clone()
    }

    /// Publishes the answer to all requests of the call.
    pub(super) fn publish(mut self, answer: &Result<CallToolResponse, ErrorData>) {
        self.is_answered = true;
        self.call.state.send_replace(KeyedCallState::Answered(Box::new(answer.clone())));
    }
}

impl Drop for CallLeader {
    fn drop(&mut self) {
        if !self.is_answered {
            self.call.state.send_replace(KeyedCallState::Unfinished);
        }
    }
}

impl CallFollower {
    /// Waits for the answer; `None` if the request that executed the call did not finish it.
    pub(super) async fn answer(mut self) -> Option<Result<CallToolResponse, ErrorData>> {
        let state =
            self.0.wait_for(|state| !matches!(state, KeyedCallState::Executing(_))).await.ok()?.clone();
        match state {
            KeyedCallState::Answered(answer) => Some(*answer),
            KeyedCallState::Executing(_) | KeyedCallState::Unfinished => None,
        }
    }
}
