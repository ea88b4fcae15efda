//! Durations in the notation of agent files: `500ms`, `5s`, `10m`, `2h`.

use std::time::Duration;

use serde::{Deserialize, Deserializer};

/// A duration in an agent file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HumanDuration(Duration);

impl HumanDuration {
    pub(super) fn as_duration(self) -> Duration {
        self.0
    }
}

impl<'de> Deserialize<'de> for HumanDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong =
            || serde::de::Error::custom(format!("`{text}` is not a duration; write 500ms, 5s, 10m or 2h"));
        let unit_at = text.find(|letter: char| !letter.is_ascii_digit()).ok_or_else(wrong)?;
        let (count, unit) = text.split_at(unit_at);
        let count: u64 = count.parse().map_err(|_| wrong())?;
        let length = match unit.trim() {
            "ms" => Some(Duration::from_millis(count)),
            "s" => Some(Duration::from_secs(count)),
            "m" => count.checked_mul(60).map(Duration::from_secs),
            "h" => count.checked_mul(3_600).map(Duration::from_secs),
            _ => None,
        };
        length.map(Self).ok_or_else(wrong)
    }
}
