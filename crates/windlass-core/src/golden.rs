//! The golden files as test data for unit tests.

use crate::journal::JournalRecord;
use crate::journal::decode_journal;

pub(crate) const GOLDEN_FILES: [(&str, &str); 13] = [
    ("finished", include_str!("../tests/golden/v1/finished.windlass")),
    ("paused", include_str!("../tests/golden/v1/paused.windlass")),
    ("nested", include_str!("../tests/golden/v1/nested.windlass")),
    ("handoffs", include_str!("../tests/golden/v1/handoffs.windlass")),
    ("crashed", include_str!("../tests/golden/v1/crashed.windlass")),
    ("decisions", include_str!("../tests/golden/v1/decisions.windlass")),
    ("statuses", include_str!("../tests/golden/v1/statuses.windlass")),
    ("failures", include_str!("../tests/golden/v1/failures.windlass")),
    ("items", include_str!("../tests/golden/v1/items.windlass")),
    ("forked", include_str!("../tests/golden/v1/forked.windlass")),
    ("questions", include_str!("../tests/golden/v1/questions.windlass")),
    ("withheld", include_str!("../tests/golden/v1/withheld.windlass")),
    ("approval_each_time", include_str!("../tests/golden/v1/approval_each_time.windlass")),
];

pub(crate) fn golden_text(name: &str) -> &'static str {
    GOLDEN_FILES.iter().find(|(known, _)| *known == name).expect("there is such a golden file").1
}

pub(crate) fn golden_records(name: &str) -> Vec<JournalRecord> {
    decode_journal(golden_text(name)).expect("a golden file is a saved run")
}
