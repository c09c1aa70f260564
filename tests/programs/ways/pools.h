/* Stream-ordered allocations: the memory is the pool's, and stays with it after a free. */

static CUmemoryPool make_pool(int device, int handle_types) {
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .handleTypes = handle_types,
                            .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
    CUmemoryPool pool;
    OK(p_cuMemPoolCreate(&pool, &props));
    return pool;
}

static void keep_everything(CUmemoryPool pool) {
    uint64_t all = UINT64_MAX;
    OK(p_cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
}

static void pool_default(bool keep) {
    CUdeviceptr a, b, c;
    CUstream stream;
    CUmemoryPool pool;
    OK(p_cuStreamCreate(&stream, 1));
    TAKES(1, p_cuMemAllocAsync(&a, 1000, NULL));
    TAKES(1, p_cuMemAllocAsync(&b, 2 * MIB, stream));
    TAKES(1, p_cuMemAllocAsync_ptsz(&c, 3 * MIB, NULL));
    OK(p_cuMemFreeAsync(b, stream));
    if (keep) return;
    OK(p_cuMemFreeAsync_ptsz(c, NULL));
    OK(p_cuMemFreeAsync(a, NULL));
    OK(p_cuDeviceGetDefaultMemPool(&pool, 0));
    OK(p_cuMemPoolTrimTo(pool, 0));
}

static void pool_explicit(bool keep) {
    CUdeviceptr a, b;
    CUmemoryPool pool = make_pool(0, 0);
    TAKES(1, p_cuMemAllocFromPoolAsync(&a, 1000, pool, NULL));
    TAKES(1, p_cuMemAllocFromPoolAsync_ptsz(&b, 5 * MIB, pool, NULL));
    OK(p_cuMemFreeAsync(a, NULL));
    if (keep) return;
    OK(p_cuMemFreeAsync(b, NULL));
    OK(p_cuMemPoolDestroy(pool));
}

/* The device's own pool is replaced; cuMemAllocAsync takes from the new one. */
static void pool_of_the_device(bool keep) {
    CUdeviceptr a, b;
    CUmemoryPool pool = make_pool(0, 0), before, now;
    OK(p_cuDeviceGetMemPool(&before, 0));
    OK(p_cuDeviceSetMemPool(0, pool));
    OK(p_cuDeviceGetMemPool(&now, 0));
    if (now != pool || before == pool) DIE("the pool did not change");
    TAKES(1, p_cuMemAllocAsync(&a, 3 * MIB, NULL));
    OK(p_cuDeviceSetMemPool(0, before));
    TAKES(1, p_cuMemAllocAsync(&b, 3 * MIB, NULL));
    OK(p_cuMemFreeAsync(b, NULL));
    OK(p_cuMemPoolTrimTo(before, 0));
    if (keep) return;
    OK(p_cuMemFreeAsync(a, NULL));
    OK(p_cuMemPoolDestroy(pool));
}

/* Nothing is allocated, and the pool has the memory all the same. */
static void pool_reserve(bool keep) {
    CUdeviceptr p;
    CUmemoryPool pool = make_pool(0, 0);
    keep_everything(pool);
    TAKES(1, p_cuMemAllocFromPoolAsync(&p, 5 * MIB, pool, NULL));
    OK(p_cuMemFreeAsync(p, NULL));
    OK(p_cuStreamSynchronize(NULL));
    if (keep) OK(p_cuMemPoolTrimTo(pool, 3 * MIB));
    if (!keep) OK(p_cuMemPoolTrimTo(pool, 0));
}

/* A synchronise gives back what lies above the threshold. */
static void pool_synchronised(bool keep) {
    CUdeviceptr a, b;
    CUmemoryPool pool = make_pool(0, 0);
    TAKES(1, p_cuMemAllocFromPoolAsync(&a, 5 * MIB, pool, NULL));
    TAKES(1, p_cuMemAllocFromPoolAsync(&b, 100, pool, NULL));
    OK(p_cuMemFreeAsync(a, NULL));
    if (!keep) OK(p_cuMemFreeAsync(b, NULL));
    OK(p_cuStreamSynchronize(NULL));
}

/* A destroyed pool lives on, with all that it has, until its last allocation is freed. */
static void pool_destroyed_in_use(bool keep) {
    CUdeviceptr a, b, c;
    CUmemoryPool pool = make_pool(0, 0), other;
    keep_everything(pool);
    TAKES(1, p_cuMemAllocFromPoolAsync(&a, 3 * MIB, pool, NULL));
    TAKES(1, p_cuMemAllocFromPoolAsync(&b, 1000, pool, NULL));
    OK(p_cuMemPoolDestroy(pool));
    other = make_pool(0, 0);
    TAKES(1, p_cuMemAllocFromPoolAsync(&c, 10, other, NULL));
    OK(p_cuMemFreeAsync(a, NULL));
    if (keep) return;
    OK(p_cuMemFree_v2(b));
    OK(p_cuMemFree_v2(c));
    OK(p_cuMemPoolDestroy(other));
}

static void pool_of_host_memory(bool keep) {
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, 0}};
    CUmemoryPool pool;
    CUdeviceptr p;
    OK(p_cuMemPoolCreate(&pool, &props));
    OK(p_cuMemAllocFromPoolAsync(&p, 3 * MIB, pool, NULL));
    if (keep) return;
    OK(p_cuMemFreeAsync(p, NULL));
    OK(p_cuMemPoolDestroy(pool));
}

/* The pool decides on which device the memory is, not the stream. */
static void pool_of_the_other_device(bool keep) {
    CUdeviceptr p;
    CUmemoryPool pool = make_pool(1, 0);
    TAKES_ON(1, 1, p_cuMemAllocFromPoolAsync(&p, 3 * MIB, pool, NULL));
    if (keep) return;
    OK(p_cuMemFreeAsync(p, NULL));
    OK(p_cuMemPoolDestroy(pool));
}

static void pool_shared(bool keep) {
    CUmemoryPool pool = make_pool(0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), imported;
    CUmemPoolPtrExportData data;
    CUdeviceptr p, seen;
    int fd;
    TAKES(1, p_cuMemAllocFromPoolAsync(&p, 3 * MIB, pool, NULL));
    OK(p_cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(p_cuMemPoolImportFromShareableHandle(&imported, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(p_cuMemPoolExportPointer(&data, p));
    OK(p_cuMemPoolImportPointer(&seen, imported, &data));
    GIVES(1, p_cuMemAllocFromPoolAsync(&(CUdeviceptr){0}, 100, imported, NULL));
    if (keep) return;
    OK(p_cuMemFreeAsync(seen, NULL));
    OK(p_cuMemPoolDestroy(imported));
    OK(p_cuMemFreeAsync(p, NULL));
    OK(p_cuMemPoolDestroy(pool));
}
