//! Times as people and machines read them.

/// Formats a time, in milliseconds since 1970, as RFC 3339 in UTC, to the second.
pub fn format_utc_time(at: u64) -> String {
    let (days, ms) = (at / 86_400_000, at % 86_400_000);
    // Civil date from the days since 1970, in eras of 400 years.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1_000 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_to_the_second() {
        assert_eq!(format_utc_time(0), "1970-01-01T00:00:00Z");
        assert_eq!(format_utc_time(951_782_400_000), "2000-02-29T00:00:00Z");
        assert_eq!(format_utc_time(1_795_000_000_123), "2026-11-18T11:06:40Z");
    }
}
