/* What the driver knows about a pointer. */
#include "sim.h"

static CUresult range(CUdeviceptr *base, size_t *size, CUdeviceptr ptr) {
    REQUIRE(base || size);
    struct block *b = block_containing(ptr);
    if (!b || !b->live) return CUDA_ERROR_NOT_FOUND;
    if (base) *base = b->addr;
    if (size) *size = b->size;
    return CUDA_SUCCESS;
}

API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr ptr) {
    ENTER(cuMemGetAddressRange_v2, NEED_CONTEXT);
    return range(base, size, ptr);
}

API CUresult cuMemGetAddressRange(CUdeviceptr_v1 *base, unsigned int *size, CUdeviceptr_v1 ptr) {
    ENTER(cuMemGetAddressRange, NEED_CONTEXT);
    CUdeviceptr wide;
    size_t bytes;
    REQUIRE(base || size);
    CUresult result = range(&wide, &bytes, ptr);
    if (result) return result;
    if (base) *base = (CUdeviceptr_v1)wide;
    if (size) *size = (unsigned int)bytes;
    return CUDA_SUCCESS;
}

static CUresult attribute_of(void *data, int attribute, CUdeviceptr ptr, const struct block *b) {
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)data = (CUcontext)b->ctx; break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(unsigned int *)data = CU_MEMORYTYPE_DEVICE; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)data = ptr; break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (b->kind != BLOCK_MANAGED) return CUDA_ERROR_INVALID_VALUE;
        *(void **)data = (void *)ptr;
        break;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: *(unsigned int *)data = 0; break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(unsigned long long *)data = b->id; break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned int *)data = b->kind == BLOCK_MANAGED; break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)data = b->device; break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: *(unsigned int *)data = b->kind == BLOCK_LINEAR; break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)data = b->addr; break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)data = b->size; break;
    case CU_POINTER_ATTRIBUTE_MAPPED: *(unsigned int *)data = b->kind != BLOCK_RESERVED || b->live; break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: *(uint64_t *)data = 0; break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: *(CUmemoryPool *)data = b->kind == BLOCK_POOL ? b->owner : NULL; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

API CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr ptr) {
    ENTER(cuPointerGetAttribute, NEED_INIT);
    REQUIRE(data);
    struct block *b = block_containing(ptr);
    REQUIRE(b && b->live);
    return attribute_of(data, attribute, ptr, b);
}

/* An unknown pointer is no error here: all its attributes are nothing. */
API CUresult cuPointerGetAttributes(unsigned int count, int *attributes, void **data, CUdeviceptr ptr) {
    ENTER(cuPointerGetAttributes, NEED_INIT);
    REQUIRE(count && attributes && data);
    struct block *b = block_containing(ptr);
    for (unsigned int i = 0; i < count; i++) {
        if (b && b->live && !attribute_of(data[i], attributes[i], ptr, b)) continue;
        switch (attributes[i]) {
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)data[i] = -2; break;
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        case CU_POINTER_ATTRIBUTE_MAPPED: *(unsigned int *)data[i] = 0; break;
        default: *(uint64_t *)data[i] = 0;
        }
    }
    return CUDA_SUCCESS;
}
