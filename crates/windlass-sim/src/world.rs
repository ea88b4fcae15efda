//! The world outside: what tools did to it, however often the process that called them crashed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use windlass::ToolContext;
use windlass::core::{CallPath, RunId};

/// A world that counts what is done to it. Copies stand for the same one, and no crash touches it.
#[derive(Clone, Debug, Default)]
pub struct World {
    effects: Arc<Mutex<Vec<WorldEffect>>>,
}

/// Something that was done to the world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorldEffect {
    /// The run, or the nested agent's run, that did it.
    pub run: RunId,
    /// The call that did it, and the calls that lead to it.
    pub path: CallPath,
    /// The key that the call gave.
    pub key: String,
    /// Whether the key was new. A target that honours keys does nothing for one that is not.
    pub is_new: bool,
}

impl World {
    /// A world that nothing has been done to.
    pub fn new() -> Self {
        Self::default()
    }

    /// A call does something to the world. Says whether its idempotency key was new.
    pub fn effect<C>(&self, ctx: &ToolContext<C>) -> bool {
        let key = ctx.idempotency_key();
        let mut effects = self.locked();
        let is_new = effects.iter().all(|effect| effect.key != key);
        effects.push(WorldEffect { run: ctx.run().run_id().clone(), path: ctx.path().clone(), key, is_new });
        is_new
    }

    /// How often a call did something.
    pub fn by_call(&self, call: impl Into<CallPath>) -> usize {
        let path = call.into();
        self.locked().iter().filter(|effect| effect.path == path).count()
    }

    /// How often something was done under a key.
    pub fn by_key(&self, key: &str) -> usize {
        self.locked().iter().filter(|effect| effect.key == key).count()
    }

    /// How much was done in all, by a target that does not look at keys.
    pub fn total(&self) -> usize {
        self.locked().len()
    }

    /// How much was done in all, by a target that honours keys.
    pub fn distinct(&self) -> usize {
        self.locked().iter().filter(|effect| effect.is_new).count()
    }

    /// Everything that was done, in order.
    pub fn effects(&self) -> Vec<WorldEffect> {
        self.locked().clone()
    }

    fn locked(&self) -> MutexGuard<'_, Vec<WorldEffect>> {
        self.effects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
