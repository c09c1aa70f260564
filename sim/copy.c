/* Copies and fills. There is no data to move, so only what the driver would refuse is looked at:
 * a null pointer, or a device range that runs past its allocation. */
#include "sim.h"

/* Host memory may be given where unified addressing allows it, so an unknown address is fine. */
static bool fits(CUdeviceptr ptr, size_t bytes) {
    struct block *b = block_containing(ptr);
    return !b || bytes <= b->size - (ptr - b->addr);
}

static CUresult begin(CUstream handle, bool per_thread, bool waits, int node) {
    CUresult why;
    struct stream *s = stream_resolve(handle, per_thread, &why);
    if (!s) return why;
    if ((why = capture_forbids_legacy(s))) return why;
    if (waits) return capture_forbids();
    if (stream_capture(s)) capture_note_node(stream_capture(s), node);
    return CUDA_SUCCESS;
}

static CUresult copy(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream, bool per_thread, bool waits) {
    if (!bytes) return CUDA_SUCCESS;
    REQUIRE(to && from && fits(to, bytes) && fits(from, bytes));
    return begin(stream, per_thread, waits, CU_GRAPH_NODE_TYPE_MEMCPY);
}

#define COPY_NOW(name, type_to, type_from)                                                        \
    CUresult name(type_to to, type_from from, size_t bytes);                                      \
    API CUresult name(type_to to, type_from from, size_t bytes) {                                 \
        ENTER(name, NEED_CONTEXT);                                                                \
        return copy((CUdeviceptr)to, (CUdeviceptr)from, bytes, NULL, false, true);                \
    }
#define COPY_ASYNC(name, per_thread, type_to, type_from)                                          \
    CUresult name(type_to to, type_from from, size_t bytes, CUstream stream);                     \
    API CUresult name(type_to to, type_from from, size_t bytes, CUstream stream) {                \
        ENTER(name, NEED_CONTEXT);                                                                \
        return copy((CUdeviceptr)to, (CUdeviceptr)from, bytes, stream, per_thread, false);        \
    }
#define COPY(name, version, type_to, type_from)                  \
    COPY_NOW(name##version, type_to, type_from)                  \
    COPY_NOW(name##version##_ptds, type_to, type_from)           \
    COPY_ASYNC(name##Async##version, false, type_to, type_from)  \
    COPY_ASYNC(name##Async##version##_ptsz, true, type_to, type_from)

COPY(cuMemcpy, , CUdeviceptr, CUdeviceptr)
COPY(cuMemcpyDtoD, _v2, CUdeviceptr, CUdeviceptr)
COPY(cuMemcpyHtoD, _v2, CUdeviceptr, const void *)
COPY(cuMemcpyDtoH, _v2, void *, CUdeviceptr)

static CUresult fill(CUdeviceptr ptr, size_t bytes, CUstream stream, bool per_thread, bool waits) {
    if (!bytes) return CUDA_SUCCESS;
    REQUIRE(ptr && fits(ptr, bytes));
    return begin(stream, per_thread, waits, CU_GRAPH_NODE_TYPE_MEMSET);
}

#define FILL_NOW(name, type)                                                     \
    CUresult name(CUdeviceptr ptr, type value, size_t count);                    \
    API CUresult name(CUdeviceptr ptr, type value, size_t count) {               \
        ENTER(name, NEED_CONTEXT);                                               \
        (void)value;                                                             \
        return fill(ptr, count * sizeof(type), NULL, false, true);               \
    }
#define FILL_ASYNC(name, per_thread, type)                                       \
    CUresult name(CUdeviceptr ptr, type value, size_t count, CUstream stream);   \
    API CUresult name(CUdeviceptr ptr, type value, size_t count, CUstream stream) { \
        ENTER(name, NEED_CONTEXT);                                               \
        (void)value;                                                             \
        return fill(ptr, count * sizeof(type), stream, per_thread, false);       \
    }
#define FILL(name, type)                 \
    FILL_NOW(name##_v2, type)            \
    FILL_NOW(name##_v2_ptds, type)       \
    FILL_ASYNC(name##Async, false, type) \
    FILL_ASYNC(name##Async_ptsz, true, type)

FILL(cuMemsetD8, unsigned char)
FILL(cuMemsetD16, unsigned short)
FILL(cuMemsetD32, unsigned int)
