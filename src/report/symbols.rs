//! Names and source lines of the frames of a report.
//!
//! A process records only module and address, because looking names up is slow and needs memory. It is
//! done here, from the files as they are now. A file that is not the one that ran would give wrong names,
//! which is worse than none: the build-id decides, and where there is none, the file's age.

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use addr2line::demangle_auto;
use object::{Object, ObjectSymbol, ReadCache, SymbolKind};

use serde_json::Value;

use super::debug_info::{DebugInfo, open_regular};
use super::model::{Frame, Report};

/// Looks names up, and keeps what it has opened.
pub struct Symbolizer {
    debug_root: PathBuf,
    modules: HashMap<ModuleKey, Result<Module, String>>,
    frames: HashMap<(ModuleKey, u64), Vec<Frame>>,
}

/// Path, and build-id where one was recorded.
type ModuleKey = (String, Option<String>);

impl Default for Symbolizer {
    fn default() -> Symbolizer {
        Symbolizer::new(PathBuf::from("/usr/lib/debug"))
    }
}

struct Module {
    /// Debug information: the file's own, or that of a separate file with the same build-id.
    debug: Option<DebugInfo>,
    /// Functions by address: start, size, name.
    functions: Vec<(u64, u64, String)>,
}

impl Symbolizer {
    /// `debug_root` is where the distribution keeps debug information apart from programs.
    pub fn new(debug_root: PathBuf) -> Symbolizer {
        Symbolizer { debug_root, modules: HashMap::new(), frames: HashMap::new() }
    }

    /// Fills in names and lines of all frames that have none. Inlined functions become frames of their own.
    pub fn resolve(&mut self, report: &mut Report) {
        let started = report.started_at.as_deref().and_then(parse_rfc3339);
        let ids: HashMap<&str, &str> =
            report.modules.iter().map(|m| (m.path.as_str(), m.build_id.as_str())).collect();
        let mut resolve = |stack: Vec<Frame>| -> Vec<Frame> {
            if stack.iter().any(|frame| frame.function.is_some() || frame.problem.is_some()) {
                return stack;
            }
            let frames = stack.into_iter().flat_map(|frame| match frame.module.clone() {
                Some(module) => {
                    let id = ids.get(module.as_str()).copied();
                    self.frame(module, id, frame.offset, started)
                }
                None => vec![Frame { problem: Some("in no known file".to_owned()), ..frame }],
            });
            frames.collect()
        };
        for leak in &mut report.leaks {
            leak.stack = resolve(std::mem::take(&mut leak.stack));
        }
        let suspects = report.leak_suspects.iter_mut().filter_map(|suspect| suspect.get_mut("stacks"));
        let grown = suspects.filter_map(Value::as_array_mut).flatten();
        for stack in report.init_failures.iter_mut().chain(grown).filter_map(|one| one.get_mut("stack")) {
            let frames = serde_json::from_value::<Vec<Frame>>(stack.clone()).map(&mut resolve);
            if let Ok(value) = frames.and_then(serde_json::to_value) {
                *stack = value;
            }
        }
    }

    /// `build_id` is none where nothing was recorded about the module.
    fn frame(
        &mut self,
        module: String,
        build_id: Option<&str>,
        offset: u64,
        started: Option<SystemTime>,
    ) -> Vec<Frame> {
        let key = (module, build_id.map(str::to_owned));
        let frame_key = (key.clone(), offset);
        if let Some(frames) = self.frames.get(&frame_key) {
            return frames.clone();
        }
        let plain = Frame { module: Some(key.0.clone()), offset, ..Frame::default() };
        if !self.modules.contains_key(&key) {
            let opened = Module::open(Path::new(&key.0), build_id, &self.debug_root, started);
            self.modules.insert(key.clone(), opened);
        }
        let frames = match self.modules.get(&key) {
            Some(Ok(module)) => module.frames(&plain),
            Some(Err(problem)) => vec![Frame { problem: Some(problem.clone()), ..plain }],
            None => vec![plain],
        };
        self.frames.insert(frame_key, frames.clone());
        frames
    }
}

impl Module {
    fn open(
        path: &Path,
        build_id: Option<&str>,
        root: &Path,
        started: Option<SystemTime>,
    ) -> Result<Module, String> {
        let metadata = match fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Err("the file is gone".to_owned());
            }
            Err(error) => return Err(format!("the file cannot be read: {error}")),
        };
        // A path from a hostile record file may name a pipe or a device.
        if !metadata.is_file() {
            return Err("not a regular file".to_owned());
        }
        let file = File::open(path).map_err(|error| format!("the file cannot be read: {error}"))?;
        let cache = ReadCache::new(file);
        let object = object::File::parse(&cache).map_err(|_| "not an ELF file".to_owned())?;
        let found_id = object.build_id().ok().flatten().map(hex).unwrap_or_default();
        if build_id.is_some_and(|recorded| recorded != found_id) {
            return Err("the file was replaced since".to_owned());
        }
        if build_id.is_none_or(str::is_empty)
            && let (Some(started), Ok(changed)) = (started, metadata.modified())
            // File systems keep times coarsely, and `started` has been cut to milliseconds.
            && changed > started + Duration::from_secs(2)
        {
            return Err("the file was changed since (and there is no build-id to compare)".to_owned());
        }
        let debug_file = if object.section_by_name(".debug_info").is_some()
            || object.section_by_name(".zdebug_info").is_some()
        {
            Some(path.to_owned())
        } else {
            separate_debug_file(path, &object, &found_id, root)
        };
        let mut functions = functions(&object);
        if let Some(separate) = debug_file.as_deref().filter(|file| *file != path)
            && let Some(file) = open_regular(separate)
            && let Ok(object) = object::File::parse(&ReadCache::new(file))
        {
            functions.extend(self::functions(&object));
        }
        functions.sort();
        functions.dedup_by_key(|function| (function.0, function.1));
        // Unreadable debug information leaves the symbol table.
        let debug = debug_file.and_then(DebugInfo::open);
        Ok(Module { debug, functions })
    }

    fn frames(&self, plain: &Frame) -> Vec<Frame> {
        // A return address may be the first of the next line or function; the call is before it.
        let probe = plain.offset.saturating_sub(1);
        let mut frames = self.debug.as_ref().map(|debug| debug.frames(probe, plain)).unwrap_or_default();
        if frames.is_empty() {
            frames.push(plain.clone());
        }
        if let Some(outermost) = frames.last_mut()
            && outermost.function.is_none()
        {
            outermost.function = self.function(probe);
        }
        let last = frames.len() - 1;
        for (index, frame) in frames.iter_mut().enumerate() {
            frame.inlined = index < last;
            frame.problem = match (&frame.function, &frame.file) {
                (None, None) => Some("no symbol".to_owned()),
                (Some(_), None) => Some("no line information".to_owned()),
                _ => None,
            };
        }
        frames
    }

    /// The function whose bytes hold the address. The one before it is no answer: in a stripped file that
    /// may be far away.
    fn function(&self, address: u64) -> Option<String> {
        let after = self.functions.partition_point(|function| function.0 <= address);
        let around = self.functions.get(after.saturating_sub(8)..after)?;
        let (_, _, name) =
            around.iter().rev().find(|(start, size, _)| address - start < *size || *size == 0)?;
        Some(demangle_auto(name.into(), None).into_owned())
    }
}

fn functions<'a>(object: &impl Object<'a>) -> Vec<(u64, u64, String)> {
    object
        .symbols()
        .chain(object.dynamic_symbols())
        .filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text)
        .filter_map(|symbol| Some((symbol.address(), symbol.size(), symbol.name().ok()?.to_owned())))
        .filter(|(_, _, name)| !name.is_empty())
        .collect()
}

/// Where distributions and packagers put debug information: by build-id, or by the name in the file.
fn separate_debug_file<'a>(
    path: &Path,
    object: &impl Object<'a>,
    build_id: &str,
    root: &Path,
) -> Option<PathBuf> {
    // Without a build-id nothing tells whether a debug file belongs to this one.
    let (first, rest) = build_id.split_at_checked(2)?;
    let mut candidates = vec![root.join(".build-id").join(first).join(format!("{rest}.debug"))];
    let folder = path.parent().unwrap_or(Path::new("/"));
    if let Ok(Some((name, _))) = object.gnu_debuglink()
        && let Ok(name) = std::str::from_utf8(name)
        && !name.contains('/')
    {
        candidates.push(folder.join(name));
        candidates.push(folder.join(".debug").join(name));
        candidates.push(root.join(folder.strip_prefix("/").unwrap_or(folder)).join(name));
    }
    candidates.into_iter().find(|candidate| {
        let same_id = || {
            let file = open_regular(candidate)?;
            let cache = ReadCache::new(file);
            let object = object::File::parse(&cache).ok()?;
            Some(object.build_id().ok()??.iter().map(|b| format!("{b:02x}")).collect::<String>() == build_id)
        };
        candidate != path && same_id() == Some(true)
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The time that [`super::time::rfc3339`] wrote, cut to seconds.
fn parse_rfc3339(text: &str) -> Option<SystemTime> {
    let number = |range| text.get(range).and_then(|part: &str| part.parse::<u64>().ok());
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    if !(1970..=9999).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    // March is the first month here, so that the leap day is the last of a year.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    let days = days.checked_sub(719_468)?;
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(days * 86_400 + hour * 3600 + minute * 60 + second))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_times_that_reports_hold() {
        for seconds in [1, 951_782_400, 1_796_090_584, 4_107_542_399] {
            let text = super::super::time::rfc3339(seconds * 1_000_000_000).unwrap();
            assert_eq!(parse_rfc3339(&text), Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)));
        }
        for text in ["", "yesterday", "2026-13-01T00:00:00Z", "1969-01-01T00:00:00Z"] {
            assert_eq!(parse_rfc3339(text), None);
        }
    }
}
