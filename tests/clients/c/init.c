/* What a driver answers before and at its initialisation, one line each. */
#include <dlfcn.h>
#include <stdio.h>

int main(void) {
    void *libcuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!libcuda) {
        fprintf(stderr, "init: %s\n", dlerror());
        return 1;
    }
    int (*version)(int *) = dlsym(libcuda, "cuDriverGetVersion");
    int (*init)(unsigned) = dlsym(libcuda, "cuInit");
    int (*count)(int *) = dlsym(libcuda, "cuDeviceGetCount");
    int (*allocate)(unsigned long long *, size_t) = dlsym(libcuda, "cuMemAlloc_v2");
    int (*release)(unsigned long long) = dlsym(libcuda, "cuMemFree_v2");
    int (*error)(int, const char **) = dlsym(libcuda, "cuGetErrorName");
    int number = -1, code;
    unsigned long long address = 0x5a5a;
    const char *name = "?";

    code = version(&number);
    printf("cuDriverGetVersion %d %d\n", code, number);
    printf("cuMemAlloc before cuInit %d\n", allocate(&address, 4096));
    for (int i = 0; i < 2; i++) {
        code = init(0);
        error(code, &name);
        printf("cuInit %d %s\n", code, name);
    }
    printf("cuInit with wrong flags %d\n", init(1));
    number = -1;
    code = count(&number);
    printf("cuDeviceGetCount %d %d\n", code, number);
    code = allocate(&address, 4096);
    /* A good address differs from run to run. */
    printf("cuMemAlloc %d %#llx\n", code, code ? address : 0);
    printf("cuMemFree %d\n", release(address));
    return 0;
}
