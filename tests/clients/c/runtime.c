/* A client of the CUDA runtime, linked with a real libcudart, shared or static. It says what each call gave.
 * The prototypes are written out because not every wheel of the runtime has all the headers that its own include. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

extern int cudaRuntimeGetVersion(int *version);
extern int cudaDriverGetVersion(int *version);
extern int cudaGetDeviceCount(int *count);
extern int cudaMalloc(void **address, size_t bytes);
extern int cudaFree(void *address);
extern int cudaGetLastError(void);

/* The runtime keeps the functions that its look-ups gave it among its variables. Those that lie in the library named
 * by `holder` are counted there, so that one sees whose functions the runtime really calls. */
struct search {
    const char *wanted;
    uintptr_t start, end, runtime, found;
    /* Imports of the runtime from the library: jump table entries, not the result of a look-up. */
    uintptr_t imported[4];
};

static int find_library(struct dl_phdr_info *info, size_t size, void *data) {
    struct search *search = data;
    const char *slash = strrchr(info->dlpi_name, '/');
    (void)size;
    if (strcmp(slash ? slash + 1 : info->dlpi_name, search->wanted)) return 0;
    search->start = info->dlpi_addr;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        uintptr_t end = info->dlpi_addr + header->p_vaddr + header->p_memsz;
        if (header->p_type == PT_LOAD && end > search->end) search->end = end;
    }
    return 1;
}

static int count_pointers(struct dl_phdr_info *info, size_t size, void *data) {
    struct search *search = data;
    int ours = 0;
    (void)size;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < info->dlpi_phnum; i++) {
            const ElfW(Phdr) *header = &info->dlpi_phdr[i];
            uintptr_t from = info->dlpi_addr + header->p_vaddr, to = from + header->p_memsz;
            if (header->p_type != PT_LOAD) continue;
            if (!pass)
                ours |= from <= search->runtime && search->runtime < to;
            else if (ours && header->p_flags & PF_W)
                for (uintptr_t at = (from + 7) & ~(uintptr_t)7; at + 8 <= to; at += 8) {
                    uintptr_t value = *(const uintptr_t *)at;
                    int imported = 0;
                    for (int k = 0; k < 4; k++) imported |= value == search->imported[k];
                    search->found += !imported && value >= search->start && value < search->end;
                }
        }
    }
    return ours;
}

static unsigned long functions_of(const char *library) {
    struct search search = {.wanted = library};
    static const char *const imports[] = {"dlsym", "dlvsym", "dlopen", "dlclose"};
    for (int k = 0; k < 4; k++) search.imported[k] = (uintptr_t)dlsym(RTLD_DEFAULT, imports[k]);
    if (!dl_iterate_phdr(find_library, &search)) return 0;
    /* The address in this program may be an entry of its own jump table; the dynamic linker knows the real one. */
    search.runtime = (uintptr_t)dlsym(RTLD_DEFAULT, "cudaRuntimeGetVersion");
    if (!search.runtime) search.runtime = (uintptr_t)cudaRuntimeGetVersion;
    dl_iterate_phdr(count_pointers, &search);
    return search.found;
}

int main(int argc, char **argv) {
    int number = -1, code;
    void *address = (void *)0x5a5a;
    /* A runtime closes the driver when its start fails, and what it kept would then point nowhere. */
    dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    code = cudaRuntimeGetVersion(&number);
    printf("cudaRuntimeGetVersion %d %d\n", code, number);
    code = cudaDriverGetVersion(&number);
    printf("cudaDriverGetVersion %d %d\n", code, number);
    number = -1;
    code = cudaGetDeviceCount(&number);
    printf("cudaGetDeviceCount %d %d\n", code, number);
    for (int i = 0; i < 2; i++) {
        code = cudaMalloc(&address, 1 << 20);
        printf("cudaMalloc %d\n", code);
    }
    if (!code) printf("cudaFree %d\n", cudaFree(address));
    printf("cudaGetLastError %d\n", cudaGetLastError());
    /* Told on request: under the shim it is another number. */
    for (int i = 1; i < argc; i++) fprintf(stderr, "functions of %s %lu\n", argv[i], functions_of(argv[i]));
    fflush(NULL);
    /* Not exit: the clean-up of libcudart 13.5 crashes after a failed start, with and without the shim. */
    _exit(0);
}
