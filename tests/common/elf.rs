//! What a library exports.

use std::path::Path;
use std::process::Command;

/// The names of the functions that a shared library defines for others. `readelf` comes with every C compiler.
pub fn exports(library: &Path) -> Vec<String> {
    let out = Command::new("readelf").args(["--dyn-syms", "--wide"]).arg(library).env("LC_ALL", "C").output();
    let out = out.expect("readelf runs");
    assert!(out.status.success(), "readelf {}: {}", library.display(), String::from_utf8_lossy(&out.stderr));
    let table = String::from_utf8_lossy(&out.stdout).into_owned();
    table.lines().filter_map(exported_function).collect()
}

/// `Num: Value Size Type Bind Vis Ndx Name[@version]`
fn exported_function(line: &str) -> Option<String> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, _, _, "FUNC", "GLOBAL" | "WEAK", "DEFAULT", section, name, ..] = fields[..] else { return None };
    let name = name.split('@').next().unwrap_or(name);
    (section != "UND").then(|| name.to_owned())
}
