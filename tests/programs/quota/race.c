/* Many threads at the edge of a quota: race MODE THREADS ROUNDS LIMIT. */
#include "kinds.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

static size_t limit;
static int rounds, threads, mode;
enum { FIT, OVER, REUSE };
static CUcontext context;
static CUmemoryPool shared_pool;
static const struct kind *kind;
static pthread_barrier_t barrier;
static atomic_int stop;

static void enter(void) {
    OK(p_cuCtxSetCurrent(context));
    OK(p_cuStreamCreate(&own_stream, 1));
    own_pool = shared_pool;
}

/* All threads together never ask for more than there is: none may be refused. */
static void *fit(void *unused) {
    size_t share = limit / (size_t)threads / kind->grain * kind->grain;
    enter();
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < rounds; i++) {
        struct got g = {0};
        OK(kind->take(&g, share));
        OK(kind->give(&g));
    }
    return unused;
}

/* Together they ask for far more, by every kind: each is served or refused, and nothing else. */
static void *over(void *number) {
    unsigned state = (unsigned)(uintptr_t)number * 2654435761U + 1;
    struct got held[8] = {{0}};
    const struct kind *of[8] = {0};
    enter();
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < rounds; i++) {
        state = state * 1664525U + 1013904223U;
        int slot = state >> 29;
        if (of[slot]) {
            OK(of[slot]->give(&held[slot]));
            of[slot] = NULL;
            continue;
        }
        const struct kind *k = kind ? kind : &kinds[(state >> 8) % KINDS];
        size_t grains = limit / 4 / k->grain;
        int code = k->take(&held[slot], (1 + (state >> 12) % grains) * k->grain);
        if (code == 0) of[slot] = k;
        else if (code != 2) DIE("%s gave %d", k->name, code);
    }
    for (int slot = 0; slot < 8; slot++)
        if (of[slot]) OK(of[slot]->give(&held[slot]));
    return NULL;
}

/* The smallest things as fast as can be, so that the driver gives the same addresses and handles to one thread that
 * another has just given back. */
static void *reuse(void *unused) {
    enter();
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < rounds; i++) {
        const struct kind *k = kind ? kind : &kinds[i % KINDS];
        struct got g = {0};
        CUdeviceptr at;
        OK(k->take(&g, k->grain));
        if (k->take == take_physical) {
            OK(p_cuMemAddressReserve(&at, 2 * MIB, 0, 0, 0));
            OK(p_cuMemMap(at, 2 * MIB, 0, g.value, 0));
            OK(k->give(&g));
            OK(p_cuMemUnmap(at, 2 * MIB));
            OK(p_cuMemAddressFree(at, 2 * MIB));
        } else {
            OK(k->give(&g));
        }
    }
    return unused;
}

/* Contexts come and go beside them, with what is in them. */
static void *contexts(void *unused) {
    while (!atomic_load(&stop)) {
        CUcontext ctx;
        CUdeviceptr p;
        OK(p_cuCtxCreate_v2(&ctx, 0, 0));
        for (int i = 0; i < 5; i++) OK(p_cuMemAlloc_v2(&p, 512));
        OK(p_cuMemFree_v2(p));
        OK(p_cuCtxDestroy_v2(ctx));
    }
    return unused;
}

int main(int argc, char **argv) {
    if (argc < 6) return 64;
    static const struct { const char *name; void *(*run)(void *); } modes[] = {{"fit", fit}, {"over", over}, {"reuse", reuse}};
    void *(*body)(void *) = NULL;
    for (size_t i = 0; i < 3; i++)
        if (!strcmp(argv[1], modes[i].name)) body = modes[i].run, mode = (int)i;
    if (!body) return 64;
    threads = atoi(argv[2]);
    rounds = atoi(argv[3]);
    limit = strtoull(argv[4], NULL, 10);
    kind = strcmp(argv[5], "all") ? kind_named(argv[5]) : NULL;
    context = begin_cuda();
    shared_pool = own_pool;
    pthread_t thread[64], other;
    pthread_barrier_init(&barrier, NULL, (unsigned)threads);
    if (mode == REUSE) pthread_create(&other, NULL, contexts, NULL);
    for (intptr_t i = 0; i < threads; i++) pthread_create(&thread[i], NULL, body, (void *)(i + 1));
    for (int i = 0; i < threads; i++) pthread_join(thread[i], NULL);
    atomic_store(&stop, 1);
    if (mode == REUSE) pthread_join(other, NULL);
    CUmemoryPool pool;
    OK(p_cuDeviceGetDefaultMemPool(&pool, 0));
    OK(p_cuMemPoolTrimTo(pool, 0));
    OK(p_cuMemPoolTrimTo(shared_pool, 0));
    OK(p_cuDeviceGraphMemTrim(0));
    size_t free_bytes, total;
    OK(p_cuMemGetInfo_v2(&free_bytes, &total));
    if (total != free_bytes) DIE("%zu in use at the end", total - free_bytes);
    return 0;
}
