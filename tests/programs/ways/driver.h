/* The driver, found in the way that the command line names: `driver_find(method)` fills a pointer `p_<name>` for every
 * function of functions.h. All programs here are linked with the simulated libcuda. */
#ifndef WAYS_DRIVER_H
#define WAYS_DRIVER_H

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../sim/cuda_abi.h"
#include "functions.h"

#define DEFINE(name, symbol, version, flags) static __typeof__(&name) p_##name __attribute__((unused));
EACH_FUNCTION(DEFINE)

static const struct function {
    const char *name, *symbol;
    int version, flags;
    void **place;
    void *linked;
} functions[] = {
#define ROW(name, symbol, version, flags) {#name, #symbol, version, flags, (void **)&p_##name, (void *)name},
    EACH_FUNCTION(ROW)
};
enum { FUNCTIONS = sizeof functions / sizeof *functions };

#define DIE(...)                              \
    do {                                      \
        fprintf(stderr, "%s:%d: ", __FILE__, __LINE__); \
        fprintf(stderr, __VA_ARGS__);         \
        fputc('\n', stderr);                  \
        exit(3);                              \
    } while (0)

/* Fails the program unless the call gives the code. */
#define GIVES(code, call)                                                          \
    do {                                                                           \
        int got_ = (call), wanted_ = (code);                                       \
        if (got_ != wanted_) DIE("%s gave %d instead of %d", #call, got_, wanted_); \
    } while (0)
#define OK(call) GIVES(0, call)

static CUresult (*by_name_v1)(const char *, void **, int, uint64_t) __attribute__((unused));
static CUresult (*by_name_v2)(const char *, void **, int, uint64_t, int *) __attribute__((unused));

/* The highest version for which the driver still gives this variant. */
static int last_version(const struct function *f) {
    int last = 13050;
    for (int i = 0; i < FUNCTIONS; i++)
        if (!strcmp(functions[i].symbol, f->symbol) && functions[i].version > f->version && functions[i].version - 1 < last)
            last = functions[i].version - 1;
    return last;
}

static void *find(const char *method, const struct function *f) {
    static void *handle;
    void *found = NULL;
    if (!handle && !(handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL))) DIE("%s", dlerror());
    if (!by_name_v1) by_name_v1 = (__typeof__(by_name_v1))dlsym(handle, "cuGetProcAddress");
    if (!by_name_v2) by_name_v2 = (__typeof__(by_name_v2))dlsym(handle, "cuGetProcAddress_v2");
    /* Where no variant of the symbol is per thread, the flags say nothing. */
    uint64_t flags = f->flags ? 2 : 1;
    if (!strcmp(method, "linked")) return f->linked;
    if (!strcmp(method, "handle")) return dlsym(handle, f->name);
    if (!strcmp(method, "default")) return dlsym(RTLD_DEFAULT, f->name);
    if (!strcmp(method, "next")) return dlsym(RTLD_NEXT, f->name);
    if (!strcmp(method, "v1")) return by_name_v1(f->symbol, &found, f->version, (uint64_t)f->flags) ? NULL : found;
    if (!strcmp(method, "v1-late")) return by_name_v1(f->symbol, &found, last_version(f), flags) ? NULL : found;
    if (!strcmp(method, "v2")) return by_name_v2(f->symbol, &found, f->version, (uint64_t)f->flags, NULL) ? NULL : found;
    if (!strcmp(method, "v2-late")) return by_name_v2(f->symbol, &found, last_version(f), flags, &(int){0}) ? NULL : found;
    DIE("no method %s", method);
}

static void driver_find(const char *method) {
    for (int i = 0; i < FUNCTIONS; i++) {
        *functions[i].place = find(method, &functions[i]);
        if (!*functions[i].place) DIE("%s: no %s", method, functions[i].name);
    }
}

enum { KIB = 1 << 10, MIB = 1 << 20 };
#endif
