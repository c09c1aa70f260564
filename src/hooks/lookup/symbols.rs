//! Exported functions of a loaded library, from its own tables in memory.

use core::ffi::{CStr, c_char};

/// An entry of a dynamic section (elf.h).
#[repr(C)]
pub(in crate::hooks) struct Dyn {
    tag: i64,
    value: u64,
}

/// An exported function, by the library's GNU or SysV hash table; with a version, the one of that version, else the
/// default one.
pub(in crate::hooks) fn definition(
    base: u64,
    dynamic: *const Dyn,
    name: &CStr,
    version: Option<&CStr>,
) -> Option<u64> {
    const DT_HASH: i64 = 4;
    const DT_STRTAB: i64 = 5;
    const DT_SYMTAB: i64 = 6;
    const DT_GNU_HASH: i64 = 0x6fff_fef5;
    const DT_VERSYM: i64 = 0x6fff_fff0;
    const DT_VERDEF: i64 = 0x6fff_fffc;
    const DT_VERDEFNUM: i64 = 0x6fff_fffd;
    let mut entry = dynamic;
    let (mut strings, mut symbols, mut gnu, mut sysv) = (0, 0, 0, 0);
    let (mut versions, mut definitions, mut definition_count) = (0, 0, 0);
    // SAFETY: the dynamic section of a loaded library, ended by a null tag.
    unsafe {
        while (*entry).tag != 0 {
            // glibc relocates these pointers in place, except for the kernel's vdso.
            let value = (*entry).value;
            let address = if value < base { base.wrapping_add(value) } else { value };
            match (*entry).tag {
                DT_STRTAB => strings = address,
                DT_SYMTAB => symbols = address,
                DT_GNU_HASH => gnu = address,
                DT_HASH => sysv = address,
                DT_VERSYM => versions = address,
                DT_VERDEF => definitions = address,
                DT_VERDEFNUM => definition_count = value,
                _ => {}
            }
            entry = entry.add(1);
        }
    }
    if strings == 0 || symbols == 0 {
        return None;
    }
    let wanted = match version {
        None => None,
        Some(_) if versions == 0 || definitions == 0 => return None,
        // SAFETY: the tables of a loaded library.
        Some(version) => Some(unsafe { version_number(definitions, definition_count, strings, version) }?),
    };
    let is_match = |index: u32| -> Option<u64> {
        // SAFETY: an index from the library's own hash table.
        let symbol = unsafe { &*(symbols as *const libc::Elf64_Sym).add(index as usize) };
        const STT_FUNC: u8 = 2;
        if symbol.st_shndx == 0 || symbol.st_info & 0xf != STT_FUNC {
            return None;
        }
        /// The rest of the word; the highest bit says that it is not the default.
        const NUMBER: u16 = 0x7fff;
        if versions != 0 {
            // SAFETY: there is a word for each symbol.
            let version = unsafe { *(versions as *const u16).add(index as usize) };
            // Without a version the default one is meant: libc has two of posix_spawn.
            if wanted.map_or(version > NUMBER, |wanted| version & NUMBER != wanted) {
                return None;
            }
        }
        // SAFETY: a string of the library's own string table.
        let found = unsafe { CStr::from_ptr((strings as *const c_char).add(symbol.st_name as usize)) };
        (found == name).then(|| base.wrapping_add(symbol.st_value))
    };
    // SAFETY: the tables of a loaded library, laid out as the ABI says.
    unsafe {
        if gnu != 0 {
            gnu_look_up(gnu as *const u32, name, &is_match)
        } else {
            sysv_look_up(sysv, name, &is_match)
        }
    }
}

/// The number of a version that the library defines.
///
/// # Safety
/// The tables must be those of a loaded library.
unsafe fn version_number(definitions: u64, count: u64, strings: u64, version: &CStr) -> Option<u16> {
    const BASE: u16 = 1;
    let mut at = definitions;
    for _ in 0..count {
        // SAFETY: a definition, and the first of its names, at the places that it gives.
        let (definition, name) = unsafe {
            let definition = &*(at as *const VersionDefinition);
            let first = &*(at.wrapping_add(u64::from(definition.names)) as *const VersionName);
            (definition, CStr::from_ptr((strings as *const c_char).add(first.name as usize)))
        };
        // The first one names the file, which can be called like a version: libcudart's is.
        if definition.flags & BASE == 0 && name == version {
            return Some(definition.number & 0x7fff);
        }
        if definition.next == 0 {
            return None;
        }
        at = at.wrapping_add(u64::from(definition.next));
    }
    None
}

/// `Elf64_Verdef` (elf.h).
#[repr(C)]
struct VersionDefinition {
    _version: u16,
    flags: u16,
    number: u16,
    _name_count: u16,
    _hash: u32,
    names: u32,
    next: u32,
}

/// `Elf64_Verdaux`.
#[repr(C)]
struct VersionName {
    name: u32,
    _next: u32,
}

/// # Safety
/// `table` must be a loaded DT_GNU_HASH table.
unsafe fn gnu_look_up(table: *const u32, name: &CStr, is_match: &dyn Fn(u32) -> Option<u64>) -> Option<u64> {
    let hash = name.to_bytes().iter().fold(5381u32, |h, b| h.wrapping_mul(33).wrapping_add(u32::from(*b)));
    // SAFETY: four words of head, bloom words of 64 bits, buckets, then chains that end with an odd hash.
    unsafe {
        let (buckets, first, bloom_words) = (*table, *table.add(1), *table.add(2));
        if buckets == 0 {
            return None;
        }
        let bucket_array = table.add(4 + bloom_words as usize * 2);
        let mut index = *bucket_array.add((hash % buckets) as usize);
        if index < first {
            return None;
        }
        let chains = bucket_array.add(buckets as usize);
        loop {
            let entry = *chains.add((index - first) as usize);
            if entry | 1 == hash | 1
                && let Some(found) = is_match(index)
            {
                return Some(found);
            }
            if entry & 1 == 1 {
                return None;
            }
            index += 1;
        }
    }
}

/// # Safety
/// `table` must be 0 or the address of a loaded DT_HASH table.
unsafe fn sysv_look_up(table: u64, name: &CStr, is_match: &dyn Fn(u32) -> Option<u64>) -> Option<u64> {
    if table == 0 {
        return None;
    }
    let hash = name.to_bytes().iter().fold(0u32, |h, b| {
        let h = (h << 4).wrapping_add(u32::from(*b));
        let high = h & 0xf000_0000;
        (h ^ (high >> 24)) & !high
    });
    let table = table as *const u32;
    // SAFETY: the numbers of buckets and of symbols, the buckets, then for each symbol the next one; 0 ends.
    unsafe {
        let buckets = *table;
        if buckets == 0 {
            return None;
        }
        let chain = table.add(2 + buckets as usize);
        let mut index = *table.add(2 + (hash % buckets) as usize);
        while index != 0 {
            if let Some(found) = is_match(index) {
                return Some(found);
            }
            index = *chain.add(index as usize);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::elf::{dynamic_section, each_library};
    use super::*;

    fn in_libc(name: &CStr, version: Option<&CStr>) -> Option<u64> {
        let mut found = None;
        each_library(&mut |info| {
            found = dynamic_section(info)
                .and_then(|dynamic| definition(info.dlpi_addr, dynamic, name, version))
                .or(found);
            false
        });
        found
    }

    #[test]
    fn a_version_is_asked_for_by_its_name() {
        let plain = in_libc(c"pthread_cond_init", None).unwrap();
        let [old, new] = [c"GLIBC_2.2.5", c"GLIBC_2.3.2"]
            .map(|version| in_libc(c"pthread_cond_init", Some(version)).unwrap());
        assert_ne!(old, new);
        assert_eq!(plain, new, "the default");
        assert_eq!(in_libc(c"pthread_cond_init", Some(c"GLIBC_2.3")), None);
        assert_eq!(in_libc(c"pthread_cond_init", Some(c"libcudart.so.12")), None);
    }
}
