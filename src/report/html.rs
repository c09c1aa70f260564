//! A page of its own: nothing is fetched, and names that anybody may have chosen cannot run.
//!
//! The data is JSON in a block that no browser executes, and the page's script shows it as text. Should markup come in all
//! the same, the page's policy lets only this very script and style count, by their hashes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use serde::Serialize;

use super::Termination;
use super::folded::{label, program};
use super::judged::{Judged, State, Sum};
use super::model::Frame;
use super::text::{Style, bytes, clean, judged_headline, place, plural, without_plumbing};
use crate::growth::GrowthClass;

const STYLE: &str = include_str!("html/page.css");
const SCRIPT: &str = include_str!("html/page.js");
/// Of `STYLE` and `SCRIPT`, as a browser computes them; a test says which they must be.
const STYLE_HASH: &str = "sha256-MiKvEt22NGVLq6cS5iTkqim2dzRGVomRM6A4FHq78bo=";
const SCRIPT_HASH: &str = "sha256-auMnSDGBZ5gTGBIIwVeeMNel/GoaK3g0S39gsAajPPE=";
/// Frames of a call stack that the page has: what is deeper is no stack of a program.
const MOST_FRAMES: usize = 256;

#[derive(Serialize)]
struct Data {
    processes: Vec<Process>,
    /// Name, bytes, allocations, call stacks.
    libraries: Vec<(String, u64, u64, u64)>,
    suppressed: Vec<(String, u64, u64, u64)>,
    /// Names of libraries.
    names: Vec<String>,
    /// Function and place, each once.
    frames: Vec<(String, String)>,
    entries: Vec<Entry>,
}

#[derive(Serialize)]
struct Process {
    pid: u32,
    program: String,
    command: String,
    labels: String,
    state: &'static str,
    leaked: u64,
    denied: u64,
    /// When the samples of `Entry::course` were taken, in seconds since its start.
    times: Vec<f64>,
    /// When what is not freed was live, on the same clock.
    end: f64,
}

#[derive(Serialize)]
struct Entry {
    process: usize,
    device: u32,
    bytes: u64,
    count: u64,
    age: f64,
    /// Words for the class, and its pace in bytes a minute; none where it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    growth: Option<(GrowthClass, f64)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    course: Vec<u64>,
    api: String,
    library: usize,
    /// 0 = leak, 1 = suppressed, 2 = held by the driver.
    state: u8,
    #[serde(skip_serializing_if = "Option::is_none")]
    pattern: Option<String>,
    /// Places in `frames`, innermost first.
    stack: Vec<usize>,
    #[serde(skip_serializing_if = "is_zero")]
    more: usize,
}

fn is_zero(count: &usize) -> bool {
    *count == 0
}

/// The page of all `reports`.
pub fn html(reports: &[Judged]) -> Result<String, serde_json::Error> {
    let data = in_markup(&serde_json::to_string(&data(reports))?);
    let title = escape(&clean(&title(reports)));
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src '{STYLE_HASH}'; \
         script-src '{SCRIPT_HASH}'; base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n{BODY}\
         <script type=\"application/json\" id=\"data\">{data}</script>\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    ))
}

const BODY: &str = "\
<noscript><p class=\"bad\">This page needs JavaScript. cuwarden report without --format html gives the same as text.</p></noscript>
<section><h2>Processes</h2><div class=\"scroll\"><table><thead><tr><th class=\"n\">PID</th><th>State</th>\
<th class=\"n\">Not freed</th><th class=\"n\">Denied</th><th>Program</th><th>Labels</th></tr></thead>\
<tbody id=\"processes\"></tbody></table></div></section>
<section><h2>By library that asked</h2><table><thead><tr><th class=\"n\">Bytes</th><th class=\"n\">Allocations</th>\
<th class=\"n\">Call stacks</th><th>Library</th></tr></thead><tbody id=\"libraries\"></tbody></table></section>
<section><h2>Suppressed</h2><table><thead><tr><th class=\"n\">Bytes</th><th class=\"n\">Allocations</th>\
<th class=\"n\">Call stacks</th><th>Pattern</th></tr></thead><tbody id=\"suppressed\"></tbody></table></section>
<div class=\"controls\"><label>Filter <input type=\"search\" id=\"filter\" placeholder=\"function, file, library or call\"></label>\
<span id=\"states\" class=\"controls\"></span><span id=\"sum\" class=\"faint\" role=\"status\"></span></div>
<section><h2>Flame graph of live bytes</h2><div id=\"flame\"></div><div id=\"told\" class=\"faint\"></div></section>
<section><h2>Call stacks</h2><div class=\"scroll\"><table><thead><tr id=\"head\"></tr></thead><tbody id=\"stacks\"></tbody></table></div>\
<button type=\"button\" id=\"more\" class=\"more\" hidden></button></section>
";

fn title(reports: &[Judged]) -> String {
    if let [one] = reports {
        return format!("{}: {}", program(one), judged_headline(one, &Style::PLAIN));
    }
    let mut sum = Sum::default();
    reports.iter().filter(|one| has_ended(one)).for_each(|one| sum.merge(one.sum(State::Leak)));
    format!(
        "{} processes: {} not freed in {}",
        reports.len(),
        bytes(sum.bytes),
        plural(sum.count, "allocation")
    )
}

fn has_ended(judged: &Judged) -> bool {
    judged.report.termination != Termination::Running
}

fn data(reports: &[Judged]) -> Data {
    let mut names = Numbers::default();
    let mut frames = Numbers::default();
    let mut entries = Vec::new();
    let (mut libraries, mut suppressed) = (Sums::default(), Sums::default());
    for (process, judged) in reports.iter().enumerate() {
        libraries.add(judged.libraries());
        suppressed.add(judged.suppressed());
        for (leak, mark, state) in judged.entries() {
            let stack = without_plumbing(&leak.stack);
            let shown = stack.get(..MOST_FRAMES).unwrap_or(stack);
            entries.push(Entry {
                process,
                device: leak.device,
                bytes: leak.bytes,
                count: leak.count,
                age: leak.oldest_age_s.max(0.0),
                growth: leak.growth.map(|growth| (growth.class, growth.bytes_a_minute)),
                course: leak.timeline.clone(),
                api: clean(&leak.api),
                library: names.of(clean(&mark.library)),
                state: match state {
                    State::Leak => 0,
                    State::Suppressed => 1,
                    State::Held => 2,
                },
                pattern: mark.suppressed.as_deref().map(clean),
                stack: shown.iter().map(|frame| frames.of(words(frame))).collect(),
                more: stack.len() - shown.len(),
            });
        }
    }
    entries.sort_by_key(|entry| Reverse(entry.bytes));
    Data {
        processes: reports.iter().map(process).collect(),
        libraries: libraries.rows(),
        suppressed: suppressed.rows(),
        names: names.list,
        frames: frames.list,
        entries,
    }
}

fn process(judged: &Judged) -> Process {
    let report = &judged.report;
    let command = if report.cmdline.is_empty() { report.exe.clone() } else { report.cmdline.join(" ") };
    let labels: Vec<String> = report.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    Process {
        pid: report.pid,
        program: clean(&program(judged)),
        command: clean(&command),
        labels: clean(&labels.join(", ")),
        state: match report.termination {
            Termination::Exit => "ended",
            Termination::Killed => "killed",
            Termination::Running => "running",
            Termination::Unknown => "unknown",
        },
        leaked: judged.sum(State::Leak).bytes,
        denied: report.denied(),
        times: report.timeline_s.clone(),
        end: report.lived_s,
    }
}

fn words(frame: &Frame) -> (String, String) {
    let inlined = if frame.inlined { " (inlined)" } else { "" };
    (clean(&label(frame)), clean(&place(frame)) + inlined)
}

/// Gives each value a number, in the order in which they come.
struct Numbers<T> {
    known: HashMap<T, usize>,
    list: Vec<T>,
}

impl<T> Default for Numbers<T> {
    fn default() -> Numbers<T> {
        Numbers { known: HashMap::new(), list: Vec::new() }
    }
}

impl<T: Clone + Eq + Hash> Numbers<T> {
    fn of(&mut self, value: T) -> usize {
        let next = self.list.len();
        *self.known.entry(value).or_insert_with_key(|value| {
            self.list.push(value.clone());
            next
        })
    }
}

/// Sums by name over processes.
#[derive(Default)]
struct Sums(BTreeMap<String, Sum>);

impl Sums {
    fn add(&mut self, list: Vec<(&str, Sum)>) {
        list.into_iter().for_each(|(name, sum)| self.0.entry(clean(name)).or_default().merge(sum));
    }

    fn rows(self) -> Vec<(String, u64, u64, u64)> {
        let mut list: Vec<_> = self.0.into_iter().collect();
        list.sort_by_key(|(_, sum)| Reverse(*sum));
        list.into_iter().map(|(name, sum)| (name, sum.bytes, sum.count, sum.stacks)).collect()
    }
}

/// JSON that cannot end the block it stands in, whatever its strings hold: in JSON these letters are only in strings.
fn in_markup(json: &str) -> String {
    json.replace('&', "\\u0026").replace('<', "\\u003c").replace('>', "\\u003e")
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_ends_the_block() {
        assert_eq!(in_markup(r#"["</script><!--&"]"#), r#"["\u003c/script\u003e\u003c!--\u0026"]"#);
        assert_eq!(escape("<b onclick='\"&\">"), "&lt;b onclick=&#39;&quot;&amp;&quot;&gt;");
        let text = serde_json::to_string(&["<&>\u{2028}"]).unwrap();
        assert_eq!(serde_json::from_str::<[String; 1]>(&in_markup(&text)).unwrap(), ["<&>\u{2028}"]);
    }
}
