/* Streams, events, launches: there is nothing to wait for, so all of it is already done. */
#include <stdlib.h>

#include "stream.h"

static unsigned long long next_id = 1;

static struct stream *make(struct context *ctx, unsigned int flags, int priority) {
    struct stream *s = object_new(OBJECT_STREAM, sizeof *s, ctx);
    s->owner = ctx;
    s->flags = flags;
    s->priority = priority;
    s->id = next_id++;
    return s;
}

static struct stream *default_stream(struct context *ctx, bool per_thread) {
    if (!per_thread) {
        if (!ctx->legacy) ctx->legacy = make(ctx, 0, 0);
        ctx->legacy->legacy = true;
        return ctx->legacy;
    }
    for (struct stream *s = ctx->per_thread; s; s = s->next)
        if (pthread_equal(s->thread, pthread_self())) return s;
    struct stream *s = make(ctx, 0, 0);
    s->per_thread = true;
    s->thread = pthread_self();
    s->next = ctx->per_thread;
    return ctx->per_thread = s;
}

struct stream *stream_resolve(CUstream handle, bool per_thread, CUresult *why) {
    *why = CUDA_SUCCESS;
    if (!handle || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
        struct context *ctx = context_current();
        *why = ctx && ctx->active ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
        return *why ? NULL : default_stream(ctx, handle == CU_STREAM_PER_THREAD || (!handle && per_thread));
    }
    struct stream *s = object_find(OBJECT_STREAM, handle);
    if (!s) *why = CUDA_ERROR_INVALID_HANDLE;
    return s;
}

struct context *stream_context(const struct stream *s) { return s->owner; }
struct capture *stream_capture(const struct stream *s) { return s->capture; }

void stream_end(struct object *o) {
    struct stream *s = (struct stream *)o;
    struct capture *c = s->capture;
    if (c && c->origin == s) {
        capture_invalidate(c);
        capture_end(c);
    }
    object_free(s);
}

static CUresult create(CUstream *out, unsigned int flags, int priority) {
    REQUIRE(out && !(flags & ~1U));
    *out = (CUstream)make(context_current(), flags, priority);
    return CUDA_SUCCESS;
}

API CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
    ENTER(cuStreamCreate, NEED_CONTEXT);
    return create(stream, flags, 0);
}

API CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority) {
    ENTER(cuStreamCreateWithPriority, NEED_CONTEXT);
    return create(stream, flags, priority);
}

API CUresult cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx green, unsigned int flags, int priority) {
    ENTER(cuGreenCtxStreamCreate, NEED_CONTEXT);
    if (!object_find(OBJECT_GREEN, green)) return CUDA_ERROR_INVALID_HANDLE;
    return create(stream, flags, priority);
}

static CUresult destroy(CUstream handle) {
    struct stream *s = object_find(OBJECT_STREAM, handle);
    if (!s || s->legacy || s->per_thread) return CUDA_ERROR_INVALID_HANDLE;
    stream_end(&s->object);
    return CUDA_SUCCESS;
}

API CUresult cuStreamDestroy(CUstream stream) {
    ENTER(cuStreamDestroy, NEED_CONTEXT);
    return destroy(stream);
}

API CUresult cuStreamDestroy_v2(CUstream stream) {
    ENTER(cuStreamDestroy_v2, NEED_CONTEXT);
    return destroy(stream);
}

static CUresult settle(CUstream handle, bool per_thread, bool wait) {
    CUresult why;
    struct stream *s = stream_resolve(handle, per_thread, &why);
    if (!s) return why;
    if (s->capture) {
        capture_invalidate(s->capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if ((why = capture_forbids_legacy(s))) return why;
    if (wait) pools_synchronize(s->owner->device);
    return CUDA_SUCCESS;
}

#define STREAM_ONLY(name, body)                               \
    API CUresult name(CUstream stream) {                      \
        ENTER(name, NEED_CONTEXT);                            \
        return body(stream, false);                           \
    }                                                         \
    API CUresult name##_ptsz(CUstream stream) {               \
        ENTER(name##_ptsz, NEED_CONTEXT);                     \
        return body(stream, true);                            \
    }

static CUresult synchronize(CUstream stream, bool per_thread) { return settle(stream, per_thread, true); }
static CUresult query(CUstream stream, bool per_thread) { return settle(stream, per_thread, false); }
STREAM_ONLY(cuStreamSynchronize, synchronize)
STREAM_ONLY(cuStreamQuery, query)

/* A function that reads one property of a stream. */
#define STREAM_GET(name, type, value)                                                       \
    static CUresult name##_of(CUstream handle, type *out, bool per_thread) {                \
        CUresult why;                                                                       \
        struct stream *s = stream_resolve(handle, per_thread, &why);                        \
        if (!s) return why;                                                                 \
        REQUIRE(out);                                                                       \
        *out = value;                                                                       \
        return CUDA_SUCCESS;                                                                \
    }                                                                                       \
    API CUresult name(CUstream stream, type *out) {                                         \
        ENTER(name, NEED_CONTEXT);                                                          \
        return name##_of(stream, out, false);                                               \
    }                                                                                       \
    API CUresult name##_ptsz(CUstream stream, type *out) {                                  \
        ENTER(name##_ptsz, NEED_CONTEXT);                                                   \
        return name##_of(stream, out, true);                                                \
    }

STREAM_GET(cuStreamGetCtx, CUcontext, (CUcontext)s->owner)
STREAM_GET(cuStreamGetFlags, unsigned int, s->flags)
STREAM_GET(cuStreamGetPriority, int, s->priority)
STREAM_GET(cuStreamGetId, unsigned long long, s->id)
STREAM_GET(cuStreamGetDevice, CUdevice, s->owner->device)

API CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext *ctx, CUgreenCtx *green) {
    ENTER(cuStreamGetCtx_v2, NEED_CONTEXT);
    CUresult result = cuStreamGetCtx_of(stream, ctx, false);
    if (!result && green) *green = NULL;
    return result;
}

API CUresult cuStreamGetCtx_v2_ptsz(CUstream stream, CUcontext *ctx, CUgreenCtx *green) {
    ENTER(cuStreamGetCtx_v2_ptsz, NEED_CONTEXT);
    CUresult result = cuStreamGetCtx_of(stream, ctx, true);
    if (!result && green) *green = NULL;
    return result;
}

/* ---- events ---------------------------------------------------------------------------------- */

API CUresult cuEventCreate(CUevent *event, unsigned int flags) {
    ENTER(cuEventCreate, NEED_CONTEXT);
    REQUIRE(event && !(flags & ~7U));
    *event = object_new(OBJECT_EVENT, sizeof(struct event), context_current());
    return CUDA_SUCCESS;
}

static CUresult end_event(CUevent handle) {
    struct event *e = object_find(OBJECT_EVENT, handle);
    if (!e) return CUDA_ERROR_INVALID_HANDLE;
    object_free(e);
    return CUDA_SUCCESS;
}

API CUresult cuEventDestroy(CUevent event) {
    ENTER(cuEventDestroy, NEED_CONTEXT);
    return end_event(event);
}

API CUresult cuEventDestroy_v2(CUevent event) {
    ENTER(cuEventDestroy_v2, NEED_CONTEXT);
    return end_event(event);
}

static CUresult record(CUevent handle, CUstream stream, bool per_thread) {
    struct event *e = object_find(OBJECT_EVENT, handle);
    CUresult why;
    struct stream *s = stream_resolve(stream, per_thread, &why);
    if (!e || !s) return e ? why : CUDA_ERROR_INVALID_HANDLE;
    if ((why = capture_forbids_legacy(s))) return why;
    e->capture = s->capture;
    e->recorded = true;
    return CUDA_SUCCESS;
}

API CUresult cuEventRecord(CUevent event, CUstream stream) {
    ENTER(cuEventRecord, NEED_CONTEXT);
    return record(event, stream, false);
}

API CUresult cuEventRecord_ptsz(CUevent event, CUstream stream) {
    ENTER(cuEventRecord_ptsz, NEED_CONTEXT);
    return record(event, stream, true);
}

API CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags) {
    ENTER(cuEventRecordWithFlags, NEED_CONTEXT);
    REQUIRE(!(flags & ~1U));
    return record(event, stream, false);
}

API CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned int flags) {
    ENTER(cuEventRecordWithFlags_ptsz, NEED_CONTEXT);
    REQUIRE(!(flags & ~1U));
    return record(event, stream, true);
}

/* Waiting for an event of a capture makes the stream part of it. */
static CUresult wait_event(CUstream stream, CUevent handle, bool per_thread) {
    struct event *e = object_find(OBJECT_EVENT, handle);
    CUresult why;
    struct stream *s = stream_resolve(stream, per_thread, &why);
    if (!e || !s) return e ? why : CUDA_ERROR_INVALID_HANDLE;
    if (s->capture && !e->capture && e->recorded) {
        capture_invalidate(s->capture);
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    if (e->capture && s->legacy) {
        capture_invalidate(e->capture);
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (e->capture) s->capture = e->capture;
    return CUDA_SUCCESS;
}

API CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
    ENTER(cuStreamWaitEvent, NEED_CONTEXT);
    REQUIRE(!(flags & ~1U));
    return wait_event(stream, event, false);
}

API CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned int flags) {
    ENTER(cuStreamWaitEvent_ptsz, NEED_CONTEXT);
    REQUIRE(!(flags & ~1U));
    return wait_event(stream, event, true);
}

static CUresult event_state(CUevent handle, bool wait) {
    struct event *e = object_find(OBJECT_EVENT, handle);
    if (!e) return CUDA_ERROR_INVALID_HANDLE;
    if (e->capture) {
        capture_invalidate(e->capture);
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    if (!wait) FORBIDDEN_IN_CAPTURE();
    if (wait) pools_synchronize(context_current()->device);
    return CUDA_SUCCESS;
}

API CUresult cuEventQuery(CUevent event) {
    ENTER(cuEventQuery, NEED_CONTEXT);
    return event_state(event, false);
}

API CUresult cuEventSynchronize(CUevent event) {
    ENTER(cuEventSynchronize, NEED_CONTEXT);
    return event_state(event, true);
}

static CUresult elapsed(float *milliseconds, CUevent start, CUevent end) {
    REQUIRE(milliseconds);
    struct event *a = object_find(OBJECT_EVENT, start), *b = object_find(OBJECT_EVENT, end);
    if (!a || !b || !a->recorded || !b->recorded) return CUDA_ERROR_INVALID_HANDLE;
    *milliseconds = 0;
    return CUDA_SUCCESS;
}

API CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end) {
    ENTER(cuEventElapsedTime, NEED_CONTEXT);
    return elapsed(milliseconds, start, end);
}

API CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end) {
    ENTER(cuEventElapsedTime_v2, NEED_CONTEXT);
    return elapsed(milliseconds, start, end);
}

/* ---- launches --------------------------------------------------------------------------------- */

static CUresult launch(CUfunction function, CUstream stream, bool per_thread) {
    CUresult why;
    struct stream *s = stream_resolve(stream, per_thread, &why);
    if (!s) return why;
    if (!function) return CUDA_ERROR_INVALID_HANDLE;
    if ((why = capture_forbids_legacy(s))) return why;
    if (s->capture) capture_note_node(s->capture, CU_GRAPH_NODE_TYPE_KERNEL);
    return CUDA_SUCCESS;
}

#define LAUNCH_ARGS                                                                                         \
    CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, \
        unsigned int bz, unsigned int shared, CUstream stream, void **params, void **extra

API CUresult cuLaunchKernel(LAUNCH_ARGS) {
    if (atomic_load_explicit(&sim_null, memory_order_relaxed)) return CUDA_SUCCESS;
    ENTER(cuLaunchKernel, NEED_CONTEXT);
    REQUIRE(gx && gy && gz && bx && by && bz);
    (void)shared, (void)params, (void)extra;
    return launch(function, stream, false);
}

API CUresult cuLaunchKernel_ptsz(LAUNCH_ARGS) {
    if (atomic_load_explicit(&sim_null, memory_order_relaxed)) return CUDA_SUCCESS;
    ENTER(cuLaunchKernel_ptsz, NEED_CONTEXT);
    REQUIRE(gx && gy && gz && bx && by && bz);
    (void)shared, (void)params, (void)extra;
    return launch(function, stream, true);
}

/* Called at once: everything queued before it is done. In a capture it waits for the graph. */
static CUresult host_function(CUstream stream, void (*function)(void *), void *data, bool per_thread, bool *call) {
    CUresult why;
    struct stream *s = stream_resolve(stream, per_thread, &why);
    REQUIRE(function);
    if (!s) return why;
    (void)data;
    if (s->capture) capture_note_node(s->capture, CU_GRAPH_NODE_TYPE_HOST);
    *call = !s->capture;
    return CUDA_SUCCESS;
}

static CUresult enter_host_function(enum function_id id, CUstream stream, void (*function)(void *), void *data, bool per_thread, bool *call) {
    ENTER_ID(id, NEED_CONTEXT);
    return host_function(stream, function, data, per_thread, call);
}

API CUresult cuLaunchHostFunc(CUstream stream, void (*function)(void *), void *data) {
    bool call = false; /* without the lock: the function may do as it likes */
    CUresult result = enter_host_function(FN_cuLaunchHostFunc, stream, function, data, false, &call);
    if (call) function(data);
    return result;
}

API CUresult cuLaunchHostFunc_ptsz(CUstream stream, void (*function)(void *), void *data) {
    bool call = false;
    CUresult result = enter_host_function(FN_cuLaunchHostFunc_ptsz, stream, function, data, true, &call);
    if (call) function(data);
    return result;
}
