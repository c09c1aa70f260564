//! Which processes are at work in a directory, by their record files.

use super::head::Head;
use super::identity::{Identity, running_since};
use std::path::Path;

/// Pids of those of `identity`'s boot and pid namespace that run, `identity` itself excluded.
pub fn of(directory: &Path, identity: &Identity) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir(directory.join("proc")) else { return Vec::new() };
    let mut pids: Vec<u32> = entries
        .flatten()
        .filter_map(|entry| {
            let (_, head) = Head::read(&entry.path(), false).ok()?;
            let runs = head.ended_ns == 0
                && head.is_neighbour(identity)
                && !head.is_of(identity)
                && running_since(&head.pid.to_string()) == Some(head.start_ticks());
            runs.then_some(head.pid)
        })
        .collect();
    crate::order::sort(&mut pids, |a, b| a < b);
    pids.dedup();
    pids
}

#[cfg(test)]
mod tests {
    use super::super::identity::start_ticks;
    use super::*;
    use crate::record::writer::Writer;

    #[test]
    fn those_who_run() {
        let dir = std::env::temp_dir().join(format!("cuwarden-users-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let me = Identity::of_this_process();
        let parent =
            Identity { pid: me.ppid, start_ticks: start_ticks(&me.ppid.to_string()).unwrap(), ..me.clone() };
        let gone = Identity { start_ticks: parent.start_ticks + 1, ..parent.clone() };
        let elsewhere = Identity { pid_namespace: 1, ..parent.clone() };
        for identity in [&me, &gone, &elsewhere] {
            Writer::create(&dir, identity).unwrap();
        }
        assert!(of(&dir, &me).is_empty());
        let writer = Writer::create(&dir, &parent).unwrap();
        assert_eq!(of(&dir, &me), [me.ppid]);
        writer.mark_ended(1);
        assert!(of(&dir, &me).is_empty());
        std::fs::remove_dir_all(dir).unwrap();
    }
}
