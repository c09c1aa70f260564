/* Allocates twice by a function that calls another, and frees once. */
#include <dlfcn.h>
#include <stdio.h>

int main(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL), *context;
    if (!driver) return puts(dlerror()), 1;
    int (*init)(unsigned) = dlsym(driver, "cuInit");
    int (*retain)(void **, int) = dlsym(driver, "cuDevicePrimaryCtxRetain");
    int (*pitched)(unsigned long long *, unsigned long *, unsigned long, unsigned long, unsigned) =
        dlsym(driver, "cuMemAllocPitch_v2");
    int (*release)(unsigned long long, void *) = dlsym(driver, "cuMemFreeAsync");
    unsigned long (*calls)(void) = dlsym(driver, "driver_calls");
    unsigned long long first, second;
    unsigned long pitch;
    if (init(0) || retain(&context, 0)) return 2;
    printf("%d", pitched(&first, &pitch, 1000, 10, 4));
    printf(" %d", pitched(&second, &pitch, 1000, 10, 4));
    printf(" %d", release(first, 0));
    printf(" %lu calls\n", calls());
    return 0;
}
