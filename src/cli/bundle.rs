//! The simulated GPU and the demo program, which the command line carries inside itself.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::error::{Failure, NOT_RUN};
use super::run::{Environment, make_folder};

/// One file that build.rs made.
pub struct Bundled {
    /// Its name, without a folder.
    pub name: &'static str,
    /// What is in it.
    pub bytes: &'static [u8],
}

include!(concat!(env!("OUT_DIR"), "/bundle.rs"));

/// Puts the simulated GPU into `directory`, and the program's libraries to look for there first.
pub fn install(directory: &Path, environment: &mut Environment) -> Result<(), Failure> {
    if SIMULATED_GPU.is_empty() {
        return Err(Failure::new(
            NOT_RUN,
            "this cuwarden was built without the simulated GPU. Build it again from the whole source tree",
        ));
    }
    let folder = make_folder(&directory.join("sim"))?;
    let libraries = make_folder(&folder.join("lib"))?;
    for file in SIMULATED_GPU {
        file.extract(&libraries)?;
    }
    environment.set("CUWARDEN_SIM_DIR", &folder);
    environment.search_first(&libraries);
    Ok(())
}

/// Takes the simulated GPU out of a directory again, when nothing runs on it and the directory stays.
pub fn remove(directory: &Path) {
    // What remains of it is in the way of nobody.
    let _ = fs::remove_dir_all(directory.join("sim"));
}

impl Bundled {
    /// Writes the file into a folder, unless it is there already.
    pub fn extract(&self, folder: &Path) -> Result<(), Failure> {
        let path = folder.join(self.name);
        if fs::read(&path).is_ok_and(|there| there == self.bytes) {
            return Ok(());
        }
        let unfinished = folder.join(format!(".{}.{}", self.name, std::process::id()));
        // Renamed into place: a program that has the old one loaded keeps it whole.
        let written = || -> io::Result<()> {
            let mut file = fs::File::options().write(true).create_new(true).mode(0o700).open(&unfinished)?;
            file.write_all(self.bytes)?;
            fs::rename(&unfinished, &path)
        };
        written().map_err(|error| {
            let _ = fs::remove_file(&unfinished);
            Failure::path(NOT_RUN, "write", &path, &error)
        })
    }
}
