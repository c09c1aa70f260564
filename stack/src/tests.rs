//! Walks against libgcc's unwinder, and walks that should fault if they could.
//!
//! Built with optimisation (`cargo test --release`), these functions have no frame pointers.

use super::{Registers, capture, capture_from, each_module, modules_changed};
use std::ffi::{CString, c_int, c_void};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

type Step = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;

unsafe extern "C" {
    fn _Unwind_Backtrace(step: Step, to: *mut c_void) -> c_int;
    fn _Unwind_GetIP(context: *mut c_void) -> usize;
}

/// The stack by libgcc.
#[inline(never)]
fn reference() -> Vec<u64> {
    unsafe extern "C" fn step(context: *mut c_void, to: *mut c_void) -> c_int {
        // SAFETY: libgcc's context, and the vector from below.
        unsafe { (*to.cast::<Vec<u64>>()).push(_Unwind_GetIP(context) as u64) };
        0
    }
    let mut frames = Vec::new();
    // SAFETY: `step` matches what it is passed as.
    unsafe { _Unwind_Backtrace(step, (&raw mut frames).cast()) };
    // The end of the stack is listed as an address of its own.
    frames.retain(|address| *address != 0);
    frames
}

#[inline(never)]
fn captured() -> Vec<u64> {
    let mut frames = vec![0; 20_000];
    let kept = capture(&mut frames, 0);
    frames.truncate(kept);
    frames
}

/// Captures in both ways from one place and insists on the same frames. Returns how many there are.
#[inline(never)]
fn agree() -> usize {
    let ours = captured();
    let theirs = reference();
    // Both begin with the capturing function and this one, in which the two calls lie at different places.
    let (ours, theirs) = (ours.get(2..).unwrap_or(&[]), theirs.get(2..).unwrap_or(&[]));
    assert!(!ours.is_empty());
    assert_eq!(ours, theirs);
    ours.len()
}

#[inline(never)]
fn descend(depth: u64, at_bottom: &mut dyn FnMut()) -> u64 {
    // Something to keep on the stack, of a size that the compiler cannot share between calls.
    let local = black_box([depth; 5]);
    if depth == 0 {
        at_bottom();
    } else {
        black_box(descend(depth - 1, at_bottom));
    }
    black_box(local).iter().sum()
}

#[test]
fn agrees_with_libgcc_when_shallow() {
    agree();
}

#[test]
fn agrees_with_libgcc_when_deep() {
    descend(3000, &mut || assert!(agree() > 3000));
}

#[test]
fn grows_with_a_stack_that_grows() {
    for depth in [10, 1000, 20, 4000, 30] {
        descend(depth, &mut || assert!(agree() > depth as usize));
    }
}

#[test]
fn agrees_with_libgcc_through_libc() {
    // A callback from C, whose frames have other shapes than ours.
    extern "C" fn compare(a: *const c_void, b: *const c_void) -> c_int {
        agree();
        // SAFETY: qsort passes elements of the array.
        unsafe { *a.cast::<c_int>() - *b.cast::<c_int>() }
    }
    let mut numbers = [3, 1, 2];
    // SAFETY: three integers and a function that compares such.
    unsafe { libc::qsort(numbers.as_mut_ptr().cast(), 3, 4, Some(compare)) };
    assert_eq!(numbers, [1, 2, 3]);
}

#[test]
fn agrees_with_libgcc_in_many_threads() {
    let threads: Vec<_> = (0..8)
        .map(|n| {
            std::thread::spawn(move || {
                for round in 0..50 {
                    descend(n * 7 + round % 13, &mut || assert!(agree() > 0));
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn cuts_the_frames_before_the_hooked_call() {
    let all = captured();
    let whole = all.len();
    descend(3, &mut || {
        let mut frames = [0; 24];
        let target = captured()[4];
        let kept = capture(&mut frames, target);
        assert_eq!(frames[0], target);
        assert!(kept < whole + 8);
        // A buffer smaller than what is cut.
        assert_eq!(capture(&mut frames[..1], target), 1);
        assert_eq!(frames[0], target);
        // Something that is not on the stack: nothing is cut.
        assert_eq!(capture(&mut frames[..3], 0x1234), 3);
        assert_eq!(capture(&mut [], target), 0);
    });
}

#[test]
fn starts_at_given_registers() {
    #[inline(never)]
    fn inner() -> (Vec<u64>, Vec<u64>) {
        let mut frames = vec![0; 200];
        let kept = capture_from(Registers::here(), &mut frames);
        frames.truncate(kept);
        (frames, captured())
    }
    let (given, own) = inner();
    // The first frame is `inner` itself at another address, and `captured` is one frame more.
    assert!(given.len() > 3);
    assert_eq!(given[1..], own[2..]);
}

#[test]
fn keeps_errno() {
    // SAFETY: this thread's errno.
    unsafe {
        *libc::__errno_location() = 77;
        captured();
        modules_changed();
        captured();
        assert_eq!(*libc::__errno_location(), 77);
    }
}

static IN_HANDLER: AtomicUsize = AtomicUsize::new(0);

extern "C" fn agree_in_handler(_: c_int) {
    IN_HANDLER.store(agree(), Relaxed);
}

extern "C" fn capture_in_handler(_: c_int) {
    let mut frames = [0; 24];
    // May find none: while the loader was interrupted, no rule is learnt.
    capture(&mut frames, 0);
    IN_HANDLER.fetch_add(1, Relaxed);
}

fn handle(signal: c_int, handler: extern "C" fn(c_int), flags: c_int) {
    // SAFETY: a complete sigaction with a handler of the right type.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(signal, &raw const action, std::ptr::null_mut()), 0);
    }
}

#[test]
fn passes_a_signal_frame_on_either_stack() {
    std::thread::spawn(|| {
        let mut memory = vec![0_u8; 256 * 1024];
        let stack = libc::stack_t { ss_sp: memory.as_mut_ptr().cast(), ss_flags: 0, ss_size: memory.len() };
        for (signal, flags) in [(libc::SIGUSR1, 0), (libc::SIGUSR2, libc::SA_ONSTACK)] {
            handle(signal, agree_in_handler, flags);
            descend(20, &mut || {
                // SAFETY: the memory outlives the loop, after which the old stack is not needed again.
                unsafe {
                    let mut old = std::mem::zeroed();
                    libc::sigaltstack(&raw const stack, &raw mut old);
                    libc::raise(signal);
                    libc::sigaltstack(&raw const old, std::ptr::null_mut());
                }
                assert!(IN_HANDLER.load(Relaxed) > 20);
            });
        }
    })
    .join()
    .unwrap();
}

#[test]
fn walks_a_coroutine_s_stack_and_stops_at_its_end() {
    const SIZE: usize = 64 * 1024;
    static FRAMES: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn coroutine() {
        descend(12, &mut || {
            FRAMES.store(captured().len(), Relaxed);
        });
    }
    std::thread::spawn(|| {
        // Often enough for the thread's own stack to be searched again in between.
        for _ in 0..20 {
            // SAFETY: a stack between two closed pages, so that a read beyond it would fault.
            unsafe {
                let all = libc::mmap(
                    std::ptr::null_mut(),
                    SIZE + 8192,
                    libc::PROT_NONE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                    -1,
                    0,
                );
                assert_ne!(all, libc::MAP_FAILED);
                let stack = all.byte_add(4096);
                assert_eq!(libc::mprotect(stack, SIZE, libc::PROT_READ | libc::PROT_WRITE), 0);
                let (mut here, mut there): (libc::ucontext_t, libc::ucontext_t) = std::mem::zeroed();
                assert_eq!(libc::getcontext(&raw mut there), 0);
                there.uc_stack.ss_sp = stack;
                there.uc_stack.ss_size = SIZE;
                there.uc_link = &raw mut here;
                libc::makecontext(&raw mut there, coroutine, 0);
                assert_eq!(libc::swapcontext(&raw mut here, &raw const there), 0);
                assert!(FRAMES.load(Relaxed) >= 13);
                libc::munmap(all, SIZE + 8192);
            }
            agree();
        }
    })
    .join()
    .unwrap();
}

/// A library with one function, `run`, whose frame has the given size. It calls the function that it gets.
struct Library(*mut c_void);

impl Library {
    fn with_frame(name: &str, size: usize) -> Self {
        let folder = std::env::temp_dir();
        let source = folder.join(format!("cuwarden-{}-{name}.c", std::process::id()));
        let library = source.with_extension("so");
        let text = format!(
            "void use(char *); int run(int (*f)(void)) {{ volatile char room[{size}]; room[0] = 1; \
             int n = f(); return n + room[0] - 1; }}"
        );
        std::fs::write(&source, text).unwrap();
        let mut compiler = std::process::Command::new("cc");
        compiler.args(["-O2", "-fomit-frame-pointer", "-shared", "-fPIC", "-o"]);
        assert!(compiler.arg(&library).arg(&source).status().unwrap().success());
        let path = CString::new(library.as_os_str().as_encoded_bytes()).unwrap();
        // SAFETY: a library without constructors.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null());
        std::fs::remove_file(source).unwrap();
        std::fs::remove_file(library).unwrap();
        Self(handle)
    }

    fn run(&self, f: extern "C" fn() -> c_int) -> c_int {
        type Run = extern "C" fn(extern "C" fn() -> c_int) -> c_int;
        // SAFETY: the function in the text above.
        let run: Run = unsafe { std::mem::transmute(libc::dlsym(self.0, c"run".as_ptr())) };
        run(f)
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: opened once, and none of its functions is running.
        unsafe { libc::dlclose(self.0) };
    }
}

extern "C" fn agree_from_c() -> c_int {
    agree() as c_int
}

extern "C" fn count_from_c() -> c_int {
    captured().len() as c_int
}

#[test]
fn notices_that_another_library_took_the_place_of_one() {
    for (n, size) in [100, 5000, 300, 70_000].into_iter().enumerate() {
        let library = Library::with_frame(&format!("place{n}"), size);
        if n % 2 == 0 {
            modules_changed();
        } else {
            // By itself, soon.
            std::thread::sleep(Duration::from_millis(20));
        }
        for _ in 0..3 {
            assert!(library.run(agree_from_c) > 3);
        }
    }
}

#[test]
fn ends_at_code_that_no_module_holds() {
    // sub rsp, 8; call rdi; add rsp, 8; ret
    let code = [0x48, 0x83, 0xec, 8, 0xff, 0xd7, 0x48, 0x83, 0xc4, 8, 0xc3];
    // SAFETY: a page of its own, and a complete function in it.
    unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page = libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0);
        assert_ne!(page, libc::MAP_FAILED);
        page.cast::<[u8; 11]>().write(code);
        let run: extern "C" fn(extern "C" fn() -> c_int) -> c_int = std::mem::transmute(page);
        for _ in 0..3 {
            // `captured`, `count_from_c`, the page.
            assert_eq!(run(count_from_c), 3);
        }
    }
}

/// Numbers without a pattern, the same in each run.
fn noise(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
    *state ^ *state >> 29
}

#[test]
fn no_register_values_fault() {
    let frames = captured();
    let here = Registers::here();
    let mut state = 1;
    let mut kept = 0;
    for round in 0..200_000_u64 {
        let mut value = |near: u64| match noise(&mut state) % 6 {
            0 => near,
            1 => near.wrapping_add(noise(&mut state) % 65_536) & !7,
            2 => near.wrapping_sub(noise(&mut state) % 65_536),
            3 => noise(&mut state) >> 17,
            4 => u64::MAX - noise(&mut state) % 64,
            _ => noise(&mut state) % 64,
        };
        let code = frames[round as usize % frames.len()];
        let start = Registers { ip: value(code), sp: value(here.sp), bp: value(here.bp) };
        let mut out = [0; 24];
        kept += capture_from(start, &mut out);
    }
    assert!(kept > 200_000);
}

#[test]
fn a_damaged_stack_does_not_fault() {
    // Random words above the stack pointer, as many as a walk can see, with real return addresses among them.
    let code = captured();
    let mut state = 7;
    for _ in 0..2_000 {
        let mut fake = [0_u64; 512];
        for word in &mut fake {
            *word = match noise(&mut state) % 4 {
                0 => code[noise(&mut state) as usize % code.len()],
                1 => (&raw const state as u64).wrapping_add(noise(&mut state) % 8192) & !7,
                _ => noise(&mut state),
            };
        }
        let sp = fake.as_ptr() as u64;
        for &ip in &code {
            let mut out = [0; 64];
            let bp = sp + noise(&mut state) % 4096;
            assert!(capture_from(Registers { ip, sp, bp }, &mut out) <= 64);
        }
        black_box(fake);
    }
}

#[test]
fn survives_signals_libraries_and_forks_at_once() {
    static STOP: AtomicBool = AtomicBool::new(false);
    handle(libc::SIGPROF, capture_in_handler, libc::SA_RESTART);
    let interval = libc::timeval { tv_sec: 0, tv_usec: 500 };
    let timer = libc::itimerval { it_interval: interval, it_value: interval };
    // SAFETY: a complete timer.
    unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, std::ptr::null_mut()) };
    let workers: Vec<_> = (0..3)
        .map(|_| {
            std::thread::spawn(|| {
                while !STOP.load(Relaxed) {
                    // Makes most captures start with an empty cache, inside the loader.
                    modules_changed();
                    descend(8, &mut || assert!(!captured().is_empty()));
                }
            })
        })
        .collect();
    let library = Library::with_frame("storm", 200);
    for round in 0..100 {
        if round % 10 == 0 {
            drop(Library::with_frame("passing", 100 + round));
        }
        library.run(count_from_c);
        // The child may find no frames, but it must not wait for a lock whose holder it lacks.
        // SAFETY: the child captures, and ends without running anything else of this process.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                libc::alarm(10);
                let mut frames = [0; 24];
                modules_changed();
                capture(&mut frames, 0);
                libc::_exit(0);
            }
            let mut status = -1;
            while libc::waitpid(child, &raw mut status, 0) == -1 {}
            assert_eq!(status, 0);
        }
    }
    STOP.store(true, Relaxed);
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    // SAFETY: a timer of zeros is a complete one, which stops it.
    unsafe {
        let none = std::mem::zeroed();
        libc::setitimer(libc::ITIMER_PROF, &raw const none, std::ptr::null_mut());
    }
    assert!(IN_HANDLER.load(Relaxed) > 0);
}

#[test]
fn finds_the_modules() {
    let own = captured as *const () as u64;
    // SAFETY: a name in libc.
    let in_libc = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"getpid".as_ptr()) } as u64;
    let mut modules = Vec::new();
    assert!(each_module(&mut |module| {
        modules.push((module.path.to_vec(), module.is_main, module.text, module.build_id.len(), module.bias));
    }));
    assert!(modules[0].1 && modules[0].0.is_empty() && modules[0].2.contains(&own));
    assert_eq!(modules.iter().filter(|module| module.1).count(), 1);
    let libc = modules.iter().find(|module| module.2.contains(&in_libc)).unwrap();
    assert!(libc.0.ends_with(b"libc.so.6") && libc.4 < in_libc);
    assert_eq!(libc.3, 20);
}
