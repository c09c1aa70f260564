#include "books.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAGIC = 0x5b00c5, VERSION = 1 };

const char *const book_kind_names[BOOK_KINDS] = {"linear", "pitch", "managed", "array", "pool", "vmm", "graph", "module", "context"};

struct identity {
    char state;
    long threads;
    uint64_t start, stack;
};

static bool identify(int pid, struct identity *out) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return false;
    text[n] = 0;
    /* The name may hold anything, parentheses too: fields are counted from the last one. */
    char *at = strrchr(text, ')');
    if (!at) return false;
    memset(out, 0, sizeof *out);
    at += 2;
    out->state = *at;
    for (int field = 3; at && field < 28; field++) {
        at = strchr(at, ' ');
        if (!at) return false;
        at++;
        if (field + 1 == 20) out->threads = strtol(at, NULL, 10);
        if (field + 1 == 22) out->start = strtoull(at, NULL, 10);
        if (field + 1 == 28) out->stack = strtoull(at, NULL, 10);
    }
    return true;
}

static uint64_t pid_namespace(void) {
    struct stat st;
    return stat("/proc/self/ns/pid", &st) ? 0 : (uint64_t)st.st_ino;
}

bool books_alive(const struct books *b, uint32_t index) {
    const struct book_slot *s = &b->slot[index];
    if (b->state[index] != SLOT_LIVE) return false;
    if (s->namespace != pid_namespace()) return true;
    if (kill(s->pid, 0) && errno == ESRCH) return false;
    struct identity id;
    if (!identify(s->pid, &id)) return false;
    if (id.start != s->start) return false;
    /* A leader that ended before its threads shows as a zombie, but the process lives. */
    if ((id.state == 'Z' || id.state == 'X') && id.threads <= 1) return false;
    /* Reads as 0 where this process may not look. */
    if (id.stack > 1 && s->stack > 1 && id.stack != s->stack) return false;
    return true;
}

static void settle(struct book_slot *s) {
    if (!atomic_load(&s->change.valid)) return;
    s->bytes[s->change.device][s->change.kind] = s->change.bytes;
    s->live = s->change.live;
    atomic_store(&s->change.valid, 0);
}

static void recompute(struct books *b) {
    for (int d = 0; d < b->devices; d++) b->device[d].used = 0;
    for (uint32_t i = 0; i < b->slots_used; i++) {
        if (b->state[i] != SLOT_LIVE) continue;
        for (int d = 0; d < b->devices; d++)
            for (int k = 0; k < BOOK_KINDS; k++) b->device[d].used += b->slot[i].bytes[d][k];
    }
}

void books_lock(struct books *b) {
    if (pthread_mutex_lock(&b->lock) != EOWNERDEAD) return;
    for (uint32_t i = 0; i < b->slots_used; i++)
        if (b->state[i] == SLOT_LIVE) settle(&b->slot[i]);
    recompute(b);
    /* What its owner took before it died was held, so it belongs to the peak. */
    for (int d = 0; d < b->devices; d++)
        if (b->device[d].peak < b->device[d].used) b->device[d].peak = b->device[d].used;
    pthread_mutex_consistent(&b->lock);
}

void books_unlock(struct books *b) { pthread_mutex_unlock(&b->lock); }

void books_reap(struct books *b) {
    bool any = false;
    for (uint32_t i = 0; i < b->slots_used; i++) {
        if (b->state[i] != SLOT_LIVE || books_alive(b, i)) continue;
        b->slot[i].died = ++b->deaths;
        b->state[i] = SLOT_DEAD;
        any = true;
    }
    if (any) recompute(b);
}

static bool make_directory(const char *dir) {
    struct stat st;
    if (mkdir(dir, 0700) && errno != EEXIST) return false;
    return !stat(dir, &st) && S_ISDIR(st.st_mode);
}

static void set_up(struct books *b, const struct sim_config *config) {
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&b->lock, &attr);
    pthread_mutexattr_destroy(&attr);
    b->version = VERSION;
    b->devices = config->devices;
    for (int d = 0; d < config->devices; d++) {
        memcpy(b->device[d].uuid, config->uuid[d], SIM_UUID_SIZE);
        b->device[d].total = config->memory[d];
    }
    atomic_store(&b->magic, MAGIC);
}

static struct books *map_file(const char *dir, const struct sim_config *config) {
    char path[600];
    snprintf(path, sizeof path, "%s/sim-books.bin", dir);
    int fd = open(path, O_RDWR | O_CLOEXEC | (config ? O_CREAT : 0), 0600);
    if (fd < 0) return NULL;
    /* Held only while the file is made; what the books themselves need is the robust lock inside
     * them. On a descriptor of its own, because a mapping keeps its file's lock beyond the close. */
    int guard = open(path, O_RDWR | O_CLOEXEC);
    struct books *b = MAP_FAILED;
    struct stat st;
    while (guard >= 0 && flock(guard, LOCK_EX) && errno == EINTR) continue;
    bool sized = !fstat(fd, &st) && (st.st_size == (off_t)sizeof(struct books) ||
                                     (config && !st.st_size && !ftruncate(fd, sizeof(struct books))));
    if (sized) b = mmap(NULL, sizeof(struct books), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (b != MAP_FAILED && atomic_load(&b->magic) != MAGIC) {
        if (config && !atomic_load(&b->magic))
            set_up(b, config);
        else
            munmap(b, sizeof *b), b = MAP_FAILED;
    }
    if (guard >= 0) close(guard);
    close(fd);
    return b == MAP_FAILED ? NULL : b;
}

struct books *books_open(const struct sim_config *config) {
    struct books *b = make_directory(config->dir) ? map_file(config->dir, config) : NULL;
    if (!b) fprintf(stderr, "simulated GPU: cannot use %s/sim-books.bin: %s\n", config->dir, strerror(errno));
    return b;
}

struct books *books_open_existing(const char *dir) { return map_file(dir, NULL); }

struct book_slot *books_join(struct books *b) {
    struct identity id = {0};
    int pid = getpid();
    if (!identify(pid, &id)) return NULL;
    books_lock(b);
    books_reap(b);
    uint32_t found = BOOK_SLOTS;
    uint64_t oldest = UINT64_MAX;
    for (uint32_t i = 0; i < b->slots_used; i++) {
        struct book_slot *s = &b->slot[i];
        if (b->state[i] == SLOT_LIVE && s->pid == pid && s->start == id.start && s->namespace == pid_namespace()) {
            /* An earlier program of this very process: exec closed what it held. */
            s->died = ++b->deaths;
            b->state[i] = SLOT_DEAD;
            recompute(b);
        }
    }
    if (b->slots_used < BOOK_SLOTS)
        found = b->slots_used;
    else
        for (uint32_t i = 0; i < b->slots_used; i++)
            if (b->state[i] != SLOT_LIVE && b->slot[i].died < oldest) found = i, oldest = b->slot[i].died;
    struct book_slot *s = NULL;
    if (found < BOOK_SLOTS) {
        s = &b->slot[found];
        b->state[found] = SLOT_FREE;
        memset(s, 0, sizeof *s);
        s->pid = pid;
        s->start = id.start;
        s->stack = id.stack;
        s->namespace = pid_namespace();
        b->state[found] = SLOT_LIVE;
        if (found == b->slots_used) b->slots_used++;
    }
    books_unlock(b);
    return s;
}

static void change(struct books *b, struct book_slot *s, int device, enum book_kind kind, uint64_t bytes, int live) {
    s->change.device = (uint32_t)device;
    s->change.kind = kind;
    s->change.bytes = s->bytes[device][kind] + bytes;
    s->change.live = s->live + (uint64_t)(int64_t)live;
    atomic_store(&s->change.valid, 1);
    s->bytes[device][kind] = s->change.bytes;
    s->live = s->change.live;
    b->device[device].used += bytes;
    if (b->device[device].peak < b->device[device].used) b->device[device].peak = b->device[device].used;
    atomic_store(&s->change.valid, 0);
}

bool books_take(struct books *b, struct book_slot *s, int device, enum book_kind kind, uint64_t bytes, int live) {
    struct book_device *d = &b->device[device];
    books_lock(b);
    /* Looking for the dead costs a file read for each process. Below the peak their bytes
     * can neither refuse this allocation nor show in any figure that somebody reads. */
    if (bytes > d->total || d->used + bytes > d->peak) books_reap(b);
    bool fits = bytes <= d->total && d->used <= d->total - bytes;
    if (fits) change(b, s, device, kind, bytes, live);
    books_unlock(b);
    return fits;
}

void books_give(struct books *b, struct book_slot *s, int device, enum book_kind kind, uint64_t bytes, int live) {
    books_lock(b);
    change(b, s, device, kind, (uint64_t)0 - bytes, -live);
    books_unlock(b);
}

uint64_t books_used(struct books *b, int device) {
    books_lock(b);
    books_reap(b);
    uint64_t used = b->device[device].used;
    books_unlock(b);
    return used;
}
