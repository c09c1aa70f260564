/* Modules and libraries: each takes CUWARDEN_SIM_MODULE bytes of its device, and knows any name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

struct named {
    struct object object;
    struct named *next;
    CUdeviceptr global;
    char name[];
};

struct module {
    struct object object;
    int device;
    struct named *names;
};

enum { GLOBAL_SIZE = 256 };

static CUresult load(struct module **out, enum object_kind kind) {
    struct context *ctx = context_current();
    FORBIDDEN_IN_CAPTURE();
    if (!take(ctx->device, BOOK_MODULE, sim_config()->module, 0)) return CUDA_ERROR_OUT_OF_MEMORY;
    /* A library belongs to the process, not to a context. */
    struct module *m = object_new(kind, sizeof *m, kind == OBJECT_MODULE ? ctx : NULL);
    m->device = ctx->device;
    *out = m;
    return CUDA_SUCCESS;
}

void module_end(struct object *o) {
    struct module *m = (struct module *)o;
    for (struct named *n = m->names, *next; n; n = next) {
        next = n->next;
        struct block *b = n->global ? block_at(n->global) : NULL;
        if (b && b->kind == BLOCK_GLOBAL) block_free(b);
        object_free(n);
    }
    give(m->device, BOOK_MODULE, sim_config()->module, 0);
    object_free(m);
}

static struct named *name_of(struct module *m, const char *name) {
    for (struct named *n = m->names; n; n = n->next)
        if (!strcmp(n->name, name)) return n;
    struct named *n = object_new(OBJECT_FUNCTION, sizeof *n + strlen(name) + 1, NULL);
    strcpy(n->name, name);
    n->next = m->names;
    return m->names = n;
}

static bool readable(const char *file) {
    FILE *f = fopen(file, "re");
    if (f) fclose(f);
    return f;
}

#define LOAD(name, args, good)                          \
    API CUresult name args {                            \
        ENTER(name, NEED_CONTEXT);                      \
        REQUIRE(module && good);                        \
        struct module *m;                               \
        CUresult result = load(&m, OBJECT_MODULE);      \
        if (!result) *module = (CUmodule)m;             \
        return result;                                  \
    }
LOAD(cuModuleLoadData, (CUmodule *module, const void *image), image)
LOAD(cuModuleLoadFatBinary, (CUmodule *module, const void *image), image)
LOAD(cuModuleLoadDataEx, (CUmodule *module, const void *image, unsigned int count, int *options, void **values),
     image && (!count || (options && values)))

API CUresult cuModuleLoad(CUmodule *module, const char *file) {
    ENTER(cuModuleLoad, NEED_CONTEXT);
    REQUIRE(module && file);
    if (!readable(file)) return CUDA_ERROR_FILE_NOT_FOUND;
    struct module *m;
    CUresult result = load(&m, OBJECT_MODULE);
    if (!result) *module = (CUmodule)m;
    return result;
}

API CUresult cuModuleUnload(CUmodule handle) {
    ENTER(cuModuleUnload, NEED_CONTEXT);
    struct module *m = object_find(OBJECT_MODULE, handle);
    if (!m) return CUDA_ERROR_INVALID_HANDLE;
    FORBIDDEN_IN_CAPTURE();
    module_end(&m->object);
    return CUDA_SUCCESS;
}

API CUresult cuModuleGetFunction(CUfunction *function, CUmodule handle, const char *name) {
    ENTER(cuModuleGetFunction, NEED_CONTEXT);
    struct module *m = object_find(OBJECT_MODULE, handle);
    REQUIRE(function && name && *name);
    if (!m) return CUDA_ERROR_INVALID_HANDLE;
    *function = (CUfunction)name_of(m, name);
    return CUDA_SUCCESS;
}

/* Globals lie inside the module's memory, which is charged already. */
static CUresult global(CUdeviceptr *ptr, size_t *bytes, struct module *m, const char *name, bool below_4g) {
    REQUIRE(name && *name && (ptr || bytes));
    if (!m) return CUDA_ERROR_INVALID_HANDLE;
    struct named *n = name_of(m, name);
    if (!n->global) {
        struct block *b = block_new(BLOCK_GLOBAL, GLOBAL_SIZE, 256, below_4g);
        if (!b) return CUDA_ERROR_OUT_OF_MEMORY;
        b->device = m->device;
        n->global = b->addr;
    }
    if (ptr) *ptr = n->global;
    if (bytes) *bytes = GLOBAL_SIZE;
    return CUDA_SUCCESS;
}

API CUresult cuModuleGetGlobal_v2(CUdeviceptr *ptr, size_t *bytes, CUmodule handle, const char *name) {
    ENTER(cuModuleGetGlobal_v2, NEED_CONTEXT);
    return global(ptr, bytes, object_find(OBJECT_MODULE, handle), name, false);
}

API CUresult cuModuleGetGlobal(CUdeviceptr_v1 *ptr, unsigned int *bytes, CUmodule handle, const char *name) {
    ENTER(cuModuleGetGlobal, NEED_CONTEXT);
    CUdeviceptr wide;
    CUresult result = global(&wide, NULL, object_find(OBJECT_MODULE, handle), name, true);
    if (result) return result;
    if (ptr) *ptr = (CUdeviceptr_v1)wide;
    if (bytes) *bytes = GLOBAL_SIZE;
    return CUDA_SUCCESS;
}

API CUresult cuModuleGetLoadingMode(int *mode) {
    ENTER(cuModuleGetLoadingMode, NEED_INIT);
    REQUIRE(mode);
    *mode = 1; /* eager: what a module takes, it takes when it is loaded */
    return CUDA_SUCCESS;
}

/* ---- libraries ------------------------------------------------------------------------------------ */

#define LIBRARY_ARGS(what) CUlibrary *library, what, int *jit, void **jit_values, unsigned int jit_count, int *options, void **values, unsigned int count

API CUresult cuLibraryLoadData(LIBRARY_ARGS(const void *code)) {
    ENTER(cuLibraryLoadData, NEED_CONTEXT);
    REQUIRE(library && code && (!jit_count || (jit && jit_values)) && (!count || (options && values)));
    struct module *m;
    CUresult result = load(&m, OBJECT_LIBRARY);
    if (!result) *library = (CUlibrary)m;
    return result;
}

API CUresult cuLibraryLoadFromFile(LIBRARY_ARGS(const char *file)) {
    ENTER(cuLibraryLoadFromFile, NEED_CONTEXT);
    REQUIRE(library && file && (!jit_count || (jit && jit_values)) && (!count || (options && values)));
    if (!readable(file)) return CUDA_ERROR_FILE_NOT_FOUND;
    struct module *m;
    CUresult result = load(&m, OBJECT_LIBRARY);
    if (!result) *library = (CUlibrary)m;
    return result;
}

API CUresult cuLibraryUnload(CUlibrary handle) {
    ENTER(cuLibraryUnload, NEED_INIT);
    struct module *m = object_find(OBJECT_LIBRARY, handle);
    if (!m) return CUDA_ERROR_INVALID_HANDLE;
    module_end(&m->object);
    return CUDA_SUCCESS;
}

API CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary handle, const char *name) {
    ENTER(cuLibraryGetKernel, NEED_INIT);
    struct module *m = object_find(OBJECT_LIBRARY, handle);
    REQUIRE(kernel && name && *name);
    if (!m) return CUDA_ERROR_INVALID_HANDLE;
    *kernel = (CUkernel)name_of(m, name);
    return CUDA_SUCCESS;
}

API CUresult cuLibraryGetGlobal(CUdeviceptr *ptr, size_t *bytes, CUlibrary handle, const char *name) {
    ENTER(cuLibraryGetGlobal, NEED_CONTEXT);
    return global(ptr, bytes, object_find(OBJECT_LIBRARY, handle), name, false);
}

/* A view of the library, not another load: nothing is charged, and cuModuleUnload refuses it. */
API CUresult cuLibraryGetModule(CUmodule *module, CUlibrary handle) {
    ENTER(cuLibraryGetModule, NEED_CONTEXT);
    struct module *m = object_find(OBJECT_LIBRARY, handle);
    REQUIRE(module);
    if (!m) return CUDA_ERROR_INVALID_HANDLE;
    *module = (CUmodule)m;
    return CUDA_SUCCESS;
}

API CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
    ENTER(cuKernelGetFunction, NEED_CONTEXT);
    REQUIRE(function);
    if (!object_find(OBJECT_FUNCTION, kernel)) return CUDA_ERROR_INVALID_HANDLE;
    *function = (CUfunction)kernel;
    return CUDA_SUCCESS;
}
