//! Finding the preloaded library, and making sure that it is one.

use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use object::{Object, ObjectSymbol, ReadCache};

use crate::cli::error::{Failure, NOT_RUN};

const NAME: &str = "libcuwarden.so";

/// Beside this program, else in ../lib, else where `CUWARDEN_LIB` says.
pub fn find() -> Result<PathBuf, Failure> {
    let program = std::env::current_exe().unwrap_or_default();
    let folder = program.parent().unwrap_or(Path::new("/"));
    let named = std::env::var_os("CUWARDEN_LIB").filter(|value| !value.is_empty()).map(PathBuf::from);
    let candidates = [folder.join(NAME), folder.join("../lib").join(NAME)];
    let found = candidates.iter().find(|path| path.exists()).or(named.as_ref());
    let Some(found) = found else {
        return Err(Failure::new(
            NOT_RUN,
            format!(
                "{NAME} was not found in {0} or {0}/../lib. Put it there, or name it in CUWARDEN_LIB",
                folder.display()
            ),
        ));
    };
    let path =
        fs::canonicalize(found).map_err(|error| Failure::path(NOT_RUN, "use the shim", found, &error))?;
    check(&path).map_err(|problem| {
        let path = path.display();
        // The loader would only print "cannot be preloaded: ignored", and the program would run unguarded.
        Failure::new(NOT_RUN, format!("the shim {path} {problem}. Nothing was started"))
    })?;
    Ok(path)
}

/// Would the loader take it?
fn check(path: &Path) -> Result<(), String> {
    if path.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b':' | b' ' | b'\t' | b'\n')) {
        return Err("has a blank or a colon in its path, which LD_PRELOAD cannot hold. Move it".to_owned());
    }
    if !path.is_file() {
        return Err("is not a regular file".to_owned());
    }
    let cache = ReadCache::new(File::open(path).map_err(|error| format!("cannot be read: {error}"))?);
    let elf = object::File::parse(&cache).map_err(|_| "is not an ELF file, or is cut short".to_owned())?;
    let architecture = match std::env::consts::ARCH {
        "x86_64" => object::Architecture::X86_64,
        "aarch64" => object::Architecture::Aarch64,
        other => return Err(format!("cannot be checked on {other}: only x86_64 and aarch64 are known")),
    };
    if !elf.is_64() || elf.architecture() != architecture || elf.format() != object::BinaryFormat::Elf {
        let bits = if elf.is_64() { 64 } else { 32 };
        return Err(format!(
            "is for another machine ({bits} bits, {:?}); this one needs {}",
            elf.architecture(),
            std::env::consts::ARCH
        ));
    }
    if elf.kind() != object::ObjectKind::Dynamic {
        return Err("is not a shared library".to_owned());
    }
    if !elf.dynamic_symbols().any(|symbol| symbol.is_definition()) {
        return Err("exports nothing, so it would intercept nothing".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::check;
    use std::path::Path;

    #[test]
    fn only_a_shared_library_is_accepted() {
        let refused = |path: &str, words: &str| {
            let problem = check(Path::new(path)).unwrap_err();
            assert!(problem.contains(words), "{path}: {problem}");
        };
        refused("/usr", "not a regular file");
        refused("/etc/passwd", "not an ELF file");
        refused("/no such", "blank or a colon");
    }
}
