//! The table that plain `nvidia-smi` draws: its header, three lines a card, and its processes.

use super::parse::{bus_key, compute_mode, enabled, error_in, gpu_at, mebibytes, note_error, set, set_cuda};
use super::{Gpu, Process, Smi};
use crate::policy::versions::release::Release;

/// Where in the table it is.
#[derive(Default)]
pub struct Rows {
    /// The card of the lines before, and how many of its lines were read.
    card: Option<(String, u32)>,
    /// Addresses by the table's index.
    cards: Vec<(String, String)>,
    in_instances: bool,
    in_processes: bool,
}

impl Rows {
    pub fn line(&mut self, line: &str, smi: &mut Smi) {
        let cells: Vec<&str> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
        header(line, smi);
        if line.contains("Processes:") {
            self.in_processes = true;
            return;
        }
        if self.in_processes {
            self.process(&cells, smi);
            return;
        }
        if line.contains("MIG devices:") {
            self.in_instances = true;
            return;
        }
        if self.in_instances {
            self.instance(&cells, smi);
            return;
        }
        let first = cells.first().copied().unwrap_or("");
        let bus = cells.get(1).and_then(|cell| cell.split_whitespace().next());
        if let Some(bus) = bus.filter(|bus| bus_key(bus).is_some()) {
            let (index, name) = first.split_once(' ').unwrap_or((first, ""));
            self.cards.push((index.to_owned(), bus.to_owned()));
            if let Some(gpu) = gpu_at(smi, bus) {
                card_line(name.trim(), cells.get(2).copied().unwrap_or(""), gpu);
                self.card = Some((bus.to_owned(), 1));
            }
            return;
        }
        let Some((bus, lines)) = self.card.take() else { return };
        let Some(gpu) = gpu_at(smi, &bus).filter(|_| cells.len() == 3 && lines < 3) else { return };
        let right = cells.get(2).copied().unwrap_or("");
        if lines == 1 {
            usage_line(first, cells.get(1).copied().unwrap_or(""), right, gpu);
        } else {
            set(&mut gpu.mig, enabled(right.trim_end_matches('*')));
        }
        self.card = Some((bus, lines + 1));
    }

    /// `|  0    7   0   0  |   12MiB /  4864MiB | 14      0 |  1   0    0    0    0 |`
    fn instance(&self, cells: &[&str], smi: &mut Smi) {
        let numbers: Vec<&str> =
            cells.first().map_or_else(Vec::new, |cell| cell.split_whitespace().collect());
        if numbers.len() != 4 || numbers.iter().any(|word| word.parse::<u32>().is_err()) {
            return;
        }
        let bus = self.cards.iter().find(|(index, _)| numbers.first() == Some(&index.as_str()));
        if let Some(gpu) = bus.and_then(|(_, bus)| gpu_at(smi, bus)) {
            // The list counts them too, and may stand before or after.
            let seen = numbers.last().and_then(|word| word.parse::<u32>().ok()).unwrap_or(0);
            gpu.instances = gpu.instances.max(seen.saturating_add(1).min(64));
        }
    }

    /// `0   N/A  N/A      4711      C   python3      1034MiB`, and without the two columns before driver 450.
    fn process(&self, cells: &[&str], smi: &mut Smi) {
        let [cell] = cells else { return };
        let words: Vec<&str> = cell.split_whitespace().collect();
        let kind = words.iter().position(|word| matches!(*word, "C" | "G" | "C+G" | "M+C"));
        let Some(kind) = kind.filter(|kind| *kind >= 2) else { return };
        let pid = words.get(kind - 1).and_then(|word| word.parse().ok());
        let bus = self.cards.iter().find(|(index, _)| words.first() == Some(&index.as_str()));
        let (Some(pid), Some((_, bus))) = (pid, bus) else { return };
        let Some(gpu) = gpu_at(smi, bus) else { return };
        // Where the list is there too, it says more.
        if gpu.processes.iter().all(|known| known.pid != pid) && gpu.processes.len() < 4096 {
            let rest = words.get(kind + 1..).unwrap_or_default();
            let bytes = rest.last().and_then(|word| mebibytes(word));
            let name = rest.get(..rest.len().saturating_sub(1)).unwrap_or_default().join(" ");
            gpu.processes.push(Process { pid, name, bytes });
        }
    }
}

/// `| NVIDIA-SMI 535.183.01   Driver Version: 535.183.01   CUDA Version: 12.2     |`
fn header(line: &str, smi: &mut Smi) {
    if !line.contains("NVIDIA-SMI") {
        return;
    }
    let after = |words: &str| line.split_once(words).and_then(|(_, rest)| rest.split_whitespace().next());
    let driver = after("Driver Version:").or_else(|| after("KMD Version:"));
    set(&mut smi.driver, driver.and_then(Release::parse));
    if let Some(version) = after("CUDA Version:").or_else(|| after("CUDA UMD Version:")) {
        set_cuda(version, smi);
    }
}

/// Name and persistence, and the count of errors.
fn card_line(left: &str, errors: &str, gpu: &mut Gpu) {
    let (name, mode) = left.rsplit_once(' ').unwrap_or((left, ""));
    let name = name.trim();
    match error_in(name) {
        Some(error) => note_error("Name", error, gpu),
        None if !name.is_empty() => set(&mut gpu.name, Some(name.to_owned())),
        None => {}
    }
    set(&mut gpu.persistence, enabled(mode));
    if let Some(error) = error_in(errors) {
        note_error("Volatile Uncorr. ECC", error, gpu);
    }
    set(&mut gpu.uncorrected, errors.parse().ok());
}

/// Fan to power, memory, use and compute mode.
fn usage_line(left: &str, memory: &str, right: &str, gpu: &mut Gpu) {
    for word in left.split_whitespace().chain(memory.split_whitespace()).chain(right.split_whitespace()) {
        if let Some(error) = error_in(word) {
            note_error("a field of the table", error, gpu);
        }
    }
    if let Some((used, total)) = memory.split_once('/') {
        set(&mut gpu.used_bytes, mebibytes(used.trim()));
        set(&mut gpu.total_bytes, mebibytes(total.trim()));
    }
    let mode = right.split_once(' ').map_or(right, |(_, mode)| mode.trim());
    set(&mut gpu.compute_mode, compute_mode(mode));
}
