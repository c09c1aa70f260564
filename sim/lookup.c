/* Which function an application gets when it asks by name, version and flags; the private tables. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

/* generated from driver-functions.tsv, sorted by symbol */
extern const struct lookup_row {
    const char *symbol;
    int version, flags;
    void *address;
} lookup_rows[];
extern const int lookup_row_count;

/* As measured on libcuda 535: where a symbol has a per-thread-stream form, flag 2 gives only that
 * form; a version below the first one is "not sufficient"; a symbol newer than the driver is
 * unknown to it, whatever version is asked for; a version above the driver's is not an error. */
static void *find(const char *symbol, int version, uint64_t flags, int *status) {
    const struct sim_config *config = sim_config();
    int driver = config ? config->driver : 0;
    const struct lookup_row *best = NULL;
    bool known = false, has_per_thread = false;
    for (int i = 0; i < lookup_row_count; i++) {
        const struct lookup_row *r = &lookup_rows[i];
        if (strcmp(r->symbol, symbol) || r->version > driver) continue;
        known = true;
        if (r->flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) has_per_thread = true;
    }
    int wanted = has_per_thread && (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)
                     ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : 0;
    for (int i = 0; i < lookup_row_count; i++) {
        const struct lookup_row *r = &lookup_rows[i];
        if (strcmp(r->symbol, symbol) || r->version > driver || r->version > version || r->flags != wanted) continue;
        if (!best || r->version > best->version) best = r;
    }
    *status = best ? CU_GET_PROC_ADDRESS_SUCCESS : known ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                                         : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return best ? best->address : NULL;
}

API CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, uint64_t flags) {
    ENTER(cuGetProcAddress, NEED_NOTHING);
    REQUIRE(symbol && pfn && flags <= 2);
    int status;
    void *address = find(symbol, version, flags, &status);
    *pfn = address;
    return address ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

API CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags, int *status) {
    ENTER(cuGetProcAddress_v2, NEED_NOTHING);
    REQUIRE(symbol && pfn && flags <= 2);
    int found;
    *pfn = find(symbol, version, flags, &found);
    if (status) *status = found;
    return CUDA_SUCCESS;
}

/* ---- private tables --------------------------------------------------------------------------- */

static CUresult harmless(void) { return CUDA_SUCCESS; }

static CUresult retain_primary(CUcontext *ctx, CUdevice device) {
    ENTER(slot2, NEED_INIT);
    return primary_retain(ctx, device);
}

#define FOUR(f) f, f, f, f

/* The runtime makes its context through slot 2 of this one. Constant but for the relocations, so
 * that it lies, like the real one, in a page that is read-only once the library is loaded. It says
 * that it has 11 slots, as libcuda 535's does; runtime 13.5 calls slot 12 all the same, so there are
 * more behind those. */
static void *const primary_table[32] = {
    (void *)88, harmless, retain_primary, harmless, FOUR(harmless), FOUR(harmless), FOUR(harmless),
    FOUR(harmless), FOUR(harmless), FOUR(harmless), FOUR(harmless),
};
/* The runtime goes no further than its contexts without the two buffers of its callback table. From
 * the heap, because runtime 13.5 reads them at exit, when it may have closed this library. */
static CUresult callback_buffer(void **buffer, size_t *size) {
    enum { SIZE = 1024 };
    static void *none;
    if (!none) none = calloc(1, SIZE);
    if (!none) return CUDA_ERROR_OUT_OF_MEMORY;
    *buffer = none;
    *size = SIZE;
    return CUDA_SUCCESS;
}
static void *const callback_table[8] = {
    (void *)(uintptr_t)sizeof callback_table, harmless, callback_buffer, harmless, harmless, harmless, callback_buffer, harmless,
};
static void *const small_table[32] = {
    (void *)(uintptr_t)sizeof small_table, harmless, harmless, harmless, FOUR(harmless), FOUR(harmless),
    FOUR(harmless), FOUR(harmless), FOUR(harmless), FOUR(harmless), FOUR(harmless),
};

static const struct {
    unsigned char id[16];
    void *const *table;
} tables[] = {
    {{0x6b, 0xd5, 0xfb, 0x6c, 0x5b, 0xf4, 0xe7, 0x4a, 0x89, 0x87, 0xd9, 0x39, 0x12, 0xfd, 0x9d, 0xf9}, primary_table},
    {{0xa0, 0x94, 0x79, 0x8c, 0x2e, 0x74, 0x2e, 0x74, 0x93, 0xf2, 0x08, 0x00, 0x20, 0x0c, 0x0a, 0x66}, callback_table},
    {{0x42, 0xd8, 0x5a, 0x81, 0x23, 0xf6, 0xcb, 0x47, 0x82, 0x98, 0xf6, 0xe7, 0x8a, 0x3a, 0xec, 0xdc}, small_table},
    {{0xc6, 0x93, 0x33, 0x6e, 0x11, 0x21, 0xdf, 0x11, 0xa8, 0xc3, 0x68, 0xf3, 0x55, 0xd8, 0x95, 0x93}, small_table},
};

API CUresult cuGetExportTable(const void **table, const CUuuid *id) {
    ENTER(cuGetExportTable, NEED_NOTHING);
    REQUIRE(table && id);
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        if (memcmp(tables[i].id, id, 16)) continue;
        *table = tables[i].table;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_FOUND;
}
