//! Call stacks of allocations, each kept once in the record file.

use crate::record::layout::{Area, FRAME_MODULE_SHIFT};
use crate::record::writer::Writer;
use crate::stack;
use cuwarden_table::Ids;
use std::mem::offset_of;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use crate::event::cancel::NoCancel;
use crate::policy::config::MAX_STACK_DEPTH;
use crate::record::layout::{ModuleHead, StackHead};

const STRIPES: usize = 16;
/// The shim's own frames, which are cut.
const OWN_FRAMES: usize = 32;
const OFFSET_MASK: u64 = (1 << FRAME_MODULE_SHIFT) - 1;

/// The stacks and modules that the record file holds already.
pub struct Stacks {
    /// Hash of a stack's program counters → its id.
    known: [Mutex<Ids>; STRIPES],
    modules: Mutex<Vec<Module>>,
    /// The code of the library that this function is in.
    own_text: Range<u64>,
}

#[derive(Clone, Debug)]
struct Module {
    text: Range<u64>,
    bias: u64,
    /// As in [`ModuleHead`].
    id: u32,
    path: Vec<u8>,
}

impl Stacks {
    /// Looks up where the shim itself lies.
    pub fn new() -> Stacks {
        let here = Stacks::new as *const () as u64;
        let mut own_text = 0..0;
        stack::each_module(&mut |module| {
            if module.text.contains(&here) {
                own_text = module.text.clone();
            }
        });
        Stacks { known: Default::default(), modules: Mutex::default(), own_text }
    }

    /// The id of the application's present call stack, `depth` frames of it; 0 where there is none.
    pub fn capture(&self, writer: &Writer, depth: u32) -> u32 {
        let mut buffer = [0u64; MAX_STACK_DEPTH as usize + OWN_FRAMES];
        let frames = self.application_frames(&mut buffer, depth as usize);
        if frames.is_empty() { 0 } else { self.intern(writer, frames) }
    }

    /// The same frames as (module path, offset in the module), for an event.
    pub fn describe(&self, writer: &Writer, depth: u32) -> Vec<(String, u64)> {
        let mut buffer = [0u64; MAX_STACK_DEPTH as usize + OWN_FRAMES];
        let frames = self.application_frames(&mut buffer, depth as usize);
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let mut refreshed = false;
        frames
            .iter()
            .map(|pc| match module_of(&mut modules, writer, *pc, &mut refreshed) {
                Some(module) => {
                    (String::from_utf8_lossy(&module.path).into_owned(), pc.wrapping_sub(module.bias))
                }
                None => (String::new(), *pc),
            })
            .collect()
    }

    fn application_frames<'a>(&self, buffer: &'a mut [u64], depth: usize) -> &'a [u64] {
        // The shim is a few frames deep; more are asked for only to be cut.
        let wanted = depth.saturating_add(OWN_FRAMES / 2).min(buffer.len());
        let Some(asked) = buffer.get_mut(..wanted) else { return &[] };
        let length = stack::capture(asked, 0).min(wanted);
        // Ours are innermost, and where a runtime was called: between it and its caller.
        let mut kept = 0;
        for at in 0..length {
            let Some(&pc) = asked.get(at) else { break };
            if !self.own_text.contains(&pc) && kept < depth {
                if let Some(place) = asked.get_mut(kept) {
                    *place = pc;
                }
                kept += 1;
            }
        }
        asked.get(..kept).unwrap_or(&[])
    }

    fn intern(&self, writer: &Writer, frames: &[u64]) -> u32 {
        let hash = hash_of(frames);
        let Some(stripe) = self.known.get((hash >> 40) as usize % STRIPES) else { return 0 };
        let mut known = stripe.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(id) = known.find(hash) {
            return id;
        }
        let id = self.append(writer, hash, frames).unwrap_or(0);
        if id != 0 {
            known.insert(hash, id);
        }
        id
    }

    fn append(&self, writer: &Writer, hash: u64, frames: &[u64]) -> Option<u32> {
        let mut entry = Vec::with_capacity(size_of::<StackHead>() + frames.len() * 8);
        entry.extend_from_slice(&hash.to_ne_bytes());
        entry.extend_from_slice(&(frames.len() as u32).to_ne_bytes());
        entry.extend_from_slice(&0u32.to_ne_bytes());
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let mut refreshed = false;
        for pc in frames {
            let frame = match module_of(&mut modules, writer, *pc, &mut refreshed) {
                Some(module) => {
                    (u64::from(module.id) << FRAME_MODULE_SHIFT)
                        | (pc.wrapping_sub(module.bias) & OFFSET_MASK)
                }
                None => pc & OFFSET_MASK,
            };
            entry.extend_from_slice(&frame.to_ne_bytes());
        }
        drop(modules);
        let offset = writer.append(Area::Stacks, &entry, offset_of!(StackHead, frames))?;
        u32::try_from(offset / 8 + 1).ok()
    }
}

impl Default for Stacks {
    fn default() -> Self {
        Stacks::new()
    }
}

fn module_of<'a>(
    modules: &'a mut Vec<Module>,
    writer: &Writer,
    pc: u64,
    refreshed: &mut bool,
) -> Option<&'a Module> {
    // The call, not what follows it.
    let at = pc.wrapping_sub(1);
    if !*refreshed {
        // A new stack is rare, and what was loaded here may have been replaced since the last one.
        *refreshed = true;
        refresh(modules, writer);
    }
    modules.iter().find(|module| module.text.contains(&at))
}

/// Makes the list agree with what is loaded, and writes what is new to the file.
fn refresh(modules: &mut Vec<Module>, writer: &Writer) {
    let known = std::mem::take(modules);
    for (mut module, build_id) in loaded_modules() {
        if module.path.is_empty() {
            module.path = main_program();
        }
        let same = |other: &&Module| {
            other.text == module.text && other.bias == module.bias && other.path == module.path
        };
        match known.iter().find(same) {
            Some(older) => module.id = older.id,
            None => module.id = write_module(writer, &module, &build_id).unwrap_or(0),
        }
        modules.push(module);
    }
}

/// A module while the loader's lock is held: its texts are ranges of one buffer.
struct Found {
    text: Range<u64>,
    bias: u64,
    path: Range<usize>,
    build_id: Range<usize>,
}

/// What the loader has now, with build-ids. Nothing is allocated under the loader's lock: a malloc that walks
/// stacks itself takes the two locks in the other order.
fn loaded_modules() -> Vec<(Module, Vec<u8>)> {
    let (mut most_modules, mut most_bytes) = (128, 32 << 10);
    loop {
        let mut entries: Vec<Found> = Vec::with_capacity(most_modules);
        let mut bytes: Vec<u8> = Vec::with_capacity(most_bytes);
        let (mut all_modules, mut all_bytes) = (0usize, 0usize);
        stack::each_module(&mut |info| {
            let path = if info.is_main { &[] } else { info.path };
            all_modules = all_modules.saturating_add(1);
            all_bytes = all_bytes.saturating_add(path.len()).saturating_add(info.build_id.len());
            if all_modules <= most_modules && all_bytes <= most_bytes {
                let start = bytes.len();
                bytes.extend_from_slice(path);
                let middle = bytes.len();
                bytes.extend_from_slice(info.build_id);
                entries.push(Found {
                    text: info.text.clone(),
                    bias: info.bias,
                    path: start..middle,
                    build_id: middle..bytes.len(),
                });
            }
        });
        if all_modules <= most_modules && all_bytes <= most_bytes {
            let slice = |range: Range<usize>| bytes.get(range).unwrap_or(&[]).to_vec();
            return entries
                .into_iter()
                .map(|found| {
                    let path = slice(found.path);
                    (Module { text: found.text, bias: found.bias, id: 0, path }, slice(found.build_id))
                })
                .collect();
        }
        // More may have been loaded meanwhile.
        (most_modules, most_bytes) = (all_modules.saturating_mul(2), all_bytes.saturating_mul(2));
    }
}

fn main_program() -> Vec<u8> {
    let _no_cancel = NoCancel::new();
    use std::os::unix::ffi::OsStringExt;
    std::fs::read_link("/proc/self/exe").map(|p| p.into_os_string().into_vec()).unwrap_or_default()
}

fn write_module(writer: &Writer, module: &Module, build_id: &[u8]) -> Option<u32> {
    let path = module.path.get(..module.path.len().min(4096))?;
    let build_id = build_id.get(..build_id.len().min(64))?;
    let head = size_of::<ModuleHead>();
    let length = (head + path.len() + build_id.len()).next_multiple_of(8);
    // Ids are never reused, so a stack taken before an unload still names the library that was there.
    let id = writer.next_module_id()?;
    let mut entry = Vec::with_capacity(length);
    entry.extend_from_slice(&id.to_ne_bytes());
    entry.extend_from_slice(&(path.len() as u32).to_ne_bytes());
    entry.extend_from_slice(&(build_id.len() as u32).to_ne_bytes());
    entry.extend_from_slice(&(length as u32).to_ne_bytes());
    entry.extend_from_slice(&module.bias.to_ne_bytes());
    entry.extend_from_slice(path);
    entry.extend_from_slice(build_id);
    entry.resize(length, 0);
    writer.append(Area::Modules, &entry, offset_of!(ModuleHead, entry_bytes))?;
    Some(id)
}

/// Equal program counters are equal stacks only until a library is unloaded: another may lie there next.
fn hash_of(frames: &[u64]) -> u64 {
    let mut h = 0x9e37_79b9_7f4a_7c15u64 ^ frames.len() as u64 ^ (stack::unloads() << 48);
    for pc in frames {
        h = (h ^ pc).wrapping_mul(0xff51_afd7_ed55_8ccd);
        h ^= h >> 32;
    }
    h
}
