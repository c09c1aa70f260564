/* Memory that goes with its module, its context, its green context; memory of a second context. */

static void modules(bool keep) {
    CUmodule m[4], of_library;
    CUlibrary l[2];
    TAKES(1, p_cuModuleLoad(&m[0], "/proc/self/exe"));
    TAKES(1, p_cuModuleLoadData(&m[1], "image"));
    TAKES(1, p_cuModuleLoadDataEx(&m[2], "image", 0, NULL, NULL));
    TAKES(1, p_cuModuleLoadFatBinary(&m[3], "image"));
    TAKES(1, p_cuLibraryLoadData(&l[0], "image", NULL, NULL, 0, NULL, NULL, 0));
    TAKES(1, p_cuLibraryLoadFromFile(&l[1], "/proc/self/exe", NULL, NULL, 0, NULL, NULL, 0));
    OK(p_cuLibraryGetModule(&of_library, l[0]));
    GIVES(400, p_cuModuleUnload(of_library));
    GIVES(301, p_cuModuleLoad(&of_library, "/does/not/exist"));
    OK(p_cuModuleGetGlobal_v2(&(CUdeviceptr){0}, &(size_t){0}, m[0], "variable"));
    OK(p_cuModuleUnload(m[0]));
    OK(p_cuLibraryUnload(l[1]));
    if (keep) return;
    for (int i = 1; i < 4; i++) OK(p_cuModuleUnload(m[i]));
    OK(p_cuLibraryUnload(l[0]));
}

/* Something of every kind that ends with the current context, and something of every kind that does not. */
static void fill(int device) {
    CUdeviceptr p;
    CUarray a;
    CUmipmappedArray m;
    CUmodule module;
    CUlibrary library;
    size_t pitch;
    TAKES_ON(device, 1, p_cuMemAlloc_v2(&p, 1000));
    TAKES_ON(device, 1, p_cuMemAllocPitch_v2(&p, &pitch, 100, 3, 4));
    TAKES_ON(device, 1, p_cuMemAllocManaged(&p, 5000, CU_MEM_ATTACH_GLOBAL));
    TAKES_ON(device, 1, p_cuArrayCreate_v2(&a, &(CUDA_ARRAY_DESCRIPTOR){200, 0, CU_AD_FORMAT_FLOAT, 2}));
    TAKES_ON(device, 1, p_cuMipmappedArrayCreate(&m, &(CUDA_ARRAY3D_DESCRIPTOR){64, 64, 0, CU_AD_FORMAT_FLOAT, 1, 0}, 3));
    TAKES_ON(device, 1, p_cuModuleLoadData(&module, "image"));
    /* These stay. */
    TAKES_ON(device, 1, p_cuLibraryLoadData(&library, "image", NULL, NULL, 0, NULL, NULL, 0));
    TAKES_ON(device, 1, p_cuMemAllocAsync(&p, 3000, NULL));
    physical_on(device, 2 * MIB);
}

/* A sparse array that is the last to hold physical memory. */
static void fill_sparsely(void) {
    CUarray a = array_3d(4096, 4096, 0, CU_AD_FORMAT_FLOAT, 4, CUDA_ARRAY3D_SPARSE);
    CUmemGenericAllocationHandle one = physical(6 * MIB);
    tile(a, 0, one, false);
    OK(p_cuMemRelease(one));
}

static CUcontext created(int how, int device) {
    CUcontext ctx;
    if (how == 0) OK(p_cuCtxCreate(&ctx, 0, device));
    if (how == 1) OK(p_cuCtxCreate_v2(&ctx, 0, device));
    if (how == 2) OK(p_cuCtxCreate_v3(&ctx, NULL, 0, 0, device));
    if (how == 3) OK(p_cuCtxCreate_v4(&ctx, NULL, 0, device));
    return ctx;
}

static void contexts_destroyed(bool keep) {
    for (int how = 0; how < 4; how++) {
        CUcontext ctx = created(how, how % 2);
        fill(how % 2);
        if (keep && how > 1) {
            OK(p_cuCtxPopCurrent_v2(&ctx));
            continue;
        }
        OK(how % 2 ? p_cuCtxDestroy(ctx) : p_cuCtxDestroy_v2(ctx));
    }
}

static void contexts_destroyed_with_sparse_arrays(bool keep) {
    CUcontext ctx = created(1, 0);
    fill_sparsely();
    if (!keep) OK(p_cuCtxDestroy_v2(ctx));
}

static void contexts_detached(bool keep) {
    CUcontext ctx = created(1, 0), again;
    fill(0);
    OK(p_cuCtxAttach(&again, 0));
    OK(p_cuCtxDetach(ctx)); /* not the last */
    if (!keep) OK(p_cuCtxDetach(ctx));
}

/* What other contexts hold stays when one ends, also where an address is used from another context. */
static void contexts_beside_each_other(bool keep) {
    CUcontext a = created(1, 0), b;
    CUdeviceptr in_a, in_b;
    TAKES(1, p_cuMemAlloc_v2(&in_a, 10000));
    b = created(3, 0);
    TAKES(1, p_cuMemAlloc_v2(&in_b, 20000));
    OK(p_cuCtxPushCurrent_v2(a));
    TAKES(1, p_cuMemAlloc_v2(&in_b, 40000));
    OK(p_cuCtxPopCurrent_v2(&a));
    OK(p_cuMemFree_v2(in_b)); /* a's, while b is current */
    OK(p_cuCtxDestroy_v2(b));
    OK(p_cuCtxSetCurrent(a));
    TAKES(1, p_cuMemAlloc_v2(&in_b, 80000));
    if (!keep) OK(p_cuCtxDestroy_v2(a));
}

static void primary_contexts(bool keep) {
    CUcontext ctx, before;
    OK(p_cuCtxGetCurrent(&before));
    for (int how = 0; how < 4; how++) {
        OK(p_cuDevicePrimaryCtxRetain(&ctx, 1));
        OK(p_cuDevicePrimaryCtxRetain(&ctx, 1));
        OK(p_cuCtxSetCurrent(ctx));
        fill(1);
        OK(p_cuDevicePrimaryCtxRelease(1)); /* not the last */
        if (keep && how == 3) break;
        if (how == 0) OK(p_cuDevicePrimaryCtxRelease(1));
        if (how == 1) OK(p_cuDevicePrimaryCtxRelease_v2(1));
        if (how == 2) OK(p_cuDevicePrimaryCtxReset(1));
        if (how == 3) OK(p_cuDevicePrimaryCtxReset_v2(1));
        if (how > 1) OK(p_cuDevicePrimaryCtxRelease(1));
    }
    OK(p_cuCtxSetCurrent(before));
}

static void primary_contexts_with_sparse_arrays(bool keep) {
    fill_sparsely();
    if (keep) return;
    OK(p_cuDevicePrimaryCtxReset_v2(0));
    CUcontext ctx;
    OK(p_cuDevicePrimaryCtxRetain(&ctx, 0)); /* the next use makes it anew */
    OK(p_cuCtxSetCurrent(ctx));
}

static void green_contexts(bool keep) {
    CUdevResource resource;
    CUdevResourceDesc desc;
    CUgreenCtx green;
    CUcontext ctx, before;
    CUdeviceptr p;
    OK(p_cuCtxGetCurrent(&before));
    OK(p_cuDeviceGetDevResource(1, &resource, CU_DEV_RESOURCE_TYPE_SM));
    OK(p_cuDevResourceGenerateDesc(&desc, &resource, 1));
    OK(p_cuGreenCtxCreate(&green, desc, 1, 1));
    OK(p_cuCtxFromGreenCtx(&ctx, green));
    OK(p_cuCtxSetCurrent(ctx));
    TAKES_ON(1, 1, p_cuMemAlloc_v2(&p, 10000));
    TAKES_ON(1, 1, p_cuMemAllocAsync(&p, 20000, NULL));
    if (!keep) {
        OK(p_cuMemFree_v2(p));
        CUmemoryPool pool;
        OK(p_cuDeviceGetDefaultMemPool(&pool, 1));
        OK(p_cuMemPoolTrimTo(pool, 0));
        OK(p_cuGreenCtxDestroy(green));
    }
    OK(p_cuCtxSetCurrent(before));
}
