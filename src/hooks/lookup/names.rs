//! Is this name a row's? Asked for every look-up that begins with "cu" or "nv", so it must cost next to nothing.

use crate::hooks::table::{COUNT, ROWS};
use core::ffi::CStr;

const BUCKETS: usize = 512;
/// Hash of a name → the first row with that hash, plus 1. Names that share a bucket are found by going on.
static TABLE: [u8; BUCKETS] = build();
const _: () = assert!(COUNT < 255);

/// The row of an exported name, exactly.
pub(super) fn row_of(name: &CStr) -> Option<usize> {
    let bytes = name.to_bytes();
    let mut bucket = hash(bytes) % BUCKETS;
    for _ in 0..BUCKETS {
        let row = usize::from(*TABLE.get(bucket)?).checked_sub(1)?;
        if ROWS.get(row)?.name.to_bytes() == bytes {
            return Some(row);
        }
        bucket = (bucket + 1) % BUCKETS;
    }
    None
}

const fn build() -> [u8; BUCKETS] {
    let mut table = [0u8; BUCKETS];
    let mut row = 0;
    while row < COUNT {
        let mut bucket = hash(crate::hooks::table::NAMES[row].as_bytes()) % BUCKETS;
        while table[bucket] != 0 {
            bucket = (bucket + 1) % BUCKETS;
        }
        table[bucket] = row as u8 + 1;
        row += 1;
    }
    table
}

/// Of the length and seven bytes spread over the name: few instructions, and no two rows of a family collide
/// often.
const fn hash(name: &[u8]) -> usize {
    let length = name.len();
    if length < 4 {
        return length;
    }
    let mut h = length;
    let mut at = 2;
    while at < 8 {
        // From the end, where names of one family differ.
        let byte = if at < length { name[length - 1 - (at - 2)] } else { 0 };
        h = h.wrapping_mul(31).wrapping_add(byte as usize);
        at += 1;
    }
    h = h.wrapping_mul(31).wrapping_add(name[2] as usize);
    h = h.wrapping_mul(31).wrapping_add(name[length / 2] as usize);
    h ^ (h >> 9)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;

    #[test]
    fn every_row_and_nothing_else() {
        for (number, row) in ROWS.iter().enumerate() {
            assert_eq!(row_of(row.name), Some(number));
            let longer = CString::new([row.name.to_bytes(), b"x"].concat()).unwrap();
            assert_eq!(row_of(&longer), None, "{longer:?}");
            let shorter = &row.name.to_bytes()[..row.name.to_bytes().len() - 1];
            let shorter_name = CString::new(shorter).unwrap();
            assert!(row_of(&shorter_name).is_none_or(|r| ROWS[r].name.to_bytes() == shorter));
        }
        for name in [
            c"",
            c"c",
            c"cu",
            c"cudaMalloc",
            c"curl_easy_init",
            c"cudnnCreate",
            c"nvmlInit_v3",
            c"nvrtcVersion",
        ] {
            assert_eq!(row_of(name), None, "{name:?}");
        }
    }

    #[test]
    fn few_collisions() {
        let mut longest = 0;
        let mut run = 0;
        for bucket in TABLE.iter().chain(TABLE.iter()) {
            run = if *bucket == 0 { 0 } else { run + 1 };
            longest = longest.max(run);
        }
        assert!(longest <= 8, "{longest} names in a row");
    }
}
