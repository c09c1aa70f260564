/* Memory of other processes and of other interfaces: it has an address here, and its charge elsewhere. */
#include <string.h>
#include <unistd.h>

#include "sim.h"

struct ipc {
    uint32_t magic;
    int32_t pid;
    uint64_t start, addr, size, device;
    char uuid[24]; /* what there is room for: the device's place tells apart those that begin alike */
};
enum { IPC_MAGIC = 0x697063 };
_Static_assert(sizeof(struct ipc) == sizeof(CUipcMemHandle), "an IPC handle has 64 bytes");

API CUresult cuIpcGetMemHandle(CUipcMemHandle *handle, CUdeviceptr ptr) {
    ENTER(cuIpcGetMemHandle, NEED_CONTEXT);
    struct block *b = block_containing(ptr);
    REQUIRE(handle && b && b->kind == BLOCK_LINEAR);
    int device = device_physical(b->device);
    struct ipc ipc = {.magic = IPC_MAGIC, .pid = getpid(), .start = sim_slot->who.start, .addr = b->addr, .size = b->size, .device = (uint64_t)device};
    memcpy(ipc.uuid, sim_books->device[device].is.uuid, sizeof ipc.uuid);
    memcpy(handle, &ipc, sizeof ipc);
    return CUDA_SUCCESS;
}

static CUresult open_handle(CUdeviceptr *ptr, const CUipcMemHandle *handle, unsigned int flags) {
    struct ipc ipc;
    memcpy(&ipc, handle, sizeof ipc);
    REQUIRE(ptr && ipc.magic == IPC_MAGIC && ipc.size && !(flags & ~1U));
    struct context *ctx = context_current();
    int device = device_physical(ctx->device);
    REQUIRE(ipc.device == (uint64_t)device && !memcmp(ipc.uuid, sim_books->device[device].is.uuid, sizeof ipc.uuid));
    struct block *b = block_new(BLOCK_IPC, ipc.size, 512, false);
    if (!b) return CUDA_ERROR_OUT_OF_MEMORY;
    b->ctx = ctx;
    b->device = ctx->device;
    *ptr = b->addr;
    return CUDA_SUCCESS;
}

API CUresult cuIpcOpenMemHandle(CUdeviceptr *ptr, CUipcMemHandle handle, unsigned int flags) {
    ENTER(cuIpcOpenMemHandle, NEED_CONTEXT);
    return open_handle(ptr, &handle, flags);
}

API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *ptr, CUipcMemHandle handle, unsigned int flags) {
    ENTER(cuIpcOpenMemHandle_v2, NEED_CONTEXT);
    return open_handle(ptr, &handle, flags);
}

API CUresult cuIpcCloseMemHandle(CUdeviceptr ptr) {
    ENTER(cuIpcCloseMemHandle, NEED_CONTEXT);
    struct block *b = block_at(ptr);
    REQUIRE(b && b->kind == BLOCK_IPC);
    block_free(b);
    return CUDA_SUCCESS;
}

/* ---- external memory --------------------------------------------------------------------------------- */

struct external {
    struct object object;
    unsigned long long size;
};

API CUresult cuImportExternalMemory(CUexternalMemory *memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc) {
    ENTER(cuImportExternalMemory, NEED_CONTEXT);
    REQUIRE(memory && desc && desc->size && desc->type > 0);
    struct external *e = object_new(OBJECT_EXTERNAL, sizeof *e, context_current());
    e->size = desc->size;
    *memory = (CUexternalMemory)e;
    return CUDA_SUCCESS;
}

API CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *ptr, CUexternalMemory handle, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *desc) {
    ENTER(cuExternalMemoryGetMappedBuffer, NEED_CONTEXT);
    struct external *e = object_find(OBJECT_EXTERNAL, handle);
    if (!e) return CUDA_ERROR_INVALID_HANDLE;
    REQUIRE(ptr && desc && desc->size && desc->offset <= e->size && desc->size <= e->size - desc->offset);
    struct block *b = block_new(BLOCK_EXTERNAL, desc->size, 512, false);
    if (!b) return CUDA_ERROR_OUT_OF_MEMORY;
    b->ctx = context_current();
    b->device = b->ctx->device;
    *ptr = b->addr;
    return CUDA_SUCCESS;
}

API CUresult cuExternalMemoryGetMappedMipmappedArray(CUmipmappedArray *mipmap, CUexternalMemory handle, const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *desc) {
    ENTER(cuExternalMemoryGetMappedMipmappedArray, NEED_CONTEXT);
    struct external *e = object_find(OBJECT_EXTERNAL, handle);
    if (!e) return CUDA_ERROR_INVALID_HANDLE;
    REQUIRE(mipmap && desc && desc->offset <= e->size);
    return array_of_external(mipmap, &desc->arrayDesc, desc->numLevels);
}

API CUresult cuDestroyExternalMemory(CUexternalMemory handle) {
    ENTER(cuDestroyExternalMemory, NEED_CONTEXT);
    struct external *e = object_find(OBJECT_EXTERNAL, handle);
    if (!e) return CUDA_ERROR_INVALID_HANDLE;
    object_free(e);
    return CUDA_SUCCESS;
}
