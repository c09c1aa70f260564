//! Builds the simulated GPU, which the command line carries inside itself.
fn main() {}
