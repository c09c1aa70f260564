//! Whose leak it is: the library that asked for the memory, by the first frame that is not plumbing.

use std::borrow::Cow;

use super::model::Leak;

/// What the program itself is called.
pub const APPLICATION: &str = "application";
/// Where no frame tells.
pub const UNKNOWN: &str = "unknown";

/// Only hands a request on for others. Where a whole stack is that, its first frame has to do.
const PLUMBING: &[(&str, &str)] = &[
    ("libcudart", "CUDA runtime"),
    ("libcuda", "CUDA driver"),
    ("libcudadebugger", "CUDA driver"),
    ("libnvidia", "CUDA driver"),
    ("libcuwarden", "cuwarden"),
    ("libc", "libc"),
    ("libm", "libc"),
    ("libdl", "libc"),
    ("librt", "libc"),
    ("libpthread", "libc"),
    ("ld", "libc"),
    ("linux", "libc"),
    ("[vdso]", "libc"),
    ("libstdc++", "C++ runtime"),
    ("libc++", "C++ runtime"),
    ("libc++abi", "C++ runtime"),
    ("libgcc_s", "C++ runtime"),
    ("libffi", "libffi"),
    ("_ctypes", "ctypes"),
];

/// By the beginning of the file's name, up to what is no letter or digit: wheels put a hash behind it, distributions
/// a version.
const LIBRARIES: &[(&str, &str)] = &[
    ("libcublas", "cuBLAS"),
    ("libcublasLt", "cuBLAS"),
    ("libnvblas", "cuBLAS"),
    ("libcudnn", "cuDNN"),
    ("libcufft", "cuFFT"),
    ("libcufftw", "cuFFT"),
    ("libcufile", "cuFile"),
    ("libcupti", "CUPTI"),
    ("libcurand", "cuRAND"),
    ("libcusolver", "cuSOLVER"),
    ("libcusolverMg", "cuSOLVER"),
    ("libcusparse", "cuSPARSE"),
    ("libcusparseLt", "cuSPARSE"),
    ("libcutensor", "cuTENSOR"),
    ("libcutensorMg", "cuTENSOR"),
    ("libnccl", "NCCL"),
    ("libnpp", "NPP"),
    ("libnvJitLink", "nvJitLink"),
    ("libnvcuvid", "NVDEC"),
    ("libnvinfer", "TensorRT"),
    ("libnvonnxparser", "TensorRT"),
    ("libnvparsers", "TensorRT"),
    ("libnvjpeg", "nvJPEG"),
    ("libnvjpeg2k", "nvJPEG"),
    ("libnvrtc", "NVRTC"),
    ("libnvshmem", "NVSHMEM"),
    ("libc10", "PyTorch"),
    ("libtorch", "PyTorch"),
    ("libcudf", "RAPIDS cuDF"),
    ("libcuml", "RAPIDS cuML"),
    ("libggml", "ggml"),
    ("libllama", "llama.cpp"),
    ("libmpi", "MPI"),
    ("libonnxruntime", "ONNX Runtime"),
    ("libopencv", "OpenCV"),
    ("libpaddle", "PaddlePaddle"),
    ("librmm", "RMM"),
    ("libtensorflow", "TensorFlow"),
    ("libucm", "UCX"),
    ("libucp", "UCX"),
    ("libucs", "UCX"),
    ("libuct", "UCX"),
    // The interpreter, where it is a library: what it runs is the program.
    ("libpython2", APPLICATION),
    ("libpython3", APPLICATION),
];

/// Python packages whose folder does not say it as people do.
const PACKAGES: &[(&str, &str)] = &[
    ("cuda", "CUDA Python"),
    ("cupy_backends", "CuPy"),
    ("cupy", "CuPy"),
    ("jax_cuda12_plugin", "JAX"),
    ("jax_cuda13_plugin", "JAX"),
    ("jax_plugins", "JAX"),
    ("jaxlib", "JAX"),
    ("onnxruntime", "ONNX Runtime"),
    ("tensorflow", "TensorFlow"),
    ("tensorrt", "TensorRT"),
    ("tensorrt_libs", "TensorRT"),
    ("torch", "PyTorch"),
];

/// The library that asked for what `leak` says. `exe` is the program of the process.
pub fn of(leak: &Leak, exe: &str) -> Cow<'static, str> {
    let mut modules = leak.stack.iter().filter_map(|frame| frame.module.as_deref());
    match modules.clone().find(|module| plumbing(module).is_none()) {
        Some(module) => name(module, exe),
        None => modules.next().and_then(plumbing).unwrap_or(UNKNOWN).into(),
    }
}

/// Is it a library that others make, whose users can only end their use of it?
pub fn is_known(name: &str) -> bool {
    name != APPLICATION && LIBRARIES.iter().chain(PACKAGES).any(|(_, known)| *known == name)
}

/// What a module belongs to.
fn name(module: &str, exe: &str) -> Cow<'static, str> {
    let module = undeleted(module);
    if module == undeleted(exe) {
        return APPLICATION.into();
    }
    let file = module.rsplit('/').next().unwrap_or(module);
    if let Some(known) = look_up(LIBRARIES, file) {
        return known.into();
    }
    if let Some(package) = python_package(module) {
        let known = PACKAGES.iter().find(|(folder, _)| *folder == package);
        return known.map_or_else(|| package.to_owned().into(), |(_, name)| (*name).into());
    }
    let stem = file.split(".so").next().unwrap_or(file);
    if stem.is_empty() { UNKNOWN.into() } else { stem.to_owned().into() }
}

fn plumbing(module: &str) -> Option<&'static str> {
    let module = undeleted(module);
    look_up(PLUMBING, module.rsplit('/').next().unwrap_or(module))
}

fn look_up(table: &[(&'static str, &'static str)], file: &str) -> Option<&'static str> {
    let fits = |stem: &str| {
        let rest = file.strip_prefix(stem)?;
        // `libcuda` is not `libcudart`, and `libc` not `libc++`: each has a row of its own.
        (!rest.starts_with(|c: char| c.is_alphanumeric() || c == '+')).then_some(())
    };
    table.iter().find(|(stem, _)| fits(stem).is_some()).map(|(_, name)| *name)
}

/// `torch` of `/usr/lib/python3/dist-packages/torch/_C.so`.
fn python_package(module: &str) -> Option<&str> {
    let (_, inside) =
        module.rsplit_once("/site-packages/").or_else(|| module.rsplit_once("/dist-packages/"))?;
    let package = inside.split('/').next()?;
    // A module without a folder of its own: `_cffi_backend.cpython-311-x86_64-linux-gnu.so`.
    package.split('.').next().filter(|package| !package.is_empty())
}

/// The kernel says so behind the path of a file that was removed or replaced.
fn undeleted(path: &str) -> &str {
    path.strip_suffix(" (deleted)").unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::model::Frame;

    fn asked(modules: &[&str]) -> String {
        let frame = |module: &&str| Frame {
            module: Some((*module).to_owned()).filter(|m| !m.is_empty()),
            ..Frame::default()
        };
        let leak = Leak { stack: modules.iter().map(frame).collect(), ..Leak::default() };
        of(&leak, "/opt/app/trainer").into_owned()
    }

    #[test]
    fn the_first_frame_that_is_not_plumbing_decides() {
        for (modules, name) in [
            (&["/cuda/libcudart.so.12", "/opt/app/trainer"][..], "application"),
            (&["/opt/app/trainer (deleted)"], "application"),
            (&["/lib/libcuda.so.1", "/lib/libcudart.so.12", "/x/libnccl.so.2", "/x/libtorch.so"], "NCCL"),
            (&["/x/libnccl-3a5f01.so.2"], "NCCL"),
            (&["/venv/site-packages/nvidia/cublas/lib/libcublasLt.so.12"], "cuBLAS"),
            (&["/x/libcudnn_ops.so.9", "/x/libtorch_cuda.so"], "cuDNN"),
            (&["/x/libnvinfer_plugin.so.10"], "TensorRT"),
            (&["/x/libc10_cuda.so", "/x/libtorch_cuda.so"], "PyTorch"),
            (&["/lib/libc.so.6", "/venv/lib/python3.11/site-packages/torch/_C.so"], "PyTorch"),
            (&["/venv/lib/python3.11/site-packages/flash_attn/x.so"], "flash_attn"),
            (
                &["/lib/libffi.so.8", "/lib/_ctypes.cpython-311.so", "/usr/lib/libpython3.11.so.1.0"],
                "application",
            ),
            (&["/opt/app/libloader.so.3"], "libloader"),
            (&["/lib/libcuda.so.535.1"], "CUDA driver"),
            (&["/lib/libcudart.so.12", "/lib/libc.so.6"], "CUDA runtime"),
            (&["/lib/libc++.so.1", "/x/libcudagraph.so"], "libcudagraph"),
            (&["", "/x/libfoo.so"], "libfoo"),
            (&[""], "unknown"),
            (&[], "unknown"),
        ] {
            assert_eq!(asked(modules), name, "{modules:?}");
        }
    }

    #[test]
    fn what_others_make() {
        assert!(is_known("NCCL") && is_known("PyTorch") && is_known("JAX"));
        assert!(
            !is_known(APPLICATION)
                && !is_known("libloader")
                && !is_known("CUDA runtime")
                && !is_known(UNKNOWN)
        );
    }
}
