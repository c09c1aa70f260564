/* Virtual memory management. */

static CUmemGenericAllocationHandle physical_on(int device, size_t bytes) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, device},
                                .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR};
    CUmemGenericAllocationHandle handle;
    TAKES_ON(device, 1, p_cuMemCreate(&handle, bytes, &prop, 0));
    return handle;
}

static CUmemGenericAllocationHandle physical(size_t bytes) { return physical_on(0, bytes); }

static CUdeviceptr reserved(size_t bytes) {
    CUdeviceptr p;
    OK(p_cuMemAddressReserve(&p, bytes, 0, 0, 0));
    return p;
}

static void vmm_held(bool keep) {
    CUmemGenericAllocationHandle a = physical(2 * MIB), b = physical(6 * MIB), c = physical_on(1, 4 * MIB);
    CUdeviceptr at = reserved(8 * MIB);
    OK(p_cuMemMap(at, 6 * MIB, 0, b, 0));
    OK(p_cuMemUnmap(at, 6 * MIB));
    OK(p_cuMemRelease(a));
    if (keep) return;
    OK(p_cuMemRelease(b));
    OK(p_cuMemRelease(c));
    OK(p_cuMemAddressFree(at, 8 * MIB));
}

static void vmm_released_but_mapped(bool keep) {
    CUmemGenericAllocationHandle a = physical(4 * MIB);
    CUdeviceptr at = reserved(4 * MIB);
    OK(p_cuMemMap(at, 4 * MIB, 0, a, 0));
    OK(p_cuMemRelease(a));
    physical(2 * MIB); /* perhaps under the same handle */
    if (!keep) OK(p_cuMemUnmap(at, 4 * MIB));
}

static void vmm_mapped_twice(bool keep) {
    CUmemGenericAllocationHandle a = physical(4 * MIB);
    CUdeviceptr at = reserved(16 * MIB);
    OK(p_cuMemMap(at, 4 * MIB, 0, a, 0));
    OK(p_cuMemMap(at + 8 * MIB, 2 * MIB, 2 * MIB, a, 0));
    OK(p_cuMemRelease(a));
    OK(p_cuMemUnmap(at, 4 * MIB));
    if (!keep) OK(p_cuMemUnmap(at + 8 * MIB, 2 * MIB));
}

/* One unmap ends several mappings, of one and of several allocations. */
static void vmm_unmapped_together(bool keep) {
    CUmemGenericAllocationHandle a = physical(2 * MIB), b = physical(4 * MIB), c = physical(2 * MIB);
    CUdeviceptr at = reserved(16 * MIB);
    OK(p_cuMemMap(at, 2 * MIB, 0, a, 0));
    OK(p_cuMemMap(at + 2 * MIB, 4 * MIB, 0, b, 0));
    OK(p_cuMemMap(at + 6 * MIB, 2 * MIB, 0, a, 0));
    OK(p_cuMemMap(at + 8 * MIB, 2 * MIB, 0, c, 0));
    OK(p_cuMemRelease(a));
    OK(p_cuMemRelease(b));
    OK(p_cuMemRelease(c));
    GIVES(1, p_cuMemUnmap(at, 4 * MIB)); /* half of b: refused, and nothing changes */
    OK(p_cuMemUnmap(at, 8 * MIB));
    if (!keep) OK(p_cuMemUnmap(at + 8 * MIB, 2 * MIB));
}

static void vmm_retained(bool keep) {
    CUmemGenericAllocationHandle a = physical(4 * MIB), again, third;
    CUdeviceptr at = reserved(4 * MIB);
    OK(p_cuMemMap(at, 4 * MIB, 0, a, 0));
    OK(p_cuMemRelease(a));
    OK(p_cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(at + MIB)));
    OK(p_cuMemRetainAllocationHandle(&third, (void *)(uintptr_t)at));
    OK(p_cuMemUnmap(at, 4 * MIB));
    OK(p_cuMemRelease(again));
    if (!keep) OK(p_cuMemRelease(third));
}

static void vmm_elsewhere(bool keep) {
    CUmemGenericAllocationHandle handles[3];
    for (int i = 0; i < 3; i++) {
        CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_HOST + i, 0}};
        OK(p_cuMemCreate(&handles[i], 4 * MIB, &prop, 0));
    }
    CUdeviceptr at = reserved(64 * MIB);
    OK(p_cuMemMap(at, 4 * MIB, 0, handles[0], 0));
    for (int i = 0; i < 3 && !keep; i++) OK(p_cuMemRelease(handles[i]));
    if (!keep) OK(p_cuMemUnmap(at, 4 * MIB));
}

/* Another process's memory has an address here and no charge; neither has our own that comes back. */
static void vmm_imported(bool keep) {
    CUmemGenericAllocationHandle a = physical(4 * MIB), seen;
    CUdeviceptr at = reserved(4 * MIB);
    int fd;
    OK(p_cuMemExportToShareableHandle(&fd, a, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(p_cuMemImportFromShareableHandle(&seen, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    OK(p_cuMemMap(at, 4 * MIB, 0, seen, 0));
    if (keep) return;
    OK(p_cuMemUnmap(at, 4 * MIB));
    OK(p_cuMemRelease(seen));
    OK(p_cuMemRelease(a));
}
