//! The extents of one area, joined into one array of bytes.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::header::HeaderView;
use super::{MAX_AREA_BYTES, Problems};
use crate::record::layout::{Area, HEADER_BYTES, MAX_EXTENTS, ModuleHead, NoteHead};

/// Where the bytes of an extent are.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    Memory(&'a [u8]),
    File {
        file: &'a File,
        offset: u64,
        bytes: u64,
    },
    /// Nowhere that could be believed: reads as zero, so that what comes after keeps its place.
    Missing,
}

impl Source<'_> {
    /// Fills `buffer` from `position` of this extent on; what is not there reads as zero.
    fn read(&self, position: u64, buffer: &mut [u8]) {
        let mut done = 0;
        match *self {
            Source::Memory(bytes) => {
                let start = usize::try_from(position).unwrap_or(usize::MAX).min(bytes.len());
                done = buffer.len().min(bytes.len() - start);
                buffer[..done].copy_from_slice(&bytes[start..start + done]);
            }
            Source::File { file, offset, bytes } => {
                let room = usize::try_from(bytes.saturating_sub(position)).unwrap_or(usize::MAX);
                let room = buffer.len().min(room);
                while done < room {
                    let Some(at) = offset.checked_add(position).and_then(|at| at.checked_add(done as u64))
                    else {
                        break;
                    };
                    match file.read_at(&mut buffer[done..room], at) {
                        Ok(0) => break,
                        Ok(read) => done += read,
                        Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                        Err(_) => break,
                    }
                }
            }
            Source::Missing => {}
        }
        buffer[done..].fill(0);
    }
}

/// Reads the extent table of a file of `length` bytes.
pub(super) fn from_table<'a>(
    header: HeaderView<'_>,
    length: u64,
    problems: &mut Problems,
    source: impl Fn(u64, u64) -> Source<'a>,
) -> Vec<(Area, u64, Source<'a>)> {
    let mut list = Vec::new();
    let mut taken: Vec<(u64, u64)> = vec![(0, HEADER_BYTES as u64)];
    for index in 0..MAX_EXTENTS {
        let (number, offset, bytes) = header.extent(index);
        if number == 0 {
            break;
        }
        let Some(area) = Area::ALL.into_iter().find(|&area| area as u32 == number) else {
            problems.add(|| format!("extent {index} is of the unknown kind {number}"));
            continue;
        };
        let end = offset.checked_add(bytes);
        let overlaps = taken.iter().any(|&(start, stop)| offset < stop && end.is_none_or(|end| start < end));
        if overlaps || !offset.is_multiple_of(4096) || end.is_none() {
            problems.add(|| format!("extent {index} claims a place that cannot be its own"));
            list.push((area, bytes, Source::Missing));
            continue;
        }
        let end = end.unwrap_or(u64::MAX);
        if end > length {
            problems.add(|| format!("the file ends at byte {length}, and extent {index} at byte {end}"));
        }
        taken.push((offset, end));
        list.push((area, bytes, source(offset, bytes)));
    }
    list
}

struct Segment<'a> {
    start: u64,
    bytes: u64,
    source: Source<'a>,
}

/// One area as one array.
pub(super) struct Joined<'a> {
    head_bytes: u64,
    segments: Vec<Segment<'a>>,
    len: u64,
}

impl<'a> Joined<'a> {
    pub fn new(
        area: Area,
        used: u64,
        extents: Vec<(Area, u64, Source<'a>)>,
        problems: &mut Problems,
    ) -> Joined<'a> {
        let mut segments = Vec::new();
        let mut total: u64 = 0;
        for (_, bytes, source) in extents.into_iter().filter(|(of, ..)| *of == area) {
            // The size tells an extent's place. One that could not be in the file, because the disk was full
            // at that moment, leaves a gap, and what comes after it must not move up.
            if let Some(start) = place_by_size(area, bytes).filter(|&start| start > total) {
                problems.add(|| format!("{area:?}: bytes {total} to {start} were in memory only"));
                segments.push(Segment { start: total, bytes: start - total, source: Source::Missing });
                total = start;
            }
            segments.push(Segment { start: total, bytes, source });
            total = total.saturating_add(bytes);
        }
        if used > total {
            problems.add(|| format!("{area:?}: {used} bytes are in use, and there is room for {total}"));
        }
        let most = MAX_AREA_BYTES[area.index()];
        if used.min(total) > most {
            problems.add(|| format!("{area:?}: only the first {most} bytes were read"));
        }
        let head_bytes = match area {
            Area::Modules => size_of::<ModuleHead>(),
            _ => size_of::<NoteHead>(),
        };
        Joined { head_bytes: head_bytes as u64, segments, len: used.min(total).min(most) }
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    /// Fills `buffer` from `position` on; what is not there reads as zero.
    pub fn read(&self, position: u64, buffer: &mut [u8]) {
        buffer.fill(0);
        let end = position.saturating_add(buffer.len() as u64);
        for segment in &self.segments {
            let from = position.max(segment.start);
            let to = end.min(segment.start.saturating_add(segment.bytes));
            if from < to {
                let part = &mut buffer[(from - position) as usize..(to - position) as usize];
                segment.source.read(from - segment.start, part);
            }
        }
    }

    /// The whole area in memory.
    pub fn load(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(self.len).unwrap_or(0)];
        self.read(0, &mut bytes);
        bytes
    }

    /// Goes through entries that lie one after another. `size` tells an entry's size from its head, 0 = no
    /// entry here; `take` says whether an entry was believed.
    pub fn walk(&self, size: impl Fn(&[u8]) -> u64, mut take: impl FnMut(&[u8]) -> bool) -> Walked {
        let bytes = self.load();
        let mut walked = Walked::default();
        let mut position = 0;
        while position < self.len {
            let rest = &bytes[position as usize..];
            let entry = if (rest.len() as u64) < self.head_bytes { 0 } else { size(rest) };
            if entry == 0 {
                // An entry that did not fit into the rest of its extent begins with the next extent.
                match self.segments.iter().find(|segment| segment.start > position) {
                    Some(next) => position = next.start,
                    None => break,
                }
                continue;
            }
            if entry < self.head_bytes || !entry.is_multiple_of(8) || entry > rest.len() as u64 {
                // Where the next entry begins is unknown: the rest is lost.
                walked.cut = true;
                break;
            }
            if !take(&rest[..entry as usize]) {
                walked.bad += 1;
            }
            position += entry;
        }
        walked
    }
}

/// Where an extent of this size begins in its area: each is twice the one before it.
fn place_by_size(area: Area, bytes: u64) -> Option<u64> {
    let first = area.first_extent_bytes();
    (bytes.is_multiple_of(first) && (bytes / first).is_power_of_two()).then(|| bytes - first)
}

/// What a walk could not believe.
#[derive(Default)]
pub(super) struct Walked {
    bad: u64,
    cut: bool,
}

impl Walked {
    pub fn count_into(self, problems: &mut Problems, what: &str) {
        problems.add_many(self.bad, || format!("{} {what} with impossible values", self.bad));
        if self.cut {
            problems.add(|| format!("the list of {what} breaks off at an entry of impossible size"));
        }
    }
}
