/* Looks functions up as programs for many drivers do, and says what dlerror has to tell after each step. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const char *error(void) {
    const char *text = dlerror();
    const char *slash = text ? strrchr(text, '/') : NULL;
    return slash ? slash : text ? text : "no error";
}

static void *find(void *driver, const char *name) {
    void *found = dlsym(driver, name);
    printf("%s %s, %s\n", name, found ? "found" : "missing", error());
    return found;
}

int main(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    unsigned long long address = 0;
    if (!driver) return puts(dlerror()), 1;
    int (*init)(unsigned) = find(driver, "cuInit");
    find(driver, "cuMemAllocAsync");
    find(driver, "cuCtxCreate_v4");
    find(driver, "cuGetProcAddress");
    int (*allocate)(unsigned long long *, unsigned long) = find(driver, "cuMemAlloc_v2");
    int (*release)(unsigned long long) = find(driver, "cuMemFree_v2");
    printf("cuInit %d, %s\n", init(0), error());
    printf("cuMemAlloc %d, %s\n", allocate(&address, 4096), error());
    /* An error of before is still there after calls into CUDA. */
    dlsym(driver, "missing_function");
    printf("cuMemFree %d, %s\n", release(address), error());
    return 0;
}
