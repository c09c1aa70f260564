/* Stream-ordered allocation. A pool holds memory in steps of 2 MiB, and what it holds is what the
 * device is charged; what is free in it goes back at the next synchronise, above the threshold. */

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "stream.h"

enum { STEP = 2 << 20, ALIGNMENT = 512 };

struct pool {
    struct object object;
    CUmemPoolProps props;
    int device;
    bool on_host, is_default, imported, doomed;
    uint64_t reserved, reserved_high, used, used_high, threshold, live;
    int reuse[4];
    struct pool *next;
};

static struct pool *pools, *defaults[SIM_MAX_DEVICES], *current[SIM_MAX_DEVICES];

static struct pool *make(int device) {
    struct pool *p = object_new(OBJECT_POOL, sizeof *p, NULL);
    p->device = device;
    p->props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    p->props.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, device};
    for (int i = 1; i < 4; i++) p->reuse[i] = 1;
    p->next = pools;
    return pools = p;
}

static struct pool *default_of(int device) {
    if (!defaults[device]) {
        defaults[device] = make(device);
        defaults[device]->is_default = true;
    }
    return defaults[device];
}

static struct pool *current_of(int device) {
    if (!current[device]) current[device] = default_of(device);
    return current[device];
}

static void shrink(struct pool *p, uint64_t keep) {
    if (keep >= p->reserved) return; /* the usual threshold is "all", which cannot be rounded up */
    uint64_t used = align_up(p->used, STEP), wanted = align_up(keep, STEP);
    if (wanted < used) wanted = used;
    if (wanted >= p->reserved) return;
    if (!p->on_host) give(p->device, BOOK_POOL, p->reserved - wanted, 0);
    p->reserved = wanted;
}

static void end(struct pool *p) {
    shrink(p, 0);
    struct pool **at = &pools;
    while (*at != p) at = &(*at)->next;
    *at = p->next;
    object_free(p);
}

void pools_synchronize(int device) {
    for (struct pool *p = pools; p; p = p->next)
        if (device < 0 || p->device == device) shrink(p, p->threshold);
}

static CUresult allocate(struct pool *p, CUdeviceptr *ptr, size_t bytes) {
    uint64_t wanted, grown = 0;
    bool absurd = __builtin_add_overflow(p->used, bytes, &wanted) || wanted > SIZE_MAX - STEP;
    bool full = absurd || (p->props.maxSize && wanted > p->props.maxSize);
    struct block *b = full ? NULL : block_new(BLOCK_POOL, bytes, ALIGNMENT, false);
    if (!b) {
        if (!p->on_host) refuse(p->device);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    wanted = align_up(wanted, STEP);
    if (wanted > p->reserved) grown = wanted - p->reserved;
    if (!p->on_host && !take(p->device, BOOK_POOL, grown, 1)) {
        block_free(b);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    b->device = p->device;
    b->owner = p;
    p->reserved += grown;
    p->used += bytes;
    p->live++;
    if (p->reserved > p->reserved_high) p->reserved_high = p->reserved;
    if (p->used > p->used_high) p->used_high = p->used;
    *ptr = b->addr;
    return CUDA_SUCCESS;
}

CUresult pool_free_block(struct block *b) {
    struct pool *p = b->owner;
    p->used -= b->size;
    p->live--;
    if (!p->on_host) give(p->device, BOOK_POOL, 0, 1);
    block_free(b);
    if (p->doomed && !p->live) end(p);
    return CUDA_SUCCESS;
}

static CUresult alloc_async(CUdeviceptr *ptr, size_t bytes, struct pool *p, CUstream handle, bool per_thread) {
    REQUIRE(ptr && bytes);
    CUresult why;
    struct stream *s = stream_resolve(handle, per_thread, &why);
    if (!s) return why;
    if ((why = capture_forbids_legacy(s))) return why;
    if (!p) p = current_of(s->owner->device);
    REQUIRE(!p->imported && !p->doomed);
    if (s->capture) return capture_alloc(s->capture, ptr, bytes, p->device);
    return allocate(p, ptr, bytes);
}

API CUresult cuMemAllocAsync(CUdeviceptr *ptr, size_t bytes, CUstream stream) {
    ENTER(cuMemAllocAsync, NEED_CONTEXT);
    return alloc_async(ptr, bytes, NULL, stream, false);
}

API CUresult cuMemAllocAsync_ptsz(CUdeviceptr *ptr, size_t bytes, CUstream stream) {
    ENTER(cuMemAllocAsync_ptsz, NEED_CONTEXT);
    return alloc_async(ptr, bytes, NULL, stream, true);
}

API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *ptr, size_t bytes, CUmemoryPool pool, CUstream stream) {
    ENTER(cuMemAllocFromPoolAsync, NEED_CONTEXT);
    struct pool *p = object_find(OBJECT_POOL, pool);
    REQUIRE(p);
    return alloc_async(ptr, bytes, p, stream, false);
}

API CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *ptr, size_t bytes, CUmemoryPool pool, CUstream stream) {
    ENTER(cuMemAllocFromPoolAsync_ptsz, NEED_CONTEXT);
    struct pool *p = object_find(OBJECT_POOL, pool);
    REQUIRE(p);
    return alloc_async(ptr, bytes, p, stream, true);
}

static CUresult free_async(CUdeviceptr ptr, CUstream handle, bool per_thread) {
    CUresult why;
    struct stream *s = stream_resolve(handle, per_thread, &why);
    if (!s) return why;
    if ((why = capture_forbids_legacy(s))) return why;
    if (!ptr) return CUDA_SUCCESS;
    struct block *b = block_at(ptr);
    REQUIRE(b);
    if (s->capture) return capture_free(s->capture, ptr);
    switch (b->kind) {
    case BLOCK_POOL: return pool_free_block(b);
    case BLOCK_IMPORTED: block_free(b); return CUDA_SUCCESS;
    case BLOCK_GRAPH: return graph_memory_free(b);
    case BLOCK_LINEAR:
    case BLOCK_PITCH: return memory_release(b);
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

API CUresult cuMemFreeAsync(CUdeviceptr ptr, CUstream stream) {
    ENTER(cuMemFreeAsync, NEED_CONTEXT);
    return free_async(ptr, stream, false);
}

API CUresult cuMemFreeAsync_ptsz(CUdeviceptr ptr, CUstream stream) {
    ENTER(cuMemFreeAsync_ptsz, NEED_CONTEXT);
    return free_async(ptr, stream, true);
}

/* ---- pools --------------------------------------------------------------------------------------- */

API CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props) {
    ENTER(cuMemPoolCreate, NEED_INIT);
    REQUIRE(pool && props);
    bool on_device = props->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    REQUIRE(props->location.type >= CU_MEM_LOCATION_TYPE_DEVICE && props->location.type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT);
    if (on_device && !device_valid(props->location.id)) return CUDA_ERROR_INVALID_DEVICE;
    struct pool *p = make(on_device ? props->location.id : 0);
    p->props = *props;
    p->on_host = !on_device;
    *pool = (CUmemoryPool)p;
    return CUDA_SUCCESS;
}

/* What it still has lent out lives on; the pool goes with the last of it. */
API CUresult cuMemPoolDestroy(CUmemoryPool handle) {
    ENTER(cuMemPoolDestroy, NEED_INIT);
    struct pool *p = object_find(OBJECT_POOL, handle);
    REQUIRE(p && !p->is_default && !p->doomed);
    for (int d = 0; d < SIM_MAX_DEVICES; d++)
        if (current[d] == p) current[d] = NULL;
    p->doomed = true;
    if (!p->live) end(p);
    return CUDA_SUCCESS;
}

static struct pool *usable(CUmemoryPool handle) {
    struct pool *p = object_find(OBJECT_POOL, handle);
    return p && !p->doomed ? p : NULL;
}

API CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
    ENTER(cuMemPoolTrimTo, NEED_INIT);
    struct pool *p = usable(handle);
    REQUIRE(p);
    shrink(p, keep);
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolGetAttribute(CUmemoryPool handle, int attribute, void *value) {
    ENTER(cuMemPoolGetAttribute, NEED_INIT);
    struct pool *p = usable(handle);
    REQUIRE(p && value);
    switch (attribute) {
    case 1: case 2: case 3: *(int *)value = p->reuse[attribute]; break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *(uint64_t *)value = p->threshold; break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *(uint64_t *)value = p->reserved; break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: *(uint64_t *)value = p->reserved_high; break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *(uint64_t *)value = p->used; break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *(uint64_t *)value = p->used_high; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolSetAttribute(CUmemoryPool handle, int attribute, void *value) {
    ENTER(cuMemPoolSetAttribute, NEED_INIT);
    struct pool *p = usable(handle);
    REQUIRE(p && value);
    switch (attribute) {
    case 1: case 2: case 3: p->reuse[attribute] = *(int *)value; break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: p->threshold = *(uint64_t *)value; break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: REQUIRE(!*(uint64_t *)value); p->reserved_high = p->reserved; break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: REQUIRE(!*(uint64_t *)value); p->used_high = p->used; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *map, size_t count) {
    ENTER(cuMemPoolSetAccess, NEED_INIT);
    REQUIRE(usable(handle) && (map || !count));
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolGetAccess(int *flags, CUmemoryPool handle, CUmemLocation *location) {
    ENTER(cuMemPoolGetAccess, NEED_INIT);
    struct pool *p = usable(handle);
    REQUIRE(p && flags && location);
    *flags = p->device == location->id ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

static CUresult answer(CUmemoryPool *out, CUdevice device, bool the_default) {
    REQUIRE(out);
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    *out = (CUmemoryPool)(the_default ? default_of(device) : current_of(device));
    return CUDA_SUCCESS;
}

static CUresult choose(CUdevice device, CUmemoryPool handle) {
    struct pool *p = usable(handle);
    REQUIRE(p);
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    REQUIRE(p->device == device && !p->on_host);
    current[device] = p;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
    ENTER(cuDeviceGetDefaultMemPool, NEED_INIT);
    return answer(pool, device, true);
}

API CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
    ENTER(cuDeviceGetMemPool, NEED_INIT);
    return answer(pool, device, false);
}

API CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool) {
    ENTER(cuDeviceSetMemPool, NEED_INIT);
    return choose(device, pool);
}

API CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location, int type) {
    ENTER(cuMemGetDefaultMemPool, NEED_INIT);
    REQUIRE(location && type == CU_MEM_ALLOCATION_TYPE_PINNED && location->type == CU_MEM_LOCATION_TYPE_DEVICE);
    return answer(pool, location->id, true);
}

API CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, int type) {
    ENTER(cuMemGetMemPool, NEED_INIT);
    REQUIRE(location && type == CU_MEM_ALLOCATION_TYPE_PINNED && location->type == CU_MEM_LOCATION_TYPE_DEVICE);
    return answer(pool, location->id, false);
}

API CUresult cuMemSetMemPool(CUmemLocation *location, int type, CUmemoryPool pool) {
    ENTER(cuMemSetMemPool, NEED_INIT);
    REQUIRE(location && type == CU_MEM_ALLOCATION_TYPE_PINNED && location->type == CU_MEM_LOCATION_TYPE_DEVICE);
    return choose(location->id, pool);
}

/* ---- sharing: the importer has addresses, the exporter the charge ------------------------------- */

struct shared_pointer {
    uint64_t magic, size;
};
enum { POINTER_MAGIC = 0x706f6f6c };

API CUresult cuMemPoolExportToShareableHandle(void *out, CUmemoryPool handle, int type, unsigned long long flags) {
    ENTER(cuMemPoolExportToShareableHandle, NEED_INIT);
    struct pool *p = usable(handle);
    REQUIRE(out && p && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && !flags && (p->props.handleTypes & type));
    int fd = memfd_create("sim-pool", MFD_CLOEXEC);
    if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    if (write(fd, sim_books->device[device_physical(p->device)].is.uuid, SIM_UUID_SIZE) != SIM_UUID_SIZE) {
        close(fd);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *(int *)out = fd;
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle, int type, unsigned long long flags) {
    ENTER(cuMemPoolImportFromShareableHandle, NEED_INIT);
    REQUIRE(pool && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && !flags);
    char uuid[SIM_UUID_SIZE];
    if (pread((int)(intptr_t)handle, uuid, sizeof uuid, 0) != sizeof uuid) return CUDA_ERROR_INVALID_VALUE;
    int device = -1;
    for (int d = 0; d < device_count(); d++)
        if (!memcmp(uuid, sim_books->device[device_physical(d)].is.uuid, sizeof uuid)) device = d;
    if (device < 0) return CUDA_ERROR_INVALID_DEVICE;
    struct pool *p = make(device);
    p->imported = true;
    *pool = (CUmemoryPool)p;
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *data, CUdeviceptr ptr) {
    ENTER(cuMemPoolExportPointer, NEED_INIT);
    struct block *b = block_at(ptr);
    REQUIRE(data && b && b->kind == BLOCK_POOL);
    memset(data, 0, sizeof *data);
    memcpy(data, &(struct shared_pointer){POINTER_MAGIC, b->size}, sizeof(struct shared_pointer));
    return CUDA_SUCCESS;
}

API CUresult cuMemPoolImportPointer(CUdeviceptr *ptr, CUmemoryPool handle, CUmemPoolPtrExportData *data) {
    ENTER(cuMemPoolImportPointer, NEED_INIT);
    struct pool *p = usable(handle);
    REQUIRE(ptr && data && p && p->imported);
    struct shared_pointer shared;
    memcpy(&shared, data, sizeof shared);
    REQUIRE(shared.magic == POINTER_MAGIC && shared.size);
    struct block *b = block_new(BLOCK_IMPORTED, shared.size, ALIGNMENT, false);
    if (!b) return CUDA_ERROR_OUT_OF_MEMORY;
    b->device = p->device;
    *ptr = b->addr;
    return CUDA_SUCCESS;
}
