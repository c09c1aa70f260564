/* Another library that stands in the place of a driver's function and calls the next one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

static unsigned long seen;

int cuMemAlloc_v2(unsigned long long *address, unsigned long bytes) {
    int (*next)(unsigned long long *, unsigned long) = dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    seen++;
    return next ? next(address, bytes) : 999;
}

__attribute__((destructor)) static void tell(void) { fprintf(stderr, "other saw %lu\n", seen); }
