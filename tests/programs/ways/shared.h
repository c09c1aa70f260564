/* Memory that is somebody else's charge. */

static void ipc(bool keep) {
    CUdeviceptr mine, seen, again;
    CUipcMemHandle handle;
    TAKES(1, p_cuMemAlloc_v2(&mine, 10000));
    OK(p_cuIpcGetMemHandle(&handle, mine));
    OK(p_cuIpcOpenMemHandle_v2(&seen, handle, 1));
    OK(p_cuIpcOpenMemHandle(&again, handle, 1));
    GIVES(1, p_cuMemFree_v2(seen)); /* as the driver says */
    OK(p_cuIpcCloseMemHandle(again));
    if (keep) return;
    OK(p_cuIpcCloseMemHandle(seen));
    OK(p_cuMemFree_v2(mine));
}

static void external(bool keep) {
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc = {.type = 1, .size = 8 * MIB};
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC buffer = {.size = 4 * MIB};
    CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC mipmap = {.arrayDesc = {64, 64, 0, CU_AD_FORMAT_FLOAT, 1, 0}, .numLevels = 2};
    CUexternalMemory memory;
    CUdeviceptr p;
    CUmipmappedArray m;
    OK(p_cuImportExternalMemory(&memory, &desc));
    OK(p_cuExternalMemoryGetMappedBuffer(&p, memory, &buffer));
    OK(p_cuExternalMemoryGetMappedMipmappedArray(&m, memory, &mipmap));
    if (keep) return;
    OK(p_cuMemFree_v2(p));
    OK(p_cuMipmappedArrayDestroy(m));
    OK(p_cuDestroyExternalMemory(memory));
}

static void two_devices(bool keep) {
    CUcontext before, other;
    CUdeviceptr a, b, c;
    OK(p_cuCtxGetCurrent(&before));
    TAKES_ON(0, 1, p_cuMemAlloc_v2(&a, 1000));
    OK(p_cuDevicePrimaryCtxRetain(&other, 1));
    OK(p_cuCtxSetCurrent(other));
    TAKES_ON(1, 1, p_cuMemAlloc_v2(&b, 2000));
    CUstream of_other;
    OK(p_cuStreamCreate(&of_other, 0));
    OK(p_cuCtxSetCurrent(before));
    TAKES_ON(1, 1, p_cuMemAllocAsync(&c, 3000, of_other)); /* where the stream is, not where the thread is */
    if (keep) return;
    OK(p_cuMemFree_v2(b));
    OK(p_cuMemFree_v2(a));
    OK(p_cuMemFreeAsync(c, NULL));
    CUmemoryPool pool;
    OK(p_cuDeviceGetDefaultMemPool(&pool, 1));
    OK(p_cuMemPoolTrimTo(pool, 0));
}
