/* A driver of the future: it has variants of known functions that nobody has heard of. Its functions say who they are
 * by what they return through the first argument. */
#include <stdint.h>
#include <string.h>

int cuInit(unsigned flags) { return flags ? 1 : 0; }
int cuDriverGetVersion(int *version) { return *version = 99000, 0; }
int cuMemAlloc_v2(unsigned long long *address, unsigned long bytes) { return *address = 0x200000 + bytes, 0; }
/* Another ABI. */
int cuMemAlloc_v9(int tag, unsigned long bytes, unsigned long long *address) { return *address = bytes, 9000 + tag; }
int cuMemFree_v2(unsigned long long address) { return address ? 0 : 1; }
/* Known by name, but another function with this version. Not exported. */
static int free_of_the_future(int a, int b, int c) { return a + b + c; }

int cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags, int *status);
int cuGetProcAddress_v3(const char *symbol, int version, uint64_t flags, void **pfn) {
    int status;
    return cuGetProcAddress_v2(symbol, pfn, version, flags, &status);
}

int cuGetProcAddress(const char *symbol, void **pfn, int version, uint64_t flags) {
    int status;
    cuGetProcAddress_v2(symbol, pfn, version, flags, &status);
    return *pfn ? 0 : 500;
}

int cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags, int *status) {
    *pfn = 0;
    if (status) *status = 1;
    if (flags > 2) return 1;
    if (!strcmp(symbol, "cuMemAlloc")) *pfn = version >= 90000 ? (void *)cuMemAlloc_v9 : (void *)cuMemAlloc_v2;
    if (!strcmp(symbol, "cuMemFree")) *pfn = version >= 90000 ? (void *)free_of_the_future : (void *)cuMemFree_v2;
    if (!strcmp(symbol, "cuInit")) *pfn = (void *)cuInit;
    if (!strcmp(symbol, "cuGetProcAddress"))
        *pfn = version >= 90000 ? (void *)cuGetProcAddress_v3
               : version >= 12000 ? (void *)cuGetProcAddress_v2 : (void *)cuGetProcAddress;
    if (*pfn && status) *status = 0;
    /* Succeeds, and leaves something behind that is no function. */
    if (!strcmp(symbol, "cuOddity")) *pfn = (void *)(uintptr_t)1;
    return 0;
}
