//! The names of the hooked functions.

use cuwarden::hooks::Owner;

/// Each ABI variant for itself, as the driver exports it.
pub fn names() -> impl Iterator<Item = &'static str> {
    cuwarden::hooks::names(Owner::Driver)
}

/// The same of NVML.
pub fn nvml_names() -> impl Iterator<Item = &'static str> {
    cuwarden::hooks::names(Owner::Nvml)
}
