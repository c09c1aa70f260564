//! The kernel's dmem controller. Its limit is kept by the kernel, and is stronger than any of ours.

use super::model::Line;
use crate::diagnose::machine::Place;
use crate::report::size::bytes as size;

/// A limit that holds for this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dmem {
    /// As drm/0000:17:00.0/vram0.
    pub region: String,
    pub bytes: u64,
    /// Held by the whole group, where the kernel tells.
    used: Option<u64>,
    /// The file that says it.
    path: String,
}

/// Limits of this cgroup and of those above, which hold too.
pub fn look(place: &Place) -> Vec<Dmem> {
    let groups = place.text("/proc/self/cgroup").unwrap_or_default();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
    let mut found = Vec::new();
    let mut group = own.trim_end_matches('/').to_owned();
    loop {
        let path = format!("/sys/fs/cgroup{group}/dmem.max");
        let current = regions(place, &format!("/sys/fs/cgroup{group}/dmem.current"));
        for (region, bytes) in regions(place, &path) {
            let used = current.iter().find(|(known, _)| *known == region).map(|(_, bytes)| *bytes);
            found.push(Dmem { region, bytes, used, path: path.clone() });
        }
        match group.rfind('/') {
            Some(at) => group.truncate(at),
            None => return found,
        }
    }
}

/// `REGION BYTES` a line; `max` is no limit.
fn regions(place: &Place, path: &str) -> Vec<(String, u64)> {
    let text = place.text(path).unwrap_or_default();
    let pairs = text.lines().filter_map(|line| line.trim().rsplit_once(' '));
    pairs.filter_map(|(region, bytes)| Some((region.trim().to_owned(), bytes.parse().ok()?))).collect()
}

pub fn lines(place: &Place, found: &[Dmem]) -> Vec<Line> {
    if found.is_empty() {
        let has_controller =
            place.text("/sys/fs/cgroup/dmem.capacity").is_some_and(|text| !text.trim().is_empty());
        let text = "the kernel's dmem cgroup is there and sets no limit";
        return has_controller.then(|| Line::ok("dmem", text)).into_iter().collect();
    }
    let line = |one: &Dmem| {
        let used = one.used.map(|used| format!(", {} used", size(used))).unwrap_or_default();
        let (limit, Dmem { region, path, .. }) = (size(one.bytes), one);
        Line::ok(
            "dmem",
            format!(
                "the kernel holds this cgroup to {limit} of {region}{used} ({path}); that is stronger than a quota of cuwarden"
            ),
        )
    };
    found.iter().map(line).collect()
}
