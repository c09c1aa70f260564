/* Works on and on: work HOW LIMIT SEED [GENERATION].
 *
 *   half    never holds more than half of the limit, by cuMemAlloc_v2 alone, from two threads: until it is killed
 *   wild    every kind of allocation, up to four threads, until it is killed
 *   storm   the same, and ends itself in any of many ways, or becomes another one
 *
 * Says "running" once its threads do. Refusals are fine, anything else is not. */
#include "../quota/kinds.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <unistd.h>

static size_t limit;
static bool wild;
static unsigned seed;
static CUcontext context;
static CUmemoryPool pool;
static atomic_int running;

/* Whoever should end it may have died. */
enum { LONG = 600 };

static unsigned next(unsigned *state) { return (*state = *state * 1664525U + 1013904223U) >> 8; }

enum { SLOTS = 4 };

static void *work(void *number) {
    unsigned state = seed * 31U + (unsigned)(uintptr_t)number * 2654435761U;
    struct got held[SLOTS] = {{0}};
    const struct kind *of[SLOTS] = {0};
    OK(p_cuCtxSetCurrent(context));
    own_pool = pool;
    for (unsigned i = 0;; i++) {
        int slot = next(&state) % SLOTS;
        if (i == SLOTS) running++;
        if (of[slot]) {
            OK(of[slot]->give(&held[slot]));
            of[slot] = NULL;
            continue;
        }
        const struct kind *k = wild ? &kinds[next(&state) % KINDS] : kind_named("cuMemAlloc_v2");
        /* Two threads with four slots have an eighth of the half each. */
        size_t most = limit / (wild ? 3 : 16) / k->grain;
        held[slot] = (struct got){0};
        int code = k->take(&held[slot], (1 + next(&state) % most) * k->grain);
        if (code == 0) of[slot] = k;
        else if (code != CUDA_ERROR_OUT_OF_MEMORY || !wild) DIE("%s gave %d", k->name, code);
    }
    return number;
}

/* A child that has nothing to do with CUDA lives longer than this process, perhaps, or becomes one that has. */
static void leave_a_child(unsigned *state, char **again) {
    unsigned patience = next(state) % 100000;
    bool becomes = next(state) % 3 == 0;
    if (fork()) return;
    alarm(LONG);
    usleep(patience);
    if (becomes) execv("/proc/self/exe", again);
    _exit(0);
}

static void end(unsigned *state, char **again) {
    char *nothing[] = {"true", NULL};
    switch (next(state) % 9) {
    case 0: exit(0);
    case 1: _exit(0);
    case 2: quick_exit(0);
    case 3: abort();
    case 4: raise(SIGKILL); break;
    case 5: execv("/bin/true", nothing); break;
    case 6: execv("/proc/self/exe", again); break;
    case 7: pthread_exit(NULL); /* the others go on until somebody kills them */
    default:
        for (;;) pause();
    }
    DIE("came back");
}

int main(int argc, char **argv) {
    if (argc < 4) return 64;
    bool storms = !strcmp(argv[1], "storm");
    wild = storms || !strcmp(argv[1], "wild");
    limit = strtoull(argv[2], NULL, 10);
    seed = (unsigned)strtoul(argv[3], NULL, 10);
    int generation = argc > 4 ? atoi(argv[4]) : 0;
    unsigned state = seed;
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    alarm(LONG);
    context = begin_cuda();
    pool = own_pool;
    int threads = wild ? 1 + (int)(next(&state) % 4) : 2;
    for (intptr_t i = 0; i < threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, work, (void *)(i + 1))) DIE("no thread");
    }
    while (!storms && running < threads) usleep(200);
    printf("running\n");
    fflush(stdout);
    if (!storms)
        for (;;) pause();
    char new_seed[32], new_generation[32];
    char *again[] = {argv[0], argv[1], argv[2], new_seed, new_generation, NULL};
    snprintf(new_seed, sizeof new_seed, "%u", next(&state));
    snprintf(new_generation, sizeof new_generation, "%d", generation + 1);
    usleep(next(&state) % 60000);
    if (generation < 3 && next(&state) % 3 == 0) leave_a_child(&state, again);
    usleep(next(&state) % 60000);
    if (generation == 3) _exit(0);
    end(&state, again);
}
