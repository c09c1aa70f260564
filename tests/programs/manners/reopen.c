/* reopen RUNTIME: closes the driver and the runtime, opens them again, and calls what it kept as well. */
#include <dlfcn.h>
#include <stdio.h>

typedef unsigned long long address_t;

int main(int argc, char **argv) {
    if (argc != 2) return 64;
    int (*kept)(address_t *, size_t) = NULL;
    void *context;
    address_t address;
    for (int round = 0; round < 3; round++) {
        void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        if (!driver) return puts(dlerror()), 1;
        int (*init)(unsigned) = dlsym(driver, "cuInit");
        int (*retain)(void **, int) = dlsym(driver, "cuDevicePrimaryCtxRetain");
        int (*set_current)(void *) = dlsym(driver, "cuCtxSetCurrent");
        int (*allocate)(address_t *, size_t) = dlsym(driver, "cuMemAlloc_v2");
        if (init(0) || retain(&context, 0) || set_current(context)) return 2;
        printf("allocated %d\n", allocate(&address, 4096));
        dlclose(driver);
        /* The hook is still there, and so is the driver behind it. */
        if (kept) printf("allocated %d\n", kept(&address, 4096));
        kept = allocate;
    }
    for (int round = 0; round < 3; round++) {
        void *runtime = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL), *pointer;
        if (!runtime) return puts(dlerror()), 3;
        int (*allocate)(void **, size_t) = dlsym(runtime, "cudaMalloc");
        printf("runtime %d\n", allocate(&pointer, 4096));
        dlclose(runtime);
    }
    return 0;
}
