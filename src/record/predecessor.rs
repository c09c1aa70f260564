//! The record files that this process left behind when it exec'd.
//!
//! The kernel keeps pid and start time across execve, so such a file would look like that of a running process
//! for as long as the new program runs.

use super::head::Head;
use super::identity::Identity;
use super::layout::Header;
use std::io;
use std::mem::offset_of;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Marks them ended. `own` is this program's file. What cannot be read or written is left as it is: it is at most
/// shown for too long.
pub fn mark_ended(own: &Path, identity: &Identity) {
    let Some(folder) = own.parent() else { return };
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let prefix = format!("{}-", identity.pid);
    for entry in entries.flatten() {
        let path = entry.path();
        if path != own && entry.file_name().to_string_lossy().starts_with(&prefix) {
            let _ = mark_if_ours(&path, identity);
        }
    }
}

fn mark_if_ours(path: &Path, identity: &Identity) -> io::Result<()> {
    let (file, head) = Head::read(path, true)?;
    if head.is_of(identity) && head.ended_ns == 0 {
        file.write_all_at(&identity.started_ns.to_le_bytes(), offset_of!(Header, ended_ns) as u64)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::writer::Writer;
    use std::sync::atomic::Ordering;

    #[test]
    fn only_files_of_this_very_process_are_ended() {
        let dir = std::env::temp_dir().join(format!("cuwarden-predecessor-{}", std::process::id()));
        std::fs::create_dir(&dir).unwrap();
        let me = Identity::of_this_process();
        let before_exec = Writer::create(&dir, &me).unwrap();
        let reused_pid = Identity { start_ticks: me.start_ticks + 1, ..me.clone() };
        let other = Writer::create(&dir, &reused_pid).unwrap();
        let now = Writer::create(&dir, &me).unwrap();
        std::fs::write(dir.join(format!("proc/{}-cut.rec", me.pid)), b"cuwarden").unwrap();
        mark_ended(now.path(), &me);
        let ended = |writer: &Writer| writer.header().ended_ns.load(Ordering::Relaxed) != 0;
        assert_eq!((ended(&before_exec), ended(&other), ended(&now)), (true, false, false));
        std::fs::remove_dir_all(dir).unwrap();
    }
}
