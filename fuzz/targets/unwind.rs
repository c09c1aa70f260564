//! The unwind data and the build-id of a module, as the stack walk meets them in a process.
//!
//! The loader's list is ours here: one module, whose constant segment is the input's and ends where memory ends.
//! Segments that are code or data are what the loader made of them, so they are always there; all else is hostile.
//!
//! Input: [`Shape`] in little-endian numbers, then the segment.

#![no_main]

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use cuwarden::stack::{Registers, capture_from, each_module, modules_changed};
use cuwarden_fuzz::take::Take;
use libfuzzer_sys::{Corpus, fuzz_target};

/// The same place in each run, so that an input does the same.
const REGION: usize = 0x2000_0000_0000;
const REGION_BYTES: usize = 1 << 20;
const STACK_WORDS: usize = 512;

/// Addresses are those in the file.
struct Shape {
    code: u32,
    code_bytes: u16,
    data: u32,
    /// Of the index of the unwind data.
    index: u32,
    notes: u32,
    notes_bytes: u32,
    align_by_8: bool,
    /// Where the walk begins, from `code` on.
    pc: u16,
}

struct Module {
    bias: u64,
    headers: [libc::Elf64_Phdr; 4],
}

thread_local! {
    static MODULE: Cell<*const Module> = const { Cell::new(std::ptr::null()) };
}

type Callback = unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int;
type Iterate = unsafe extern "C" fn(Option<Callback>, *mut c_void) -> c_int;

/// Stands in for the loader's while a module is set; the fuzzer's own use of it goes to the loader.
///
/// # Safety
/// As the loader's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dl_iterate_phdr(callback: Option<Callback>, data: *mut c_void) -> c_int {
    static REAL: OnceLock<Iterate> = OnceLock::new();
    static UNLOADS: AtomicU64 = AtomicU64::new(0);
    let module = MODULE.get();
    if module.is_null() {
        // SAFETY: the function of that name has this type.
        let real = REAL.get_or_init(|| unsafe {
            let found = libc::dlsym(libc::RTLD_NEXT, c"dl_iterate_phdr".as_ptr());
            std::mem::transmute::<*mut c_void, Iterate>(found)
        });
        // SAFETY: handed on as it came.
        return unsafe { real(callback, data) };
    }
    // SAFETY: it lives for as long as it is set.
    let module = unsafe { &*module };
    // SAFETY: plain data.
    let mut info: libc::dl_phdr_info = unsafe { std::mem::zeroed() };
    info.dlpi_addr = module.bias;
    info.dlpi_name = c"hostile".as_ptr();
    info.dlpi_phdr = module.headers.as_ptr();
    info.dlpi_phnum = module.headers.len() as u16;
    info.dlpi_adds = 1;
    // Each time another one, so that no rule is remembered from the input before.
    info.dlpi_subs = UNLOADS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the callback expects such a description.
    callback.map_or(0, |callback| unsafe { callback(&mut info, size_of_val(&info), data) })
}

fn region() -> &'static mut [u8] {
    static READY: OnceLock<()> = OnceLock::new();
    READY.get_or_init(|| {
        // SAFETY: a new mapping at a free place. The page behind it is closed.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            let place = REGION as *mut c_void;
            let got = libc::mmap(place, REGION_BYTES + 4096, libc::PROT_NONE, flags, -1, 0);
            assert_eq!(got, place, "{}", std::io::Error::last_os_error());
            assert_eq!(libc::mprotect(place, REGION_BYTES, libc::PROT_READ | libc::PROT_WRITE), 0);
        }
    });
    // SAFETY: mapped above; one target runs at a time and keeps nothing of it.
    unsafe { std::slice::from_raw_parts_mut(REGION as *mut u8, REGION_BYTES) }
}

fn header(kind: u32, flags: u32, address: u64, bytes: u64, align: u64) -> libc::Elf64_Phdr {
    libc::Elf64_Phdr {
        p_type: kind,
        p_flags: flags,
        p_offset: 0,
        p_vaddr: address,
        p_paddr: address,
        p_filesz: bytes,
        p_memsz: bytes,
        p_align: align,
    }
}

fuzz_target!(|input: &[u8]| -> Corpus {
    let mut take = Take(input);
    let shape = Shape {
        code: take.u32(),
        code_bytes: take.u16(),
        data: take.u32(),
        index: take.u32(),
        notes: take.u32(),
        notes_bytes: take.u32(),
        align_by_8: take.u8() & 1 == 1,
        pc: take.u16(),
    };
    let segment = take.0;
    if segment.is_empty() || segment.len() > REGION_BYTES / 2 {
        return Corpus::Reject;
    }
    let region = region();
    let start = REGION_BYTES - segment.len();
    region[start..].copy_from_slice(segment);
    let bias = (REGION + start) as u64 - u64::from(shape.data);
    let length = segment.len() as u64;
    let module = Module {
        bias,
        headers: [
            // Not readable: there is nothing at that place.
            header(libc::PT_LOAD, libc::PF_X, u64::from(shape.code), u64::from(shape.code_bytes), 4096),
            header(libc::PT_LOAD, libc::PF_R, u64::from(shape.data), length, 4096),
            header(libc::PT_GNU_EH_FRAME, libc::PF_R, u64::from(shape.index), 4, 4),
            header(
                libc::PT_NOTE,
                libc::PF_R,
                u64::from(shape.notes),
                u64::from(shape.notes_bytes),
                if shape.align_by_8 { 8 } else { 4 },
            ),
        ],
    };
    // A stack on which every word is a place in the code, or in the stack itself.
    let code = bias.wrapping_add(u64::from(shape.code));
    let mut stack = [0u64; STACK_WORDS];
    let first = (&raw const stack) as u64;
    for (n, word) in stack.iter_mut().enumerate() {
        let n = n as u64;
        *word = if n % 4 == 3 { first + n * 8 + 16 } else { code + (u64::from(shape.pc) + n * 5) % 4096 };
    }
    let ip = code.wrapping_add(u64::from(shape.pc)).wrapping_add(1);
    let registers = Registers { ip, sp: first, bp: first + 64 };
    let mut frames = [0; 40];

    MODULE.set(&raw const module);
    modules_changed();
    let kept = capture_from(registers, &mut frames);
    let mut found = 0;
    let mut wrong = None;
    let asked = each_module(&mut |info| {
        found += 1;
        let id = info.build_id.as_ptr_range();
        let inside = id.start as usize >= REGION + start && id.end as usize <= REGION + REGION_BYTES;
        if info.build_id.len() > 64 || !(info.build_id.is_empty() || inside) {
            wrong = Some(format!("{info:x?}"));
        }
    });
    MODULE.set(std::ptr::null());

    assert!(asked && found <= 1);
    assert_eq!(wrong, None, "a build-id of nowhere");
    assert!(kept >= 1 && kept <= frames.len());
    assert_eq!(frames[0], ip);
    Corpus::Keep
});
