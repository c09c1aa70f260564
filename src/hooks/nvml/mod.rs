//! The functions of NVML that say how much memory there is and who has it: the same as CUDA says.
//!
//! They only look. A process that asks NVML and never uses CUDA gets no slot, no file and no thread.
//! `crate::process::observer` is what it knows.
//!
//! Those and a few more are noted as they are called ([`ring`]): what the application had asked before CUDA failed often
//! says why.

pub(super) mod calls;
mod device;
pub(super) mod memory;
pub(super) mod processes;
mod ring;

pub(super) use ring::read as last_calls;

/// Defines hooks of up to three arguments. Each is two instructions: its body, which many share, gets as a fourth argument
/// the [`ring::Call`] of the hook. The library's own function must be called exactly once there.
macro_rules! hook {
    ($($name:ident($($arg:ident: $type:ty),* $(,)?) => $body:path, $about:expr;)*) => {$(
        #[doc = concat!("Stands for `", stringify!($name), "`.\n\n# Safety\nAs NVML's function.")]
        #[allow(non_snake_case)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name($($arg: $type),*) -> ::core::ffi::c_int {
            cuwarden_arch::jump_with_constant!($body, $crate::hooks::table::Id::$name as u32 | $about)
        }
    )*};
}
use hook;
