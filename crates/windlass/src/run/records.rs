//! The journal of a run as a value. What a snapshot covers is kept as the store has it, and read when somebody looks.

use std::sync::OnceLock;

use windlass_core::{Chain, Line, Record, read_lines};

/// All records of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Records {
    /// Those before a snapshot that the run was opened from, as they were written. Their chain was checked.
    earlier: Vec<Line>,
    /// Those since.
    later: Vec<Record>,
    /// All of them, once somebody has looked.
    all: OnceLock<Vec<Record>>,
}

impl From<Vec<Record>> for Records {
    fn from(records: Vec<Record>) -> Self {
        Self { later: records, ..Self::default() }
    }
}

impl Records {
    /// Lines that a snapshot covers, and the records after them.
    pub(crate) fn since(earlier: Vec<Line>, later: Vec<Record>) -> Self {
        Self { earlier, later, all: OnceLock::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.earlier.len() + self.later.len()
    }

    pub(crate) fn push(&mut self, record: Record) {
        self.later.push(record);
        self.all.take();
    }

    /// The records after those that a snapshot covers.
    pub(crate) fn later(&self) -> &[Record] {
        &self.later
    }

    pub(crate) fn all(&self) -> &[Record] {
        if self.earlier.is_empty() {
            return &self.later;
        }
        self.all.get_or_init(|| {
            // They could be read when the snapshot was made of them, and have the hashes that they had then.
            let mut all = read_lines(&self.earlier).unwrap_or_default();
            all.extend(self.later.iter().cloned());
            all
        })
    }

    /// All records as lines.
    pub(crate) fn lines(&self) -> Vec<Line> {
        let mut lines = self.earlier.clone();
        let mut chain = lines.last().map_or_else(Chain::default, |line| Chain::at(line.hash));
        lines.extend(self.later.iter().map(|record| chain.add(record)));
        lines
    }
}
