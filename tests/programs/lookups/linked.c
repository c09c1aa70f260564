/* A program that is linked with libcuda: direct calls, function pointers in data, and the address taken in code. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

extern int cuInit(unsigned flags);
extern int cuDevicePrimaryCtxRetain(void **context, int device);
extern int cuCtxSetCurrent(void *context);
extern int cuMemAlloc_v2(unsigned long long *address, unsigned long bytes);
extern int cuMemFree_v2(unsigned long long address);
extern int cuMemGetInfo_v2(unsigned long *free, unsigned long *total);

static int (*const in_data)(unsigned long long *, unsigned long) = cuMemAlloc_v2;

int main(void) {
    void *context;
    unsigned long long address;
    unsigned long free_bytes, total;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 1;
    printf("direct %d\n", cuMemAlloc_v2(&address, 1 << 20));
    printf("freed %d\n", cuMemFree_v2(address));
    printf("in data %d\n", in_data(&address, 2 << 20));
    int (*volatile in_code)(unsigned long long *, unsigned long) = cuMemAlloc_v2;
    printf("in code %d\n", in_code(&address, 4 << 20));
    int (*looked_up)(unsigned long long *, unsigned long) = dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
    printf("looked up %d\n", looked_up(&address, 8 << 20));
    printf("too much %d\n", cuMemAlloc_v2(&address, 100 << 20));
    printf("info %d ", cuMemGetInfo_v2(&free_bytes, &total));
    printf("%lu\n", total >> 20);
    return 0;
}
