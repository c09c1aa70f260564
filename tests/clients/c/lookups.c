/* Repeats cuGetProcAddress look-ups and says what each gave.
 *
 *   lookups NAMES TRIPLES
 *
 * NAMES: a file with exported names of libcuda, one a line. TRIPLES: one with a symbol, a cudaVersion and flags a line.
 * Prints one line for each name, with the entry `dlsym`, then one for each look-up and entry point, tabs between:
 *   symbol version flags entry, code, status, exported names at the answer, module, offset in the module
 * The names are what tells the ABI variants apart: they are those for which dlsym gives the same address as the
 * look-up did. Under the shim dlsym gives hooks too, so a hook goes by the name of the variant that it stands for.
 * The offset is printed where no name fits, for functions that libcuda does not export. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_NAMES = 4096 };

struct named {
    char *name;
    void *address;
};

static struct named named[MAX_NAMES];
static int count;

static void die(const char *what) {
    fprintf(stderr, "lookups: %s\n", what);
    exit(1);
}

static void read_names(const char *path, void *libcuda) {
    char line[256];
    FILE *file = fopen(path, "r");
    if (!file) die("cannot read the names");
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        void *address = dlsym(libcuda, line);
        if (!address) continue;
        if (count == MAX_NAMES) die("too many names");
        named[count++] = (struct named){strdup(line), address};
    }
    fclose(file);
}

static void print_answer(void *address) {
    Dl_info info;
    const char *separator = "";
    int names = 0;
    if (!address) {
        printf("\t-\t-\t-\n");
        return;
    }
    printf("\t");
    for (int i = 0; i < count; i++) {
        if (named[i].address != address) continue;
        printf("%s%s", separator, named[i].name);
        separator = ",";
        names++;
    }
    if (!dladdr(address, &info)) {
        printf("\t?\t%p\n", address);
        return;
    }
    const char *slash = strrchr(info.dli_fname, '/');
    printf("%s\t%s", names ? "" : "-", slash ? slash + 1 : info.dli_fname);
    /* A hook's place in our own library is nobody's business; a name says more than an offset. */
    if (names)
        printf("\t-\n");
    else
        printf("\t%#zx\n", (size_t)((uintptr_t)address - (uintptr_t)info.dli_fbase));
}

int main(int argc, char **argv) {
    if (argc != 3) die("usage: lookups NAMES TRIPLES");
    void *libcuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!libcuda) die(dlerror());
    read_names(argv[1], libcuda);
    int (*v1)(const char *, void **, int, uint64_t) = dlsym(libcuda, "cuGetProcAddress");
    int (*v2)(const char *, void **, int, uint64_t, int *) = dlsym(libcuda, "cuGetProcAddress_v2");
    if (!v1 || !v2) die("libcuda has no cuGetProcAddress");

    for (int i = 0; i < count; i++) {
        printf("%s 0 0 dlsym\t0\t-", named[i].name);
        print_answer(named[i].address);
    }
    char symbol[256];
    int version;
    unsigned long flags;
    FILE *triples = fopen(argv[2], "r");
    if (!triples) die("cannot read the triples");
    while (fscanf(triples, "%255s %d %lu", symbol, &version, &flags) == 3) {
        void *address = NULL;
        int code = v1(symbol, &address, version, flags);
        printf("%s %d %lu v1\t%d\t-", symbol, version, flags, code);
        print_answer(code ? NULL : address);
        address = NULL;
        int status = -1;
        code = v2(symbol, &address, version, flags, &status);
        printf("%s %d %lu v2\t%d\t%d", symbol, version, flags, code, status);
        print_answer(code ? NULL : address);
    }
    return 0;
}
