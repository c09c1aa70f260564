/* What a quota allows and refuses, exactly: edge MODE LIMIT [...], LIMIT in bytes, as CUWARDEN_MEMORY_LIMIT has it. */
#include "kinds.h"

static size_t limit;

static size_t in_use(void) {
    size_t free_bytes, total;
    OK(p_cuMemGetInfo_v2(&free_bytes, &total));
    if (total != limit) DIE("total is %zu", total);
    return total - free_bytes;
}

static void refused(const struct kind *k, size_t bytes) {
    struct got g = {UNTOUCHED, UNTOUCHED};
    GIVES(2, k->take(&g, bytes));
    if (g.value != UNTOUCHED || g.more != UNTOUCHED) DIE("%s: an out-parameter was touched", k->name);
}

static void trim(void) {
    CUmemoryPool pool;
    OK(p_cuDeviceGetDefaultMemPool(&pool, 0));
    OK(p_cuMemPoolTrimTo(pool, 0));
    OK(p_cuMemPoolTrimTo(own_pool, 0));
}

/* All of the quota, not a grain more; three refusals a kind. */
static void edge(const struct kind *k) {
    struct got all = {0}, most = {0}, rest = {0};
    if (k->give == give_upload) { /* what is uploaded and not running is nobody's: the next one may have it */
        for (int i = 0; i < 3; i++) refused(k, limit + k->grain);
        OK(k->take(&all, limit));
        if (in_use() != limit) DIE("%s: %zu in use", k->name, in_use());
        OK(k->give(&all));
        return;
    }
    OK(k->take(&all, limit));
    if (in_use() != limit) DIE("%s: %zu in use", k->name, in_use());
    refused(k, k->grain);
    OK(k->give(&all));
    OK(k->take(&most, limit - k->grain));
    refused(k, 2 * k->grain);
    OK(k->take(&rest, k->grain));
    refused(k, k->grain);
    OK(k->give(&rest));
    OK(k->give(&most));
    trim();
    if (in_use()) DIE("%s: %zu in use at the end", k->name, in_use());
}

/* The driver refuses once, with a code of its own: the code, nothing else, and the quota is whole again. */
static void failed(const struct kind *k, int code) {
    struct got g = {UNTOUCHED, UNTOUCHED};
    GIVES(code, k->take(&g, limit / 2));
    if (g.value != UNTOUCHED || g.more != UNTOUCHED) DIE("%s: an out-parameter was touched", k->name);
    if (in_use()) DIE("%s: %zu in use after a failure", k->name, in_use());
    g = (struct got){0};
    OK(k->take(&g, limit));
    OK(k->give(&g));
}

/* A free fails once: what was to be freed is there still, and can be freed then. */
static void failed_free(const struct kind *k, int code) {
    struct got g = {0};
    size_t before;
    OK(k->take(&g, limit));
    before = in_use();
    GIVES(code, k->give(&g));
    if (in_use() != before || before != limit) DIE("%s: %zu in use after a failed free", k->name, in_use());
    refused(k, k->grain);
    OK(k->give(&g));
    trim();
    if (in_use()) DIE("%s: %zu in use at the end", k->name, in_use());
}

/* What pools and graphs keep for later does not stand in the way of anybody. */
static void kept_for_later(void) {
    uint64_t everything = UINT64_MAX;
    OK(p_cuMemPoolSetAttribute(own_pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &everything));
    for (int i = 0; i < KINDS; i++) {
        struct got pool = {0}, graph = {0}, g = {0};
        OK(take_pool(&pool, limit / 2));
        OK(give_async(&pool));
        OK(take_launch(&graph, limit / 2));
        OK(p_cuMemFree_v2(graph.more));
        OK(p_cuGraphExecDestroy((CUgraphExec)(uintptr_t)graph.value));
        if (in_use() != limit) DIE("%zu in use", in_use());
        OK(kinds[i].take(&g, limit));
        OK(kinds[i].give(&g));
        trim();
    }
}

/* A graph that was launched can be launched again, whatever the quota has left. */
static void launched_again(void) {
    CUdeviceptr ptr;
    CUgraphNode node;
    CUgraph graph;
    CUgraphExec exec;
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
                                         .bytesize = limit};
    OK(p_cuGraphCreate(&graph, 0));
    OK(p_cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params));
    ptr = params.dptr;
    OK(p_cuGraphInstantiateWithFlags(&exec, graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
    for (int i = 0; i < 3; i++) OK(p_cuGraphLaunch(exec, NULL));
    if (in_use() != limit) DIE("%zu in use", in_use());
    OK(p_cuMemFree_v2(ptr));
    OK(p_cuGraphLaunch(exec, NULL));
    OK(p_cuMemFree_v2(ptr));
}

/* A graph that is uploaded when it is made takes its memory then. */
static void uploaded_when_made(void) {
    CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}},
                                         .bytesize = limit};
    CUgraphNode node;
    CUgraph graph;
    CUgraphExec exec = (CUgraphExec)UNTOUCHED;
    struct got g = {0};
    OK(p_cuGraphCreate(&graph, 0));
    OK(p_cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params));
    OK(take_v2(&g, 1));
    GIVES(2, p_cuGraphInstantiateWithFlags(&exec, graph, CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD));
    if (exec != (CUgraphExec)UNTOUCHED) DIE("an out-parameter was touched");
    OK(give_v2(&g));
    OK(p_cuGraphInstantiateWithFlags(&exec, graph, CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD));
    if (in_use() != limit) DIE("%zu in use", in_use());
}

/* A module's size is known once it is loaded; what does not fit is unloaded again. */
static void modules(void) {
    CUmodule module = (CUmodule)UNTOUCHED;
    struct got g = {0};
    OK(take_v2(&g, limit));
    GIVES(2, p_cuModuleLoadData(&module, "image"));
    if (in_use() != limit) DIE("%zu in use", in_use());
    OK(give_v2(&g));
    OK(p_cuModuleLoadData(&module, "image"));
    GIVES(2, take_v2(&g, limit - MIB + 1));
    OK(take_v2(&g, limit - MIB));
    GIVES(2, p_cuLibraryLoadData(&(CUlibrary){0}, "image", NULL, NULL, 0, NULL, NULL, 0));
    OK(p_cuModuleUnload(module));
}

static void totals(int devices) {
    printf("[");
    for (int d = 0; d < devices; d++) {
        CUcontext ctx;
        unsigned old_free, old_total, old;
        size_t free_bytes, total, new;
        OK(p_cuDevicePrimaryCtxRetain(&ctx, d));
        OK(p_cuCtxSetCurrent(ctx));
        OK(p_cuMemGetInfo(&old_free, &old_total));
        OK(p_cuMemGetInfo_v2(&free_bytes, &total));
        OK(p_cuDeviceTotalMem(&old, d));
        OK(p_cuDeviceTotalMem_v2(&new, d));
        printf("%s{\"old_free\":%u,\"old_total\":%u,\"free\":%zu,\"total\":%zu,\"device_old\":%u,\"device\":%zu,\"fits\":", d ? "," : "", old_free,
               old_total, free_bytes, total, old, new);
        CUdeviceptr p, q;
        int one = p_cuMemAlloc_v2(&p, total), another = p_cuMemAlloc_v2(&q, 1);
        printf("[%d,%d]}", one, another);
    }
    printf("]\n");
}

int main(int argc, char **argv) {
    if (argc < 3) return 64;
    const char *mode = argv[1];
    if (!strcmp(mode, "totals")) {
        driver_find("linked");
        OK(p_cuInit(0));
        totals(atoi(argv[2]));
        return 0;
    }
    limit = strtoull(argv[2], NULL, 10);
    begin_cuda();
    if (!strcmp(mode, "edge"))
        for (int i = 0; i < KINDS; i++) edge(&kinds[i]);
    else if (!strcmp(mode, "failed"))
        failed(kind_named(argv[3]), atoi(argv[4]));
    else if (!strcmp(mode, "failed-free"))
        failed_free(kind_named(argv[3]), atoi(argv[4]));
    else if (!strcmp(mode, "kept"))
        kept_for_later();
    else if (!strcmp(mode, "again"))
        launched_again();
    else if (!strcmp(mode, "uploaded"))
        uploaded_when_made();
    else if (!strcmp(mode, "modules"))
        modules();
    else
        return 64;
    return 0;
}
