/* A driver of long ago: a handful of functions and nothing else. */
int cuInit(unsigned flags) { return flags ? 1 : 0; }
int cuDriverGetVersion(int *version) { return *version = 4000, 0; }
int cuDeviceGetCount(int *count) { return *count = 1, 0; }
int cuMemAlloc_v2(unsigned long long *address, unsigned long bytes) { return *address = 0x10000 + bytes, 0; }
int cuMemFree_v2(unsigned long long address) { return address ? 0 : 1; }
