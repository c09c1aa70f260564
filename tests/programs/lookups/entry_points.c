/* The runtime's own look-up of driver functions: allocates through what it gives. */
#include <dlfcn.h>
#include <stdio.h>

typedef int (*entry_v11)(const char *, void **, unsigned long long);
typedef int (*entry_v12)(const char *, void **, unsigned long long, int *);
typedef int (*by_version)(const char *, void **, unsigned, unsigned long long, int *);

int main(int argc, char **argv) {
    if (argc != 2) return 64;
    void *runtime = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL), *found = NULL;
    if (!runtime) return puts(dlerror()), 1;
    int (*free_of)(void *) = dlsym(runtime, "cudaFree"), status = -1, code;
    unsigned long long address;
    void *entry = dlsym(runtime, "cudaGetDriverEntryPoint"), *versioned = dlsym(runtime, "cudaGetDriverEntryPointByVersion");
    printf("cudaFree %d\n", free_of(0));
    if (entry) {
        code = ((entry_v12)entry)("cuMemAlloc", &found, 0, &status);
        printf("by name %d", code);
        printf(" %d\n", code || !found ? -1 : ((int (*)(unsigned long long *, unsigned long))found)(&address, 3 << 20));
    }
    if (versioned) {
        code = ((by_version)versioned)("cuMemAlloc", &found, 12000, 0, &status);
        printf("by version %d %d", code, status);
        printf(" %d\n", code || !found ? -1 : ((int (*)(unsigned long long *, unsigned long))found)(&address, 5 << 20));
    }
    return 0;
}
