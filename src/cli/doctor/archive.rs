//! `--bundle FILE`: what somebody needs who is to help from afar, in one archive, without what is nobody's business.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

use super::super::error::{Failure, INTERNAL, NO_OUTPUT};
use super::super::records::{self, Progress};
use super::ld_conf;
use super::model::Answer;
use super::redact::Redactor;
use crate::diagnose::machine::Place;
use crate::ledger::limit::Limit;
use crate::ledger::view::View;
use crate::report::text::clean;
use crate::report::uuid;

/// The folder in the archive.
const FOLDER: &str = "cuwarden-doctor";

const README: &str = "\
What `cuwarden doctor --bundle` found on a machine, to be sent to somebody who helps.

doctor.txt, doctor.json   what doctor answers
nvml.json                 the NVML calls that it made, in order
environment.txt           names of all variables; values of CUDA, NVIDIA, CUWARDEN and LD_ variables only
devices.txt               NVIDIA's device nodes: mode, owner, numbers, and whether they can be opened
ld.so.conf.txt            the loader's configuration, with what it includes
driver.txt                /proc/driver/nvidia/version
ledger.json, records.json accounts of the shared directory that --dir named

Taken out: names of hosts and users, IP and MAC addresses, home folders, and what looks like a token, a key or a password.
UUIDs of cards and process ids are left in. Look through it before you send it.
";

/// An archive that is being made. Until it is finished, nobody is to find a part of it.
pub struct Archive {
    file: Option<File>,
    path: PathBuf,
}

impl Archive {
    /// Makes the file, for its owner alone. A file or a link that is there already is left as it is.
    pub fn create(path: &Path) -> Result<Archive, Failure> {
        let file = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(path);
        match file {
            Ok(file) => Ok(Archive { file: Some(file), path: path.to_owned() }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(Failure::new(
                NO_OUTPUT,
                format!("{} is there already. Name a file that is not", path.display()),
            )),
            Err(error) => Err(Failure::path(NO_OUTPUT, "make", path, &error)),
        }
    }

    /// Writes all of it. `text`: the answer as people read it. `directory`: a CUWARDEN_DIR.
    pub fn finish(
        mut self,
        place: &Place,
        answer: &Answer,
        text: &str,
        directory: Option<&Path>,
    ) -> Result<(), Failure> {
        let parts = parts(place, answer, text, directory)?;
        let Some(file) = self.file.take() else { return Ok(()) };
        let written = write(file, &parts);
        if written.is_err() {
            let _ = fs::remove_file(&self.path);
        }
        written.map_err(|error| Failure::path(NO_OUTPUT, "write", &self.path, &error))
    }
}

impl Drop for Archive {
    fn drop(&mut self) {
        if self.file.is_some() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn write(file: File, parts: &[(&str, String)]) -> io::Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let mut archive = tar::Builder::new(GzEncoder::new(file, Compression::default()));
    for (name, text) in parts {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(now);
        archive.append_data(&mut header, format!("{FOLDER}/{name}"), text.as_bytes())?;
    }
    archive.into_inner()?.finish()?.flush()
}

fn parts(
    place: &Place,
    answer: &Answer,
    text: &str,
    directory: Option<&Path>,
) -> Result<Vec<(&'static str, String)>, Failure> {
    let redactor = Redactor::new(place, &|name| std::env::var_os(name));
    let json = |mut value: Value| {
        redactor.json(&mut value);
        serde_json::to_string_pretty(&value).map(|text| text + "\n")
    };
    let no_json = |error| Failure::new(INTERNAL, format!("cannot write JSON: {error}"));
    let mut parts = vec![
        ("README.txt", README.to_owned()),
        ("doctor.txt", redactor.text(text)),
        ("doctor.json", serde_json::to_value(answer).and_then(json).map_err(no_json)?),
        ("nvml.json", serde_json::to_value(&answer.nvml_chain).and_then(json).map_err(no_json)?),
        ("environment.txt", environment(&redactor)),
        ("devices.txt", redactor.text(&devices(place))),
        ("ld.so.conf.txt", redactor.text(&configuration(place))),
        ("driver.txt", redactor.text(&place.text("/proc/driver/nvidia/version").unwrap_or_default())),
    ];
    if let Some(directory) = directory {
        parts.push(("ledger.json", json(ledger(directory)).map_err(no_json)?));
        parts.push(("records.json", json(heads(directory)).map_err(no_json)?));
    }
    Ok(parts)
}

fn environment(redactor: &Redactor) -> String {
    let line = |(name, value): (OsString, OsString)| {
        clean(&redactor.variable(&name.to_string_lossy(), &value.to_string_lossy())) + "\n"
    };
    let mut lines: Vec<String> = std::env::vars_os().map(line).collect();
    lines.sort_unstable();
    lines.concat()
}

/// `/dev/nvidia0 crw-rw-rw- 0:0 195:0 opens`, and the links of /dev/char by which a container's rules find them.
fn devices(place: &Place) -> String {
    let mut paths: Vec<String> = place
        .names("/dev")
        .into_iter()
        .filter(|name| name.starts_with("nvidia"))
        .map(|name| format!("/dev/{name}"))
        .collect();
    paths.extend(place.names("/dev/nvidia-caps").into_iter().map(|name| format!("/dev/nvidia-caps/{name}")));
    let mut lines: Vec<String> = paths.iter().map(|path| device(place, path)).collect();
    for name in place.names("/dev/char") {
        let target = fs::read_link(place.path(format!("/dev/char/{name}"))).unwrap_or_default();
        let target = target.to_string_lossy();
        if target.contains("nvidia") {
            lines.push(format!("/dev/char/{name} -> {target}\n"));
        }
    }
    if lines.is_empty() { "none\n".to_owned() } else { lines.concat() }
}

fn device(place: &Place, path: &str) -> String {
    let here = place.path(path);
    let Ok(meta) = fs::symlink_metadata(&here) else { return format!("{path} cannot be looked at\n") };
    let kind = meta.file_type();
    let kind = match () {
        () if kind.is_char_device() => 'c',
        () if kind.is_block_device() => 'b',
        () if kind.is_dir() => 'd',
        () if kind.is_symlink() => 'l',
        () => '-',
    };
    let opens = if kind == 'c' {
        let opened = File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(&here);
        opened.map_or_else(|error| format!("does not open: {error}"), |_| "opens".to_owned())
    } else {
        "no device".to_owned()
    };
    let (major, minor) = (libc::major(meta.rdev()), libc::minor(meta.rdev()));
    format!(
        "{path} {kind}{:03o} {}:{} {major}:{minor} {opens}\n",
        meta.mode() & 0o777,
        meta.uid(),
        meta.gid()
    )
}

fn configuration(place: &Place) -> String {
    let mut files = ld_conf::files(place);
    let preload = "/etc/ld.so.preload".to_owned();
    files.extend(place.text(&preload).map(|text| ld_conf::Conf { path: preload, text }));
    files.iter().map(|file| format!("==> {} <==\n{}\n", file.path, file.text)).collect()
}

fn ledger(directory: &Path) -> Value {
    let view = match View::open(directory) {
        Ok(Some(view)) => view,
        Ok(None) => return json!({ "there": false }),
        Err(error) => return json!({ "error": error.to_string() }),
    };
    let limit = |limit: Limit| match limit {
        Limit::Unset => Value::Null,
        set => json!({ "bytes": set.bytes(), "by_operator": matches!(set, Limit::Operators(_)) }),
    };
    let devices: Vec<Value> = view
        .devices()
        .iter()
        .map(|device| {
            let holders: Vec<Value> = device
                .holders
                .iter()
                .map(|holder| {
                    json!({
                        "slot": holder.slot, "pid": holder.who.as_ref().map(|who| who.pid), "is_alive": holder.is_alive,
                        "bytes": holder.bytes, "context_bytes": holder.context_bytes,
                    })
                })
                .collect();
            json!({
                "uuid": uuid::text(&device.uuid), "is_mig": device.is_mig, "total_bytes": device.total_bytes,
                "limit": limit(device.limit), "used_bytes": device.used(), "denied": device.denied, "holders": holders,
            })
        })
        .collect();
    json!({ "there": true, "default_limit": limit(view.default_limit()), "devices": devices })
}

/// Of labels the names alone: their values are the site's own.
fn heads(directory: &Path) -> Value {
    let (records, problems) = match records::read(directory, &mut Progress::new()) {
        Ok(read) => read,
        Err(error) => return json!({ "error": error }),
    };
    let head = |record: &records::Record| {
        let devices: Vec<Value> = record
            .devices
            .iter()
            .map(|one| {
                json!({
                    "ordinal": one.state.ordinal, "uuid": one.state.uuid, "alloc_count": one.state.alloc_count,
                    "free_count": one.state.free_count,
                })
            })
            .collect();
        let labels: Vec<&String> = record.labels.keys().collect();
        json!({
            "pid": record.identity.pid, "exe": record.exe, "labels": labels, "started_ns": record.started_ns,
            "has_ended": record.has_ended, "devices": devices,
        })
    };
    json!({ "records": records.iter().map(head).collect::<Vec<_>>(), "problems": problems })
}
