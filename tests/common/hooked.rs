//! The names of the hooked functions.

/// Stands in for the library's own table until that is there.
pub fn names() -> impl Iterator<Item = &'static str> {
    "cuArray3DCreate cuArray3DCreate_v2 cuArrayCreate cuArrayCreate_v2 cuArrayDestroy cuCtxCreate \
     cuCtxCreate_v2 cuCtxCreate_v3 cuCtxCreate_v4 cuCtxDestroy cuCtxDestroy_v2 cuCtxDetach \
     cuCtxFromGreenCtx cuDeviceGraphMemTrim cuDevicePrimaryCtxRelease cuDevicePrimaryCtxRelease_v2 \
     cuDevicePrimaryCtxReset cuDevicePrimaryCtxReset_v2 cuDevicePrimaryCtxRetain cuDeviceSetMemPool \
     cuDeviceTotalMem cuDeviceTotalMem_v2 cuGraphAddMemAllocNode cuGraphAddNode cuGraphAddNode_v2 \
     cuGraphAddNode_v3 cuGraphExecDestroy cuGraphInstantiate cuGraphInstantiateWithFlags \
     cuGraphInstantiateWithParams cuGraphInstantiateWithParams_ptsz cuGraphInstantiate_v2 \
     cuGraphLaunch cuGraphLaunch_ptsz cuGraphUpload cuGraphUpload_ptsz cuGreenCtxCreate \
     cuGreenCtxDestroy cuIpcCloseMemHandle cuIpcOpenMemHandle cuIpcOpenMemHandle_v2 \
     cuLibraryLoadData cuLibraryLoadFromFile cuLibraryUnload cuMemAlloc cuMemAllocAsync \
     cuMemAllocAsync_ptsz cuMemAllocFromPoolAsync cuMemAllocFromPoolAsync_ptsz cuMemAllocManaged \
     cuMemAllocPitch cuMemAllocPitch_v2 cuMemAlloc_v2 cuMemCreate cuMemFree cuMemFreeAsync \
     cuMemFreeAsync_ptsz cuMemFree_v2 cuMemGetInfo cuMemGetInfo_v2 cuMemImportFromShareableHandle \
     cuMemMap cuMemMapArrayAsync cuMemMapArrayAsync_ptsz cuMemPoolCreate cuMemPoolDestroy \
     cuMemPoolImportFromShareableHandle cuMemPoolImportPointer cuMemPoolSetAttribute cuMemPoolTrimTo \
     cuMemRelease cuMemRetainAllocationHandle cuMemUnmap cuMipmappedArrayCreate \
     cuMipmappedArrayDestroy cuModuleLoad cuModuleLoadData cuModuleLoadDataEx cuModuleLoadFatBinary \
     cuModuleUnload cuInit cuGetProcAddress cuGetProcAddress_v2"
        .split_whitespace()
}
