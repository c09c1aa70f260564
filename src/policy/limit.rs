//! The grammar of memory limits.
//!
//! `4GiB` for every device, or `0=4GiB,GPU-<uuid>=8GiB,*=2GiB`. Exact or refused: a peer reads `4Gi` as
//! 4 bytes and `-1` as unlimited.

use std::fmt;

/// What is wrong with a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitError {
    /// The part that could not be read.
    pub value: String,
    /// What is wrong with it.
    pub reason: &'static str,
}

/// What a limit may look like, for messages.
pub const ALLOWED: &str = "a size such as 4GiB, 512m, 1.5g or 1073741824 (1024-based, 0 = unlimited), \
    or a list such as 0=4GiB,GPU-<uuid>=8GiB,*=2GiB";

impl fmt::Display for LimitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\": {}", self.value, self.reason)
    }
}

/// Which devices an entry is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// A CUDA ordinal of this process.
    Ordinal(u32),
    /// `GPU-…` or `MIG-…`.
    Uuid(String),
    /// Every device that no other entry names.
    Any,
}

/// Limits by device. Bytes; 0 = unlimited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    entries: Vec<(Selector, u64)>,
}

impl Limits {
    /// Reads a limit specification.
    pub fn parse(text: &str) -> Result<Limits, LimitError> {
        let mut limits = Limits::default();
        if !text.contains('=') {
            limits.entries.push((Selector::Any, parse_bytes(text)?));
            return Ok(limits);
        }
        for part in text.split(',') {
            let Some((selector, bytes)) = part.split_once('=') else {
                return Err(error(part, "expected DEVICE=SIZE"));
            };
            limits.add(parse_selector(selector)?, parse_bytes(bytes)?, part)?;
        }
        Ok(limits)
    }

    /// Adds the limit of one device; a device that is named already is an error.
    pub fn add(&mut self, selector: Selector, bytes: u64, shown: &str) -> Result<(), LimitError> {
        if self.entries.iter().any(|(known, _)| same(known, &selector)) {
            return Err(error(shown, "this device is named twice"));
        }
        self.entries.push((selector, bytes));
        Ok(())
    }

    /// What was said of which devices, in order.
    pub fn entries(&self) -> impl Iterator<Item = (&Selector, u64)> {
        self.entries.iter().map(|(selector, bytes)| (selector, *bytes))
    }

    /// True when no entry limits anything.
    pub fn is_unlimited(&self) -> bool {
        self.entries.iter().all(|(_, bytes)| *bytes == 0)
    }

    /// As [`Limits::of`] where the CUDA ordinal does not matter; `None` where it does.
    pub fn of_uuid(&self, uuid: &str) -> Option<u64> {
        let names_it = |s: &Selector| matches!(s, Selector::Uuid(named) if same_uuid(named, uuid));
        let by_ordinal = |s: &Selector| matches!(s, Selector::Ordinal(_));
        let selectors = || self.entries.iter().map(|(selector, _)| selector);
        let matters = !selectors().any(names_it) && selectors().any(by_ordinal);
        (!matters).then(|| self.of(u32::MAX, uuid))
    }

    /// The limit of one device in bytes, 0 = none. The UUID wins over the ordinal, both over `*`.
    pub fn of(&self, ordinal: u32, uuid: &str) -> u64 {
        let find = |wanted: &dyn Fn(&Selector) -> bool| {
            self.entries.iter().find(|(selector, _)| wanted(selector)).map(|(_, bytes)| *bytes)
        };
        find(&|s| matches!(s, Selector::Uuid(named) if same_uuid(named, uuid)))
            .or_else(|| find(&|s| *s == Selector::Ordinal(ordinal)))
            .or_else(|| find(&|s| *s == Selector::Any))
            .unwrap_or(0)
    }
}

/// Reads a size in bytes: decimal digits, at most one point, and a suffix k, m, g or t with an optional `i`
/// and an optional `b`, in any case, all 1024-based.
pub fn parse_bytes(text: &str) -> Result<u64, LimitError> {
    let digits_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits_end);
    let shift = match suffix.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "ki" | "kib" => 10,
        "m" | "mb" | "mi" | "mib" => 20,
        "g" | "gb" | "gi" | "gib" => 30,
        "t" | "tb" | "ti" | "tib" => 40,
        _ => return Err(error(text, "not a size")),
    };
    let (whole, fraction) = match number.split_once('.') {
        Some((whole, fraction)) => (whole, Some(fraction)),
        None => (number, None),
    };
    if whole.is_empty() || fraction == Some("") {
        return Err(error(text, "not a size"));
    }
    if whole.len() > 1 && whole.starts_with('0') {
        return Err(error(text, "a leading zero is ambiguous (octal or decimal)"));
    }
    let whole: u64 = whole.parse().map_err(|_| error(text, "too large"))?;
    let whole = whole.checked_mul(1 << shift).ok_or_else(|| error(text, "too large"))?;
    let Some(fraction) = fraction else { return Ok(whole) };
    if shift == 0 {
        return Err(error(text, "a fraction needs a suffix"));
    }
    if fraction.len() > 9 || fraction.contains('.') {
        return Err(error(text, "too many decimals"));
    }
    let numerator: u64 = fraction.parse().map_err(|_| error(text, "not a size"))?;
    let denominator = 10u128.pow(fraction.len() as u32);
    // At most 10^9 × 2^40: far from the end of u128. Rounded down to whole bytes.
    let part = (u128::from(numerator) << shift) / denominator;
    whole.checked_add(part as u64).ok_or_else(|| error(text, "too large"))
}

fn parse_selector(text: &str) -> Result<Selector, LimitError> {
    if text == "*" {
        return Ok(Selector::Any);
    }
    if text.len() > 4 && (text.starts_with("GPU-") || text.starts_with("MIG-")) {
        return Ok(Selector::Uuid(text.to_owned()));
    }
    let plain = !text.is_empty()
        && text.bytes().all(|b| b.is_ascii_digit())
        && (text.len() == 1 || !text.starts_with('0'));
    match text.parse() {
        Ok(ordinal) if plain => Ok(Selector::Ordinal(ordinal)),
        _ => Err(error(text, "not a device: expected an index, GPU-<uuid>, MIG-<uuid> or *")),
    }
}

fn same(a: &Selector, b: &Selector) -> bool {
    match (a, b) {
        (Selector::Uuid(a), Selector::Uuid(b)) => same_uuid(a, b),
        _ => a == b,
    }
}

/// The driver gives 16 bytes, and does not say whether they name a card (`GPU-`) or a slice of one (`MIG-`).
fn same_uuid(a: &str, b: &str) -> bool {
    a.get(4..).is_some_and(|digits| b.get(4..).is_some_and(|other| digits.eq_ignore_ascii_case(other)))
}

fn error(value: &str, reason: &'static str) -> LimitError {
    LimitError { value: value.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_exact() {
        for (text, bytes) in [
            ("0", 0),
            ("1", 1),
            ("4096", 4096),
            ("4096b", 4096),
            ("1k", 1 << 10),
            ("4Gi", 4 << 30),
            ("4GB", 4 << 30),
            ("4GiB", 4 << 30),
            ("4g", 4 << 30),
            ("4gIb", 4 << 30),
            ("1.5G", 3 << 29),
            ("0.5m", 1 << 19),
            ("2T", 2 << 40),
            ("1.000000001k", 1024),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            " ",
            "-1",
            "+1",
            "4G ",
            " 4G",
            "010G",
            "0x10",
            "1e9",
            "4 G",
            "4Gib5",
            "4Q",
            ".5g",
            "1.g",
            "1..5g",
            "1.5.5g",
            "1.5",
            "1.5b",
            "99999999999999999999",
            "16777216t",
            "1.1234567890g",
            "4ＧB",
            "NaN",
            "inf",
            "unlimited",
            "4,5g",
            "1_000",
        ] {
            assert!(parse_bytes(text).is_err(), "{text}");
            assert!(Limits::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn lists_by_device() {
        let limits = Limits::parse("0=4GiB,GPU-ab=8GiB,*=2GiB").unwrap();
        assert_eq!(limits.of(0, "GPU-xx"), 4 << 30);
        assert_eq!(limits.of(0, "GPU-ab"), 8 << 30, "the UUID wins");
        assert_eq!(limits.of(0, "gpu-AB"), 8 << 30, "hexadecimal digits have no case");
        assert_eq!(limits.of(7, "GPU-xx"), 2 << 30);
        assert_eq!(Limits::parse("MIG-ab=1g").unwrap().of(0, "GPU-ab"), 1 << 30, "a slice's UUID");
        assert_eq!(Limits::parse("GPU-ab=1g").unwrap().of(0, ""), 0, "a device without a UUID");
        assert_eq!(
            Limits::parse("1=1g").unwrap().of(0, "GPU-xx"),
            0,
            "a device that no entry names is unlimited"
        );
        assert_eq!(limits.of_uuid("GPU-AB"), Some(8 << 30));
        assert_eq!(limits.of_uuid("GPU-xx"), None, "an ordinal is needed");
        assert_eq!(Limits::parse("GPU-ab=8g,*=2g").unwrap().of_uuid("GPU-xx"), Some(2 << 30));
        assert_eq!(Limits::parse("4294967295=1g,*=2g").unwrap().of_uuid("GPU-xx"), None);
        assert!(Limits::parse("0").unwrap().is_unlimited());
        assert!(Limits::parse("0=0,1=0").unwrap().is_unlimited());
        assert!(!limits.is_unlimited());
    }

    #[test]
    fn bad_lists_are_refused() {
        for text in [
            "0=1g,0=2g",
            "GPU-a=1g,gpu-a=1g",
            "GPU-a=1g,GPU-A=2g",
            "*=1g,*=1g",
            "0=1g,",
            ",0=1g",
            "0=1g,,1=1g",
            "0==1g",
            "=1g",
            "0=",
            "00=1g",
            "01=1g",
            "-1=1g",
            "+1=1g",
            "0 =1g",
            "4294967296=1g",
            "GPU-=1g",
            "gpu=1g",
            "0=1g;1=2g",
            "0=1g 1=2g",
        ] {
            assert!(Limits::parse(text).is_err(), "{text}");
        }
    }
}
