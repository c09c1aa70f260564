/* What one call costs, with and without the shim. Prints "name nanoseconds" lines: the best of several rounds,
 * since everything else on a shared machine only ever adds. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int (*init_f)(unsigned);
typedef int (*ctx_f)(void **, unsigned, int);
typedef int (*set_f)(void *);
typedef int (*alloc_f)(uint64_t *, size_t);
typedef int (*free_f)(uint64_t);
typedef int (*info_f)(size_t *, size_t *);
typedef int (*launch_f)(void *, void *);

static alloc_f alloc_memory;
static free_f free_memory;
static set_f set_context;
static void *context;

enum { ROUNDS = 15 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static void check(int code, const char *what)
{
    if (code != 0) {
        fprintf(stderr, "%s: %d\n", what, code);
        exit(1);
    }
}

static void *sink;

static double malloc_pair(void)
{
    enum { N = 200000 };
    double best = 1e18;
    for (int round = 0; round < ROUNDS; round++) {
        double start = now();
        for (int i = 0; i < N; i++) {
            void *p = malloc(64);
            __asm__ volatile("" : : "r"(p) : "memory");
            free(p);
        }
        double each = (now() - start) / N;
        best = each < best ? each : best;
    }
    return best;
}

static void pairs(int n)
{
    for (int i = 0; i < n; i++) {
        uint64_t p;
        check(alloc_memory(&p, 4096), "alloc");
        check(free_memory(p), "free");
    }
}

static double alloc_pair(int n)
{
    double best = 1e18;
    for (int round = 0; round < ROUNDS; round++) {
        double start = now();
        pairs(n);
        double each = (now() - start) / n;
        best = each < best ? each : best;
    }
    return best;
}

/* A stack of a known depth above the call. */
__attribute__((noinline)) static double deep(int depth, int n)
{
    if (depth == 0)
        return alloc_pair(n);
    double result = deep(depth - 1, n);
    __asm__ volatile("" : : : "memory");
    return result;
}

static atomic_int ready;
static atomic_int go;
enum { THREAD_PAIRS = 200000 };

static void *thread(void *unused)
{
    (void)unused;
    check(set_context(context), "cuCtxSetCurrent");
    pairs(1000);
    atomic_fetch_add(&ready, 1);
    while (!atomic_load(&go)) {
    }
    pairs(THREAD_PAIRS);
    return NULL;
}

/* Pairs a millisecond of all threads together. */
static double threads(int count)
{
    double best = 0;
    for (int round = 0; round < 5; round++) {
        pthread_t id[8];
        atomic_store(&ready, 0);
        atomic_store(&go, 0);
        for (int i = 0; i < count; i++)
            pthread_create(&id[i], NULL, thread, NULL);
        while (atomic_load(&ready) != count) {
        }
        double start = now();
        atomic_store(&go, 1);
        for (int i = 0; i < count; i++)
            pthread_join(id[i], NULL);
        double rate = (double)count * THREAD_PAIRS / ((now() - start) / 1e6);
        best = rate > best ? rate : best;
    }
    return best;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "all";
    printf("malloc %.2f\n", malloc_pair());
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    alloc_memory = (alloc_f)dlsym(driver, "cuMemAlloc_v2");
    free_memory = (free_f)dlsym(driver, "cuMemFree_v2");
    set_context = (set_f)dlsym(driver, "cuCtxSetCurrent");
    info_f info = (info_f)dlsym(driver, "cuMemGetInfo_v2");
    launch_f launch = (launch_f)dlsym(driver, "cuGraphLaunch");
    check(((init_f)dlsym(driver, "cuInit"))(0), "cuInit");
    check(((ctx_f)dlsym(driver, "cuCtxCreate_v2"))(&context, 0, 0), "cuCtxCreate");

    if (strcmp(what, "deep") == 0) {
        printf("pair_deep %.2f\n", deep(24, 20000));
        return 0;
    }
    pairs(1000);
    printf("pair %.2f\n", alloc_pair(50000));
    enum { LIVE = 100000 };
    uint64_t *live = malloc(LIVE * sizeof *live);
    for (int i = 0; i < LIVE; i++)
        check(alloc_memory(&live[i], 256), "alloc");
    printf("pair_100k_live %.2f\n", alloc_pair(50000));
    for (int i = 0; i < LIVE; i++)
        check(free_memory(live[i]), "free");

    double best = 1e18, unhooked = 1e18, other = 1e18, graph = 1e18;
    for (int round = 0; round < ROUNDS; round++) {
        enum { N = 20000 };
        size_t f, t;
        double start = now();
        for (int i = 0; i < N; i++)
            info(&f, &t);
        double each = (now() - start) / N;
        best = each < best ? each : best;
        start = now();
        for (int i = 0; i < N; i++)
            sink = dlsym(driver, "cuStreamWaitEvent");
        each = (now() - start) / N;
        unhooked = each < unhooked ? each : unhooked;
        start = now();
        for (int i = 0; i < N; i++)
            sink = dlsym(driver, "nothing_of_the_driver");
        each = (now() - start) / N;
        other = each < other ? each : other;
        start = now();
        for (int i = 0; i < N; i++)
            launch((void *)0x1, NULL);
        each = (now() - start) / N;
        graph = each < graph ? each : graph;
    }
    printf("mem_get_info %.2f\n", best);
    printf("dlsym_not_hooked %.2f\n", unhooked);
    printf("graph_launch %.2f\n", graph);
    printf("rate_1 %.1f\n", threads(1));
    printf("rate_2 %.1f\n", threads(2));
    printf("rate_4 %.1f\n", threads(4));
    return 0;
}
