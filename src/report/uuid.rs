//! UUIDs as NVML prints them.

/// 16 bytes as `xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
pub fn text(bytes: &[u8; 16]) -> String {
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or("").to_owned();
    format!("{}-{}-{}-{}-{}", part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32))
}

/// The other way round, whatever stands before it: `GPU-`, `MIG-` or nothing.
pub fn parse(text: &str) -> Option<[u8; 16]> {
    let text = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-")).unwrap_or(text);
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    if digits.len() != 32 || !digits.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    u128::from_str_radix(&digits, 16).ok().map(u128::to_be_bytes)
}

/// For a device of a driver that gives none: its place in the driver's list must do.
pub fn of_place(number: u8) -> [u8; 16] {
    let mut uuid = *b"no uuid, number ";
    uuid[15] = number;
    uuid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let bytes = std::array::from_fn(|i| i as u8 * 17);
        assert_eq!(text(&bytes), "00112233-4455-6677-8899-aabbccddeeff");
        assert_eq!(parse("GPU-00112233-4455-6677-8899-aabbccddeeff"), Some(bytes));
        assert_eq!(parse("MIG-00112233-4455-6677-8899-AABBCCDDEEFF"), Some(bytes));
        assert_eq!(parse("GPU-0011"), None);
        assert_eq!(parse("+0112233-4455-6677-8899-aabbccddeeff"), None);
    }
}
