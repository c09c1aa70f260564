//! From a command to the ELF file that runs: scripts have an interpreter, and `env` looks one up.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::program::find;
use crate::diagnose::machine::Place;

/// An interpreter may be a script; the kernel follows four.
const MOST_STEPS: usize = 5;
/// The kernel reads so many bytes of the first line.
const MOST_LINE: usize = 256;

/// Where it ends.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Followed {
    /// Scripts and wrappers, in order; empty where the command is a program itself.
    pub through: Vec<PathBuf>,
    /// What runs, or is taken for a program.
    pub program: PathBuf,
    /// Why it does not go on.
    pub broken: Option<String>,
}

/// Follows a file. `arguments`: what stands after it.
pub fn follow(place: &Place, file: &Path, arguments: &[OsString], path: Option<&OsString>) -> Followed {
    let mut arguments: Vec<String> = arguments.iter().map(|one| one.to_string_lossy().into_owned()).collect();
    let mut followed = Followed { program: file.to_owned(), ..Followed::default() };
    for _ in 0..MOST_STEPS {
        let here = followed.program.clone();
        let next = if let Some(line) = first_line(place, &here) {
            if line.ends_with('\r') {
                followed.broken = Some(format!(
                    "{} has lines that end in CR LF: the kernel looks for an interpreter {:?}",
                    here.display(),
                    line.trim_start()
                ));
                return followed;
            }
            let line = line.trim_matches([' ', '\t']);
            let (interpreter, argument) = line.split_once([' ', '\t']).unwrap_or((line, ""));
            // The kernel gives all of the rest as one argument.
            arguments = if argument.is_empty() { Vec::new() } else { vec![argument.trim().to_owned()] };
            arguments.push(here.to_string_lossy().into_owned());
            interpreter.to_owned()
        } else if here.file_name().is_some_and(|name| name == "env") {
            let Some(name) = looked_up(&arguments) else { return followed };
            arguments.clear();
            name
        } else {
            return followed;
        };
        let found = find(place, &next, path.cloned());
        followed.through.push(here);
        match found {
            Some(program) => followed.program = program,
            None => {
                let by = followed.through.last().map(|path| path.display().to_string()).unwrap_or_default();
                followed.broken = Some(format!("there is no {next}, which {by} asks for"));
                return followed;
            }
        }
    }
    followed
}

/// After `#!`; `None`: it is no script.
fn first_line(place: &Place, file: &Path) -> Option<String> {
    let bytes = place.bytes(&file.to_string_lossy())?;
    let line = bytes.get(..MOST_LINE).unwrap_or(&bytes).strip_prefix(b"#!")?;
    let line = line.split(|byte| *byte == b'\n').next()?;
    Some(String::from_utf8_lossy(line).into_owned())
}

/// The program that `env` starts with these arguments.
fn looked_up(arguments: &[String]) -> Option<String> {
    let mut words: Vec<String> = Vec::new();
    // -S takes one argument apart, as a script's first line needs it.
    for argument in arguments {
        let split = ["-S", "-vS", "--split-string=", "--split-string"]
            .iter()
            .find_map(|start| argument.strip_prefix(start));
        match split {
            Some(rest) => words.extend(rest.split_whitespace().map(str::to_owned)),
            None => words.push(argument.clone()),
        }
    }
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "-u" | "-C" | "--unset" | "--chdir" => drop(words.next()),
            "--" => return words.find(|word| !word.contains('=')),
            _ if word.starts_with('-') || word.contains('=') || word.is_empty() => {}
            _ => return Some(word),
        }
    }
    None
}

/// What a shell starts is not in its file.
pub fn is_shell(program: &Path) -> bool {
    const SHELLS: [&[u8]; 8] = [b"sh", b"bash", b"dash", b"zsh", b"ksh", b"fish", b"busybox", b"csh"];
    program.file_name().is_some_and(|name| SHELLS.contains(&name.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnose::fake::Fake;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    fn program(fake: &Fake, path: &str, text: &str) {
        fake.write(path, text);
        std::fs::set_permissions(fake.place().path(format!("/{path}")), Permissions::from_mode(0o755))
            .unwrap();
    }

    #[test]
    fn scripts_and_env() {
        let fake = Fake::empty();
        for path in ["usr/bin/python3", "usr/bin/env", "bin/sh"] {
            program(&fake, path, "\x7fELF");
        }
        let path = OsString::from("/opt/none:/usr/bin");
        let of = |text: &str| {
            program(&fake, "x/script", text);
            follow(&fake.place(), Path::new("/x/script"), &[], Some(&path))
        };
        for (text, program, steps) in [
            ("#!/usr/bin/python3 -u\nx", "/usr/bin/python3", 1),
            ("#! /usr/bin/env python3\n", "/usr/bin/python3", 2),
            ("#!/usr/bin/env -S A=b python3 -u\n", "/usr/bin/python3", 2),
            ("#!/usr/bin/env -S -i -u B --chdir /x python3\n", "/usr/bin/python3", 2),
            ("#!/bin/sh", "/bin/sh", 1),
            ("\x7fELF", "/x/script", 0),
            ("echo no first line", "/x/script", 0),
        ] {
            let followed = of(text);
            assert_eq!(
                (followed.program.as_path(), followed.through.len()),
                (Path::new(program), steps),
                "{text}"
            );
            assert_eq!(followed.broken, None, "{text}");
        }
        assert!(of("#!/none/python\n").broken.unwrap().contains("there is no /none/python"));
        assert!(of("#!/usr/bin/env ruby\n").broken.unwrap().contains("there is no ruby"));
        assert!(of("#!/bin/sh\r\n").broken.unwrap().contains("CR LF"));
        program(&fake, "x/loop", "#!/x/loop\n");
        assert!(follow(&fake.place(), Path::new("/x/loop"), &[], None).through.len() <= MOST_STEPS);
        // As a command of its own.
        let words = ["A=1", "python3", "train.py"].map(OsString::from);
        let followed = follow(&fake.place(), Path::new("/usr/bin/env"), &words, Some(&path));
        assert_eq!(followed.program, Path::new("/usr/bin/python3"));
        assert!(is_shell(Path::new("/bin/sh")) && !is_shell(Path::new("/usr/bin/python3")));
    }
}
