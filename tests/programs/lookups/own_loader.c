/* dlsym and dlvsym looked up by themselves and then used, as programs do that wrap them.
 * Each way must give a function that finds the hook, and finds the same as the others. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef void *(*plain)(void *, const char *);
typedef void *(*versioned)(void *, const char *, const char *);

static void *driver, *expected;

static void use(const char *way, plain look_up) {
    const char *error;
    dlerror();
    if (!look_up) {
        printf("%s: none: %s\n", way, dlerror());
        return;
    }
    void *found = look_up(driver, "cuMemAlloc_v2");
    void *unhooked = look_up(driver, "cuCtxSynchronize");
    void *missing = look_up(driver, "cuNoSuchFunction");
    error = dlerror();
    printf("%s: %s, %s, %s, %s\n", way, found == expected ? "the same" : "ANOTHER",
           unhooked == dlsym(driver, "cuCtxSynchronize") ? "the same" : "ANOTHER", missing ? "FOUND" : "missing",
           error ? strrchr(error, '/') : "no error");
    /* Asked for itself once more. */
    plain again = (plain)look_up(RTLD_DEFAULT, "dlsym");
    printf("  itself: %s\n", again && again(driver, "cuMemAlloc_v2") == expected ? "the same" : "ANOTHER");
    again = (plain)look_up(RTLD_NEXT, "dlsym");
    printf("  next: %s\n", again && again(driver, "cuMemAlloc_v2") == expected ? "the same" : "ANOTHER");
}

static void use_versioned(const char *way, versioned look_up) {
    static const char *const versions[] = {"GLIBC_2.2.5", "GLIBC_2.34", "GLIBC_2.17", "GLIBC_1.0"};
    char told[128];
    if (!look_up) {
        printf("%s: none\n", way);
        return;
    }
    for (size_t v = 0; v < sizeof versions / sizeof *versions; v++) {
        snprintf(told, sizeof told, "%s, dlsym@%s", way, versions[v]);
        use(told, (plain)look_up(RTLD_NEXT, "dlsym", versions[v]));
        snprintf(told, sizeof told, "%s, default dlsym@%s", way, versions[v]);
        use(told, (plain)look_up(RTLD_DEFAULT, "dlsym", versions[v]));
    }
}

int main(void) {
    void *libc = dlopen("libc.so.6", RTLD_NOW), *libdl = dlopen("libdl.so.2", RTLD_NOW);
    driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver) return puts(dlerror()), 1;
    expected = dlsym(driver, "cuMemAlloc_v2");

    use("dlsym", dlsym);
    use("dlsym of default", (plain)dlsym(RTLD_DEFAULT, "dlsym"));
    use("dlsym of next", (plain)dlsym(RTLD_NEXT, "dlsym"));
    use("dlsym of libc", (plain)dlsym(libc, "dlsym"));
    use("dlsym of libdl", libdl ? (plain)dlsym(libdl, "dlsym") : NULL);
    use("dlsym of the program", (plain)dlsym(dlopen(NULL, RTLD_NOW), "dlsym"));
    use("dlsym of the driver", (plain)dlsym(driver, "dlsym"));
    use_versioned("dlvsym", dlvsym);
    use_versioned("dlvsym of default", (versioned)dlsym(RTLD_DEFAULT, "dlvsym"));
    use_versioned("dlvsym of next", (versioned)dlsym(RTLD_NEXT, "dlvsym"));
    use_versioned("dlvsym@2.2.5 of next", (versioned)dlvsym(RTLD_NEXT, "dlvsym", "GLIBC_2.2.5"));
    use_versioned("dlvsym@2.34 of next", (versioned)dlvsym(RTLD_NEXT, "dlvsym", "GLIBC_2.34"));
    dlerror();
    printf("no version: %s\n", dlvsym(driver, "cuInit", "GLIBC_2.2.5") ? "found" : dlerror() ? "error" : "NO ERROR");
    /* With a hook, so that the test can tell that it is one. */
    Dl_info info;
    dladdr(expected, &info);
    fprintf(stderr, "%s\n", info.dli_fname);
    return 0;
}
