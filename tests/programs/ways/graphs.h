/* Graph memory: taken at launch or upload, kept through frees, given back by a trim. */

static CUDA_MEM_ALLOC_NODE_PARAMS node_of(int device, size_t bytes) {
    return (CUDA_MEM_ALLOC_NODE_PARAMS){.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}},
                                        .bytesize = bytes};
}

/* The three functions that add an allocation node. */
static CUdeviceptr add_allocation(int how, CUgraph graph, int device, size_t bytes) {
    CUDA_MEM_ALLOC_NODE_PARAMS params = node_of(device, bytes);
    CUgraphNodeParams any;
    CUgraphNode node;
    memset(&any, 0, sizeof any);
    any.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
    any.u.alloc = params;
    if (how == 0) OK(p_cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params));
    if (how == 1) OK(p_cuGraphAddNode(&node, graph, NULL, 0, &any));
    if (how == 2) OK(p_cuGraphAddNode_v2(&node, graph, NULL, NULL, 0, &any));
    return how ? any.u.alloc.dptr : params.dptr;
}

/* The five functions that make a graph executable. */
static CUgraphExec executable(int how, CUgraph graph, unsigned long long flags) {
    CUDA_GRAPH_INSTANTIATE_PARAMS params = {.flags = flags};
    CUgraphExec exec;
    if (how == 0) OK(p_cuGraphInstantiate(&exec, graph, NULL, NULL, 0));
    if (how == 1) OK(p_cuGraphInstantiate_v2(&exec, graph, NULL, NULL, 0));
    if (how == 2) OK(p_cuGraphInstantiateWithFlags(&exec, graph, flags));
    if (how == 3) OK(p_cuGraphInstantiateWithParams(&exec, graph, &params));
    if (how == 4) OK(p_cuGraphInstantiateWithParams_ptsz(&exec, graph, &params));
    return exec;
}

static CUgraph empty_graph(void) {
    CUgraph graph;
    OK(p_cuGraphCreate(&graph, 0));
    return graph;
}

/* Freed outside, by every function that may; what was reserved stays until the trim. */
static void graphs_freed_outside(bool keep) {
    for (int how = 0; how < 5; how++) {
        CUgraph graph = empty_graph();
        CUdeviceptr p = add_allocation(how % 3, graph, 0, (size_t)(how + 1) * MIB);
        CUgraphExec exec = executable(how, graph, 0);
        OK(how % 2 ? p_cuGraphLaunch(exec, NULL) : p_cuGraphLaunch_ptsz(exec, NULL));
        if (keep && how > 2) continue;
        OK(how % 2 ? p_cuMemFree_v2(p) : p_cuMemFreeAsync(p, NULL));
        OK(p_cuGraphExecDestroy(exec));
        OK(p_cuGraphDestroy(graph));
    }
    if (!keep) OK(p_cuDeviceGraphMemTrim(0));
}

static void graphs_freed_inside(bool keep) {
    CUgraph graph = empty_graph();
    CUdeviceptr p = add_allocation(0, graph, 0, 5 * MIB);
    CUgraphNode node;
    OK(p_cuGraphAddMemFreeNode(&node, graph, NULL, 0, p));
    CUgraphExec exec = executable(1, graph, 0);
    for (int i = 0; i < 3; i++) OK(p_cuGraphLaunch(exec, NULL));
    if (keep) return;
    OK(p_cuGraphExecDestroy(exec));
    OK(p_cuDeviceGraphMemTrim(0));
}

static void graphs_uploaded(bool keep) {
    CUgraph a = empty_graph(), b = empty_graph();
    add_allocation(0, a, 0, 3 * MIB);
    add_allocation(1, b, 1, 5 * MIB);
    CUgraphExec one = executable(2, a, 0), two = executable(2, b, CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD);
    OK(p_cuGraphUpload(one, NULL));
    OK(p_cuGraphUpload_ptsz(one, NULL));
    if (keep) return;
    OK(p_cuGraphExecDestroy(one));
    OK(p_cuGraphExecDestroy(two));
    OK(p_cuDeviceGraphMemTrim(0));
    OK(p_cuDeviceGraphMemTrim(1));
}

static void graphs_launched_again(bool keep) {
    CUgraph graph = empty_graph();
    CUdeviceptr p = add_allocation(2, graph, 0, 5 * MIB);
    CUgraphExec exec = executable(3, graph, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
    for (int i = 0; i < 3; i++) OK(p_cuGraphLaunch(exec, NULL));
    if (keep) return;
    OK(p_cuMemFree_v2(p));
    OK(p_cuDeviceGraphMemTrim(0));
}

static void graphs_captured(bool keep) {
    CUstream stream;
    CUgraph graph;
    CUdeviceptr a, b, before;
    TAKES(1, p_cuMemAllocAsync(&before, 100, NULL));
    OK(p_cuStreamCreate(&stream, 1));
    OK(p_cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(p_cuMemAllocAsync(&a, 3 * MIB, stream));
    OK(p_cuMemAllocAsync(&b, 2 * MIB, stream));
    OK(p_cuMemFreeAsync(a, stream));
    OK(p_cuStreamEndCapture(stream, &graph));
    CUgraphExec exec = executable(2, graph, 0);
    OK(p_cuGraphLaunch(exec, stream));
    if (keep) return;
    OK(p_cuMemFree_v2(b));
    OK(p_cuMemFree_v2(before));
    OK(p_cuGraphExecDestroy(exec));
    OK(p_cuDeviceGraphMemTrim(0));
    CUmemoryPool pool;
    OK(p_cuDeviceGetDefaultMemPool(&pool, 0));
    OK(p_cuMemPoolTrimTo(pool, 0));
}

/* Without allocation nodes in them; with one the driver refuses both. */
static void graphs_in_graphs(bool keep) {
    CUgraph child = empty_graph(), parent = empty_graph(), clone;
    CUgraphNode node;
    OK(p_cuGraphAddEmptyNode(&node, child, NULL, 0));
    OK(p_cuGraphAddChildGraphNode(&node, parent, NULL, 0, child));
    OK(p_cuGraphClone(&clone, parent));
    CUdeviceptr p = add_allocation(0, parent, 0, 5 * MIB);
    GIVES(801, p_cuGraphClone(&clone, parent));
    CUgraphExec exec = executable(2, parent, 0);
    OK(p_cuGraphLaunch(exec, NULL));
    OK(p_cuGraphLaunch(executable(2, clone, 0), NULL));
    if (keep) return;
    OK(p_cuMemFree_v2(p));
    OK(p_cuDeviceGraphMemTrim(0));
}

static void graphs_never_launched(bool keep) {
    CUgraph graph = empty_graph();
    add_allocation(0, graph, 0, 5 * MIB);
    CUgraphExec exec = executable(0, graph, 0);
    if (keep) return;
    OK(p_cuGraphExecDestroy(exec));
    OK(p_cuGraphDestroy(graph));
}
