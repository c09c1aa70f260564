/* Virtual memory management: reservations are addresses only; memory belongs to a handle, and is
 * given back once the handle is released and nothing maps it. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "stream.h"

struct memory {
    struct object object;
    CUmemAllocationProp prop;
    size_t size;
    int device;
    bool charged;
    unsigned int handles, maps; /* who holds it: handles handed out, ranges that map it */
};

struct mapping {
    CUdeviceptr addr;
    size_t size, offset;
    struct memory *memory;
    struct mapping *next;
};
static struct mapping *mappings;

static struct memory *find(CUmemGenericAllocationHandle handle) {
    struct memory *m = object_find(OBJECT_VMM, (void *)(uintptr_t)handle);
    return m && m->handles ? m : NULL;
}

static void end_if_unused(struct memory *m) {
    if (m->handles || m->maps) return;
    if (m->charged) give(m->device, BOOK_VMM, m->size, 1);
    object_free(m);
}

static struct memory *make(size_t size, int device, bool charged) {
    if (charged && !take(device, BOOK_VMM, size, 1)) return NULL;
    struct memory *m = object_new(OBJECT_VMM, sizeof *m, NULL);
    m->size = size;
    m->device = device;
    m->charged = charged;
    m->handles = 1;
    return m;
}

static bool aligned(uint64_t n) { return n % VMM_GRANULARITY == 0; }

API CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr hint, unsigned long long flags) {
    ENTER(cuMemAddressReserve, NEED_INIT);
    (void)hint;
    REQUIRE(ptr && size && aligned(size) && !flags && !(alignment & (alignment - 1)));
    struct block *b = block_new(BLOCK_RESERVED, size, alignment > VMM_GRANULARITY ? alignment : VMM_GRANULARITY, false);
    if (!b) return CUDA_ERROR_OUT_OF_MEMORY;
    b->live = false; /* nothing mapped: not a pointer to memory yet */
    *ptr = b->addr;
    return CUDA_SUCCESS;
}

static bool overlaps(const struct mapping *m, CUdeviceptr ptr, size_t size) { return m->addr < ptr + size && ptr < m->addr + m->size; }

API CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size) {
    ENTER(cuMemAddressFree, NEED_INIT);
    struct block *b = block_at(ptr);
    REQUIRE(b && b->kind == BLOCK_RESERVED && b->size == size);
    for (struct mapping *m = mappings; m; m = m->next) REQUIRE(!overlaps(m, ptr, size));
    block_free(b);
    return CUDA_SUCCESS;
}

static CUresult check(const CUmemAllocationProp *prop) {
    REQUIRE(prop && prop->type == CU_MEM_ALLOCATION_TYPE_PINNED);
    REQUIRE(prop->location.type >= CU_MEM_LOCATION_TYPE_DEVICE && prop->location.type <= CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT);
    if (prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE && !device_valid(prop->location.id)) return CUDA_ERROR_INVALID_DEVICE;
    return CUDA_SUCCESS;
}

API CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags) {
    ENTER(cuMemCreate, NEED_INIT);
    CUresult bad = check(prop);
    if (bad) return bad;
    REQUIRE(handle && size && aligned(size) && !flags);
    bool on_device = prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    struct memory *m = make(size, on_device ? prop->location.id : 0, on_device);
    if (!m) return CUDA_ERROR_OUT_OF_MEMORY;
    m->prop = *prop;
    *handle = (uintptr_t)m;
    return CUDA_SUCCESS;
}

API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    ENTER(cuMemRelease, NEED_INIT);
    struct memory *m = find(handle);
    REQUIRE(m);
    m->handles--;
    end_if_unused(m);
    return CUDA_SUCCESS;
}

API CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
    ENTER(cuMemMap, NEED_INIT);
    struct memory *m = find(handle);
    struct block *b = block_containing(ptr);
    REQUIRE(m && size && aligned(size) && aligned(ptr) && !flags);
    REQUIRE(b && b->kind == BLOCK_RESERVED && size <= b->size - (ptr - b->addr));
    REQUIRE(offset <= m->size && size <= m->size - offset);
    for (struct mapping *at = mappings; at; at = at->next)
        if (overlaps(at, ptr, size)) return CUDA_ERROR_INVALID_VALUE;
    struct mapping *new = malloc(sizeof *new);
    if (!new) return CUDA_ERROR_OUT_OF_MEMORY;
    *new = (struct mapping){ptr, size, offset, m, mappings};
    mappings = new;
    m->maps++;
    b->live = true;
    b->device = m->device;
    return CUDA_SUCCESS;
}

/* A range may cover several mappings, each of them wholly. */
API CUresult cuMemUnmap(CUdeviceptr ptr, size_t size) {
    ENTER(cuMemUnmap, NEED_INIT);
    REQUIRE(size && aligned(size) && aligned(ptr));
    size_t covered = 0;
    for (struct mapping *m = mappings; m; m = m->next) {
        if (!overlaps(m, ptr, size)) continue;
        REQUIRE(m->addr >= ptr && m->addr + m->size <= ptr + size);
        covered += m->size;
    }
    REQUIRE(covered == size);
    for (struct mapping **at = &mappings; *at;) {
        struct mapping *m = *at;
        if (!overlaps(m, ptr, size)) {
            at = &m->next;
            continue;
        }
        *at = m->next;
        m->memory->maps--;
        end_if_unused(m->memory);
        free(m);
    }
    struct block *b = block_containing(ptr);
    if (b) {
        b->live = false;
        for (struct mapping *m = mappings; m; m = m->next)
            if (overlaps(m, b->addr, b->size)) b->live = true;
    }
    return CUDA_SUCCESS;
}

static struct mapping *mapping_at(CUdeviceptr ptr) {
    struct mapping *m = mappings;
    while (m && !(ptr >= m->addr && ptr - m->addr < m->size)) m = m->next;
    return m;
}

API CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count) {
    ENTER(cuMemSetAccess, NEED_INIT);
    REQUIRE(desc && count && size);
    for (CUdeviceptr at = ptr; at < ptr + size;) {
        struct mapping *m = mapping_at(at);
        REQUIRE(m);
        at = m->addr + m->size;
    }
    return CUDA_SUCCESS;
}

API CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr) {
    ENTER(cuMemGetAccess, NEED_INIT);
    struct mapping *m = mapping_at(ptr);
    REQUIRE(flags && location && m);
    *flags = m->memory->device == location->id ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    return CUDA_SUCCESS;
}

API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr) {
    ENTER(cuMemRetainAllocationHandle, NEED_INIT);
    struct mapping *m = mapping_at((uintptr_t)addr);
    REQUIRE(handle && m);
    m->memory->handles++;
    *handle = (uintptr_t)m->memory;
    return CUDA_SUCCESS;
}

API CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop, int option) {
    ENTER(cuMemGetAllocationGranularity, NEED_INIT);
    CUresult bad = check(prop);
    if (bad) return bad;
    REQUIRE(granularity && (option == 0 || option == 1));
    *granularity = VMM_GRANULARITY;
    return CUDA_SUCCESS;
}

API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle) {
    ENTER(cuMemGetAllocationPropertiesFromHandle, NEED_INIT);
    struct memory *m = find(handle);
    REQUIRE(prop && m);
    *prop = m->prop;
    return CUDA_SUCCESS;
}

/* ---- sharing: the importer maps what the exporter is charged for -------------------------------- */

struct shared {
    uint64_t magic, size;
    CUmemAllocationProp prop;
    char uuid[SIM_UUID_SIZE];
};
enum { SHARED_MAGIC = 0x766d6d };

API CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, int type, unsigned long long flags) {
    ENTER(cuMemExportToShareableHandle, NEED_INIT);
    struct memory *m = find(handle);
    REQUIRE(out && m && !flags && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && (m->prop.requestedHandleTypes & type));
    struct shared s;
    memset(&s, 0, sizeof s);
    s.magic = SHARED_MAGIC;
    s.size = m->size;
    s.prop = m->prop;
    memcpy(s.uuid, sim_books->device[device_physical(m->device)].is.uuid, sizeof s.uuid);
    int fd = memfd_create("sim-memory", MFD_CLOEXEC);
    if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
    if (write(fd, &s, sizeof s) != sizeof s) {
        close(fd);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *(int *)out = fd;
    return CUDA_SUCCESS;
}

API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle, int type) {
    ENTER(cuMemImportFromShareableHandle, NEED_INIT);
    REQUIRE(handle && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    struct shared s;
    if (pread((int)(intptr_t)os_handle, &s, sizeof s, 0) != sizeof s || s.magic != SHARED_MAGIC) return CUDA_ERROR_INVALID_VALUE;
    int device = -1;
    for (int d = 0; d < device_count(); d++)
        if (!strncmp(s.uuid, sim_books->device[device_physical(d)].is.uuid, sizeof s.uuid)) device = d;
    if (device < 0) return CUDA_ERROR_INVALID_DEVICE;
    struct memory *m = make(s.size, device, false);
    m->prop = s.prop;
    m->prop.location.id = device;
    *handle = (uintptr_t)m;
    return CUDA_SUCCESS;
}

/* Tiles of sparse arrays hold the memory that is mapped to them, until unmapped or until the array ends. */
struct tile {
    CUarrayMapInfo info; /* where in which array */
    struct memory *memory;
    struct tile *next;
};
static struct tile *tiles;

static bool same_place(const CUarrayMapInfo *a, const CUarrayMapInfo *b) {
    return a->resource.array == b->resource.array && a->subresourceType == b->subresourceType &&
           !memcmp(&a->subresource, &b->subresource, sizeof a->subresource);
}

static void drop_tiles(bool (*matches)(const CUarrayMapInfo *, const CUarrayMapInfo *), const CUarrayMapInfo *what) {
    for (struct tile **at = &tiles; *at;) {
        struct tile *t = *at;
        if (!matches(&t->info, what)) {
            at = &t->next;
            continue;
        }
        *at = t->next;
        t->memory->maps--;
        end_if_unused(t->memory);
        free(t);
    }
}

static bool same_array(const CUarrayMapInfo *a, const CUarrayMapInfo *b) { return a->resource.array == b->resource.array; }

void vmm_array_ended(void *array) { drop_tiles(same_array, &(CUarrayMapInfo){.resource.array = array}); }

static CUresult map_array(CUarrayMapInfo *list, unsigned int count, CUstream stream, bool per_thread) {
    REQUIRE(list && count);
    CUresult why;
    if (!stream_resolve(stream, per_thread, &why)) return why;
    for (unsigned int i = 0; i < count; i++) {
        REQUIRE(list[i].memOperationType == 1 || list[i].memOperationType == 2);
        REQUIRE(object_find(OBJECT_ARRAY, list[i].resource.array) || object_find(OBJECT_MIPMAP, list[i].resource.mipmap));
        REQUIRE(list[i].memOperationType == 2 || !list[i].memHandle.memHandle || find(list[i].memHandle.memHandle));
    }
    for (unsigned int i = 0; i < count; i++) {
        struct memory *m = list[i].memOperationType == 1 ? find(list[i].memHandle.memHandle) : NULL;
        struct tile *t = m ? malloc(sizeof *t) : NULL;
        if (m && !t) return CUDA_ERROR_OUT_OF_MEMORY;
        if (m) m->maps++; /* before the drop: it may be the same memory again */
        drop_tiles(same_place, &list[i]);
        if (!m) continue;
        *t = (struct tile){list[i], m, tiles};
        tiles = t;
    }
    return CUDA_SUCCESS;
}

API CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned int count, CUstream stream) {
    ENTER(cuMemMapArrayAsync, NEED_CONTEXT);
    return map_array(list, count, stream, false);
}

API CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned int count, CUstream stream) {
    ENTER(cuMemMapArrayAsync_ptsz, NEED_CONTEXT);
    return map_array(list, count, stream, true);
}

/* A multicast object is a name for memory that others allocate. */
API CUresult cuMulticastCreate(CUmemGenericAllocationHandle *handle, const CUmulticastObjectProp *prop) {
    ENTER(cuMulticastCreate, NEED_INIT);
    REQUIRE(handle && prop && prop->numDevices && prop->size && aligned(prop->size) && !prop->flags);
    *handle = (uintptr_t)make(prop->size, 0, false);
    return CUDA_SUCCESS;
}

API CUresult cuMulticastGetGranularity(size_t *granularity, const CUmulticastObjectProp *prop, int option) {
    ENTER(cuMulticastGetGranularity, NEED_INIT);
    REQUIRE(granularity && prop && (option == 0 || option == 1));
    *granularity = VMM_GRANULARITY;
    return CUDA_SUCCESS;
}
