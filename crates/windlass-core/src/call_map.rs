//! An insertion-ordered map keyed by call id, with constant-time lookup.

use crate::id::CallId;

/// An insertion-ordered map keyed by [`CallId`]. Its hash is not randomised, so its memory layout is the same
/// on every machine.
#[derive(Clone, Debug)]
pub struct CallMap<V> {
    entries: Vec<(CallId, V)>,
    /// Open-addressing hash table of 1-based indices into `entries`; 0 marks a free slot. Empty while a linear
    /// search is used.
    table: Vec<u32>,
}

/// Maximum number of entries for which a linear search is faster than the hash table.
const LINEAR_SEARCH_MAX: usize = 8;

impl<V> CallMap<V> {
    /// Returns the value stored for a call.
    pub fn get(&self, call: &CallId) -> Option<&V> {
        self.find_index(call).map(|at| &self.entries[at].1)
    }

    /// Returns true if the map contains the call.
    pub fn contains(&self, call: &CallId) -> bool {
        self.find_index(call).is_some()
    }

    /// Returns the number of calls.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if the map is empty.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns all calls and their values in insertion order.
    pub fn iter(&self) -> impl Iterator<Item = (&CallId, &V)> {
        self.entries.iter().map(|(call, value)| (call, value))
    }

    /// Inserts a value for a call, or replaces the value that the call already has.
    pub fn insert(&mut self, call: CallId, value: V) {
        match self.find_index(&call) {
            Some(at) => self.entries[at].1 = value,
            None => {
                self.entries.push((call, value));
                self.insert_slot(self.entries.len() - 1);
            }
        }
    }

    /// Reserves capacity for `more` further calls.
    pub(crate) fn reserve(&mut self, more: usize) {
        // Most runs are short, so the first reservation is exact. A long run reserves with growth, because an
        // exact reservation would copy all entries on every model response.
        if self.entries.is_empty() {
            self.entries.reserve_exact(more);
        } else {
            self.entries.reserve(more);
        }
        let len = self.entries.len() + more;
        if len > LINEAR_SEARCH_MAX && len * 2 > self.table.len() {
            self.rebuild_table(len);
        }
    }

    /// Removes all but the first `len` entries.
    pub(crate) fn truncate(&mut self, len: usize) {
        self.entries.truncate(len);
        if !self.table.is_empty() {
            self.rebuild_table(len);
        }
    }

    /// Returns the call's index in insertion order.
    pub(crate) fn find_index(&self, call: &CallId) -> Option<usize> {
        if self.table.is_empty() {
            return self.entries.iter().position(|(known, _)| known == call);
        }
        let mut slot = self.home_slot(call);
        loop {
            let at = (self.table[slot] as usize).checked_sub(1)?;
            if self.entries[at].0 == *call {
                return Some(at);
            }
            slot = (slot + 1) & (self.table.len() - 1);
        }
    }

    /// Makes the entry at index `at` reachable through the hash table, which is kept at most half full.
    fn insert_slot(&mut self, at: usize) {
        if self.table.is_empty() && self.entries.len() <= LINEAR_SEARCH_MAX {
            return;
        }
        if self.entries.len() * 2 > self.table.len() {
            self.rebuild_table(self.entries.len());
        } else {
            self.occupy_slot(at);
        }
    }

    /// Rebuilds the hash table for `len` entries and inserts all current entries.
    fn rebuild_table(&mut self, len: usize) {
        self.table = vec![0; (len * 4).next_power_of_two()];
        (0..self.entries.len()).for_each(|at| self.occupy_slot(at));
    }

    fn occupy_slot(&mut self, at: usize) {
        let mut slot = self.home_slot(&self.entries[at].0);
        while self.table[slot] != 0 {
            slot = (slot + 1) & (self.table.len() - 1);
        }
        self.table[slot] = u32::try_from(at + 1).unwrap_or(u32::MAX);
    }

    fn home_slot(&self, call: &CallId) -> usize {
        hash_id(call.as_str().as_bytes()) as usize & (self.table.len() - 1)
    }
}

/// Hashes eight bytes at a time with a final mixing step, so that ids that differ only in their last digits
/// spread over the table.
fn hash_id(bytes: &[u8]) -> u64 {
    const HASH_MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut mixed = bytes.len() as u64;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        mixed = (mixed.rotate_left(23) ^ u64::from_le_bytes(word)).wrapping_mul(HASH_MULTIPLIER);
    }
    let mut last = [0; 8];
    last[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
    mixed = (mixed.rotate_left(23) ^ u64::from_le_bytes(last)).wrapping_mul(HASH_MULTIPLIER);
    mixed = (mixed ^ (mixed >> 32)).wrapping_mul(HASH_MULTIPLIER);
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
