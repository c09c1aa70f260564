//! Starting other programs: what the child's environment lacks of the shim is added ([`crate::policy::follow`]).
//!
//! This runs in any process, in the child of a vfork, in a forked child whose parent had threads, and in signal
//! handlers: nothing here allocates, locks or panics, errno stays, and nothing is written to memory that outlives the call
//! but addresses of code, which hold for parent and child alike. Where nothing is missing, the real function gets the
//! caller's own pointers.

use super::lookup::elf;
use crate::policy::follow::{self, Fate, MOST_SETTINGS, Plan, Start, Tally};
use core::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering};

/// `argv`, `envp`: pointers, ended by a null one.
pub type List = *const *const c_char;

unsafe extern "C" {
    /// The C library's.
    static environ: List;
}

/// Entries that this process had at its start and that may matter to its children, each with its null byte.
///
/// In `.data`, whose page the loader has written to already: most processes never start another one, and a page of its own
/// would cost each of them more than all the rest.
#[unsafe(link_section = ".data")]
static KEPT: Kept = Kept {
    length: AtomicUsize::new(0),
    elsewhere: AtomicPtr::new(null_mut()),
    here: [const { AtomicU8::new(0) }; ROOM],
};
const ROOM: usize = 384;

struct Kept {
    /// 0: nothing, or not yet.
    length: AtomicUsize,
    /// Where they are if there is no room for them here.
    elsewhere: AtomicPtr<u8>,
    here: [AtomicU8; ROOM],
}

impl Kept {
    fn block(&'static self) -> &'static [u8] {
        // Acquire pairs with the Release in `remember`: the block is whole.
        let length = self.length.load(Ordering::Acquire);
        let elsewhere = self.elsewhere.load(Ordering::Relaxed).cast_const();
        let place = if elsewhere.is_null() { self.here.as_ptr().cast() } else { elsewhere };
        // SAFETY: so many bytes were written there, once.
        unsafe { std::slice::from_raw_parts(place, length) }
    }
}

/// Keeps what children are to have of the environment, before the program can change it or write its title over it. For
/// the constructor, and in line there: the rest of the code stays on disk. What the entries say is for the first call to
/// find out; one that comes before is handed through.
///
/// # Safety
/// `envp` must be an environment, or null; nobody else may call this.
#[inline(always)]
pub unsafe fn remember(envp: List) {
    // SAFETY: as the caller promises; there is as much room as was counted.
    unsafe {
        let mut place: *mut u8 = null_mut();
        let mut length = 0;
        // First it is counted, then copied.
        for copies in [false, true] {
            if copies && length > 0 {
                place = KEPT.here.as_ptr().cast::<u8>().cast_mut();
                if length > ROOM {
                    let Some(mapped) = keeping_errno(|| map(length)) else { return };
                    KEPT.elsewhere.store(mapped, Ordering::Relaxed);
                    place = mapped;
                }
            }
            for entry in entries(envp) {
                if matters(entry) {
                    let size = libc::strlen(entry) + 1;
                    if copies {
                        place.copy_from_nonoverlapping(entry.cast(), size);
                        place = place.add(size);
                    } else {
                        length += size;
                    }
                }
            }
        }
        KEPT.length.store(length, Ordering::Release);
    }
}

fn start() -> Option<Start<'static>> {
    let block = KEPT.block();
    // With other rights than its caller's, the variables are that caller's and not the operator's.
    // SAFETY: no arguments to be wrong.
    if block.is_empty() || unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return None;
    }
    Start::new(block, elf::own_path().to_bytes())
}

/// The pointers of an environment.
///
/// # Safety
/// `envp` must be an environment, or null.
unsafe fn entries(envp: List) -> impl Iterator<Item = *const c_char> {
    let mut at = envp;
    std::iter::from_fn(move || {
        // SAFETY: as the caller promises; the last pointer is null.
        let entry = unsafe { at.as_ref() }.copied().filter(|entry| !entry.is_null())?;
        at = at.wrapping_add(1);
        Some(entry)
    })
}

/// # Safety
/// `entry` must be a C string.
#[inline(always)]
unsafe fn matters(entry: *const c_char) -> bool {
    let entry = entry.cast::<u8>();
    // SAFETY: as the caller promises: one byte after the other is asked for, and none behind a null.
    follow::may_matter(|at| unsafe { *entry.add(at) })
}

/// The bytes of an entry, unless it begins like none that matters.
///
/// # Safety
/// `entry` must be a C string.
unsafe fn mattering<'e>(entry: *const c_char) -> Option<&'e [u8]> {
    // SAFETY: as the caller promises.
    unsafe { matters(entry).then(|| CStr::from_ptr(entry).to_bytes()) }
}

/// The functions, in this order. `execl`, `execle` and `execlp` take their arguments one by one.
#[macro_export]
macro_rules! for_each_exec {
    ($use:ident) => {
        $use!(execve execvpe execv execvp execl execlp execle fexecve execveat posix_spawn posix_spawnp);
    };
}

macro_rules! number {
    ($($name:ident)+) => {
        /// The number of a function.
        #[allow(non_camel_case_types, missing_docs)]
        #[derive(Clone, Copy, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Id { $($name),+ }

        const COUNT: usize = [$(Id::$name),+].len();
        /// Not pointers: those would have to be relocated at every start.
        static NAMES: [[u8; LONGEST]; COUNT] = [$(padded(stringify!($name))),+];
    };
}
for_each_exec!(number);
const LONGEST: usize = "posix_spawnp".len() + 1;

const fn padded(name: &str) -> [u8; LONGEST] {
    let mut padded = [0; LONGEST];
    padded.split_at_mut(name.len()).0.copy_from_slice(name.as_bytes());
    padded
}

/// Where the child's environment is.
#[derive(Clone, Copy)]
enum Envp {
    /// It is an argument.
    Argument(u8),
    /// It is this process's.
    Environ,
    /// It is the argument behind the null that ends the others.
    Last,
}

impl Id {
    /// The function that is called with another environment, and where that has its place.
    ///
    /// execvpe is what libc's execvp is: the same search in the PATH of this process, the same shell for a file that
    /// has no format.
    const fn with_environment(self) -> (Id, u8) {
        match self {
            Id::execv | Id::execl | Id::execle => (Id::execve, 2),
            Id::execvp | Id::execlp => (Id::execvpe, 2),
            Id::execve | Id::execvpe | Id::fexecve => (self, 2),
            Id::execveat => (self, 3),
            Id::posix_spawn | Id::posix_spawnp => (self, 5),
        }
    }

    const fn environment(self) -> Envp {
        match self {
            Id::execv | Id::execvp | Id::execl | Id::execlp => Envp::Environ,
            Id::execle => Envp::Last,
            _ => Envp::Argument(self.with_environment().1),
        }
    }

    /// The next definition after ours: another preloaded library's, which then gets the call, or libc's.
    fn real(self) -> *mut c_void {
        static FOUND: [AtomicPtr<c_void>; COUNT] = [const { AtomicPtr::new(null_mut()) }; COUNT];
        match (FOUND.get(self as usize), NAMES.get(self as usize)) {
            (Some(slot), Some(name)) => {
                // SAFETY: every name has a null byte behind it.
                elf::cached(slot, unsafe { CStr::from_ptr(name.as_ptr().cast()) }).unwrap_or_default()
            }
            _ => null_mut(),
        }
    }

    /// # Safety
    /// The arguments must be this function's. One that takes less does not see the rest.
    unsafe fn call(self, &[a, b, c, d, e, f]: &[usize; 6]) -> c_int {
        let real = self.real();
        // SAFETY: the function of that name; all arguments are words. execveat came with glibc 2.34, and is no more than
        // the system call.
        unsafe {
            if !real.is_null() {
                return std::mem::transmute::<*mut c_void, Six>(real)(a, b, c, d, e, f);
            }
            let number = if self == Id::execveat { libc::SYS_execveat } else { -1 }; // which is ENOSYS
            libc::syscall(number, a, b, c, d, e) as c_int
        }
    }
}

type Six = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> c_int;

/// What an entry does next.
#[derive(Debug)]
#[repr(C)]
pub struct Next {
    /// Jump here, with everything as it came; null: nothing.
    to: *const c_void,
    /// Return this.
    result: isize,
}

/// Comes before every function. `arguments`: what it was called with, all in one row: the six that come in registers, then
/// those on the stack.
///
/// # Safety
/// As the C library's function.
pub unsafe extern "C" fn enter(function: Id, arguments: *const usize) -> Next {
    // SAFETY: as the caller promises.
    unsafe {
        let mut given: [usize; 6] = *arguments.cast();
        let row = arguments.add(1);
        let envp = match function.environment() {
            Envp::Argument(at) => *arguments.add(at.into()) as List,
            Envp::Environ => environ,
            Envp::Last => *row.add(entries(row as List).count() + 1) as List,
        };
        let start = start();
        let mut plan = None;
        // fexecve wants an environment: it answers EINVAL.
        if let Some(start) = &start
            && (function != Id::fexecve || !envp.is_null())
        {
            let (mut tally, mut count) = (Tally::default(), 0);
            for entry in entries(envp) {
                if let Some(entry) = mattering(entry) {
                    start.note(&mut tally, count, entry);
                }
                count += 1;
            }
            plan = start.plan(&tally, count);
        }
        if let (Some(start), Some(plan)) = (&start, &plan) {
            if matches!(function, Id::execl | Id::execlp | Id::execle) {
                given[1] = row as usize;
            }
            let result = Work { start, plan, envp, function, given: &mut given }.run();
            return Next { to: null(), result: result as isize };
        }
        let to = function.real().cast_const();
        let result = if to.is_null() { function.call(&given) } else { 0 };
        Next { to, result: result as isize }
    }
}

/// A call whose environment is made complete.
struct Work<'e> {
    start: &'e Start<'e>,
    plan: &'e Plan<'e>,
    envp: List,
    function: Id,
    given: &'e mut [usize; 6],
}

impl Work<'_> {
    /// Bytes that the new environment takes: pointers, then the text of LD_PRELOAD.
    fn size(&self) -> usize {
        let text =
            self.plan.preload.map_or(0, |preload| preload.parts.iter().fold(1, |sum, part| sum + part.len()));
        self.pointers() * size_of::<*const c_char>() + text
    }

    /// At most: LD_PRELOAD and the null at the end are two.
    fn pointers(&self) -> usize {
        self.plan.entries + self.plan.missing.count_ones() as usize + 2
    }

    /// # Safety
    /// As for [`enter`].
    #[cold]
    #[inline(never)]
    unsafe fn run(&mut self) -> c_int {
        let size = self.size();
        // SAFETY: so large, or what was mapped here and the call has done with; as the caller promises.
        unsafe {
            if size <= ON_STACK {
                return self.run_on_stack();
            }
            // Memory of its own; a child of vfork leaves it to its parent, which does not know of it. Hence the stack for most.
            match keeping_errno(|| map(size)) {
                Some(place) => {
                    let result = self.call(place);
                    libc::syscall(libc::SYS_munmap, place, size);
                    result
                }
                None => self.function.call(self.given),
            }
        }
    }

    /// # Safety
    /// As for [`enter`]; [`Work::size`] must be at most [`ON_STACK`].
    #[inline(never)]
    unsafe fn run_on_stack(&mut self) -> c_int {
        let mut place = std::mem::MaybeUninit::<[usize; ON_STACK / size_of::<usize>()]>::uninit();
        // SAFETY: large enough and aligned, as the caller promises.
        unsafe { self.call(place.as_mut_ptr().cast()) }
    }

    /// # Safety
    /// As for [`enter`]; at `place` must be [`Work::size`] bytes, aligned for pointers.
    #[inline(never)]
    unsafe fn call(&mut self, place: *mut u8) -> c_int {
        let list = place.cast::<*const c_char>();
        let mut end = list;
        // SAFETY: the entries that were counted, and no more; what is added was counted as well.
        unsafe {
            let mut push = |entry: *const c_char| {
                end.write(entry);
                end = end.add(1);
            };
            let replaced = self.plan.preload.and_then(|preload| preload.replaces);
            for (at, entry) in entries(self.envp).take(self.plan.entries).enumerate() {
                let goes = || mattering(entry).is_some_and(|entry| self.start.fate(entry) == Fate::Goes);
                if replaced != Some(at) && !goes() {
                    push(entry);
                }
            }
            for number in 0..MOST_SETTINGS {
                if self.plan.missing >> number & 1 == 1
                    && let Some(setting) = self.start.setting(number)
                {
                    push(setting.as_ptr().cast()); // With a null byte behind it.
                }
            }
            if let Some(preload) = self.plan.preload {
                let mut text = place.add(self.pointers() * size_of::<*const c_char>());
                push(text.cast());
                for part in preload.parts {
                    text.copy_from_nonoverlapping(part.as_ptr(), part.len());
                    text = text.add(part.len());
                }
                text.write(0);
            }
            push(null());
            let (function, at) = self.function.with_environment();
            if let Some(envp) = self.given.get_mut(usize::from(at)) {
                *envp = list as usize;
            }
            function.call(self.given)
        }
    }
}

/// Enough for the environment of most programs, little enough for small stacks.
const ON_STACK: usize = 6 << 10;

/// Fresh memory, zero. By number: others' replacements of mmap may allocate.
fn map(size: usize) -> Option<*mut u8> {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping touches none of those that are there.
    let place = unsafe { libc::syscall(libc::SYS_mmap, 0usize, size, protection, flags, -1i64, 0usize) };
    (place != -1).then_some(place as *mut u8)
}

fn keeping_errno<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: the thread's own errno, which stays in its place.
    unsafe {
        let errno = libc::__errno_location();
        let saved = *errno;
        let result = work();
        *errno = saved;
        result
    }
}
