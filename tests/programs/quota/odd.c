/* Every hooked function with arguments that make no sense, and what it answers. */
#include "../ways/driver.h"

static const char *name;
static int line;
static void said(const char *call, CUresult code) { printf("%d %s %s: %d\n", ++line, name, call, code); }
#define SAY(call) said(#call, call)

static const size_t HUGE[] = {SIZE_MAX, SIZE_MAX - 4095, (size_t)1 << 63, (size_t)1 << 62, (size_t)1 << 50, (size_t)PTRDIFF_MAX};
enum { HUGE_SIZES = sizeof HUGE / sizeof *HUGE };
static const CUdeviceptr NOBODYS[] = {1, 0xdeadbeef000ULL, UINT64_MAX, (CUdeviceptr)1 << 63};
enum { NOBODYS_COUNT = sizeof NOBODYS / sizeof *NOBODYS };

static void out_of_reach(CUmemoryPool pool) {
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    for (int i = 0; i < HUGE_SIZES; i++) {
        CUdeviceptr p = 7;
        size_t pitch = 7, n = HUGE[i];
        CUarray a = NULL;
        CUmemGenericAllocationHandle h = 7;
        SAY(p_cuMemAlloc_v2(&p, n));
        SAY(p_cuMemAllocManaged(&p, n, 1));
        SAY(p_cuMemAllocPitch_v2(&p, &pitch, n, 1, 4));
        SAY(p_cuMemAllocPitch_v2(&p, &pitch, 512, n, 4));
        SAY(p_cuMemAllocPitch_v2(&p, &pitch, n, n, 4));
        SAY(p_cuMemAllocAsync(&p, n, NULL));
        SAY(p_cuMemAllocFromPoolAsync_ptsz(&p, n, pool, NULL));
        SAY(p_cuMemCreate(&h, n, &prop, 0));
        SAY(p_cuMemCreate(&h, n & ~(size_t)(2 * MIB - 1), &prop, 0));
        SAY(p_cuArrayCreate_v2(&a, &(CUDA_ARRAY_DESCRIPTOR){n, 0, CU_AD_FORMAT_FLOAT, 1}));
        SAY(p_cuArray3DCreate_v2(&a, &(CUDA_ARRAY3D_DESCRIPTOR){n, n, n, CU_AD_FORMAT_FLOAT, 4, 0}));
        SAY(p_cuMipmappedArrayCreate((CUmipmappedArray *)&a, &(CUDA_ARRAY3D_DESCRIPTOR){n, 0, 0, CU_AD_FORMAT_FLOAT, 1, 0}, 2));
        printf("%llu %zu %p %llu\n", p, pitch, (void *)a, h);
    }
}

static void null_and_nothing(CUmemoryPool pool) {
    CUdeviceptr p = 7;
    CUdeviceptr_v1 old = 7;
    size_t pitch = 7;
    unsigned old_pitch = 7;
    CUarray a = NULL;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemAllocationProp nowhere = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 99}};
    CUmemGenericAllocationHandle h = 7;
    SAY(p_cuMemAlloc(NULL, 1));
    SAY(p_cuMemAlloc(&old, 0));
    SAY(p_cuMemAlloc_v2(NULL, 1));
    SAY(p_cuMemAlloc_v2(&p, 0));
    SAY(p_cuMemAllocManaged(NULL, 1, 1));
    SAY(p_cuMemAllocManaged(&p, 0, 1));
    SAY(p_cuMemAllocManaged(&p, 1, 99));
    SAY(p_cuMemAllocPitch(NULL, &old_pitch, 1, 1, 4));
    SAY(p_cuMemAllocPitch(&old, NULL, 1, 1, 4));
    SAY(p_cuMemAllocPitch_v2(&p, NULL, 1, 1, 4));
    SAY(p_cuMemAllocPitch_v2(NULL, &pitch, 1, 1, 4));
    SAY(p_cuMemAllocPitch_v2(&p, &pitch, 0, 1, 4));
    SAY(p_cuMemAllocPitch_v2(&p, &pitch, 1, 0, 4));
    SAY(p_cuMemAllocPitch_v2(&p, &pitch, 1, 1, 5));
    SAY(p_cuMemAllocAsync(NULL, 1, NULL));
    SAY(p_cuMemAllocAsync(&p, 0, NULL));
    SAY(p_cuMemAllocAsync_ptsz(NULL, 0, NULL));
    SAY(p_cuMemAllocAsync(&p, 1, (CUstream)0x1234567890));
    SAY(p_cuMemAllocFromPoolAsync(NULL, 1, pool, NULL));
    SAY(p_cuMemAllocFromPoolAsync(&p, 0, pool, NULL));
    SAY(p_cuMemAllocFromPoolAsync(&p, 1, NULL, NULL));
    SAY(p_cuMemAllocFromPoolAsync(&p, 1, (CUmemoryPool)0x1234567890, NULL));
    SAY(p_cuMemCreate(NULL, 2 * MIB, &prop, 0));
    SAY(p_cuMemCreate(&h, 0, &prop, 0));
    SAY(p_cuMemCreate(&h, 1, &prop, 0));
    SAY(p_cuMemCreate(&h, 2 * MIB, NULL, 0));
    SAY(p_cuMemCreate(&h, 2 * MIB, &prop, 9));
    SAY(p_cuMemCreate(&h, 2 * MIB, &nowhere, 0));
    SAY(p_cuArrayCreate(NULL, &(CUDA_ARRAY_DESCRIPTOR_v1){1, 1, CU_AD_FORMAT_FLOAT, 1}));
    SAY(p_cuArrayCreate(&a, NULL));
    SAY(p_cuArrayCreate_v2(NULL, NULL));
    SAY(p_cuArrayCreate_v2(&a, &(CUDA_ARRAY_DESCRIPTOR){0, 1, CU_AD_FORMAT_FLOAT, 1}));
    SAY(p_cuArrayCreate_v2(&a, &(CUDA_ARRAY_DESCRIPTOR){1, 1, 12345, 1}));
    SAY(p_cuArrayCreate_v2(&a, &(CUDA_ARRAY_DESCRIPTOR){1, 1, CU_AD_FORMAT_FLOAT, 3}));
    SAY(p_cuArray3DCreate(&a, NULL));
    SAY(p_cuArray3DCreate_v2(&a, NULL));
    SAY(p_cuMipmappedArrayCreate(NULL, NULL, 0));
    SAY(p_cuMipmappedArrayCreate((CUmipmappedArray *)&a, &(CUDA_ARRAY3D_DESCRIPTOR){8, 8, 0, CU_AD_FORMAT_FLOAT, 1, 0}, 0));
    SAY(p_cuMipmappedArrayCreate((CUmipmappedArray *)&a, &(CUDA_ARRAY3D_DESCRIPTOR){8, 8, 0, CU_AD_FORMAT_FLOAT, 1, 0}, UINT32_MAX));
    SAY(p_cuMemGetInfo(NULL, NULL));
    SAY(p_cuMemGetInfo_v2(NULL, &pitch));
    SAY(p_cuMemGetInfo_v2(&pitch, NULL));
    SAY(p_cuDeviceTotalMem(NULL, 0));
    SAY(p_cuDeviceTotalMem_v2(NULL, 0));
    SAY(p_cuDeviceTotalMem_v2(&pitch, -1));
    SAY(p_cuDeviceTotalMem_v2(&pitch, 99));
    SAY(p_cuMemPoolCreate(NULL, NULL));
    SAY(p_cuMemRetainAllocationHandle(NULL, &p));
    SAY(p_cuMemImportFromShareableHandle(NULL, NULL, 1));
    SAY(p_cuMemMapArrayAsync(NULL, 3, NULL));
    SAY(p_cuMemMapArrayAsync(&(CUarrayMapInfo){0}, 0, NULL));
    SAY(p_cuMemMapArrayAsync_ptsz(&(CUarrayMapInfo){0}, 1, NULL));
    SAY(p_cuModuleLoad(NULL, NULL));
    SAY(p_cuModuleLoadData(NULL, "image"));
    SAY(p_cuModuleLoadData((CUmodule *)&a, NULL));
    SAY(p_cuLibraryLoadData(NULL, "image", NULL, NULL, 0, NULL, NULL, 0));
    SAY(p_cuGraphInstantiateWithFlags(NULL, NULL, 0));
    SAY(p_cuGraphInstantiateWithParams((CUgraphExec *)&a, NULL, NULL));
    SAY(p_cuGraphAddNode(NULL, NULL, NULL, 0, NULL));
    SAY(p_cuGraphAddMemAllocNode(NULL, NULL, NULL, 0, NULL));
    SAY(p_cuCtxCreate_v2(NULL, 0, 0));
    SAY(p_cuCtxCreate_v2((CUcontext *)&a, 0, 99));
    SAY(p_cuCtxCreate_v2((CUcontext *)&a, 0, -1));
    SAY(p_cuCtxAttach(NULL, 0));
    SAY(p_cuDevicePrimaryCtxRetain(NULL, 0));
    SAY(p_cuDevicePrimaryCtxRetain((CUcontext *)&a, 99));
    SAY(p_cuGreenCtxCreate(NULL, NULL, 0, 0));
    printf("%llu %u %zu %u %p %llu\n", p, old, pitch, old_pitch, (void *)a, h);
}

static void nobodys(void) {
    CUdeviceptr p;
    OK(p_cuMemAlloc_v2(&p, 100));
    OK(p_cuMemFree_v2(p));
    SAY(p_cuMemFree_v2(p));
    SAY(p_cuMemFreeAsync(p, NULL));
    OK(p_cuMemAlloc_v2(&p, 100));
    SAY(p_cuMemFree_v2(p + 1));
    SAY(p_cuMemFree_v2(p));
    SAY(p_cuMemFree(0));
    SAY(p_cuMemFree_v2(0));
    SAY(p_cuMemFreeAsync(0, NULL));
    SAY(p_cuMemFreeAsync_ptsz(0, NULL));
    for (int i = 0; i < NOBODYS_COUNT; i++) {
        CUdeviceptr n = NOBODYS[i];
        SAY(p_cuMemFree((CUdeviceptr_v1)n));
        SAY(p_cuMemFree_v2(n));
        SAY(p_cuMemFreeAsync(n, NULL));
        SAY(p_cuMemFreeAsync_ptsz(n, NULL));
        SAY(p_cuMemRelease(n));
        SAY(p_cuMemUnmap(n, 2 * MIB));
        SAY(p_cuMemUnmap(0, n));
        SAY(p_cuMemMap(n, 2 * MIB, 0, n, 0));
        SAY(p_cuMemRetainAllocationHandle(&(CUmemGenericAllocationHandle){0}, (void *)(uintptr_t)n));
        SAY(p_cuArrayDestroy((CUarray)n));
        SAY(p_cuMipmappedArrayDestroy((CUmipmappedArray)n));
        SAY(p_cuMemPoolDestroy((CUmemoryPool)n));
        SAY(p_cuMemPoolTrimTo((CUmemoryPool)n, 0));
        SAY(p_cuGraphExecDestroy((CUgraphExec)n));
        SAY(p_cuGraphLaunch((CUgraphExec)n, NULL));
        SAY(p_cuGraphUpload((CUgraphExec)n, NULL));
        SAY(p_cuModuleUnload((CUmodule)n));
        SAY(p_cuLibraryUnload((CUlibrary)n));
        SAY(p_cuCtxDestroy_v2((CUcontext)n));
        SAY(p_cuCtxDetach((CUcontext)n));
        SAY(p_cuGreenCtxDestroy((CUgreenCtx)n));
        SAY(p_cuDevicePrimaryCtxRelease_v2((int)n | 64));
        SAY(p_cuDeviceGraphMemTrim((int)n | 64));
    }
    SAY(p_cuCtxDestroy_v2(NULL));
    SAY(p_cuDevicePrimaryCtxReset_v2(99));
}

int main(void) {
    CUcontext ctx;
    CUmemoryPool pool;
    CUdeviceptr kept;
    driver_find("linked");
    name = "before cuInit";
    SAY(p_cuMemAlloc_v2(&kept, 100));
    SAY(p_cuMemFree_v2(100));
    SAY(p_cuCtxCreate_v2(&ctx, 0, 0));
    OK(p_cuInit(0));
    name = "without a context";
    SAY(p_cuMemAlloc_v2(&kept, 100));
    SAY(p_cuMemAllocAsync(&kept, 100, NULL));
    SAY(p_cuMemFree_v2(100));
    SAY(p_cuModuleLoadData((CUmodule *)&kept, "image"));
    SAY(p_cuMemGetInfo_v2(&(size_t){0}, &(size_t){0}));
    OK(p_cuDevicePrimaryCtxRetain(&ctx, 0));
    OK(p_cuCtxSetCurrent(ctx));
    OK(p_cuDeviceGetDefaultMemPool(&pool, 0));
    OK(p_cuMemAlloc_v2(&kept, 4096));
    name = "huge";
    out_of_reach(pool);
    name = "null";
    null_and_nothing(pool);
    name = "nobody's";
    nobodys();
    return 0;
}
