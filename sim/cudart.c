/* A runtime library that meets the driver exactly as NVIDIA's does: one source, built as 11, 12 and 13.
 * It opens libcuda.so.1, asks dlsym for cuGetProcAddress only, makes every look-up of its version in
 * their order, and makes contexts through slot 2 of the private table. */
#include "cudart.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_abi.h"

#define API __attribute__((visibility("default")))
enum { RUNTIME_VERSION = CUDART_MAJOR == 11 ? 11080 : CUDART_MAJOR == 12 ? 12090 : 13050, MAX_DEVICES = 64 };

static const struct lookup {
    const char *symbol;
    int version, flags;
} lookups[] = {
#include CUDART_LOOKUPS
};
enum { LOOKUPS = sizeof lookups / sizeof *lookups };
static void *answers[LOOKUPS];

static CUresult (*by_name_v1)(const char *, void **, int, uint64_t);
static CUresult (*by_name_v2)(const char *, void **, int, uint64_t, int *);
static CUresult (*retain_by_table)(CUcontext *, CUdevice);
static void *const *primary_table;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static cudaError_t start_result;
static pthread_mutex_t context_lock = PTHREAD_MUTEX_INITIALIZER;
static CUcontext primaries[MAX_DEVICES];
static bool retained[MAX_DEVICES];
static __thread int current_device;
static __thread cudaError_t last_error;

static void *driver(const char *symbol, int version, int flags) {
    void *best = NULL;
    for (int i = 0; i < LOOKUPS; i++)
        if (lookups[i].version <= version && lookups[i].flags == flags && !strcmp(lookups[i].symbol, symbol)) best = answers[i];
    return best;
}

/* Calls the driver function of the wanted version and stream kind. */
#define CALL(name, symbol, version, flags, ...)                                                    \
    ({                                                                                             \
        __typeof__(&name) driver_function_ = (__typeof__(&name))driver(symbol, version, flags);    \
        driver_function_ ? driver_function_(__VA_ARGS__) : cudaErrorSymbolNotFound;                \
    })

static cudaError_t fail(cudaError_t error) {
    if (error) last_error = error;
    return error;
}

static const CUuuid tables[] = {
    {"\x6b\xd5\xfb\x6c\x5b\xf4\xe7\x4a\x89\x87\xd9\x39\x12\xfd\x9d\xf9"},
    {"\xa0\x94\x79\x8c\x2e\x74\x2e\x74\x93\xf2\x08\x00\x20\x0c\x0a\x66"},
    {"\x42\xd8\x5a\x81\x23\xf6\xcb\x47\x82\x98\xf6\xe7\x8a\x3a\xec\xdc"},
    {"\xc6\x93\x33\x6e\x11\x21\xdf\x11\xa8\xc3\x68\xf3\x55\xd8\x95\x93"},
};

static cudaError_t load(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) return cudaErrorInsufficientDriver;
#if CUDART_MAJOR > 11
    by_name_v2 = (__typeof__(by_name_v2))dlsym(library, "cuGetProcAddress_v2");
#endif
    by_name_v1 = (__typeof__(by_name_v1))dlsym(library, "cuGetProcAddress");
    if (!by_name_v1 && !by_name_v2) return cudaErrorInsufficientDriver;
    for (int i = 0; i < LOOKUPS; i++) {
        int status;
        answers[i] = NULL;
        if (by_name_v2)
            by_name_v2(lookups[i].symbol, &answers[i], lookups[i].version, (uint64_t)lookups[i].flags, &status);
        else
            by_name_v1(lookups[i].symbol, &answers[i], lookups[i].version, (uint64_t)lookups[i].flags);
    }
    int version = 0;
    if (CALL(cuDriverGetVersion, "cuDriverGetVersion", 2020, 0, &version) || version / 1000 < CUDART_MAJOR)
        return cudaErrorInsufficientDriver;
    CUresult result = CALL(cuInit, "cuInit", 2000, 0, 0);
    if (result == CUDA_ERROR_NO_DEVICE) return cudaErrorNoDevice;
    if (result) return cudaErrorInitializationError;
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        const void *table = NULL;
        if (CALL(cuGetExportTable, "cuGetExportTable", 3000, 0, &table, &tables[i])) continue;
        if (!i) primary_table = table;
    }
    return primary_table ? cudaSuccess : cudaErrorInitializationError;
}

static void start_once(void) { start_result = load(); }

static cudaError_t start(void) {
    pthread_once(&once, start_once);
    return start_result;
}

/* Asks the slot anew each time: somebody may have put another function there. */
static cudaError_t retain(int device) {
    cudaError_t result = cudaSuccess;
    pthread_mutex_lock(&context_lock);
    if (!retained[device]) {
        retain_by_table = (__typeof__(retain_by_table))primary_table[2];
        if (retain_by_table(&primaries[device], device))
            result = cudaErrorInitializationError; /* the reason is lost here, as in the real one */
        else
            retained[device] = true;
    }
    pthread_mutex_unlock(&context_lock);
    return result;
}

static cudaError_t use(int device) {
    cudaError_t result = retain(device);
    return result ? result : CALL(cuCtxSetCurrent, "cuCtxSetCurrent", 4000, 0, primaries[device]);
}

/* The context that the application made current by itself, else the primary one. */
static cudaError_t context(void) {
    cudaError_t result = start();
    if (result) return result;
    CUcontext now = NULL;
    if ((result = CALL(cuCtxGetCurrent, "cuCtxGetCurrent", 4000, 0, &now))) return result;
    if (now && (now != primaries[current_device] || retained[current_device])) return cudaSuccess;
    return use(current_device);
}

#define IN_CONTEXT(...)                       \
    do {                                      \
        cudaError_t e_ = context();           \
        return fail(e_ ? e_ : (__VA_ARGS__)); \
    } while (0)

/* ---- memory ------------------------------------------------------------------------------------ */

API cudaError_t cudaMalloc(void **ptr, size_t bytes) {
    if (!ptr) return fail(cudaErrorInvalidValue);
    if (!bytes) {
        *ptr = NULL;
        return cudaSuccess;
    }
    IN_CONTEXT(CALL(cuMemAlloc_v2, "cuMemAlloc", 3020, 0, (CUdeviceptr *)ptr, bytes));
}

API cudaError_t cudaFree(void *ptr) { IN_CONTEXT(ptr ? CALL(cuMemFree_v2, "cuMemFree", 3020, 0, (CUdeviceptr)ptr) : cudaSuccess); }

API cudaError_t cudaMallocManaged(void **ptr, size_t bytes, unsigned int flags) {
    IN_CONTEXT(CALL(cuMemAllocManaged, "cuMemAllocManaged", 6000, 0, (CUdeviceptr *)ptr, bytes, flags));
}

API cudaError_t cudaMallocPitch(void **ptr, size_t *pitch, size_t width, size_t height) {
    IN_CONTEXT(CALL(cuMemAllocPitch_v2, "cuMemAllocPitch", 3020, 0, (CUdeviceptr *)ptr, pitch, width, height, 4));
}

API cudaError_t cudaMalloc3D(struct cudaPitchedPtr *out, struct cudaExtent e) {
    if (!out) return fail(cudaErrorInvalidValue);
    size_t pitch;
    CUdeviceptr ptr;
    cudaError_t result = context();
    if (!result) result = CALL(cuMemAllocPitch_v2, "cuMemAllocPitch", 3020, 0, &ptr, &pitch, e.width, e.height * e.depth, 4);
    if (!result) *out = (struct cudaPitchedPtr){(void *)ptr, pitch, e.width, e.height};
    return fail(result);
}

static bool describe(CUDA_ARRAY3D_DESCRIPTOR *out, const struct cudaChannelFormatDesc *d, struct cudaExtent e, unsigned int flags) {
    static const int formats[3][3] = {
        {CU_AD_FORMAT_SIGNED_INT8, CU_AD_FORMAT_SIGNED_INT16, CU_AD_FORMAT_SIGNED_INT32},
        {CU_AD_FORMAT_UNSIGNED_INT8, CU_AD_FORMAT_UNSIGNED_INT16, CU_AD_FORMAT_UNSIGNED_INT32},
        {0, CU_AD_FORMAT_HALF, CU_AD_FORMAT_FLOAT},
    };
    if (!d || d->f < 0 || d->f > 2 || (d->x != 8 && d->x != 16 && d->x != 32)) return false;
    unsigned int channels = 1u + (d->y != 0) + (d->z != 0) + (d->w != 0);
    *out = (CUDA_ARRAY3D_DESCRIPTOR){e.width, e.height, e.depth, formats[d->f][d->x == 8 ? 0 : d->x == 16 ? 1 : 2], channels, flags};
    return true;
}

API cudaError_t cudaMalloc3DArray(cudaArray_t *array, const struct cudaChannelFormatDesc *d, struct cudaExtent e, unsigned int flags) {
    CUDA_ARRAY3D_DESCRIPTOR desc;
    if (!array || !describe(&desc, d, e, flags)) return fail(cudaErrorInvalidValue);
    IN_CONTEXT(CALL(cuArray3DCreate_v2, "cuArray3DCreate", 3020, 0, (CUarray *)array, &desc));
}

API cudaError_t cudaMallocArray(cudaArray_t *array, const struct cudaChannelFormatDesc *d, size_t width, size_t height, unsigned int flags) {
    CUDA_ARRAY3D_DESCRIPTOR desc;
    if (!array || !describe(&desc, d, (struct cudaExtent){width, height, 0}, flags)) return fail(cudaErrorInvalidValue);
    IN_CONTEXT(CALL(cuArray3DCreate_v2, "cuArray3DCreate", 3020, 0, (CUarray *)array, &desc));
}

API cudaError_t cudaMallocMipmappedArray(cudaMipmappedArray_t *mipmap, const struct cudaChannelFormatDesc *d, struct cudaExtent e, unsigned int levels, unsigned int flags) {
    CUDA_ARRAY3D_DESCRIPTOR desc;
    if (!mipmap || !describe(&desc, d, e, flags)) return fail(cudaErrorInvalidValue);
    IN_CONTEXT(CALL(cuMipmappedArrayCreate, "cuMipmappedArrayCreate", 5000, 0, (CUmipmappedArray *)mipmap, &desc, levels));
}

API cudaError_t cudaFreeArray(cudaArray_t array) {
    IN_CONTEXT(array ? CALL(cuArrayDestroy, "cuArrayDestroy", 2000, 0, (CUarray)array) : cudaSuccess);
}

API cudaError_t cudaFreeMipmappedArray(cudaMipmappedArray_t mipmap) {
    IN_CONTEXT(mipmap ? CALL(cuMipmappedArrayDestroy, "cuMipmappedArrayDestroy", 5000, 0, (CUmipmappedArray)mipmap) : cudaSuccess);
}

#define BOTH_STREAMS(name, args, symbol, driver_name, ...)                                                      \
    API cudaError_t name args { IN_CONTEXT(CALL(driver_name, symbol, 11020, 0, __VA_ARGS__)); }                 \
    cudaError_t name##_ptsz args;                                                                               \
    API cudaError_t name##_ptsz args { IN_CONTEXT(CALL(driver_name##_ptsz, symbol, 11020, 2, __VA_ARGS__)); }

BOTH_STREAMS(cudaMallocAsync, (void **ptr, size_t bytes, cudaStream_t stream), "cuMemAllocAsync", cuMemAllocAsync, (CUdeviceptr *)ptr, bytes, stream)
BOTH_STREAMS(cudaMallocFromPoolAsync, (void **ptr, size_t bytes, cudaMemPool_t pool, cudaStream_t stream), "cuMemAllocFromPoolAsync",
             cuMemAllocFromPoolAsync, (CUdeviceptr *)ptr, bytes, pool, stream)
BOTH_STREAMS(cudaFreeAsync, (void *ptr, cudaStream_t stream), "cuMemFreeAsync", cuMemFreeAsync, (CUdeviceptr)ptr, stream)

API cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
    cudaError_t result = start();
    return fail(result ? result : CALL(cuDeviceGetDefaultMemPool, "cuDeviceGetDefaultMemPool", 11020, 0, pool, device));
}

API cudaError_t cudaMallocHost(void **ptr, size_t bytes) { IN_CONTEXT(CALL(cuMemHostAlloc, "cuMemHostAlloc", 2020, 0, ptr, bytes, 0)); }
API cudaError_t cudaFreeHost(void *ptr) { IN_CONTEXT(ptr ? CALL(cuMemFreeHost, "cuMemFreeHost", 2000, 0, ptr) : cudaSuccess); }
API cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) { IN_CONTEXT(CALL(cuMemGetInfo_v2, "cuMemGetInfo", 3020, 0, free_bytes, total)); }

/* There is no data to move. */
API cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, int kind) {
    IN_CONTEXT(bytes && (!to || !from || kind < 0 || kind > 4) ? cudaErrorInvalidValue : cudaSuccess);
}

API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, cudaStream_t stream) {
    (void)stream;
    IN_CONTEXT(bytes && (!to || !from || kind < 0 || kind > 4) ? cudaErrorInvalidValue : cudaSuccess);
}

API cudaError_t cudaMemset(void *ptr, int value, size_t bytes) {
    (void)value;
    IN_CONTEXT(bytes && !ptr ? cudaErrorInvalidValue : cudaSuccess);
}

API cudaError_t cudaMemsetAsync(void *ptr, int value, size_t bytes, cudaStream_t stream) {
    (void)value, (void)stream;
    IN_CONTEXT(bytes && !ptr ? cudaErrorInvalidValue : cudaSuccess);
}

/* ---- devices, streams ---------------------------------------------------------------------------- */

API cudaError_t cudaGetDeviceCount(int *count) {
    if (!count) return fail(cudaErrorInvalidValue);
    cudaError_t result = start();
    if (result) *count = 0;
    return fail(result ? result : CALL(cuDeviceGetCount, "cuDeviceGetCount", 2000, 0, count));
}

API cudaError_t cudaSetDevice(int device) {
    int count;
    cudaError_t result = cudaGetDeviceCount(&count);
    if (result) return result;
    if (device < 0 || device >= count) return fail(cudaErrorInvalidDevice);
    current_device = device;
    /* Up to 11 the context waits for the first call that needs it. */
    if (CUDART_MAJOR > 11 || retained[device]) result = use(device);
    return fail(result);
}

API cudaError_t cudaGetDevice(int *device) {
    if (!device) return fail(cudaErrorInvalidValue);
    cudaError_t result = start();
    if (!result) *device = current_device;
    return fail(result);
}

API cudaError_t cudaDeviceReset(void) {
    cudaError_t result = start();
    if (result) return fail(result);
    pthread_mutex_lock(&context_lock);
    if (retained[current_device]) {
        result = CALL(cuDevicePrimaryCtxReset, "cuDevicePrimaryCtxReset", 7000, 0, current_device);
        CALL(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease", 7000, 0, current_device);
        retained[current_device] = false;
    }
    pthread_mutex_unlock(&context_lock);
    return fail(result);
}

API cudaError_t cudaDeviceSynchronize(void) { IN_CONTEXT(CALL(cuCtxSynchronize, "cuCtxSynchronize", 2000, 0)); }
API cudaError_t cudaStreamCreate(cudaStream_t *s) { IN_CONTEXT(CALL(cuStreamCreate, "cuStreamCreate", 2000, 0, s, 0)); }
API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned int flags) { IN_CONTEXT(CALL(cuStreamCreate, "cuStreamCreate", 2000, 0, s, flags)); }
API cudaError_t cudaStreamDestroy(cudaStream_t s) { IN_CONTEXT(CALL(cuStreamDestroy_v2, "cuStreamDestroy", 4000, 0, s)); }
API cudaError_t cudaStreamSynchronize(cudaStream_t s) { IN_CONTEXT(CALL(cuStreamSynchronize, "cuStreamSynchronize", 2000, 0, s)); }
API cudaError_t cudaStreamSynchronize_ptsz(cudaStream_t s) { IN_CONTEXT(CALL(cuStreamSynchronize_ptsz, "cuStreamSynchronize", 7000, 2, s)); }

/* cudaDeviceProp has another layout in each major version. */
enum {
    PROP_SIZE = CUDART_MAJOR == 11 ? 728 : CUDART_MAJOR == 12 ? 1032 : 1008,
    PROP_UUID = 256, PROP_MEMORY = 288, PROP_MAJOR = 360
};

static cudaError_t properties(char *prop, int device, size_t size) {
    int major = 0, minor = 0;
    cudaError_t result = start();
    if (!prop) result = cudaErrorInvalidValue;
    if (result) return fail(result);
    memset(prop, 0, size);
    result = CALL(cuDeviceGetName, "cuDeviceGetName", 2000, 0, prop, 256, device);
    if (!result) result = CALL(cuDeviceGetUuid, "cuDeviceGetUuid", 9020, 0, (CUuuid *)(prop + PROP_UUID), device);
    if (!result) result = CALL(cuDeviceTotalMem_v2, "cuDeviceTotalMem", 3020, 0, (size_t *)(prop + PROP_MEMORY), device);
    if (!result) result = CALL(cuDeviceGetAttribute, "cuDeviceGetAttribute", 2000, 0, &major, 75, device);
    if (!result) result = CALL(cuDeviceGetAttribute, "cuDeviceGetAttribute", 2000, 0, &minor, 76, device);
    memcpy(prop + PROP_MAJOR, &major, sizeof major);
    memcpy(prop + PROP_MAJOR + 4, &minor, sizeof minor);
    return fail(result);
}

cudaError_t cudaGetDeviceProperties(void *prop, int device);
API cudaError_t cudaGetDeviceProperties(void *prop, int device) { return properties(prop, device, CUDART_MAJOR < 13 ? 728 : PROP_SIZE); }
#if CUDART_MAJOR == 12
cudaError_t cudaGetDeviceProperties_v2(void *prop, int device);
API cudaError_t cudaGetDeviceProperties_v2(void *prop, int device) { return properties(prop, device, PROP_SIZE); }
#endif

/* ---- driver entry points, errors, versions --------------------------------------------------------- */

static cudaError_t entry_point(const char *symbol, void **function, unsigned int version, unsigned long long flags, int *status) {
    if (!symbol || !*symbol || !function || flags > 2) return fail(cudaErrorInvalidValue);
    cudaError_t result = start();
    if (result) return fail(result);
    int found = 0;
    if (by_name_v2) {
        result = by_name_v2(symbol, function, (int)version, flags, &found);
    } else {
        result = by_name_v1(symbol, function, (int)version, flags);
        found = result != CUDA_SUCCESS;
    }
    if (status) *status = found;
    return fail(found && !status ? cudaErrorSymbolNotFound : result);
}

#if CUDART_MAJOR == 11
cudaError_t cudaGetDriverEntryPoint_ptsz(const char *symbol, void **function, unsigned long long flags);
/* Declared with the status of the later ones, which no caller of this version passes. */
API cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags, int *unused) {
    (void)unused;
    return entry_point(symbol, function, RUNTIME_VERSION, flags, NULL);
}
API cudaError_t cudaGetDriverEntryPoint_ptsz(const char *symbol, void **function, unsigned long long flags) {
    return entry_point(symbol, function, RUNTIME_VERSION, flags ? flags : 2, NULL);
}
#else
cudaError_t cudaGetDriverEntryPoint_ptsz(const char *symbol, void **function, unsigned long long flags, int *status);
cudaError_t cudaGetDriverEntryPointByVersion_ptsz(const char *symbol, void **function, unsigned int version, unsigned long long flags, int *status);
API cudaError_t cudaGetDriverEntryPoint(const char *symbol, void **function, unsigned long long flags, int *status) {
    return entry_point(symbol, function, RUNTIME_VERSION, flags, status);
}
API cudaError_t cudaGetDriverEntryPoint_ptsz(const char *symbol, void **function, unsigned long long flags, int *status) {
    return entry_point(symbol, function, RUNTIME_VERSION, flags ? flags : 2, status);
}
API cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned int version, unsigned long long flags, int *status) {
    return entry_point(symbol, function, version, flags, status);
}
API cudaError_t cudaGetDriverEntryPointByVersion_ptsz(const char *symbol, void **function, unsigned int version, unsigned long long flags, int *status) {
    return entry_point(symbol, function, version, flags ? flags : 2, status);
}
#endif

API cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

API cudaError_t cudaPeekAtLastError(void) { return last_error; }

static const struct {
    cudaError_t code;
    const char *name, *text;
} errors[] = {
    {0, "cudaSuccess", "no error"},
    {1, "cudaErrorInvalidValue", "invalid argument"},
    {2, "cudaErrorMemoryAllocation", "out of memory"},
    {3, "cudaErrorInitializationError", "initialization error"},
    {35, "cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"},
    {100, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {101, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {201, "cudaErrorDeviceUninitialized", "invalid device context"},
    {400, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {500, "cudaErrorSymbolNotFound", "named symbol not found"},
    {709, "cudaErrorContextIsDestroyed", "context is destroyed"},
    {801, "cudaErrorNotSupported", "operation not supported"},
    {900, "cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"},
    {901, "cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"},
    {999, "cudaErrorUnknown", "unknown error"},
};

API const char *cudaGetErrorName(cudaError_t error) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == error) return errors[i].name;
    return "unrecognized error code";
}

API const char *cudaGetErrorString(cudaError_t error) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == error) return errors[i].text;
    return "unrecognized error code";
}

API cudaError_t cudaRuntimeGetVersion(int *version) {
    if (!version) return fail(cudaErrorInvalidValue);
    *version = RUNTIME_VERSION;
    return cudaSuccess;
}

/* 0 where there is no driver, and no error then. */
API cudaError_t cudaDriverGetVersion(int *version) {
    if (!version) return fail(cudaErrorInvalidValue);
    *version = 0;
    start();
    if (by_name_v1 || by_name_v2) CALL(cuDriverGetVersion, "cuDriverGetVersion", 2020, 0, version);
    return cudaSuccess;
}
