//! What a module holds: machine code and PTX by architecture.
//!
//! A module reaches the driver as a fat binary, a wrapper around one (both as nvcc's fatbinary headers have them), an ELF
//! file for EM_CUDA, or PTX text. Nothing says how long it is, so it is read piece by piece through a function that
//! fails where there is no memory.

/// One part of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Machine code for compute capability 90 = 9.0.
    Code(u32),
    /// PTX for this one and newer ones.
    Ptx(u32),
}

/// A module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Image {
    /// In the order of the file.
    pub parts: Vec<Part>,
    /// `.version` of PTX text, as in 8.4.
    pub ptx_version: Option<String>,
}

const WRAPPER: u32 = 0x466243b1;
const FAT_BINARY: u32 = 0xba55ed50;
const EM_CUDA: u16 = 190;
/// Parts that are read at most.
const MOST_PARTS: usize = 64;
const PTX_HEAD: usize = 4096;

impl Image {
    /// Reads what lies at `address`. `read` answers so many bytes, fewer at the end of memory, or none.
    pub fn read(address: u64, read: &dyn Fn(u64, usize) -> Vec<u8>) -> Option<Image> {
        let head = read(address, 64);
        match u32_at(&head, 0)? {
            WRAPPER => {
                let inner = u64_at(&head, 8)?;
                // A wrapper in a wrapper is none.
                (u32_at(&read(inner, 4), 0)? == FAT_BINARY).then(|| fat_binary(inner, read))?
            }
            FAT_BINARY => fat_binary(address, read),
            0x464c_457f => elf(&head).map(|part| Image { parts: vec![part], ptx_version: None }),
            _ => ptx(&read(address, PTX_HEAD)),
        }
    }

    /// As in "code for sm_80 and sm_86, PTX for sm_86".
    pub fn describe(&self) -> String {
        let list = |parts: Vec<u32>| {
            let names: Vec<String> = parts.iter().map(|sm| format!("sm_{sm}")).collect();
            names.join(" and ")
        };
        let code = list(
            self.parts.iter().filter_map(|p| if let Part::Code(sm) = p { Some(*sm) } else { None }).collect(),
        );
        let ptx = list(
            self.parts.iter().filter_map(|p| if let Part::Ptx(sm) = p { Some(*sm) } else { None }).collect(),
        );
        let version =
            self.ptx_version.as_ref().map(|version| format!(" of version {version}")).unwrap_or_default();
        match (code.is_empty(), ptx.is_empty()) {
            (false, false) => format!("code for {code}, PTX{version} for {ptx}"),
            (false, true) => format!("code for {code}, and no PTX"),
            (true, false) => format!("PTX{version} for {ptx}"),
            (true, true) => "nothing that was recognised".to_owned(),
        }
    }
}

/// True when a card of this compute capability can run it: code of the same major version and not newer, or PTX.
pub fn fits(image: &Image, card: u32) -> bool {
    image.parts.iter().any(|part| match *part {
        Part::Code(sm) => sm / 10 == card / 10 && sm <= card,
        Part::Ptx(sm) => sm <= card,
    })
}

fn fat_binary(address: u64, read: &dyn Fn(u64, usize) -> Vec<u8>) -> Option<Image> {
    let head = read(address, 16);
    let header = u64::from(u16_at(&head, 6)?);
    let end = address.checked_add(header)?.checked_add(u64_at(&head, 8)?)?;
    let mut at = address.checked_add(header)?;
    let mut parts = Vec::new();
    while at < end && parts.len() < MOST_PARTS {
        let entry = read(at, 32);
        let (Some(kind), Some(header), Some(bytes), Some(arch)) =
            (u16_at(&entry, 0), u32_at(&entry, 4), u64_at(&entry, 8), u32_at(&entry, 28))
        else {
            break;
        };
        match kind {
            1 => parts.push(Part::Ptx(arch)),
            2 => parts.push(Part::Code(arch)),
            _ => {}
        }
        let next = at.checked_add(header.into()).and_then(|at| at.checked_add(bytes));
        match next {
            Some(next) if next > at => at = next,
            _ => break,
        }
    }
    Some(Image { parts, ptx_version: None })
}

fn elf(head: &[u8]) -> Option<Part> {
    if u16_at(head, 18)? != EM_CUDA {
        return None;
    }
    let flags = u32_at(head, 48)?;
    // From ABI version 8 on the architecture lies in the second byte.
    let is_new = head.get(8).is_some_and(|version| *version >= 8);
    Some(Part::Code(if is_new { flags >> 8 & 0xff } else { flags & 0xff }))
}

fn ptx(bytes: &[u8]) -> Option<Image> {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    let text = String::from_utf8_lossy(bytes.get(..end)?);
    let word = |directive: &str| {
        let mut lines = text.lines().map(str::trim);
        lines
            .find_map(|line| {
                line.strip_prefix(directive)?.split([' ', '\t', ',']).find(|word| !word.is_empty())
            })
            .map(str::to_owned)
    };
    let target = word(".target")?;
    let sm: String = target.strip_prefix("sm_")?.chars().take_while(char::is_ascii_digit).collect();
    Some(Image { parts: vec![Part::Ptx(sm.parse().ok()?)], ptx_version: word(".version") })
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0x1000;

    fn image(memory: &[u8]) -> Option<Image> {
        Image::read(AT, &|address, bytes| {
            let from = address.checked_sub(AT).map_or(memory.len(), |at| (at as usize).min(memory.len()));
            memory[from..(from + bytes).min(memory.len())].to_vec()
        })
    }

    fn entry(kind: u16, arch: u32, bytes: u64) -> Vec<u8> {
        let mut entry = vec![0; 64];
        entry[0..2].copy_from_slice(&kind.to_le_bytes());
        entry[4..8].copy_from_slice(&64u32.to_le_bytes());
        entry[8..16].copy_from_slice(&bytes.to_le_bytes());
        entry[28..32].copy_from_slice(&arch.to_le_bytes());
        entry.resize(64 + bytes as usize, 0xee);
        entry
    }

    fn fat(entries: &[Vec<u8>]) -> Vec<u8> {
        let body = entries.concat();
        let mut all = FAT_BINARY.to_le_bytes().to_vec();
        all.extend_from_slice(&[1, 0, 16, 0]);
        all.extend_from_slice(&(body.len() as u64).to_le_bytes());
        all.extend_from_slice(&body);
        all
    }

    #[test]
    fn fat_binaries() {
        let all = fat(&[entry(2, 80, 40), entry(2, 86, 8), entry(1, 86, 100)]);
        let found = image(&all).unwrap();
        assert_eq!(found.parts, [Part::Code(80), Part::Code(86), Part::Ptx(86)]);
        assert_eq!(found.describe(), "code for sm_80 and sm_86, PTX for sm_86");
        assert!(fits(&found, 80) && fits(&found, 89) && fits(&found, 90) && !fits(&found, 75));
        let code_only = image(&fat(&[entry(2, 90, 8)])).unwrap();
        assert_eq!(code_only.describe(), "code for sm_90, and no PTX");
        assert!(!fits(&code_only, 100) && !fits(&code_only, 89) && fits(&code_only, 90));
        let mut wrapped = WRAPPER.to_le_bytes().to_vec();
        wrapped.extend_from_slice(&[1, 0, 0, 0]);
        wrapped.extend_from_slice(&(AT + 24).to_le_bytes());
        wrapped.extend_from_slice(&[0; 8]);
        wrapped.extend_from_slice(&all);
        assert_eq!(image(&wrapped).unwrap(), found);
    }

    #[test]
    fn what_is_cut_or_forged_ends() {
        let all = fat(&[entry(2, 80, 40), entry(1, 86, 100)]);
        for length in 0..all.len() {
            let _ = image(&all[..length]);
        }
        let mut endless = fat(&[entry(2, 80, 0)]);
        endless[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(image(&endless).is_none_or(|image| image.parts.len() <= MOST_PARTS));
        let mut still = fat(&[entry(2, 80, 0)]);
        still[16 + 4..16 + 8].copy_from_slice(&[0; 4]);
        assert_eq!(image(&still).unwrap().parts, [Part::Code(80)]);
    }

    #[test]
    fn elf_files_and_text() {
        let mut elf = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0x33, 7];
        elf.resize(64, 0);
        elf[18..20].copy_from_slice(&EM_CUDA.to_le_bytes());
        elf[48..52].copy_from_slice(&0x0055_0556u32.to_le_bytes());
        assert_eq!(image(&elf).unwrap().parts, [Part::Code(0x56)]);
        elf[8] = 8;
        elf[48..52].copy_from_slice(&0x0600_6402u32.to_le_bytes());
        assert_eq!(image(&elf).unwrap().parts, [Part::Code(100)]);
        elf[18] = 62;
        assert_eq!(image(&elf), None);
        let text = b"//\n.version 8.4\n.target sm_90a, texmode_independent\n.address_size 64\n\0garbage";
        let found = image(text).unwrap();
        assert_eq!(found.describe(), "PTX of version 8.4 for sm_90");
        assert_eq!(image(b"not a module"), None);
        assert_eq!(image(b""), None);
    }
}
