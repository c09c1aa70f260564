/* Executable graphs. Each device has one store of graph memory: it grows at launch or upload to what
 * the graph needs at its widest, keeps that through frees, and shrinks only when it is trimmed. */
#include <stdlib.h>

#include "graph.h"

static struct store {
    size_t used, used_high, reserved, reserved_high;
} stores[SIM_MAX_DEVICES];

struct step {
    struct graph_memory *memory; /* taken, or NULL: then ptr is freed */
    CUdeviceptr ptr;
};

struct exec {
    struct object object;
    struct graph *graph; /* where its memory allows one executable only */
    unsigned long long graph_id, flags;
    struct step *steps;
    size_t count;
};

static size_t max(size_t a, size_t b) { return a > b ? a : b; }

static bool grow(int device, size_t need, int live) {
    struct store *s = &stores[device];
    size_t wanted = max(s->reserved, align_up(need, VMM_GRANULARITY));
    if (!take(device, BOOK_GRAPH, wanted - s->reserved, live)) return false;
    s->reserved = wanted;
    s->reserved_high = max(s->reserved_high, wanted);
    return true;
}

static void end_memory(struct graph_memory *m) {
    m->live = false;
    block_at(m->addr)->live = false;
    stores[m->device].used -= m->size;
    give(m->device, BOOK_GRAPH, 0, 1);
    if (!m->refs) {
        block_free(block_at(m->addr));
        free(m);
    }
}

CUresult graph_memory_free(struct block *b) {
    struct graph_memory *m = b->owner;
    REQUIRE(m->live);
    end_memory(m);
    return CUDA_SUCCESS;
}

static void flatten(struct exec *e, const struct graph *g) {
    for (size_t i = 0; i < g->count; i++) {
        const struct node *n = g->nodes[i];
        if (n->child) flatten(e, n->child);
        if (n->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC && n->type != CU_GRAPH_NODE_TYPE_MEM_FREE) continue;
        e->steps = realloc(e->steps, (e->count + 1) * sizeof *e->steps);
        if (!e->steps) abort();
        e->steps[e->count++] = (struct step){n->memory, n->ptr};
        if (n->memory) n->memory->refs++;
    }
}

static struct graph_memory *freed_by(const struct step *s) {
    struct block *b = block_at(s->ptr);
    return b && b->kind == BLOCK_GRAPH ? b->owner : NULL;
}

/* The most that each device must hold while the graph runs, beside what is held already. */
static void widest(const struct exec *e, size_t need[SIM_MAX_DEVICES]) {
    size_t now[SIM_MAX_DEVICES];
    for (int d = 0; d < SIM_MAX_DEVICES; d++) now[d] = need[d] = stores[d].used;
    for (size_t i = 0; i < e->count; i++) {
        struct graph_memory *m = e->steps[i].memory ? e->steps[i].memory : freed_by(&e->steps[i]);
        if (!m) continue;
        if (e->steps[i].memory && m->live) continue; /* from the last launch, and counted already */
        if (e->steps[i].memory)
            now[m->device] += m->size;
        else
            now[m->device] -= m->size <= now[m->device] ? m->size : now[m->device];
        need[m->device] = max(need[m->device], now[m->device]);
    }
}

static CUresult reserve(const struct exec *e) {
    size_t need[SIM_MAX_DEVICES];
    widest(e, need);
    for (int d = 0; d < device_count(); d++)
        if (need[d] > stores[d].reserved && !grow(d, need[d], 0)) return CUDA_ERROR_OUT_OF_MEMORY;
    return CUDA_SUCCESS;
}

static CUresult run(struct exec *e) {
    for (size_t i = 0; i < e->count; i++) {
        struct step *s = &e->steps[i];
        if (!s->memory || !s->memory->live) continue;
        if (!(e->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH)) return CUDA_ERROR_INVALID_VALUE;
        end_memory(s->memory);
    }
    CUresult result = reserve(e);
    if (result) return result;
    for (size_t i = 0; i < e->count; i++) {
        struct step *s = &e->steps[i];
        if (!s->memory) {
            struct graph_memory *m = freed_by(s);
            if (m && m->live) end_memory(m);
            continue;
        }
        struct store *store = &stores[s->memory->device];
        take(s->memory->device, BOOK_GRAPH, 0, 1);
        s->memory->live = true;
        block_at(s->ptr)->live = true;
        store->used += s->memory->size;
        store->used_high = max(store->used_high, store->used);
    }
    return CUDA_SUCCESS;
}

static void end(struct exec *e) {
    for (size_t i = 0; i < e->count; i++)
        if (e->steps[i].memory) memory_unref(e->steps[i].memory);
    struct graph *g = e->graph ? object_find(OBJECT_GRAPH, e->graph) : NULL;
    if (g && g->id == e->graph_id) g->instances--;
    free(e->steps);
    object_free(e);
}

static CUresult instantiate(CUgraphExec *out, CUgraph handle, unsigned long long flags) {
    struct graph *g = object_find(OBJECT_GRAPH, handle);
    REQUIRE(out && g && !(flags & ~15ULL));
    bool memory = graph_has_memory(g);
    /* Memory nodes have one address each: two executables would share it. */
    if (memory && g->instances) return CUDA_ERROR_NOT_SUPPORTED;
    struct exec *e = object_new(OBJECT_EXEC, sizeof *e, NULL);
    e->flags = flags;
    flatten(e, g);
    if (memory) {
        e->graph = g;
        e->graph_id = g->id;
        g->instances++;
    }
    CUresult result = flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD ? reserve(e) : CUDA_SUCCESS;
    if (result)
        end(e);
    else
        *out = (CUgraphExec)e;
    return result;
}

API CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t size) {
    ENTER(cuGraphInstantiate, NEED_CONTEXT);
    (void)error_node, (void)log, (void)size;
    return instantiate(exec, graph, 0);
}

API CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t size) {
    ENTER(cuGraphInstantiate_v2, NEED_CONTEXT);
    (void)error_node, (void)log, (void)size;
    return instantiate(exec, graph, 0);
}

API CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    ENTER(cuGraphInstantiateWithFlags, NEED_CONTEXT);
    return instantiate(exec, graph, flags);
}

static CUresult with_params(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    REQUIRE(params);
    CUresult result = instantiate(exec, graph, params->flags);
    params->hErrNode_out = NULL;
    params->result_out = result != CUDA_SUCCESS;
    return result;
}

API CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    ENTER(cuGraphInstantiateWithParams, NEED_CONTEXT);
    return with_params(exec, graph, params);
}

API CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params) {
    ENTER(cuGraphInstantiateWithParams_ptsz, NEED_CONTEXT);
    return with_params(exec, graph, params);
}

static CUresult start(CUgraphExec handle, CUstream stream, bool per_thread, bool launch) {
    struct exec *e = object_find(OBJECT_EXEC, handle);
    REQUIRE(e);
    CUresult why;
    struct stream *s = stream_resolve(stream, per_thread, &why);
    if (!s) return why;
    if (stream_capture(s)) {
        if (e->count) return CUDA_ERROR_NOT_SUPPORTED;
        if (launch) capture_note_node(stream_capture(s), CU_GRAPH_NODE_TYPE_GRAPH);
        return CUDA_SUCCESS;
    }
    return launch ? run(e) : reserve(e);
}

API CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    if (atomic_load_explicit(&sim_null, memory_order_relaxed)) return CUDA_SUCCESS;
    ENTER(cuGraphLaunch, NEED_CONTEXT);
    return start(exec, stream, false, true);
}

API CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
    if (atomic_load_explicit(&sim_null, memory_order_relaxed)) return CUDA_SUCCESS;
    ENTER(cuGraphLaunch_ptsz, NEED_CONTEXT);
    return start(exec, stream, true, true);
}

API CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
    ENTER(cuGraphUpload, NEED_CONTEXT);
    return start(exec, stream, false, false);
}

API CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
    ENTER(cuGraphUpload_ptsz, NEED_CONTEXT);
    return start(exec, stream, true, false);
}

API CUresult cuGraphExecDestroy(CUgraphExec handle) {
    ENTER(cuGraphExecDestroy, NEED_INIT);
    struct exec *e = object_find(OBJECT_EXEC, handle);
    REQUIRE(e);
    end(e);
    return CUDA_SUCCESS;
}

API CUresult cuGraphExecGetFlags(CUgraphExec handle, uint64_t *flags) {
    ENTER(cuGraphExecGetFlags, NEED_INIT);
    struct exec *e = object_find(OBJECT_EXEC, handle);
    REQUIRE(e && flags);
    *flags = e->flags;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGraphMemTrim(CUdevice device) {
    ENTER(cuDeviceGraphMemTrim, NEED_INIT);
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    struct store *s = &stores[device];
    size_t keep = align_up(s->used, VMM_GRANULARITY);
    if (keep < s->reserved) {
        give(device, BOOK_GRAPH, s->reserved - keep, 0);
        s->reserved = keep;
    }
    return CUDA_SUCCESS;
}

static size_t *attribute_of(CUdevice device, int attribute) {
    struct store *s = &stores[device];
    switch (attribute) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT: return &s->used;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: return &s->used_high;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: return &s->reserved;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: return &s->reserved_high;
    default: return NULL;
    }
}

API CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int attribute, void *value) {
    ENTER(cuDeviceGetGraphMemAttribute, NEED_INIT);
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    size_t *figure = attribute_of(device, attribute);
    REQUIRE(figure && value);
    *(uint64_t *)value = *figure;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceSetGraphMemAttribute(CUdevice device, int attribute, void *value) {
    ENTER(cuDeviceSetGraphMemAttribute, NEED_INIT);
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    /* The high marks alone can be set, and to zero alone: then they start from what is there now. */
    REQUIRE(value && !*(uint64_t *)value && (attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH || attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH));
    struct store *s = &stores[device];
    if (attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH)
        s->used_high = s->used;
    else
        s->reserved_high = s->reserved;
    return CUDA_SUCCESS;
}
