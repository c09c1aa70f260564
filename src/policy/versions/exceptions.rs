//! Executables that may use a runtime below the baseline's major: `CUWARDEN_BASELINE_ALLOW`.

use super::CudaVersion;

/// What may stand in the variable.
pub const ALLOWED: &str = "EXE=VERSION pairs separated by commas, for example trainer=11.8,/opt/old/*=11.8; in EXE, * and ? stand for any characters";

/// The list, in the order given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exceptions(Vec<(String, CudaVersion)>);

impl Exceptions {
    /// Reads `exe-glob=11.8,…`; on failure it answers what is wrong.
    pub fn parse(text: &str) -> Result<Exceptions, String> {
        text.split(',').map(pair).collect::<Result<_, _>>().map(Exceptions)
    }

    /// True when this executable may use this runtime. A pattern with a slash is compared with the whole path, another
    /// one with the file's name.
    pub fn allow(&self, executable: &str, runtime: CudaVersion) -> bool {
        let name = executable.rsplit('/').next().unwrap_or(executable);
        self.0.iter().any(|(pattern, version)| {
            let subject = if pattern.contains('/') { executable } else { name };
            *version == runtime && matches(pattern.as_bytes(), subject.as_bytes())
        })
    }
}

#[cfg(feature = "cli")]
impl Exceptions {
    /// Whom the list lets use this runtime, as it names them.
    pub fn patterns_for(&self, runtime: CudaVersion) -> Vec<&str> {
        self.0
            .iter()
            .filter(|(_, version)| *version == runtime)
            .map(|(pattern, _)| pattern.as_str())
            .collect()
    }
}

fn pair(text: &str) -> Result<(String, CudaVersion), String> {
    let (pattern, version) = text.rsplit_once('=').ok_or_else(|| format!("\"{text}\" is not EXE=VERSION"))?;
    if pattern.is_empty() || pattern.trim() != pattern {
        return Err(format!("\"{text}\" names no executable"));
    }
    // They mean sets in other tools, and must not seem to do so here.
    if pattern.contains(['[', ']', '{', '}', '\\']) {
        return Err(format!("only * and ? have a meaning in \"{pattern}\""));
    }
    let version = CudaVersion::parse(version)
        .ok_or_else(|| format!("\"{version}\" is not a CUDA version such as 11.8"))?;
    Ok((pattern.to_owned(), version))
}

/// `*` is any run of bytes, slashes included, `?` any one. Takes at most pattern × text steps and no memory.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0usize, 0usize);
    // Where to go on when the bytes after the last star do not fit: the star takes one more.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        match (pattern.get(p), text.get(t)) {
            (Some(b'*'), _) => {
                p += 1;
                retry = Some((p, t));
            }
            (None, None) => return true,
            (Some(b'?'), Some(_)) => (p, t) = (p + 1, t + 1),
            (Some(wanted), Some(found)) if wanted == found => (p, t) = (p + 1, t + 1),
            _ => match retry {
                Some((after_star, taken)) if taken < text.len() => {
                    (p, t) = (after_star, taken + 1);
                    retry = Some((after_star, taken + 1));
                }
                _ => return false,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs() {
        for (pattern, text) in [
            ("", ""),
            ("*", ""),
            ("*", "anything"),
            ("python3*", "python3.11"),
            ("python3*", "python3"),
            ("p?thon", "python"),
            ("*.bin", "a.bin.bin"),
            ("a*b*c", "aXbYbZc"),
            ("/opt/*/bin/?", "/opt/a/b/bin/x"),
            ("**x", "x"),
        ] {
            assert!(matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("", "a"),
            ("?", ""),
            ("python3", "python3.11"),
            ("python3?", "python3"),
            ("*.bin", "a.bin2"),
            ("a*b*c", "aXcYb"),
            ("Python", "python"),
        ] {
            assert!(!matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
        // The worst case ends.
        assert!(!matches(
            "*a".repeat(200).as_bytes(),
            "a".repeat(5000).replace("aaaaaaaaaa", "ab").as_bytes()
        ));
    }

    #[test]
    fn by_name_or_by_path_and_for_that_runtime() {
        let allowed = Exceptions::parse("trainer*=11.8,/opt/old/*=11.7,trainer=11040").unwrap();
        let v = CudaVersion::new;
        assert!(allowed.allow("/usr/bin/trainer2", v(11, 8)));
        assert!(allowed.allow("trainer", v(11, 8)) && allowed.allow("/trainer", v(11, 4)));
        assert!(!allowed.allow("/usr/bin/trainer2", v(11, 7)));
        assert!(allowed.allow("/opt/old/bin/x", v(11, 7)) && !allowed.allow("/opt/new/x", v(11, 7)));
        assert!(!allowed.allow("/trainer/x", v(11, 8)), "a folder is not the file's name");
        assert_eq!(allowed.patterns_for(v(11, 7)), ["/opt/old/*"]);
        assert!(!Exceptions::default().allow("/x", v(11, 8)));
    }

    #[test]
    fn what_cannot_be_read() {
        for (text, words) in [
            ("", "is not EXE=VERSION"),
            ("trainer", "is not EXE=VERSION"),
            ("=11.8", "names no executable"),
            (" =11.8", "names no executable"),
            ("a=11.8,", "is not EXE=VERSION"),
            ("a=11.8, b=11.8", "names no executable"),
            ("a=11", "is not a CUDA version"),
            ("a=*", "is not a CUDA version"),
            ("a[bc]=11.8", "only * and ?"),
        ] {
            let error = Exceptions::parse(text).unwrap_err();
            assert!(error.contains(words), "{text}: {error}");
        }
        assert!(Exceptions::parse("a=b=11.8").unwrap().allow("a=b", CudaVersion::new(11, 8)));
    }
}
