//! A run within another one. The shim is in this process as well, and gives what we start the settings that it was started
//! with ([`crate::policy::follow`]): what we set over them would have no effect.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::policy::follow::{Fate, Start};
use crate::process::default_directory;

/// The outer run's environment.
pub struct Outer {
    block: Vec<u8>,
    overruled: Vec<String>,
}

impl Outer {
    /// `None`: there is none, or it lets programs set their own.
    pub fn here() -> Option<Outer> {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        if !maps.lines().any(|line| line.ends_with("/libcuwarden.so")) {
            return None;
        }
        let block = block(std::env::vars_os());
        Start::new(&block, b"").is_some().then_some(Outer { block, overruled: Vec::new() })
    }

    fn holds(&self, variable: &str, value: &OsStr) -> bool {
        let entry = [variable.as_bytes(), b"=", value.as_bytes()].concat();
        Start::new(&self.block, b"").is_some_and(|start| start.fate(&entry) == Fate::Goes)
    }

    /// The directory that all we start will use, whatever we say.
    pub fn directory(&self) -> Option<PathBuf> {
        match std::env::var_os("CUWARDEN_DIR").filter(|value| !value.is_empty()) {
            Some(path) => Some(path.into()),
            // No value that anybody could have set.
            None => self.holds("CUWARDEN_DIR", OsStr::new("\n")).then(default_directory),
        }
    }

    /// Notes an option that was given, and answers whether it has an effect.
    pub fn lets(&mut self, option: &str, variable: &str, value: impl AsRef<OsStr>) -> bool {
        let holds = self.holds(variable, value.as_ref());
        if holds {
            self.overruled.push(match std::env::var_os(variable) {
                Some(there) => {
                    format!("{option} has no effect, {variable} is {}", Path::new(&there).display())
                }
                None => format!("{option} has no effect, {variable} is not set and there is a quota"),
            });
        }
        !holds
    }

    /// One message about all options that have no effect.
    pub fn message(&self) -> Option<String> {
        (!self.overruled.is_empty()).then(|| {
            format!(
                "this runs within another cuwarden, whose settings hold for all that it starts: {}",
                self.overruled.join("; ")
            )
        })
    }
}

fn block(variables: impl Iterator<Item = (OsString, OsString)>) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in variables {
        for part in [name.as_bytes(), b"=", value.as_bytes(), b"\0"] {
            block.extend_from_slice(part);
        }
    }
    block
}
