/* Looks names up from several places, through handles of all kinds, and prints each answer.
 *
 *   handles FOLDER none|local|global|deepbind|plugin
 *
 * FOLDER holds libplugin.so, libdeep.so (what the plugin needs), libstranger.so and libowner.so. Each line: the
 * question, the module of the answer, its offset there, and dlerror's text. Where the driver is in reach, an answer in
 * it is printed by whether it is the one that the driver's own handle gives, since a hook lies somewhere else. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *(*asker)(void *handle, const char *name, const char *version);
extern void *ask_linked(void *handle, const char *name, const char *version);

#ifdef WITH_OWN
int cuMemAlloc_v2(unsigned long long *address, unsigned long bytes) {
    (void)bytes;
    *address = 0;
    return 78;
}
#endif

__attribute__((noinline)) static void *ask_program(void *handle, const char *name, const char *version) {
    void *found = version ? dlvsym(handle, name, version) : dlsym(handle, name);
    __asm__ volatile("" ::: "memory");
    return found;
}

static const char *const names[] = {
    "cuInit", "cuMemAlloc_v2", "cuMemAlloc", "cuGetProcAddress_v2", "cuMemAllocAsync_ptsz", "cuMemGetInfo_v2",
    "cuCtxSynchronize", "cuLaunchKernel", "cuDriverGetVersion", "cuNoSuchFunction", "cuInitX", "cuIni",
    "cudnnCreate", "cublasCreate_v2", "curl_easy_init", "cudaMalloc", "cu", "c", "", "d", "dl", "dlopen", "dlerror",
    "dladdr", "dlfunctionless", "nvmlInit_v2", "nvmlNothing", "malloc", "printf", "ompt_start_tool", "nothing_at_all",
    "ask_linked", "ask_plugin", "ask_deep", "sin",
};
static const char *const versions[] = {"GLIBC_2.2.5", "GLIBC_2.34", "libcudart.so.12", "NONE_1"};

static void *driver;

static const char *base(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* dladdr names what a hook is not; the handle of the driver does. */
static void print(const char *who, const char *handle, const char *name, const char *version, void *answer, int said) {
    Dl_info info;
    printf("%s\t%s\t%s\t%s\t", who, handle, name, version ? version : "-");
    if (!answer) {
        printf("NULL\t-");
    } else if (driver && answer == dlsym(driver, name)) {
        printf("driver's\t-");
    } else if (dladdr(answer, &info)) {
        printf("%s\t%#lx", base(info.dli_fname), (unsigned long)((uintptr_t)answer - (uintptr_t)info.dli_fbase));
    } else {
        printf("?\t?");
    }
    if (said) printf("\tDLERROR");
    printf("\n");
}

static void look(const char *who, asker ask, const char *handle_name, void *handle, const char *name,
                 const char *version) {
    dlerror();
    void *first = ask(handle, name, version);
    char *text = dlerror();
    char said[512] = "";
    if (text) snprintf(said, sizeof said, "%s", text);
    /* The same again, as the second look-up of a program that does not keep the first. */
    void *second = ask(handle, name, version);
    text = dlerror();
    if (first != second) printf("ANOTHER ANSWER: %s %s %s\n", who, handle_name, name);
    if (strcmp(said, text ? text : "")) printf("ANOTHER ERROR: %s, then %s\n", said, text);
    print(who, handle_name, name, version, first, 0);
    printf("\t%s\n", said);
    /* A success after a failure leaves no error, a failure before it is not seen. */
    dlerror();
    ask(handle, "no_such_name", 0);
    first = ask(handle, name, version);
    text = dlerror();
    if (strcmp(said, text ? text : "")) printf("ERROR LEFT: %s: %s\n", name, text ? text : "none");
}

int main(int argc, char **argv) {
    if (argc != 3) return 64;
    char path[4096];
    const char *how = argv[2];
    int flags = RTLD_NOW | (!strcmp(how, "deepbind") ? RTLD_DEEPBIND : 0);
    /* Only in the scopes of the library that needs it, or of nobody but us. */
    if (!strcmp(how, "global") && !dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL)) return puts(dlerror()), 2;
    snprintf(path, sizeof path, "%s/libplugin.so", argv[1]);
    void *plugin = strcmp(how, "none") ? dlopen(path, flags | RTLD_LOCAL) : NULL;
    if (!plugin && strcmp(how, "none")) return puts(dlerror()), 3;
    snprintf(path, sizeof path, "%s/libstranger.so", argv[1]);
    void *stranger = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    snprintf(path, sizeof path, "%s/libowner.so", argv[1]);
    void *owner = dlopen(path, RTLD_NOW | RTLD_LOCAL | (flags & RTLD_DEEPBIND));
    if (!stranger || !owner) return puts(dlerror()), 4;
    /* Only where somebody has loaded it already: the handle itself changes no scope. */
    driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);

    struct {
        const char *name;
        asker ask;
    } callers[] = {
        {"program", ask_program},
        {"linked", ask_linked},
        {"stranger", (asker)dlsym(stranger, "ask_stranger")},
        {"owner", (asker)dlsym(owner, "ask_owner")},
        {"plugin", plugin ? (asker)dlsym(plugin, "ask_plugin") : NULL},
        {"deep", plugin ? (asker)dlsym(plugin, "ask_deep") : NULL},
    };
    struct {
        const char *name;
        void *handle;
    } handles[] = {
        {"DEFAULT", RTLD_DEFAULT},
        {"NEXT", RTLD_NEXT},
        {"program", dlopen(NULL, RTLD_NOW)},
        {"driver", driver},
        {"plugin", plugin},
        {"stranger", stranger},
        {"owner", owner},
        {"libc", dlopen("libc.so.6", RTLD_NOW)},
    };
    for (size_t c = 0; c < sizeof callers / sizeof *callers; c++) {
        if (!callers[c].ask) continue;
        for (size_t h = 0; h < sizeof handles / sizeof *handles; h++) {
            if (!handles[h].handle && h > 1) continue;
            for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
                look(callers[c].name, callers[c].ask, handles[h].name, handles[h].handle, names[n], NULL);
            }
            for (size_t v = 0; v < sizeof versions / sizeof *versions; v++) {
                static const char *const versioned[] = {"cuInit", "cuNoSuchFunction", "malloc", "dlopen", "dlerror"};
                for (size_t n = 0; n < sizeof versioned / sizeof *versioned; n++)
                    look(callers[c].name, callers[c].ask, handles[h].name, handles[h].handle, versioned[n],
                         versions[v]);
            }
        }
    }
    return 0;
}
