//! The directory that the processes of one run share.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::cli::error::{Failure, NOT_RUN};

/// A directory, which is removed at the end if it belongs to this run alone.
pub struct Directory {
    path: PathBuf,
    remove: bool,
    private: bool,
}

impl Directory {
    /// A new one with a name of its own, for this user only.
    pub fn private() -> Result<Directory, Failure> {
        // SAFETY: geteuid has no preconditions.
        let user = unsafe { libc::geteuid() };
        let mut last = None;
        // /tmp first: that is where others look for the directories of this user.
        for parent in [PathBuf::from("/tmp"), std::env::temp_dir()] {
            for attempt in 0..100 {
                let name = format!("cuwarden-{user}-run-{}-{attempt}", std::process::id());
                let path = parent.join(name);
                // Creating fails where anything has the name, so nobody can have prepared it.
                match DirBuilder::new().mode(0o700).create(&path) {
                    Ok(()) => return Ok(Directory { path, remove: true, private: true }),
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    Err(error) => {
                        last = Some((path, error));
                        break;
                    }
                }
            }
        }
        Err(match last {
            Some((path, error)) => Failure::new(
                NOT_RUN,
                format!("cannot make {}: {error}. Name a directory with --dir", path.display()),
            ),
            None => Failure::new(NOT_RUN, "cannot make a directory in /tmp. Name one with --dir"),
        })
    }

    /// One that others may use too; made where there is none.
    pub fn shared(path: &Path) -> Result<Directory, Failure> {
        Ok(Directory { path: make_folder(path)?, remove: false, private: false })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Is it this run's alone?
    pub fn is_private(&self) -> bool {
        self.private
    }

    /// Leaves it behind at the end.
    pub fn keep(&mut self) {
        self.remove = false;
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        if self.remove {
            // What remains of it is in the way of nobody.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// Makes a folder for this user only, where there is none, and answers its absolute path: the program may
/// change its working directory.
pub fn make_folder(path: &Path) -> Result<PathBuf, Failure> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .and_then(|()| fs::canonicalize(path))
        .map_err(|error| Failure::path(NOT_RUN, "make the folder", path, &error))
}
