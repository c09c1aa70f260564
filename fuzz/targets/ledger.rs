//! The file that the processes of a container share: any bytes in it before somebody comes, and between what it does
//! there.
//!
//! Input: steps that begin with a ledger that is valid and empty. Numbers are little-endian.
//!
//! | step | what follows | what it does |
//! |---|---|---|
//! | 0 | field u8, value u64 | sets one of the header's and the devices' fields |
//! | 1 | slot u16, field u8, value u64 | sets one of a slot's |
//! | 2 | slot u16, field u8, value u64 | sets one of its lanes' on the first device, if the file has them |
//! | 3 | offset u24, length u8, bytes | overwrites anything |
//! | 4 | length u32 | cuts the file or makes it longer, before the first operation only |
//! | 5–7 | kind u8, bytes u32 | an operation; the first one joins |

#![no_main]

use std::fs::{DirBuilder, File};
use std::mem::offset_of;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

use cuwarden::ledger::file::{self, lanes_at};
use cuwarden::ledger::layout::*;
use cuwarden::ledger::slots::DeviceKey;
use cuwarden::ledger::view::View;
use cuwarden::ledger::{Account, Entered, Ledger};
use cuwarden_fuzz::take::Take;
use libfuzzer_sys::fuzz_target;

/// What a process was told.
const LIMIT: u64 = 64 << 20;
/// More than that is refused without a limit too, in bytes.
const MOST_OF_ANY_DEVICE: u64 = 1 << 46;
/// What a cell can claim to have spare, whatever the limit is.
const MOST_IN_CELL: u64 = 8 << 20;

struct Place {
    directory: PathBuf,
    file: File,
    /// A valid one without slots.
    empty: Vec<u8>,
}

static PLACE: OnceLock<Place> = OnceLock::new();

impl Place {
    /// In memory, since each input writes it anew.
    fn new() -> Place {
        let directory = Path::new("/dev/shm").join(format!("cuwarden-fuzz-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        DirBuilder::new().mode(0o700).create(&directory).expect("a directory in memory");
        file::create(&file::path_in(&directory)).expect("a ledger");
        let empty = std::fs::read(file::path_in(&directory)).expect("what was made");
        let file =
            File::options().read(true).write(true).open(file::path_in(&directory)).expect("it is ours");
        extern "C" fn remove() {
            if let Some(place) = PLACE.get() {
                let _ = std::fs::remove_dir_all(&place.directory);
            }
        }
        // SAFETY: a function that lives as long as the program.
        unsafe { libc::atexit(remove) };
        Place { directory, file, empty }
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        let room = (self.file.metadata().expect("it is open").len() as usize).saturating_sub(at);
        self.file.write_all_at(&bytes[..bytes.len().min(room)], at as u64).expect("there is memory");
    }
}

/// Offset and width of what decides most.
fn shared_fields() -> Vec<(usize, usize)> {
    let mut fields = vec![
        (offset_of!(Header, magic), 8),
        (offset_of!(Header, version), 4),
        (offset_of!(Header, slots), 4),
        (offset_of!(Header, devices), 4),
        (offset_of!(Header, cells), 4),
        (offset_of!(Header, next_slot), 4),
        (offset_of!(Header, slots_end), 4),
        (offset_of!(Header, default_limit), 8),
    ];
    for device in [0, 1, DEVICES - 1] {
        let at = DEVICES_AT + device * size_of::<Device>();
        fields.extend([
            (at + offset_of!(Device, uuid), 8),
            (at + offset_of!(Device, uuid) + 8, 8),
            (at + offset_of!(Device, model), 4),
            (at + offset_of!(Device, context_cost), 8),
            (at + offset_of!(Device, total_bytes), 8),
            (at + offset_of!(Device, denied), 8),
            (at + offset_of!(Device, word), 8),
            (at + offset_of!(Device, word) + 8, 8),
            (at + offset_of!(Device, limit), 8),
            (at + offset_of!(Device, closed_ms), 8),
        ]);
    }
    fields
}

const SLOT_FIELDS: [(usize, usize); 10] = [
    (offset_of!(Slot, generation), 8),
    (offset_of!(Slot, devices), 8),
    (offset_of!(Slot, pid), 4),
    (offset_of!(Slot, hold), 4),
    (offset_of!(Slot, start_ticks), 8),
    (offset_of!(Slot, stack_start), 8),
    (offset_of!(Slot, pid_namespace), 8),
    (offset_of!(Slot, since_ns), 8),
    (offset_of!(Slot, boot_id), 8),
    (offset_of!(Slot, boot_id) + 8, 8),
];

const INTENT: usize = offset_of!(Lanes, intent);

/// All eight bytes wide.
const LANE_FIELDS: [usize; 12] = [
    offset_of!(Lanes, charged),
    offset_of!(Lanes, charged) + 8,
    offset_of!(Lanes, done),
    offset_of!(Lanes, contexts),
    INTENT + offset_of!(Intent, sequence),
    INTENT + offset_of!(Intent, target),
    INTENT + offset_of!(Intent, charged_before),
    INTENT + offset_of!(Intent, charged_after),
    INTENT + offset_of!(Intent, cell_before),
    offset_of!(Lanes, cells),
    offset_of!(Lanes, cells) + size_of::<Cell>(),
    offset_of!(Lanes, cells) + 7 * size_of::<Cell>(),
];

/// This process in the ledger, on one device.
struct Joined {
    ledger: Ledger,
    entered: Option<Entered>,
    peak: AtomicU64,
}

impl Joined {
    fn new(place: &Place) -> Option<Joined> {
        match Ledger::join(&place.directory, Vec::new) {
            Ok(ledger) => Some(Joined { ledger, entered: None, peak: AtomicU64::new(0) }),
            Err(error) => {
                assert!(!error.to_string().is_empty(), "refused without a word");
                None
            }
        }
    }

    fn operate(&mut self, kind: u8, bytes: u64) {
        let key = DeviceKey { uuid: [7; 16], model: 5, total_bytes: 1 << 34, ..DeviceKey::default() };
        let Some(entered) = &self.entered else {
            match self.ledger.enter(&key, if kind % 2 == 0 { LIMIT } else { 0 }) {
                Ok((entered, _)) => self.entered = Some(entered),
                Err(error) => assert!(!error.to_string().is_empty(), "refused without a word"),
            }
            return;
        };
        let account = Account { entered, peak: &self.peak, thread: u32::from(kind >> 4) };
        match kind % 16 {
            0..=3 => {
                let limit = account.limit();
                match account.reserve(bytes) {
                    Ok(reserved) => {
                        let fits = limit == 0 || bytes <= limit.max(MOST_IN_CELL);
                        assert!(fits, "{bytes} bytes under {limit}");
                        account.granted(reserved);
                    }
                    Err(denied) => {
                        let limited = denied.limit != 0 || entered.told != 0;
                        assert!(limited || bytes >= MOST_OF_ANY_DEVICE, "refused without a limit");
                    }
                }
            }
            4 | 5 => account.release(bytes),
            6 => account.force(bytes),
            7 => drop(account.reserve_context(bytes)),
            8 => account.release_context(bytes),
            9 => drop(account.holders()),
            10 => drop((account.used(), account.held(), account.contexts(), account.limit())),
            11 => drop(self.ledger.set_limit(&key, (bytes != 0).then_some(bytes))),
            12 => drop(self.ledger.set_limit_of_all((bytes != 0).then_some(bytes))),
            13 => drop(self.ledger.forget_limit(&key, bytes)),
            14 => {
                entered.set_context_cost(bytes);
                entered.context_cost();
            }
            _ => {
                let view = View::of(&self.ledger);
                view.default_limit();
                assert!(view.devices().len() <= DEVICES);
            }
        }
    }

    fn leave(self) {
        let map = self.ledger.map();
        drop(self);
        // SAFETY: whatever had it is gone.
        unsafe { map.unmap() };
    }
}

fuzz_target!(|input: &[u8]| {
    let place = PLACE.get_or_init(Place::new);
    // What was in it goes.
    place.file.set_len(0).expect("cut");
    place.file.write_all_at(&place.empty, 0).expect("there is memory");
    let shared = shared_fields();
    let mut joined: Option<Joined> = None;
    let mut take = Take(input);
    while !take.is_empty() {
        match take.u8() % 8 {
            0 => {
                let (at, width) = shared[usize::from(take.u8()) % shared.len()];
                place.put(at, &take.u64().to_le_bytes()[..width]);
            }
            1 => {
                let slot = usize::from(take.u16()) % SLOTS;
                let (at, width) = SLOT_FIELDS[usize::from(take.u8()) % SLOT_FIELDS.len()];
                place.put(SLOTS_AT + slot * size_of::<Slot>() + at, &take.u64().to_le_bytes()[..width]);
            }
            2 => {
                let slot = take.u16() % SLOTS as u16;
                let at = LANE_FIELDS[usize::from(take.u8()) % LANE_FIELDS.len()];
                place.put(lanes_at(0, slot) as usize + at, &take.u64().to_le_bytes());
            }
            3 => {
                let at = usize::from(take.u16()) | usize::from(take.u8()) << 16;
                let length = take.u8();
                place.put(at, take.bytes(length.into()));
            }
            4 => {
                let length = u64::from(take.u32());
                if joined.is_none() {
                    place.file.set_len(length.min(FILE_BYTES as u64 + 1)).expect("there is memory");
                }
            }
            _ => {
                let (kind, bytes) = (take.u8(), take.u32());
                // Beyond what has room in four bytes too.
                let bytes = u64::from(bytes) << (kind % 3 * 8);
                let Some(process) = joined.take().or_else(|| Joined::new(place)) else { return };
                joined.insert(process).operate(kind, bytes);
            }
        }
    }
    if let Some(process) = joined {
        process.leave();
    }
});
