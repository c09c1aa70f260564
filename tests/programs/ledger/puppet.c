/* A process that does what it is told: a command a line on stdin, one line of answer on stdout. A test moves several of
 * them step by step, so that what happened before what is never left to chance.
 *
 *   puppet                  in the namespaces of its parent
 *   puppet namespace        the first process of a pid namespace, with a /proc of its own
 *   puppet namespace-alone  the same, but /proc shows the numbers of the namespace outside
 *
 * The first line says "ready PID PID-OUTSIDE". It ends when stdin does, so a test that dies leaves none behind. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../../sim/books.h"
#include "../../../sim/cuda_abi.h"
#include "../../../sim/nvml_abi.h"

enum { MOST = 1024, DEVICES = 16, CANNOT = 77 };
static CUdeviceptr held[MOST];
static int holding;
static CUcontext contexts[DEVICES];
static char *self;

/* One write a line: a fork never finds half of one in a buffer. */
__attribute__((format(printf, 1, 2))) static void answer(const char *format, ...) {
    char line[1024];
    va_list arguments;
    va_start(arguments, format);
    int n = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    line[n++] = '\n';
    if (write(1, line, (size_t)n) != n) _exit(5);
}

/* Byte by byte, since the program after an exec reads on where this one stopped. */
static bool next_line(char *line, size_t size) {
    for (size_t n = 0; n < size; n++) {
        ssize_t got = read(0, &line[n], 1);
        if (got < 0 && errno == EINTR) {
            n--;
            continue;
        }
        if (got <= 0) return false;
        if (line[n] == '\n') {
            line[n] = 0;
            return true;
        }
    }
    return false;
}

/* ---- CUDA ------------------------------------------------------------------------------------------------ */

static int context(int device) {
    int code = cuDevicePrimaryCtxRetain(&contexts[device], device);
    return code ? code : cuCtxSetCurrent(contexts[device]);
}

static int allocate(size_t bytes) {
    if (holding == MOST) return -1;
    int code = cuMemAlloc_v2(&held[holding], bytes);
    if (!code) holding++;
    return code;
}

static int give_back(void) { return holding ? cuMemFree_v2(held[--holding]) : -1; }

static int give_all_back(void) {
    int code = 0;
    while (holding && !code) code = give_back();
    return code;
}

/* All that a simple program does, in one command. */
static int begin(size_t bytes) {
    int code = cuInit(0);
    if (!code) code = context(0);
    return code ? code : allocate(bytes);
}

static void nvml(unsigned index) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) {
        answer("%s", dlerror());
        return;
    }
#define FUNCTION(name) __typeof__(&name) p_##name = (__typeof__(&name))dlsym(library, #name)
    FUNCTION(nvmlInit_v2);
    FUNCTION(nvmlDeviceGetHandleByIndex_v2);
    FUNCTION(nvmlDeviceGetMemoryInfo);
    FUNCTION(nvmlDeviceGetUUID);
    nvmlDevice_t device;
    nvmlMemory_t memory;
    char uuid[96];
    int code = p_nvmlInit_v2();
    if (!code) code = p_nvmlDeviceGetHandleByIndex_v2(index, &device);
    if (!code) code = p_nvmlDeviceGetUUID(device, uuid, sizeof uuid);
    if (!code) code = p_nvmlDeviceGetMemoryInfo(device, &memory);
    if (code)
        answer("%d", code);
    else
        answer("0 %s %llu %llu", uuid, memory.total, memory.used);
}

/* Total and use of a card or a slice of one. */
static void nvml_of(const char *uuid) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) {
        answer("%s", dlerror());
        return;
    }
    FUNCTION(nvmlInit_v2);
    FUNCTION(nvmlDeviceGetHandleByUUID);
    FUNCTION(nvmlDeviceGetMemoryInfo);
    nvmlDevice_t device;
    nvmlMemory_t memory = {0};
    int code = p_nvmlInit_v2();
    if (!code) code = p_nvmlDeviceGetHandleByUUID(uuid, &device);
    if (!code) code = p_nvmlDeviceGetMemoryInfo(device, &memory);
    answer("%d %llu %llu", code, memory.total, memory.used);
}

/* Pids and bytes of the processes that NVML lists. */
static void nvml_processes(unsigned index) {
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) {
        answer("%s", dlerror());
        return;
    }
    FUNCTION(nvmlInit_v2);
    FUNCTION(nvmlDeviceGetHandleByIndex_v2);
    FUNCTION(nvmlDeviceGetComputeRunningProcesses_v3);
    nvmlDevice_t device;
    nvmlProcessInfo_t list[16];
    unsigned count = 16;
    int code = p_nvmlInit_v2();
    if (!code) code = p_nvmlDeviceGetHandleByIndex_v2(index, &device);
    if (!code) code = p_nvmlDeviceGetComputeRunningProcesses_v3(device, &count, list);
    char text[1000];
    int n = snprintf(text, sizeof text, "%d", code);
    for (unsigned i = 0; !code && i < count; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, " %u %llu", list[i].pid, list[i].usedGpuMemory);
    answer("%s", text);
}

/* Whether nobody is inside the simulated driver's own locks: a process that was stopped there stops the whole machine,
 * which says nothing about cuwarden. Only meaningful while all others are idle. */
static void quiet(void) {
    char path[4096];
    snprintf(path, sizeof path, "%s/sim-books.bin", getenv("CUWARDEN_SIM_DIR"));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    bool is_quiet = true;
    if (fd >= 0 && !fstat(fd, &st)) {
        is_quiet = !flock(fd, LOCK_EX | LOCK_NB);
        if (is_quiet && st.st_size >= (off_t)sizeof(struct books)) {
            struct books *b = mmap(NULL, sizeof *b, PROT_READ, MAP_SHARED, fd, 0);
            is_quiet = b != MAP_FAILED && !atomic_load(&b->lock);
            if (b != MAP_FAILED) munmap(b, sizeof *b);
        }
        flock(fd, LOCK_UN);
    }
    if (fd >= 0) close(fd);
    answer(is_quiet ? "quiet" : "busy");
}

/* ---- processes ------------------------------------------------------------------------------------------- */

/* Another puppet's strings: PATH.in and PATH.out, both fifos whose other ends the test has open. */
static void take_strings(const char *path) {
    char name[4096];
    snprintf(name, sizeof name, "%s.in", path);
    int in = open(name, O_RDONLY);
    snprintf(name, sizeof name, "%s.out", path);
    int out = open(name, O_WRONLY);
    if (in < 0 || out < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0) _exit(6);
    if (in > 2) close(in);
    if (out > 2) close(out);
}

/* Goes on in the child as a puppet of its own. */
static void fork_off(const char *path) {
    pid_t child = fork();
    if (child) {
        answer("%d", child);
        return;
    }
    holding = 0; /* what its parent holds is not the child's to give back */
    take_strings(path);
    answer("ready %d 0", getpid());
}

/* The shortest way to another program: the child has this process's memory until it is that. */
static void spawn(const char *path) {
    char *arguments[] = {self, NULL};
    pid_t child = vfork();
    if (!child) {
        take_strings(path);
        execv("/proc/self/exe", arguments);
        _exit(9);
    }
    answer("%d", child);
}

/* Lives on with whatever descriptors it got, and does nothing. */
static void sleeper(bool execs) {
    pid_t child = fork();
    if (!child) {
        alarm(600); /* it outlives everybody, but not for ever */
        int null = open("/dev/null", O_RDWR);
        dup2(null, 0);
        dup2(null, 1);
        if (execs) execl("/bin/sleep", "sleep", "100000", NULL);
        for (;;) pause();
    }
    answer("%d", child);
}

static void vfork_and_end(void) {
    pid_t child = vfork();
    if (!child) _exit(0);
    int status = -1;
    waitpid(child, &status, 0);
    answer("%d", status);
}

static void reap(pid_t child) {
    int status = -1;
    pid_t got = waitpid(child, &status, 0);
    answer("%d", got == child ? status : -1);
}

/* The number that the next process of this namespace gets. */
static void next_pid(int pid) {
    int fd = open("/proc/sys/kernel/ns_last_pid", O_WRONLY | O_CLOEXEC), n = fd < 0 ? -1 : dprintf(fd, "%d", pid - 1);
    if (fd >= 0) close(fd);
    answer("%d", n > 0 ? 0 : errno);
}

static void obey(void);

static void *second_thread(void *unused) {
    char text[512], *state = "";
    /* The main thread is a zombie before anything else happens. */
    while (*state != 'Z') {
        int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
        ssize_t n = read(fd, text, sizeof text - 1);
        close(fd);
        text[n > 0 ? n : 0] = 0;
        state = strrchr(text, ')');
        state = state ? state + 2 : "";
        usleep(500);
    }
    for (int device = 0; device < DEVICES; device++)
        if (contexts[device]) cuCtxSetCurrent(contexts[device]);
    answer("left");
    obey();
    exit(0);
    return unused;
}

static void *asleep(void *unused) {
    for (;;) pause();
    return unused;
}

/* Without the right for it, a user namespace gives it, where the system lets anybody make one. */
static void own_users(int flags) {
    char map[64];
    unsigned uid = getuid(), gid = getgid();
    if (unshare(CLONE_NEWUSER | flags)) exit(CANNOT);
    int fd = open("/proc/self/setgroups", O_WRONLY);
    if (fd >= 0) dprintf(fd, "deny"), close(fd);
    snprintf(map, sizeof map, "0 %u 1", uid);
    fd = open("/proc/self/uid_map", O_WRONLY);
    if (fd < 0 || dprintf(fd, "%s", map) < 0) exit(CANNOT);
    close(fd);
    snprintf(map, sizeof map, "0 %u 1", gid);
    fd = open("/proc/self/gid_map", O_WRONLY);
    if (fd < 0 || dprintf(fd, "%s", map) < 0) exit(CANNOT);
    close(fd);
}

/* As `unshare --pid --fork --mount-proc`, and the child learns its number outside. */
static int in_namespace(bool own_proc) {
    int flags = CLONE_NEWPID | (own_proc ? CLONE_NEWNS : 0), number[2], outside;
    if (pipe2(number, O_CLOEXEC)) exit(6);
    if (unshare(flags)) own_users(flags);
    pid_t child = fork();
    if (child < 0) exit(CANNOT);
    if (child) {
        int status;
        if (write(number[1], &child, sizeof child) != sizeof child) exit(6);
        close(0), close(1);
        while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
        _exit(0);
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (own_proc && (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) || mount("proc", "/proc", "proc", 0, NULL))) exit(CANNOT);
    if (read(number[0], &outside, sizeof outside) != sizeof outside) exit(6);
    close(number[0]), close(number[1]);
    return outside;
}

/* ---- orders ---------------------------------------------------------------------------------------------- */

static void one(char *line) {
    char *words[16] = {0}, *rest = NULL;
    int n = 0;
    for (char *word = strtok_r(line, " ", &rest); word && n < 15; word = strtok_r(NULL, " ", &rest)) words[n++] = word;
    const char *order = n ? words[0] : "", *text = n > 1 ? words[1] : "";
    unsigned long long number = strtoull(text, NULL, 10);
    int device = (int)number % DEVICES;
#define IS(name) if (!strcmp(order, name))
    IS("init") return answer("%d", cuInit(0));
    IS("context") return answer("%d", context(device));
    IS("create") return answer("%d", cuCtxCreate_v2(&contexts[device], 0, device));
    IS("release") return answer("%d", cuDevicePrimaryCtxRelease_v2(device));
    IS("use") return answer("%d", cuCtxSetCurrent(contexts[device]));
    IS("alloc") return answer("%d", allocate(number));
    IS("free") return answer("%d", give_back());
    IS("free-all") return answer("%d", give_all_back());
    IS("begin") return answer("%d", begin(number));
    IS("nvml") return nvml((unsigned)number);
    IS("nvml-of") return nvml_of(text);
    IS("nvml-processes") return nvml_processes((unsigned)number);
    IS("quiet") return quiet();
    IS("fork") return fork_off(text);
    IS("spawn") return spawn(text);
    IS("sleeper") return sleeper(!strcmp(text, "exec"));
    IS("vfork") return vfork_and_end();
    IS("reap") return reap((pid_t)number);
    IS("next-pid") return next_pid((int)number);
    IS("setuid") return answer("%d", setgid((gid_t)number) || setuid((uid_t)number) ? errno : 0);
    IS("close") { /* as daemons do: whatever it is */
        for (int fd = 3; fd < 1 << 16; fd++) close(fd);
        return answer("0");
    }
    IS("info") {
        size_t free_bytes = 0, total = 0;
        int code = cuMemGetInfo_v2(&free_bytes, &total);
        return answer("%d %zu %zu", code, free_bytes, total);
    }
    IS("total") {
        size_t total = 0;
        int code = cuDeviceTotalMem_v2(&total, device);
        return answer("%d %zu", code, total);
    }
    IS("thread") {
        pthread_t thread;
        return answer("%d", pthread_create(&thread, NULL, asleep, NULL));
    }
    /* No answer from here on, or one from whoever goes on. */
    IS("leave") {
        pthread_t thread;
        pthread_create(&thread, NULL, second_thread, NULL);
        pthread_exit(NULL);
    }
    IS("again") {
        char *arguments[] = {self, NULL};
        execv("/proc/self/exe", arguments);
    }
    IS("exec") execv(words[1], &words[1]);
    IS("exit") exit((int)number);
    IS("_exit") _exit((int)number);
    IS("quick_exit") quick_exit((int)number);
    IS("abort") abort();
    answer("no such order: %s", order);
}

static void obey(void) {
    char line[4096];
    while (next_line(line, sizeof line)) one(line);
}

int main(int argc, char **argv) {
    int outside = 0;
    self = argv[0];
    setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
    if (argc > 1 && !strncmp(argv[1], "namespace", 9)) outside = in_namespace(!strcmp(argv[1], "namespace"));
    answer("ready %d %d", getpid(), outside);
    obey();
    return 0;
}
