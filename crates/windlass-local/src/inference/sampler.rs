//! The choice of the next token.

use std::collections::HashMap;

/// Settings of the choice.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SamplingSettings {
    /// Zero for the most likely token.
    pub(crate) temperature: f32,
    pub(crate) top_p: f32,
    pub(crate) frequency_penalty: f32,
    pub(crate) presence_penalty: f32,
    pub(crate) seed: u64,
}

/// The choice of tokens of one response.
pub(crate) struct TokenSampler {
    settings: SamplingSettings,
    counts: HashMap<u32, u32>,
    random: u64,
}

impl TokenSampler {
    pub(crate) fn new(settings: SamplingSettings) -> Self {
        let random = settings.seed;
        Self { settings, counts: HashMap::new(), random }
    }

    /// Chooses one of the allowed tokens; `None` if none is allowed.
    pub(crate) fn choose(&mut self, logits: &[f32], is_allowed: impl Fn(u32) -> bool) -> Option<u32> {
        let settings = &self.settings;
        let allowed = (0..).zip(logits).filter(|(token, _)| is_allowed(*token));
        let penalised = allowed.map(|(token, logit)| {
            let count = self.counts.get(&token).copied().unwrap_or(0);
            let presence = if count > 0 { settings.presence_penalty } else { 0.0 };
            (token, logit - count as f32 * settings.frequency_penalty - presence)
        });
        let chosen = if settings.temperature <= 0.0 {
            penalised.max_by(|(_, one), (_, other)| one.total_cmp(other)).map(|(token, _)| token)?
        } else {
            let mut ranked: Vec<(u32, f32)> = penalised.collect();
            ranked.sort_by(|(_, one), (_, other)| other.total_cmp(one));
            let largest = ranked.first()?.1;
            let mut total = 0.0;
            for (_, weight) in &mut ranked {
                *weight = ((*weight - largest) / settings.temperature).exp();
                total += *weight;
            }
            // The smallest set of tokens that together have the probability `top_p`.
            let mut kept = 0.0;
            let end = ranked.iter().position(|(_, weight)| {
                kept += weight;
                kept >= total * settings.top_p
            });
            ranked.truncate(end.map_or(ranked.len(), |end| end + 1));
            let sum: f32 = ranked.iter().map(|(_, weight)| weight).sum();
            let mut rest = self.next_fraction() * sum;
            let found = ranked.iter().find(|(_, weight)| {
                rest -= weight;
                rest < 0.0
            });
            found.or(ranked.last()).map(|(token, _)| *token)?
        };
        *self.counts.entry(chosen).or_default() += 1;
        Some(chosen)
    }

    /// Returns the next pseudo-random number from 0 up to 1 (SplitMix64).
    fn next_fraction(&mut self) -> f32 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 40) as f32 / (1_u64 << 24) as f32
    }
}

#[cfg(test)]
#[path = "sampler_tests.rs"]
mod tests;
