//! The profile that pprof and its kin read: <https://github.com/google/pprof/blob/main/proto/profile.proto>, gzipped.

mod proto;

use std::collections::HashMap;
use std::io::{self, Write};

use flate2::{Compression, GzBuilder};
use prost::Message;

use super::judged::{Judged, State};
use super::model::{Frame, Leak, Report};
use super::text::without_plumbing;
use proto::{Function, Label, Line, Location, Mapping, Profile, Sample, ValueType};

/// Where the first file is placed. All that a frame's address has to say is its place in a file; but readers want
/// files at different addresses.
const FIRST_ADDRESS: u64 = 1 << 32;
const PAGE: u64 = 4096;

/// The live allocations of all `reports`.
pub fn pprof(reports: &[Judged]) -> io::Result<Vec<u8>> {
    let profile = Builder::new(reports).profile(reports);
    // No name and no time: the same input gives the same bytes.
    let mut gzip = GzBuilder::new().mtime(0).write(Vec::new(), Compression::default());
    gzip.write_all(&profile.encode_to_vec())?;
    gzip.finish()
}

/// Numbers things in the order in which they come.
struct Builder<'a> {
    strings: HashMap<String, i64>,
    string_table: Vec<String>,
    mappings: HashMap<(&'a str, &'a str), usize>,
    mapping_table: Vec<Mapping>,
    functions: HashMap<(i64, i64), u64>,
    function_table: Vec<Function>,
    locations: HashMap<Place, u64>,
    location_table: Vec<Location>,
}

/// Mapping, address, and the function and line of each inlined call and of the function itself.
type Place = (u64, u64, Vec<(u64, i64)>);

impl<'a> Builder<'a> {
    /// Places the files; programs before libraries, since readers take the first for the main one.
    fn new(reports: &'a [Judged]) -> Builder<'a> {
        let mut builder = Builder {
            strings: HashMap::new(),
            string_table: Vec::new(),
            mappings: HashMap::new(),
            mapping_table: Vec::new(),
            functions: HashMap::new(),
            function_table: Vec::new(),
            locations: HashMap::new(),
            location_table: Vec::new(),
        };
        builder.string("");
        let mut sizes: Vec<((&str, &str), u64)> = Vec::new();
        let mut places: HashMap<(&str, &str), usize> = HashMap::new();
        for report in reports.iter().map(|judged| &judged.report) {
            let ids = build_ids(report);
            for frame in report.leaks.iter().flat_map(|leak| without_plumbing(&leak.stack)) {
                let Some(path) = frame.module.as_deref() else { continue };
                let module = (path, ids.get(path).copied().unwrap_or_default());
                let place = *places.entry(module).or_insert_with(|| {
                    sizes.push((module, 0));
                    sizes.len() - 1
                });
                if let Some((_, size)) = sizes.get_mut(place) {
                    *size = (*size).max(frame.offset);
                }
            }
        }
        let is_program = |path: &str| reports.iter().any(|judged| judged.report.exe == path);
        sizes.sort_by_key(|((path, _), _)| !is_program(path));
        let mut start = FIRST_ADDRESS;
        for ((path, build_id), size) in sizes {
            let limit = start.saturating_add(size).saturating_add(PAGE) / PAGE * PAGE;
            let mapping = Mapping {
                id: builder.mapping_table.len() as u64 + 1,
                memory_start: start,
                memory_limit: limit,
                file_offset: 0,
                filename: builder.string(path),
                build_id: builder.string(build_id),
                // Taken back by the first frame of which it is not true.
                has_functions: true,
                has_filenames: true,
                has_line_numbers: true,
                has_inline_frames: true,
            };
            builder.mappings.insert((path, build_id), builder.mapping_table.len());
            builder.mapping_table.push(mapping);
            start = limit;
        }
        builder
    }

    fn profile(mut self, reports: &'a [Judged]) -> Profile {
        let count = ValueType { r#type: self.string("live_count"), unit: self.string("count") };
        let bytes = ValueType { r#type: self.string("live_bytes"), unit: self.string("bytes") };
        let mut sample = Vec::new();
        for judged in reports {
            let ids = build_ids(&judged.report);
            for (leak, mark, state) in judged.entries() {
                sample.push(Sample {
                    location_id: self.stack(leak, &ids),
                    value: vec![number(leak.count), number(leak.bytes)],
                    label: self.labels(&judged.report, leak, &mark.library, state),
                });
            }
        }
        let comment = vec![self.string("Device memory that is still allocated, by cuwarden report.")];
        Profile {
            default_sample_type: bytes.r#type,
            period_type: Some(bytes),
            period: 1,
            sample_type: vec![count, bytes],
            sample,
            mapping: self.mapping_table,
            location: self.location_table,
            function: self.function_table,
            string_table: self.string_table,
            comment,
            ..Profile::default()
        }
    }

    fn string(&mut self, text: &str) -> i64 {
        if let Some(&place) = self.strings.get(text) {
            return place;
        }
        let place = self.string_table.len() as i64;
        self.string_table.push(text.to_owned());
        self.strings.insert(text.to_owned(), place);
        place
    }

    fn labels(&mut self, report: &Report, leak: &Leak, library: &str, state: State) -> Vec<Label> {
        let state = match state {
            State::Leak => "leak",
            State::Suppressed => "suppressed",
            State::Held => "held_by_driver",
        };
        let mut labels = Vec::new();
        let words = [("state", state), ("library", library), ("api", &leak.api)];
        for (key, text) in
            words.into_iter().chain(report.labels.iter().map(|(k, v)| (k.as_str(), v.as_str())))
        {
            labels.push(Label { key: self.string(key), str: self.string(text), num: 0, num_unit: 0 });
        }
        for (key, value) in [("device", leak.device), ("pid", report.pid)] {
            // As text: readers take numbers for sizes, and put them in ranges.
            let text = value.to_string();
            labels.push(Label { key: self.string(key), str: self.string(&text), num: 0, num_unit: 0 });
        }
        labels
    }

    /// Innermost first, as in a report: the CUDA call, and the frames from its caller on. An inlined call is a further line of
    /// the place that it is in.
    fn stack(&mut self, leak: &'a Leak, ids: &HashMap<&'a str, &'a str>) -> Vec<u64> {
        // The libraries of the call seldom have names, and then readers would sum by file.
        let call = (self.function(&leak.api, ""), 0);
        let mut found = vec![self.place((0, 0, vec![call]))];
        let mut rest = without_plumbing(&leak.stack);
        while let Some(first) = rest.first() {
            let same = |frame: &&Frame| frame.offset == first.offset && frame.module == first.module;
            let inlined = rest.iter().take_while(|frame| frame.inlined && same(frame)).count();
            let more = rest.get(inlined).filter(|frame| same(frame)).is_some();
            let (frames, after) = rest.split_at((inlined + usize::from(more)).max(1));
            found.push(self.location(frames, ids));
            rest = after;
        }
        found
    }

    fn location(&mut self, frames: &'a [Frame], ids: &HashMap<&'a str, &'a str>) -> u64 {
        let Some(outermost) = frames.last() else { return 0 };
        let path = outermost.module.as_deref();
        let mapping = path.and_then(|path| {
            let id = ids.get(path).copied().unwrap_or_default();
            self.mappings.get(&(path, id)).and_then(|&place| self.mapping_table.get_mut(place))
        });
        let (mut mapping_id, mut address) = (0, outermost.offset);
        if let Some(mapping) = mapping {
            mapping_id = mapping.id;
            // The call, not what comes after it: readers that look names up themselves want an address inside of it.
            address = mapping.memory_start.saturating_add(outermost.offset.saturating_sub(1));
            mapping.has_functions &= outermost.function.is_some();
            mapping.has_filenames &= outermost.file.is_some();
            mapping.has_line_numbers &= outermost.line.is_some();
            mapping.has_inline_frames &= outermost.line.is_some();
        }
        let mut lines = Vec::new();
        for frame in frames.iter().filter(|frame| frame.function.is_some()) {
            let name = frame.function.as_deref().unwrap_or_default();
            let function = self.function(name, frame.file.as_deref().unwrap_or_default());
            lines.push((function, frame.line.map_or(0, i64::from)));
        }
        self.place((mapping_id, address, lines))
    }

    fn place(&mut self, place: Place) -> u64 {
        if let Some(&id) = self.locations.get(&place) {
            return id;
        }
        let id = self.location_table.len() as u64 + 1;
        let line = place.2.iter().map(|&(function_id, line)| Line { function_id, line }).collect();
        let (mapping_id, address, _) = place;
        self.location_table.push(Location { id, mapping_id, address, line, is_folded: false });
        self.locations.insert(place, id);
        id
    }

    fn function(&mut self, name: &str, file: &str) -> u64 {
        let (name, filename) = (self.string(name), self.string(file));
        let id = self.function_table.len() as u64 + 1;
        *self.functions.entry((name, filename)).or_insert_with(|| {
            self.function_table.push(Function { id, name, system_name: name, filename, start_line: 0 });
            id
        })
    }
}

fn build_ids(report: &Report) -> HashMap<&str, &str> {
    report.modules.iter().map(|module| (module.path.as_str(), module.build_id.as_str())).collect()
}

/// The format has signed numbers.
fn number(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}
