//! Which call stacks of two builds are the same.
//!
//! Between two versions of CUDA everything about a frame changes but its function and the name of its library: addresses
//! and lines move, files are built elsewhere, and a library is named after its version.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

use crate::report::Report;
use crate::report::model::{Frame, Leak};
use crate::report::text::without_plumbing;

/// What a frame is known by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// By its function, and the library without its version.
    Function {
        /// As [`library`] names it.
        module: String,
        /// As [`function`] names it.
        function: String,
    },
    /// It has no name, but the file is the same one everywhere: by address.
    Offset {
        /// As [`library`] names it.
        module: String,
        /// In the file.
        offset: u64,
    },
    /// It has no name, and the files differ: all that is known is where it is. Frames of this kind that follow each other
    /// are one, for their number says nothing about two builds.
    Module {
        /// As [`library`] names it; none: no file held the address.
        module: Option<String>,
    },
}

/// What a stack is known by; innermost first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stack {
    /// Its frames, without CUDA's own above the call and what is below `main`.
    pub steps: Vec<Step>,
    /// Where no frames were kept: the function of CUDA is all that tells stacks apart.
    pub api: Option<String>,
}

/// What is known of the files in which frames lie.
pub struct Builds {
    /// The build of each, where it is one and the same in all reports.
    ids: BTreeMap<String, Option<String>>,
    /// What the program is called in A, and otherwise in B.
    program: Option<(String, String)>,
}

impl Builds {
    /// Of all reports of A and of B.
    pub fn of(a: &[&Report], b: &[&Report]) -> Builds {
        let program = program(a).zip(program(b)).filter(|(a, b)| a != b);
        let mut builds = Builds { ids: BTreeMap::new(), program };
        for module in a.iter().chain(b).flat_map(|report| &report.modules) {
            let id = Some(module.build_id.clone()).filter(|id| !id.is_empty());
            let name = builds.name(&module.path);
            builds
                .ids
                .entry(name)
                .and_modify(|known| {
                    if *known != id {
                        *known = None;
                    }
                })
                .or_insert(id);
        }
        builds
    }

    /// The program, where each side has one and they have two names: `train-cu12` and `train-cu13`. It counts as the same.
    pub fn renamed_program(&self) -> Option<(&str, &str)> {
        self.program.as_ref().map(|(a, b)| (a.as_str(), b.as_str()))
    }

    /// What a file is known by.
    pub fn name(&self, path: &str) -> String {
        let name = library(path);
        match &self.program {
            Some((a, b)) if *b == name => a.clone(),
            _ => name,
        }
    }

    fn are_one(&self, module: &str) -> bool {
        self.ids.get(module).is_some_and(Option::is_some)
    }
}

/// The only program of some reports.
fn program(reports: &[&Report]) -> Option<String> {
    let mut names = reports.iter().map(|report| library(&report.exe));
    let first = names.next().filter(|name| !name.is_empty())?;
    names.all(|name| name == first).then_some(first)
}

impl Stack {
    /// What the stack of a leak is known by.
    pub fn of(leak: &Leak, builds: &Builds) -> Stack {
        let mut steps: Vec<Step> = Vec::new();
        for frame in without_plumbing(&leak.stack) {
            let step = Step::of(frame, builds);
            if !(matches!(step, Step::Module { .. }) && steps.last() == Some(&step)) {
                steps.push(step);
            }
        }
        // A runtime in a Python package may have a name that is not seen to be CUDA's before it is put right.
        let own = steps.iter().take_while(|step| {
            step.module().is_some_and(|name| matches!(name, "libcudart.so" | "libcuda.so"))
        });
        let own = own.count();
        if own < steps.len() {
            steps.drain(..own);
        }
        let api = steps.is_empty().then(|| leak.api.clone());
        Stack { steps, api }
    }

    /// The libraries of which not more than the name could be compared.
    pub fn by_module_alone(&self) -> Vec<&str> {
        let unknown = self.steps.iter().filter(|step| matches!(step, Step::Module { .. }));
        let mut names: Vec<&str> = unknown.map(|step| step.module().unwrap_or("no known file")).collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

impl Step {
    fn of(frame: &Frame, builds: &Builds) -> Step {
        let module = frame.module.as_deref().map(|path| builds.name(path));
        match (module, &frame.function) {
            (module, Some(name)) => {
                Step::Function { module: module.unwrap_or_default(), function: function(name) }
            }
            (Some(module), None) if builds.are_one(&module) => Step::Offset { module, offset: frame.offset },
            (module, None) => Step::Module { module },
        }
    }

    /// The library, where one is known.
    pub fn module(&self) -> Option<&str> {
        match self {
            Step::Function { module, .. } | Step::Offset { module, .. } => Some(module),
            Step::Module { module } => module.as_deref(),
        }
    }
}

impl Serialize for Step {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields<'a> {
            matched_by: &'a str,
            module: Option<&'a str>,
            function: Option<&'a str>,
            offset: Option<u64>,
        }
        let (matched_by, function, offset) = match self {
            Step::Function { function, .. } => ("function", Some(function.as_str()), None),
            Step::Offset { offset, .. } => ("offset", None, Some(*offset)),
            Step::Module { .. } => ("module", None, None),
        };
        Fields { matched_by, module: self.module(), function, offset }.serialize(serializer)
    }
}

/// A file's name without what changes from build to build: folders, the version after `.so` or before it, the hash that
/// Python's packaging puts in, and the Python that an extension is for.
///
/// `/usr/lib/libcudart.so.12.9.79` and `…/libcudart-d0da41ae.so.13` are `libcudart.so`.
pub fn library(path: &str) -> String {
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    let name = path.rsplit('/').next().unwrap_or(path);
    let Some((stem, _)) = name.split_once(".so").filter(|(_, rest)| {
        let version = |c: char| c.is_ascii_digit() || c == '.';
        rest.is_empty() || rest.strip_prefix('.').is_some_and(|rest| rest.chars().all(version))
    }) else {
        return name.to_owned();
    };
    let stem =
        stem.split_once(".cpython-").or_else(|| stem.split_once(".abi3")).map_or(stem, |(stem, _)| stem);
    let stem = match stem.rsplit_once('-') {
        Some((before, end)) if is_version(end) || is_hash(end) => before,
        _ => stem,
    };
    format!("{stem}.so")
}

/// A function's name without what compilers add to the copies that they make of it.
pub fn function(name: &str) -> String {
    const ADDED: [&str; 6] = [".isra.", ".part.", ".constprop.", ".lto_priv.", ".cold", ".llvm."];
    // The demangler of C++ writes them so.
    let name = name.split_once(" [clone ").map_or(name, |(name, _)| name);
    let end = ADDED.iter().filter_map(|added| name.find(added)).min().unwrap_or(name.len());
    // A name that begins so is nothing else.
    name.get(..end).filter(|rest| !rest.is_empty()).unwrap_or(name).to_owned()
}

fn is_version(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_digit() || c == '.')
}

fn is_hash(text: &str) -> bool {
    text.len() == 8 && text.chars().all(|c| c.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::model::Module;

    #[test]
    fn libraries_of_different_versions_have_one_name() {
        for (path, name) in [
            ("/usr/local/cuda-12.9/lib64/libcudart.so.12.9.79", "libcudart.so"),
            ("/usr/local/cuda-13.5/lib64/libcudart.so.13.5.37", "libcudart.so"),
            ("/v/lib/python3.12/site-packages/torch/lib/libcudart-d0da41ae.so.11.0", "libcudart.so"),
            ("/v/lib/python3.12/site-packages/torch/lib/libtorch_cuda.so", "libtorch_cuda.so"),
            ("/lib/x86_64-linux-gnu/libc-2.31.so", "libc.so"),
            ("/lib/libnvrtc-builtins.so.12.4", "libnvrtc-builtins.so"),
            ("/v/torch/_C.cpython-312-x86_64-linux-gnu.so", "_C.so"),
            ("/v/x/_rust.abi3.so", "_rust.so"),
            ("/opt/app/trainer (deleted)", "trainer"),
            ("trainer-2.0", "trainer-2.0"),
            ("/a/libx.so.backup", "libx.so.backup"),
            ("/a/some.source", "some.source"),
            ("", ""),
        ] {
            assert_eq!(library(path), name, "{path}");
        }
    }

    #[test]
    fn functions_lose_what_the_compiler_added() {
        for (name, same) in [
            ("grow", "grow"),
            ("grow.isra.0", "grow"),
            ("grow.part.3.constprop.1", "grow"),
            ("a::grow(int) [clone .cold]", "a::grow(int)"),
            ("grow.llvm.12345", "grow"),
            (".cold", ".cold"),
            ("std::vector<int>::push_back(int&&)", "std::vector<int>::push_back(int&&)"),
        ] {
            assert_eq!(function(name), same);
        }
    }

    fn named(module: &str, function: &str, offset: u64) -> Frame {
        Frame {
            module: Some(module.to_owned()),
            function: Some(function.to_owned()),
            offset,
            ..Frame::default()
        }
    }

    fn unnamed(module: &str, offset: u64) -> Frame {
        Frame { module: Some(module.to_owned()), offset, ..Frame::default() }
    }

    fn stack(frames: Vec<Frame>, builds: &Builds) -> Stack {
        Stack::of(&Leak { stack: frames, api: "cudaMalloc".to_owned(), ..Leak::default() }, builds)
    }

    fn builds(ids: &[(&str, &str)]) -> Builds {
        let report = |(path, id): &(&str, &str)| Report {
            modules: vec![Module { path: (*path).to_owned(), build_id: (*id).to_owned() }],
            ..Report::default()
        };
        let reports: Vec<Report> = ids.iter().map(report).collect();
        Builds::of(&reports.iter().collect::<Vec<_>>(), &[])
    }

    #[test]
    fn stacks_of_two_builds_match_by_function_and_library() {
        let none = builds(&[]);
        let old = vec![
            unnamed("/cuda-12/libcudart.so.12.9.79", 1),
            named("/a/libtorch_cuda.so", "alloc.isra.0", 7),
            named("/a/app", "main", 8),
            named("/lib/libc.so.6", "__libc_start_main", 9),
        ];
        let new = vec![
            unnamed("/x/libcudart-d0da41ae.so.13", 4),
            unnamed("/x/libcudart-d0da41ae.so.13", 5),
            named("/b/libtorch_cuda.so", "alloc", 70),
            named("/b/app", "main", 80),
        ];
        assert_eq!(stack(old.clone(), &none), stack(new, &none));
        assert_eq!(stack(old, &none).steps.len(), 2);
        let main = |function: &str| stack(vec![named("/a/app", function, 1)], &none);
        assert_ne!(main("main"), main("other"));
        assert_ne!(main("main"), stack(vec![named("/a/other", "main", 1)], &none));
    }

    #[test]
    fn frames_without_names_match_by_address_only_in_the_same_file() {
        let frames = |offset| vec![unnamed("/a/libx.so.1", offset), unnamed("/a/libx.so.1", offset + 1)];
        let same = builds(&[("/a/libx.so.1", "ab"), ("/b/libx.so.1.2", "ab")]);
        assert_ne!(stack(frames(1), &same), stack(frames(5), &same));
        assert_eq!(stack(frames(1), &same).steps.len(), 2);
        assert!(stack(frames(1), &same).by_module_alone().is_empty());
        for other in [
            builds(&[("/a/libx.so.1", "ab"), ("/b/libx.so.2", "cd")]),
            builds(&[("/a/libx.so.1", "ab"), ("/b/libx.so.2", "")]),
            builds(&[("/a/libx.so.1", ""), ("/b/libx.so.2", "ab"), ("/c/libx.so", "ab")]),
            builds(&[]),
        ] {
            assert_eq!(stack(frames(1), &other), stack(frames(5), &other));
            assert_eq!(stack(frames(1), &other).steps.len(), 1);
            assert_eq!(stack(frames(1), &other).by_module_alone(), ["libx.so"]);
        }
    }

    #[test]
    fn a_program_that_is_named_after_its_build_is_the_same_program() {
        let report = |exe: &str| Report { exe: exe.to_owned(), ..Report::default() };
        let (old, new, other) = (report("/a/train-cu12"), report("/b/train-cu13"), report("/b/launcher"));
        let main = |path: &str, builds: &Builds| stack(vec![named(path, "main", 1)], builds);
        let one = Builds::of(&[&old, &old], &[&new]);
        assert_eq!(one.renamed_program(), Some(("train-cu12", "train-cu13")));
        assert_eq!(main("/a/train-cu12", &one), main("/b/train-cu13", &one));
        // With several programs in a side nothing tells which is which.
        let several = Builds::of(&[&old], &[&new, &other]);
        assert_ne!(main("/a/train-cu12", &several), main("/b/train-cu13", &several));
        assert_eq!(Builds::of(&[&old], &[&old]).renamed_program(), None);
    }

    #[test]
    fn without_frames_the_function_of_cuda_tells_stacks_apart() {
        let none = builds(&[]);
        assert_eq!(stack(vec![], &none).api.as_deref(), Some("cudaMalloc"));
        assert_eq!(stack(vec![Frame::default()], &none).by_module_alone(), ["no known file"]);
    }
}
