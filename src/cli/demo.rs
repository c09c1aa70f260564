//! `cuwarden demo`: three acts on the simulated GPU.
//!
//! All that is shown is what the program, the shim and the reports said; only the text between is written
//! here. Where one of them said something else than the text promises, the demo fails.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use serde_json::Value;

use super::bundle::{self, DEMO};
use super::error::{Failure, INTERNAL, NOT_RUN};
use super::load::record_file;
use super::run::{Directory, Environment, find_shim, make_folder};
use super::terminal;
use crate::record::snapshot::Observer;
use crate::report::Report;
use crate::report::symbols::Symbolizer;
use crate::report::text::{self, Style, bytes, clean};

/// See the main job at work on a simulated GPU.
///
/// A small program leaks device memory, meets its quota, and finds a device that another process has to itself. No GPU and
/// no driver is needed.
#[derive(clap::Args)]
#[command(after_help = "\
Example:
  cuwarden demo

Exit status: 0; 70 where something went otherwise than the demo's text says; 125 it could not be started.")]
pub struct Arguments {}

/// What the program leaks in the first act.
const LEAKED: u64 = 16 << 20;

pub fn main(_: Arguments) -> Result<ExitCode, Failure> {
    let stage = Stage::new()?;
    let style = terminal::style();
    let say = Say { style };
    say.title("cuwarden demo")?;
    say.words(
        "You will see a small program do three things wrong, and what cuwarden says about each. There is no GPU in \
         this demo: a simulated one takes the place of NVIDIA's driver. The program, the preloaded shim, the quota \
         and the reports are real, and work in the same way on a real GPU.",
    )?;
    first_act(&stage, &say)?;
    second_act(&stage, &say)?;
    third_act(&stage, &say)?;
    say.title("That was the demo. Try it on something of yours:")?;
    say.as_it_is(
        "\n  cuwarden run -- python train.py             hear of its leaks at the end\n  \
         cuwarden run --memory-limit 4GiB -- ./app   the same with a quota\n  \
         cuwarden run --report DIR -- ./app          a report for each process; cuwarden report DIR\n  \
         cuwarden run --help                         all options\n",
    )?;
    Ok(ExitCode::SUCCESS)
}

fn first_act(stage: &Stage, say: &Say) -> Result<(), Failure> {
    let act = stage.play("leak", &[])?;
    say.opening("Act 1: it forgets to free", "cuwarden run --sim -- ./forgetful leak", &act)?;
    say.words(
        "It ended without an error, and nobody would notice. But the shim kept a record of each allocation with its \
         call stack, and this is what was never freed:",
    )?;
    let report = act.report()?;
    say.report(&report)?;
    let (leaked, _) = report.leaked();
    expect(leaked == LEAKED, || {
        format!("the program leaks {}, and the report says {}", bytes(LEAKED), bytes(leaked))
    })?;
    if let Some(line) = stage.source_line(&report) {
        say.words("That line of the program's source is:")?;
        say.as_it_is(&format!("\n  {line}\n"))?;
    }
    Ok(())
}

fn second_act(stage: &Stage, say: &Say) -> Result<(), Failure> {
    let act = stage.play("quota", &[("CUWARDEN_MEMORY_LIMIT", "320MiB")])?;
    let command = "cuwarden run --sim --memory-limit 320MiB -- ./forgetful quota";
    say.opening("Act 2: it wants more than it may have", command, &act)?;
    say.words(
        "The simulated device has gigabytes, and the program was shown 320 MiB: that is its quota. Its context took \
         256 MiB of it, as contexts do on a real GPU. The request that would pass the quota got CUDA's own \"out of memory\", without reaching the driver, so the program handles it as \
         it handles a full device. Whoever runs the machine gets one event, of which these are the main fields:",
    )?;
    let event = act.event("quota_denied")?;
    say.fields(&event, &["event", "device", "api", "requested_bytes", "used_bytes", "limit_bytes"])?;
    let report = act.report()?;
    expect(report.denied() == 1, || {
        format!("one request is refused, and the report says {}", report.denied())
    })?;
    expect(report.leaked().0 == 0, || {
        "the second act leaks nothing, and the report says otherwise".to_owned()
    })
}

fn third_act(stage: &Stage, say: &Say) -> Result<(), Failure> {
    let exclusive = [("CUWARDEN_SIM_COMPUTE_MODE", "exclusive")];
    let other = stage.in_the_background("start", "hold", &exclusive)?;
    let act = stage.play("start", &exclusive)?;
    let holder = other.id();
    drop(other);
    say.opening("Act 3: the device refuses to start", "cuwarden run --sim -- ./forgetful start", &act)?;
    say.words(
        "Here the simulated device is in exclusive mode, and another process has it. The CUDA runtime turns whatever the \
         driver said into \"initialization error\", and that is all that the program can know. The event says what failed, \
         on which device, and the driver's own code:",
    )?;
    let event = act.event("init_failure")?;
    say.fields(&event, &["event", "device", "api", "code", "name"])?;
    say.words(
        "The report of the process has it too, with the way to the call, the reason and what shows it:",
    )?;
    say.report(&act.report()?)?;
    expect(event["code"] == 46, || format!("the driver said 46, and the event says {}", event["code"]))?;
    let cause = &event["causes"][0];
    expect(cause["id"] == "exclusive_mode", || {
        format!("the device is in exclusive mode, and the event says {cause}")
    })?;
    expect(cause["evidence"].as_str().is_some_and(|text| text.contains(&holder.to_string())), || {
        format!("process {holder} has the device, and the event says {cause}")
    })
}

/// What the demo writes.
struct Say {
    style: Style,
}

impl Say {
    fn as_it_is(&self, text: &str) -> Result<(), Failure> {
        terminal::answer(text)
    }

    fn title(&self, text: &str) -> Result<(), Failure> {
        self.as_it_is(&format!("\n{}\n", self.style.title(text)))
    }

    fn words(&self, text: &str) -> Result<(), Failure> {
        self.as_it_is(&format!("\n{}\n", self.style.wrap(text, 0).join("\n")))
    }

    /// Title, command and what the program printed.
    fn opening(&self, title: &str, command: &str, act: &Act) -> Result<(), Failure> {
        self.title(title)?;
        let lines: String = act.output.lines().map(|line| format!("  {}\n", clean(line))).collect();
        self.as_it_is(&format!("\n  $ {command}\n{lines}"))
    }

    fn report(&self, report: &Report) -> Result<(), Failure> {
        let narrower = Style { width: self.style.width.saturating_sub(2), ..self.style };
        let text = text::one(report, &narrower);
        let lines =
            text.lines().map(|line| if line.is_empty() { "\n".to_owned() } else { format!("  {line}\n") });
        self.as_it_is(&format!("\n{}", lines.collect::<String>()))
    }

    /// Some fields of an event, one a line.
    fn fields(&self, event: &Value, names: &[&str]) -> Result<(), Failure> {
        let mut text = "\n".to_owned();
        for name in names {
            let value = match &event[*name] {
                Value::Null => continue,
                Value::String(value) => clean(value),
                Value::Number(number) if name.ends_with("_bytes") => {
                    format!("{number} ({})", bytes(number.as_u64().unwrap_or_default()))
                }
                other => clean(&other.to_string()),
            };
            text += &format!("  {name:<16} {value}\n");
        }
        self.as_it_is(&text)
    }
}

/// Where the acts take place.
struct Stage {
    shim: PathBuf,
    directory: Directory,
    program: PathBuf,
}

/// What came of one act.
struct Act {
    output: String,
    directory: PathBuf,
    log: PathBuf,
}

impl Stage {
    fn new() -> Result<Stage, Failure> {
        let Some(program) = DEMO.first() else {
            return Err(Failure::new(
                NOT_RUN,
                "this cuwarden was built without the demo. Build it again from the whole source tree",
            ));
        };
        let shim = find_shim()?;
        let directory = Directory::private()?;
        program.extract(directory.path())?;
        Ok(Stage { program: directory.path().join(program.name), shim, directory })
    }

    /// Runs the program with one argument, as `cuwarden run --sim` does.
    fn play(&self, what: &str, options: &[(&'static str, &str)]) -> Result<Act, Failure> {
        let directory = make_folder(&self.directory.path().join(what))?;
        let log = directory.join("events.jsonl");
        let mut environment = self.environment(&directory, options)?;
        environment.set("CUWARDEN_LOG_FILE", &log);
        let out = self
            .command(what, &environment)
            .output()
            .map_err(|error| Failure::path(NOT_RUN, "start", &self.program, &error))?;
        let output =
            String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
        expect(out.status.code().is_some(), || {
            format!("the program was ended by {}:\n{output}", out.status)
        })?;
        Ok(Act { output, directory, log })
    }

    /// Starts the program on the simulated device of an act, untracked, and waits until it has it.
    fn in_the_background(
        &self,
        act: &str,
        what: &str,
        options: &[(&'static str, &str)],
    ) -> Result<Background, Failure> {
        let directory = make_folder(&self.directory.path().join(act))?;
        let mut environment = self.environment(&directory, options)?;
        environment.set("CUWARDEN_DISABLE", "1");
        let mut command = self.command(what, &environment);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child =
            command.spawn().map_err(|error| Failure::path(NOT_RUN, "start", &self.program, &error))?;
        let mut line = String::new();
        let said = child.stdout.take().map(|out| BufReader::new(out).read_line(&mut line));
        let background = Background(child);
        expect(matches!(said, Some(Ok(_))) && line == "holding\n", || {
            format!("the other program should hold the device, and said {line:?}")
        })?;
        Ok(background)
    }

    fn environment(
        &self,
        directory: &Path,
        options: &[(&'static str, &str)],
    ) -> Result<Environment, Failure> {
        let mut environment = Environment::new(&self.shim, directory);
        bundle::install(directory, &mut environment)?;
        for (name, value) in options {
            environment.set(name, value);
        }
        Ok(environment)
    }

    fn command(&self, what: &str, environment: &Environment) -> Command {
        let mut command = Command::new(&self.program);
        command.arg0(program_name(&self.program)).arg(what);
        for (name, _) in std::env::vars_os() {
            // The demo is the same everywhere, whatever is set for other programs.
            let name_text = name.to_string_lossy();
            if name_text.starts_with("CUWARDEN_") || name_text.starts_with("CUDA_") {
                command.env_remove(&name);
            }
        }
        environment.apply(&mut command);
        command
    }

    /// The line of source at which the largest leak was allocated.
    fn source_line(&self, report: &Report) -> Option<String> {
        let source = DEMO.iter().find(|file| file.name.ends_with(".c"))?;
        let frame = report.leaks.first()?.stack.iter().find(|frame| {
            frame
                .file
                .as_deref()
                .is_some_and(|file| Path::new(file).file_name() == Some(source.name.as_ref()))
        })?;
        let number = frame.line?;
        let line = std::str::from_utf8(source.bytes).ok()?.lines().nth(number.checked_sub(1)? as usize)?;
        Some(format!("demo/{}:{number}:  {}", source.name, line.trim()))
    }
}

/// A process that ends with this.
struct Background(Child);

impl Background {
    fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        // Best effort: it also ends when its input does.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Act {
    /// The report of the act's one process.
    fn report(&self) -> Result<Report, Failure> {
        let folder = self.directory.join("proc");
        let record = fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path()).next();
        let record = record.ok_or_else(|| {
            Failure::new(INTERNAL, format!("the shim left no record file in {}", folder.display()))
        })?;
        let mut report =
            record_file(&record, &Observer::here()).map_err(|problem| Failure::new(INTERNAL, problem))?;
        Symbolizer::default().resolve(&mut report);
        Ok(report)
    }

    /// The only event of this kind.
    fn event(&self, kind: &str) -> Result<Value, Failure> {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let mut events = text
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok())
            .filter(|e| e["event"] == kind);
        match (events.next(), events.next()) {
            (Some(event), None) => Ok(event),
            (None, _) => {
                Err(Failure::new(INTERNAL, format!("there was no event {kind}. All events:\n{text}")))
            }
            _ => Err(Failure::new(INTERNAL, format!("there was more than one event {kind}:\n{text}"))),
        }
    }
}

fn program_name(path: &Path) -> &OsStr {
    path.file_name().unwrap_or(path.as_os_str())
}

fn expect(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), Failure> {
    match holds {
        true => Ok(()),
        false => {
            Err(Failure::new(INTERNAL, format!("the demo went otherwise than it should: {}", otherwise())))
        }
    }
}
