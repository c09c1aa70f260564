//! Which version a CUDA runtime is, from what can be seen of it without calling it.

use super::CudaVersion;
use super::naming::leading_number;
use crate::stack::cudart::Found;
use crate::tracking::askers::Asked;

/// A runtime and how sure its version is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identified {
    /// Its version, or where that is not exact the lowest that it can be.
    pub version: CudaVersion,
    /// Read from its code or its name.
    pub is_exact: bool,
}

/// A runtime's look-ups are hundreds; 378 were the fewest seen, by 11.7.
const FEWEST_LOOK_UPS: u32 = 300;

/// The runtime in a module; `None`: there is none, as far as can be seen.
pub fn identify(found: &Found, asked: Option<Asked>) -> Option<Identified> {
    let exact = |version| Identified { version, is_exact: true };
    let answers = found.answers.and_then(CudaVersion::from_number);
    if !found.is_shared_runtime {
        // A program that uses the driver itself may look it up as well, and is no runtime.
        let asked = asked?;
        return answers.map(exact).or_else(|| fingerprint(asked).filter(|_| looks_like_a_runtime(asked)));
    }
    let major = found.node.as_deref().and_then(leading_number);
    answers
        .filter(|version| major.is_none_or(|major| version.major == major))
        .or_else(|| in_name(&found.path))
        .map(exact)
        .or_else(|| asked.and_then(fingerprint))
        .or_else(|| {
            major.map(|major| Identified { version: CudaVersion { major, minor: 0 }, is_exact: false })
        })
}

fn looks_like_a_runtime(asked: Asked) -> bool {
    asked.asked_init_early && asked.count >= FEWEST_LOOK_UPS
}

/// A runtime asks for no function in a version above its own; the newest that it asks for may be older than itself: 12.9
/// asks for 12.8 at most, and 11.8 for 11.7.
fn fingerprint(asked: Asked) -> Option<Identified> {
    let version = CudaVersion::from_number(asked.highest).filter(|version| version.major >= 11)?;
    Some(Identified { version, is_exact: false })
}

/// `libcudart.so.12.9.79` says it; `libcudart.so.11.0` is the name of all versions from 11.0 to 11.8.
fn in_name(path: &[u8]) -> Option<CudaVersion> {
    let name = std::str::from_utf8(path.rsplit(|byte| *byte == b'/').next()?).ok()?;
    let (_, numbers) = name.split_once(".so.")?;
    let mut numbers = numbers.split('.');
    let (major, minor, _release) = (numbers.next()?, numbers.next()?, numbers.next()?);
    Some(CudaVersion { major: major.parse().ok()?, minor: minor.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(path: &str, answers: Option<u32>, node: Option<&str>) -> Found {
        Found {
            path: path.into(),
            text: 1..2,
            is_shared_runtime: true,
            answers,
            node: node.map(|node| node.as_bytes().to_vec()),
        }
    }

    fn asked(highest: u32) -> Option<Asked> {
        Some(Asked { caller: 1, highest, count: 400, asked_init_early: true })
    }

    fn told(found: &Found, asked: Option<Asked>) -> Option<(String, bool)> {
        identify(found, asked).map(|known| (known.version.to_string(), known.is_exact))
    }

    fn is(version: &str, is_exact: bool) -> Option<(String, bool)> {
        Some((version.to_owned(), is_exact))
    }

    #[test]
    fn the_code_says_it_best() {
        let found = shared("/x/libcudart.so.12", Some(12090), Some("12"));
        assert_eq!(told(&found, asked(12080)), is("12.9", true));
        // Whatever stores that number is not cudaRuntimeGetVersion.
        let found = shared("/x/libcudart.so.12", Some(10000), Some("12"));
        assert_eq!(told(&found, asked(12080)), is("12.8", false));
        let found = shared("/x/libcudart.so", Some(11080), None);
        assert_eq!(told(&found, None), is("11.8", true));
    }

    #[test]
    fn then_the_name_the_look_ups_and_the_node() {
        assert_eq!(
            told(&shared("/x/libcudart.so.12.9.79", None, Some("12")), asked(12080)),
            is("12.9", true)
        );
        assert_eq!(
            told(&shared("/x/libcudart.so.11.0", None, Some("11.0")), asked(11070)),
            is("11.7", false)
        );
        assert_eq!(told(&shared("/x/libcudart.so.11.0", None, Some("11.0")), None), is("11.0", false));
        assert_eq!(told(&shared("/x/libcudart-d0da41ae.so.13", None, Some("13")), None), is("13.0", false));
        assert_eq!(told(&shared("/x/libcudart.so", None, Some("x")), asked(0)), None);
    }

    #[test]
    fn a_static_runtime_has_looked_the_driver_up() {
        let found = Found { is_shared_runtime: false, ..shared("", Some(12090), None) };
        assert_eq!(told(&found, None), None, "it may never be used");
        assert_eq!(told(&found, asked(12080)), is("12.9", true));
        let found = Found { answers: None, ..found };
        assert_eq!(told(&found, asked(13000)), is("13.0", false));
        // Clients of the driver: they ask for other things first, or for little, or for old functions.
        let other = |change: fn(&mut Asked)| {
            let mut asked = asked(13000);
            asked.iter_mut().for_each(change);
            told(&found, asked)
        };
        assert_eq!(other(|asked| asked.asked_init_early = false), None);
        assert_eq!(other(|asked| asked.count = 50), None);
        assert_eq!(other(|asked| asked.highest = 10000), None);
    }
}
