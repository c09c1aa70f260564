/* Asks a driver for variants of many versions, and calls what it gets by the ABI of that version. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

typedef int (*v1)(const char *, void **, int, uint64_t);
typedef int (*v2)(const char *, void **, int, uint64_t, int *);
typedef int (*v3)(const char *, int, uint64_t, void **);

int main(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *found = NULL;
    if (!driver) return puts(dlerror()), 1;
    unsigned long long address = 0;
    int status = -1, code;
    v2 get = (v2)dlsym(driver, "cuGetProcAddress_v2");
    v1 get_v1 = (v1)dlsym(driver, "cuGetProcAddress");

    /* Each variant of the look-up itself, asked by each of the others; a v1 that writes a status would write to
     * where no argument is. */
    code = get("cuGetProcAddress", &found, 11080, 0, &status);
    printf("itself at 11.8: %d %d %s\n", code, status, found == (void *)get_v1 ? "v1" : "ANOTHER");
    code = ((v1)found)("cuGetProcAddress", &found, 12000, 0);
    printf("itself at 12.0: %d %s\n", code, found == (void *)get ? "v2" : "ANOTHER");
    code = ((v2)found)("cuGetProcAddress", &found, 99000, 0, &status);
    printf("itself at 99.0: %d %d %s\n", code, status, found == dlsym(driver, "cuGetProcAddress_v3") ? "v3" : "ANOTHER");
    code = ((v3)found)("cuMemAlloc", 12000, 0, &found);
    printf("cuMemAlloc by v3: %d %d\n", code, ((int (*)(unsigned long long *, unsigned long))found)(&address, 64));

    code = get("cuMemAlloc", &found, 12000, 0, &status);
    printf("cuMemAlloc at 12.0: %d %d %s, ", code, status, found == dlsym(driver, "cuMemAlloc_v2") ? "v2" : "ANOTHER");
    code = ((int (*)(unsigned long long *, unsigned long))found)(&address, 4096);
    printf("%d %llx\n", code, address);
    code = get("cuMemAlloc", &found, 99000, 0, &status);
    printf("cuMemAlloc at 99.0: %d %d %s, ", code, status, found == dlsym(driver, "cuMemAlloc_v9") ? "v9" : "ANOTHER");
    code = ((int (*)(int, unsigned long, unsigned long long *))found)(7, 77, &address);
    printf("%d %llu\n", code, address);
    code = get("cuMemFree", &found, 99000, 0, &status);
    printf("cuMemFree at 99.0: %d %d, %d\n", code, status, ((int (*)(int, int, int))found)(1, 2, 3));

    code = get("cuNothing", &found, 12000, 0, &status);
    printf("unknown by v2: %d %d %p\n", code, status, found);
    code = get("cuMemAlloc", &found, 12000, 9, &status);
    printf("wrong flags: %d\n", code);
    code = get("cuMemAlloc", &found, 12000, 0, NULL);
    printf("no place for the status: %d\n", code);
    code = get("cuOddity", &found, 12000, 0, &status);
    printf("no function: %d %d %p\n", code, status, found);
    found = (void *)0x77;
    code = get_v1("cuNothing", &found, 12000, 0);
    printf("unknown by v1: %d %p\n", code, found);
    return 0;
}
