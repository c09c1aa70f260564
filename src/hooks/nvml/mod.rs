//! The functions of NVML that say how much memory there is and who has it: the same as CUDA says.
//!
//! They only look. A process that asks NVML and never uses CUDA gets no slot, no file and no thread.
//! `crate::process::observer` is what it knows.

mod device;
pub(super) mod memory;
pub(super) mod processes;

/// Defines hooks. The body gets `real`, the library's own function, and must call it exactly once.
macro_rules! hook {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) |$real:ident| $body:block)*) => {$(
        $(#[$meta])*
        #[doc = concat!("Stands for `", stringify!($name), "`.\n\n# Safety\nAs NVML's function.")]
        #[allow(non_snake_case)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> ::core::ffi::c_int {
            type Real = unsafe extern "C" fn($($type),*) -> ::core::ffi::c_int;
            // SAFETY: Real is the type of this row's function, by nvml.h.
            let Some($real) = (unsafe { $crate::hooks::table::real::<Real>($crate::hooks::table::Id::$name) }) else {
                return $crate::diagnose::nvml::FUNCTION_NOT_FOUND;
            };
            $body
        }
    )*};
}
use hook;
