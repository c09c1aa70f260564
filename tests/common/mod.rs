//! What the integration tests share.
//!
//! - [`artefacts`]: the shim, the command line and the folders they are built in
//! - [`sim::Sim`]: the simulated GPU with a container of its own: children under the shim, their events, reports
//!   and the driver's books
//! - [`cc`]: compiles a C program, once for each content
//! - [`process`]: runs a child that cannot hang the tests
//! - [`clients`]: the real clients that scripts/fetch-clients brought
//! - [`elf`]: what a library exports
//!
//! ```ignore
//! let sim = Sim::new();
//! let program = cc::program("tests/programs/leak.c", &[]);
//! run(sim.shimmed(&program).env("CUWARDEN_MEMORY_LIMIT", "1g")).succeeded();
//! assert_eq!(sim.report()["leaks"][0]["bytes"], 4096);
//! ```

// Each test binary compiles all of this and uses a part of it.
#![allow(dead_code)]
// And fails by panicking, as the tests do.
#![allow(clippy::expect_used, clippy::panic)]

pub mod artefacts;
pub mod cc;
pub mod clients;
pub mod disk;
pub mod elf;
pub mod hooked;
pub mod process;
pub mod sim;
pub mod temp;
