/* Every kind of allocation behind two functions: take so many bytes, give them back. */
#ifndef QUOTA_KINDS_H
#define QUOTA_KINDS_H
#include "../ways/driver.h"

static const uint64_t UNTOUCHED = 0x5a5a5a5a5a5a5a5aULL;

/* What one allocation gave: a pointer or a handle first in it. */
struct got {
    uint64_t value, more;
};

struct kind {
    const char *name; /* of the function that may be refused */
    size_t grain;     /* sizes are multiples of this, and are taken exactly */
    CUresult (*take)(struct got *got, size_t bytes);
    CUresult (*give)(struct got *got);
};

static __thread CUmemoryPool own_pool;
static __thread CUstream own_stream;

static CUresult take_v1(struct got *g, size_t n) { return p_cuMemAlloc((CUdeviceptr_v1 *)&g->value, (unsigned)n); }
static CUresult give_v1(struct got *g) { return p_cuMemFree((CUdeviceptr_v1)g->value); }
static CUresult take_v2(struct got *g, size_t n) { return p_cuMemAlloc_v2((CUdeviceptr *)&g->value, n); }
static CUresult give_v2(struct got *g) { return p_cuMemFree_v2(g->value); }
static CUresult take_managed(struct got *g, size_t n) { return p_cuMemAllocManaged((CUdeviceptr *)&g->value, n, 1); }
static CUresult take_pitch_v1(struct got *g, size_t n) {
    return p_cuMemAllocPitch((CUdeviceptr_v1 *)&g->value, (unsigned *)&g->more, 500, (unsigned)(n / 512), 4);
}
static CUresult take_pitch(struct got *g, size_t n) {
    return p_cuMemAllocPitch_v2((CUdeviceptr *)&g->value, (size_t *)&g->more, 500, n / 512, 4);
}
static CUresult take_async(struct got *g, size_t n) { return p_cuMemAllocAsync((CUdeviceptr *)&g->value, n, own_stream); }
static CUresult take_async_ptsz(struct got *g, size_t n) { return p_cuMemAllocAsync_ptsz((CUdeviceptr *)&g->value, n, own_stream); }
static CUresult take_pool(struct got *g, size_t n) { return p_cuMemAllocFromPoolAsync((CUdeviceptr *)&g->value, n, own_pool, own_stream); }
static CUresult take_pool_ptsz(struct got *g, size_t n) {
    return p_cuMemAllocFromPoolAsync_ptsz((CUdeviceptr *)&g->value, n, own_pool, own_stream);
}
static CUresult give_async(struct got *g) { return p_cuMemFreeAsync(g->value, own_stream); }
static CUresult take_physical(struct got *g, size_t n) {
    CUdevice device = 0;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}};
    return p_cuMemCreate((CUmemGenericAllocationHandle *)&g->value, n, &prop, 0);
}
static CUresult give_physical(struct got *g) { return p_cuMemRelease(g->value); }
static CUresult take_array_v1(struct got *g, size_t n) {
    return p_cuArrayCreate((CUarray *)&g->value, &(CUDA_ARRAY_DESCRIPTOR_v1){1024, (unsigned)(n / 4096), CU_AD_FORMAT_FLOAT, 1});
}
static CUresult take_array(struct got *g, size_t n) {
    return p_cuArrayCreate_v2((CUarray *)&g->value, &(CUDA_ARRAY_DESCRIPTOR){1024, n / 4096, CU_AD_FORMAT_FLOAT, 1});
}
static CUresult take_array3d_v1(struct got *g, size_t n) {
    return p_cuArray3DCreate((CUarray *)&g->value, &(CUDA_ARRAY3D_DESCRIPTOR_v1){32, 32, (unsigned)(n / 4096), CU_AD_FORMAT_FLOAT, 1, 0});
}
static CUresult take_array3d(struct got *g, size_t n) {
    return p_cuArray3DCreate_v2((CUarray *)&g->value, &(CUDA_ARRAY3D_DESCRIPTOR){32, 32, n / 4096, CU_AD_FORMAT_FLOAT, 1, CUDA_ARRAY3D_LAYERED});
}
static CUresult give_array(struct got *g) { return p_cuArrayDestroy((CUarray)g->value); }
static CUresult take_mipmap(struct got *g, size_t n) {
    return p_cuMipmappedArrayCreate((CUmipmappedArray *)&g->value, &(CUDA_ARRAY3D_DESCRIPTOR){1024, n / 4096, 0, CU_AD_FORMAT_FLOAT, 1, 0}, 1);
}
static CUresult give_mipmap(struct got *g) { return p_cuMipmappedArrayDestroy((CUmipmappedArray)g->value); }

/* Graphs: what is taken is taken by the launch. */
static CUgraphExec graph_that_allocates(size_t bytes, CUdeviceptr *ptr) {
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
                                         .bytesize = bytes};
    CUgraph graph;
    CUgraphNode node;
    CUgraphExec exec;
    OK(p_cuGraphCreate(&graph, 0));
    OK(p_cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params));
    OK(p_cuGraphInstantiateWithFlags(&exec, graph, 0));
    *ptr = params.dptr;
    return exec;
}
static CUresult start_graph(struct got *g, size_t n, CUresult (*start)(CUgraphExec, CUstream)) {
    CUdeviceptr ptr;
    CUgraphExec exec = graph_that_allocates(n, &ptr);
    CUresult result = start(exec, own_stream);
    if (result)
        OK(p_cuGraphExecDestroy(exec));
    else
        *g = (struct got){(uint64_t)(uintptr_t)exec, ptr};
    return result;
}
static CUresult take_launch(struct got *g, size_t n) { return start_graph(g, n, p_cuGraphLaunch); }
static CUresult take_launch_ptsz(struct got *g, size_t n) { return start_graph(g, n, p_cuGraphLaunch_ptsz); }
static CUresult give_launch(struct got *g) {
    CUresult result = p_cuMemFree_v2(g->more);
    OK(p_cuGraphExecDestroy((CUgraphExec)(uintptr_t)g->value));
    OK(p_cuDeviceGraphMemTrim(0));
    return result;
}
static CUresult take_upload(struct got *g, size_t n) { return start_graph(g, n, p_cuGraphUpload); }
static CUresult take_upload_ptsz(struct got *g, size_t n) { return start_graph(g, n, p_cuGraphUpload_ptsz); }
static CUresult give_upload(struct got *g) {
    OK(p_cuGraphExecDestroy((CUgraphExec)(uintptr_t)g->value));
    return p_cuDeviceGraphMemTrim(0);
}

static const struct kind kinds[] = {
    {"cuMemAlloc", 1, take_v1, give_v1},
    {"cuMemAlloc_v2", 1, take_v2, give_v2},
    {"cuMemAllocManaged", 1, take_managed, give_v2},
    {"cuMemAllocPitch", 512, take_pitch_v1, give_v1},
    {"cuMemAllocPitch_v2", 512, take_pitch, give_v2},
    {"cuMemAllocAsync", 2 * MIB, take_async, give_async},
    {"cuMemAllocAsync_ptsz", 2 * MIB, take_async_ptsz, give_async},
    {"cuMemAllocFromPoolAsync", 2 * MIB, take_pool, give_async},
    {"cuMemAllocFromPoolAsync_ptsz", 2 * MIB, take_pool_ptsz, give_async},
    {"cuMemCreate", 2 * MIB, take_physical, give_physical},
    {"cuArrayCreate", 4096, take_array_v1, give_array},
    {"cuArrayCreate_v2", 4096, take_array, give_array},
    {"cuArray3DCreate", 4096, take_array3d_v1, give_array},
    {"cuArray3DCreate_v2", 4096, take_array3d, give_array},
    {"cuMipmappedArrayCreate", 4096, take_mipmap, give_mipmap},
    {"cuGraphLaunch", 2 * MIB, take_launch, give_launch},
    {"cuGraphLaunch_ptsz", 2 * MIB, take_launch_ptsz, give_launch},
    {"cuGraphUpload", 2 * MIB, take_upload, give_upload},
    {"cuGraphUpload_ptsz", 2 * MIB, take_upload_ptsz, give_upload},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

__attribute__((unused)) static const struct kind *kind_named(const char *name) {
    for (int i = 0; i < KINDS; i++)
        if (!strcmp(kinds[i].name, name)) return &kinds[i];
    DIE("no kind %s", name);
}

static CUcontext begin_cuda(void) {
    CUcontext ctx;
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    driver_find("linked");
    OK(p_cuInit(0));
    OK(p_cuDevicePrimaryCtxRetain(&ctx, 0));
    OK(p_cuCtxSetCurrent(ctx));
    OK(p_cuMemPoolCreate(&own_pool, &props));
    return ctx;
}
#endif
