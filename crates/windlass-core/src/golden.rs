//! The golden files, for unit tests: they are what journals look like.

use crate::entry::Record;
use crate::saved::from_text;

pub(crate) const GOLDEN: [(&str, &str); 12] = [
    ("finished", include_str!("../tests/golden/v1/finished.windlass")),
    ("paused", include_str!("../tests/golden/v1/paused.windlass")),
    ("nested", include_str!("../tests/golden/v1/nested.windlass")),
    ("handoffs", include_str!("../tests/golden/v1/handoffs.windlass")),
    ("crashed", include_str!("../tests/golden/v1/crashed.windlass")),
    ("decisions", include_str!("../tests/golden/v1/decisions.windlass")),
    ("hows", include_str!("../tests/golden/v1/hows.windlass")),
    ("failures", include_str!("../tests/golden/v1/failures.windlass")),
    ("items", include_str!("../tests/golden/v1/items.windlass")),
    ("forked", include_str!("../tests/golden/v1/forked.windlass")),
    ("asked", include_str!("../tests/golden/v1/asked.windlass")),
    ("each", include_str!("../tests/golden/v1/each.windlass")),
];

pub(crate) fn golden_text(name: &str) -> &'static str {
    GOLDEN.iter().find(|(known, _)| *known == name).expect("there is such a golden file").1
}

pub(crate) fn golden(name: &str) -> Vec<Record> {
    from_text(golden_text(name)).expect("a golden file is a saved run")
}
