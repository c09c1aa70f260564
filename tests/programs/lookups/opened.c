/* opened PATH local|global: opens the driver by this path, allocates, and says where the function was. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    if (argc != 3) return 64;
    int scope = strcmp(argv[2], "global") ? RTLD_LOCAL : RTLD_GLOBAL;
    void *driver = dlopen(argv[1], RTLD_LAZY | scope), *context;
    if (!driver) return puts(dlerror()), 1;
    int (*init)(unsigned) = dlsym(driver, "cuInit");
    int (*retain)(void **, int) = dlsym(driver, "cuDevicePrimaryCtxRetain");
    int (*set_current)(void *) = dlsym(driver, "cuCtxSetCurrent");
    int (*allocate)(unsigned long long *, unsigned long) =
        dlsym(scope == RTLD_GLOBAL ? RTLD_DEFAULT : driver, "cuMemAlloc_v2");
    unsigned long long address;
    Dl_info info;
    if (init(0) || retain(&context, 0) || set_current(context)) return 2;
    printf("allocated %d", allocate(&address, 1 << 20));
    if (!dladdr((void *)allocate, &info)) return 3;
    printf(" in %s\n", strrchr(info.dli_fname, '/') + 1);
    return 0;
}
