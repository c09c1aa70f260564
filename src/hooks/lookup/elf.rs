//! The loader's own dlsym and dlvsym, found without calling either: both are exported by us as well.
//!
//! The first definition after ours in load order is taken. That is libc's or libdl's, or that of another
//! interposer, which then gets the call as it would without us.

use core::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// `dlsym`
pub type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;
/// `dlvsym`
pub type Dlvsym = unsafe extern "C" fn(*mut c_void, *const c_char, *const c_char) -> *mut c_void;

/// Where [`real_dlsym`] is; null until it was asked for.
pub static REAL_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
/// Where [`real_dlvsym`] is; null until it was asked for.
pub static REAL_DLVSYM: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());

/// The real dlsym.
pub fn real_dlsym() -> Option<Dlsym> {
    let address = cached(&REAL_DLSYM, c"dlsym")?;
    // SAFETY: the function of that name has this type.
    Some(unsafe { std::mem::transmute::<*mut c_void, Dlsym>(address) })
}

/// The real dlvsym.
pub fn real_dlvsym() -> Option<Dlvsym> {
    let address = cached(&REAL_DLVSYM, c"dlvsym")?;
    // SAFETY: as above.
    Some(unsafe { std::mem::transmute::<*mut c_void, Dlvsym>(address) })
}

fn cached(slot: &AtomicPtr<c_void>, name: &CStr) -> Option<*mut c_void> {
    // Relaxed: the address of code that was there before.
    let known = slot.load(Ordering::Relaxed);
    if !known.is_null() {
        return Some(known);
    }
    let found = next_definition(name)?;
    slot.store(found, Ordering::Relaxed);
    Some(found)
}

struct Search<'a> {
    name: &'a CStr,
    own_base: u64,
    passed_own: bool,
    found: u64,
}

fn next_definition(name: &CStr) -> Option<*mut c_void> {
    let own_base = base_of(next_definition as *const c_void)?;
    let mut search = Search { name, own_base, passed_own: false, found: 0 };
    // SAFETY: the callback gets `search` back, which lives until the call returns.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    if search.found == 0 {
        // Not preloaded but linked, as in our own tests: whoever defines it.
        search.passed_own = true;
        // SAFETY: as above.
        unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut search).cast()) };
    }
    (search.found != 0).then_some(search.found as *mut c_void)
}

/// Load bias of the library that an address lies in.
fn base_of(address: *const c_void) -> Option<u64> {
    struct Holder {
        address: u64,
        base: Option<u64>,
    }
    unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> i32 {
        // SAFETY: the loader's own description, and the Holder below.
        let (info, holder) = unsafe { (&*info, &mut *data.cast::<Holder>()) };
        for segment in segments(info) {
            let start = info.dlpi_addr.wrapping_add(segment.p_vaddr);
            if segment.p_type == libc::PT_LOAD && holder.address.wrapping_sub(start) < segment.p_memsz {
                holder.base = Some(info.dlpi_addr);
                return 1;
            }
        }
        0
    }
    let mut holder = Holder { address: address as u64, base: None };
    // SAFETY: the callback gets `holder` back, which lives until the call returns.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut holder).cast()) };
    holder.base
}

unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _: usize, data: *mut c_void) -> i32 {
    // SAFETY: the loader's own description, and the Search that was passed in.
    let (info, search) = unsafe { (&*info, &mut *data.cast::<Search>()) };
    if info.dlpi_addr == search.own_base {
        search.passed_own = true;
        return 0;
    }
    if !search.passed_own {
        return 0;
    }
    search.found = definition_in(info, search.name).unwrap_or(0);
    i32::from(search.found != 0)
}

fn segments(info: &libc::dl_phdr_info) -> &[libc::Elf64_Phdr] {
    if info.dlpi_phdr.is_null() {
        return &[];
    }
    // SAFETY: the loader's own program headers.
    unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) }
}

#[repr(C)]
struct Dyn {
    tag: i64,
    value: u64,
}

/// A function of this name in one loaded library, by its GNU or SysV hash table.
fn definition_in(info: &libc::dl_phdr_info, name: &CStr) -> Option<u64> {
    const DT_HASH: i64 = 4;
    const DT_STRTAB: i64 = 5;
    const DT_SYMTAB: i64 = 6;
    const DT_GNU_HASH: i64 = 0x6fff_fef5;
    let dynamic = segments(info).iter().find(|s| s.p_type == libc::PT_DYNAMIC)?;
    let mut entry = info.dlpi_addr.wrapping_add(dynamic.p_vaddr) as *const Dyn;
    let (mut strings, mut symbols, mut gnu, mut sysv) = (0, 0, 0, 0);
    // SAFETY: the dynamic section of a loaded library, ended by a null tag.
    unsafe {
        while (*entry).tag != 0 {
            // glibc relocates these pointers in place, except for the kernel's vdso.
            let value = (*entry).value;
            let address = if value < info.dlpi_addr { info.dlpi_addr.wrapping_add(value) } else { value };
            match (*entry).tag {
                DT_STRTAB => strings = address,
                DT_SYMTAB => symbols = address,
                DT_GNU_HASH => gnu = address,
                DT_HASH => sysv = address,
                _ => {}
            }
            entry = entry.add(1);
        }
    }
    if strings == 0 || symbols == 0 {
        return None;
    }
    let is_match = |index: u32| -> Option<u64> {
        // SAFETY: an index from the library's own hash table.
        let symbol = unsafe { &*(symbols as *const libc::Elf64_Sym).add(index as usize) };
        const STT_FUNC: u8 = 2;
        if symbol.st_shndx == 0 || symbol.st_info & 0xf != STT_FUNC {
            return None;
        }
        // SAFETY: a string of the library's own string table.
        let found = unsafe { CStr::from_ptr((strings as *const c_char).add(symbol.st_name as usize)) };
        (found == name).then(|| info.dlpi_addr.wrapping_add(symbol.st_value))
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
unsafe fn sysv_look_up(table: u64, _name: &CStr, is_match: &dyn Fn(u32) -> Option<u64>) -> Option<u64> {
    if table == 0 {
        return None;
    }
    // SAFETY: the second word is the number of symbols.
    let symbols = unsafe { *(table as *const u32).add(1) };
    (1..symbols).find_map(is_match)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_the_loaders() {
        let dlsym = real_dlsym().unwrap();
        // SAFETY: plain look-ups.
        unsafe {
            assert_eq!(dlsym(libc::RTLD_DEFAULT, c"dlsym".as_ptr()) as usize, dlsym as usize);
            assert_eq!(
                dlsym(libc::RTLD_DEFAULT, c"dlvsym".as_ptr()) as usize,
                real_dlvsym().unwrap() as usize
            );
            assert!(!dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr()).is_null());
        }
        assert!(next_definition(c"no_such_function_anywhere").is_none());
    }
}
