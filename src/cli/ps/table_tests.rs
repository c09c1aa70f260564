use super::*;
use std::collections::BTreeMap;

const MIB: u64 = 1 << 20;

fn process(pid: u32, exe: &str) -> Process {
    Process {
        pid: Some(pid),
        host_pid: Some(pid),
        exe: Some(exe.to_owned()),
        labels: Some(BTreeMap::new()),
        state: State::Running,
        live_bytes: Some(1536 * MIB),
        context_bytes: Some(256 * MIB),
        peak_bytes: Some(2048 * MIB),
        denied_count: Some(0),
        unaccounted_bytes: Some(0),
        started_at: None,
        is_neighbour: true,
    }
}

fn device(processes: Vec<Process>) -> Device {
    Device {
        uuid: "GPU-1".to_owned(),
        name: Some("A \u{1b}[2Jcard".to_owned()),
        total_bytes: Some(16 << 30),
        limit_bytes: Some(8 << 30),
        limit_by: Some(LimitBy::Operator),
        used_bytes: 3 << 30,
        context_cost_bytes: None,
        denied_count: Some(0),
        processes,
    }
}

fn shown(device: Device, style: &Style) -> String {
    text(&[Directory { path: "/d".to_owned(), devices: vec![device], problems: Vec::new() }], style)
}

#[test]
fn columns_are_aligned_and_what_is_not_known_is_a_dash() {
    let mut stranger = process(1, "/bin/with\nline");
    stranger.host_pid = Some(4711);
    stranger.unaccounted_bytes = Some(-(600 * MIB as i64));
    let dead = Process {
        host_pid: None,
        exe: None,
        labels: None,
        state: State::Dead,
        context_bytes: None,
        peak_bytes: None,
        denied_count: None,
        unaccounted_bytes: None,
        ..process(123, "")
    };
    let out = shown(device(vec![process(42, "/usr/bin/app"), stranger, dead]), &Style::PLAIN);
    let expected = "\
/d

GPU-1  A \\u{1b}[2Jcard
  used 3.00 GiB of 8.00 GiB, set by the operator; 5.00 GiB free
  contexts take 512 MiB of that

  PID  HOST PID  PROGRAM        STATE        LIVE  CONTEXTS      PEAK  DENIED  UNACCOUNTED
   42        42  app            running  1.50 GiB   256 MiB  2.00 GiB       0            0
    1      4711  with\\u{a}line  running  1.50 GiB   256 MiB  2.00 GiB       0     -600 MiB
  123         -  -              dead     1.50 GiB         -         -       -            -

";
    assert_eq!(out.split_inclusive("UNACCOUNTED is").next().unwrap(), format!("{expected}UNACCOUNTED is"));
}

#[test]
fn a_window_of_eighty_columns() {
    let mut wide = process(4_194_303, "/opt/a-program-with-a-rather-long-name");
    wide.labels = Some(BTreeMap::from([("arm".to_owned(), "A".to_owned()), ("x".repeat(90), String::new())]));
    wide.live_bytes = Some(u64::MAX);
    let style = Style { colour: false, width: 100 };
    let out = shown(device(vec![wide, process(1, "x")]), &style);
    let longest = out.lines().map(|line| line.chars().count()).max().unwrap();
    assert!(longest <= 120, "{longest}\n{out}");
    assert!(out.contains("a-pro") && out.contains('…') && out.contains("arm=A,xxx"), "{out}");
    let narrow = Style { colour: false, width: 80 };
    let mut labelled = process(4_194_303, "/opt/a-program-with-a-rather-long-name");
    labelled.labels = Some(BTreeMap::from([("arm".to_owned(), "x".repeat(90))]));
    let out = shown(device(vec![labelled, process(1, "/bin/x")]), &narrow);
    let longest = out.lines().map(|line| line.chars().count()).max().unwrap();
    assert!(longest <= 80, "{longest}\n{out}");
    let rows: Vec<&str> = out.lines().skip_while(|line| !line.contains("PROGRAM")).collect();
    assert_eq!(rows.len(), 4, "{out}");
    assert!(rows[2].trim_start().starts_with("arm=xxx") && !rows[0].contains("LABELS"), "{out}");
    assert_eq!(rows[2].find("arm"), rows[0].find("PROGRAM"), "{out}");
}

#[test]
fn the_line_of_a_device() {
    let usage = |limit, used, by| {
        let device =
            Device { limit_bytes: limit, used_bytes: used, limit_by: Some(by), ..device(Vec::new()) };
        super::usage(&device, &Style::PLAIN)
    };
    let environment = LimitBy::Environment;
    assert_eq!(usage(Some(2 * MIB), MIB, environment), "used 1.00 MiB of 2.00 MiB; 1.00 MiB free");
    assert_eq!(usage(Some(2 * MIB), 3 * MIB, environment), "used 3.00 MiB of 2.00 MiB; 1.00 MiB over it");
    assert_eq!(usage(Some(0), MIB, LimitBy::None), "used 1.00 MiB, no limit");
    assert_eq!(usage(Some(0), MIB, LimitBy::Operator), "used 1.00 MiB, no limit, set by the operator");
    assert_eq!(usage(None, MIB, environment), "used 1.00 MiB; the limit is not known");
    assert_eq!(usage(Some(2 * MIB), 2 * MIB, environment), "used 2.00 MiB of 2.00 MiB; 0 bytes free");
    // More than the device has is not free.
    assert_eq!(usage(Some(64 << 30), 32 << 30, environment), "used 32.0 GiB of 64.0 GiB; 0 bytes free");
    assert_eq!(usage(Some(64 << 30), 1 << 30, environment), "used 1.00 GiB of 64.0 GiB; 15.0 GiB free");
}

#[test]
fn nobody_is_said_and_nothing_is_silent() {
    assert_eq!(text(&[], &Style::PLAIN), "");
    assert!(shown(device(Vec::new()), &Style::PLAIN).contains("Nobody holds anything."));
}
