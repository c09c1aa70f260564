//! Sizes as text, the same in events and reports.

/// A size with its unit: `512 bytes`, `1.50 MiB`.
pub fn bytes(size: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if size < 1024 {
        return if size == 1 { "1 byte".to_owned() } else { format!("{size} bytes") };
    }
    let mut value = size as f64 / 1024.0;
    let mut unit = 0;
    // 1023.6 would be shown as 1024.
    while value >= 1023.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let digits = if value < 9.995 {
        2
    } else if value < 99.95 {
        1
    } else {
        0
    };
    format!("{value:.digits$} {}", UNITS.get(unit).copied().unwrap_or("EiB"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_digits_and_a_unit() {
        for (size, text) in [
            (0, "0 bytes"),
            (1, "1 byte"),
            (1023, "1023 bytes"),
            (1024, "1.00 KiB"),
            (10 << 10, "10.0 KiB"),
            (1 << 20, "1.00 MiB"),
            ((1 << 20) - 1, "1.00 MiB"),
            (1000 << 20, "1000 MiB"),
            (3 << 30, "3.00 GiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(bytes(size), text);
        }
    }
}
