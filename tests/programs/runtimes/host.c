/* Loads libraries and has them call their runtimes.
 *
 *   host open FLAGS NAME=PATH...     dlopen each with FLAGS ("local", "global", "deep"), then NAME_all of each, twice
 *   host look PATH...                every function of each library by dlsym and by dlvsym, called
 *   host again NAME=PATH NAME=PATH   opened, called and closed in turns; threads call a third meanwhile if it is given
 *   host leaves NAME=PATH            threads end inside a call
 *   host start PATH...               the same as look, and then cuInit
 *   host missing PATH NAME[@V]...    dlsym or dlvsym in a library, and then cuInit
 *   host default NODE NAME...        dlvsym(RTLD_DEFAULT) of what no library has
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"

static void *need(void *found, const char *what) {
    if (!found) {
        printf("no %s: %s\n", what, dlerror());
        exit(2);
    }
    return found;
}

static int flags_of(const char *name) {
    if (!strcmp(name, "global")) return RTLD_NOW | RTLD_GLOBAL;
    return RTLD_NOW | RTLD_LOCAL | (strcmp(name, "deep") ? 0 : RTLD_DEEPBIND);
}

/* NAME=PATH: opens the library and finds NAME_suffix in it. */
static void *open_named(const char *argument, int flags, const char *suffix, void **handle) {
    char name[64];
    const char *path = strchr(argument, '=') + 1;
    snprintf(name, sizeof name, "%.*s_%s", (int)(path - 1 - argument), argument, suffix);
    *handle = need(dlopen(path, flags), path);
    return need(dlsym(*handle, name), name);
}

static const char *file_of(void *address) {
    Dl_info info;
    if (!dladdr(address, &info) || !info.dli_fname) return "nowhere";
    const char *slash = strrchr(info.dli_fname, '/');
    return slash ? slash + 1 : info.dli_fname;
}

static void look(const char *path) {
    static const char *const nodes[] = {"libcudart.so.11.0", "libcudart.so.12", "libcudart.so.13", "libcudart.so.10"};
    void *handle = need(dlopen(path, RTLD_NOW | RTLD_LOCAL), path);
#define LOOK(name, ...)                                                                                \
    for (int i = -1; i < 4; i++) {                                                                     \
        int (*function)() = i < 0 ? dlsym(handle, #name) : dlvsym(handle, #name, nodes[i]);            \
        if (!function) continue;                                                                       \
        printf("%s of %s at %s: %d\n", #name, path, i < 0 ? "-" : nodes[i], function(__VA_ARGS__));    \
        fprintf(stderr, "%s of %s lies in %s\n", #name, path, file_of((void *)function));              \
    }
#define LOOK_WORDS(name) LOOK(name, 1L, 2L, 3L, 4L, 5L, 6L)
#define LOOK_EXTENT(name) LOOK(name, 1L, 2L, (struct extent){3, 4, 5}, 6L, 7L)
    ALL_CALLS(LOOK_WORDS, LOOK_EXTENT)
}

static volatile int stop;

static void *keeps_calling(void *function) {
    int (*once)(void) = (int (*)(void))function, first = once();
    while (!stop)
        if (once() != first) return "another answer";
    return 0;
}

static void *calls(void *function) {
    ((void (*)(void))function)();
    return "came back";
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    void *handle;
    if (!strcmp(mode, "open")) {
        void (*all[8])(void);
        for (int i = 3; i < argc; i++) all[i - 3] = (void (*)(void))open_named(argv[i], flags_of(argv[2]), "all", &handle);
        for (int round = 0; round < 2; round++)
            for (int i = 3; i < argc; i++) all[i - 3]();
    } else if (!strcmp(mode, "look")) {
        for (int i = 2; i < argc; i++) look(argv[i]);
    } else if (!strcmp(mode, "again")) {
        pthread_t thread;
        void *result = 0;
        if (argc > 4) {
            void *once = open_named(argv[4], flags_of("local"), "once", &handle);
            if (pthread_create(&thread, 0, keeps_calling, once)) return 3;
        }
        for (int round = 0; round < 200; round++) {
            int (*once)(void) = (int (*)(void))open_named(argv[2 + round % 2], flags_of("local"), "once", &handle);
            printf("%d %d\n", round, once());
            if (dlclose(handle)) printf("not closed: %s\n", dlerror());
        }
        stop = 1;
        if (argc > 4) pthread_join(thread, &result);
        if (result) puts(result);
    } else if (!strcmp(mode, "leaves")) {
        void *leaves = open_named(argv[2], flags_of("local"), "leaves", &handle);
        int (*once)(void) = (int (*)(void))open_named(argv[2], flags_of("local"), "once", &handle);
        for (int i = 0; i < 20; i++) {
            pthread_t thread;
            void *result;
            if (pthread_create(&thread, 0, calls, leaves) || pthread_join(thread, &result)) return 3;
            printf("%s, then %d\n", result ? (char *)result : "left", once());
        }
    } else if (!strcmp(mode, "start")) {
        for (int i = 2; i < argc; i++) look(argv[i]);
        int (*init)(unsigned) = (int (*)(unsigned))need(dlsym(need(dlopen("libcuda.so.1", RTLD_NOW), "libcuda"), "cuInit"), "cuInit");
        printf("cuInit %d\n", init(0));
    } else if (!strcmp(mode, "missing")) {
        handle = need(dlopen(argv[2], RTLD_NOW | RTLD_LOCAL), argv[2]);
        for (int i = 3; i < argc; i++) {
            char *version = strchr(argv[i], '@');
            if (version) *version++ = 0;
            void *found = version ? dlvsym(handle, argv[i], version) : dlsym(handle, argv[i]);
            printf("%s: %s\n", argv[i], found ? "found" : dlerror());
        }
        int (*init)(unsigned) = (int (*)(unsigned))need(dlsym(need(dlopen("libcuda.so.1", RTLD_NOW), "libcuda"), "cuInit"), "cuInit");
        printf("cuInit %d\n", init(0));
    } else if (!strcmp(mode, "default")) {
        for (int i = 3; i < argc; i++) {
            void *found = dlvsym(RTLD_DEFAULT, argv[i], argv[2]), *plain = dlsym(RTLD_DEFAULT, argv[i]);
            printf("%s: %s, %s\n", argv[i], found ? "found" : "not found", plain ? "found" : "not found");
        }
    } else {
        return 1;
    }
    return 0;
}
