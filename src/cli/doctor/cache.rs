//! /etc/ld.so.cache, as ldconfig writes it.

const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const HEADER_BYTES: usize = 48;
const ENTRY_BYTES: usize = 24;
/// FLAG_ELF_LIBC6 and the 64-bit variant of this machine.
const FLAGS: u32 = if cfg!(target_arch = "aarch64") { 0x0a03 } else { 0x0303 };

/// Names and paths of 64-bit libraries, in the order of the file. Empty where it cannot be read: the file is as good as
/// not there for the loader then.
pub fn read(bytes: &[u8]) -> Vec<(String, String)> {
    // An older format may stand before it.
    let Some(at) = bytes.windows(MAGIC.len()).position(|window| window == MAGIC) else { return Vec::new() };
    let bytes = bytes.get(at..).unwrap_or_default();
    let count = number(bytes, MAGIC.len()).unwrap_or(0) as usize;
    let entries = bytes.get(HEADER_BYTES..).unwrap_or_default().chunks_exact(ENTRY_BYTES).take(count);
    entries
        .filter(|entry| number(entry, 0) == Some(FLAGS))
        .filter_map(|entry| Some((text(bytes, number(entry, 4)?)?, text(bytes, number(entry, 8)?)?)))
        .collect()
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_le_bytes)
}

fn text(bytes: &[u8], at: u32) -> Option<String> {
    let rest = bytes.get(at as usize..)?;
    let end = rest.iter().position(|byte| *byte == 0)?;
    Some(String::from_utf8_lossy(rest.get(..end)?).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_and_every_cut_of_it() {
        let mut bytes = b"ld.so-1.7.0\0".to_vec();
        let at = bytes.len();
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&2u32.to_le_bytes());
        bytes.resize(at + HEADER_BYTES, 0);
        let strings = (HEADER_BYTES + 2 * ENTRY_BYTES) as u32;
        for flags in [FLAGS, 3] {
            for word in [flags, strings, strings + 13, 0, 0, 0] {
                bytes.extend_from_slice(&word.to_le_bytes());
            }
        }
        bytes.extend_from_slice(b"libcuda.so.1\0/x/libcuda.so.1\0");
        assert_eq!(read(&bytes), [("libcuda.so.1".to_owned(), "/x/libcuda.so.1".to_owned())]);
        for length in 0..bytes.len() {
            let _ = read(&bytes[..length]);
        }
    }
}
