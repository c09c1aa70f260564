/* Arrays and mipmapped arrays. Sparse and deferred-mapping ones take no memory of their own. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

enum { MAX_LEVELS = 32 };

struct array {
    struct object object;
    CUDA_ARRAY3D_DESCRIPTOR desc;
    int device;
    size_t charge;
    bool is_level, charged; /* a level goes with its mipmap */
};

struct mipmap {
    struct object object;
    int device;
    size_t charge;
    bool charged;
    unsigned int levels;
    struct array *level[MAX_LEVELS];
};

static size_t element_size(int format) {
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: return 4;
    default: return 0;
    }
}

static CUresult size_of(const CUDA_ARRAY3D_DESCRIPTOR *d, size_t *bytes) {
    size_t element = element_size(d->Format), n;
    REQUIRE(element && d->Width && (d->NumChannels == 1 || d->NumChannels == 2 || d->NumChannels == 4));
    n = element * d->NumChannels;
    if (__builtin_mul_overflow(n, d->Width, &n) || __builtin_mul_overflow(n, d->Height ? d->Height : 1, &n) ||
        __builtin_mul_overflow(n, d->Depth ? d->Depth : 1, &n))
        return CUDA_ERROR_INVALID_VALUE;
    *bytes = n;
    return CUDA_SUCCESS;
}

static bool is_charged(const CUDA_ARRAY3D_DESCRIPTOR *d) { return !(d->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)); }

static CUresult create(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *desc) {
    struct context *ctx = context_current();
    size_t bytes;
    CUresult bad = size_of(desc, &bytes);
    if (bad) return bad;
    FORBIDDEN_IN_CAPTURE();
    if (is_charged(desc) && !take(ctx->device, BOOK_ARRAY, bytes, 1)) return CUDA_ERROR_OUT_OF_MEMORY;
    struct array *a = object_new(OBJECT_ARRAY, sizeof *a, ctx);
    a->desc = *desc;
    a->device = ctx->device;
    a->charge = bytes;
    a->charged = is_charged(desc);
    *out = (CUarray)a;
    return CUDA_SUCCESS;
}

static CUDA_ARRAY3D_DESCRIPTOR wide(const CUDA_ARRAY3D_DESCRIPTOR_v1 *d) {
    return (CUDA_ARRAY3D_DESCRIPTOR){d->Width, d->Height, d->Depth, d->Format, d->NumChannels, d->Flags};
}

API CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *d) {
    ENTER(cuArrayCreate, NEED_CONTEXT);
    REQUIRE(array && d);
    return create(array, &(CUDA_ARRAY3D_DESCRIPTOR){d->Width, d->Height, 0, d->Format, d->NumChannels, 0});
}

API CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *d) {
    ENTER(cuArrayCreate_v2, NEED_CONTEXT);
    REQUIRE(array && d);
    return create(array, &(CUDA_ARRAY3D_DESCRIPTOR){d->Width, d->Height, 0, d->Format, d->NumChannels, 0});
}

API CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *d) {
    ENTER(cuArray3DCreate, NEED_CONTEXT);
    REQUIRE(array && d);
    CUDA_ARRAY3D_DESCRIPTOR w = wide(d);
    return create(array, &w);
}

API CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *d) {
    ENTER(cuArray3DCreate_v2, NEED_CONTEXT);
    REQUIRE(array && d);
    return create(array, d);
}

static void mipmap_end(struct mipmap *m) {
    vmm_array_ended(m);
    for (unsigned int i = 0; i < m->levels; i++) object_free(m->level[i]);
    if (m->charged) give(m->device, BOOK_ARRAY, m->charge, 1);
    object_free(m);
}

void array_end(struct object *o) {
    if (o->kind == OBJECT_MIPMAP) {
        mipmap_end((struct mipmap *)o);
        return;
    }
    struct array *a = (struct array *)o;
    vmm_array_ended(a);
    if (a->charged) give(a->device, BOOK_ARRAY, a->charge, 1);
    object_free(a);
}

API CUresult cuArrayDestroy(CUarray handle) {
    ENTER(cuArrayDestroy, NEED_CONTEXT);
    struct array *a = object_find(OBJECT_ARRAY, handle);
    if (!a) return CUDA_ERROR_INVALID_HANDLE;
    REQUIRE(!a->is_level);
    FORBIDDEN_IN_CAPTURE();
    array_end(&a->object);
    return CUDA_SUCCESS;
}

#define FIND_ARRAY()                                          \
    struct array *a = object_find(OBJECT_ARRAY, handle);      \
    REQUIRE(d);                                               \
    if (!a) return CUDA_ERROR_INVALID_HANDLE;                 \
    const CUDA_ARRAY3D_DESCRIPTOR *f = &a->desc

API CUresult cuArrayGetDescriptor(CUDA_ARRAY_DESCRIPTOR_v1 *d, CUarray handle) {
    ENTER(cuArrayGetDescriptor, NEED_CONTEXT);
    FIND_ARRAY();
    *d = (CUDA_ARRAY_DESCRIPTOR_v1){(unsigned int)f->Width, (unsigned int)f->Height, f->Format, f->NumChannels};
    return CUDA_SUCCESS;
}

API CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *d, CUarray handle) {
    ENTER(cuArrayGetDescriptor_v2, NEED_CONTEXT);
    FIND_ARRAY();
    *d = (CUDA_ARRAY_DESCRIPTOR){f->Width, f->Height, f->Format, f->NumChannels};
    return CUDA_SUCCESS;
}

API CUresult cuArray3DGetDescriptor(CUDA_ARRAY3D_DESCRIPTOR_v1 *d, CUarray handle) {
    ENTER(cuArray3DGetDescriptor, NEED_CONTEXT);
    FIND_ARRAY();
    *d = (CUDA_ARRAY3D_DESCRIPTOR_v1){(unsigned int)f->Width, (unsigned int)f->Height, (unsigned int)f->Depth, f->Format, f->NumChannels, f->Flags};
    return CUDA_SUCCESS;
}

API CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *d, CUarray handle) {
    ENTER(cuArray3DGetDescriptor_v2, NEED_CONTEXT);
    FIND_ARRAY();
    *d = *f;
    return CUDA_SUCCESS;
}

API CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *d, CUarray handle, CUdevice device) {
    ENTER(cuArrayGetMemoryRequirements, NEED_CONTEXT);
    FIND_ARRAY();
    (void)device;
    REQUIRE(f->Flags & CUDA_ARRAY3D_DEFERRED_MAPPING);
    *d = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = align_up(a->charge, VMM_GRANULARITY), .alignment = VMM_GRANULARITY};
    return CUDA_SUCCESS;
}

/* ---- mipmapped arrays ------------------------------------------------------------------------------ */

static size_t halved(size_t n) { return n > 1 ? n / 2 : n; }

struct mipmap_plan {
    CUDA_ARRAY3D_DESCRIPTOR level[MAX_LEVELS];
    size_t size[MAX_LEVELS], total;
};

static CUresult plan(const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int levels, struct mipmap_plan *p) {
    REQUIRE(levels && levels <= MAX_LEVELS);
    CUDA_ARRAY3D_DESCRIPTOR d = *desc;
    p->total = 0;
    for (unsigned int i = 0; i < levels; i++) {
        CUresult bad = size_of(&d, &p->size[i]);
        if (bad) return bad;
        p->level[i] = d;
        p->total += p->size[i];
        d.Width = halved(d.Width);
        d.Height = halved(d.Height);
        if (!(d.Flags & CUDA_ARRAY3D_LAYERED)) d.Depth = halved(d.Depth);
    }
    return CUDA_SUCCESS;
}

static CUresult create_mipmap(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int levels, bool charged) {
    struct context *ctx = context_current();
    struct mipmap_plan p;
    CUresult bad = plan(desc, levels, &p);
    if (bad) return bad;
    if (charged && !take(ctx->device, BOOK_ARRAY, p.total, 1)) return CUDA_ERROR_OUT_OF_MEMORY;
    struct mipmap *m = object_new(OBJECT_MIPMAP, sizeof *m, ctx);
    m->device = ctx->device;
    m->charge = p.total;
    m->charged = charged;
    m->levels = levels;
    for (unsigned int i = 0; i < levels; i++) {
        struct array *a = object_new(OBJECT_ARRAY, sizeof *a, NULL);
        a->desc = p.level[i];
        a->device = ctx->device;
        a->charge = p.size[i];
        a->is_level = true;
        m->level[i] = a;
    }
    *out = (CUmipmappedArray)m;
    return CUDA_SUCCESS;
}

API CUresult cuMipmappedArrayCreate(CUmipmappedArray *mipmap, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int levels) {
    ENTER(cuMipmappedArrayCreate, NEED_CONTEXT);
    REQUIRE(mipmap && desc);
    FORBIDDEN_IN_CAPTURE();
    return create_mipmap(mipmap, desc, levels, is_charged(desc));
}

API CUresult cuMipmappedArrayGetLevel(CUarray *array, CUmipmappedArray handle, unsigned int level) {
    ENTER(cuMipmappedArrayGetLevel, NEED_CONTEXT);
    struct mipmap *m = object_find(OBJECT_MIPMAP, handle);
    REQUIRE(array);
    if (!m) return CUDA_ERROR_INVALID_HANDLE;
    REQUIRE(level < m->levels);
    *array = (CUarray)m->level[level];
    return CUDA_SUCCESS;
}

API CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *need, CUmipmappedArray handle, CUdevice device) {
    ENTER(cuMipmappedArrayGetMemoryRequirements, NEED_CONTEXT);
    struct mipmap *m = object_find(OBJECT_MIPMAP, handle);
    (void)device;
    REQUIRE(need);
    if (!m) return CUDA_ERROR_INVALID_HANDLE;
    REQUIRE(m->level[0]->desc.Flags & CUDA_ARRAY3D_DEFERRED_MAPPING);
    *need = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = align_up(m->charge, VMM_GRANULARITY), .alignment = VMM_GRANULARITY};
    return CUDA_SUCCESS;
}

API CUresult cuMipmappedArrayDestroy(CUmipmappedArray handle) {
    ENTER(cuMipmappedArrayDestroy, NEED_CONTEXT);
    struct mipmap *m = object_find(OBJECT_MIPMAP, handle);
    if (!m) return CUDA_ERROR_INVALID_HANDLE;
    FORBIDDEN_IN_CAPTURE();
    mipmap_end(m);
    return CUDA_SUCCESS;
}

/* The memory is that of the external object. */
CUresult array_of_external(CUmipmappedArray *mipmap, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int levels) {
    return create_mipmap(mipmap, desc, levels, false);
}
