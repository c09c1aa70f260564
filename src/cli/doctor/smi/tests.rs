use super::super::model::{Line, Verdict, overall};
use super::*;

/// Four generations, in the form that each prints.
const V100_450: &str = include_str!("testdata/450.txt");
const A100_535: &str = include_str!("testdata/535.txt");
const H100_550: &str = include_str!("testdata/550.txt");
const B200_580: &str = include_str!("testdata/580.txt");
const TABLE_550: &str = include_str!("testdata/550-table.txt");

fn lines(text: &str) -> Vec<Line> {
    judge(&parse(text.as_bytes()))
}

#[track_caller]
fn says(lines: &[Line], check: &str, verdict: Verdict, words: &str) {
    let found = lines.iter().any(|l| l.check == check && l.verdict == verdict && l.evidence.contains(words));
    assert!(found, "{check}: {lines:#?}");
}

#[track_caller]
fn is_silent(lines: &[Line], check: &str) {
    assert!(lines.iter().all(|line| line.check != check), "{check}: {lines:#?}");
}

#[test]
fn driver_450() {
    let smi = parse(V100_450.as_bytes());
    assert_eq!((smi.driver.clone(), smi.cuda), (Release::parse("450.80.02"), Some(CudaVersion::new(11, 0))));
    let gpu = &smi.gpus[0];
    assert_eq!(gpu.name.as_deref(), Some("Tesla V100-SXM2-16GB"));
    assert_eq!((gpu.compute_mode, gpu.mig, gpu.persistence), (Some(3), None, Some(false)));
    assert_eq!((gpu.total_bytes, gpu.free_bytes), (Some(16160 << 20), Some(15000 << 20)));
    assert_eq!((gpu.uncorrected, gpu.retired_pages, gpu.is_repair_pending), (Some(2), Some(3), Some(true)));
    assert_eq!(gpu.throttled_by, ["HW Slowdown", "HW Thermal Slowdown"]);
    let process = Process { pid: 4711, name: "python3".to_owned(), bytes: Some(1160 << 20) };
    assert_eq!(gpu.processes, [process]);
    let lines = lines(V100_450);
    says(&lines, "exclusive_mode", Verdict::Failed, "pid 4711 has it");
    says(&lines, "ecc", Verdict::Warning, "2 memory errors");
    says(&lines, "memory_repair", Verdict::Warning, "next reset");
    says(&lines, "throttled", Verdict::Warning, "HW Thermal Slowdown");
    says(&lines, "runtime", Verdict::Ok, "up to CUDA 11.0");
}

#[test]
fn driver_535_with_instances() {
    let smi = parse(A100_535.as_bytes());
    let [first, second] = &smi.gpus[..] else { panic!("{smi:#?}") };
    assert_eq!((first.mig, first.instances, second.mig, second.instances), (Some(true), 2, Some(true), 0));
    // The card's own, and not that of an instance.
    assert_eq!((first.total_bytes, first.uncorrected), (Some(40960 << 20), Some(0)));
    assert_eq!((first.remapped_rows, first.has_remapping_failed), (Some(1), Some(false)));
    let lines = lines(A100_535);
    says(&lines, "nvidia_smi", Verdict::Ok, "driver 535.183.01, CUDA 12.2; devices: NVIDIA A100-SXM4-40GB, ");
    says(&lines, "gpu", Verdict::Ok, "MIG on, 2 instances");
    says(&lines, "mig_without_instance", Verdict::Failed, "device 1");
    says(&lines, "runtime", Verdict::Ok, "CUDA 13.x needs driver 580.65.06");
    is_silent(&lines, "memory_repair");
    is_silent(&lines, "driver_library");
}

#[test]
fn driver_550_with_a_lost_card() {
    let smi = parse(H100_550.as_bytes());
    assert_eq!(smi.gpus.len(), 2);
    let lines = lines(H100_550);
    says(&lines, "gpu_lost", Verdict::Failed, "device 1 (00000000:65:00.0): \"GPU is lost\"");
    says(&lines, "memory_repair", Verdict::Failed, "device 0");
    says(&lines, "fabric_manager", Verdict::Failed, "In Progress");
    // A compat library.
    says(&lines, "driver_library", Verdict::Warning, "is of CUDA 12.4, and nvidia-smi shows CUDA 12.8");
}

#[test]
fn driver_580_with_nothing_wrong() {
    let lines = lines(B200_580);
    assert_eq!(overall(&lines), Verdict::Ok, "{lines:#?}");
    says(&lines, "gpu", Verdict::Ok, "NVIDIA B200, GPU-");
    says(&lines, "gpu", Verdict::Ok, "persistence on");
    assert!(lines.iter().all(|line| line.action.is_empty()));
}

#[test]
fn recovery_licence_and_memory() {
    let with = |from: &str, to: &str| {
        let text = B200_580.replace(from, to);
        assert_ne!(text, B200_580, "{from}");
        lines(&text)
    };
    let end = |key: &str, value: &str| format!("{key:<55}: {value}\n");
    let changed = |key: &str, old: &str, new: &str| with(&end(key, old), &end(key, new));
    says(&changed("    GPU Recovery Action", "None", "Reset"), "gpu_recovery", Verdict::Failed, "Reset");
    says(&changed("        Free", "182141 MiB", "300 MiB"), "memory_full", Verdict::Warning, "300 MiB");
    says(
        &changed("        License Status", "N/A", "Unlicensed (Unrestricted)"),
        "vgpu_unlicensed",
        Verdict::Warning,
        "",
    );
    says(
        &changed("    Compute Mode", "Default", "Prohibited"),
        "exclusive_mode",
        Verdict::Failed,
        "prohibited",
    );
    let none = changed("CUDA Version", "13.0", "Not Found");
    says(&none, "driver_library", Verdict::Warning, "no libcuda.so.1");
    says(&none, "runtime", Verdict::Ok, "up to CUDA 13.0");
    says(&changed("Attached GPUs", "1", "8"), "nvidia_smi", Verdict::Unknown, "8 are attached");
}

#[test]
fn the_table_alone() {
    let smi = parse(TABLE_550.as_bytes());
    assert_eq!((smi.driver.clone(), smi.cuda), (Release::parse("550.90.07"), Some(CudaVersion::new(12, 4))));
    let [first, second] = &smi.gpus[..] else { panic!("{smi:#?}") };
    assert_eq!((first.name.as_deref(), first.persistence), (Some("NVIDIA A100-SXM4-80GB"), Some(true)));
    assert_eq!((first.compute_mode, first.mig, first.instances), (Some(0), Some(true), 2));
    assert_eq!((first.used_bytes, first.total_bytes), (Some(87 << 20), Some(81920 << 20)));
    assert_eq!((second.compute_mode, second.mig, second.uncorrected), (Some(3), Some(false), None));
    assert_eq!(
        second.processes,
        [Process { pid: 31337, name: "/usr/bin/python3".into(), bytes: Some(1042 << 20) }]
    );
    let lines = lines(TABLE_550);
    says(&lines, "exclusive_mode", Verdict::Failed, "pid 31337");
    says(&lines, "gpu_error", Verdict::Failed, "\"ERR!\" stands in the place of 4 fields");
    // Both in one text are the same cards.
    let both = parse(
        format!("{TABLE_550}\n{}", B200_580.replace("00000000:1B:00.0", "00000000:07:00.0")).as_bytes(),
    );
    assert_eq!((both.gpus.len(), both.gpus[0].name.as_deref()), (2, Some("NVIDIA A100-SXM4-80GB")));
    assert!(both.gpus[0].uuid.is_some());
    let header = TABLE_550.lines().take(4).collect::<Vec<_>>().join("\n");
    says(&judge(&parse(header.as_bytes())), "nvidia_smi", Verdict::Unknown, "none are described");
}

#[test]
fn words_in_the_place_of_an_answer() {
    for (text, check) in [
        (
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.183",
            "version_mismatch",
        ),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure",
            "kernel_module_missing",
        ),
        (
            "NVIDIA-SMI has failed because it couldn\u{2019}t communicate with the NVIDIA driver.",
            "kernel_module_missing",
        ),
        ("Failed to initialize NVML: Driver Not Loaded", "kernel_module_missing"),
        ("Failed to initialize NVML: Insufficient Permissions", "no_permission"),
        ("Failed to initialize NVML: GPU access blocked by the operating system", "blocked_by_system"),
        ("Failed to initialize NVML: Unknown Error", "nvml"),
        ("No devices were found", "no_devices"),
        ("Unable to determine the device handle for GPU3: 0000:5F:00.0: Unknown Error", "gpu_lost"),
        (
            "Unable to determine the device handle for GPU 0000:01:00.0: GPU is lost.  Reboot the system",
            "gpu_lost",
        ),
    ] {
        let lines = lines(text);
        says(&lines, check, Verdict::Failed, &text[..20]);
        assert_eq!((overall(&lines), lines.len()), (Verdict::Failed, 1), "{text}: {lines:#?}");
    }
    says(&lines("bash: nvidia-smi: command not found"), "nvidia_smi", Verdict::Unknown, "command not found");
    for text in ["", "hello\n", "\0\0\0", "|||||\n: : :\n::\n"] {
        says(&lines(text), "nvidia_smi", Verdict::Unknown, "no driver version");
    }
    says(
        &lines(&format!("WARNING: infoROM is corrupted at gpu 0000:1B:00.0\n{B200_580}")),
        "inforom",
        Verdict::Warning,
        "",
    );
}

#[test]
fn other_line_ends_encodings_and_marks_of_quotation() {
    let plain = parse(A100_535.as_bytes());
    let same = |bytes: Vec<u8>| assert_eq!(parse(&bytes), plain);
    same(A100_535.replace('\n', "\r\n").into_bytes());
    same(A100_535.lines().map(|line| format!("> {line}\n")).collect::<String>().into_bytes());
    same([b"\xef\xbb\xbf", A100_535.as_bytes()].concat());
    same([vec![0xff, 0xfe], A100_535.encode_utf16().flat_map(u16::to_le_bytes).collect()].concat());
    same([vec![0xfe, 0xff], A100_535.encode_utf16().flat_map(u16::to_be_bytes).collect()].concat());
    // A locale that names the time otherwise, in an old encoding.
    let mut bytes = A100_535.as_bytes().to_vec();
    let at = A100_535.find("Tue Mar").unwrap();
    bytes.splice(at..at + 3, *b"D\xe9i");
    same(bytes);
}

#[test]
fn any_cut_and_any_byte_changed() {
    for text in [V100_450, A100_535, H100_550, TABLE_550] {
        let bytes = text.as_bytes();
        for end in (0..bytes.len()).step_by(3) {
            let smi = parse(&bytes[..end]);
            // A card is never made up.
            assert!(smi.gpus.len() <= 2);
        }
        for at in (0..bytes.len()).step_by(7) {
            let mut other = bytes.to_vec();
            other[at] ^= 0x95;
            let _ = judge(&parse(&other));
        }
    }
    let many: String = (0..5000).map(|n| format!("GPU {n:08x}:01:00.0\n    Product Name : x\n")).collect();
    assert!(parse(many.as_bytes()).gpus.len() <= 256);
}
