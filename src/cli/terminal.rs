//! What goes to stdout and stderr.

use std::io::{self, IsTerminal, Write};

use super::error::{Failure, NO_OUTPUT};
use crate::report::text::Style;

/// Writes the answer to stdout. A reader that went away (`| head`) is no error.
pub fn answer(text: &str) -> Result<(), Failure> {
    answer_bytes(text.as_bytes())
}

/// The same for what need not be text.
pub fn answer_bytes(bytes: &[u8]) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(NO_OUTPUT, format!("cannot write to stdout: {error}")))
        }
        _ => Ok(()),
    }
}

/// Writes a message to stderr, if it is open.
pub fn say(message: &str) {
    let _ = writeln!(io::stderr().lock(), "cuwarden: {message}");
}

/// How text for stdout is laid out.
pub fn style() -> Style {
    if !io::stdout().is_terminal() {
        return Style::PLAIN;
    }
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    let width = terminal_size::terminal_size().map_or(80, |(width, _)| usize::from(width.0));
    Style { colour: !set("NO_COLOR") && !dumb, width }
}
