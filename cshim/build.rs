//! The link recipe of `libcuwarden.so`: exact exports, nothing but libc needed, no symbol newer than glibc 2.17.
//!
//! Each linker argument below says why it is there; `tests/elf_surface.rs` checks the result.

#[path = "link/stubs.rs"]
mod stubs;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            println!("cargo::error={}", message.replace('\n', " "));
            ExitCode::SUCCESS // Cargo reports the error above; a failed script would bury it in its output.
        }
    }
}

fn run() -> Result<(), String> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=exports.map");
    println!("cargo::rerun-if-changed=c");
    println!("cargo::rerun-if-changed=link");

    let (arch, os, abi) =
        (var("CARGO_CFG_TARGET_ARCH")?, var("CARGO_CFG_TARGET_OS")?, var("CARGO_CFG_TARGET_ENV")?);
    if (arch.as_str(), os.as_str(), abi.as_str()) != ("x86_64", "linux", "gnu") {
        return Err(format!(
            "libcuwarden.so is built for x86_64-unknown-linux-gnu only, not for {arch} {os} {abi}: \
             its entries are assembly and its stand-in for glibc 2.17 is that of x86-64"
        ));
    }

    let root = PathBuf::from(var("CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(var("OUT_DIR")?);
    let linker = Lld::find(&var("TARGET")?)?;
    let compiler = cc::Build::new().try_get_compiler().map_err(|e| format!("no C compiler: {e}"))?;

    let stubs = out.join("glibc-2.17");
    stubs::write(&compiler, linker.args(), &stubs)?;

    cc::Build::new()
        .file(root.join("c/compat.c"))
        .file(root.join("c/late.S"))
        .flag("-fno-lto") // The linker resolves these names by hand; LTO would see too late that they are used.
        .flag("-fvisibility=hidden")
        .flag_if_supported("-fcf-protection=branch")
        .warnings(true)
        .pic(true)
        .cargo_metadata(false) // Passed below, to the library only.
        .try_compile("cuwarden_compat")
        .map_err(|e| format!("c/compat.c, c/late.S: {e}"))?;

    // Only arguments for the library itself: a `rustc-link-search` would also enter LD_LIBRARY_PATH under `cargo test`.
    for argument in linker.args() {
        link_arg(argument);
    }
    link_arg(&format!("-L{}", stubs.display()));
    link_arg(&out.join("libcuwarden_compat.a").display().to_string());
    for argument in [
        "-Wl,--wrap=_dl_find_object",
        // Without a soname the path of the build becomes the name of the base version.
        "-Wl,-soname,libcuwarden.so",
        // A function that glibc 2.17 lacks is an error here and not in an old image.
        "-Wl,-z,defs",
        // Hooks are called until the process ends, whoever calls dlclose.
        "-Wl,-z,nodelete",
        "-Wl,-z,relro,-z,now",
        "-Wl,-z,noexecstack",
        "-Wl,-z,text",
        "-Wl,--hash-style=gnu",
    ] {
        link_arg(argument);
    }
    for name in late_functions(&root.join("c/late.list"))? {
        link_arg(&format!("-Wl,--wrap={name}"));
    }
    link_arg(&format!("-Wl,--version-script={}", root.join("exports.map").display()));
    Ok(())
}

/// The names in lines such as `LATE(dlopen, 0)`.
fn late_functions(list: &Path) -> Result<Vec<String>, String> {
    let text = fs::read_to_string(list).map_err(|e| format!("{}: {e}", list.display()))?;
    let names = text.lines().filter_map(|line| line.strip_prefix("LATE(")?.split_once(','));
    Ok(names.map(|(name, _)| name.to_owned()).collect())
}

fn link_arg(argument: &str) {
    println!("cargo::rustc-cdylib-link-arg={argument}");
}

fn var(name: &str) -> Result<String, String> {
    println!("cargo::rerun-if-env-changed={name}");
    env::var(name).map_err(|e| format!("{name}: {e}"))
}

/// How the C compiler is told to link with lld.
///
/// rustc writes a version script of its own for a cdylib. lld merges it with ours; GNU ld refuses a second one.
struct Lld(Vec<String>);

impl Lld {
    /// The lld that comes with rustc, else the system's.
    fn find(target: &str) -> Result<Self, String> {
        let rustc = var("RUSTC")?;
        let sysroot = Command::new(&rustc)
            .args(["--print", "sysroot"])
            .output()
            .ok()
            .filter(|o| o.status.success())
            .and_then(|o| String::from_utf8(o.stdout).ok())
            .map(|s| PathBuf::from(s.trim()))
            .ok_or_else(|| format!("{rustc} --print sysroot failed"))?;
        let bundled = sysroot.join("lib/rustlib").join(target).join("bin/gcc-ld");
        if bundled.join("ld.lld").exists() {
            return Ok(Self(vec![format!("-B{}", bundled.display()), "-fuse-ld=lld".to_owned()]));
        }
        if Command::new("ld.lld").arg("--version").output().is_ok() {
            return Ok(Self(vec!["-fuse-ld=lld".to_owned()]));
        }
        Err(format!(
            "libcuwarden.so must be linked with lld: {} is missing (this Rust does not bring it) and there is no \
             ld.lld on PATH; use Rust from rustup, or install lld",
            bundled.display()
        ))
    }

    fn args(&self) -> &[String] {
        &self.0
    }
}
