//! Patterns for leaks: what is known and to be left out (`--suppressions`), and frames to be folded (`--fold`).

use std::collections::HashMap;
use std::sync::Arc;

use wildmatch::WildMatch;

use super::model::{Frame, Leak};

/// What a pattern may be.
pub const ALLOWED: &str = "function:GLOB (its name with or without its arguments), module:GLOB (the file's name; with a / in it its \
     path) or api:GLOB (cudaMalloc, cuMemAlloc_v2); in GLOB * stands for any characters and ? for one";

/// What of a leak a pattern is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Function,
    Module,
    Api,
}

/// One pattern.
#[derive(Clone, Debug)]
pub struct Pattern {
    part: Part,
    glob: WildMatch,
    by_path: bool,
    /// As its author wrote it.
    pub text: Arc<str>,
}

impl Pattern {
    /// Reads `function:GLOB`, `module:GLOB` or `api:GLOB`; on failure it answers what is wrong.
    pub fn parse(text: &str) -> Result<Pattern, String> {
        let Some((kind, glob)) = text.split_once(':') else {
            return Err(format!("\"{text}\" has no kind before a colon"));
        };
        let part = match kind.trim_end() {
            "function" => Part::Function,
            "module" => Part::Module,
            "api" => Part::Api,
            other => return Err(format!("\"{other}\" is no kind of pattern")),
        };
        let glob = glob.trim();
        if glob.is_empty() {
            return Err(format!("nothing follows \"{kind}:\""));
        }
        Ok(Pattern { part, glob: WildMatch::new(glob), by_path: glob.contains('/'), text: text.into() })
    }

    /// Is it about the CUDA call, and not about frames?
    pub fn is_of_call(&self) -> bool {
        self.part == Part::Api
    }

    /// Does it fit this frame? A pattern for a CUDA call fits none.
    pub fn fits_frame(&self, frame: &Frame) -> bool {
        self.subject(frame).is_some_and(|subject| self.fits_name(subject))
    }

    fn subject<'a>(&self, frame: &'a Frame) -> Option<&'a str> {
        match self.part {
            Part::Function => frame.function.as_deref(),
            Part::Module => frame.module.as_deref(),
            Part::Api => None,
        }
    }

    fn fits_name(&self, name: &str) -> bool {
        match self.part {
            Part::Module if !self.by_path => {
                let name = name.strip_suffix(" (deleted)").unwrap_or(name);
                self.glob.matches(name.rsplit('/').next().unwrap_or(name))
            }
            Part::Function => self.glob.matches(name) || self.glob.matches(without_arguments(name)),
            _ => self.glob.matches(name),
        }
    }

    /// Does it fit any frame, or the call? `known` has the answers for names that were asked for before: stacks share
    /// most of theirs.
    fn fits<'a>(&self, leak: &'a Leak, known: &mut HashMap<&'a str, bool>) -> bool {
        let mut fits = |name: &'a str| *known.entry(name).or_insert_with(|| self.fits_name(name));
        match self.part {
            Part::Api => fits(&leak.api) || fits(&leak.driver_api),
            _ => leak.stack.iter().filter_map(|frame| self.subject(frame)).any(fits),
        }
    }
}

/// For each leak the first of the patterns that fits; and for each pattern whether it fits any leak.
pub fn find(patterns: &[Pattern], leaks: &[Leak], used: &mut [bool]) -> Vec<Option<Arc<str>>> {
    let mut found = vec![None; leaks.len()];
    for (pattern, used) in patterns.iter().zip(used) {
        let mut known = HashMap::new();
        for (leak, found) in leaks.iter().zip(&mut found) {
            if pattern.fits(leak, &mut known) {
                *used = true;
                found.get_or_insert_with(|| Arc::clone(&pattern.text));
            }
        }
    }
    found
}

/// `net::Layer<int>::load` of `net::Layer<int>::load(int) const`. The arguments are the last brackets on the outside,
/// but for those of `operator()`.
fn without_arguments(name: &str) -> &str {
    let mut depth = 0u32;
    let mut begin = None;
    for (at, c) in name.char_indices() {
        match c {
            '(' if depth == 0 && !name[..at].ends_with("operator") => (begin, depth) = (Some(at), 1),
            '(' | '<' | '{' | '[' => depth += 1,
            ')' | '>' | '}' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    match begin {
        Some(at) if at > 0 => name[..at].trim_end(),
        _ => name,
    }
}

/// A line of a file that is no pattern.
#[derive(Debug, PartialEq, Eq)]
pub struct BadLine {
    /// Its number, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub problem: String,
}

/// Reads a suppression file: one pattern a line; what begins with # is a comment. The numbers are those of the lines.
pub fn parse_file(text: &[u8]) -> Result<Vec<(usize, Pattern)>, BadLine> {
    let mut patterns = Vec::new();
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    for (index, line) in text.split(|&byte| byte == b'\n').enumerate() {
        let bad = |problem: String| BadLine { line: index + 1, problem };
        let line = std::str::from_utf8(line).map_err(|_| bad("it is not UTF-8 text".to_owned()))?.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if line.chars().any(|c| c.is_control() && c != '\t') {
            return Err(bad("it has a control character".to_owned()));
        }
        patterns.push((index + 1, Pattern::parse(line).map_err(bad)?));
    }
    Ok(patterns)
}

/// Layers that keep memory for others, and hand on what they are asked for: for `--fold-allocators`.
pub fn allocators() -> Vec<Pattern> {
    const LAYERS: [&str; 12] = [
        "function:c10::cuda::CUDACachingAllocator::*",
        "function:c10::CachingDeviceAllocator*",
        "function:at::cuda::CUDAPluggableAllocator*",
        "function:torch::cuda::CUDAPluggableAllocator::*",
        "function:rmm::mr::*",
        "function:cub::CachingDeviceAllocator::*",
        "function:thrust::*allocat*",
        "function:tensorflow::*Allocator::*",
        "function:tsl::*Allocator::*",
        "function:xla::*Allocator::*",
        "function:onnxruntime::*Arena::*",
        "function:cupy::*memory*",
    ];
    let modules = ["module:libc10_cuda*.so*", "module:librmm*.so*"];
    LAYERS.iter().chain(&modules).filter_map(|text| Pattern::parse(text).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leak(function: &str, module: &str) -> Leak {
        let frame = Frame {
            function: Some(function.to_owned()),
            module: Some(module.to_owned()),
            ..Frame::default()
        };
        let stack = vec![Frame::default(), frame];
        Leak { stack, api: "cudaMalloc".into(), driver_api: "cuMemAlloc_v2".into(), ..Leak::default() }
    }

    fn fits(pattern: &str, function: &str, module: &str) -> bool {
        let pattern = [Pattern::parse(pattern).unwrap()];
        let mut used = [false];
        let found = find(&pattern, &[leak(function, module)], &mut used)[0].is_some();
        assert_eq!(found, used[0]);
        found
    }

    #[test]
    fn functions_modules_and_calls() {
        for pattern in [
            "function:net::load(int)",
            "function:net::load",
            "function: net::*",
            "function:*load*",
            "function:net::l?ad",
            "module:libnet.so.1",
            "module:libnet*",
            "module:/opt/*/libnet.so.1",
            "api:cudaMalloc",
            "api:cuMemAlloc*",
        ] {
            assert!(fits(pattern, "net::load(int)", "/opt/x/libnet.so.1 (deleted)") || pattern.contains('/'));
            assert!(fits(pattern, "net::load(int)", "/opt/x/libnet.so.1"), "{pattern}");
        }
        for pattern in ["function:load", "function:NET::load", "module:libnet", "module:/opt", "api:Malloc"] {
            assert!(!fits(pattern, "net::load(int)", "/opt/x/libnet.so.1"), "{pattern}");
        }
    }

    #[test]
    fn arguments_are_not_needed() {
        for (name, short) in [
            ("main", "main"),
            ("f(int)", "f"),
            ("a::b<void (*)(int)>::c(std::function<void (int)>) const", "a::b<void (*)(int)>::c"),
            ("a::{lambda(int)#1}::operator()(int) const", "a::{lambda(int)#1}::operator()"),
            ("(anonymous namespace)::f(int)", "(anonymous namespace)::f"),
            ("(", "("),
            ("Straße(é", "Straße"),
            (">>(x", ">>"),
        ] {
            assert_eq!(without_arguments(name), short);
        }
    }

    #[test]
    fn files() {
        let text = b"\xef\xbb\xbf# known\r\n\n  function: a*\r\n\tmodule:b\n#module:c\napi:d";
        let lines: Vec<(usize, String)> =
            parse_file(text).unwrap().into_iter().map(|(line, p)| (line, p.text.to_string())).collect();
        let expected = [(3, "function: a*"), (4, "module:b"), (6, "api:d")];
        assert_eq!(lines, expected.map(|(line, text)| (line, text.to_owned())));
        for (text, line, words) in [
            (&b"ok"[..], 1, "no kind"),
            (b"# x\nfunc:x", 2, "\"func\" is no kind"),
            (b"api:x\napi:  \n", 2, "nothing follows"),
            (b"api:x\n\xff\n", 2, "UTF-8"),
            (b"api:x\x1b[2J", 1, "control"),
        ] {
            let bad = parse_file(text).unwrap_err();
            assert_eq!(bad.line, line);
            assert!(bad.problem.contains(words), "{bad:?}");
        }
        assert!(parse_file(b"").unwrap().is_empty());
    }

    #[test]
    fn the_allocator_layers_are_patterns() {
        assert_eq!(allocators().len(), 14);
    }
}
