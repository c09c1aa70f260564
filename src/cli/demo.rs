//! `cuwarden demo`

use std::process::ExitCode;

use super::error::Failure;

/// See the main job at work on a simulated GPU.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  cuwarden demo")]
pub struct Arguments {}

pub fn main(_: Arguments) -> Result<ExitCode, Failure> {
    Ok(ExitCode::SUCCESS)
}
