/* The part of the self-test that is about how the driver learns that a process has ended, or become another one:
 * in the same namespace of pids and in others, whatever /proc shows. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "nvml_abi.h"
#include "selftest.h"

enum { SOME = 263, CONTEXT = 256 }; /* MiB: what hold_some() takes, and what of it the context */

static void short_while(void) { nanosleep(&(struct timespec){0, 2000000}, NULL); }

uint64_t used(int device) { return books_used(test_books(), device); }

void eventually_used(int device, uint64_t bytes) {
    for (int i = 0; i < 5000 && used(device) != bytes; i++) short_while();
    EQUAL(used(device), bytes);
}

void *shared_memory(size_t size) {
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    return memory;
}

static void go_on(void) {
    for (;;) pause();
}

/* Nobody is left behind when the test fails. */
static void die_with_parent(void) { prctl(PR_SET_PDEATHSIG, SIGKILL); }

pid_t child(void (*test)(void)) {
    pid_t pid = fork();
    if (pid) return pid;
    die_with_parent();
    test();
    go_on();
    return 0;
}

/* As a container's first process. Its /proc stays the one from outside, unless it gets its own. */
pid_t child_in_namespace(void (*test)(void), bool own_proc) {
    int flags = CLONE_NEWPID | SIGCHLD | (own_proc ? CLONE_NEWNS : 0);
    pid_t pid = (pid_t)syscall(SYS_clone, flags, NULL, NULL, NULL, NULL);
    if (pid < 0) pid = (pid_t)syscall(SYS_clone, flags | CLONE_NEWUSER, NULL, NULL, NULL, NULL);
    if (pid) return pid;
    die_with_parent();
    EQUAL(getpid(), 1);
    if (own_proc && (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) || mount("proc", "/proc", "proc", 0, NULL)))
        fprintf(stderr, "(no /proc for a namespace: %s)\n", strerror(errno));
    test();
    go_on();
    return 0;
}

void end(pid_t pid) {
    CHECK(!kill(pid, SIGKILL));
    wait_for(pid);
}

/* ---- exec ------------------------------------------------------------------------------------------------ */

/* Programs that a process becomes: `idle` never uses CUDA, `nvml` only NVML. */
int become(const char *what) {
    snprintf(test_dir, sizeof test_dir, "%s", getenv("CUWARDEN_SIM_DIR"));
    if (!strncmp(what, "holder-", 7)) {
        hold_some();
        execl("/proc/self/exe", "selftest", "--as", what + 7, NULL);
        return 1;
    }
    if (!strcmp(what, "nvml")) OK(nvmlInit_v2());
    if (!strcmp(what, "cuda")) start_context(0);
    go_on();
    return 0;
}

static const char *image;
static bool random_places;

static void become_image(void) {
    /* Without random addresses the new program's stack may be where the old one's was. */
    if (!random_places) personality(ADDR_NO_RANDOMIZE);
    execl("/proc/self/exe", "selftest", "--as", image, NULL);
}

static void *become_from_thread(void *unused) {
    become_image();
    return unused;
}

static void exec_from_thread(void) {
    pthread_t thread;
    hold_some();
    pthread_create(&thread, NULL, become_from_thread, NULL);
}

void test_exec(void) {
    static const struct { const char *image; int after; } cases[] = {{"holder-idle", 0}, {"holder-nvml", 0}, {"holder-cuda", CONTEXT}};
    struct books *b = test_books();
    for (int i = 0; i < 6; i++) {
        uint64_t joins = b->joins;
        image = cases[i / 2].image;
        random_places = i % 2;
        pid_t pid = child(become_image);
        while (b->joins < joins + (cases[i / 2].after ? 2 : 1)) short_while();
        eventually_used(0, (uint64_t)cases[i / 2].after * MIB);
        CHECK(!kill(pid, 0));
        end(pid);
        EQUAL(used(0), 0);
    }
    image = "idle";
    uint64_t peak = b->device[0].peak;
    EQUAL(peak, SOME * MIB);
    pid_t pid = child(exec_from_thread);
    eventually_used(0, 0);
    CHECK(!kill(pid, 0));
    end(pid);
}

/* ---- children, threads, descriptors ------------------------------------------------------------------------ */

static atomic_int *report;

static void fork_and_wait(void) {
    hold_some();
    pid_t pid = fork(); /* this one never calls the driver */
    if (pid)
        atomic_store(report, pid);
    else
        alarm(60);
}

void test_forked_child(void) {
    report = shared_memory(4096);
    CHECK(!prctl(PR_SET_CHILD_SUBREAPER, 1));
    pid_t pid = child(fork_and_wait);
    while (!atomic_load(report)) short_while();
    EQUAL(used(0), SOME * MIB);
    end(pid);
    EQUAL(used(0), 0);
    CHECK(!kill(atomic_load(report), 0));
    end(atomic_load(report));
}

static void see_some(void) {
    EQUAL(used(0), SOME * MIB);
    atomic_store(report, 1);
}

static void see_more(void) {
    EQUAL(used(0), (SOME + 1) * MIB);
    atomic_store(report, 1);
}

static void see(void (*look)(void)) {
    atomic_store(report, 0);
    pid_t pid = child_in_namespace(look, false);
    if (pid < 0) return;
    for (int status; !atomic_load(report); short_while()) CHECK(waitpid(pid, &status, WNOHANG) == 0);
    end(pid);
}

/* As daemons do; the numbers are other files' afterwards. */
static void close_all(void) {
    CUdeviceptr p;
    hold_some();
    syscall(SYS_close_range, 3, ~0U, 0);
    for (int i = 0; i < 1000; i++) open("/dev/null", O_RDONLY);
    atomic_store(report, 1);
    while (atomic_load(report) != 2) short_while();
    OK(cuMemAlloc_v2(&p, MIB));
    atomic_store(report, 3);
}

void test_closed_descriptors(void) {
    report = shared_memory(4096);
    pid_t pid = child(close_all);
    while (atomic_load(report) != 1) short_while();
    EQUAL(used(0), SOME * MIB);
    atomic_store(report, 2);
    while (atomic_load(report) != 3) short_while();
    EQUAL(used(0), (SOME + 1) * MIB);
    see(see_more); /* from outside too, since its last call */
    end(pid);
    EQUAL(used(0), 0);
}

/* Whoever cannot look at the files must not bury the living. */
void test_out_of_reach(void) {
    struct rlimit none = {0, 0}, before;
    pid_t pid = child(hold_some);
    eventually_used(0, SOME * MIB);
    CHECK(!getrlimit(RLIMIT_NOFILE, &before));
    none.rlim_max = before.rlim_max;
    CHECK(!setrlimit(RLIMIT_NOFILE, &none));
    EQUAL(used(0), SOME * MIB);
    end(pid);
    EQUAL(used(0), 0);
    CHECK(!setrlimit(RLIMIT_NOFILE, &before));
    pid = child(hold_some);
    eventually_used(0, SOME * MIB);
    if (chroot("/proc/self/task")) {
        printf("(no chroot: %s) ", strerror(errno));
    } else {
        EQUAL(used(0), SOME * MIB);
    }
    end(pid);
    EQUAL(used(0), 0);
}

static void *hold_in_thread(void *unused) {
    hold_some();
    go_on();
    return unused;
}

static void leave_a_thread(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, hold_in_thread, NULL);
    pthread_exit(NULL);
}

void test_leader_ends(void) {
    pid_t pid = child(leave_a_thread);
    eventually_used(0, SOME * MIB);
    for (int i = 0; i < 10; i++) short_while();
    EQUAL(used(0), SOME * MIB);
    end(pid);
    EQUAL(used(0), 0);
}

/* ---- pids and namespaces ---------------------------------------------------------------------------------- */

static void nothing(void) {}

/* Inside a namespace of its own, whose pids are free to be given out again. */
static void reuse(void) {
    pid_t pid = child(hold_some), again;
    eventually_used(0, SOME * MIB);
    end(pid);
    FILE *last = fopen("/proc/sys/kernel/ns_last_pid", "w");
    if (!last || fprintf(last, "%d", pid - 1) < 0 || fclose(last)) {
        printf("(no pid can be used again: %s) ", strerror(errno));
        fflush(stdout);
    } else {
        again = child(nothing);
        EQUAL(again, pid);
        EQUAL(used(0), 0);
        end(again);
    }
    atomic_store(report, 1);
}

void test_pid_reuse(void) {
    report = shared_memory(4096);
    see(reuse);
    EQUAL(used(0), 0);
    /* A pid that is another's by now, as the books see it. */
    pid_t pid = child(hold_some), other = child(nothing);
    eventually_used(0, SOME * MIB);
    struct books *b = test_books();
    uint32_t i = 0;
    while (b->state[i] != SLOT_LIVE) i++;
    EQUAL(b->slot[i].who.pid, pid);
    end(pid);
    b->slot[i].who.pid = other;
    EQUAL(used(0), 0);
    EQUAL(b->state[i], SLOT_DEAD);
    end(other);
}

static void watch(void) {
    for (int wanted = 1; wanted >= 0; wanted--) {
        eventually_used(0, wanted * SOME * MIB);
        atomic_store(report, wanted ? 1 : 2);
    }
}

/* Two processes of one inner namespace, seen from inside. */
static void watch_sibling(void) {
    pid_t pid = child(hold_some);
    eventually_used(0, SOME * MIB);
    kill(pid, SIGKILL); /* a zombie from here on */
    eventually_used(0, 0);
    wait_for(pid);
    atomic_store(report, 1);
}

void test_namespaces(void) {
    report = shared_memory(4096);
    pid_t probe = child_in_namespace(nothing, false);
    if (probe < 0) {
        printf("(not permitted: namespaces of pids: %s) ", strerror(errno));
        return;
    }
    end(probe);
    for (int own_proc = 0; own_proc < 2; own_proc++) {
        /* Two first processes: both are pid 1. */
        pid_t a = child_in_namespace(hold_some, own_proc), b = child_in_namespace(hold_some, own_proc);
        eventually_used(0, 2 * SOME * MIB);
        end(a);
        EQUAL(used(0), SOME * MIB);
        see(see_some);
        end(b);
        EQUAL(used(0), 0);
        /* From inside, of a process outside. */
        atomic_store(report, 0);
        a = child_in_namespace(watch, own_proc);
        b = child(hold_some);
        while (atomic_load(report) != 1) short_while();
        end(b);
        while (atomic_load(report) != 2) short_while();
        end(a);
        atomic_store(report, 0);
        a = child_in_namespace(watch_sibling, own_proc);
        for (int status; !atomic_load(report); short_while()) CHECK(waitpid(a, &status, WNOHANG) == 0);
        end(a);
        /* Exec of the program that holds memory, inside. */
        image = "holder-idle";
        random_places = true;
        uint64_t joins = test_books()->joins;
        a = child_in_namespace(become_image, own_proc);
        while (test_books()->joins == joins) short_while();
        eventually_used(0, 0);
        end(a);
    }
}

/* ---- libraries that are unloaded -------------------------------------------------------------------------- */

void test_unloaded(void) {
    for (int i = 0; i < 50; i++) {
        void *nvml = dlmopen(LM_ID_NEWLM, "libnvidia-ml.so.1", RTLD_NOW);
        CHECK(nvml);
        nvmlReturn_t (*init)(void) = (nvmlReturn_t(*)(void))(uintptr_t)dlsym(nvml, "nvmlInit_v2");
        CHECK(init && !init());
        dlclose(nvml);
    }
    start_context(0);
    CHECK(test_books()->slots_used < 5);
    EQUAL(used(0), CONTEXT * MIB);
}
