/* Processes that meet: race MODE PROCESSES ROUNDS LIMIT KIND [THREADS|PARTS]. Each is a CUDA process of its own; what they
 * do is set in step by a barrier that they share. */
#include "../quota/kinds.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 512 };
static struct shared {
    pthread_barrier_t barrier;
    /* Counted up after a grant and down before a free, so it is never more than what is granted: a second witness
     * beside the driver's books, and the only one where the driver keeps none. */
    atomic_uint_fast64_t granted;
    atomic_int winners, unserved;
} *shared;

static size_t limit;
static int processes, rounds, extra;
static const struct kind *kind;
static CUcontext own_context;

static void meet(void) { pthread_barrier_wait(&shared->barrier); }

static int take(struct got *g, size_t bytes) {
    *g = (struct got){0};
    int code = kind->take(g, bytes);
    if (code != 0 && code != CUDA_ERROR_OUT_OF_MEMORY) DIE("%s gave %d", kind->name, code);
    if (code) return code;
    uint64_t now = atomic_fetch_add(&shared->granted, bytes) + bytes;
    if (now > limit) DIE("%llu bytes are granted under %zu", (unsigned long long)now, limit);
    return 0;
}

static void give(struct got *g, size_t bytes) {
    atomic_fetch_sub(&shared->granted, bytes);
    OK(kind->give(g));
}

static size_t part(int parts) { return limit / (size_t)parts / kind->grain * kind->grain; }

static unsigned next(unsigned *state) { return (*state = *state * 1664525U + 1013904223U) >> 8; }

/* Together they never want more than there is: nobody may be refused. */
static void fit(int number) {
    size_t share = part(processes);
    meet();
    for (int i = 0; i < rounds; i++) {
        struct got g;
        if (take(&g, share)) DIE("%d was refused in round %d", number, i);
        give(&g, share);
    }
}

/* All ask at once for a part of which there are so many: exactly so many get it. */
static void winners(int number) {
    size_t share = part(extra);
    int expected = processes < extra ? processes : extra;
    for (int i = 0; i < rounds; i++) {
        struct got g;
        meet();
        bool won = !take(&g, share);
        if (won) atomic_fetch_add(&shared->winners, 1);
        meet();
        int all = atomic_load(&shared->winners);
        if (all != expected) DIE("round %d: %d have a part, not %d", i, all, expected);
        meet();
        if (number == 0) atomic_store(&shared->winners, 0);
        if (won) give(&g, share);
    }
}

/* Threads of several processes want somewhat more than there is, until each of them got it often enough. */
static void *at_the_edge(void *number) {
    unsigned state = (unsigned)(uintptr_t)number * 2654435761U + 1;
    OK(p_cuCtxSetCurrent(own_context));
    for (int served = 0; atomic_load(&shared->unserved) > 0;) {
        struct got g;
        size_t bytes = (limit / 8 + next(&state) % (limit / 4)) / kind->grain * kind->grain;
        if (take(&g, bytes)) {
            sched_yield();
            continue;
        }
        if (next(&state) % 4 == 0) sched_yield();
        give(&g, bytes);
        if (++served == rounds) atomic_fetch_sub(&shared->unserved, 1);
    }
    return NULL;
}

static void edge(int number) {
    pthread_t threads[64];
    meet();
    for (intptr_t i = 0; i < extra; i++) pthread_create(&threads[i], NULL, at_the_edge, (void *)(number * 64 + i + 1));
    for (int i = 0; i < extra; i++) pthread_join(threads[i], NULL);
}

/* By every kind of allocation, with no order in it. */
static void kinds_of_all(int number) {
    unsigned state = (unsigned)number * 2654435761U + 1;
    struct got held[8] = {{0}};
    const struct kind *of[8] = {0};
    meet();
    for (int i = 0; i < rounds; i++) {
        int slot = next(&state) % 8;
        if (of[slot]) {
            OK(of[slot]->give(&held[slot]));
            of[slot] = NULL;
            continue;
        }
        const struct kind *k = &kinds[next(&state) % KINDS];
        held[slot] = (struct got){0};
        int code = k->take(&held[slot], (1 + next(&state) % (limit / 4 / k->grain)) * k->grain);
        if (code == 0) of[slot] = k;
        else if (code != CUDA_ERROR_OUT_OF_MEMORY) DIE("%s gave %d", k->name, code);
    }
    for (int slot = 0; slot < 8; slot++)
        if (of[slot]) OK(of[slot]->give(&held[slot]));
}

/* Nobody has started before all are there; nobody ends before all have what they want. */
static void start(int number) {
    struct got g;
    size_t share = part(processes);
    if (take(&g, share)) DIE("%d was refused", number);
    meet();
}

/* Contexts come and go, with something in them; either may be refused. */
static void contexts(int number) {
    unsigned state = (unsigned)number * 2654435761U + 1;
    meet();
    for (int i = 0; i < rounds; i++) {
        CUcontext context;
        int code = p_cuDevicePrimaryCtxRetain(&context, 0);
        if (code == CUDA_ERROR_OUT_OF_MEMORY) {
            sched_yield();
            continue;
        }
        OK(code);
        OK(p_cuCtxSetCurrent(context));
        CUdeviceptr p;
        size_t bytes = 1 + next(&state) % (limit / 2);
        code = p_cuMemAlloc_v2(&p, bytes);
        if (code != CUDA_ERROR_OUT_OF_MEMORY) {
            OK(code);
            OK(p_cuMemFree_v2(p));
        }
        OK(p_cuDevicePrimaryCtxRelease_v2(0));
    }
}

static const struct mode {
    const char *name;
    void (*run)(int);
    bool at_once; /* they meet before CUDA is started, or have no context yet */
} modes[] = {{"fit", fit, false},   {"winners", winners, false}, {"edge", edge, false},
             {"all", kinds_of_all, false}, {"start", start, true},      {"contexts", contexts, true}};

static void child(const struct mode *mode, int number) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (mode->run == contexts) {
        driver_find("linked");
        OK(p_cuInit(0));
    } else {
        if (mode->at_once) meet();
        own_context = begin_cuda();
        OK(p_cuStreamCreate(&own_stream, 1));
    }
    mode->run(number);
    exit(0);
}

int main(int argc, char **argv) {
    const struct mode *mode = NULL;
    if (argc < 6) return 64;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (!strcmp(argv[1], modes[i].name)) mode = &modes[i];
    processes = atoi(argv[2]);
    rounds = atoi(argv[3]);
    limit = strtoull(argv[4], NULL, 10);
    kind = kind_named(argv[5]);
    extra = argc > 6 ? atoi(argv[6]) : 1;
    if (!mode || processes > MOST || extra > 64) return 64;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 65;
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->barrier, &attributes, (unsigned)processes);
    atomic_store(&shared->unserved, processes * extra);
    for (int i = 0; i < processes; i++) {
        pid_t pid = fork();
        if (pid < 0) DIE("fork: %s", strerror(errno));
        if (!pid) child(mode, i);
    }
    /* The first one that fails ends the race: the others wait for it at the barrier. */
    for (int i = 0; i < processes; i++) {
        int status;
        pid_t pid = wait(&status);
        if (status) DIE("process %d ended with %#x", pid, status);
    }
    return 0;
}
