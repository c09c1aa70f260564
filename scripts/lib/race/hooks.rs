//! The hooks in front of a program in C whose `main` is linked with this: ThreadSanitizer has to be in the program
//! from its first instruction, which a preloaded library cannot be.
//!
//! As in the shim each exported function is a jump to its hook. What the shim does for dlsym is not here.

#![no_main]

macro_rules! entries {
    ($($name:ident => $module:ident,)*) => {$(
        ::core::arch::global_asm!(
            concat!(".globl ", stringify!($name)),
            concat!(".type ", stringify!($name), ",@function"),
            concat!(stringify!($name), ":"),
            "jmp {hook}",
            hook = sym cuwarden::hooks::table::entry::$name,
        );
    )*};
}
cuwarden::for_each_hook!(entries);

/// As the shim does when its process ends: once with the destructors, and once after them.
#[unsafe(no_mangle)]
pub extern "C" fn write_reports() {
    cuwarden::process::write_exit_report(false);
    cuwarden::process::write_exit_report(true);
}
