#include <stdlib.h>

#include "sim.h"

enum { STACK = 64 };
static __thread struct context *stack[STACK];
static __thread int depth;

static struct primary {
    struct context *ctx; /* the handle stays the same from one activation to the next */
    unsigned int retained, flags;
} primaries[SIM_MAX_DEVICES];
static unsigned long long next_id = 1;

struct green {
    struct object object;
    struct context *ctx;
};

static struct context *find(CUcontext handle) { return object_find(OBJECT_CONTEXT, handle); }

struct context *context_current(void) { return depth ? find((CUcontext)stack[depth - 1]) : NULL; }

CUresult context_state(void) {
    if (!depth || !stack[depth - 1]) return CUDA_ERROR_INVALID_CONTEXT;
    struct context *ctx = context_current();
    return ctx && ctx->active ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

void context_push(struct context *ctx) {
    if (depth < STACK) stack[depth++] = ctx;
}

static void set_current(struct context *ctx) {
    if (depth) depth--;
    if (ctx) context_push(ctx);
}

/* What the compute mode says of one more process on the device. */
static CUresult admitted(int device) {
    enum { PROHIBITED = 2, EXCLUSIVE_PROCESS };
    unsigned int mode = sim_config()->compute_mode;
    bool refused = mode == PROHIBITED || (mode == EXCLUSIVE_PROCESS && others_on(device));
    return refused ? CUDA_ERROR_DEVICE_UNAVAILABLE : CUDA_SUCCESS;
}

static struct context *make(int device, unsigned int flags) {
    if (!take(device, BOOK_CONTEXT, sim_config()->context, 0)) return NULL;
    struct context *ctx = object_new(OBJECT_CONTEXT, sizeof *ctx, NULL);
    ctx->device = device;
    ctx->active = true;
    ctx->flags = flags;
    ctx->attached = 1;
    ctx->id = next_id++;
    return ctx;
}

/* Ends all that a context owns, as the driver does: memory, arrays, modules, streams. */
static void empty(struct context *ctx) {
    struct block *b;
    struct object *o;
    while ((b = block_of_context(ctx))) memory_release(b);
    while ((o = object_first_of(ctx))) {
        switch (o->kind) {
        case OBJECT_ARRAY:
        case OBJECT_MIPMAP: array_end(o); break;
        case OBJECT_MODULE: module_end(o); break;
        case OBJECT_STREAM: stream_end(o); break;
        default: object_free(o);
        }
    }
    ctx->legacy = ctx->per_thread = NULL;
    give(ctx->device, BOOK_CONTEXT, sim_config()->context, 0);
    ctx->active = false;
}

static void pop_if_current(struct context *ctx) {
    if (depth && stack[depth - 1] == ctx) depth--;
}

static CUresult create(CUcontext *out, unsigned int flags, CUdevice device, unsigned int api) {
    REQUIRE(out && !(flags & ~0x1ffU));
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    CUresult result = admitted(device);
    if (result) return result;
    struct context *ctx = make(device, flags);
    if (!ctx) return CUDA_ERROR_OUT_OF_MEMORY;
    ctx->api_version = api;
    context_push(ctx);
    *out = (CUcontext)ctx;
    return CUDA_SUCCESS;
}

API CUresult cuCtxCreate(CUcontext *ctx, unsigned int flags, CUdevice device) {
    ENTER(cuCtxCreate, NEED_INIT);
    return create(ctx, flags, device, 3010);
}

API CUresult cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice device) {
    ENTER(cuCtxCreate_v2, NEED_INIT);
    return create(ctx, flags, device, 3020);
}

API CUresult cuCtxCreate_v3(CUcontext *ctx, void *affinity, int count, unsigned int flags, CUdevice device) {
    ENTER(cuCtxCreate_v3, NEED_INIT);
    REQUIRE(count >= 0 && (!count || affinity));
    return create(ctx, flags, device, 3020);
}

API CUresult cuCtxCreate_v4(CUcontext *ctx, void *params, unsigned int flags, CUdevice device) {
    ENTER(cuCtxCreate_v4, NEED_INIT);
    (void)params;
    return create(ctx, flags, device, 3020);
}

static CUresult destroy(CUcontext handle) {
    struct context *ctx = find(handle);
    if (!handle) return CUDA_ERROR_INVALID_VALUE;
    if (!ctx || ctx->primary) return CUDA_ERROR_INVALID_CONTEXT;
    pop_if_current(ctx);
    empty(ctx);
    object_free(ctx);
    return CUDA_SUCCESS;
}

API CUresult cuCtxDestroy(CUcontext ctx) {
    ENTER(cuCtxDestroy, NEED_INIT);
    return destroy(ctx);
}

API CUresult cuCtxDestroy_v2(CUcontext ctx) {
    ENTER(cuCtxDestroy_v2, NEED_INIT);
    return destroy(ctx);
}

API CUresult cuCtxAttach(CUcontext *ctx, unsigned int flags) {
    ENTER(cuCtxAttach, NEED_CONTEXT);
    REQUIRE(ctx && !flags);
    context_current()->attached++;
    *ctx = (CUcontext)context_current();
    return CUDA_SUCCESS;
}

API CUresult cuCtxDetach(CUcontext handle) {
    ENTER(cuCtxDetach, NEED_INIT);
    struct context *ctx = find(handle);
    if (!ctx || ctx->primary) return CUDA_ERROR_INVALID_CONTEXT;
    return --ctx->attached ? CUDA_SUCCESS : destroy(handle);
}

static CUresult push(CUcontext handle) {
    struct context *ctx = find(handle);
    if (!ctx || depth == STACK) return CUDA_ERROR_INVALID_CONTEXT;
    if (!ctx->active) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    context_push(ctx);
    return CUDA_SUCCESS;
}

API CUresult cuCtxPushCurrent(CUcontext ctx) {
    ENTER(cuCtxPushCurrent, NEED_INIT);
    return push(ctx);
}

API CUresult cuCtxPushCurrent_v2(CUcontext ctx) {
    ENTER(cuCtxPushCurrent_v2, NEED_INIT);
    return push(ctx);
}

static CUresult pop(CUcontext *out) {
    if (!depth) return CUDA_ERROR_INVALID_CONTEXT;
    struct context *ctx = stack[--depth];
    if (out) *out = (CUcontext)ctx;
    return CUDA_SUCCESS;
}

API CUresult cuCtxPopCurrent(CUcontext *ctx) {
    ENTER(cuCtxPopCurrent, NEED_INIT);
    return pop(ctx);
}

API CUresult cuCtxPopCurrent_v2(CUcontext *ctx) {
    ENTER(cuCtxPopCurrent_v2, NEED_INIT);
    return pop(ctx);
}

API CUresult cuCtxSetCurrent(CUcontext handle) {
    ENTER(cuCtxSetCurrent, NEED_INIT);
    struct context *ctx = find(handle);
    if (handle && !ctx) return CUDA_ERROR_INVALID_CONTEXT;
    if (ctx && !ctx->active) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    set_current(ctx);
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetCurrent(CUcontext *ctx) {
    if (sim_null && ctx) {
        *ctx = depth ? (CUcontext)stack[depth - 1] : NULL;
        return CUDA_SUCCESS;
    }
    ENTER(cuCtxGetCurrent, NEED_INIT);
    REQUIRE(ctx);
    *ctx = depth ? (CUcontext)stack[depth - 1] : NULL;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetDevice(CUdevice *device) {
    ENTER(cuCtxGetDevice, NEED_CONTEXT);
    REQUIRE(device);
    *device = context_current()->device;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext handle) {
    ENTER(cuCtxGetDevice_v2, NEED_INIT);
    REQUIRE(device);
    struct context *ctx = handle ? find(handle) : context_current();
    if (!ctx || !ctx->active) return CUDA_ERROR_INVALID_CONTEXT;
    *device = ctx->device;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetApiVersion(CUcontext handle, unsigned int *version) {
    ENTER(cuCtxGetApiVersion, NEED_INIT);
    REQUIRE(version);
    struct context *ctx = handle ? find(handle) : context_current();
    if (!ctx) return CUDA_ERROR_INVALID_CONTEXT;
    *version = ctx->api_version;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetFlags(unsigned int *flags) {
    ENTER(cuCtxGetFlags, NEED_CONTEXT);
    REQUIRE(flags);
    *flags = context_current()->flags;
    return CUDA_SUCCESS;
}

API CUresult cuCtxGetId(CUcontext handle, unsigned long long *id) {
    ENTER(cuCtxGetId, NEED_INIT);
    REQUIRE(id);
    struct context *ctx = handle ? find(handle) : context_current();
    if (!ctx || !ctx->active) return CUDA_ERROR_INVALID_CONTEXT;
    *id = ctx->id;
    return CUDA_SUCCESS;
}

API CUresult cuCtxSynchronize(void) {
    ENTER(cuCtxSynchronize, NEED_CONTEXT);
    FORBIDDEN_IN_CAPTURE();
    pools_synchronize(context_current()->device);
    return CUDA_SUCCESS;
}

API CUresult cuCtxSynchronize_v2(CUcontext handle) {
    ENTER(cuCtxSynchronize_v2, NEED_INIT);
    struct context *ctx = handle ? find(handle) : context_current();
    if (!ctx || !ctx->active) return CUDA_ERROR_INVALID_CONTEXT;
    FORBIDDEN_IN_CAPTURE();
    pools_synchronize(ctx->device);
    return CUDA_SUCCESS;
}

/* ---- primary contexts ----------------------------------------------------------------------- */

CUresult primary_retain(CUcontext *out, int device) {
    REQUIRE(out);
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    struct primary *p = &primaries[device];
    if (!p->ctx || !p->ctx->active) {
        CUresult result = admitted(device);
        if (result) return result;
        if (!p->ctx) {
            p->ctx = make(device, p->flags);
            if (!p->ctx) return CUDA_ERROR_OUT_OF_MEMORY;
            p->ctx->primary = true;
            p->ctx->api_version = 3020;
        } else {
            if (!take(device, BOOK_CONTEXT, sim_config()->context, 0)) return CUDA_ERROR_OUT_OF_MEMORY;
            p->ctx->active = true;
            p->ctx->id = next_id++;
        }
        p->ctx->flags = p->flags;
    }
    p->retained++;
    *out = (CUcontext)p->ctx;
    return CUDA_SUCCESS;
}

static CUresult release(CUdevice device) {
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    struct primary *p = &primaries[device];
    if (!p->retained) return CUDA_ERROR_INVALID_CONTEXT;
    if (!--p->retained && p->ctx->active) empty(p->ctx);
    return CUDA_SUCCESS;
}

/* Who retained it still holds it, so the next use makes it anew. */
static CUresult reset(CUdevice device) {
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    struct primary *p = &primaries[device];
    if (p->ctx && p->ctx->active) empty(p->ctx);
    return CUDA_SUCCESS;
}

static CUresult set_flags(CUdevice device, unsigned int flags) {
    REQUIRE(!(flags & ~0x1ffU));
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    primaries[device].flags = flags;
    if (primaries[device].ctx) primaries[device].ctx->flags = flags;
    return CUDA_SUCCESS;
}

API CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice device) {
    ENTER(cuDevicePrimaryCtxRetain, NEED_INIT);
    return primary_retain(ctx, device);
}

API CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
    ENTER(cuDevicePrimaryCtxRelease, NEED_INIT);
    return release(device);
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    ENTER(cuDevicePrimaryCtxRelease_v2, NEED_INIT);
    return release(device);
}

API CUresult cuDevicePrimaryCtxReset(CUdevice device) {
    ENTER(cuDevicePrimaryCtxReset, NEED_INIT);
    return reset(device);
}

API CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
    ENTER(cuDevicePrimaryCtxReset_v2, NEED_INIT);
    return reset(device);
}

API CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned int flags) {
    ENTER(cuDevicePrimaryCtxSetFlags, NEED_INIT);
    return set_flags(device, flags);
}

API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags) {
    ENTER(cuDevicePrimaryCtxSetFlags_v2, NEED_INIT);
    return set_flags(device, flags);
}

API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active) {
    ENTER(cuDevicePrimaryCtxGetState, NEED_INIT);
    REQUIRE(flags && active);
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    *flags = primaries[device].flags;
    *active = primaries[device].ctx && primaries[device].ctx->active;
    return CUDA_SUCCESS;
}

/* ---- green contexts ------------------------------------------------------------------------- */

API CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *resource, int type) {
    ENTER(cuDeviceGetDevResource, NEED_INIT);
    REQUIRE(resource && type == CU_DEV_RESOURCE_TYPE_SM);
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    *resource = (CUdevResource){.type = type, .sm = {.smCount = 132, .minSmPartitionSize = 8, .smCoscheduledAlignment = 8}};
    return CUDA_SUCCESS;
}

API CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *desc, CUdevResource *resources, unsigned int count) {
    ENTER(cuDevResourceGenerateDesc, NEED_INIT);
    REQUIRE(desc && resources && count);
    static const char any_resource;
    *desc = (CUdevResourceDesc)(uintptr_t)&any_resource;
    return CUDA_SUCCESS;
}

/* A green context is a share of the primary context's device: it costs as much as a context. */
API CUresult cuGreenCtxCreate(CUgreenCtx *out, CUdevResourceDesc desc, CUdevice device, unsigned int flags) {
    ENTER(cuGreenCtxCreate, NEED_INIT);
    REQUIRE(out && desc && flags == 1);
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    CUresult result = admitted(device);
    if (result) return result;
    struct context *ctx = make(device, 0);
    if (!ctx) return CUDA_ERROR_OUT_OF_MEMORY;
    ctx->primary = true; /* as with the primary one, cuCtxDestroy is not how it ends */
    struct green *green = object_new(OBJECT_GREEN, sizeof *green, NULL);
    green->ctx = ctx;
    *out = (CUgreenCtx)green;
    return CUDA_SUCCESS;
}

API CUresult cuGreenCtxDestroy(CUgreenCtx handle) {
    ENTER(cuGreenCtxDestroy, NEED_INIT);
    struct green *green = object_find(OBJECT_GREEN, handle);
    if (!green) return CUDA_ERROR_INVALID_HANDLE;
    pop_if_current(green->ctx);
    empty(green->ctx);
    object_free(green->ctx);
    object_free(green);
    return CUDA_SUCCESS;
}

API CUresult cuCtxFromGreenCtx(CUcontext *out, CUgreenCtx handle) {
    ENTER(cuCtxFromGreenCtx, NEED_INIT);
    struct green *green = object_find(OBJECT_GREEN, handle);
    REQUIRE(out);
    if (!green) return CUDA_ERROR_INVALID_HANDLE;
    *out = (CUcontext)green->ctx;
    return CUDA_SUCCESS;
}
