/* A driver that waits inside an allocation, as the real one does in the kernel, and calls the application back. */
#define _GNU_SOURCE
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>

static atomic_ullong next = 0x10000000;
static atomic_int block, inside;
static void (*_Atomic call_back)(void);

void slow_block(int yes) { block = yes; }
void slow_call_back(void (*function)(void)) { call_back = function; }
void slow_wait_until_inside(void) {
    while (!inside) sched_yield();
}

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
    inside = 1;
    while (block) poll(0, 0, 1000);
    void (*function)(void) = call_back;
    if (function) function();
    *address = atomic_fetch_add(&next, (bytes + 0xffff) & ~0xfffful);
    return 0;
}
int cuMemFree_v2(unsigned long long address) { return address ? 0 : 1; }
