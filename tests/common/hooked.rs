//! The names of the hooked functions.

/// Each ABI variant for itself, as the driver exports it.
pub fn names() -> impl Iterator<Item = &'static str> {
    cuwarden::hooks::names()
}
