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
        Who::this_process().store(slot, Hold::Mapping, 0);
        add(&other, &other.me, 600, false).unwrap();
        true
    };
    assert!(
        reap_dead(&judge, &judge.me, &mut taken_over),
        "somebody else has the slot: that is worth another look"
    );
    assert_eq!(charged(&other), 600);
    assert_eq!(add(&judge, &judge.me, 401, false), Err(protocol::Not::Over(600)));
    // And where nobody came between, it goes.
    assert!(reap_dead(&judge, &judge.me, &mut |_| true));
    assert_eq!((charged(&other), add(&judge, &judge.me, 1000, false)), (0, Ok(1000)));
}

/// Whoever claims a slot has its lock, looks alive, and may be stopped before he took the dead owner's charges away.
#[test]
fn a_claimer_is_not_taken_for_the_dead_one() {
    let dir = Dir::new("claimer");
    let judging = Ledger::join(&dir.0, Vec::new).unwrap();
    let (judge, _) = judging.enter(&key(), 1000).unwrap();
    let (other, _) = Ledger::join(&dir.0, Vec::new).unwrap().enter(&key(), 1000).unwrap();
    add(&other, &other.me, 600, false).unwrap();
    let mut lives = judge.judge();
    assert!(!lives(other.me.slot) && !reap_dead(&judge, &judge.me, &mut lives));
    judging.map.slot(other.me.slot).unwrap().generation.fetch_or(1, Ordering::Relaxed);
    assert!(!lives(other.me.slot), "it has the lock");
    let shown = judge.holders().into_iter().find(|holder| holder.slot == other.me.slot).unwrap();
    assert_eq!((shown.who, shown.bytes), (None, 0));
    assert!(reap_dead(&judge, &judge.me, &mut lives), "nobody had them");
    assert_eq!(add(&judge, &judge.me, 1000, false), Ok(1000));
}

/// While somebody claims a slot nobody else does, and whoever stops there is in nobody's way.
#[test]
fn one_claims_at_a_time() {
    let dir = Dir::new("claims");
    let ledger = Ledger::join(&dir.0, Vec::new).unwrap();
    let open = || file::open(ledger.path(), true).unwrap().unwrap().file;
    let [one, two] = [(open(), open()), (open(), open())];
    let slot = ledger.slot + 1;
    let claim = |(file, claims): &(OwnedFd, OwnedFd)| {
        try_claim(ledger.map, file, claims, slot, &mut ledger.judge()).unwrap()
    };
    assert!(lock(&one.1, claiming(slot)).unwrap());
    assert!(!claim(&two), "it is being claimed");
    unlock(&one.1, claiming(slot));
    assert!(claim(&one));
    assert!(!claim(&two), "it is claimed");
    drop(one);
    assert!(claim(&two), "who claimed it died");
    assert!(keep_lock(two.1, ledger.map.slot(slot).unwrap(), slot, &Who::this_process()).unwrap().is_none());
    let three = (open(), open());
    assert!(!claim(&three), "it has an owner");
}
