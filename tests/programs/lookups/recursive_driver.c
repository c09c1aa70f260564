/* A driver whose functions call others of its own through its exported names, as any caller would: not hidden, not
 * bound at link time. What is preloaded gets these calls. It is honest about how much it gave. */
#include <stdint.h>

static unsigned long long next = 0x10000000;
static unsigned long calls;

int cuInit(unsigned flags) { return flags ? 1 : 0; }
int cuDriverGetVersion(int *version) { return *version = 12000, 0; }
int cuDeviceGetCount(int *count) { return *count = 1, 0; }
int cuDeviceGetUuid_v2(char *uuid, int device) { return uuid[0] = 7, device; }
int cuDeviceTotalMem_v2(unsigned long *bytes, int device) { return *bytes = 1ul << 30, device; }
int cuDevicePrimaryCtxRetain(void **context, int device) { return *context = &next, device; }
int cuCtxSetCurrent(void *context) { return context ? 0 : 1; }
int cuCtxGetCurrent(void **context) { return *context = &next, 0; }
int cuCtxGetDevice(int *device) { return *device = 0, 0; }
int cuMemAlloc_v2(unsigned long long *address, unsigned long bytes) {
    calls++;
    *address = next;
    next += (bytes + 0xffff) & ~0xfffful;
    return 0;
}
int cuMemAllocPitch_v2(unsigned long long *address, unsigned long *pitch, unsigned long width, unsigned long height,
                       unsigned element) {
    (void)element;
    *pitch = (width + 511) & ~511ul;
    return cuMemAlloc_v2(address, *pitch * height);
}
int cuMemFree_v2(unsigned long long address) {
    calls++;
    return address ? 0 : 1;
}
/* Frees through another of its functions. */
int cuMemFreeAsync(unsigned long long address, void *stream) {
    (void)stream;
    return cuMemFree_v2(address);
}
int cuStreamIsCapturing(void *stream, int *status) { return *status = 0, stream ? 1 : 0; }
int cuGetProcAddress(const char *symbol, void **pfn, int version, uint64_t flags) {
    (void)symbol, (void)version, (void)flags;
    *pfn = 0;
    return 500;
}
unsigned long driver_calls(void) { return calls; }
