//! Functions that were looked up by a version that their library does not have: `cudnnCreate_v8` in a libcudnn of 9.
//!
//! Programs also ask for functions that they can do without, so what is kept here is said in a low voice, and only where
//! the library has the function in another version. A look-up starts nothing and waits for nobody: what it finds is kept
//! until somebody says it.

use super::Question;
use super::elf::{dynamic_section, each_library};
use super::symbols::{definition, versions};
use crate::policy::versions::naming::stem;
use core::ffi::{CStr, c_char, c_void};
use std::sync::atomic::{AtomicU8, Ordering};

const PLACES: usize = 16;
/// Longer names are not kept.
const NAME: usize = 64;
const FOUND: usize = 160;

const FREE: u8 = 0;
const WRITING: u8 = 1;
const READY: u8 = 2;
const SAID: u8 = 3;

struct Place {
    state: AtomicU8,
    name: [AtomicU8; NAME],
    /// What there is instead, with commas between.
    found: [AtomicU8; FOUND],
}

static KEPT: [Place; PLACES] = [const {
    Place {
        state: AtomicU8::new(FREE),
        name: [const { AtomicU8::new(0) }; NAME],
        found: [const { AtomicU8::new(0) }; FOUND],
    }
}; PLACES];

/// False for nearly all names: they cost no more than this.
#[inline(always)]
pub(super) fn may_be_noted(question: &Question, name: &CStr) -> bool {
    !question.version.is_null() || name.to_bytes().last().is_some_and(u8::is_ascii_digit)
}

/// Notes a look-up that finds nothing although the function is there in another version. `ask` looks another name up in
/// the same place.
pub(super) fn note(question: &Question, name: &CStr, ask: &dyn Fn(Question) -> *mut c_void) {
    let mut wanted = Text::<NAME>::new();
    wanted.add(name.to_bytes());
    let mut found = Text::<FOUND>::new();
    if question.version.is_null() {
        let Some(stem) = stem(name.to_bytes()) else { return };
        if !ask(*question).is_null() || is_kept(wanted.bytes()) {
            return;
        }
        for number in 0..20u8 {
            let mut other = Text::<NAME>::new();
            other.add(stem);
            if number != 0 {
                other.add(b"_v");
                other.add_number(number);
            }
            // The last byte stays 0.
            if other.bytes() != name.to_bytes()
                && !ask(Question { name: other.as_ptr(), ..*question }).is_null()
            {
                found.add_item(other.bytes());
            }
        }
    } else {
        if !ask(*question).is_null() {
            return;
        }
        wanted.add(b"@");
        // SAFETY: a C string, by the caller's promise in `substitute`.
        wanted.add(unsafe { CStr::from_ptr(question.version) }.to_bytes());
        let plain = Question { version: std::ptr::null(), ..*question };
        if is_kept(wanted.bytes()) || ask(plain).is_null() {
            return;
        }
        each_library(&mut |info| {
            if let Some(dynamic) = dynamic_section(info) {
                versions(info.dlpi_addr, dynamic, &mut |version| {
                    if definition(info.dlpi_addr, dynamic, name, Some(version)).is_some() {
                        found.add_item(version.to_bytes());
                    }
                });
            }
            false
        });
    }
    if !found.bytes().is_empty() {
        keep(&wanted, &found);
    }
}

/// What was noted since the last time: the name, and what there is instead.
pub(in crate::hooks) fn take(say: &mut dyn FnMut(String, String)) {
    for place in &KEPT {
        // Acquire pairs with the Release in `keep`: the texts are whole.
        if place.state.compare_exchange(READY, SAID, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            say(text(&place.name), text(&place.found));
        }
    }
}

fn is_kept(name: &[u8]) -> bool {
    KEPT.iter().any(|place| {
        let is_whole = place.state.load(Ordering::Acquire) >= READY;
        is_whole && text_bytes(&place.name).eq(name.iter().copied())
    })
}

fn keep(name: &Text<NAME>, found: &Text<FOUND>) {
    let free = KEPT.iter().find(|place| {
        // Relaxed: whoever reads the texts waits for READY.
        place.state.compare_exchange(FREE, WRITING, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    });
    let Some(place) = free else { return };
    place.name.iter().zip(name.0).for_each(|(to, byte)| to.store(byte, Ordering::Relaxed));
    place.found.iter().zip(found.0).for_each(|(to, byte)| to.store(byte, Ordering::Relaxed));
    // Release pairs with the Acquire of readers.
    place.state.store(READY, Ordering::Release);
}

fn text_bytes(text: &[AtomicU8]) -> impl Iterator<Item = u8> {
    text.iter().map(|byte| byte.load(Ordering::Relaxed)).take_while(|byte| *byte != 0)
}

fn text(text: &[AtomicU8]) -> String {
    String::from_utf8_lossy(&text_bytes(text).collect::<Vec<u8>>()).into_owned()
}

/// A text of at most N - 1 bytes; what is longer is cut.
struct Text<const N: usize>([u8; N], usize);

impl<const N: usize> Text<N> {
    fn new() -> Self {
        Text([0; N], 0)
    }

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if self.1 + 1 < N
                && let Some(place) = self.0.get_mut(self.1)
            {
                *place = *byte;
                self.1 += 1;
            }
        }
    }

    fn add_item(&mut self, bytes: &[u8]) {
        if self.1 + bytes.len() + 3 > N {
            return;
        }
        if self.1 != 0 {
            self.add(b", ");
        }
        self.add(bytes);
    }

    fn add_number(&mut self, number: u8) {
        if number > 9 {
            self.add(&[b'0' + number / 10]);
        }
        self.add(&[b'0' + number % 10]);
    }

    fn bytes(&self) -> &[u8] {
        self.0.get(..self.1).unwrap_or(&[])
    }

    fn as_ptr(&self) -> *const c_char {
        self.0.as_ptr().cast()
    }
}
