//! What the driver says beyond the books.

use std::collections::HashMap;

use super::model::{Device, State};
use crate::policy::reconcile::unaccounted;

/// Fills in what of a device is unaccounted for. `list`: NVML's, bytes by its numbers for processes.
/// `is_whole_machine`: those numbers are the ones of this pid namespace.
pub fn fill(device: &mut Device, list: &[(u32, u64)], is_whole_machine: bool) {
    let mut figures: HashMap<u32, u64> = HashMap::new();
    for (pid, bytes) in list {
        let sum = figures.entry(*pid).or_default();
        *sum = sum.saturating_add(*bytes);
    }
    // In a container NVML may give the numbers of the host, which mean nobody or others here. That all of ours are
    // there by their own numbers is no chance.
    let is_in = |pid: Option<u32>| pid.is_some_and(|pid| figures.contains_key(&pid));
    let mut ours = device.processes.iter().filter(|p| p.state != State::Dead && p.is_neighbour).peekable();
    if !is_whole_machine && (ours.peek().is_none() || !ours.all(|p| is_in(p.host_pid))) {
        return;
    }
    for process in device.processes.iter_mut().filter(|p| p.state != State::Dead) {
        let figure = process.host_pid.and_then(|pid| figures.get(&pid));
        let (Some(nvml), Some(live), Some(contexts)) = (figure, process.live_bytes, process.context_bytes)
        else {
            continue;
        };
        let charged = live.saturating_add(contexts);
        process.unaccounted_bytes = Some(unaccounted(*nvml, charged, device.context_cost_bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::ps::model::Process;

    const MIB: u64 = 1 << 20;

    fn process(host_pid: Option<u32>, is_neighbour: bool, state: State) -> Process {
        Process {
            pid: Some(1),
            host_pid,
            exe: None,
            labels: None,
            state,
            live_bytes: Some(100 * MIB),
            context_bytes: Some(200 * MIB),
            peak_bytes: None,
            denied_count: None,
            unaccounted_bytes: None,
            started_at: None,
            is_neighbour,
        }
    }

    fn filled(processes: Vec<Process>, list: &[(u32, u64)], is_whole_machine: bool) -> Vec<Option<i64>> {
        let mut device = Device {
            uuid: String::new(),
            name: None,
            total_bytes: None,
            limit_bytes: None,
            limit_by: None,
            used_bytes: 0,
            context_cost_bytes: Some(200 * MIB),
            denied_count: None,
            processes,
        };
        fill(&mut device, list, is_whole_machine);
        device.processes.iter().map(|p| p.unaccounted_bytes.map(|bytes| bytes / MIB as i64)).collect()
    }

    #[test]
    fn by_the_hosts_numbers_and_only_where_they_are_the_drivers() {
        let list = [(7, 300 * MIB), (8, 600 * MIB), (8, 300 * MIB)];
        let all = || {
            vec![
                process(Some(7), true, State::Running),
                process(Some(8), false, State::Stopped),
                process(Some(9), false, State::Running),
                process(None, false, State::OtherNamespace),
                process(None, true, State::Dead),
            ]
        };
        let known = vec![Some(0), Some(600), None, None, None];
        assert_eq!(filled(all(), &list, true), known);
        assert_eq!(filled(all(), &list, false), known, "all of ours are there");
        let mut more = all();
        more.push(process(Some(10), true, State::Running));
        assert_eq!(filled(more, &list, false), [None; 6], "one of ours is not");
        let none_of_ours = vec![process(Some(8), false, State::Running)];
        assert_eq!(filled(none_of_ours, &list, false), [None], "nothing shows whose numbers they are");
    }
}
