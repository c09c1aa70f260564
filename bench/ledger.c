/* Processes that share one quota.
 *
 *   ledger hold N      N processes that hold something and do nothing; "ready", and then until stdin ends
 *   ledger edge        2 processes with 4 threads each that together want more than there is, for a second; prints what
 *                      the unluckiest thread got against the average, and the longest time in ms in which nobody of
 *                      them got anything
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PROCESSES = 2, THREADS = 4, ALL = PROCESSES * THREADS };
/* The quota is for six of these. */
static const size_t SHARE = (size_t)1 << 30;

typedef int (*alloc_f)(uint64_t *, size_t);

static alloc_f alloc_memory;
static int (*free_memory)(uint64_t);
static int (*set_context)(void *);
static void *context;

static struct shared {
    atomic_int ready, stop;
    atomic_uint_fast64_t got[ALL], latest, gap;
} *shared;

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void check(int code, const char *what)
{
    if (code != 0) {
        fprintf(stderr, "%s: %d\n", what, code);
        exit(1);
    }
}

static void begin(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    alloc_memory = (alloc_f)dlsym(driver, "cuMemAlloc_v2");
    free_memory = (int (*)(uint64_t))dlsym(driver, "cuMemFree_v2");
    set_context = (int (*)(void *))dlsym(driver, "cuCtxSetCurrent");
    check(((int (*)(unsigned))dlsym(driver, "cuInit"))(0), "cuInit");
    check(((int (*)(void **, unsigned, int))dlsym(driver, "cuCtxCreate_v2"))(&context, 0, 0), "cuCtxCreate");
}

static void hold(int count)
{
    for (int i = 0; i < count; i++) {
        if (fork())
            continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        begin();
        uint64_t p;
        for (int n = 0; n < 8; n++)
            check(alloc_memory(&p, 4096), "alloc");
        atomic_fetch_add(&shared->ready, 1);
        pause();
        _exit(0);
    }
    while (atomic_load(&shared->ready) != count)
        usleep(1000);
    puts("ready");
    fflush(stdout);
    while (getchar() != EOF) {
    }
}

static void note_success(int number)
{
    uint64_t time = now();
    uint64_t before = atomic_exchange(&shared->latest, time);
    uint64_t gap = before && time > before ? time - before : 0, longest = atomic_load(&shared->gap);
    while (gap > longest && !atomic_compare_exchange_weak(&shared->gap, &longest, gap)) {
    }
    atomic_fetch_add(&shared->got[number], 1);
}

static void *greedy(void *number)
{
    check(set_context(context), "cuCtxSetCurrent");
    atomic_fetch_add(&shared->ready, 1);
    while (atomic_load(&shared->ready) != ALL) {
    }
    while (!atomic_load(&shared->stop)) {
        uint64_t p;
        if (alloc_memory(&p, SHARE) != 0)
            continue;
        note_success((int)(intptr_t)number);
        check(free_memory(p), "free");
    }
    return NULL;
}

static void edge(void)
{
    for (int process = 0; process < PROCESSES; process++) {
        if (fork())
            continue;
        begin();
        pthread_t id[THREADS];
        for (int i = 0; i < THREADS; i++)
            pthread_create(&id[i], NULL, greedy, (void *)(intptr_t)(process * THREADS + i));
        for (int i = 0; i < THREADS; i++)
            pthread_join(id[i], NULL);
        _exit(0);
    }
    sleep(1);
    atomic_store(&shared->stop, 1);
    int status;
    while (wait(&status) > 0)
        check(status, "a process");
    uint64_t least = UINT64_MAX, all = 0;
    for (int i = 0; i < ALL; i++) {
        uint64_t got = atomic_load(&shared->got[i]);
        least = got < least ? got : least;
        all += got;
    }
    printf("edge_unluckiest %.3f\nedge_gap_ms %.2f\n", all ? (double)least * ALL / (double)all : 0,
           (double)atomic_load(&shared->gap) / 1e6);
}

int main(int argc, char **argv)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (argc == 3 && strcmp(argv[1], "hold") == 0)
        hold(atoi(argv[2]));
    else if (argc == 2 && strcmp(argv[1], "edge") == 0)
        edge();
    else
        return 64;
    return 0;
}
