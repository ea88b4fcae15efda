//! The calls that are under way on a connection, and what a server sends about them meanwhile.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use rmcp::model::{ElicitRequestParams, ElicitResult, ProgressNotificationParam, ProgressToken};
use tokio::sync::{mpsc, oneshot};

/// How much may wait for a call that does not look. More is dropped.
const WAITING: usize = 64;

/// What a server sends about a call before its result.
pub(super) enum Word {
    Progress(ProgressNotificationParam),
    /// It asks the user something, and waits.
    Question(Box<ElicitRequestParams>, oneshot::Sender<ElicitResult>),
}

#[derive(Default)]
pub(super) struct Flights(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    flying: Vec<(ProgressToken, mpsc::Sender<Word>)>,
    /// Progress that came before its call was known here, which may happen to the first word of a quick server.
    early: VecDeque<ProgressNotificationParam>,
}

impl Flights {
    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A call is under way: what comes for it goes to the receiver.
    pub(super) fn begin(&self, token: ProgressToken) -> mpsc::Receiver<Word> {
        let (sender, receiver) = mpsc::channel(WAITING);
        let mut inner = self.lock();
        let (mine, others) =
            std::mem::take(&mut inner.early).into_iter().partition(|early| early.progress_token == token);
        inner.early = others;
        let mine: VecDeque<ProgressNotificationParam> = mine;
        for early in mine {
            let _full = sender.try_send(Word::Progress(early));
        }
        inner.flying.push((token, sender));
        receiver
    }

    pub(super) fn end(&self, token: &ProgressToken) {
        self.lock().flying.retain(|(other, _)| other != token);
    }

    pub(super) fn progress(&self, progress: ProgressNotificationParam) {
        let mut inner = self.lock();
        match inner.flying.iter().find(|(token, _)| *token == progress.progress_token) {
            Some((_, sender)) => {
                let _full = sender.try_send(Word::Progress(progress));
            }
            None => {
                if inner.early.len() == WAITING {
                    inner.early.pop_front();
                }
                inner.early.push_back(progress);
            }
        }
    }

    /// Passes a question on to the one call that is under way. With several it cannot be told whose it is, and nobody
    /// should answer a question about something else.
    pub(super) fn question(&self, asked: ElicitRequestParams) -> Option<oneshot::Receiver<ElicitResult>> {
        let inner = self.lock();
        let [(_, sender)] = inner.flying.as_slice() else { return None };
        let (answer, answered) = oneshot::channel();
        sender.try_send(Word::Question(Box::new(asked), answer)).ok()?;
        Some(answered)
    }
}
