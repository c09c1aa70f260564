use super::*;

const SHIM: &str = "/opt/libcuwarden.so";

/// The environment that a child gets, in the order of the list that it is handed over with.
fn child(at_start: &[&str], given: &[&str]) -> Vec<String> {
    let matters = |entry: &&&str| may_matter(|at| entry.as_bytes().get(at).copied().unwrap_or(0));
    let block: String = at_start.iter().filter(matters).map(|entry| format!("{entry}\0")).collect();
    let unchanged = || given.iter().map(|entry| entry.to_string()).collect();
    let Some(start) = Start::new(block.as_bytes(), SHIM.as_bytes()) else { return unchanged() };
    let mut tally = Tally::default();
    for (at, entry) in given.iter().enumerate() {
        if matters(&entry) {
            start.note(&mut tally, at, entry.as_bytes());
        }
    }
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let Some(plan) = start.plan(&tally, given.len()) else { return unchanged() };
    assert_eq!(plan.entries, given.len());
    let mut made: Vec<String> = given
        .iter()
        .enumerate()
        .filter(|(at, entry)| {
            plan.preload.and_then(|preload| preload.replaces) != Some(*at)
                && start.fate(entry.as_bytes()) != Fate::Goes
        })
        .map(|(_, entry)| entry.to_string())
        .collect();
    for number in (0..MOST_SETTINGS).filter(|number| plan.missing >> number & 1 == 1) {
        made.push(text(start.setting(number).unwrap()));
    }
    made.extend(plan.preload.map(|preload| text(&preload.parts.concat())));
    made
}

/// The LD_PRELOAD that a child gets for the one that it is given.
fn list(at_start: &str, given: &str) -> String {
    let made = child(&[&format!("LD_PRELOAD={at_start}")], &[&format!("LD_PRELOAD={given}")]);
    assert_eq!(made.len(), 1);
    made[0].strip_prefix("LD_PRELOAD=").unwrap().to_owned()
}

#[test]
fn what_is_missing_is_added() {
    let start = ["HOME=/h", "LD_PRELOAD=/opt/libcuwarden.so", "CUWARDEN_MEMORY_LIMIT=4g", "CUWARDEN_DIR=/d"];
    let all = ["CUWARDEN_MEMORY_LIMIT=4g", "CUWARDEN_DIR=/d", "LD_PRELOAD=/opt/libcuwarden.so"];
    assert_eq!(child(&start, &[]), all);
    assert_eq!(child(&start, &all), all);
    assert_eq!(child(&start, &["CUWARDEN_DIR=/d", "A=b"]), ["CUWARDEN_DIR=/d", "A=b", all[0], all[2]]);
    assert_eq!(child(&["HOME=/h"], &["A=b"]), ["A=b"], "nothing of ours at the start");
}

#[test]
fn what_the_operator_set_holds() {
    let start = ["CUWARDEN_MEMORY_LIMIT=4g", "CUWARDEN_LABELS=arm=A"];
    assert_eq!(child(&start, &["CUWARDEN_MEMORY_LIMIT=100g", start[1], "A=b"]), [start[1], "A=b", start[0]]);
    assert_eq!(
        child(&start, &["CUWARDEN_MEMORY_LIMIT=100g", start[0], start[1]]),
        start,
        "the first would count"
    );
    assert_eq!(child(&start, &["CUWARDEN_LABELS=", start[0]]), [start[0], start[1]]);
    // No variable: nobody reads it as one.
    assert_eq!(child(&start, &["CUWARDEN_MEMORY_LIMIT", start[0], start[1]]).len(), 3);
    // Of what the operator has not set, nothing that loosens the limit; the rest is the program's.
    let given = [
        "CUWARDEN_DISABLE=1",
        "CUWARDEN_DIR=/mine",
        "CUWARDEN_COUNT_CONTEXT=0",
        "CUWARDEN_FOLLOW=0",
        "CUWARDEN_BASELINE_MODE=off",
        "CUWARDEN_LOG=debug",
        "CUDA_DEVICE_MEMORY_LIMIT=100g",
        "CUDA_VISIBLE_DEVICES=1",
    ];
    assert_eq!(child(&start, &given)[..3], given[5..]);
    assert_eq!(child(&["CUWARDEN_LOG=info"], &given[..5])[..5], given[..5], "there is no limit");
    assert_eq!(
        child(&["CUWARDEN_BASELINE=12.4"], &["CUWARDEN_BASELINE_MODE=off"]),
        ["CUWARDEN_BASELINE=12.4"]
    );
}

#[test]
fn the_limit_can_be_hamis() {
    let start = ["CUDA_DEVICE_MEMORY_LIMIT_0=4g", "CUWARDEN_LOG=info"];
    assert_eq!(child(&start, &[]), start);
    let given = ["CUDA_DEVICE_MEMORY_LIMIT=9g", "CUWARDEN_MEMORY_LIMIT=9g", "CUDA_DEVICE_MEMORY_LIMIT_0=9g"];
    assert_eq!(child(&start, &given), start);
    assert_eq!(child(&start, &["CUDA_DEVICE_MEMORY_LIMITED=1"])[0], "CUDA_DEVICE_MEMORY_LIMITED=1");
    // Where ours is set, theirs says nothing.
    let both = ["CUDA_DEVICE_MEMORY_LIMIT_0=4g", "CUWARDEN_MEMORY_LIMIT=2g"];
    assert_eq!(child(&both, &[]), both[1..]);
    assert_eq!(child(&["CUWARDEN_MEMORY_LIMIT=", both[0]], &[]).len(), 2, "empty is unset");
}

#[test]
fn other_entries_of_the_preload_list_keep_their_order() {
    assert_eq!(list(SHIM, ""), SHIM);
    assert_eq!(list(SHIM, "/a.so"), format!("/a.so:{SHIM}"));
    assert_eq!(list(SHIM, "/a.so /b.so"), format!("/a.so /b.so:{SHIM}"));
    assert_eq!(list(SHIM, "/a.so:"), format!("/a.so:{SHIM}"));
    assert_eq!(list(SHIM, " : "), format!(" : {SHIM}"));
    for there in
        [format!("/a.so:{SHIM}"), format!("{SHIM} /a.so"), format!(" {SHIM}"), format!("{SHIM}:{SHIM}")]
    {
        assert_eq!(list(SHIM, &there), there, "it is there");
    }
    assert_eq!(list(SHIM, &format!("{SHIM}.old")), format!("{SHIM}.old:{SHIM}"));
}

#[test]
fn the_place_in_the_preload_list_is_that_of_the_start() {
    let start = format!("/asan.so:/a.so {SHIM} /z.so:/y.so");
    assert_eq!(list(&start, "/asan.so:/mine.so"), format!("/asan.so:{SHIM}:/mine.so"));
    assert_eq!(list(&start, "/mine.so /y.so"), format!("/mine.so {SHIM}:/y.so"));
    assert_eq!(list(&start, "/z.so:/y.so"), format!("{SHIM}:/z.so:/y.so"));
    assert_eq!(list(&start, "/z.so /a.so /q.so"), format!("/z.so /a.so:{SHIM} /q.so"));
    assert_eq!(list(&start, "/mine.so"), format!("/mine.so:{SHIM}"));
}

#[test]
fn the_shim_is_known_by_what_the_loader_found_it_by() {
    assert_eq!(list("/a.so libcuwarden.so", "/b.so"), "/b.so:libcuwarden.so");
    assert_eq!(list("/usr/$LIB/libcuwarden.so", ""), "/usr/$LIB/libcuwarden.so");
    assert_eq!(list("libcuwarden.so", SHIM), SHIM, "the same file");
    // By /etc/ld.so.preload: children get it there as well.
    assert_eq!(list("/a.so", "/b.so"), "/b.so");
    assert_eq!(child(&["LD_PRELOAD=/a.so", "CUWARDEN_DIR=/d"], &[]), ["CUWARDEN_DIR=/d"]);
    assert!(own_entry(b"/a.so:/", b"").is_empty(), "a program that it is linked into");
}

#[test]
fn of_two_lists_the_loader_takes_the_last() {
    let start = [format!("LD_PRELOAD={SHIM}")];
    let made = child(&[&start[0]], &["LD_PRELOAD=/a.so", "A=b", "LD_PRELOAD=/b.so"]);
    assert_eq!(made, ["LD_PRELOAD=/a.so", "A=b", &format!("LD_PRELOAD=/b.so:{SHIM}")]);
    let given = ["LD_PRELOAD=/a.so", start[0].as_str()];
    assert_eq!(child(&[&start[0]], &given), given);
}

#[test]
fn as_many_settings_as_there_are_bits() {
    let start: Vec<String> = (0..MOST_SETTINGS + 3).map(|number| format!("CUWARDEN_{number}=x")).collect();
    let start: Vec<&str> = start.iter().map(String::as_str).collect();
    assert_eq!(child(&start, &[]), start[..MOST_SETTINGS]);
    assert_eq!(child(&start, &start), start);
    assert_eq!(child(&start[..MOST_SETTINGS], &start[1..MOST_SETTINGS])[MOST_SETTINGS - 1], start[0]);
}

#[test]
fn who_is_not_followed() {
    let others = ["CUWARDEN_MEMORY_LIMIT=4g", "LD_PRELOAD=/opt/libcuwarden.so"];
    for off in ["CUWARDEN_FOLLOW=0", "CUWARDEN_DISABLE=1"] {
        assert_eq!(child(&[others[0], off, others[1]], &["A=b"]), ["A=b"]);
    }
    for on in ["CUWARDEN_FOLLOW=", "CUWARDEN_FOLLOW=1", "CUWARDEN_DISABLE=0"] {
        assert_eq!(child(&[others[0], on, others[1]], &[]), [others[0], on, others[1]]);
    }
    assert_eq!(child(&["CUWARDEN_X", "CUDA_HOME=/x"], &[]), [""; 0], "no settings");
}
