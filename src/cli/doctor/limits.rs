//! cuwarden's own configuration: what the variables and the ledger set.

use std::ffi::OsString;
use std::path::PathBuf;

use super::model::{Line, Verdict};
use crate::ledger::limit::Limit;
use crate::ledger::view::View;
use crate::policy::config::{Config, ConfigError};
use crate::process::default_directory;
use crate::report::size::bytes as size;
use crate::report::uuid;

/// Values that a process would refuse to start with.
pub fn configuration(variable: &dyn Fn(&str) -> Option<OsString>) -> Vec<Line> {
    let (_, errors) = Config::parse(variable);
    let line = |error: &ConfigError| {
        let text =
            format!("{}=\"{}\": {}; cuInit would return 800", error.variable, error.value, error.reason);
        Line::new("configuration", Verdict::Failed, text, format!("Allowed: {}.", error.allowed))
    };
    errors.iter().map(line).collect()
}

/// No memory limit, by a variable or by the operator: a baseline is for parts of a card.
pub fn is_whole_card(config: &Config) -> bool {
    let directory = config.dir.clone().unwrap_or_else(default_directory);
    let by_operator = || {
        let view = View::open(&directory).ok().flatten();
        let mut devices = view.iter().flat_map(View::devices);
        devices.any(|device| matches!(device.limit, Limit::Operators(bytes) if bytes != 0))
    };
    config.limits.is_unlimited() && !by_operator()
}

/// By the variables and the ledger.
pub fn look(variable: &dyn Fn(&str) -> Option<OsString>) -> Vec<Line> {
    let (config, _) = Config::parse(variable);
    let mut lines = configuration(variable);
    let directory: PathBuf = config.dir.clone().unwrap_or_else(default_directory);
    let told = if config.limits.is_unlimited() {
        None
    } else {
        let value = variable(config.limits_from).unwrap_or_default();
        Some(format!("{}={}", config.limits_from, value.to_string_lossy()))
    };
    let mut parts: Vec<String> = told.into_iter().collect();
    match View::open(&directory) {
        Ok(Some(view)) => parts.extend(of_ledger(&view)),
        Ok(None) => {}
        Err(error) => lines.push(Line::new(
            "quota",
            Verdict::Failed,
            format!("the ledger in {} cannot be used: {error}", directory.display()),
            "Name another CUWARDEN_DIR, or end its processes and remove it.",
        )),
    }
    if lines.is_empty() {
        let text = if parts.is_empty() { "none is set".to_owned() } else { parts.join("; ") };
        lines.push(Line::ok("quota", format!("{text} (directory {})", directory.display())));
    }
    lines
}

fn of_ledger(view: &View) -> Vec<String> {
    let devices = view.devices();
    let mut parts: Vec<String> = devices
        .iter()
        .filter(|device| device.limit != Limit::Unset)
        .map(|device| {
            let limit = match device.limit.bytes() {
                0 => "no limit".to_owned(),
                bytes => size(bytes),
            };
            let by = if matches!(device.limit, Limit::Operators(_)) { ", by the operator" } else { "" };
            let kind = if device.is_mig { "MIG" } else { "GPU" };
            let uuid = uuid::text(&device.uuid);
            format!("{kind}-{uuid}: {limit}{by}, {} used", size(device.used()))
        })
        .collect();
    if let Limit::Operators(bytes) = view.default_limit() {
        parts.push(format!("other devices: {}, by the operator", size(bytes)));
    }
    parts
}
