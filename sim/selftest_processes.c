/* The part of the self-test that is about more than one process. */
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#include "selftest.h"

void wait_for(pid_t pid) {
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

void hold_some(void) {
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

/* In exclusive mode a device is the first one's until it ends; in prohibited mode nobody's. */
void test_compute_mode(void) {
    int ready[2];
    CHECK(!pipe(ready));
    setenv("CUWARDEN_SIM_COMPUTE_MODE", "exclusive", 1);
    pid_t holder = fork();
    if (!holder) {
        start_context(0);
        CHECK(write(ready[1], "", 1) == 1);
        pause();
    }
    char byte;
    CHECK(read(ready[0], &byte, 1) == 1);
    OK(cuInit(0));
    int mode;
    OK(cuDeviceGetAttribute(&mode, 20, 0));
    EQUAL(mode, 3);
    CUcontext context;
    EQUAL(cuDevicePrimaryCtxRetain(&context, 0), CUDA_ERROR_DEVICE_UNAVAILABLE);
    EQUAL(cuCtxCreate_v2(&context, 0, 0), CUDA_ERROR_DEVICE_UNAVAILABLE);
    OK(cuDevicePrimaryCtxRetain(&context, 1));
    kill(holder, SIGKILL);
    wait_for(holder);
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxCreate_v2(&context, 0, 0));
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
    struct books *b = test_books();
    EQUAL(used(0), 0);
    EQUAL(b->slots_used, 22); /* with this test's own */
    EQUAL(b->state[20], SLOT_DEAD);
    CHECK(b->device[0].peak >= 263 * MIB);
    for (uint32_t i = b->slots_used; i < BOOK_SLOTS; i++) {
        b->slot[i].died = 1000 + i;
        b->state[i] = SLOT_DEAD;
    }
    b->slots_used = BOOK_SLOTS;
    EQUAL(used(0), 0);
    for (uint32_t i = 0; i < 21; i++) { /* the longest dead first */
        if (i == 20) {
            EQUAL(b->slot[i].bytes[0][BOOK_LINEAR], 5 * MIB);
            EQUAL(b->slot[i].bytes[0][BOOK_POOL], 2 * MIB);
            EQUAL(b->slot[i].live, 2);
        }
        in_killed_child(nothing_but_init);
        EQUAL(b->slot[i].joined, 22 + i);
        EQUAL(b->slot[i].live, 0);
    }
    start_context(0);
    EQUAL(used(0), 256 * MIB);
}

/* ---- what the books remember ------------------------------------------------------------------------- */

static void hold_ten(void) {
    CUdeviceptr p;
    start_context(0);
    OK(cuMemAlloc_v2(&p, 10 * MIB));
}

static void printed(const char *what) {
    char command[600], text[1 << 16];
    snprintf(command, sizeof command, "\"$SIM_BOOKS\" '%s'", test_dir);
    FILE *books = popen(command, "r");
    CHECK(books);
    text[fread(text, 1, sizeof text - 1, books)] = 0;
    CHECK(!pclose(books));
    if (!strstr(text, what)) fprintf(stderr, "no %s in %s", what, text);
    CHECK(strstr(text, what));
}

void test_peaks(void) {
    CUdeviceptr p, q;
    size_t pitch;
    in_killed_child(hold_ten);
    struct books *b = test_books();
    const struct book_device *d = &b->device[0];
    EQUAL(d->peak, 266 * MIB);
    EQUAL(d->peak_allocated, 10 * MIB);
    EQUAL(d->grants, 2);
    pid_t other = child(hold_ten); /* beside a dead one, which does not count */
    eventually_used(0, 266 * MIB);
    EQUAL(d->peak, 266 * MIB);
    CUcontext ctx = start_context(0);
    EQUAL(d->peak, 522 * MIB);
    EQUAL(d->peak_allocated, 10 * MIB);
    OK(cuMemAlloc_v2(&p, 4 * MIB));
    EQUAL(d->peak_allocated, 14 * MIB);
    end(other); /* nobody has noticed yet */
    OK(cuMemAlloc_v2(&q, 11 * MIB));
    EQUAL(d->peak_allocated, 15 * MIB);
    OK(cuMemFree_v2(p));
    EQUAL(d->allocated, 11 * MIB);
    EQUAL(d->used, 267 * MIB);
    EQUAL(d->grants, 7);
    EQUAL(d->refusals, 0);
    EQUAL(cuMemAlloc_v2(&p, d->is.total), CUDA_ERROR_OUT_OF_MEMORY);
    EQUAL(cuMemAllocPitch_v2(&p, &pitch, SIZE_MAX, 1, 4), CUDA_ERROR_OUT_OF_MEMORY);
    EQUAL(cuMemAllocAsync(&p, SIZE_MAX, NULL), CUDA_ERROR_OUT_OF_MEMORY);
    EQUAL(cuMemAllocManaged(&p, SIZE_MAX, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_OUT_OF_MEMORY);
    EQUAL(d->refusals, 4);
    EQUAL(b->device[1].refusals, 0);
    OK(cuCtxCreate_v2(&ctx, 0, 0)); /* what a context costs is no allocation */
    EQUAL(d->allocated, 11 * MIB);
    EQUAL(d->peak, 526 * MIB);
    EQUAL(own_slot()->contexts[0], 2);
    OK(cuCtxDestroy_v2(ctx));
    EQUAL(own_slot()->contexts[0], 1);
    printed("\"used\":279969792,\"peak\":551550976,\"allocated\":11534336,\"peak_allocated\":15728640,\"grants\":8,\"refusals\":4}");
    printed("\"contexts\":[1,0],\"live\":1,");
}

/* ---- the lock ---------------------------------------------------------------------------------------- */

static atomic_int *step;

static void hold_the_lock(void) {
    books_lock(test_books());
    atomic_store(step, 1);
    usleep(50000);
    atomic_store(step, 2);
    books_unlock(test_books());
}

static void die_in_a_change(void) {
    start_context(0);
    struct book_slot *s = own_slot();
    struct books *b = test_books();
    books_lock(b);
    s->change.bytes = 5 * MIB;
    s->change.kind = BOOK_LINEAR;
    s->change.live = 1;
    s->change.contexts = 1;
    s->change.grants = 2;
    atomic_store(&s->change.valid, 1);
    atomic_store(step, 3);
}

static void test_lock_with(pid_t (*start)(void (*test)(void))) {
    struct books *b = test_books();
    b->device[0].peak = b->device[0].peak_allocated = b->device[0].grants = 0;
    atomic_store(step, 0);
    pid_t pid = start(hold_the_lock);
    if (pid < 0) return;
    while (!atomic_load(step)) usleep(1000);
    EQUAL(used(0), 0);
    EQUAL(atomic_load(step), 2); /* waited for, however long it takes */
    end(pid);
    pid = start(die_in_a_change);
    while (atomic_load(step) != 3) usleep(1000);
    end(pid);
    EQUAL(used(0), 0);
    EQUAL(b->device[0].peak_allocated, 5 * MIB); /* once it is written down, it is done */
    EQUAL(b->device[0].peak, 261 * MIB);
    EQUAL(b->device[0].grants, 2);
}

static pid_t inside(void (*test)(void)) { return child_in_namespace(test, false); }

void test_lock(void) {
    step = shared_memory(4096);
    test_lock_with(child);
    test_lock_with(inside);
}

/* ---- many processes, killed at any instruction ----------------------------------------------------- */

enum { WORKERS = 6, ROUNDS = 40, BYTES = 4096 };

/* What a worker knows that it holds, beside the books: they may differ by the one call in progress. */
struct diary {
    atomic_long held, slot;
    char pad[48];
};

static struct diary *diary;
static unsigned int seed_of_workers;

static void work(void) {
    CUdeviceptr live[64];
    int n = 0;
    struct diary *d = diary;
    start_context(0);
    atomic_store(&d->slot, own_slot() - test_books()->slot);
    atomic_store(&d->held, 0);
    for (unsigned int seed = seed_of_workers;;) {
        if (n < 64 && (n == 0 || rand_r(&seed) % 2)) {
            OK(cuMemAlloc_v2(&live[n++], BYTES));
            atomic_fetch_add(&d->held, 1);
        } else {
            OK(cuMemFree_v2(live[--n]));
            atomic_fetch_sub(&d->held, 1);
        }
    }
}

/* Every other one in a namespace of its own, where all are pid 1. */
void test_storm(void) {
    setenv("CUWARDEN_SIM_CONTEXT", "1m", 1);
    struct diary *diaries = shared_memory(sizeof *diaries * WORKERS);
    struct books *b = test_books(); /* without cuInit, which would be the workers' end */
    unsigned int seed = 1;
    long changes = 0;
    for (int round = 0; round < ROUNDS; round++) {
        pid_t pids[WORKERS];
        for (int i = 0; i < WORKERS; i++) {
            diary = &diaries[i];
            atomic_store(&diary->held, -1);
            seed_of_workers = (unsigned int)rand_r(&seed);
            pids[i] = i % 2 ? child_in_namespace(work, false) : -1;
            if (pids[i] < 0) pids[i] = child(work);
        }
        nanosleep(&(struct timespec){0, 1000000 + rand_r(&seed) % 20000000}, NULL);
        for (int i = 0; i < WORKERS; i++) kill(pids[i], SIGKILL);
        for (int i = 0; i < WORKERS; i++) wait_for(pids[i]);
        EQUAL(used(0), 0);
        for (int i = 0; i < WORKERS; i++) {
            const struct book_slot *s = &b->slot[atomic_load(&diaries[i].slot)];
            long known = atomic_load(&diaries[i].held);
            if (known < 0) continue;
            EQUAL(s->bytes[0][BOOK_LINEAR], s->live * BYTES);
            CHECK(labs((long)s->live - known) <= 1);
            changes += (long)(s->calls[FN_cuMemAlloc_v2] + s->calls[FN_cuMemFree_v2]);
        }
    }
    CHECK(changes > 1000);
    CHECK(b->device[0].peak <= WORKERS * (MIB + 64 * BYTES));
    CHECK(b->device[0].peak_allocated <= WORKERS * 64 * BYTES);
}
