/* A slot's owner holds a record lock on the slot's own file. The kernel drops it when the process ends, when
 * it closes the file, and at exec, since the descriptor is close-on-exec; a forked child does not get it. That
 * is how a real driver learns of deaths, and it needs no pid. It must be a file for each slot: closing any
 * descriptor of a file drops all locks that the process has on it, so nobody may ever open his own again, and
 * the driver and NVML in one process are two.
 *
 * The lock alone would also bury a process that closed descriptors that it does not know, as daemons do. In
 * the same namespace /proc can tell: the owner has its file mapped too, and only exec or death undo that. */
#include "life.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- marks ------------------------------------------------------------------------------------------- */

void mark_set(struct mark *m) {
    atomic_uint *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED || madvise(page, 4096, MADV_WIPEONFORK)) abort(); /* Linux 4.14 */
    atomic_store(page, 1);
    page = atomic_exchange(&m->page, page);
    if (page) munmap(page, 4096);
}

void mark_clear(struct mark *m) {
    atomic_uint *page = atomic_exchange(&m->page, NULL);
    if (page) munmap(page, 4096);
}

bool mark_ours(const struct mark *m) {
    const atomic_uint *page = atomic_load_explicit(&m->page, memory_order_acquire);
    return page && atomic_load_explicit(page, memory_order_relaxed);
}

/* ---- identity ---------------------------------------------------------------------------------------- */

static ssize_t read_file(const char *path, char *text, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    ssize_t n = read(fd, text, size - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    return n;
}

struct status {
    char state;
    long threads;
    uint64_t start;
};

static bool status_of(const char *who, struct status *out) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%s/stat", who);
    if (read_file(path, text, sizeof text) <= 0) return false;
    /* The name may hold anything, parentheses too: fields are counted from the last one. */
    char *at = strrchr(text, ')');
    if (!at) return false;
    at += 2;
    *out = (struct status){.state = *at};
    for (int field = 3; field < 22; field++) {
        at = strchr(at, ' ');
        if (!at) return false;
        at++;
        if (field + 1 == 20) out->threads = strtol(at, NULL, 10);
        if (field + 1 == 22) out->start = strtoull(at, NULL, 10);
    }
    return true;
}

void identity_of_self(struct identity *who) {
    struct stat st;
    struct status status;
    memset(who, 0, sizeof *who);
    who->pid = getpid();
    /* "self" is right also where /proc is an outer namespace's and knows this process by another pid. */
    if (status_of("self", &status)) who->start = status.start;
    if (!stat("/proc/self/ns/pid", &st)) who->namespace = (uint64_t)st.st_ino;
    const void *random = (const void *)getauxval(AT_RANDOM);
    if (random) memcpy(who->image, random, sizeof who->image);
}

/* ---- the lock ---------------------------------------------------------------------------------------- */

/* The file's own name is always the same, as a program can see it among its descriptors. */
static void path_of(char *path, size_t size, const char *dir, uint32_t slot) {
    snprintf(path, size, "%s/sim-slots/%u/alive", dir, slot);
}

enum { HIGH = 700 };

/* Where a program does not see it: the lowest numbers are what it gets for its own files. */
static int move_up(int fd) {
    int high = fcntl(fd, F_DUPFD_CLOEXEC, HIGH);
    if (high < 0) return fd;
    close(fd);
    return high;
}

static struct held {
    int fd;
    struct stat file;
    void *seen;
} held = {.fd = -1};

bool life_make_folder(const char *path) {
    if (mkdir(path, 0700)) return errno == EEXIST;
    return !chmod(path, 0700); /* whatever the program's umask is */
}

bool life_hold(const char *dir, uint32_t slot) {
    char path[4200];
    snprintf(path, sizeof path, "%s/sim-slots", dir);
    if (!life_make_folder(path)) return false;
    snprintf(path, sizeof path, "%s/sim-slots/%u", dir, slot);
    if (!life_make_folder(path)) return false;
    path_of(path, sizeof path, dir, slot);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return false;
    fd = move_up(fd);
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    void *seen = MAP_FAILED;
    if (!fcntl(fd, F_SETLK, &all)) seen = mmap(NULL, 4096, PROT_NONE, MAP_SHARED, fd, 0);
    if (seen == MAP_FAILED) {
        close(fd);
        return false;
    }
    held.fd = fd; /* it and the mapping stay as long as the program does */
    held.seen = seen;
    fstat(fd, &held.file);
    return true;
}

bool life_held(void) {
    struct stat now;
    return !fstat(held.fd, &now) && now.st_ino == held.file.st_ino && now.st_dev == held.file.st_dev;
}

void life_let_go(void) {
    if (life_held()) close(held.fd);
    munmap(held.seen, 4096);
}

enum lock { LOCK_HELD, LOCK_FREE, LOCK_UNKNOWN };

static enum lock lock_of(const char *dir, uint32_t slot) {
    char path[4200];
    path_of(path, sizeof path, dir, slot);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return LOCK_UNKNOWN; /* no descriptor is free, or the folder is out of reach: chroot */
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int failed = fcntl(fd, F_GETLK, &all);
    close(fd);
    return failed ? LOCK_UNKNOWN : all.l_type == F_UNLCK ? LOCK_FREE : LOCK_HELD;
}

/* ---- without the lock -------------------------------------------------------------------------------- */

/* Whether /proc has the pids of this process's namespace: those of an outer one are other processes. */
static bool proc_is_ours(void) {
    char text[4096];
    if (read_file("/proc/self/status", text, sizeof text) <= 0) return false;
    const char *pids = strstr(text, "\nNSpid:");
    return pids && strcspn(pids + 8, "\t") >= strcspn(pids + 8, "\n");
}

enum maps { MAPS_UNREADABLE, MAPS_WITHOUT, MAPS_WITH };

static enum maps maps_of(int pid, uint32_t slot) {
    char path[64], wanted[64], line[4400];
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    snprintf(wanted, sizeof wanted, "/sim-slots/%u/alive", slot);
    FILE *maps = fopen(path, "re");
    if (!maps) return MAPS_UNREADABLE;
    bool found = false;
    while (!found && fgets(line, sizeof line, maps)) {
        const char *at = strstr(line, wanted);
        found = at && (at[strlen(wanted)] == '\n' || at[strlen(wanted)] == ' '); /* " (deleted)" */
    }
    fclose(maps);
    return found ? MAPS_WITH : MAPS_WITHOUT;
}

bool life_goes_on(const char *dir, uint32_t slot, const struct identity *owner, const struct identity *self) {
    bool same_namespace = owner->namespace && owner->namespace == self->namespace;
    if (owner->pid == self->pid && (same_namespace || !owner->namespace || !self->namespace)) {
        bool same_image = !memcmp(owner->image, self->image, sizeof owner->image);
        /* This very process, whose file must not be opened; or the program that it was. */
        if (same_image || same_namespace) return same_image;
    }
    enum lock lock = lock_of(dir, slot);
    if (lock == LOCK_HELD) return true;
    if (!same_namespace) return lock == LOCK_UNKNOWN;
    if (kill(owner->pid, 0) && errno == ESRCH) return false;
    char who[16];
    struct status status;
    snprintf(who, sizeof who, "%d", owner->pid);
    if (!proc_is_ours() || !status_of(who, &status)) return lock == LOCK_UNKNOWN;
    if (status.start != owner->start) return false;
    /* A leader that ended before its threads shows as a zombie, but the process lives. */
    if (status.state == 'Z' || status.state == 'X') return status.threads > 1;
    enum maps maps = maps_of(owner->pid, slot);
    return maps == MAPS_WITH || (maps == MAPS_UNREADABLE && lock == LOCK_UNKNOWN);
}
