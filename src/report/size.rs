//! Sizes as text, the same in events and reports.

/// A size with its unit: `512 bytes`, `1.50 MiB`. In whole numbers: formatting a float takes 15 KB of code, and this is
/// all that the shim would have it for.
pub fn bytes(size: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if size < 1024 {
        return if size == 1 { "1 byte".to_owned() } else { format!("{size} bytes") };
    }
    let mut unit = 0;
    let mut shift = 10u32;
    // 1023.6 would be shown as 1024.
    while size >> (shift - 1) >= 2047 && unit + 1 < UNITS.len() {
        unit += 1;
        shift += 10;
    }
    // What is left below the unit, with room to multiply it by a thousand.
    let (size, shift) = if shift > 50 { (size >> 10, shift - 10) } else { (size, shift) };
    let one = 1u64 << shift;
    let (whole, below) = (size >> shift, size & (one - 1));
    let floor = |scale: u64| whole * scale + ((below * scale) >> shift);
    let rounded = |scale: u64| {
        let rest = (below * scale) & (one - 1);
        // A half goes to the even neighbour, as with floats.
        floor(scale) + u64::from(rest > one / 2 || rest == one / 2 && floor(scale) % 2 == 1)
    };
    let unit = UNITS.get(unit).copied().unwrap_or("EiB");
    if floor(1000) < 9995 {
        let hundredths = rounded(100);
        format!("{}.{:02} {unit}", hundredths / 100, hundredths % 100)
    } else if floor(100) < 9995 {
        let tenths = rounded(10);
        format!("{}.{} {unit}", tenths / 10, tenths % 10)
    } else {
        format!("{} {unit}", rounded(1))
    }
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
            (3712, "3.62 KiB"),
            (3713, "3.63 KiB"),
            (1024 * 9995 / 1000, "9.99 KiB"),
            (1024 * 9996 / 1000, "10.0 KiB"),
            (1024 * 1000 - 1, "1000 KiB"),
            ((2047 << 9) - 1, "1023 KiB"),
            (2047 << 9, "1.00 MiB"),
        ] {
            assert_eq!(bytes(size), text);
        }
    }

    #[test]
    fn as_with_floats() {
        let with_floats = |size: u64| {
            let (mut value, mut power) = (size as f64 / 1024.0, 0);
            while value >= 1023.5 && power < 5 {
                (value, power) = (value / 1024.0, power + 1);
            }
            let digits =
                [(9.995, 2), (99.95, 1)].iter().find(|(below, _)| value < *below).map_or(0, |(_, d)| *d);
            format!("{value:.digits$}")
        };
        let mut state = 1u64;
        for round in 0..200_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let size = (state >> (round % 11)).max(1024) >> (round % 44);
            if size >= 1024 {
                assert_eq!(bytes(size).split(' ').next(), Some(with_floats(size).as_str()), "{size}");
            }
        }
    }
}
