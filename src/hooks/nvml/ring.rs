//! The last calls of NVML that the application made, for the event of a failure that follows.
//!
//! Kept in memory that is there from the start. Noting one waits for nobody: a place that another thread is writing is
//! passed over, so one call of some 32 at once may be missing. A child has its parent's places, each with the parent's pid,
//! and one that was being written at the moment of the fork is lost to it.

use crate::diagnose::chain;
use crate::diagnose::nvml::{self, SUCCESS};
use crate::hooks::table::{name_of_row, real_of_row};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// What a hook says of itself in one register: bits 0 to 15 its row, 16 to 19 what the first argument is, 20 to 23 what the
/// call answers, and from 24 on what only its body knows.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Call(pub(super) u32);

/// What the first argument is.
pub(super) mod input {
    pub const NONE: u32 = 0;
    pub const FLAGS: u32 = 1 << 16;
    pub const INDEX: u32 = 2 << 16;
    pub const UUID: u32 = 3 << 16;
    pub const BUS_ID: u32 = 4 << 16;
    pub const DEVICE: u32 = 5 << 16;
}

/// What lies behind the pointer that follows it, after success.
pub(super) mod output {
    pub const NONE: u32 = 0;
    pub const NUMBER: u32 = 1 << 20;
    pub const VERSION: u32 = 2 << 20;
    pub const COMPUTE_MODE: u32 = 3 << 20;
    pub const SWITCH: u32 = 4 << 20;
    pub const DEVICE: u32 = 5 << 20;
    pub const TEXT: u32 = 6 << 20;
}

impl Call {
    fn row(self) -> usize {
        (self.0 & 0xffff) as usize
    }

    fn input(self) -> u32 {
        self.0 & 0xf << 16
    }

    fn output(self) -> u32 {
        self.0 & 0xf << 20
    }

    /// What only the body knows.
    pub(super) fn rest(self) -> u32 {
        self.0 >> 24
    }

    /// The library's own function.
    ///
    /// # Safety
    /// `F` must be the function pointer type of the hook's function.
    pub(super) unsafe fn real<F: Copy>(self) -> Option<F> {
        // SAFETY: as the caller promises.
        unsafe { real_of_row(self.row()) }
    }
}

const PLACES: u64 = 32;
/// A UUID of the longest form, or the beginning of a name.
const TEXT: usize = 56;
const TEXT_WORDS: usize = TEXT / size_of::<u64>();

/// Call and code, pid, the first argument, the answer, and a text that is one of these.
type Words = [u64; 4 + TEXT_WORDS];

struct Place {
    /// 1 and the number of the call that is here, 0 = none yet.
    turn: AtomicU64,
    words: [AtomicU64; size_of::<Words>() / size_of::<u64>()],
}

const BEING_WRITTEN: u64 = u64::MAX;

static NEXT: AtomicU64 = AtomicU64::new(0);
static RING: [Place; PLACES as usize] =
    [const { Place { turn: AtomicU64::new(0), words: [const { AtomicU64::new(0) }; 4 + TEXT_WORDS] } };
        PLACES as usize];

/// Notes a call that the application made. Touches no errno.
///
/// # Safety
/// `first` and `second` must be the call's arguments as [`Call`] says, and `code` what it returned.
#[inline(never)]
pub(super) unsafe fn note(call: Call, first: u64, second: u64, code: i32) {
    let (is_text, behind) = match call.input() {
        // A library that is not started has not read it.
        input::UUID | input::BUS_ID => (code != 1 && first != 0, second),
        input::NONE => (false, first),
        _ => (false, second),
    };
    let (mut text, mut answer) = ([0u8; TEXT], 0);
    if is_text {
        // SAFETY: NVML takes a C string here.
        unsafe { copy(&mut text, first) };
    }
    if code == SUCCESS && behind != 0 {
        match call.output() {
            output::NONE => {}
            // SAFETY: NVML has written a C string.
            output::TEXT => unsafe { copy(&mut text, behind) },
            // SAFETY: NVML has written a handle.
            output::DEVICE => answer = unsafe { (behind as *const u64).read_unaligned() },
            // SAFETY: NVML has written a number.
            _ => answer = unsafe { (behind as *const u32).read_unaligned() }.into(),
        }
    }
    let code = u64::from(code as u32) << 32;
    let mut words: Words =
        [code | u64::from(call.0), std::process::id().into(), first, answer, 0, 0, 0, 0, 0, 0, 0];
    for (word, bytes) in words.iter_mut().skip(4).zip(text.as_chunks().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    put(&words);
}

/// # Safety
/// A C string must lie there.
unsafe fn copy(text: &mut [u8; TEXT], address: u64) {
    for (at, byte) in text.iter_mut().enumerate() {
        // SAFETY: the bytes before were not the string's end.
        *byte = unsafe { *(address as *const u8).add(at) };
        if *byte == 0 {
            return;
        }
    }
}

fn put(words: &Words) {
    // Relaxed: only the number matters.
    let turn = NEXT.fetch_add(1, Ordering::Relaxed);
    let Some(place) = RING.get((turn % PLACES) as usize) else { return };
    let before = place.turn.load(Ordering::Relaxed);
    // Acquire pairs with the Release below: the words of the call before are not written over those that follow.
    if before == BEING_WRITTEN
        || place.turn.compare_exchange(before, BEING_WRITTEN, Ordering::Acquire, Ordering::Relaxed).is_err()
    {
        return;
    }
    // Pairs with the fence in `entry`: who reads one of these words finds that the turn has changed.
    fence(Ordering::Release);
    for (word, value) in place.words.iter().zip(words) {
        word.store(*value, Ordering::Relaxed);
    }
    // Release pairs with the Acquire in `entry`: the words are there.
    place.turn.store(turn.wrapping_add(1), Ordering::Release);
}

fn entry(turn: u64) -> Option<Words> {
    let place = RING.get((turn % PLACES) as usize)?;
    let expected = turn.wrapping_add(1);
    // Acquire pairs with the Release in `put`: the words of this call are there.
    if place.turn.load(Ordering::Acquire) != expected {
        return None;
    }
    let mut words: Words = [0; 4 + TEXT_WORDS];
    for (value, word) in words.iter_mut().zip(&place.words) {
        *value = word.load(Ordering::Relaxed);
    }
    // Pairs with the fence in `put`: where a word of a later call was read, the turn is not this call's any more.
    fence(Ordering::Acquire);
    (place.turn.load(Ordering::Relaxed) == expected).then_some(words)
}

/// What this process has asked, in the order of the answers.
#[inline(never)]
pub fn read() -> Vec<chain::Call> {
    let next = NEXT.load(Ordering::Relaxed);
    let me = u64::from(std::process::id());
    let mut kept: Vec<Words> = Vec::with_capacity(PLACES as usize);
    kept.extend((next.saturating_sub(PLACES)..next).filter_map(entry).filter(|[_, pid, ..]| *pid == me));
    (0..kept.len()).filter_map(|at| described(kept.get(at)?, kept.get(..at)?)).collect()
}

fn described(words: &Words, before: &[Words]) -> Option<chain::Call> {
    let [head, _, _, answer, ..] = words;
    let (call, code) = (Call(*head as u32), (*head >> 32) as i32);
    let label = match call.input() {
        input::FLAGS => "flags=",
        input::INDEX => "index=",
        input::UUID => "uuid=",
        input::BUS_ID => "busId=",
        input::DEVICE => "device=",
        _ => "",
    };
    let number = *answer as u32;
    let result = match call.output() {
        _ if code != SUCCESS => String::new(),
        output::NUMBER => number.to_string(),
        output::VERSION => crate::diagnose::causes::cuda(number),
        output::COMPUTE_MODE => nvml::compute_mode(number),
        output::SWITCH => chain::on_off(number),
        output::TEXT => text(words),
        output::DEVICE => "a device".to_owned(),
        _ => String::new(),
    };
    Some(chain::Call {
        call: name_of_row(call.row()).to_owned(),
        args: [label, &argument(words, before)].concat(),
        code,
        name: nvml::code_name(code),
        result,
    })
}

/// A device is called by what the application found it by, if that is still known.
fn argument(words: &Words, before: &[Words]) -> String {
    let [head, _, first, ..] = words;
    match Call(*head as u32).input() {
        input::NONE => String::new(),
        input::UUID | input::BUS_ID => text(words),
        input::DEVICE => {
            let finds = |[head, _, _, answer, ..]: &&Words| {
                answer == first && *head >> 32 == 0 && Call(*head as u32).output() == output::DEVICE
            };
            match before.iter().rev().find(finds) {
                Some(found) => argument(found, &[]),
                None => format!("{first:#x}"),
            }
        }
        _ => (*first as u32).to_string(),
    }
}

fn text(words: &Words) -> String {
    let mut bytes = [0u8; TEXT];
    for (to, word) in bytes.as_chunks_mut().0.iter_mut().zip(words.iter().skip(4)) {
        *to = word.to_ne_bytes();
    }
    nvml::text_of(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::table::Id;

    fn call(id: Id, about: u32) -> Call {
        Call(id as u32 | about)
    }

    fn address<T>(value: &T) -> u64 {
        std::ptr::from_ref(value) as u64
    }

    /// The ring is the process's, so what goes through it is tested in one place.
    #[test]
    fn the_last_ones_are_kept_whole() {
        let shown = || -> Vec<String> {
            let calls = read().into_iter();
            calls.map(|c| format!("{}({}) {} {}", c.call, c.args, c.code, c.result)).collect()
        };
        let (handle, uuid, mode) = (0x7f00_1234u64, c"GPU-aaaa", 3u32);
        let by_uuid = call(Id::nvmlDeviceGetHandleByUUID, input::UUID | output::DEVICE);
        let mode_of = call(Id::nvmlDeviceGetComputeMode, input::DEVICE | output::COMPUTE_MODE);
        // SAFETY: what the calls would have been given, and what they would have written.
        unsafe {
            note(call(Id::nvmlInitWithFlags, input::FLAGS), 1 | 7 << 32, 0, 9);
            note(by_uuid, uuid.as_ptr() as u64, address(&handle), 0);
            note(mode_of, handle, address(&mode), 0);
            note(mode_of, 0x55, address(&mode), 15);
            // Neither is read.
            note(by_uuid, 1, 1, 1);
            note(by_uuid, 0, 0, 2);
        }
        let expected = [
            "nvmlInitWithFlags(flags=1) 9 ",
            "nvmlDeviceGetHandleByUUID(uuid=GPU-aaaa) 0 a device",
            "nvmlDeviceGetComputeMode(device=GPU-aaaa) 0 exclusive process",
            "nvmlDeviceGetComputeMode(device=0x55) 15 ",
            "nvmlDeviceGetHandleByUUID(uuid=) 1 ",
            "nvmlDeviceGetHandleByUUID(uuid=) 2 ",
        ];
        assert_eq!(shown(), expected);

        // SAFETY: as above.
        unsafe { note(call(Id::nvmlSystemGetDriverVersion, output::TEXT), address(&[b'x'; 200]), 99, 0) };
        assert_eq!(shown()[6], format!("nvmlSystemGetDriverVersion() 0 {}", "x".repeat(TEXT)), "cut");

        // SAFETY: the child only reads memory and leaves at once.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_empty = read().is_empty();
            // SAFETY: no destructors, no locks.
            unsafe { libc::_exit(i32::from(!is_empty)) };
        }
        let mut status = 0;
        // SAFETY: our own child.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0, "a child has asked nothing");

        // One writer for each number, while somebody reads: a call is there as a whole or not at all.
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let by_index = call(Id::nvmlDeviceGetHandleByIndex_v2, input::INDEX);
                let one = move || {
                    // SAFETY: the code is no success, so nothing is read.
                    unsafe { note(by_index, thread, 0, 100 + thread as i32) };
                };
                scope.spawn(move || (0..20_000).for_each(|_| one()));
            }
            for _ in 0..500 {
                for one in read().iter().filter(|one| one.call == "nvmlDeviceGetHandleByIndex_v2") {
                    assert_eq!(one.args, format!("index={}", one.code - 100));
                }
            }
        });
        let calls = read();
        assert!(!calls.is_empty() && calls.len() <= PLACES as usize, "{}", calls.len());
    }
}
