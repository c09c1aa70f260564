use super::*;

const fn v(major: u32, minor: u32) -> CudaVersion {
    CudaVersion::new(major, minor)
}

fn versions(driver: CudaVersion, runtime: CudaVersion) -> Versions {
    Versions { driver, runtime: Some(runtime), baseline: None, is_exempt: false, strict: false }
}

fn broken(versions: &Versions) -> Vec<&'static str> {
    judge(versions).iter().map(|finding| finding.rule.id()).collect()
}

#[test]
fn versions_are_read_exactly() {
    for (text, version) in
        [("12.4", v(12, 4)), ("12040", v(12, 4)), ("11.0", v(11, 0)), ("9020", v(9, 2)), ("13.10", v(13, 10))]
    {
        assert_eq!(CudaVersion::parse(text), Some(version), "{text}");
    }
    for text in [
        "",
        "12",
        "12.",
        ".4",
        "12.4.1",
        "v12.4",
        "12.4 ",
        " 12.4",
        "+12.4",
        "-12.4",
        "12,4",
        "012.4",
        "0.4",
        "120",
        "120400",
        "12.400",
        "12.x",
        "१२.४",
        "999.1",
        "0000",
    ] {
        assert_eq!(CudaVersion::parse(text), None, "{text:?}");
    }
    for version in [v(11, 0), v(12, 4), v(13, 10)] {
        assert_eq!(CudaVersion::from_number(version.number()), Some(version));
        assert_eq!(CudaVersion::parse(&version.to_string()), Some(version));
    }
    assert_eq!(CudaVersion::from_number(0), None);
    assert_eq!(CudaVersion::from_number(u32::MAX), None);
    assert_eq!(CudaVersion::new(u32::MAX, u32::MAX).number(), u32::MAX);
    assert!(v(12, 10) > v(12, 9) && v(13, 0) > v(12, 99));
}

#[test]
fn the_plain_rules() {
    for (driver, runtime, rules) in [
        (v(12, 2), v(12, 2), vec![]),
        (v(12, 2), v(12, 1), vec![]),
        (v(12, 2), v(11, 8), vec![]),
        (v(12, 2), v(12, 3), vec!["runtime-minor"]),
        (v(12, 2), v(12, 9), vec!["runtime-minor"]),
        (v(12, 9), v(13, 0), vec!["runtime-major"]),
        (v(12, 2), v(13, 5), vec!["runtime-major"]),
        (v(13, 0), v(12, 9), vec![]),
        (v(13, 0), v(11, 8), vec!["major-gap"]),
        (v(14, 0), v(11, 0), vec!["major-gap"]),
        (v(13, 0), v(13, 10), vec!["runtime-minor"]),
    ] {
        assert_eq!(broken(&versions(driver, runtime)), rules, "driver {driver}, runtime {runtime}");
    }
}

#[test]
fn strict_blocks_a_newer_minor_and_nothing_else() {
    let of = |driver, runtime, strict| verdict(&judge(&Versions { strict, ..versions(driver, runtime) }));
    assert_eq!(
        (of(v(12, 2), v(12, 9), false), of(v(12, 2), v(12, 9), true)),
        (Outcome::Warning, Outcome::Blocked)
    );
    assert_eq!(
        (of(v(13, 0), v(11, 8), false), of(v(13, 0), v(11, 8), true)),
        (Outcome::Warning, Outcome::Warning)
    );
    assert_eq!(
        (of(v(12, 2), v(13, 0), false), of(v(12, 2), v(12, 2), true)),
        (Outcome::Blocked, Outcome::Fine)
    );
}

#[test]
fn the_rules_of_a_baseline() {
    let with = |driver, runtime, is_exempt| {
        broken(&Versions { baseline: Some(v(12, 4)), is_exempt, ..versions(driver, runtime) })
    };
    assert_eq!(with(v(12, 4), v(12, 4), false), [""; 0]);
    assert_eq!(with(v(12, 9), v(12, 4), false), [""; 0], "a newer driver of the same major");
    assert_eq!(with(v(12, 2), v(12, 1), false), [""; 0], "an older driver, not older than the runtime");
    assert_eq!(with(v(12, 2), v(12, 4), false), ["baseline-driver"]);
    assert_eq!(with(v(12, 9), v(12, 8), false), ["baseline-runtime"]);
    assert_eq!(with(v(12, 2), v(12, 8), false), ["baseline-driver", "baseline-runtime"]);
    assert_eq!(with(v(13, 0), v(12, 4), false), ["baseline-driver-major"]);
    assert_eq!(with(v(13, 0), v(13, 0), false), ["baseline-runtime", "baseline-driver-major"]);
    assert_eq!(with(v(12, 4), v(13, 0), false), ["runtime-major", "baseline-runtime"]);
    assert_eq!(with(v(12, 4), v(11, 8), false), ["baseline-runtime-major"]);
    assert_eq!(with(v(12, 4), v(11, 8), true), ["baseline-exception"]);
    assert_eq!(with(v(13, 0), v(11, 8), true), ["baseline-driver-major", "baseline-exception", "major-gap"]);
    // An exception is about a major below the baseline's and lifts nothing else.
    assert_eq!(with(v(12, 9), v(12, 8), true), ["baseline-runtime"]);
}

#[test]
fn a_program_without_a_runtime_needs_the_baselines_driver() {
    let of = |driver, baseline| broken(&Versions { runtime: None, baseline, ..versions(driver, v(1, 0)) });
    assert_eq!(of(v(13, 0), None), [""; 0]);
    assert_eq!(of(v(12, 2), Some(v(12, 4))), [""; 0]);
    assert_eq!(of(v(13, 0), Some(v(12, 4))), ["baseline-driver-major"]);
}

/// The rules as the operator's agreement has them, word for word, against the table, for every combination.
#[test]
fn the_table_says_what_the_agreement_says() {
    let some = [v(11, 0), v(11, 8), v(12, 0), v(12, 2), v(12, 4), v(12, 9), v(13, 0), v(13, 5), v(14, 0)];
    for driver in some {
        for runtime in some {
            for strict in [false, true] {
                let plain = if runtime.major > driver.major
                    || strict && runtime.major == driver.major && runtime.minor > driver.minor
                {
                    Outcome::Blocked
                } else if runtime.major == driver.major && runtime.minor > driver.minor
                    || driver.major.saturating_sub(runtime.major) > 1
                {
                    Outcome::Warning
                } else {
                    Outcome::Fine
                };
                let of = Versions { strict, ..versions(driver, runtime) };
                assert_eq!(verdict(&judge(&of)), plain, "{of:?}");
                for baseline in some {
                    for is_exempt in [false, true] {
                        let majors = runtime.major == driver.major && driver.major == baseline.major;
                        let excepted =
                            is_exempt && runtime.major < baseline.major && driver.major == baseline.major;
                        let agreed = driver >= runtime && baseline >= runtime && (majors || excepted);
                        let of = Versions { baseline: Some(baseline), is_exempt, ..of };
                        let found = verdict(&judge(&of));
                        assert_eq!(found == Outcome::Blocked, !agreed, "{of:?}");
                        assert!(!(agreed && excepted) || found == Outcome::Warning, "{of:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn every_finding_names_what_it_is_about_and_a_way_out() {
    let all = [
        versions(v(12, 2), v(13, 5)),
        versions(v(12, 2), v(12, 9)),
        versions(v(13, 0), v(11, 8)),
        Versions { baseline: Some(v(12, 4)), ..versions(v(12, 2), v(12, 8)) },
        Versions { baseline: Some(v(12, 4)), ..versions(v(13, 0), v(11, 8)) },
        Versions { baseline: Some(v(12, 4)), is_exempt: true, ..versions(v(12, 4), v(11, 8)) },
    ];
    let findings: Vec<Finding> = all.iter().flat_map(judge).collect();
    for text in &TABLE {
        let found = findings.iter().find(|finding| finding.rule == text.rule);
        let found = found.unwrap_or_else(|| panic!("no example of {}", text.id));
        assert!(found.reason.ends_with('.') && found.action.ends_with('.'), "{found:?}");
        let names = [text.reason, text.action].concat();
        let known = [
            "runtime",
            "driver",
            "baseline",
            "lower",
            "runtime major",
            "driver major",
            "baseline major",
            "gap",
        ];
        let mut used = names.split('{').skip(1).filter_map(|part| part.split('}').next());
        assert!(used.all(|name| known.contains(&name)), "{names}");
        assert!(![&found.reason, &found.action].iter().any(|text| text.contains(['{', '}'])), "{found:?}");
    }
    assert!(findings[0].reason.contains("13.5") && findings[0].reason.contains("12.2"));
    assert_eq!(
        findings[1].action,
        "If the program loads PTX, or a call fails with cudaErrorCallRequiresNewerDriver (36), update the driver to CUDA 12.9, or use a build for CUDA 12.2 or older."
    );
    let ids: std::collections::HashSet<_> = TABLE.iter().map(|text| text.rule.id()).collect();
    assert_eq!(ids.len(), TABLE.len());
}

#[test]
fn the_kernel_modules_release_is_found() {
    let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 19:39:15 UTC 2024\nGCC version:  gcc 12.2.0\n";
    assert_eq!(kernel_module(closed), Some("535.183.01"));
    let open =
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (root@host)\n";
    assert_eq!(kernel_module(open), Some("580.65.06"));
    assert_eq!(kernel_module("NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.26"), Some("570.26"));
    for text in ["", "\n535.1", "NVRM version: none", "535", "535.", "1.2.3", "535.1.2.3", "gcc 12.2.0"] {
        assert_eq!(kernel_module(text), None, "{text:?}");
    }
}
