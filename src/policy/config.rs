//! The environment variables of `interface.md`, parsed once into [`Config`].

use super::drift::{self, Settings};
use super::limit::{self, Limits, Selector};
use super::versions::exceptions::{self, Exceptions};
use super::versions::{CudaVersion, VERSION_ALLOWED};
use crate::record::layout::MAX_DEVICES;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// Frames kept for each allocation when `CUWARDEN_STACKS` is unset.
pub const DEFAULT_STACK_DEPTH: u32 = 24;
/// The most frames that can be asked for.
pub const MAX_STACK_DEPTH: u32 = 128;

/// How much is logged. Each level includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing.
    Off,
    /// The process cannot do what it was asked to.
    Error,
    /// Something that a person should look at.
    Warn,
    /// Normal life.
    Info,
    /// For those who work on cuwarden.
    Debug,
}

impl Level {
    /// As written in events.
    pub fn name(self) -> &'static str {
        match self {
            Level::Off => "off",
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Info => "info",
            Level::Debug => "debug",
        }
    }
}

/// A value that cannot be used: never ignored, never guessed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The variable's name.
    pub variable: String,
    /// Its value, or the part that is wrong.
    pub value: String,
    /// What is wrong with it.
    pub reason: String,
    /// What may stand there.
    pub allowed: &'static str,
}

/// What happens where a baseline is violated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BaselineMode {
    /// CUDA does not start.
    #[default]
    Enforce,
    /// It is said, and CUDA starts.
    Warn,
    /// Nothing.
    Off,
}

impl BaselineMode {
    /// As in `CUWARDEN_BASELINE_MODE` and in events.
    pub fn name(self) -> &'static str {
        match self {
            BaselineMode::Enforce => "enforce",
            BaselineMode::Warn => "warn",
            BaselineMode::Off => "off",
        }
    }
}

/// The vGPU baseline.
#[derive(Clone, Debug, Default)]
pub struct Baseline {
    /// The CUDA version that the host of the vGPU was made for; `None` = no baseline.
    pub version: Option<CudaVersion>,
    /// What happens where it is violated.
    pub mode: BaselineMode,
    /// Who may use an older runtime.
    pub exceptions: Exceptions,
}

impl Baseline {
    /// The version that is to be checked, if any.
    pub fn in_force(&self) -> Option<CudaVersion> {
        self.version.filter(|_| self.mode != BaselineMode::Off)
    }
}

/// What the operator asked for.
#[derive(Clone, Debug)]
pub struct Config {
    /// The directory that processes of one container share; `None` = the default place.
    pub dir: Option<PathBuf>,
    /// Memory limits by device.
    pub limits: Limits,
    /// The variable that they come from.
    pub limits_from: &'static str,
    /// Where the leak report goes; absolute, as far as the working directory could be named.
    pub report: Option<PathBuf>,
    /// Frames kept for each allocation.
    pub stack_depth: u32,
    /// `K=V` pairs, in the order given.
    pub labels: Vec<(String, String)>,
    /// As given, for the record file.
    pub labels_text: String,
    /// What is logged.
    pub level: Level,
    /// Where events go; `None` = stderr. Absolute like `report`.
    pub log_file: Option<PathBuf>,
    /// Replace the context slot of the driver's private table.
    pub private_tables: bool,
    /// Contexts are a part of what the quota is for.
    pub count_contexts: bool,
    /// Which versions of CUDA may be used.
    pub baseline: Baseline,
    /// What makes growth suspicious; `None` = nobody looks.
    pub drift: Option<Settings>,
}

/// True when `CUWARDEN_DISABLE=1`; any other value but empty and `0` is reported by [`Config::parse`].
pub fn is_disabled(value: Option<&OsStr>) -> bool {
    value == Some(OsStr::new("1"))
}

impl Config {
    /// Reads the configuration through `var`, which answers like `std::env::var_os`. The configuration is
    /// usable for logging even where there are errors.
    pub fn parse(var: &dyn Fn(&str) -> Option<OsString>) -> (Config, Vec<ConfigError>) {
        let mut reader = Reader { var, errors: Vec::new() };
        let labels_text = reader.text("CUWARDEN_LABELS", LABELS_ALLOWED).unwrap_or_default();
        let config = Config {
            dir: reader.shared_directory(),
            limits: reader.limits(),
            limits_from: reader.limits_from(),
            report: reader.fixed_path("CUWARDEN_REPORT"),
            stack_depth: reader.stack_depth(),
            labels: reader.labels(&labels_text),
            labels_text,
            level: reader.level(),
            log_file: reader.fixed_path("CUWARDEN_LOG_FILE"),
            private_tables: reader.switch("CUWARDEN_PRIVATE_TABLES", true),
            count_contexts: reader.switch("CUWARDEN_COUNT_CONTEXT", true),
            baseline: reader.baseline(),
            drift: reader.drift(),
        };
        reader.switch("CUWARDEN_DISABLE", false);
        // Read by itself where a program is started, long before this.
        reader.switch("CUWARDEN_FOLLOW", true);
        (config, reader.errors)
    }
}

const LABELS_ALLOWED: &str = "KEY=VALUE pairs separated by commas, for example arm=A,cuda=12.4";

struct Reader<'a> {
    var: &'a dyn Fn(&str) -> Option<OsString>,
    errors: Vec<ConfigError>,
}

impl Reader<'_> {
    /// An empty value counts as unset: that is what an unset variable in a template leaves behind.
    fn raw(&self, name: &str) -> Option<OsString> {
        (self.var)(name).filter(|value| !value.is_empty())
    }

    fn text(&mut self, name: &str, allowed: &'static str) -> Option<String> {
        match self.raw(name)?.into_string() {
            Ok(text) => Some(text),
            Err(raw) => {
                self.wrong(name, &raw.to_string_lossy(), "not UTF-8", allowed);
                None
            }
        }
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        self.raw(name).map(PathBuf::from)
    }

    /// What it means now, since the application may go to another directory.
    fn fixed_path(&self, name: &str) -> Option<PathBuf> {
        let path = self.path(name)?;
        // An absolute path stays as it is.
        Some(std::env::current_dir().map_or_else(|_| path.clone(), |here| here.join(&path)))
    }

    /// Processes with different working directories must mean the same place.
    fn shared_directory(&mut self) -> Option<PathBuf> {
        let path = self.path("CUWARDEN_DIR")?;
        if !path.is_absolute() {
            self.wrong(
                "CUWARDEN_DIR",
                &path.to_string_lossy(),
                "a relative path",
                "an absolute path of a directory",
            );
        }
        Some(path)
    }

    fn limits(&mut self) -> Limits {
        if let Some(text) = self.text("CUWARDEN_MEMORY_LIMIT", limit::ALLOWED) {
            return Limits::parse(&text).unwrap_or_else(|e| {
                self.wrong("CUWARDEN_MEMORY_LIMIT", &text, &e.to_string(), limit::ALLOWED);
                Limits::default()
            });
        }
        self.hami_limits()
    }

    fn limits_from(&self) -> &'static str {
        match self.raw("CUWARDEN_MEMORY_LIMIT") {
            None if self.raw("CUDA_DEVICE_MEMORY_LIMIT").is_some() => "CUDA_DEVICE_MEMORY_LIMIT",
            _ => "CUWARDEN_MEMORY_LIMIT",
        }
    }

    /// HAMi's device plugin sets `CUDA_DEVICE_MEMORY_LIMIT_<i>=<MiB>m`, or one variable for all devices.
    fn hami_limits(&mut self) -> Limits {
        let mut limits = Limits::default();
        let numbered = (0..MAX_DEVICES as u32)
            .map(|i| (Selector::Ordinal(i), format!("CUDA_DEVICE_MEMORY_LIMIT_{i}")))
            .chain([(Selector::Any, "CUDA_DEVICE_MEMORY_LIMIT".to_owned())]);
        for (selector, name) in numbered {
            let Some(text) = self.text(&name, SIZE_ALLOWED) else { continue };
            let added = limit::parse_bytes(&text).and_then(|bytes| limits.add(selector, bytes, &text));
            if let Err(e) = added {
                self.wrong(&name, &text, &e.to_string(), SIZE_ALLOWED);
            }
        }
        limits
    }

    /// All three are read even where one of them makes the others meaningless: what is wrong is said now.
    fn baseline(&mut self) -> Baseline {
        Baseline {
            version: self.baseline_version(),
            mode: self.baseline_mode(),
            exceptions: self.baseline_exceptions(),
        }
    }

    fn baseline_version(&mut self) -> Option<CudaVersion> {
        let text = self.text("CUWARDEN_BASELINE", VERSION_ALLOWED)?;
        let version = CudaVersion::parse(&text);
        if version.is_none() {
            self.wrong("CUWARDEN_BASELINE", &text, "not a CUDA version", VERSION_ALLOWED);
        }
        version
    }

    fn baseline_mode(&mut self) -> BaselineMode {
        const ALLOWED: &str = "enforce, warn or off";
        let Some(text) = self.text("CUWARDEN_BASELINE_MODE", ALLOWED) else { return BaselineMode::default() };
        [BaselineMode::Enforce, BaselineMode::Warn, BaselineMode::Off]
            .into_iter()
            .find(|mode| mode.name() == text)
            .unwrap_or_else(|| {
                self.wrong("CUWARDEN_BASELINE_MODE", &text, "not a mode", ALLOWED);
                BaselineMode::default()
            })
    }

    fn baseline_exceptions(&mut self) -> Exceptions {
        let Some(text) = self.text("CUWARDEN_BASELINE_ALLOW", exceptions::ALLOWED) else {
            return Exceptions::default();
        };
        Exceptions::parse(&text).unwrap_or_else(|reason| {
            self.wrong("CUWARDEN_BASELINE_ALLOW", &text, &reason, exceptions::ALLOWED);
            Exceptions::default()
        })
    }

    fn stack_depth(&mut self) -> u32 {
        const ALLOWED: &str = "a number of frames from 0 (none) to 128";
        let Some(text) = self.text("CUWARDEN_STACKS", ALLOWED) else { return DEFAULT_STACK_DEPTH };
        match text.parse() {
            Ok(depth) if depth <= MAX_STACK_DEPTH && text.bytes().all(|b| b.is_ascii_digit()) => depth,
            _ => {
                self.wrong("CUWARDEN_STACKS", &text, "not a number of frames", ALLOWED);
                DEFAULT_STACK_DEPTH
            }
        }
    }

    fn labels(&mut self, text: &str) -> Vec<(String, String)> {
        let mut labels: Vec<(String, String)> = Vec::new();
        for part in text.split(',').filter(|_| !text.is_empty()) {
            match part.split_once('=') {
                Some((key, value)) if !key.is_empty() && labels.iter().all(|(known, _)| known != key) => {
                    labels.push((key.to_owned(), value.to_owned()));
                }
                _ => {
                    self.wrong(
                        "CUWARDEN_LABELS",
                        text,
                        &format!("\"{part}\" is not a new KEY=VALUE"),
                        LABELS_ALLOWED,
                    );
                }
            }
        }
        if text.len() > 1024 {
            self.wrong("CUWARDEN_LABELS", text, "longer than 1024 bytes", LABELS_ALLOWED);
        }
        labels
    }

    fn level(&mut self) -> Level {
        const ALLOWED: &str = "error, warn, info, debug or off";
        let Some(text) = self.text("CUWARDEN_LOG", ALLOWED) else { return Level::Warn };
        [Level::Off, Level::Error, Level::Warn, Level::Info, Level::Debug]
            .into_iter()
            .find(|level| level.name() == text)
            .unwrap_or_else(|| {
                self.wrong("CUWARDEN_LOG", &text, "not a level", ALLOWED);
                Level::Warn
            })
    }

    fn switch(&mut self, name: &str, default: bool) -> bool {
        const ALLOWED: &str = "0 or 1";
        match self.text(name, ALLOWED).as_deref() {
            None => default,
            Some("0") => false,
            Some("1") => true,
            Some(other) => {
                let other = other.to_owned();
                self.wrong(name, &other, "not a switch", ALLOWED);
                default
            }
        }
    }

    fn drift(&mut self) -> Option<Settings> {
        let text = self.text("CUWARDEN_DRIFT", drift::ALLOWED).unwrap_or_default();
        drift::parse(&text).unwrap_or_else(|(part, reason)| {
            self.wrong("CUWARDEN_DRIFT", &part, reason, drift::ALLOWED);
            None
        })
    }

    fn wrong(&mut self, variable: &str, value: &str, reason: &str, allowed: &'static str) {
        self.errors.push(ConfigError {
            variable: variable.to_owned(),
            value: value.chars().take(256).collect(),
            reason: reason.to_owned(),
            allowed,
        });
    }
}

const SIZE_ALLOWED: &str = "a size such as 4096m or 4GiB (1024-based, 0 = unlimited)";

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(vars: &[(&str, &str)]) -> (Config, Vec<ConfigError>) {
        Config::parse(&|name| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v)))
    }

    #[test]
    fn nothing_set() {
        let (config, errors) = parse(&[]);
        assert_eq!(errors, []);
        assert!(config.limits.is_unlimited());
        assert_eq!((config.stack_depth, config.level, config.private_tables), (24, Level::Warn, true));
    }

    #[test]
    fn everything_set() {
        let (config, errors) = parse(&[
            ("CUWARDEN_MEMORY_LIMIT", "4GiB"),
            ("CUDA_DEVICE_MEMORY_LIMIT", "not read"),
            ("CUWARDEN_STACKS", "0"),
            ("CUWARDEN_LABELS", "arm=A,cuda=12.4"),
            ("CUWARDEN_LOG", "debug"),
            ("CUWARDEN_REPORT", "/r"),
            ("CUWARDEN_DISABLE", "0"),
            ("CUWARDEN_BASELINE", "12.4"),
            ("CUWARDEN_BASELINE_MODE", "off"),
        ]);
        assert_eq!(errors, []);
        assert_eq!(config.limits.of(3, "GPU-x"), 4 << 30);
        assert_eq!((config.stack_depth, config.level), (0, Level::Debug));
        assert_eq!(config.labels, [("arm".into(), "A".into()), ("cuda".into(), "12.4".into())]);
    }

    #[test]
    fn paths_mean_what_they_meant_at_the_start() {
        let (config, errors) =
            parse(&[("CUWARDEN_REPORT", "reports"), ("CUWARDEN_LOG_FILE", "./log/events")]);
        assert_eq!(errors, []);
        let here = std::env::current_dir().unwrap();
        assert_eq!(config.report, Some(here.join("reports")));
        assert_eq!(config.log_file, Some(here.join("log/events")));
        let (config, _) = parse(&[("CUWARDEN_REPORT", "/a//./b/../c")]);
        assert_eq!(config.report.unwrap().as_os_str(), "/a//./b/../c");
    }

    #[test]
    fn hami_variables() {
        let (config, errors) =
            parse(&[("CUDA_DEVICE_MEMORY_LIMIT_1", "3000m"), ("CUDA_DEVICE_MEMORY_LIMIT", "1g")]);
        assert_eq!(errors, []);
        assert_eq!((config.limits.of(0, ""), config.limits.of(1, "")), (1 << 30, 3000 << 20));
        let (_, errors) = parse(&[("CUDA_DEVICE_MEMORY_LIMIT_0", "3000q")]);
        assert_eq!(errors[0].variable, "CUDA_DEVICE_MEMORY_LIMIT_0");
    }

    #[test]
    fn a_baseline_is_enforced_unless_it_is_said_otherwise() {
        let of = |vars: &[(&str, &str)]| {
            let (config, errors) = parse(vars);
            assert_eq!(errors, []);
            config.baseline
        };
        let version = Some(CudaVersion::new(12, 4));
        let set = of(&[("CUWARDEN_BASELINE", "12.4")]);
        assert_eq!((set.version, set.mode, set.in_force()), (version, BaselineMode::Enforce, version));
        for (mode, in_force) in [("enforce", version), ("warn", version), ("off", None)] {
            let set = of(&[("CUWARDEN_BASELINE", "12.4"), ("CUWARDEN_BASELINE_MODE", mode)]);
            assert_eq!((set.mode.name(), set.in_force()), (mode, in_force));
        }
        assert_eq!(of(&[("CUWARDEN_BASELINE_MODE", "enforce")]).in_force(), None);
        let set = of(&[("CUWARDEN_BASELINE", "12.4"), ("CUWARDEN_BASELINE_ALLOW", "old*=11.8,/opt/*=11.7")]);
        assert!(set.exceptions.allow("/usr/bin/older", CudaVersion::new(11, 8)));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (name, value) in [
            ("CUWARDEN_MEMORY_LIMIT", "4G "),
            ("CUWARDEN_STACKS", "+4"),
            ("CUWARDEN_STACKS", "129"),
            ("CUWARDEN_LABELS", "arm"),
            ("CUWARDEN_LABELS", "arm=A,arm=B"),
            ("CUWARDEN_LABELS", "arm=A,"),
            ("CUWARDEN_LOG", "loud"),
            ("CUWARDEN_DISABLE", "yes"),
            ("CUWARDEN_FOLLOW", "no"),
            ("CUWARDEN_PRIVATE_TABLES", "2"),
            ("CUWARDEN_DIR", "here"),
            ("CUWARDEN_BASELINE", "12"),
            ("CUWARDEN_BASELINE", "twelve"),
            ("CUWARDEN_BASELINE_MODE", "strict"),
            ("CUWARDEN_BASELINE_ALLOW", "trainer"),
            ("CUWARDEN_DRIFT", "percent=many"),
        ] {
            let (_, errors) = parse(&[(name, value)]);
            assert_eq!(errors.len(), 1, "{name}={value}");
            assert_eq!((errors[0].variable.as_str(), errors[0].value.as_str()), (name, value));
        }
    }
}
