//! Record files, and a short form of them for the fuzzer.
//!
//! A record file is mostly zeros: 40 KiB of header, and extents that begin at 16 KiB. The short form is a list of
//! steps that change a valid empty file, so that any bytes are a record file of some kind, and a few bytes one
//! with records, stacks and modules:
//!
//! | step | what follows | what it does |
//! |---|---|---|
//! | 0 | offset u16, length u8, bytes | overwrites a part of the header |
//! | 1–4 | length u16, bytes | appends to that area |
//! | 5 | field u8, value u64 | sets one of [`FIELDS`] |
//! | 6 | length u32 | cuts the file |
//! | 7 | area u8 | goes on with the next extent of that area |
//!
//! Numbers are little-endian. Header bytes and fields are set last, so that they win.

use std::mem::offset_of;

use cuwarden::record::layout::*;

use crate::take::Take;

/// Extents of one area: each is twice the one before it.
const MOST_EXTENTS: usize = 4;

/// Offset and width in bytes of what decides most.
pub fn fields() -> Vec<(usize, usize)> {
    let mut fields = vec![
        (offset_of!(Header, magic), 8),
        (offset_of!(Header, version), 4),
        (offset_of!(Header, header_bytes), 4),
        (offset_of!(Header, started_ns), 8),
        (offset_of!(Header, ended_ns), 8),
        (offset_of!(Header, driver_version), 4),
        (offset_of!(Header, lost_records), 8),
    ];
    fields.extend((0..AREAS).map(|n| (offset_of!(Header, used) + n * 8, 8)));
    fields.extend((0..3).map(|n| (offset_of!(Header, sample_ns) + n * 8, 8)));
    fields.extend((0..4).map(|n| (offset_of!(Header, text_lengths) + n * 4, 4)));
    fields.extend((0..3).map(|n| (offset_of!(Header, runtime_versions) + n * 4, 4)));
    for device in [0, 1, MAX_DEVICES - 1] {
        let at = offset_of!(Header, devices) + device * size_of::<Device>();
        fields.extend([
            (at + offset_of!(Device, present), 4),
            (at + offset_of!(Device, text_lengths), 4),
            (at + offset_of!(Device, limit_bytes), 8),
            (at + offset_of!(Device, reserved), 8),
            (at + offset_of!(Device, peak_bytes), 8),
            (at + offset_of!(Device, denied_count), 8),
            (offset_of!(Header, counts) + device * size_of::<Counts>(), 8),
        ]);
    }
    for row in (0..10).chain([MAX_EXTENTS - 1]) {
        let at = offset_of!(Header, extents) + row * size_of::<Extent>();
        fields.extend([
            (at + offset_of!(Extent, area), 4),
            (at + offset_of!(Extent, offset), 8),
            (at + offset_of!(Extent, bytes), 8),
        ]);
    }
    fields
}

/// A record file, as the pieces of it that are not zero.
pub struct Image {
    pub header: Vec<u8>,
    /// Area, offset in the file, what is in use of it.
    pub extents: Vec<(Area, u64, Vec<u8>)>,
    pub length: u64,
}

impl Image {
    /// The file's bytes.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length as usize];
        for (offset, piece) in self.pieces() {
            let start = (offset as usize).min(bytes.len());
            let room = &mut bytes[start..];
            let fits = piece.len().min(room.len());
            room[..fits].copy_from_slice(&piece[..fits]);
        }
        bytes
    }

    pub fn pieces(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let extents = self.extents.iter().map(|(_, offset, bytes)| (*offset, &bytes[..]));
        std::iter::once((0, &self.header[..])).chain(extents)
    }

    /// Bytes that a reader has to go through, if it believes the header.
    pub fn claimed(&self) -> u64 {
        let number = |at: usize| u64::from_le_bytes(self.header[at..at + 8].try_into().expect("eight bytes"));
        let total = (0..MAX_EXTENTS)
            .map(|row| {
                let at = offset_of!(Header, extents) + row * size_of::<Extent>();
                number(at + offset_of!(Extent, bytes))
            })
            .fold(0, u64::saturating_add);
        (0..AREAS).map(|n| number(offset_of!(Header, used) + n * 8).min(total)).fold(0, u64::saturating_add)
    }
}

/// Makes the record file that `input` describes.
pub fn unpack(input: &[u8]) -> Image {
    let mut areas: [Vec<Vec<u8>>; AREAS] = std::array::from_fn(|_| vec![Vec::new()]);
    let mut patches: Vec<(usize, Vec<u8>)> = Vec::new();
    let mut cut = u64::MAX;
    let fields = fields();
    let mut take = Take(input);
    while !take.is_empty() {
        match take.u8() % 9 {
            0 => {
                let (offset, length) = (take.u16(), take.u8());
                patches.push((usize::from(offset) % HEADER_BYTES, take.bytes(length.into()).to_vec()));
            }
            step @ 1..=5 => {
                let length = take.u16();
                let bytes = take.bytes(length.into());
                let area = Area::ALL[usize::from(step) - 1];
                let extents = &mut areas[area.index()];
                let index = extents.len() - 1;
                let room = (area.first_extent_bytes() << index) as usize - extents[index].len();
                extents[index].extend(&bytes[..bytes.len().min(room)]);
            }
            6 => {
                let (offset, width) = fields[usize::from(take.u8()) % fields.len()];
                patches.push((offset, take.u64().to_le_bytes()[..width].to_vec()));
            }
            7 => cut = u64::from(take.u32()),
            _ => {
                let extents = &mut areas[usize::from(take.u8()) % AREAS];
                if extents.len() < MOST_EXTENTS {
                    extents.push(Vec::new());
                }
            }
        }
    }

    let mut header = vec![0; HEADER_BYTES];
    let mut put = |offset: usize, value: &[u8]| {
        let room = &mut header[offset..];
        let fits = value.len().min(room.len());
        room[..fits].copy_from_slice(&value[..fits]);
    };
    put(offset_of!(Header, magic), &MAGIC.to_le_bytes());
    put(offset_of!(Header, version), &VERSION.to_le_bytes());
    put(offset_of!(Header, header_bytes), &(HEADER_BYTES as u32).to_le_bytes());
    let (mut extents, mut length, mut row) = (Vec::new(), HEADER_BYTES as u64, 0);
    for (area, parts) in Area::ALL.into_iter().zip(areas) {
        let (mut used, mut before) = (0, 0);
        for (index, bytes) in parts.into_iter().enumerate() {
            let room = area.first_extent_bytes() << index;
            let at = offset_of!(Header, extents) + row * size_of::<Extent>();
            put(at + offset_of!(Extent, area), &(area as u32).to_le_bytes());
            put(at + offset_of!(Extent, offset), &length.to_le_bytes());
            put(at + offset_of!(Extent, bytes), &room.to_le_bytes());
            used = before + bytes.len() as u64;
            before += room;
            extents.push((area, length, bytes));
            length += room;
            row += 1;
        }
        put(offset_of!(Header, used) + area.index() * 8, &used.to_le_bytes());
    }
    for (offset, value) in patches {
        put(offset, &value);
    }
    Image { header, extents, length: length.min(cut) }
}

/// The short form of a record file that is whole.
pub fn pack(file: &[u8]) -> Vec<u8> {
    let u32_at = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().expect("four bytes"));
    let u64_at = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().expect("eight bytes"));
    let mut out = Vec::new();
    let mut used = Area::ALL.map(|area| u64_at(offset_of!(Header, used) + area.index() * 8));
    let mut seen = [0; AREAS];
    for row in 0..MAX_EXTENTS {
        let at = offset_of!(Header, extents) + row * size_of::<Extent>();
        let Some(area) = Area::ALL.into_iter().find(|&area| area as u32 == u32_at(at)) else { break };
        let (offset, room) =
            (u64_at(at + offset_of!(Extent, offset)) as usize, u64_at(at + offset_of!(Extent, bytes)));
        let n = area.index();
        if seen[n] > 0 {
            out.extend([8, n as u8]);
        }
        seen[n] += 1;
        let here = used[n].min(room) as usize;
        used[n] -= here as u64;
        let mut bytes = &file[offset..offset + here];
        // Entries do not straddle extents, so an extent may end in zeros that count as used.
        while !bytes.is_empty() {
            let (part, rest) = bytes.split_at(bytes.len().min(usize::from(u16::MAX)));
            out.push(area as u8);
            out.extend((part.len() as u16).to_le_bytes());
            out.extend(part);
            bytes = rest;
        }
    }
    // The header's first words and its extent table come by themselves.
    let mut from = offset_of!(Header, pid);
    let end = offset_of!(Header, extents);
    while from < end {
        if file[from] == 0 || (offset_of!(Header, used)..offset_of!(Header, lost_records)).contains(&from) {
            from += 1;
            continue;
        }
        // Up to four zeros in between are cheaper than a step.
        let mut to = from;
        for (at, &byte) in file.iter().enumerate().take(end.min(from + 255)).skip(from) {
            if byte != 0 {
                to = at + 1;
            } else if at > to + 4 {
                break;
            }
        }
        out.push(0);
        out.extend((from as u16).to_le_bytes());
        out.push((to - from) as u8);
        out.extend(&file[from..to]);
        from = to;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuwarden::record::snapshot::Snapshot;

    #[test]
    fn anything_short_is_a_record_file() {
        let snapshot = Snapshot::from_bytes(&unpack(&[]).bytes()).expect("readable");
        assert_eq!((snapshot.damaged, snapshot.records.len()), (0, 0));
        let mut input = vec![1, 96, 0];
        input.extend([7; 96]);
        assert_eq!(Snapshot::from_bytes(&unpack(&input).bytes()).expect("readable").damaged, 2);
    }

    #[test]
    fn packing_keeps_the_meaning() {
        let mut input = vec![0, 64, 0, 3, 1, 2, 3, 5, 3];
        input.extend(99u64.to_le_bytes());
        for area in [1, 2, 7, 1, 3, 4] {
            input.push(area);
            if area == 7 {
                input.push(0);
            } else {
                input.extend([48, 0]);
                input.extend((1..=48).map(|n| n % 5));
            }
        }
        let file = unpack(&input).bytes();
        let packed = pack(&file);
        let again = unpack(&packed).bytes();
        let shown = |bytes: &[u8]| format!("{:?}", Snapshot::from_bytes(bytes).expect("readable"));
        assert_eq!(shown(&file), shown(&again));
    }
}
