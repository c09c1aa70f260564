//! `cuwarden doctor`

mod archive;
mod cache;
mod closure;
mod dmem;
mod elf;
mod in_force;
mod judge;
mod ld_conf;
mod libraries;
mod limits;
mod model;
mod mps;
mod preload;
mod program;
mod redact;
mod require;
mod rules;
mod runtime;
mod script;
mod smi;
mod toolkit;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::error::{Failure, INTERNAL, NO_INPUT};
use super::nvml::loaded;
use super::terminal;
use crate::diagnose::chain::{self, Chain};
use crate::diagnose::machine::{Machine, Mapped, Place, missing_siblings};
use crate::diagnose::nvml::Nvml;
use crate::policy::versions::CudaVersion;
use crate::policy::versions::matrix::Matrix;
use crate::policy::versions::release::Release;
use crate::report::text::{Style, Tone, clean};
use archive::Archive;
use model::{Answer, Library, Line, SCHEMA, Verdict, overall, status};
use rules::Rules;

/// How long NVML may take for all its answers.
const PATIENCE: Duration = Duration::from_secs(10);

/// Say why CUDA does or would not start here, before anything is started.
///
/// Looks at the driver's library and kernel module, the device nodes, NVML's answers, the libraries that the loader
/// reaches, the preload and the limits in force. It does not initialise CUDA and changes nothing.
/// Where no package tells the version of NVIDIA's container toolkit, nvidia-ctk --version is asked for it.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  cuwarden doctor                       this host, or this container
  cuwarden doctor --json | jq -r '.lines[] | select(.verdict != \"ok\") | .action'
  cuwarden doctor -- ./train            the same, and what this program links; it is not started
  cuwarden doctor || exit 1             a gate before a job starts
  nvidia-smi -q > smi.txt 2>&1          on a machine that can only send a text, and here:
  cuwarden doctor --smi smi.txt         what that text shows; plain nvidia-smi will do too
  cuwarden doctor --bundle help.tar.gz  the answer and what it rests on, for those who help

As JSON: schema cuwarden.doctor/1, {verdict, kernel_module, driver, is_container, lines: [{check, verdict (ok, warning, \
failed, unknown), evidence, action}], libraries: [{name, path, file, found_by, is_first, cuda}], packages: [{name, version, \
path}], nvml_chain: [{call, args, code, name, result}], smi: {driver, cuda, attached, gpus, messages}, with --smi only}.

Exit status: 0 fine; 1 warnings; 2 something fails or would; 3 something could not be told; 64 used wrongly; 66 there is \
no program CMD, or FILE cannot be read; 74 the archive cannot be \
written.")]
pub struct Arguments {
    /// For scripts: schema cuwarden.doctor/1
    #[arg(long)]
    json: bool,
    /// Judge what `nvidia-smi -q` printed on another machine, not this one; - is standard input
    #[arg(long, value_name = "FILE")]
    smi: Option<PathBuf>,
    /// Write an archive (.tar.gz) for those who help; names, addresses and secrets are taken out
    #[arg(long, value_name = "FILE", conflicts_with = "smi")]
    bundle: Option<PathBuf>,
    /// Accounts of this CUWARDEN_DIR go into the archive too
    #[arg(long, value_name = "DIR", requires = "bundle")]
    dir: Option<PathBuf>,
    /// Look at this program too; it is not started
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

pub fn main(arguments: Arguments) -> Result<ExitCode, Failure> {
    let place = Place::here();
    let command = match arguments.command.split_first() {
        Some((name, rest)) => {
            let name = name.to_string_lossy();
            let file = program::find(&place, &name, std::env::var_os("PATH"))
                .ok_or_else(|| Failure::new(NO_INPUT, format!("there is no program {name}")))?;
            Some((file, rest))
        }
        None => None,
    };
    let command = command.as_ref().map(|(file, rest)| (file.as_path(), *rest));
    // Before the long part: a name that cannot be used is said at once.
    let archive = arguments.bundle.as_deref().map(Archive::create).transpose()?;
    let answer = match &arguments.smi {
        Some(path) => of_text(&place, smi::read(path)?, command),
        None => examine(&place, command),
    };
    if let Some(archive) = archive {
        archive.finish(&place, &answer, &as_text(&answer.lines, &Style::PLAIN), arguments.dir.as_deref())?;
        let path = arguments.bundle.as_deref().unwrap_or(Path::new("")).display();
        terminal::say(&format!("wrote {path}. Look through it before you send it: tar -xzf {path}"));
    }
    terminal::answer(&if arguments.json {
        let text = serde_json::to_string_pretty(&answer)
            .map_err(|error| Failure::new(INTERNAL, format!("cannot write JSON: {error}")))?;
        text + "\n"
    } else {
        as_text(&answer.lines, &terminal::style())
    })?;
    Ok(ExitCode::from(status(answer.verdict)))
}

/// A program and what stands after it.
type Command<'a> = Option<(&'a Path, &'a [OsString])>;

fn examine(place: &Place, command: Command) -> Answer {
    let variable = |name: &str| std::env::var_os(name);
    let found = libraries::look(place, &variable, &[]);
    let mut machine = Machine::look(place, &variable);
    // What is in this command does not matter; what a program would get does.
    let wanted = ["libcuda.so.1", "libnvidia-ml.so.1"];
    machine.mapped =
        wanted.iter().filter_map(|name| Some(Mapped { path: found.first(name)?.file.clone() })).collect();
    machine.missing_siblings = missing_siblings(place, &machine.mapped);
    let asked = ask_nvml();
    let chain = asked.as_ref().ok();
    let asked_driver = chain.and_then(judge::driver_version).and_then(CudaVersion::from_number);
    let driver = asked_driver.or_else(|| by_release(found.first("libcuda.so.1")?));
    let rules = Rules::new(driver, &variable);
    let around = program::Around {
        library_path: variable("LD_LIBRARY_PATH").unwrap_or_default(),
        path: variable("PATH"),
        libcuda: found.first("libcuda.so.1").map(|library| library.file.as_str()),
        kernel_module: machine.kernel_module.as_ref(),
    };
    let seen =
        command.map(|(file, arguments)| program::look(place, file, arguments, &around)).unwrap_or_default();
    let mut lines = judge::machine(&machine, &asked, &found);
    lines.extend(toolkit::parts(place, &machine));
    let toolkit = toolkit::find_toolkit(place, around.path.as_ref());
    lines.extend(toolkit.map(|toolkit| toolkit::judge(&toolkit, machine.kernel_module.as_ref())));
    let has = require::Driver { cuda: driver, release: machine.kernel_module.as_ref() };
    lines.extend(require::judge(&machine, &has));
    lines.extend(rules.baseline());
    lines.extend(rules.lying_here(&found, &seen.runtimes));
    lines.extend(preload::judge(&preload::look(place, &variable)));
    lines.extend(limits::look(&variable));
    let (dmem, mps) = (dmem::look(place), mps::look(place, &variable));
    lines.extend(dmem::lines(place, &dmem));
    lines.extend(mps.lines());
    lines.extend(in_force::lines(place, &variable, &machine, chain, &dmem, &mps));
    lines.extend(seen.lines);
    lines.extend(rules.used(&seen.runtimes, &seen.executable));
    Answer {
        schema: SCHEMA,
        verdict: overall(&lines),
        kernel_module: machine.kernel_module.as_ref().map(ToString::to_string),
        driver: chain.and_then(|chain| chain.driver.clone()),
        is_container: machine.is_container,
        lines,
        libraries: found.libraries,
        packages: found.packages,
        nvml_chain: asked.map(|chain| chain.calls).unwrap_or_default(),
        smi: None,
    }
}

/// Where NVML does not tell it: the driver's CUDA version is that of its library.
fn by_release(libcuda: &Library) -> Option<CudaVersion> {
    Matrix::built_in().cuda_of(&Release::parse(&libraries::release(&libcuda.file)?)?)
}

/// Another machine, by what nvidia-smi said there. A program is this one's, and so are its libraries.
fn of_text(place: &Place, smi: smi::Smi, command: Command) -> Answer {
    let variable = |name: &str| std::env::var_os(name);
    let mut lines = smi::judge(&smi);
    let rules = Rules::new(smi::cuda(&smi), &variable);
    lines.extend(limits::configuration(&variable));
    lines.extend(rules.baseline());
    let around = program::Around {
        library_path: variable("LD_LIBRARY_PATH").unwrap_or_default(),
        path: variable("PATH"),
        libcuda: None,
        kernel_module: None,
    };
    let seen =
        command.map(|(file, arguments)| program::look(place, file, arguments, &around)).unwrap_or_default();
    lines.extend(seen.lines);
    lines.extend(rules.used(&seen.runtimes, &seen.executable));
    Answer {
        schema: SCHEMA,
        verdict: overall(&lines),
        kernel_module: None,
        driver: smi.driver.as_ref().map(ToString::to_string),
        is_container: false,
        lines,
        libraries: Vec::new(),
        packages: Vec::new(),
        nvml_chain: Vec::new(),
        smi: Some(smi),
    }
}

/// A chain that hangs is known up to there.
fn ask_nvml() -> judge::Asked {
    let so_far = Arc::new(Mutex::new(Chain::default()));
    let kept = Arc::clone(&so_far);
    let began = Instant::now();
    let answer = loaded(PATIENCE, move |nvml: &Nvml<'_>| {
        chain::run(nvml, None, &mut |chain| {
            kept.lock().unwrap_or_else(PoisonError::into_inner).clone_from(chain);
        })
    });
    answer.or_else(|why| {
        if began.elapsed() < PATIENCE {
            return Err(why);
        }
        let chain = so_far.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Ok(Chain { timed_out: true, ..chain })
    })
}

fn as_text(lines: &[Line], style: &Style) -> String {
    let mut out = String::new();
    for line in lines {
        let tone = match line.verdict {
            Verdict::Ok => Tone::Good,
            Verdict::Failed => Tone::Bad,
            Verdict::Warning | Verdict::Unknown => Tone::Strong,
        };
        let verdict = style.paint(tone, &format!("{:<8}", line.verdict.shown()));
        out += &format!("{verdict} {}: {}\n", line.check, clean(&line.evidence));
        if !line.action.is_empty() {
            let indent = 9;
            let wrapped = if style.width == Style::PLAIN.width {
                vec![clean(&line.action)]
            } else {
                style.wrap(&clean(&line.action), indent)
            };
            for part in wrapped {
                out += &format!("{:indent$}{part}\n", "");
            }
        }
    }
    out
}
