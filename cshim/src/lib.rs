//! The preloaded library: the exported symbols, and nothing else.
//!
//! Each symbol is one jump to its hook in the `cuwarden` crate, where everything is decided.

mod exec;
mod exit;
mod loader;
mod runtime;

/// The functions of the driver and of NVML, exported for programs that are linked with these libraries. They carry a version that is not
/// the default one of the first node in `exports.map`: a direct reference binds to it, a look-up by name never
/// sees it, so that dlsym answers as if we were not there.
macro_rules! entries {
    ($($name:ident => $module:ident,)*) => {$(
        ::core::arch::global_asm!(
            concat!(".pushsection .text.entry.", stringify!($name), ",\"ax\",@progbits"),
            ".p2align 4",
            concat!(".globl \"", stringify!($name), ".CUWARDEN\""),
            concat!(".type \"", stringify!($name), ".CUWARDEN\",@function"),
            concat!("\"", stringify!($name), ".CUWARDEN\":"),
            ".cfi_startproc",
            "endbr64",
            "jmp {hook}",
            ".cfi_endproc",
            concat!(".size \"", stringify!($name), ".CUWARDEN\", . - \"", stringify!($name), ".CUWARDEN\""),
            concat!(".symver \"", stringify!($name), ".CUWARDEN\", ", stringify!($name), "@CUWARDEN, remove"),
            ".popsection",
            hook = sym cuwarden_core::hooks::table::entry::$name,
        );
    )*};
}
cuwarden_core::for_each_hook!(entries);
