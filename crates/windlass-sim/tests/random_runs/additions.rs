//! Additions of attended worlds: a person who decides while calls run, filters that break histories, and bodies on threads.
//!
//! They have draws of their own, so that the kept seeds of the plain worlds keep their meaning.

use std::collections::BTreeSet;
use std::sync::Arc;

use windlass::core::item::Item;
use windlass_sim::SimRng;

use crate::spec::WorldSpec;

/// The additions of an attended world. A plain world has none.
#[derive(Clone, Debug, Default)]
pub(crate) struct AdditionSpec {
    /// Percentage of looks at which the person decides about a pending call; nobody looks if zero.
    pub(crate) live_decision_percent: u64,
    pub(crate) input_filter: Option<FilterSpec>,
    pub(crate) handoff_filter: Option<FilterSpec>,
    /// Names of the tools whose bodies run on a thread.
    pub(crate) blocking_tools: BTreeSet<String>,
    /// True if the outputs of tools have marks.
    pub(crate) marks_outputs: bool,
}

/// A filter of a user that does not care about pairs of calls and outputs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FilterSpec {
    seed: u64,
    /// Percentage of items that it leaves out.
    drop_percent: u64,
    /// Maximum number of items that it inserts, at any place.
    max_inserted: u64,
}

impl WorldSpec {
    /// Draws the random world of a seed with additions.
    pub(crate) fn attended(seed: u64) -> Self {
        let mut spec = Self::from_seed(seed);
        let mut rng = SimRng::for_purpose(seed, "additions");
        let rng = &mut rng;
        spec.additions = AdditionSpec {
            live_decision_percent: if rng.chance(75) { *rng.pick(&[30, 90]) } else { 0 },
            input_filter: rng.chance(40).then(|| FilterSpec::draw(rng, seed)),
            handoff_filter: rng.chance(40).then(|| FilterSpec::draw(rng, seed)),
            blocking_tools: BTreeSet::new(),
            marks_outputs: true,
        };
        for tool in spec.agents.iter_mut().flat_map(|agent| &mut agent.tools) {
            if rng.chance(20) {
                spec.additions.blocking_tools.insert(tool.name.clone());
                tool.hang_percent = 40;
                tool.timeout_ms = rng.chance(60).then_some(100);
            }
        }
        spec
    }
}

impl FilterSpec {
    fn draw(rng: &mut SimRng, seed: u64) -> Self {
        let (drop_percent, max_inserted) = *rng.pick(&[(20, 0), (0, 3), (15, 2)]);
        Self { seed, drop_percent, max_inserted }
    }

    /// Filters a history. Equal histories have equal results, in every process. The first item stays.
    pub(crate) fn apply(self, items: Vec<Arc<Item>>) -> Vec<Arc<Item>> {
        let mut rng = SimRng::for_purpose(self.seed, "filter");
        rng.mix_in(&items.len().to_le_bytes());
        let mut items = items.into_iter();
        let mut left: Vec<Arc<Item>> = items.next().into_iter().collect();
        left.extend(items.filter(|_| !rng.chance(self.drop_percent)));
        for _ in 0..rng.below(self.max_inserted + 1) {
            let place = rng.index(left.len() + 1);
            let hint = if rng.chance(50) { Item::user("A hint.") } else { Item::assistant("A thought.") };
            left.insert(place, Arc::new(hint));
        }
        left
    }
}
