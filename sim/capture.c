/* Stream capture: what may be done beside it, and what becomes a graph node. */
#include <stdlib.h>

#include "graph.h"
#include "stream.h"

static struct capture *captures;
static unsigned long long next_id = 1;
static __thread int thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

bool capture_active(const struct capture *c) { return c && !c->invalidated; }
void capture_invalidate(struct capture *c) { c->invalidated = true; }

/* A thread in relaxed mode may do as it likes. Otherwise it is bound by its own captures, and in
 * global mode also by those global ones that other threads began. */
CUresult capture_forbids(void) {
    if (!captures || thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
    bool forbidden = false;
    for (struct capture *c = captures; c; c = c->next) {
        bool mine = pthread_equal(c->thread, pthread_self());
        if (c->mode == CU_STREAM_CAPTURE_MODE_RELAXED) continue;
        if (!mine && (thread_mode != CU_STREAM_CAPTURE_MODE_GLOBAL || c->mode != CU_STREAM_CAPTURE_MODE_GLOBAL)) continue;
        c->invalidated = true;
        forbidden = true;
    }
    return forbidden ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

/* Work on the legacy stream would wait for every blocking stream, the capturing ones too. */
CUresult capture_forbids_legacy(const struct stream *s) {
    if (!s->legacy) return CUDA_SUCCESS;
    bool forbidden = false;
    for (struct capture *c = captures; c; c = c->next) {
        if (c->origin->flags & 1 || c->origin->owner != s->owner) continue;
        c->invalidated = true;
        forbidden = true;
    }
    return forbidden ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}

static void detach(struct object *o, void *capture) {
    if (o->kind == OBJECT_STREAM && ((struct stream *)o)->capture == capture) ((struct stream *)o)->capture = NULL;
    if (o->kind == OBJECT_EVENT && ((struct event *)o)->capture == capture) ((struct event *)o)->capture = NULL;
}

void capture_end(struct capture *c) {
    struct capture **at = &captures;
    while (*at != c) at = &(*at)->next;
    *at = c->next;
    objects_each(detach, c);
    if (c->graph) graph_destroy(c->graph);
    free(c);
}

static void add(struct capture *c, struct node *n) {
    if (c->last) node_depends(n, &c->last, 1);
    c->last = (CUgraphNode)n;
}

void capture_note_node(struct capture *c, int type) {
    if (capture_active(c)) add(c, graph_add(c->graph, type));
}

CUresult capture_alloc(struct capture *c, CUdeviceptr *ptr, size_t bytes, int device) {
    if (!capture_active(c)) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    struct node *n = graph_add_alloc(c->graph, bytes, device);
    if (!n) return CUDA_ERROR_OUT_OF_MEMORY;
    add(c, n);
    *ptr = n->ptr;
    return CUDA_SUCCESS;
}

CUresult capture_free(struct capture *c, CUdeviceptr ptr) {
    if (!capture_active(c)) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    struct node *n;
    CUresult result = graph_add_free(c->graph, ptr, &n);
    if (!result) add(c, n);
    return result;
}

static CUresult begin(CUstream handle, int mode, bool per_thread) {
    REQUIRE(mode >= 0 && mode <= 2);
    CUresult why;
    struct stream *s = stream_resolve(handle, per_thread, &why);
    if (!s) return why;
    if (s->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (s->capture) return CUDA_ERROR_ILLEGAL_STATE;
    struct capture *c = calloc(1, sizeof *c);
    if (!c) return CUDA_ERROR_OUT_OF_MEMORY;
    *c = (struct capture){.graph = graph_new(), .origin = s, .thread = pthread_self(), .mode = mode, .id = next_id++, .next = captures};
    captures = s->capture = c;
    return CUDA_SUCCESS;
}

API CUresult cuStreamBeginCapture(CUstream stream) {
    ENTER(cuStreamBeginCapture, NEED_CONTEXT);
    return begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL, false);
}

API CUresult cuStreamBeginCapture_ptsz(CUstream stream) {
    ENTER(cuStreamBeginCapture_ptsz, NEED_CONTEXT);
    return begin(stream, CU_STREAM_CAPTURE_MODE_GLOBAL, true);
}

API CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
    ENTER(cuStreamBeginCapture_v2, NEED_CONTEXT);
    return begin(stream, mode, false);
}

API CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode) {
    ENTER(cuStreamBeginCapture_v2_ptsz, NEED_CONTEXT);
    return begin(stream, mode, true);
}

static CUresult end(CUstream handle, CUgraph *graph, bool per_thread) {
    REQUIRE(graph);
    CUresult why;
    struct stream *s = stream_resolve(handle, per_thread, &why);
    if (!s) return why;
    struct capture *c = s->capture;
    if (!c) return CUDA_ERROR_ILLEGAL_STATE;
    if (c->origin != s) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (c->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(c->thread, pthread_self()))
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    bool good = !c->invalidated;
    if (good) {
        *graph = (CUgraph)c->graph;
        c->graph = NULL;
    } else {
        *graph = NULL;
    }
    capture_end(c);
    return good ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
}

API CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    ENTER(cuStreamEndCapture, NEED_CONTEXT);
    return end(stream, graph, false);
}

API CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) {
    ENTER(cuStreamEndCapture_ptsz, NEED_CONTEXT);
    return end(stream, graph, true);
}

static int status_of(const struct stream *s) {
    if (!s->capture) return CU_STREAM_CAPTURE_STATUS_NONE;
    return s->capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

struct answer {
    int *status;
    uint64_t *id;
    CUgraph *graph;
    const CUgraphNode **dependencies;
    const void **edges;
    size_t *count;
};

static CUresult info(CUstream handle, bool per_thread, struct answer to) {
    REQUIRE(to.status);
    CUresult why;
    struct stream *s = stream_resolve(handle, per_thread, &why);
    if (!s) return why;
    if ((why = capture_forbids_legacy(s))) return why;
    *to.status = status_of(s);
    if (*to.status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
    if (to.id) *to.id = s->capture->id;
    if (to.graph) *to.graph = (CUgraph)s->capture->graph;
    if (to.dependencies) *to.dependencies = &s->capture->last;
    if (to.edges) *to.edges = NULL;
    if (to.count) *to.count = s->capture->last != NULL;
    return CUDA_SUCCESS;
}

#define CAPTURE_INFO(name, per_thread, args, ...)            \
    API CUresult name args {                                 \
        ENTER(name, NEED_CONTEXT);                           \
        return info(stream, per_thread, (struct answer){__VA_ARGS__}); \
    }
#define INFO_1 (CUstream stream, int *status, uint64_t *id)
#define INFO_2 (CUstream stream, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **dependencies, size_t *count)
#define INFO_3 (CUstream stream, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **dependencies, const void **edges, size_t *count)
CAPTURE_INFO(cuStreamIsCapturing, false, (CUstream stream, int *status), .status = status)
CAPTURE_INFO(cuStreamIsCapturing_ptsz, true, (CUstream stream, int *status), .status = status)
CAPTURE_INFO(cuStreamGetCaptureInfo, false, INFO_1, .status = status, .id = id)
CAPTURE_INFO(cuStreamGetCaptureInfo_ptsz, true, INFO_1, .status = status, .id = id)
CAPTURE_INFO(cuStreamGetCaptureInfo_v2, false, INFO_2, .status = status, .id = id, .graph = graph, .dependencies = dependencies, .count = count)
CAPTURE_INFO(cuStreamGetCaptureInfo_v2_ptsz, true, INFO_2, .status = status, .id = id, .graph = graph, .dependencies = dependencies, .count = count)
CAPTURE_INFO(cuStreamGetCaptureInfo_v3, false, INFO_3, .status = status, .id = id, .graph = graph, .dependencies = dependencies, .edges = edges, .count = count)
CAPTURE_INFO(cuStreamGetCaptureInfo_v3_ptsz, true, INFO_3, .status = status, .id = id, .graph = graph, .dependencies = dependencies, .edges = edges, .count = count)

API CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
    ENTER(cuThreadExchangeStreamCaptureMode, NEED_INIT);
    REQUIRE(mode && *mode >= 0 && *mode <= 2);
    int before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
