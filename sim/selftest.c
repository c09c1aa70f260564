/* Checks the simulated GPU against what is known of the real one. Each test runs in a process of its
 * own, with books of its own; the first wrong thing ends it. */
#include "selftest.h"

#include <dlfcn.h>
#include <errno.h>
#include <sys/wait.h>

#include "nvml_abi.h"

char test_dir[256];

struct books *test_books(void) {
    static struct books *b;
    if (!b) b = books_open(sim_config());
    CHECK(b);
    return b;
}

struct book_slot *own_slot(void) {
    struct books *b = test_books();
    struct identity self;
    identity_of_self(&self);
    for (uint32_t i = 0; i < b->slots_used; i++)
        if (b->state[i] == SLOT_LIVE && !memcmp(&b->slot[i].who, &self, sizeof self)) return &b->slot[i];
    CHECK(!"no slot of this process");
    return NULL;
}

uint64_t held(int device, enum book_kind kind) { return own_slot()->bytes[device][kind]; }

CUcontext start_context(int device) {
    CUcontext ctx;
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&ctx, 0, device));
    return ctx;
}

static void test_linear(void) {
    CUdeviceptr p = 77, q, again;
    EQUAL(cuMemAlloc_v2(&p, 100), CUDA_ERROR_NOT_INITIALIZED);
    OK(cuInit(0));
    EQUAL(cuMemAlloc_v2(&p, 100), CUDA_ERROR_INVALID_CONTEXT);
    CUcontext ctx = start_context(0);
    EQUAL(held(0, BOOK_CONTEXT), 256 * MIB);
    EQUAL(cuMemAlloc_v2(NULL, 100), CUDA_ERROR_INVALID_VALUE);
    EQUAL(cuMemAlloc_v2(&p, 0), CUDA_ERROR_INVALID_VALUE);
    EQUAL(cuMemAlloc_v2(&p, 17ULL << 30), CUDA_ERROR_OUT_OF_MEMORY);
    EQUAL(p, 77);
    OK(cuMemAlloc_v2(&p, 1000));
    OK(cuMemAlloc_v2(&q, 24));
    EQUAL(held(0, BOOK_LINEAR), 1024);
    EQUAL(own_slot()->live, 2);
    EQUAL(cuMemFree_v2(p + 1), CUDA_ERROR_INVALID_VALUE);
    CUdeviceptr base;
    size_t size;
    OK(cuMemGetAddressRange_v2(&base, &size, p + 999));
    EQUAL(base, p);
    EQUAL(size, 1000);
    EQUAL(cuMemGetAddressRange_v2(&base, &size, p + 1000), CUDA_ERROR_NOT_FOUND);
    OK(cuMemFree_v2(p));
    EQUAL(cuMemFree_v2(p), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFree_v2(0));
    OK(cuMemAlloc_v2(&again, 1000));
    EQUAL(again, p); /* used again, as the real driver does */
    size_t pitch;
    OK(cuMemAllocPitch_v2(&p, &pitch, 513, 10, 4));
    EQUAL(pitch, 1024);
    EQUAL(held(0, BOOK_PITCH), 10240);
    OK(cuMemAllocManaged(&p, 4096, CU_MEM_ATTACH_GLOBAL));
    EQUAL(held(0, BOOK_MANAGED), 4096);
    CUdeviceptr_v1 low;
    OK(cuMemAlloc(&low, 4096));
    OK(cuMemFree(low));
    size_t free_bytes, total;
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    EQUAL(total, 16ULL << 30);
    EQUAL(total - free_bytes, 256 * MIB + 1024 + 10240 + 4096);
    void *host;
    OK(cuMemHostAlloc(&host, 100 * MIB, 0));
    OK(cuMemFreeHost(host));
    EQUAL(cuMemFreeHost(host), CUDA_ERROR_INVALID_VALUE);
    OK(cuCtxDestroy_v2(ctx)); /* with all that is in it */
    EQUAL(test_books()->device[0].used, 0);
    EQUAL(own_slot()->live, 0);
    EQUAL(cuCtxDestroy_v2(ctx), CUDA_ERROR_INVALID_CONTEXT);
    CHECK(test_books()->device[0].peak >= 256 * MIB + 1024 + 10240 + 4096);
}

static void test_primary(void) {
    CUcontext a, b, now;
    unsigned int flags;
    int active;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&a, 1));
    OK(cuDevicePrimaryCtxRetain(&b, 1));
    CHECK(a == b);
    EQUAL(held(1, BOOK_CONTEXT), 256 * MIB);
    OK(cuCtxGetCurrent(&now));
    CHECK(!now);
    OK(cuCtxSetCurrent(a));
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, MIB));
    EQUAL(held(1, BOOK_LINEAR), MIB);
    OK(cuDevicePrimaryCtxReset_v2(1));
    EQUAL(held(1, BOOK_LINEAR), 0);
    EQUAL(cuMemAlloc_v2(&p, MIB), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    OK(cuDevicePrimaryCtxRelease_v2(1));
    OK(cuDevicePrimaryCtxRelease_v2(1));
    EQUAL(cuDevicePrimaryCtxRelease_v2(1), CUDA_ERROR_INVALID_CONTEXT);
    OK(cuDevicePrimaryCtxGetState(1, &flags, &active));
    EQUAL(active, 0);
    EQUAL(held(1, BOOK_CONTEXT), 0);
    const CUuuid id = {"\x6b\xd5\xfb\x6c\x5b\xf4\xe7\x4a\x89\x87\xd9\x39\x12\xfd\x9d\xf9"};
    const void *table;
    OK(cuGetExportTable(&table, &id));
    EQUAL(((const size_t *)table)[0], 88);
    OK(((CUresult(*const *)(CUcontext *, CUdevice))table)[2](&a, 0));
    EQUAL(held(0, BOOK_CONTEXT), 256 * MIB);
    CUdevResource resource;
    CUdevResourceDesc desc;
    CUgreenCtx green;
    OK(cuDeviceGetDevResource(1, &resource, CU_DEV_RESOURCE_TYPE_SM));
    OK(cuDevResourceGenerateDesc(&desc, &resource, 1));
    OK(cuGreenCtxCreate(&green, desc, 1, 1));
    OK(cuCtxFromGreenCtx(&b, green));
    EQUAL(held(1, BOOK_CONTEXT), 256 * MIB);
    OK(cuGreenCtxDestroy(green));
    EQUAL(held(1, BOOK_CONTEXT), 0);
}

static void test_arrays(void) {
    start_context(0);
    CUarray a, level;
    CUmipmappedArray m;
    CUDA_ARRAY3D_DESCRIPTOR d = {64, 32, 4, CU_AD_FORMAT_FLOAT, 4, 0};
    OK(cuArray3DCreate_v2(&a, &d));
    EQUAL(held(0, BOOK_ARRAY), 64 * 32 * 4 * 16);
    OK(cuArrayDestroy(a));
    EQUAL(cuArrayDestroy(a), CUDA_ERROR_INVALID_HANDLE);
    CUDA_ARRAY_DESCRIPTOR_v1 old = {100, 0, CU_AD_FORMAT_HALF, 2};
    OK(cuArrayCreate(&a, &old));
    EQUAL(held(0, BOOK_ARRAY), 400);
    OK(cuArrayDestroy(a));
    d = (CUDA_ARRAY3D_DESCRIPTOR){64, 64, 0, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0};
    OK(cuMipmappedArrayCreate(&m, &d, 3));
    EQUAL(held(0, BOOK_ARRAY), 64 * 64 + 32 * 32 + 16 * 16);
    OK(cuMipmappedArrayGetLevel(&level, m, 2));
    EQUAL(cuArrayDestroy(level), CUDA_ERROR_INVALID_VALUE);
    OK(cuMipmappedArrayDestroy(m));
    d.Flags = CUDA_ARRAY3D_SPARSE;
    OK(cuArray3DCreate_v2(&a, &d));
    EQUAL(held(0, BOOK_ARRAY), 0);
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    CUmemGenericAllocationHandle h;
    OK(cuMemCreate(&h, 2 * MIB, &prop, 0));
    CUarrayMapInfo map = {.resourceType = 0, .resource.array = a, .memOperationType = 1, .memHandle.memHandle = h};
    OK(cuMemMapArrayAsync(&map, 1, NULL));
    OK(cuMemRelease(h));
    EQUAL(held(0, BOOK_VMM), 2 * MIB);
    OK(cuArrayDestroy(a));
    EQUAL(held(0, BOOK_VMM), 0);
}

static void test_pools(void) {
    start_context(0);
    CUdeviceptr p, q;
    CUmemoryPool pool;
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    OK(cuMemAllocAsync(&p, 100, NULL));
    EQUAL(held(0, BOOK_POOL), 2 * MIB);
    OK(cuMemAllocAsync_ptsz(&q, 2 * MIB, NULL));
    EQUAL(held(0, BOOK_POOL), 4 * MIB);
    OK(cuMemFreeAsync(q, NULL));
    EQUAL(held(0, BOOK_POOL), 4 * MIB);
    OK(cuStreamSynchronize(NULL));
    EQUAL(held(0, BOOK_POOL), 2 * MIB);
    OK(cuMemFree_v2(p));
    OK(cuCtxSynchronize());
    EQUAL(held(0, BOOK_POOL), 0);
    EQUAL(cuMemFreeAsync(p, NULL), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemPoolCreate(&pool, &props));
    uint64_t threshold = UINT64_MAX, figure;
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    OK(cuMemAllocFromPoolAsync(&p, 5 * MIB, pool, NULL));
    OK(cuMemFreeAsync(p, NULL));
    OK(cuCtxSynchronize());
    EQUAL(held(0, BOOK_POOL), 6 * MIB);
    OK(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &figure));
    EQUAL(figure, 6 * MIB);
    OK(cuMemPoolTrimTo(pool, 2 * MIB));
    EQUAL(held(0, BOOK_POOL), 2 * MIB);
    OK(cuMemAllocFromPoolAsync(&p, 5 * MIB, pool, NULL));
    OK(cuMemPoolDestroy(pool));
    EQUAL(held(0, BOOK_POOL), 6 * MIB);
    EQUAL(cuMemAllocFromPoolAsync(&q, 1, pool, NULL), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemFreeAsync(p, NULL));
    EQUAL(held(0, BOOK_POOL), 0);
}

static void test_vmm(void) {
    start_context(0);
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}};
    CUmemGenericAllocationHandle h, again, imported;
    CUdeviceptr va;
    int fd;
    EQUAL(cuMemCreate(&h, 100, &prop, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemCreate(&h, 4 * MIB, &prop, 0));
    EQUAL(held(1, BOOK_VMM), 4 * MIB);
    OK(cuMemAddressReserve(&va, 8 * MIB, 0, 0, 0));
    EQUAL(cuMemFree_v2(va), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemMap(va, 4 * MIB, 0, h, 0));
    EQUAL(cuMemMap(va, 4 * MIB, 0, h, 0), CUDA_ERROR_INVALID_VALUE);
    OK(cuMemSetAccess(va, 4 * MIB, &(CUmemAccessDesc){{CU_MEM_LOCATION_TYPE_DEVICE, 1}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE}, 1));
    OK(cuMemRelease(h));
    EQUAL(held(1, BOOK_VMM), 4 * MIB);
    OK(cuMemRetainAllocationHandle(&again, (void *)va));
    OK(cuMemUnmap(va, 4 * MIB));
    EQUAL(held(1, BOOK_VMM), 4 * MIB);
    OK(cuMemExportToShareableHandle(&fd, again, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    EQUAL(held(1, BOOK_VMM), 4 * MIB);
    OK(cuMemRelease(imported));
    OK(cuMemRelease(again));
    EQUAL(cuMemRelease(again), CUDA_ERROR_INVALID_VALUE);
    EQUAL(held(1, BOOK_VMM), 0);
    OK(cuMemAddressFree(va, 8 * MIB));
    prop.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
    OK(cuMemCreate(&h, 4 * MIB, &prop, 0));
    EQUAL(held(0, BOOK_VMM), 0);
    EQUAL(own_slot()->live, 0);
}

static void test_graphs(void) {
    start_context(0);
    CUgraph g;
    CUgraphNode node, last;
    CUgraphExec exec;
    CUDA_MEM_ALLOC_NODE_PARAMS a = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}}, .bytesize = 3 * MIB};
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphAddMemAllocNode(&node, g, NULL, 0, &a));
    EQUAL(held(0, BOOK_GRAPH), 0);
    OK(cuGraphInstantiateWithFlags(&exec, g, 0));
    EQUAL(cuMemFree_v2(a.dptr), CUDA_ERROR_INVALID_VALUE); /* not allocated yet */
    OK(cuGraphUpload(exec, NULL));
    EQUAL(held(0, BOOK_GRAPH), 4 * MIB);
    OK(cuGraphLaunch(exec, NULL));
    EQUAL(held(0, BOOK_GRAPH), 4 * MIB);
    EQUAL(own_slot()->live, 1);
    EQUAL(cuGraphLaunch(exec, NULL), CUDA_ERROR_INVALID_VALUE); /* still allocated */
    OK(cuMemFreeAsync(a.dptr, NULL));
    EQUAL(own_slot()->live, 0);
    OK(cuGraphLaunch(exec, NULL));
    OK(cuMemFree_v2(a.dptr));
    EQUAL(held(0, BOOK_GRAPH), 4 * MIB);
    OK(cuGraphExecDestroy(exec));
    EQUAL(held(0, BOOK_GRAPH), 4 * MIB);
    OK(cuDeviceGraphMemTrim(0));
    EQUAL(held(0, BOOK_GRAPH), 0);
    OK(cuGraphAddMemFreeNode(&last, g, &node, 1, a.dptr));
    OK(cuGraphInstantiate_v2(&exec, g, NULL, NULL, 0));
    for (int i = 0; i < 3; i++) OK(cuGraphLaunch_ptsz(exec, NULL));
    uint64_t figure;
    OK(cuDeviceGetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &figure));
    EQUAL(figure, 0);
    EQUAL(held(0, BOOK_GRAPH), 4 * MIB);
    OK(cuDeviceGraphMemTrim(0));
    EQUAL(held(0, BOOK_GRAPH), 0);
    size_t count = 0;
    OK(cuGraphGetNodes(g, NULL, &count));
    EQUAL(count, 2);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(g));
    EQUAL(cuGraphDestroy(g), CUDA_ERROR_INVALID_VALUE);
}

static void test_capture(void) {
    start_context(0);
    CUstream s;
    CUgraph g;
    CUdeviceptr p, q;
    CUgraphExec exec;
    int status, mode;
    OK(cuStreamCreate(&s, 1));
    OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuMemAllocAsync(&p, MIB, s));
    OK(cuMemFreeAsync(p, s));
    OK(cuStreamIsCapturing(s, &status));
    EQUAL(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(cuStreamEndCapture(s, &g));
    EQUAL(held(0, BOOK_POOL) + held(0, BOOK_GRAPH), 0);
    OK(cuGraphInstantiateWithFlags(&exec, g, 0));
    OK(cuGraphLaunch(exec, s));
    EQUAL(held(0, BOOK_GRAPH), 2 * MIB);
    OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    EQUAL(cuMemAlloc_v2(&q, 100), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EQUAL(held(0, BOOK_LINEAR), 0);
    OK(cuStreamIsCapturing(s, &status));
    EQUAL(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    EQUAL(cuStreamEndCapture(s, &g), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CHECK(!g);
    OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    EQUAL(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    OK(cuMemAlloc_v2(&q, 100));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    EQUAL(cuStreamSynchronize(s), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EQUAL(cuStreamEndCapture(s, &g), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    OK(cuMemFree_v2(q));
}

static void test_modules(void) {
    CUcontext ctx = start_context(0);
    CUmodule m;
    CUlibrary l;
    CUfunction f;
    OK(cuModuleLoadData(&m, "image"));
    OK(cuLibraryLoadData(&l, "image", NULL, NULL, 0, NULL, NULL, 0));
    EQUAL(held(0, BOOK_MODULE), 2 * MIB);
    OK(cuModuleGetFunction(&f, m, "kernel"));
    OK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(cuModuleUnload(m));
    EQUAL(cuModuleUnload(m), CUDA_ERROR_INVALID_HANDLE);
    OK(cuModuleLoadData(&m, "image"));
    OK(cuCtxDestroy_v2(ctx));
    EQUAL(held(0, BOOK_MODULE), MIB);
    OK(cuLibraryUnload(l));
    EQUAL(held(0, BOOK_MODULE), 0);
}

static void expect(const char *symbol, int version, uint64_t flags, const char *exported) {
    void *p = NULL, *wanted = exported ? dlsym(RTLD_DEFAULT, exported) : NULL;
    int status = -1;
    OK(cuGetProcAddress_v2(symbol, &p, version, flags, &status));
    if (p != wanted) fprintf(stderr, "%s at %d: not %s\n", symbol, version, exported ? exported : "nothing");
    CHECK(p == wanted);
    CHECK(exported ? status == 0 : status > 0);
}

static void test_lookup(void) {
    void *p;
    expect("cuMemAlloc", 2000, 0, "cuMemAlloc");
    expect("cuMemAlloc", 3010, 0, "cuMemAlloc");
    expect("cuMemAlloc", 3020, 0, "cuMemAlloc_v2");
    expect("cuMemAlloc", 12090, 0, "cuMemAlloc_v2");
    expect("cuCtxCreate", 2000, 0, "cuCtxCreate");
    expect("cuCtxCreate", 11030, 0, "cuCtxCreate_v2");
    expect("cuCtxCreate", 11040, 0, "cuCtxCreate_v3");
    expect("cuCtxCreate", 12050, 0, "cuCtxCreate_v4");
    expect("cuGetProcAddress", 11080, 0, "cuGetProcAddress");
    expect("cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2");
    expect("cuMemAllocAsync", 11020, 2, "cuMemAllocAsync_ptsz");
    expect("cuMemcpy", 7000, 2, "cuMemcpy_ptds");
    expect("cuMemcpy", 6050, 2, NULL);
    expect("cuGraphInstantiate", 10000, 0, "cuGraphInstantiate");
    expect("cuGraphInstantiate", 12000, 0, "cuGraphInstantiate_v2");
    expect("cuStreamGetCaptureInfo", 12030, 2, "cuStreamGetCaptureInfo_v3_ptsz");
    expect("cuNoSuchThing", 13000, 0, NULL);
    expect("cuGraphAddNode", 13050, 0, "cuGraphAddNode_v2"); /* the third form is newer than 13.0 */
    EQUAL(cuGetProcAddress("cuNoSuchThing", &p, 12000, 0), CUDA_ERROR_NOT_FOUND);
}

static void test_failures(void) {
    setenv("CUWARDEN_SIM_FAIL", "cuMemAlloc_v2=2@2,cuMemFree_v2=719@2+,slot2=46,nvmlInit_v2=18@1", 1);
    EQUAL(nvmlInit_v2(), 18);
    OK(nvmlInit_v2());
    start_context(0);
    CUdeviceptr p, q;
    OK(cuMemAlloc_v2(&p, 10));
    EQUAL(cuMemAlloc_v2(&q, 10), 2);
    OK(cuMemAlloc_v2(&q, 10));
    OK(cuMemFree_v2(p));
    EQUAL(cuMemFree_v2(q), 719);
    EQUAL(cuMemFree_v2(q), 719);
    EQUAL(held(0, BOOK_LINEAR), 10);
    EQUAL(own_slot()->calls[FN_cuMemAlloc_v2], 3);
    errno = 4321;
    cuMemFree_v2(1);
    EQUAL(errno, 4321);
}

static void run(const char *parent, const char *name, void (*test)(void)) {
    snprintf(test_dir, sizeof test_dir, "%s/%s", parent, name);
    pid_t pid = fork();
    if (!pid) {
        setenv("CUWARDEN_SIM_DIR", test_dir, 1);
        alarm(120);
        test();
        _exit(0);
    }
    int status;
    waitpid(pid, &status, 0);
    if (status) {
        fprintf(stderr, "%s: FAILED (status %#x)\n", name, (unsigned)status);
        exit(1);
    }
    printf("%s: good\n", name);
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc == 3 && !strcmp(argv[1], "--as")) return become(argv[2]);
    if (argc != 2) return 64;
#define RUN(test) run(argv[1], #test, test_##test)
    RUN(linear);
    RUN(primary);
    RUN(arrays);
    RUN(pools);
    RUN(vmm);
    RUN(graphs);
    RUN(capture);
    RUN(modules);
    RUN(lookup);
    RUN(failures);
    RUN(visible);
    RUN(order);
    RUN(instances);
    RUN(nvml);
    RUN(nvml_processes);
    RUN(compute_mode);
    RUN(no_descriptor);
    RUN(ipc);
    RUN(fork);
    RUN(killed);
    RUN(exec);
    RUN(forked_child);
    RUN(closed_descriptors);
    RUN(out_of_reach);
    RUN(leader_ends);
    RUN(pid_reuse);
    RUN(namespaces);
    RUN(unloaded);
    RUN(peaks);
    RUN(lock);
    RUN(reuse_of_slot);
    RUN(storm);
    return 0;
}
