//! What an operator may put into the environment: `NAME=VALUE` lines with any bytes, and limits by themselves.

#![no_main]

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use cuwarden::policy::config::Config;
use cuwarden::policy::limit::{Limits, parse_bytes};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Ok(text) = std::str::from_utf8(input) {
        assert_eq!(parse_bytes(text).ok(), expected_bytes(text), "{text:?}");
        if let Ok(limits) = Limits::parse(text) {
            for ordinal in [0, 1, u32::MAX] {
                let all = [limits.of(ordinal, ""), limits.of(ordinal, "GPU-ab"), limits.of(ordinal, "é-é")];
                assert!(!limits.is_unlimited() || all == [0; 3]);
            }
        }
    }
    let lines: Vec<(&[u8], &[u8])> = input
        .split(|&byte| byte == b'\n')
        .filter_map(|line| {
            let end = line.iter().position(|&byte| byte == b'=')?;
            Some((&line[..end], &line[end + 1..]))
        })
        .collect();
    let (config, errors) = Config::parse(&|name| {
        let (_, value) = lines.iter().find(|(known, _)| *known == name.as_bytes())?;
        Some(OsString::from(OsStr::from_bytes(value)))
    });
    assert!(config.stack_depth <= 128);
    for error in errors {
        assert!(!error.reason.is_empty() && !error.allowed.is_empty());
        assert!(lines.iter().any(|(name, _)| *name == error.variable.as_bytes()), "not set: {error:?}");
    }
});

/// The size by another way: digit by digit, exactly.
fn expected_bytes(text: &str) -> Option<u64> {
    let suffix_at = text.bytes().position(|b| !b.is_ascii_digit() && b != b'.').unwrap_or(text.len());
    let (number, suffix) = (&text[..suffix_at], text[suffix_at..].to_lowercase());
    let power = match suffix.strip_suffix('b').unwrap_or(&suffix) {
        "" => 0,
        "k" | "ki" => 1,
        "m" | "mi" => 2,
        "g" | "gi" => 3,
        "t" | "ti" => 4,
        _ => return None,
    };
    // Not every letter that is a lower-case b or k by Unicode's rules is meant.
    if !text.is_ascii() {
        return None;
    }
    let unit = 1024u128.pow(power);
    let parts: Vec<&str> = number.split('.').collect();
    let (whole, decimals) = match parts[..] {
        [whole] => (whole, ""),
        [whole, decimals] if power > 0 && (1..=9).contains(&decimals.len()) => (whole, decimals),
        _ => return None,
    };
    if whole.is_empty() || whole.len() > 30 || (whole.starts_with('0') && whole != "0") {
        return None;
    }
    let digits: u128 = format!("{whole}{decimals}").parse().ok()?;
    let bytes = digits.checked_mul(unit)? / 10u128.pow(decimals.len() as u32);
    u64::try_from(bytes).ok()
}
