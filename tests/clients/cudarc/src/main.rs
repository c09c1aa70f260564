//! cudarc as a client: allocates, leaks, meets its quota. Prints one JSON object.
//!
//! Usage: cudarc-client KEEP_BYTES FREE_BYTES TOO_MUCH_BYTES
//! Keeps one allocation of each of cuMemAlloc, cuMemAllocManaged and (by the safe interface) cuMemAllocAsync of
//! KEEP_BYTES, frees one of FREE_BYTES in both ways, then asks for TOO_MUCH_BYTES.

use std::mem::forget;

use cudarc::driver::sys::CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL;
use cudarc::driver::{CudaContext, DriverError, result};

fn main() -> Result<(), DriverError> {
    let sizes: Vec<usize> = std::env::args().skip(1).filter_map(|size| size.parse().ok()).collect();
    let [keep, free, too_much] = sizes[..] else { panic!("usage: cudarc-client KEEP FREE TOO_MUCH") };

    let context = CudaContext::new(0)?;
    let stream = context.default_stream();
    // SAFETY: the memory is never read or written, and the flags are one of those that the call knows.
    unsafe {
        result::malloc_sync(keep)?;
        result::malloc_managed(keep, CU_MEM_ATTACH_GLOBAL)?;
        forget(stream.alloc::<u8>(keep)?);
        result::free_sync(result::malloc_sync(free)?)?;
        drop(stream.alloc::<u8>(free)?);
    }
    stream.synchronize()?;
    // SAFETY: as above.
    let refused = match unsafe { result::malloc_sync(too_much) } {
        Err(DriverError(code)) => format!("{code:?}"),
        Ok(_) => "CUDA_SUCCESS".to_owned(),
    };
    let (free, total) = result::mem_get_info()?;
    println!(r#"{{"refused":"{refused}","free":{free},"total":{total}}}"#);
    // The context outlives the program: its release would free what is kept.
    forget(context);
    Ok(())
}
