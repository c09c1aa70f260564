/* The part of the self-test that is about more than one process. */
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#include "selftest.h"

static uint64_t used(int device) { return books_used(test_books(), device); }

static void wait_for(pid_t pid) {
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
}

/* A child that ends as test() does, killed at the end. */
static void in_killed_child(void (*test)(void)) {
    pid_t pid = fork();
    if (!pid) {
        test();
        kill(getpid(), SIGKILL);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void hold_some(void) {
    CUdeviceptr p;
    start_context(0);
    OK(cuMemAlloc_v2(&p, 5 * MIB));
    OK(cuMemAllocAsync(&p, MIB, NULL));
}

void test_killed(void) {
    in_killed_child(hold_some);
    struct books *b = test_books();
    EQUAL(used(0), 0);
    EQUAL(b->device[0].peak, 263 * MIB);
    EQUAL(b->state[0], SLOT_DEAD);
    /* Not waited for: a zombie holds no memory either. */
    pid_t pid = fork();
    if (!pid) {
        hold_some();
        _exit(0);
    }
    siginfo_t info;
    CHECK(!waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT));
    EQUAL(used(0), 0);
    wait_for(pid);
}

void test_no_descriptor(void) {
    int before = dup(0);
    close(before);
    start_context(0);
    int after = dup(0);
    EQUAL(after, before);
}

void test_fork(void) {
    CUdeviceptr p;
    CUcontext now;
    start_context(0);
    OK(cuMemAlloc_v2(&p, MIB));
    pid_t pid = fork();
    if (!pid) {
        EQUAL(cuInit(0), CUDA_ERROR_NOT_INITIALIZED);
        EQUAL(cuMemFree_v2(p), CUDA_ERROR_NOT_INITIALIZED);
        EQUAL(cuCtxGetCurrent(&now), CUDA_ERROR_NOT_INITIALIZED);
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && !status);
    EQUAL(held(0, BOOK_LINEAR), MIB);
    EQUAL(used(0), 257 * MIB);
}

void test_ipc(void) {
    int to_child[2], to_parent[2];
    CHECK(!pipe(to_child) && !pipe(to_parent));
    pid_t pid = fork();
    CUipcMemHandle handle;
    CUdeviceptr p;
    char done;
    if (!pid) {
        CHECK(read(to_child[0], &handle, sizeof handle) == sizeof handle);
        start_context(0);
        OK(cuIpcOpenMemHandle_v2(&p, handle, 1));
        EQUAL(held(0, BOOK_LINEAR), 0);
        CHECK(write(to_parent[1], "x", 1) == 1);
        EQUAL(cuMemFree_v2(p), CUDA_ERROR_INVALID_VALUE);
        OK(cuIpcCloseMemHandle(p));
        _exit(0);
    }
    start_context(0);
    OK(cuMemAlloc_v2(&p, 3 * MIB));
    OK(cuIpcGetMemHandle(&handle, p));
    CHECK(write(to_child[1], &handle, sizeof handle) == sizeof handle);
    CHECK(read(to_parent[0], &done, 1) == 1);
    EQUAL(held(0, BOOK_LINEAR), 3 * MIB);
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && !status);
    EQUAL(used(0), 259 * MIB);
}

static void nothing_but_init(void) { OK(cuInit(0)); }

/* The dead stay in the books, each with what it held, until their room is needed. */
void test_reuse_of_slot(void) {
    for (int i = 0; i < 20; i++) in_killed_child(nothing_but_init);
    in_killed_child(hold_some);
    start_context(0);
    struct books *b = test_books();
    EQUAL(b->slots_used, 22);
    EQUAL(b->state[20], SLOT_DEAD);
    EQUAL(b->slot[20].bytes[0][BOOK_LINEAR], 5 * MIB);
    EQUAL(b->slot[20].bytes[0][BOOK_POOL], 2 * MIB);
    EQUAL(b->slot[20].live, 2);
    EQUAL(used(0), 256 * MIB);
    CHECK(b->device[0].peak >= 263 * MIB);
}

/* ---- many processes, killed at any instruction ----------------------------------------------------- */

enum { WORKERS = 6, ROUNDS = 40, BYTES = 4096 };

/* What a worker knows that it holds, beside the books: they may differ by the one call in progress. */
struct diary {
    atomic_long held;
    char pad[56];
};

static void work(struct diary *d) {
    CUdeviceptr live[64];
    int n = 0;
    start_context(0);
    atomic_store(&d->held, 0);
    for (unsigned int seed = (unsigned int)getpid();;) {
        if (n < 64 && (n == 0 || rand_r(&seed) % 2)) {
            OK(cuMemAlloc_v2(&live[n++], BYTES));
            atomic_fetch_add(&d->held, 1);
        } else {
            OK(cuMemFree_v2(live[--n]));
            atomic_fetch_sub(&d->held, 1);
        }
    }
}

static const struct book_slot *slot_of(const struct books *b, pid_t pid) {
    for (uint32_t i = b->slots_used; i-- > 0;)
        if (b->state[i] != SLOT_FREE && b->slot[i].pid == pid) return &b->slot[i];
    return NULL;
}

void test_storm(void) {
    setenv("CUWARDEN_SIM_CONTEXT", "1m", 1);
    struct diary *diaries = mmap(NULL, sizeof *diaries * WORKERS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(diaries != MAP_FAILED);
    struct books *b = books_open(sim_config()); /* without cuInit, which would be the workers' end */
    CHECK(b);
    unsigned int seed = 1;
    long changes = 0;
    for (int round = 0; round < ROUNDS; round++) {
        pid_t pids[WORKERS];
        for (int i = 0; i < WORKERS; i++) {
            atomic_store(&diaries[i].held, -1);
            pids[i] = fork();
            if (!pids[i]) work(&diaries[i]);
        }
        nanosleep(&(struct timespec){0, 1000000 + rand_r(&seed) % 20000000}, NULL);
        for (int i = 0; i < WORKERS; i++) kill(pids[i], SIGKILL);
        for (int i = 0; i < WORKERS; i++) wait_for(pids[i]);
        EQUAL(used(0), 0);
        for (int i = 0; i < WORKERS; i++) {
            const struct book_slot *s = slot_of(b, pids[i]);
            long known = atomic_load(&diaries[i].held);
            if (!s || known < 0) continue;
            EQUAL(s->bytes[0][BOOK_LINEAR], s->live * BYTES);
            CHECK(labs((long)s->live - known) <= 1);
            changes += (long)(s->calls[FN_cuMemAlloc_v2] + s->calls[FN_cuMemFree_v2]);
        }
    }
    CHECK(changes > 1000);
    CHECK(b->device[0].peak <= WORKERS * (MIB + 64 * BYTES));
}
