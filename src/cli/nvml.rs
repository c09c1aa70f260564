//! NVML for the commands. It is loaded at run time: the command line works without a driver.

use std::ffi::{CStr, c_void};
use std::sync::mpsc;
use std::time::Duration;

use crate::diagnose::nvml::{Nvml, code_name};

const INVALID_ARGUMENT: i32 = 2;
const NOT_FOUND: i32 = 6;

/// Asks NVML something, if it answers in time: a driver that has lost its card lets its callers wait for ever. Why not,
/// in words.
pub fn asked<T: Send + 'static>(
    limit: Duration,
    ask: impl FnOnce(&Nvml<'_>) -> T + Send + 'static,
) -> Result<T, String> {
    let started = move |nvml: &Nvml<'_>| {
        let _started = nvml.start().map_err(|code| format!("nvmlInit_v2 gives {}", code_name(code)))?;
        Ok(ask(nvml))
    };
    loaded(limit, started)?
}

/// The same without starting it: also that failure is of interest. Whoever asks has to start it.
pub fn loaded<T: Send + 'static>(
    limit: Duration,
    ask: impl FnOnce(&Nvml<'_>) -> T + Send + 'static,
) -> Result<T, String> {
    let answer = within(limit, move || {
        let library = load()?;
        let find = |name: &CStr| {
            // SAFETY: a library that is never closed, and a C string.
            let address = unsafe { libc::dlsym(library, name.as_ptr()) };
            (!address.is_null()).then_some(address.cast_const())
        };
        // SAFETY: it is libnvidia-ml, whose functions those of nvml.h are.
        let nvml = unsafe { Nvml::new(&find) };
        Ok(ask(&nvml))
    });
    answer.unwrap_or_else(|| Err(format!("it has not answered for {} s", limit.as_secs())))
}

/// Why a device of a number has no UUID that is of use.
#[derive(Debug, PartialEq, Eq)]
pub enum NoDevice {
    /// NVML has none of this number.
    OfThisNumber,
    /// The card is split into MIG instances, each a device of its own.
    Split,
    /// In words.
    Failed(String),
}

/// The UUID of a device by NVML's number, which is the one that nvidia-smi shows.
pub fn uuid_of(nvml: &Nvml<'_>, number: u32) -> Result<String, NoDevice> {
    let device = nvml.device(number).map_err(|code| match code {
        INVALID_ARGUMENT | NOT_FOUND => NoDevice::OfThisNumber,
        code => NoDevice::Failed(format!("nvmlDeviceGetHandleByIndex_v2 gives {}", code_name(code))),
    })?;
    // A card that does not know the question cannot be split.
    if nvml.mig_mode(device) == Ok(1) {
        return Err(NoDevice::Split);
    }
    let failed = |code| NoDevice::Failed(format!("nvmlDeviceGetUUID gives {}", code_name(code)));
    nvml.uuid(device).map_err(failed)
}

fn load() -> Result<*mut c_void, String> {
    // SAFETY: a C string. Loading it runs its constructors, as for every program that is linked to it.
    let library = unsafe { libc::dlopen(c"libnvidia-ml.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if !library.is_null() {
        return Ok(library);
    }
    // SAFETY: no arguments.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return Err("libnvidia-ml.so.1 cannot be loaded".to_owned());
    }
    // SAFETY: a C string, valid until this thread's next call of the loader.
    Err(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

fn within<T: Send + 'static>(limit: Duration, ask: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (to, from) = mpsc::channel();
    let answer = move || {
        // Nobody may wait any more.
        let _ = to.send(ask());
    };
    // The thread is left behind where there is no answer; it ends with the process.
    std::thread::Builder::new().name("nvml".to_owned()).spawn(answer).ok()?;
    from.recv_timeout(limit).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_never_answered_is_not_waited_for() {
        assert_eq!(within(Duration::from_secs(60), || 7), Some(7));
        let (_never, wait) = mpsc::channel::<()>();
        assert_eq!(within(Duration::from_millis(20), move || wait.recv().is_ok()), None);
    }
}
