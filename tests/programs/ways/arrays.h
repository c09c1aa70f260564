/* Arrays, mipmapped arrays, and sparse ones that have the memory which is mapped to them. */

static CUarray array_3d(size_t width, size_t height, size_t depth, int format, unsigned channels, unsigned flags) {
    CUarray array;
    TAKES(1, p_cuArray3DCreate_v2(&array, &(CUDA_ARRAY3D_DESCRIPTOR){width, height, depth, format, channels, flags}));
    return array;
}

static void arrays_of_every_shape(bool keep) {
    static const struct { size_t width, height, depth; int format; unsigned channels, flags; } shapes[] = {
        {1000, 0, 0, CU_AD_FORMAT_FLOAT, 1, 0},
        {33, 17, 0, CU_AD_FORMAT_UNSIGNED_INT8, 4, 0},
        {5, 6, 7, CU_AD_FORMAT_HALF, 2, 0},
        {100, 0, 3, CU_AD_FORMAT_SIGNED_INT16, 1, CUDA_ARRAY3D_LAYERED},
        {64, 32, 5, CU_AD_FORMAT_SIGNED_INT8, 2, CUDA_ARRAY3D_LAYERED},
        {16, 16, 6, CU_AD_FORMAT_UNSIGNED_INT32, 1, CUDA_ARRAY3D_CUBEMAP},
        {16, 16, 12, CU_AD_FORMAT_UNSIGNED_INT16, 4, CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_LAYERED},
        {64, 64, 0, CU_AD_FORMAT_FLOAT, 4, CUDA_ARRAY3D_DEFERRED_MAPPING},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        CUarray a = array_3d(shapes[i].width, shapes[i].height, shapes[i].depth, shapes[i].format, shapes[i].channels, shapes[i].flags);
        if (!keep || i % 3 == 2) OK(p_cuArrayDestroy(a));
    }
}

static void arrays_by_every_function(bool keep) {
    CUarray a[4];
    TAKES(1, p_cuArrayCreate(&a[0], &(CUDA_ARRAY_DESCRIPTOR_v1){100, 10, CU_AD_FORMAT_UNSIGNED_INT8, 1}));
    TAKES(1, p_cuArrayCreate_v2(&a[1], &(CUDA_ARRAY_DESCRIPTOR){200, 0, CU_AD_FORMAT_FLOAT, 2}));
    TAKES(1, p_cuArray3DCreate(&a[2], &(CUDA_ARRAY3D_DESCRIPTOR_v1){10, 20, 30, CU_AD_FORMAT_HALF, 4, 0}));
    TAKES(1, p_cuArray3DCreate_v2(&a[3], &(CUDA_ARRAY3D_DESCRIPTOR){11, 21, 31, CU_AD_FORMAT_HALF, 4, 0}));
    for (int i = 0; i < 4; i++)
        if (!keep || i == 1) OK(p_cuArrayDestroy(a[i]));
}

static void mipmapped_arrays(bool keep) {
    static const struct { CUDA_ARRAY3D_DESCRIPTOR desc; unsigned levels; } shapes[] = {
        {{1000, 0, 0, CU_AD_FORMAT_FLOAT, 1, 0}, 5},
        {{37, 12, 0, CU_AD_FORMAT_UNSIGNED_INT8, 4, 0}, 6},
        {{32, 16, 8, CU_AD_FORMAT_HALF, 2, 0}, 6},
        {{32, 16, 9, CU_AD_FORMAT_HALF, 2, CUDA_ARRAY3D_LAYERED}, 4},
        {{64, 64, 6, CU_AD_FORMAT_UNSIGNED_INT8, 1, CUDA_ARRAY3D_CUBEMAP}, 1},
        {{64, 64, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, CUDA_ARRAY3D_SPARSE}, 3},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        CUmipmappedArray m;
        CUarray level;
        TAKES(1, p_cuMipmappedArrayCreate(&m, &shapes[i].desc, shapes[i].levels));
        OK(p_cuMipmappedArrayGetLevel(&level, m, 0));
        GIVES(1, p_cuArrayDestroy(level)); /* it goes with its whole */
        if (!keep || i == 2) OK(p_cuMipmappedArrayDestroy(m));
    }
}

/* Maps memory to (or, with handle 0, unmaps it from) the tile at `x` of an array. */
static void tile(CUarray array, unsigned x, CUmemGenericAllocationHandle handle, bool per_thread) {
    CUarrayMapInfo info;
    memset(&info, 0, sizeof info);
    info.resource.array = array;
    info.subresource.sparseLevel.offsetX = x;
    info.subresource.sparseLevel.extentWidth = info.subresource.sparseLevel.extentHeight = info.subresource.sparseLevel.extentDepth = 1;
    info.memOperationType = handle ? 1 : 2;
    info.memHandle.memHandle = handle;
    info.deviceBitMask = 1;
    OK((per_thread ? p_cuMemMapArrayAsync_ptsz : p_cuMemMapArrayAsync)(&info, 1, NULL));
}

static void sparse_arrays(bool keep) {
    CUarray a = array_3d(4096, 4096, 0, CU_AD_FORMAT_FLOAT, 4, CUDA_ARRAY3D_SPARSE);
    CUarray b = array_3d(4096, 4096, 0, CU_AD_FORMAT_FLOAT, 4, CUDA_ARRAY3D_SPARSE);
    CUmemGenericAllocationHandle one = physical(2 * MIB), two = physical(4 * MIB), three = physical(6 * MIB);
    tile(a, 0, one, false);
    tile(a, 64, two, true);
    tile(b, 0, two, false);
    tile(b, 64, three, false);
    OK(p_cuMemRelease(one));
    OK(p_cuMemRelease(two));
    OK(p_cuMemRelease(three));
    tile(a, 0, 0, true); /* the last use of one */
    OK(p_cuArrayDestroy(a));
    if (keep) return; /* two and three, through b */
    tile(b, 0, 0, false);
    OK(p_cuArrayDestroy(b));
}

static void sparse_arrays_mapped_anew(bool keep) {
    CUarray a = array_3d(4096, 4096, 0, CU_AD_FORMAT_FLOAT, 4, CUDA_ARRAY3D_SPARSE);
    CUmemGenericAllocationHandle one = physical(2 * MIB), two = physical(4 * MIB);
    tile(a, 0, one, false);
    OK(p_cuMemRelease(one));
    tile(a, 0, two, false); /* ends what was there */
    tile(a, 0, two, false); /* the same again */
    OK(p_cuMemRelease(two));
    if (!keep) tile(a, 0, 0, false);
}

static void sparse_mipmapped_arrays(bool keep) {
    CUmipmappedArray m;
    TAKES(1, p_cuMipmappedArrayCreate(&m, &(CUDA_ARRAY3D_DESCRIPTOR){4096, 4096, 0, CU_AD_FORMAT_FLOAT, 4, CUDA_ARRAY3D_SPARSE}, 3));
    CUmemGenericAllocationHandle one = physical(2 * MIB);
    tile((CUarray)m, 0, one, false);
    OK(p_cuMemRelease(one));
    if (!keep) OK(p_cuMipmappedArrayDestroy(m));
}
