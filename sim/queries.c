/* Functions that matter to no book, but whose callers read what they are told: each says something
 * true of a device that does nothing. */
#include <string.h>

#include "graph.h"

#define QUERY(name, args, ...)             \
    CUresult name args;                    \
    API CUresult name args {               \
        ENTER(name, NEED_INIT);            \
        __VA_ARGS__                        \
        return CUDA_SUCCESS;               \
    }

QUERY(cuCtxGetLimit, (size_t *value, int limit), REQUIRE(value); *value = limit == 0 ? 1024 : 0;)
QUERY(cuCtxGetStreamPriorityRange, (int *least, int *greatest), if (least) *least = 0; if (greatest) *greatest = -5;)
QUERY(cuCtxGetCacheConfig, (int *config), REQUIRE(config); *config = 0;)
QUERY(cuCtxGetSharedMemConfig, (int *config), REQUIRE(config); *config = 1;)
QUERY(cuDeviceGetP2PAttribute, (int *value, int attribute, CUdevice from, CUdevice to),
      REQUIRE(value); (void)attribute; if (!device_valid(from) || !device_valid(to)) return CUDA_ERROR_INVALID_DEVICE; *value = from != to;)
QUERY(cuDeviceGetExecAffinitySupport, (int *value, int type, CUdevice device),
      REQUIRE(value); (void)type; if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE; *value = 0;)
QUERY(cuDeviceGetTexture1DLinearMaxWidth, (size_t *width, int format, unsigned int channels, CUdevice device),
      REQUIRE(width && channels); (void)format, (void)device; *width = 268435456;)

/* Of a kernel: 1024 threads in a block, and nothing else of anything. */
QUERY(cuFuncGetAttribute, (int *value, int attribute, CUfunction function),
      REQUIRE(value && function); *value = attribute == 0 ? 1024 : attribute == 5 || attribute == 6 ? 90 : 0;)
QUERY(cuKernelGetAttribute, (int *value, int attribute, CUkernel kernel, CUdevice device),
      REQUIRE(value && kernel); (void)device; *value = attribute == 0 ? 1024 : attribute == 5 || attribute == 6 ? 90 : 0;)
QUERY(cuModuleGetFunctionCount, (unsigned int *count, CUmodule module), REQUIRE(count && module); *count = 0;)
QUERY(cuLibraryGetKernelCount, (unsigned int *count, CUlibrary library), REQUIRE(count && library); *count = 0;)
QUERY(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *blocks, CUfunction function, int size, size_t shared),
      REQUIRE(blocks && function && size > 0); (void)shared; *blocks = 2048 / size;)
QUERY(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, (int *blocks, CUfunction function, int size, size_t shared, unsigned int flags),
      REQUIRE(blocks && function && size > 0); (void)shared, (void)flags; *blocks = 2048 / size;)
QUERY(cuOccupancyMaxPotentialBlockSize, (int *grid, int *block, CUfunction function, void *of, size_t shared, int limit),
      REQUIRE(grid && block && function); (void)of, (void)shared, (void)limit; *grid = 264; *block = 1024;)
QUERY(cuOccupancyAvailableDynamicSMemPerBlock, (size_t *bytes, CUfunction function, int blocks, int size),
      REQUIRE(bytes && function && blocks > 0 && size > 0); *bytes = 49152;)
QUERY(cuPointerSetAttribute, (const void *value, int attribute, CUdeviceptr ptr), (void)attribute; REQUIRE(value && block_containing(ptr));)

/* ---- linking, textures, semaphores: handles that stand for nothing ----------------------------------- */

static char image[64] = "simulated";

#define HANDLE(name, args, out) QUERY(name, args, REQUIRE(out); *out = (void *)image;)
HANDLE(cuLinkCreate, (unsigned int count, int *options, void **values, void **out), ((void)count, (void)options, (void)values, out))
HANDLE(cuLinkCreate_v2, (unsigned int count, int *options, void **values, void **out), ((void)count, (void)options, (void)values, out))
HANDLE(cuImportExternalSemaphore, (void **out, const void *desc), (desc ? out : NULL))
HANDLE(cuUserObjectCreate, (void **out, void *ptr, void *destroy, unsigned int count, unsigned int flags),
       ((void)ptr, (void)destroy, (void)count, (void)flags, out))
HANDLE(cuModuleGetTexRef, (void **out, CUmodule module, const char *name), (module && name ? out : NULL))
HANDLE(cuModuleGetSurfRef, (void **out, CUmodule module, const char *name), (module && name ? out : NULL))
HANDLE(cuTexRefCreate, (void **out), (out))
QUERY(cuLinkComplete, (void *state, void **cubin, size_t *size), REQUIRE(state && cubin); *cubin = image; if (size) *size = sizeof image;)
QUERY(cuTexObjectCreate, (unsigned long long *object, const void *resource, const void *texture, const void *view),
      REQUIRE(object && resource); (void)texture, (void)view; *object = 1;)
QUERY(cuSurfObjectCreate, (unsigned long long *object, const void *resource), REQUIRE(object && resource); *object = 1;)

/* ---- the edges of a graph ------------------------------------------------------------------------------ */

struct edges {
    CUgraphNode *from, *to;
    size_t room, found;
};

static void edge(struct edges *e, CUgraphNode from, CUgraphNode to) {
    if (e->found < e->room) {
        if (e->from) e->from[e->found] = from;
        if (e->to) e->to[e->found] = to;
    }
    e->found++;
}

/* Edge data, where there is room for it, is all zero: plain dependencies. */
static CUresult answer(const struct edges *e, void *data, size_t *count) {
    if (data) memset(data, 0, 8 * (e->found < e->room ? e->found : e->room));
    if (!e->from && !e->to)
        *count = e->found;
    else if (e->found < *count)
        *count = e->found;
    return CUDA_SUCCESS;
}

static CUresult edges_of_graph(CUgraph handle, CUgraphNode *from, CUgraphNode *to, void *data, size_t *count) {
    struct graph *g = object_find(OBJECT_GRAPH, handle);
    REQUIRE(g && count && !from == !to);
    struct edges e = {from, to, *count, 0};
    for (size_t i = 0; i < g->count; i++)
        for (size_t k = 0; k < g->nodes[i]->dep_count; k++) edge(&e, g->nodes[i]->deps[k], (CUgraphNode)g->nodes[i]);
    return answer(&e, data, count);
}

static CUresult edges_of_node(CUgraphNode handle, CUgraphNode *out, void *data, size_t *count, bool forward) {
    struct node *n = object_find(OBJECT_NODE, handle);
    REQUIRE(n && count);
    struct edges e = {out, NULL, *count, 0};
    if (!forward)
        for (size_t k = 0; k < n->dep_count; k++) edge(&e, n->deps[k], NULL);
    else
        for (size_t i = 0; i < n->graph->count; i++)
            for (size_t k = 0; k < n->graph->nodes[i]->dep_count; k++)
                if (n->graph->nodes[i]->deps[k] == handle) edge(&e, (CUgraphNode)n->graph->nodes[i], NULL);
    return answer(&e, data, count);
}

QUERY(cuGraphGetEdges, (CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count), return edges_of_graph(graph, from, to, NULL, count);)
QUERY(cuGraphGetEdges_v2, (CUgraph graph, CUgraphNode *from, CUgraphNode *to, void *data, size_t *count), return edges_of_graph(graph, from, to, data, count);)
QUERY(cuGraphNodeGetDependencies, (CUgraphNode node, CUgraphNode *out, size_t *count), return edges_of_node(node, out, NULL, count, false);)
QUERY(cuGraphNodeGetDependencies_v2, (CUgraphNode node, CUgraphNode *out, void *data, size_t *count), return edges_of_node(node, out, data, count, false);)
QUERY(cuGraphNodeGetDependentNodes, (CUgraphNode node, CUgraphNode *out, size_t *count), return edges_of_node(node, out, NULL, count, true);)
QUERY(cuGraphNodeGetDependentNodes_v2, (CUgraphNode node, CUgraphNode *out, void *data, size_t *count), return edges_of_node(node, out, data, count, true);)

QUERY(cuGraphAddDependencies, (CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count),
      REQUIRE(object_find(OBJECT_GRAPH, graph) && (!count || (from && to)));
      for (size_t i = 0; i < count; i++) {
          struct node *n = object_find(OBJECT_NODE, to[i]);
          REQUIRE(n && object_find(OBJECT_NODE, from[i]));
          node_depends(n, &from[i], 1);
      })
