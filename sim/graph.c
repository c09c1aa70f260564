#include "graph.h"

#include <stdlib.h>
#include <string.h>

struct graph *graph_new(void) {
    static unsigned long long next_id = 1;
    struct graph *g = object_new(OBJECT_GRAPH, sizeof *g, NULL);
    g->id = next_id++;
    return g;
}

struct node *graph_add(struct graph *g, int type) {
    struct node *n = object_new(OBJECT_NODE, sizeof *n, NULL);
    n->graph = g;
    n->type = type;
    if (g->count == g->room) {
        g->room = g->room ? g->room * 2 : 16;
        g->nodes = realloc(g->nodes, g->room * sizeof(struct node *));
        if (!g->nodes) abort();
    }
    g->nodes[g->count++] = n;
    return n;
}

void node_depends(struct node *n, const CUgraphNode *deps, size_t count) {
    if (!count) return;
    n->deps = realloc(n->deps, (n->dep_count + count) * sizeof *deps);
    if (!n->deps) abort();
    memcpy(n->deps + n->dep_count, deps, count * sizeof *deps);
    n->dep_count += count;
}

struct node *graph_add_alloc(struct graph *g, size_t bytes, int device) {
    struct block *b = block_new(BLOCK_GRAPH, bytes, 512, false);
    if (!b) return NULL;
    struct graph_memory *m = malloc(sizeof *m);
    if (!m) abort();
    *m = (struct graph_memory){.refs = 1, .addr = b->addr, .size = bytes, .device = device};
    b->live = false;
    b->device = device;
    b->owner = m;
    struct node *n = graph_add(g, CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    n->memory = m;
    n->ptr = b->addr;
    return n;
}

CUresult graph_add_free(struct graph *g, CUdeviceptr ptr, struct node **out) {
    struct block *b = block_at(ptr);
    REQUIRE(b && b->kind == BLOCK_GRAPH);
    for (size_t i = 0; i < g->count; i++)
        if (g->nodes[i]->type == CU_GRAPH_NODE_TYPE_MEM_FREE && g->nodes[i]->ptr == ptr) return CUDA_ERROR_INVALID_VALUE;
    *out = graph_add(g, CU_GRAPH_NODE_TYPE_MEM_FREE);
    (*out)->ptr = ptr;
    return CUDA_SUCCESS;
}

void memory_unref(struct graph_memory *m) {
    if (--m->refs || m->live) return;
    struct block *b = block_at(m->addr);
    if (b) block_free(b);
    free(m);
}

static void node_end(struct node *n) {
    if (n->memory) memory_unref(n->memory);
    if (n->child) graph_destroy(n->child);
    free(n->deps);
    object_free(n);
}

void graph_destroy(struct graph *g) {
    for (size_t i = 0; i < g->count; i++) node_end(g->nodes[i]);
    free(g->nodes);
    object_free(g);
}

bool graph_has_memory(const struct graph *g) {
    for (size_t i = 0; i < g->count; i++) {
        const struct node *n = g->nodes[i];
        if (n->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || n->type == CU_GRAPH_NODE_TYPE_MEM_FREE) return true;
        if (n->child && graph_has_memory(n->child)) return true;
    }
    return false;
}

static struct graph *copy(const struct graph *g) {
    struct graph *c = graph_new();
    for (size_t i = 0; i < g->count; i++) {
        struct node *from = g->nodes[i], *to = graph_add(c, from->type);
        CUgraphNode deps[from->dep_count + 1];
        for (size_t d = 0; d < from->dep_count; d++)
            for (size_t k = 0; k < g->count; k++)
                if ((CUgraphNode)g->nodes[k] == from->deps[d]) deps[d] = (CUgraphNode)c->nodes[k];
        node_depends(to, deps, from->dep_count);
        if (from->child) {
            to->child = copy(from->child);
            to->child->is_child = true;
        }
    }
    return c;
}

API CUresult cuGraphCreate(CUgraph *graph, unsigned int flags) {
    ENTER(cuGraphCreate, NEED_INIT);
    REQUIRE(graph && !flags);
    *graph = (CUgraph)graph_new();
    return CUDA_SUCCESS;
}

API CUresult cuGraphDestroy(CUgraph handle) {
    ENTER(cuGraphDestroy, NEED_INIT);
    struct graph *g = object_find(OBJECT_GRAPH, handle);
    REQUIRE(g && !g->is_child);
    graph_destroy(g);
    return CUDA_SUCCESS;
}

API CUresult cuGraphClone(CUgraph *clone, CUgraph handle) {
    ENTER(cuGraphClone, NEED_INIT);
    struct graph *g = object_find(OBJECT_GRAPH, handle);
    REQUIRE(clone && g);
    if (graph_has_memory(g)) return CUDA_ERROR_NOT_SUPPORTED;
    *clone = (CUgraph)copy(g);
    return CUDA_SUCCESS;
}

/* ---- adding nodes ------------------------------------------------------------------------------ */

struct place {
    CUgraphNode *out;
    struct graph *graph;
    const CUgraphNode *deps;
    size_t count;
};

static CUresult check(const struct place *p) {
    REQUIRE(p->out && p->graph && (!p->count || p->deps));
    for (size_t i = 0; i < p->count; i++) {
        struct node *n = object_find(OBJECT_NODE, p->deps[i]);
        REQUIRE(n && n->graph == p->graph);
    }
    return CUDA_SUCCESS;
}

static CUresult place(const struct place *p, struct node *n) {
    node_depends(n, p->deps, p->count);
    *p->out = (CUgraphNode)n;
    return CUDA_SUCCESS;
}

static CUresult add_plain(const struct place *p, int type) {
    CUresult bad = check(p);
    return bad ? bad : place(p, graph_add(p->graph, type));
}

static CUresult add_alloc(const struct place *p, CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    CUresult bad = check(p);
    if (bad) return bad;
    REQUIRE(params && params->bytesize && params->poolProps.allocType == CU_MEM_ALLOCATION_TYPE_PINNED);
    REQUIRE(params->poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE && device_valid(params->poolProps.location.id));
    struct node *n = graph_add_alloc(p->graph, params->bytesize, params->poolProps.location.id);
    if (!n) return CUDA_ERROR_OUT_OF_MEMORY;
    params->dptr = n->ptr;
    return place(p, n);
}

static CUresult add_free(const struct place *p, CUdeviceptr ptr) {
    CUresult bad = check(p);
    if (bad) return bad;
    struct node *n;
    bad = graph_add_free(p->graph, ptr, &n);
    return bad ? bad : place(p, n);
}

static CUresult add_child(const struct place *p, CUgraph handle) {
    CUresult bad = check(p);
    if (bad) return bad;
    struct graph *child = object_find(OBJECT_GRAPH, handle);
    REQUIRE(child && child != p->graph);
    if (graph_has_memory(child)) return CUDA_ERROR_NOT_SUPPORTED;
    struct node *n = graph_add(p->graph, CU_GRAPH_NODE_TYPE_GRAPH);
    n->child = copy(child);
    n->child->is_child = true;
    return place(p, n);
}

static CUresult add_any(const struct place *p, CUgraphNodeParams *params) {
    REQUIRE(params);
    switch (params->type) {
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: return add_alloc(p, &params->u.alloc);
    case CU_GRAPH_NODE_TYPE_MEM_FREE: return add_free(p, params->u.free.dptr);
    case CU_GRAPH_NODE_TYPE_GRAPH: return add_child(p, params->u.graph.graph);
    default: return add_plain(p, params->type);
    }
}

#define PLACE &(struct place){node, object_find(OBJECT_GRAPH, graph), deps, count}
#define ADD(name, call, ...)                                                                       \
    API CUresult name(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t count __VA_OPT__(, ) __VA_ARGS__) { \
        ENTER(name, NEED_INIT);                                                                    \
        return call;                                                                               \
    }
ADD(cuGraphAddEmptyNode, add_plain(PLACE, CU_GRAPH_NODE_TYPE_EMPTY))
ADD(cuGraphAddKernelNode, params ? add_plain(PLACE, CU_GRAPH_NODE_TYPE_KERNEL) : CUDA_ERROR_INVALID_VALUE, const void *params)
ADD(cuGraphAddKernelNode_v2, params ? add_plain(PLACE, CU_GRAPH_NODE_TYPE_KERNEL) : CUDA_ERROR_INVALID_VALUE, const void *params)
ADD(cuGraphAddMemAllocNode, add_alloc(PLACE, params), CUDA_MEM_ALLOC_NODE_PARAMS *params)
ADD(cuGraphAddMemFreeNode, add_free(PLACE, ptr), CUdeviceptr ptr)
ADD(cuGraphAddChildGraphNode, add_child(PLACE, child), CUgraph child)
ADD(cuGraphAddNode, add_any(PLACE, params), CUgraphNodeParams *params)

API CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, const void *edges, size_t count, CUgraphNodeParams *params) {
    ENTER(cuGraphAddNode_v2, NEED_INIT);
    (void)edges;
    return add_any(PLACE, params);
}

/* ---- reading ----------------------------------------------------------------------------------- */

API CUresult cuGraphDestroyNode(CUgraphNode handle) {
    ENTER(cuGraphDestroyNode, NEED_INIT);
    struct node *n = object_find(OBJECT_NODE, handle);
    REQUIRE(n);
    struct graph *g = n->graph;
    if (n->memory || n->type == CU_GRAPH_NODE_TYPE_MEM_FREE) return CUDA_ERROR_NOT_SUPPORTED;
    size_t i = 0;
    while (g->nodes[i] != n) i++;
    memmove(&g->nodes[i], &g->nodes[i + 1], (--g->count - i) * sizeof *g->nodes);
    node_end(n);
    return CUDA_SUCCESS;
}

/* With no room given, says how many there are; otherwise fills the room and says how many it filled. */
static CUresult list(CUgraph handle, CUgraphNode *nodes, size_t *count, bool roots_only) {
    struct graph *g = object_find(OBJECT_GRAPH, handle);
    REQUIRE(g && count);
    size_t found = 0;
    for (size_t i = 0; i < g->count; i++) {
        if (roots_only && g->nodes[i]->dep_count) continue;
        if (nodes && found < *count) nodes[found] = (CUgraphNode)g->nodes[i];
        found++;
    }
    if (nodes)
        for (size_t i = found; i < *count; i++) nodes[i] = NULL;
    if (!nodes || found < *count) *count = found;
    return CUDA_SUCCESS;
}

API CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    ENTER(cuGraphGetNodes, NEED_INIT);
    return list(graph, nodes, count, false);
}

API CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    ENTER(cuGraphGetRootNodes, NEED_INIT);
    return list(graph, nodes, count, true);
}

API CUresult cuGraphNodeGetType(CUgraphNode handle, int *type) {
    ENTER(cuGraphNodeGetType, NEED_INIT);
    struct node *n = object_find(OBJECT_NODE, handle);
    REQUIRE(n && type);
    *type = n->type;
    return CUDA_SUCCESS;
}

API CUresult cuGraphMemAllocNodeGetParams(CUgraphNode handle, CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    ENTER(cuGraphMemAllocNodeGetParams, NEED_INIT);
    struct node *n = object_find(OBJECT_NODE, handle);
    REQUIRE(n && params && n->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    memset(params, 0, sizeof *params);
    params->poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    params->poolProps.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_DEVICE, n->memory->device};
    params->bytesize = n->memory->size;
    params->dptr = n->ptr;
    return CUDA_SUCCESS;
}

API CUresult cuGraphMemFreeNodeGetParams(CUgraphNode handle, CUdeviceptr *ptr) {
    ENTER(cuGraphMemFreeNodeGetParams, NEED_INIT);
    struct node *n = object_find(OBJECT_NODE, handle);
    REQUIRE(n && ptr && n->type == CU_GRAPH_NODE_TYPE_MEM_FREE);
    *ptr = n->ptr;
    return CUDA_SUCCESS;
}

API CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode handle, CUgraph *graph) {
    ENTER(cuGraphChildGraphNodeGetGraph, NEED_INIT);
    struct node *n = object_find(OBJECT_NODE, handle);
    REQUIRE(n && graph && n->child);
    *graph = (CUgraph)n->child;
    return CUDA_SUCCESS;
}
