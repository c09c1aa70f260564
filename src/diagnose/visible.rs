//! What `CUDA_VISIBLE_DEVICES` leaves of the devices, and what is wrong with it.
//!
//! CUDA reads the list up to the first entry that it cannot use, and says nothing about that.

/// What the value does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Visible {
    /// Not set: all devices.
    All,
    /// Set to nothing: none.
    Nothing,
    /// The first entry ends the list: none.
    FirstIsWrong(Wrong),
    /// Some are seen, and then comes one that ends the list.
    CutAt {
        /// Devices before it.
        seen: usize,
        /// What ended it.
        wrong: Wrong,
    },
    /// So many are seen.
    Some(usize),
}

/// An entry that ends the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// As it stands there.
    pub entry: String,
    /// What is wrong with it.
    pub why: &'static str,
}

/// Of a value, and the UUIDs of the machine's devices in NVML's order, MIG instances among them after their card.
/// `None`: the devices are not known, so only the form is judged.
pub fn read(value: Option<&str>, devices: Option<&Devices>) -> Visible {
    let Some(value) = value else { return Visible::All };
    if value.trim().is_empty() {
        return Visible::Nothing;
    }
    let mut seen: Vec<String> = Vec::new();
    for entry in value.split(',').map(str::trim) {
        if let Some(why) = what_is_wrong(entry, devices) {
            let wrong = Wrong { entry: entry.to_owned(), why };
            return if seen.is_empty() {
                Visible::FirstIsWrong(wrong)
            } else {
                Visible::CutAt { seen: seen.len(), wrong }
            };
        }
        if seen.iter().any(|known| known == entry) {
            // CUDA takes a device that is named twice for no device at all.
            return Visible::FirstIsWrong(Wrong { entry: entry.to_owned(), why: "named twice" });
        }
        seen.push(entry.to_owned());
    }
    // Of several MIG instances a process sees the first.
    let instances = seen.iter().filter(|entry| entry.starts_with("MIG-")).count();
    if let Some(second) = seen.iter().filter(|entry| entry.starts_with("MIG-")).nth(1) {
        let wrong = Wrong { entry: second.clone(), why: "a process can use one MIG instance only" };
        return Visible::CutAt { seen: seen.len() - instances + 1, wrong };
    }
    Visible::Some(seen.len())
}

/// What the machine has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Devices {
    /// UUIDs of cards, by NVML's index.
    pub cards: Vec<String>,
    /// UUIDs of MIG instances.
    pub instances: Vec<String>,
}

fn what_is_wrong(entry: &str, devices: Option<&Devices>) -> Option<&'static str> {
    let begins_one = |list: &[String]| {
        list.iter().any(|uuid| uuid.to_ascii_lowercase().starts_with(&entry.to_ascii_lowercase()))
    };
    if entry.is_empty() {
        return Some("empty");
    }
    if entry.starts_with("GPU-") {
        return devices.is_some_and(|known| !begins_one(&known.cards)).then_some("no device has this UUID");
    }
    if entry.starts_with("MIG-") {
        return devices
            .is_some_and(|known| !begins_one(&known.instances))
            .then_some("no MIG instance has this UUID");
    }
    let digits = entry.strip_prefix('-').unwrap_or(entry);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Some("neither an index nor a UUID");
    }
    if entry.starts_with('-') {
        return Some("a negative index ends the list");
    }
    let index: usize = match entry.parse() {
        Ok(index) => index,
        Err(_) => return Some("out of range"),
    };
    devices.is_some_and(|known| index >= known.cards.len()).then_some("out of range")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices() -> Devices {
        Devices {
            cards: vec!["GPU-aaaa1111-0000".to_owned(), "GPU-bbbb2222-0000".to_owned()],
            instances: vec!["MIG-cccc3333-0000".to_owned(), "MIG-dddd4444-0000".to_owned()],
        }
    }

    fn of(value: &str) -> Visible {
        read(Some(value), Some(&devices()))
    }

    fn wrong(entry: &str, why: &'static str) -> Wrong {
        Wrong { entry: entry.to_owned(), why }
    }

    #[test]
    fn what_is_left() {
        assert_eq!(read(None, Some(&devices())), Visible::All);
        assert_eq!(of(""), Visible::Nothing);
        assert_eq!(of(" "), Visible::Nothing);
        for (value, seen) in
            [("0", 1), ("1,0", 2), ("GPU-bbbb", 1), ("GPU-AAAA1111-0000, 1", 2), ("MIG-cccc3333-0000", 1)]
        {
            assert_eq!(of(value), Visible::Some(seen), "{value}");
        }
        assert_eq!(of("-1"), Visible::FirstIsWrong(wrong("-1", "a negative index ends the list")));
        assert_eq!(
            of("NoDevFiles"),
            Visible::FirstIsWrong(wrong("NoDevFiles", "neither an index nor a UUID"))
        );
        assert_eq!(of("2"), Visible::FirstIsWrong(wrong("2", "out of range")));
        assert_eq!(
            of("99999999999999999999"),
            Visible::FirstIsWrong(wrong("99999999999999999999", "out of range"))
        );
        assert_eq!(of("GPU-ffff"), Visible::FirstIsWrong(wrong("GPU-ffff", "no device has this UUID")));
        assert_eq!(of("MIG-ffff"), Visible::FirstIsWrong(wrong("MIG-ffff", "no MIG instance has this UUID")));
        assert_eq!(of("0,5,1"), Visible::CutAt { seen: 1, wrong: wrong("5", "out of range") });
        assert_eq!(of("0,0"), Visible::FirstIsWrong(wrong("0", "named twice")));
        assert_eq!(
            of("MIG-cccc3333-0000,MIG-dddd4444-0000"),
            Visible::CutAt {
                seen: 1,
                wrong: wrong("MIG-dddd4444-0000", "a process can use one MIG instance only")
            }
        );
        assert_eq!(read(Some("7"), None), Visible::Some(1), "not known");
    }
}
