//! Prompts that a model has read, kept between the turns of a run.

/// The state that a model keeps of the tokens it has read.
pub(crate) trait PrefixState {
    /// Forgets all tokens but the first ones.
    fn truncate(&mut self, token_count: usize);
    /// Returns a copy that knows only the first tokens.
    fn copy_prefix(&self, token_count: usize) -> Self;
}

/// Tokens that were read, with the model's state after them.
#[derive(Clone)]
pub(crate) struct ReadPrefix<S> {
    pub(crate) tokens: Vec<u32>,
    pub(crate) state: S,
}

/// The prefixes of recent prompts, the most recently used last.
pub(crate) struct PrefixCache<S> {
    kept: Vec<ReadPrefix<S>>,
    max_prefixes: usize,
    max_tokens: usize,
}

/// A prefix whose end differs from the prompt is copied if at least this many of its tokens would be lost: it may belong
/// to another run that continues.
const MIN_TOKENS_WORTH_KEEPING: usize = 32;

impl<S: PrefixState> PrefixCache<S> {
    /// Creates a cache that keeps a number of prefixes with a total number of tokens.
    pub(crate) fn new(max_prefixes: usize, max_tokens: usize) -> Self {
        Self { kept: Vec::new(), max_prefixes, max_tokens }
    }

    /// Takes the longest known prefix of a prompt, or an empty one. At least one token of the prompt is left to read,
    /// because the logits of the last token are not kept.
    pub(crate) fn take(&mut self, prompt: &[u32], empty: impl FnOnce() -> S) -> ReadPrefix<S> {
        let longest = prompt.len().saturating_sub(1);
        let shared = |kept: &ReadPrefix<S>| common_length(&kept.tokens, prompt).min(longest);
        let best = (0..self.kept.len()).max_by_key(|at| shared(&self.kept[*at]));
        let Some((best, shared)) =
            best.map(|best| (best, shared(&self.kept[best]))).filter(|(_, shared)| *shared > 0)
        else {
            return ReadPrefix { tokens: Vec::new(), state: empty() };
        };
        let found = &self.kept[best];
        if found.tokens.len() - shared >= MIN_TOKENS_WORTH_KEEPING && self.max_prefixes > 1 {
            let state = found.state.copy_prefix(shared);
            return ReadPrefix { tokens: found.tokens[..shared].to_vec(), state };
        }
        let mut found = self.kept.remove(best);
        found.tokens.truncate(shared);
        found.state.truncate(shared);
        found
    }

    /// Keeps a prefix, and forgets those that were not used for the longest time if there are too many.
    pub(crate) fn put(&mut self, prefix: ReadPrefix<S>) {
        if prefix.tokens.is_empty() {
            return;
        }
        self.kept.push(prefix);
        let tokens = |kept: &[ReadPrefix<S>]| kept.iter().map(|prefix| prefix.tokens.len()).sum::<usize>();
        while self.kept.len() > self.max_prefixes || tokens(&self.kept) > self.max_tokens {
            self.kept.remove(0);
        }
    }
}

fn common_length(one: &[u32], other: &[u32]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

#[cfg(test)]
#[path = "prefix_tests.rs"]
mod tests;
