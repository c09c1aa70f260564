//! Points in time as text.

/// RFC 3339 in UTC with milliseconds; none for 0, which stands for "not known".
pub fn rfc3339(ns_since_1970: u64) -> Option<String> {
    if ns_since_1970 == 0 {
        return None;
    }
    let seconds = ns_since_1970 / 1_000_000_000;
    let (year, month, day) = civil(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let ms = ns_since_1970 / 1_000_000 % 1000;
    Some(format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ms:03}Z"))
}

/// Year, month and day of a day since 1970-01-01, in the Gregorian calendar.
///
/// Counts from 0000-03-01, so that the leap day is the last day of a year.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    (year, month, day_of_year - (153 * shifted + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_days() {
        assert_eq!(rfc3339(0), None);
        assert_eq!(rfc3339(1).as_deref(), Some("1970-01-01T00:00:00.000Z"));
        assert_eq!(rfc3339(951_782_400_000_000_000).as_deref(), Some("2000-02-29T00:00:00.000Z"));
        assert_eq!(rfc3339(1_796_090_584_567_000_000).as_deref(), Some("2026-12-01T02:03:04.567Z"));
        assert_eq!(rfc3339(4_107_542_399_999_999_999).as_deref(), Some("2100-02-28T23:59:59.999Z"));
        assert!(rfc3339(u64::MAX).is_some());
    }
}
