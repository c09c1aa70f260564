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
    let tables = Tables::of(base, dynamic);
    let Tables { strings, symbols, gnu, sysv, versions, .. } = tables;
    if strings == 0 || symbols == 0 {
        return None;
    }
    let wanted = match version {
        None => None,
        Some(_) if versions == 0 || tables.definitions == 0 => return None,
        Some(version) => {
            let mut number = None;
            // SAFETY: the tables of a loaded library.
            unsafe {
                each_version(&tables, &mut |name, known| {
                    number = (name == version).then_some(known);
                    number.is_some()
                });
            }
            Some(number?)
        }
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

/// Shows the names of the libraries that a library was linked with.
pub(super) fn needed(base: u64, dynamic: *const Dyn, show: &mut dyn FnMut(&[u8])) {
    const DT_NEEDED: i64 = 1;
    let strings = Tables::of(base, dynamic).strings;
    if strings == 0 {
        return;
    }
    each_entry(dynamic, &mut |entry| {
        if entry.tag == DT_NEEDED {
            // SAFETY: a string of the library's own string table.
            show(unsafe { CStr::from_ptr((strings as *const c_char).add(entry.value as usize)) }.to_bytes());
        }
    });
}

/// Where a library's tables are in memory; 0 = it has none.
#[derive(Default)]
struct Tables {
    strings: u64,
    symbols: u64,
    gnu: u64,
    sysv: u64,
    versions: u64,
    definitions: u64,
    definition_count: u64,
}

impl Tables {
    fn of(base: u64, dynamic: *const Dyn) -> Tables {
        const DT_HASH: i64 = 4;
        const DT_STRTAB: i64 = 5;
        const DT_SYMTAB: i64 = 6;
        const DT_GNU_HASH: i64 = 0x6fff_fef5;
        const DT_VERSYM: i64 = 0x6fff_fff0;
        const DT_VERDEF: i64 = 0x6fff_fffc;
        const DT_VERDEFNUM: i64 = 0x6fff_fffd;
        let mut tables = Tables::default();
        each_entry(dynamic, &mut |entry| {
            // glibc relocates some of these pointers in place, and none of the kernel's vdso.
            let value = entry.value;
            let address = if value < base { base.wrapping_add(value) } else { value };
            match entry.tag {
                DT_STRTAB => tables.strings = address,
                DT_SYMTAB => tables.symbols = address,
                DT_GNU_HASH => tables.gnu = address,
                DT_HASH => tables.sysv = address,
                DT_VERSYM => tables.versions = address,
                DT_VERDEF => tables.definitions = address,
                DT_VERDEFNUM => tables.definition_count = value,
                _ => {}
            }
        });
        tables
    }
}

fn each_entry(dynamic: *const Dyn, show: &mut dyn FnMut(&Dyn)) {
    let mut entry = dynamic;
    // SAFETY: the dynamic section of a loaded library, ended by a null tag.
    unsafe {
        while (*entry).tag != 0 {
            show(&*entry);
            entry = entry.add(1);
        }
    }
}

/// Shows the versions that a library defines.
pub(super) fn versions(base: u64, dynamic: *const Dyn, show: &mut dyn FnMut(&CStr)) {
    let tables = Tables::of(base, dynamic);
    if tables.strings != 0 && tables.definitions != 0 {
        // SAFETY: the tables of a loaded library.
        unsafe {
            each_version(&tables, &mut |version, _| {
                show(version);
                false
            });
        }
    }
}

/// Shows the versions that a library defines, and their numbers, until one is the right one.
///
/// # Safety
/// The tables must be those of a loaded library that has them.
unsafe fn each_version(tables: &Tables, show: &mut dyn FnMut(&CStr, u16) -> bool) {
    const BASE: u16 = 1;
    let mut at = tables.definitions;
    for _ in 0..tables.definition_count {
        // SAFETY: a definition, and the first of its names, at the places that it gives.
        let (definition, name) = unsafe {
            let definition = &*(at as *const VersionDefinition);
            let first = &*(at.wrapping_add(u64::from(definition.names)) as *const VersionName);
            (definition, CStr::from_ptr((tables.strings as *const c_char).add(first.name as usize)))
        };
        // The first one names the file, which can be called like a version: libcudart's is.
        if definition.flags & BASE == 0 && show(name, definition.number & 0x7fff) || definition.next == 0 {
            return;
        }
        at = at.wrapping_add(u64::from(definition.next));
    }
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
