//! Several owners of slots in one process: what they do between two steps of each other.

use super::*;
use protocol::{add, reap_dead};

struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Dir {
        let path = std::env::temp_dir().join(format!("cuwarden-slots-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Dir(path)
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn key() -> DeviceKey {
    DeviceKey { uuid: [7; 16], total_bytes: 1 << 34, ..DeviceKey::default() }
}

fn charged(entered: &Entered) -> u64 {
    entered.mine.charged.load()[0]
}

/// Whoever was judged dead is gone when the judge acts, and another one has the slot, with bytes of its own.
#[test]
fn a_successor_is_not_taken_for_the_dead() {
    let dir = Dir::new("successor");
    let judging = Ledger::join(&dir.0, Vec::new).unwrap();
    let (judge, _) = judging.enter(&key(), 1000).unwrap();
    let (other, _) = Ledger::join(&dir.0, Vec::new).unwrap().enter(&key(), 1000).unwrap();
    add(&other, &other.me, 100, false).unwrap();
    let slot = judging.map.slot(other.me.slot).unwrap();
    let mut taken_over = |number: u16| {
        assert_eq!(number, other.me.slot);
        inherit(judging.map, number);
        Who::this_process().store(slot, 0);
        add(&other, &other.me, 600, false).unwrap();
        true
    };
    assert!(!reap_dead(&judge, &judge.me, &mut taken_over), "nothing was the dead one's any more");
    assert_eq!(charged(&other), 600);
    assert_eq!(add(&judge, &judge.me, 401, false), Err(protocol::Not::Over(600)));
    // And where nobody came between, it goes.
    assert!(reap_dead(&judge, &judge.me, &mut |_| true));
    assert_eq!((charged(&other), add(&judge, &judge.me, 1000, false)), (0, Ok(1000)));
}
