//! The outside world: it records the effects of tools across crashes of the process.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use windlass::core::id::{CallPath, RunId};
use windlass::tool::ToolContext;

/// A simulated outside world that records every effect. Clones share one world, and crashes do not affect it.
#[derive(Clone, Debug, Default)]
pub struct SimWorld {
    effects: Arc<Mutex<Vec<RecordedEffect>>>,
}

/// One effect on the simulated world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedEffect {
    /// Run, or nested agent's run, that caused the effect.
    pub run: RunId,
    /// Path of the call that caused the effect.
    pub path: CallPath,
    /// Idempotency key of the call.
    pub key: String,
    /// True if the key was new. A target that honours idempotency keys ignores an effect with a known key.
    pub is_new_key: bool,
}

impl SimWorld {
    /// Creates a world without effects.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records an effect of a call. Returns true if its idempotency key was new.
    pub fn record_effect<C>(&self, ctx: &ToolContext<C>) -> bool {
        let key = ctx.idempotency_key();
        let mut effects = self.lock_effects();
        let is_new = effects.iter().all(|effect| effect.key != key);
        effects.push(RecordedEffect {
            run: ctx.run_context().run_id().clone(),
            path: ctx.call_path().clone(),
            key,
            is_new_key: is_new,
        });
        is_new
    }

    /// Returns the number of effects of a call.
    pub fn count_by_call(&self, call: impl Into<CallPath>) -> usize {
        let path = call.into();
        self.lock_effects().iter().filter(|effect| effect.path == path).count()
    }

    /// Returns the number of effects with an idempotency key.
    pub fn count_by_key(&self, key: &str) -> usize {
        self.lock_effects().iter().filter(|effect| effect.key == key).count()
    }

    /// Returns the number of effects on a target that ignores idempotency keys.
    pub fn total_count(&self) -> usize {
        self.lock_effects().len()
    }

    /// Returns the number of effects on a target that honours idempotency keys.
    pub fn distinct_key_count(&self) -> usize {
        self.lock_effects().iter().filter(|effect| effect.is_new_key).count()
    }

    /// Returns all effects, in order.
    pub fn effects(&self) -> Vec<RecordedEffect> {
        self.lock_effects().clone()
    }

    fn lock_effects(&self) -> MutexGuard<'_, Vec<RecordedEffect>> {
        self.effects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
