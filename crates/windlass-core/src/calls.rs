//! What is known of calls, by their ids. Finding one costs the same however many there are.

use crate::id::CallId;

/// A map from the ids of calls that keeps the order in which they came. It makes no random choice: the same calls
/// lie in the same places on any machine.
#[derive(Clone, Debug)]
pub struct CallMap<V> {
    entries: Vec<(CallId, V)>,
    /// Places in `entries`, counted from 1, found by hash; 0 is free. Empty while there are few entries.
    table: Vec<u32>,
}

/// Up to how many entries looking at each is quicker than the table.
const FEW: usize = 8;

impl<V> CallMap<V> {
    /// What is known of a call.
    pub fn get(&self, call: &CallId) -> Option<&V> {
        self.place(call).map(|at| &self.entries[at].1)
    }

    /// Whether anything is known of a call.
    pub fn contains(&self, call: &CallId) -> bool {
        self.place(call).is_some()
    }

    /// How many calls there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// All calls, in the order in which they came.
    pub fn iter(&self) -> impl Iterator<Item = (&CallId, &V)> {
        self.entries.iter().map(|(call, value)| (call, value))
    }

    /// Puts something under an id that is new, or in place of what was there.
    pub fn insert(&mut self, call: CallId, value: V) {
        match self.place(&call) {
            Some(at) => self.entries[at].1 = value,
            None => {
                self.entries.push((call, value));
                self.enter(self.entries.len() - 1);
            }
        }
    }

    /// Makes room for so many more.
    pub(crate) fn reserve(&mut self, more: usize) {
        // Most runs are short and take what they need. One that goes on must not be copied for every answer.
        if self.entries.is_empty() {
            self.entries.reserve_exact(more);
        } else {
            self.entries.reserve(more);
        }
        let len = self.entries.len() + more;
        if len > FEW && len * 2 > self.table.len() {
            self.lay_out(len);
        }
    }

    /// Forgets all but the first so many.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.entries.truncate(len);
        if !self.table.is_empty() {
            self.lay_out(len);
        }
    }

    /// Where a call stands in the order in which they came.
    pub(crate) fn place(&self, call: &CallId) -> Option<usize> {
        if self.table.is_empty() {
            return self.entries.iter().position(|(known, _)| known == call);
        }
        let mut slot = self.slot_of(call);
        loop {
            let at = (self.table[slot] as usize).checked_sub(1)?;
            if self.entries[at].0 == *call {
                return Some(at);
            }
            slot = (slot + 1) & (self.table.len() - 1);
        }
    }

    /// Lets the entry at a place be found, in a table that is at most half full.
    fn enter(&mut self, at: usize) {
        if self.table.is_empty() && self.entries.len() <= FEW {
            return;
        }
        if self.entries.len() * 2 > self.table.len() {
            self.lay_out(self.entries.len());
        } else {
            self.mark(at);
        }
    }

    /// Makes a table for so many, and lets all entries be found in it.
    fn lay_out(&mut self, len: usize) {
        self.table = vec![0; (len * 4).next_power_of_two()];
        (0..self.entries.len()).for_each(|at| self.mark(at));
    }

    fn mark(&mut self, at: usize) {
        let mut slot = self.slot_of(&self.entries[at].0);
        while self.table[slot] != 0 {
            slot = (slot + 1) & (self.table.len() - 1);
        }
        self.table[slot] = u32::try_from(at + 1).unwrap_or(u32::MAX);
    }

    fn slot_of(&self, call: &CallId) -> usize {
        hash(call.as_str().as_bytes()) as usize & (self.table.len() - 1)
    }
}

/// Mixes eight bytes at a time, and once more in the end, so that ids that differ in their last digits lie apart.
fn hash(bytes: &[u8]) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut mixed = bytes.len() as u64;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        mixed = (mixed.rotate_left(23) ^ u64::from_le_bytes(word)).wrapping_mul(ODD);
    }
    let mut last = [0; 8];
    last[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
    mixed = (mixed.rotate_left(23) ^ u64::from_le_bytes(last)).wrapping_mul(ODD);
    mixed = (mixed ^ (mixed >> 32)).wrapping_mul(ODD);
    mixed ^ (mixed >> 29)
}

impl<V> Default for CallMap<V> {
    fn default() -> Self {
        Self { entries: Vec::new(), table: Vec::new() }
    }
}

impl<V: PartialEq> PartialEq for CallMap<V> {
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_was_put_in_and_nothing_else() {
        let mut map = CallMap::default();
        for number in 0..5_000 {
            let call = CallId::from(format!("call_{number}"));
            assert!(!map.contains(&call), "{call} is not there yet");
            map.insert(call.clone(), number);
            assert_eq!(map.get(&call), Some(&number));
        }
        assert_eq!(map.len(), 5_000);
        assert!(
            map.iter().map(|(_, number)| *number).eq(0..5_000),
            "they come in the order in which they came"
        );
        assert_eq!(map.get(&"call_17".into()), Some(&17));
        assert_eq!(map.get(&"call_5000".into()), None);
        assert_eq!(map.get(&"".into()), None);
        map.insert("call_17".into(), 99);
        assert_eq!((map.get(&"call_17".into()), map.len()), (Some(&99), 5_000));
        map.truncate(17);
        assert_eq!((map.get(&"call_17".into()), map.get(&"call_16".into())), (None, Some(&16)));
        map.reserve(2_000);
        map.insert("call_17".into(), 1);
        assert_eq!((map.get(&"call_17".into()), map.get(&"call_3".into())), (Some(&1), Some(&3)));
    }

    #[test]
    fn room_that_was_made_is_filled() {
        let mut map = CallMap::default();
        map.insert("call_0".into(), 0);
        map.reserve(20);
        (1..20).for_each(|number| map.insert(CallId::from(format!("call_{number}")), number));
        assert!((0..20).all(|number| map.get(&format!("call_{number}").into()) == Some(&number)));
    }

    #[test]
    fn few_can_be_forgotten_too() {
        let mut map = CallMap::default();
        (0..5).for_each(|number| map.insert(CallId::from(format!("call_{number}")), number));
        map.truncate(2);
        assert_eq!((map.len(), map.get(&"call_1".into()), map.get(&"call_2".into())), (2, Some(&1), None));
    }

    #[test]
    fn ids_that_are_alike_lie_apart() {
        let mut map = CallMap::default();
        for number in 0..10_000 {
            map.insert(CallId::from(format!("call_0_{number}")), ());
        }
        let longest = map.table.split(|place| *place == 0).map(<[u32]>::len).max();
        assert!(longest < Some(64), "places in a row that are taken: {longest:?}");
    }
}
