//! Events: one JSON object a line, to stderr or `CUWARDEN_LOG_FILE`.
//!
//! Before a context exists the thread that has something to say writes it. From then on a writer thread does,
//! so that a full pipe never stops an application in the middle of a CUDA call.

pub mod cancel;
pub mod fields;
mod stderr;
mod writer;

use crate::policy::config::{Config, Level};
use crate::record::identity::realtime_ns;
use crate::report::time::rfc3339;
use serde::Serialize;
use serde_json::{Map, Value};

pub use writer::Sink;

/// Where the events of this process go.
pub struct Events {
    level: Level,
    labels: Map<String, Value>,
    sink: Sink,
}

#[derive(Serialize)]
struct Line<'a> {
    ts: String,
    level: &'static str,
    event: &'a str,
    pid: u32,
    tid: u32,
    #[serde(flatten)]
    fields: Map<String, Value>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    labels: &'a Map<String, Value>,
}

impl Events {
    /// As the configuration says.
    pub fn new(config: &Config) -> Events {
        let mut labels = Map::new();
        // Not by collect: that sorts, and brings 5 KB of code for it into the shim.
        for (key, value) in &config.labels {
            labels.insert(key.clone(), Value::from(value.as_str()));
        }
        Events { level: config.level, labels, sink: Sink::new(config.log_file.clone()) }
    }

    /// True when an event of this level is written.
    pub fn wants(&self, level: Level) -> bool {
        level <= self.level && self.level != Level::Off
    }

    /// Writes one event. `fields` must be a JSON object.
    pub fn emit(&self, level: Level, event: &str, fields: Value) {
        if !self.wants(level) {
            return;
        }
        let Value::Object(fields) = fields else { return };
        let line = Line {
            ts: rfc3339(realtime_ns()).unwrap_or_default(),
            level: level.name(),
            event,
            pid: std::process::id(),
            tid: thread_id(),
            fields,
            labels: &self.labels,
        };
        if let Ok(mut text) = serde_json::to_string(&line) {
            text.push('\n');
            self.sink.write(text);
        }
    }

    /// From now on a thread may be started to write events.
    pub fn allow_thread(&self) {
        self.sink.allow_thread();
    }

    /// Writes what is still waiting; at most a moment is spent on it.
    pub fn flush(&self) {
        self.sink.flush();
    }
}

/// The kernel's id of this thread.
pub fn thread_id() -> u32 {
    // SAFETY: no arguments, cannot fail. glibc has gettid() only since 2.30.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}
