/* Linear, pitched and managed device memory; page-locked host memory, which is not booked. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

enum { ALIGNMENT = 512 };

CUresult memory_release(struct block *b) {
    static const enum book_kind kinds[] = {[BLOCK_LINEAR] = BOOK_LINEAR, [BLOCK_PITCH] = BOOK_PITCH, [BLOCK_MANAGED] = BOOK_MANAGED};
    switch (b->kind) {
    case BLOCK_LINEAR:
    case BLOCK_PITCH:
    case BLOCK_MANAGED: give(b->device, kinds[b->kind], b->charge, 1); break;
    default: break; /* imported memory is its owner's charge */
    }
    block_free(b);
    return CUDA_SUCCESS;
}

static struct block *allocate(enum block_kind kind, enum book_kind book, size_t bytes, bool below_4g, CUresult *why) {
    struct context *ctx = context_current();
    *why = CUDA_ERROR_OUT_OF_MEMORY;
    struct block *b = block_new(kind, bytes, ALIGNMENT, below_4g);
    if (!b) {
        refuse(ctx->device);
        return NULL;
    }
    b->ctx = ctx;
    b->device = ctx->device;
    b->charge = bytes;
    if (take(b->device, book, bytes, 1)) return b;
    block_free(b);
    return NULL;
}

API CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t bytes) {
    if (atomic_load_explicit(&sim_null, memory_order_relaxed)) return null_alloc(ptr, bytes);
    ENTER(cuMemAlloc_v2, NEED_CONTEXT);
    REQUIRE(ptr && bytes);
    FORBIDDEN_IN_CAPTURE();
    CUresult why;
    struct block *b = allocate(BLOCK_LINEAR, BOOK_LINEAR, bytes, false, &why);
    if (!b) return why;
    *ptr = b->addr;
    return CUDA_SUCCESS;
}

API CUresult cuMemAlloc(CUdeviceptr_v1 *ptr, unsigned int bytes) {
    ENTER(cuMemAlloc, NEED_CONTEXT);
    REQUIRE(ptr && bytes);
    FORBIDDEN_IN_CAPTURE();
    CUresult why;
    struct block *b = allocate(BLOCK_LINEAR, BOOK_LINEAR, bytes, true, &why);
    if (!b) return why;
    *ptr = (CUdeviceptr_v1)b->addr;
    return CUDA_SUCCESS;
}

static CUresult allocate_pitch(CUdeviceptr *ptr, size_t *pitch, size_t width, size_t height, unsigned int element, bool below_4g) {
    REQUIRE(width && height && (element == 4 || element == 8 || element == 16));
    FORBIDDEN_IN_CAPTURE();
    size_t row = width > SIZE_MAX - ALIGNMENT ? SIZE_MAX : align_up(width, ALIGNMENT), bytes;
    if (row == SIZE_MAX || __builtin_mul_overflow(row, height, &bytes)) {
        refuse(context_current()->device);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult why;
    struct block *b = allocate(BLOCK_PITCH, BOOK_PITCH, bytes, below_4g, &why);
    if (!b) return why;
    *ptr = b->addr;
    *pitch = row;
    return CUDA_SUCCESS;
}

API CUresult cuMemAllocPitch_v2(CUdeviceptr *ptr, size_t *pitch, size_t width, size_t height, unsigned int element) {
    ENTER(cuMemAllocPitch_v2, NEED_CONTEXT);
    REQUIRE(ptr && pitch);
    return allocate_pitch(ptr, pitch, width, height, element, false);
}

API CUresult cuMemAllocPitch(CUdeviceptr_v1 *ptr, unsigned int *pitch, unsigned int width, unsigned int height, unsigned int element) {
    ENTER(cuMemAllocPitch, NEED_CONTEXT);
    REQUIRE(ptr && pitch);
    CUdeviceptr wide;
    size_t row;
    CUresult result = allocate_pitch(&wide, &row, width, height, element, true);
    if (result) return result;
    *ptr = (CUdeviceptr_v1)wide;
    *pitch = (unsigned int)row;
    return CUDA_SUCCESS;
}

API CUresult cuMemAllocManaged(CUdeviceptr *ptr, size_t bytes, unsigned int flags) {
    ENTER(cuMemAllocManaged, NEED_CONTEXT);
    REQUIRE(ptr && bytes && (flags == CU_MEM_ATTACH_GLOBAL || flags == CU_MEM_ATTACH_HOST));
    FORBIDDEN_IN_CAPTURE();
    CUresult why;
    struct block *b = allocate(BLOCK_MANAGED, BOOK_MANAGED, bytes, false, &why);
    if (!b) return why;
    *ptr = b->addr;
    return CUDA_SUCCESS;
}

static CUresult release(CUdeviceptr ptr) {
    if (!ptr) return CUDA_SUCCESS;
    FORBIDDEN_IN_CAPTURE();
    struct block *b = block_at(ptr);
    REQUIRE(b);
    switch (b->kind) {
    case BLOCK_LINEAR:
    case BLOCK_PITCH:
    case BLOCK_MANAGED:
    case BLOCK_EXTERNAL: return memory_release(b);
    case BLOCK_POOL: return pool_free_block(b);
    case BLOCK_IMPORTED: block_free(b); return CUDA_SUCCESS;
    case BLOCK_GRAPH: return graph_memory_free(b);
    default: return CUDA_ERROR_INVALID_VALUE; /* reservations and IPC imports end otherwise */
    }
}

API CUresult cuMemFree_v2(CUdeviceptr ptr) {
    bool null = atomic_load_explicit(&sim_null, memory_order_relaxed);
    if (null && null_gave(ptr)) return null_free(ptr);
    ENTER(cuMemFree_v2, NEED_CONTEXT);
    if (null) {
        struct block *b = block_at(ptr);
        /* Graphs are not run. */
        if (!b || (b->kind != BLOCK_LINEAR && b->kind != BLOCK_PITCH && b->kind != BLOCK_MANAGED)) return CUDA_SUCCESS;
    }
    return release(ptr);
}

API CUresult cuMemFree(CUdeviceptr_v1 ptr) {
    ENTER(cuMemFree, NEED_CONTEXT);
    return release(ptr);
}

static void figures(size_t *free_bytes, size_t *total) {
    int device = device_physical(context_current()->device);
    size_t all = sim_books->device[device].is.total, used = books_used(sim_books, device);
    *total = all;
    *free_bytes = used < all ? all - used : 0;
}

API CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    if (atomic_load_explicit(&sim_null, memory_order_relaxed)) {
        REQUIRE(free_bytes && total);
        *free_bytes = *total = sim_books->device[0].is.total;
        return CUDA_SUCCESS;
    }
    ENTER(cuMemGetInfo_v2, NEED_CONTEXT);
    REQUIRE(free_bytes && total);
    figures(free_bytes, total);
    return CUDA_SUCCESS;
}

API CUresult cuMemGetInfo(unsigned int *free_bytes, unsigned int *total) {
    ENTER(cuMemGetInfo, NEED_CONTEXT);
    REQUIRE(free_bytes && total);
    size_t f, t;
    figures(&f, &t);
    *free_bytes = f > UINT32_MAX ? UINT32_MAX : (unsigned int)f;
    *total = t > UINT32_MAX ? UINT32_MAX : (unsigned int)t;
    return CUDA_SUCCESS;
}

/* ---- host memory ---------------------------------------------------------------------------- */

struct host {
    void *ptr;
    size_t bytes;
    unsigned int flags;
    bool registered;
    struct host *next;
};
static struct host *hosts;

static struct host **host_at(const void *ptr) {
    struct host **at = &hosts;
    while (*at && (*at)->ptr != ptr) at = &(*at)->next;
    return at;
}

static struct host *host_add(void *ptr, size_t bytes, unsigned int flags, bool registered) {
    struct host *h = malloc(sizeof *h);
    if (!h) return NULL;
    *h = (struct host){ptr, bytes, flags, registered, hosts};
    return hosts = h;
}

static CUresult host_alloc(void **ptr, size_t bytes, unsigned int flags) {
    REQUIRE(ptr && bytes);
    FORBIDDEN_IN_CAPTURE();
    void *p = NULL;
    if (bytes > PTRDIFF_MAX || posix_memalign(&p, 4096, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    if (!host_add(p, bytes, flags, false)) {
        free(p);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *ptr = p;
    return CUDA_SUCCESS;
}

API CUresult cuMemAllocHost(void **ptr, unsigned int bytes) {
    ENTER(cuMemAllocHost, NEED_CONTEXT);
    return host_alloc(ptr, bytes, 0);
}

API CUresult cuMemAllocHost_v2(void **ptr, size_t bytes) {
    ENTER(cuMemAllocHost_v2, NEED_CONTEXT);
    return host_alloc(ptr, bytes, 0);
}

API CUresult cuMemHostAlloc(void **ptr, size_t bytes, unsigned int flags) {
    ENTER(cuMemHostAlloc, NEED_CONTEXT);
    REQUIRE(!(flags & ~7U));
    return host_alloc(ptr, bytes, flags);
}

API CUresult cuMemFreeHost(void *ptr) {
    ENTER(cuMemFreeHost, NEED_CONTEXT);
    FORBIDDEN_IN_CAPTURE();
    struct host **at = host_at(ptr), *h = *at;
    REQUIRE(h && !h->registered);
    *at = h->next;
    free(h->ptr);
    free(h);
    return CUDA_SUCCESS;
}

static CUresult host_register(void *ptr, size_t bytes, unsigned int flags) {
    REQUIRE(ptr && bytes);
    if (*host_at(ptr)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    return host_add(ptr, bytes, flags, true) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

API CUresult cuMemHostRegister(void *ptr, size_t bytes, unsigned int flags) {
    ENTER(cuMemHostRegister, NEED_CONTEXT);
    return host_register(ptr, bytes, flags);
}

API CUresult cuMemHostRegister_v2(void *ptr, size_t bytes, unsigned int flags) {
    ENTER(cuMemHostRegister_v2, NEED_CONTEXT);
    return host_register(ptr, bytes, flags);
}

API CUresult cuMemHostUnregister(void *ptr) {
    ENTER(cuMemHostUnregister, NEED_CONTEXT);
    struct host **at = host_at(ptr), *h = *at;
    REQUIRE(ptr);
    if (!h || !h->registered) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    *at = h->next;
    free(h);
    return CUDA_SUCCESS;
}

API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *ptr, void *host, unsigned int flags) {
    ENTER(cuMemHostGetDevicePointer_v2, NEED_CONTEXT);
    REQUIRE(ptr && !flags && *host_at(host));
    *ptr = (uintptr_t)host;
    return CUDA_SUCCESS;
}

API CUresult cuMemHostGetDevicePointer(CUdeviceptr_v1 *ptr, void *host, unsigned int flags) {
    ENTER(cuMemHostGetDevicePointer, NEED_CONTEXT);
    REQUIRE(ptr && !flags && *host_at(host));
    *ptr = (CUdeviceptr_v1)(uintptr_t)host;
    return CUDA_SUCCESS;
}

API CUresult cuMemHostGetFlags(unsigned int *flags, void *host) {
    ENTER(cuMemHostGetFlags, NEED_CONTEXT);
    struct host *h = *host_at(host);
    REQUIRE(flags && h);
    *flags = h->flags;
    return CUDA_SUCCESS;
}
