//! What names say of versions: of libcudart's files, and of functions that come in several.

use std::path::Path;

/// The major version in the name of a runtime's file: 11 in `libcudart.so.11.0`, 12 in `libcudart-d0da41ae.so.12`.
/// `None` for `libcudart.so`, which is that of any.
pub fn runtime_major(file: &[u8]) -> Option<u32> {
    let name = file.rsplit(|byte| *byte == b'/').next()?;
    let rest = name.strip_prefix(b"libcudart")?;
    let at = rest.windows(4).position(|part| part == b".so.")?;
    leading_number(rest.get(at.checked_add(4)?..)?)
}

/// The number that a text begins with.
pub(super) fn leading_number(text: &[u8]) -> Option<u32> {
    let digits = text.split(|byte| !byte.is_ascii_digit()).next()?;
    std::str::from_utf8(digits).ok()?.parse().ok().filter(|major| (1..=99).contains(major))
}

/// The folder of a search path, as LD_LIBRARY_PATH, that a file was found in.
pub fn folder_in_search_path<'a>(file: &Path, search_path: &'a str) -> Option<&'a str> {
    let folder = file.parent()?;
    search_path.split([':', ';']).find(|entry| !entry.is_empty() && Path::new(entry) == folder)
}

/// `cudnnCreate` of `cudnnCreate_v8`: what a function is called that comes in several versions.
pub fn stem(function: &[u8]) -> Option<&[u8]> {
    let at = function.windows(2).rposition(|part| part == b"_v")?;
    let number = function.get(at.checked_add(2)?..)?;
    let is_number = (1..=2).contains(&number.len()) && number.iter().all(u8::is_ascii_digit);
    function.get(..at).filter(|stem| is_number && !stem.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn majors_of_files() {
        for (file, major) in [
            ("/usr/local/cuda/lib64/libcudart.so.11.0", Some(11)),
            ("libcudart.so.12", Some(12)),
            ("x/libcudart-d0da41ae.so.11.0", Some(11)),
            ("libcudart.so.13.5.37", Some(13)),
            ("libcudart.so", None),
            ("libcudart.so.", None),
            ("/libcudart.so.12/libcuda.so.1", None),
            ("", None),
        ] {
            assert_eq!(runtime_major(file.as_bytes()), major, "{file}");
        }
    }

    #[test]
    fn the_entry_of_a_search_path() {
        let found = |file, path| folder_in_search_path(Path::new(file), path);
        assert_eq!(found("/a/libcudart.so.12", "/b:/a:/c"), Some("/a"));
        assert_eq!(found("/a/libcudart.so.12", "/a/"), Some("/a/"));
        assert_eq!(found("/a/b/libcudart.so.12", "/a::"), None);
        assert_eq!(found("", "/a"), None);
    }

    #[test]
    fn stems_of_functions() {
        for (name, expected) in [
            ("cudnnCreate_v8", Some("cudnnCreate")),
            ("cuMemAlloc_v2", Some("cuMemAlloc")),
            ("cublasGemmEx_v2_64", None),
            ("cuda_version", None),
            ("x_v", None),
            ("_v2", None),
            ("x_v123", None),
            ("a_v1_v12", Some("a_v1")),
        ] {
            assert_eq!(stem(name.as_bytes()), expected.map(str::as_bytes), "{name}");
        }
    }
}
