#include "books.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAGIC = 0x5b00c5, VERSION = 2 };

const char *const book_kind_names[BOOK_KINDS] = {"linear", "pitch", "managed", "array", "pool", "vmm", "graph", "module", "context"};

char books_dir[4096];

/* ---- who holds what ---------------------------------------------------------------------------------- */

static void settle(struct books *b, struct book_slot *s) {
    const struct book_change *c = &s->change;
    if (!atomic_load(&c->valid)) return;
    s->bytes[c->device][c->kind] = c->bytes;
    s->contexts[c->device] = c->contexts;
    s->live = c->live;
    b->device[c->device].grants = c->grants;
    atomic_store(&s->change.valid, 0);
}

static void recompute(struct books *b) {
    for (int d = 0; d < b->devices; d++) {
        uint64_t used = 0, contexts = 0;
        for (uint32_t i = 0; i < b->slots_used; i++) {
            if (b->state[i] != SLOT_LIVE) continue;
            for (int k = 0; k < BOOK_KINDS; k++) used += b->slot[i].bytes[d][k];
            contexts += b->slot[i].bytes[d][BOOK_CONTEXT];
        }
        b->device[d].used = used;
        b->device[d].allocated = used - contexts;
    }
}

static void note_peaks(struct book_device *d) {
    if (d->peak < d->used) d->peak = d->used;
    if (d->peak_allocated < d->allocated) d->peak_allocated = d->allocated;
}

/* After the death of the lock's owner. What it took before it died was held, so it belongs to the peaks. */
void books_mend(struct books *b) {
    for (uint32_t i = 0; i < b->slots_used; i++)
        if (b->state[i] == SLOT_LIVE) settle(b, &b->slot[i]);
    recompute(b);
    for (int d = 0; d < b->devices; d++) note_peaks(&b->device[d]);
}

/* The dead keep their figures until their room is needed; one free slot is left for who comes next. */
static void make_room(struct books *b) {
    uint32_t oldest = BOOK_SLOTS;
    if (b->slots_used < BOOK_SLOTS) return;
    for (uint32_t i = 0; i < BOOK_SLOTS; i++) {
        if (b->state[i] == SLOT_FREE) return;
        if (b->state[i] == SLOT_DEAD && (oldest == BOOK_SLOTS || b->slot[i].died < b->slot[oldest].died)) oldest = i;
    }
    if (oldest < BOOK_SLOTS) b->state[oldest] = SLOT_FREE;
}

static void bury(struct books *b, uint32_t i) {
    b->slot[i].died = ++b->deaths;
    b->state[i] = SLOT_DEAD;
}

void books_reap(struct books *b) {
    const struct identity *self = books_self();
    bool any = false;
    for (uint32_t i = 0; i < b->slots_used; i++) {
        uint32_t state = b->state[i];
        if (state != SLOT_LIVE && state != SLOT_GUEST) continue;
        if (life_goes_on(books_dir, i, &b->slot[i].who, self)) continue;
        any |= state == SLOT_LIVE;
        if (state == SLOT_LIVE)
            bury(b, i);
        else
            b->state[i] = SLOT_FREE;
    }
    if (any) recompute(b);
    make_room(b);
}

/* ---- the file ---------------------------------------------------------------------------------------- */

static bool make_directory(const char *dir) {
    struct stat st;
    return life_make_folder(dir) && !stat(dir, &st) && S_ISDIR(st.st_mode);
}

static void set_up(struct books *b, const struct sim_config *config) {
    b->version = VERSION;
    b->devices = config->devices;
    b->gpus = config->gpus;
    memcpy(b->order, config->order, sizeof b->order);
    for (int d = 0; d < config->devices; d++) b->device[d].is = config->device[d];
    atomic_store(&b->magic, MAGIC);
}

static struct books *map_file(const char *dir, const struct sim_config *config) {
    char path[sizeof books_dir + 32], absolute[PATH_MAX];
    if (!realpath(dir, absolute)) return NULL;
    strcpy(books_dir, absolute);
    snprintf(path, sizeof path, "%s/sim-books.bin", books_dir);
    int fd = open(path, O_RDWR | O_CLOEXEC | (config ? O_CREAT : 0), 0600);
    if (fd < 0) return NULL;
    /* Held only while the file is made; what the books themselves need is the lock inside them. On a
     * descriptor of its own, because a mapping keeps its file's lock beyond the close. */
    int guard = books_guard_enter();
    struct books *b = MAP_FAILED;
    struct stat st = {0};
    bool sized = guard >= 0 && !fstat(fd, &st) &&
                 (st.st_size == (off_t)sizeof(struct books) || (config && !st.st_size && !ftruncate(fd, sizeof(struct books))));
    if (!sized && st.st_size) errno = EINVAL; /* another version's */
    if (sized) b = mmap(NULL, sizeof(struct books), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (b != MAP_FAILED && config && !atomic_load(&b->magic)) set_up(b, config);
    if (b != MAP_FAILED && (atomic_load(&b->magic) != MAGIC || b->version != VERSION)) {
        munmap(b, sizeof *b);
        b = MAP_FAILED;
        errno = EINVAL;
    }
    books_guard_leave(guard);
    close(fd);
    if (b != MAP_FAILED && !books_seat(b)) {
        munmap(b, sizeof *b);
        b = MAP_FAILED;
    }
    return b == MAP_FAILED ? NULL : b;
}

static struct books *open_quietly(const char *dir, const struct sim_config *config) {
    int cancel;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    struct books *b = map_file(dir, config);
    pthread_setcancelstate(cancel, NULL);
    return b;
}

struct books *books_open(const struct sim_config *config) {
    struct books *b = make_directory(config->dir) ? open_quietly(config->dir, config) : NULL;
    if (!b) fprintf(stderr, "simulated GPU: cannot use %s/sim-books.bin: %s\n", config->dir, strerror(errno));
    return b;
}

struct books *books_open_existing(const char *dir) { return open_quietly(dir, NULL); }

/* ---- joining and changing ---------------------------------------------------------------------------- */

struct book_slot *books_join(struct books *b) {
    books_lock(b);
    uint32_t index = books_seat_index(b);
    struct book_slot *s = index < BOOK_SLOTS ? &b->slot[index] : NULL;
    for (uint32_t i = 0; s && i < b->slots_used; i++) /* this library, unloaded and loaded again */
        if (b->state[i] == SLOT_LIVE && !memcmp(&b->slot[i].who, &s->who, sizeof s->who)) bury(b, i);
    books_reap(b);
    recompute(b);
    if (s) {
        s->joined = ++b->joins;
        b->state[index] = SLOT_LIVE;
    }
    books_unlock(b);
    return s;
}

static void change(struct books *b, struct book_slot *s, int device, enum book_kind kind, uint64_t bytes, int live, int sign) {
    struct book_device *d = &b->device[device];
    uint64_t more = sign > 0 ? bytes : (uint64_t)0 - bytes;
    s->change.device = (uint32_t)device;
    s->change.kind = kind;
    s->change.bytes = s->bytes[device][kind] + more;
    s->change.contexts = s->contexts[device] + (uint32_t)(kind == BOOK_CONTEXT ? sign : 0);
    s->change.live = s->live + (uint64_t)(int64_t)(sign * live);
    s->change.grants = d->grants + (sign > 0 && bytes);
    atomic_store(&s->change.valid, 1);
    d->used += more;
    if (kind != BOOK_CONTEXT) d->allocated += more;
    note_peaks(d);
    settle(b, s);
}

/* A process that another namespace took for dead, because it closed all descriptors, has lost its memory. */
static bool holds(const struct books *b, const struct book_slot *s) { return b->state[s - b->slot] == SLOT_LIVE; }

bool books_take(struct books *b, struct book_slot *s, int device, enum book_kind kind, uint64_t bytes, int live) {
    struct book_device *d = &b->device[device];
    books_lock(b);
    /* Looking for the dead costs some system calls for each process. Below the peaks their bytes
     * can neither refuse this allocation nor show in any figure that somebody reads. */
    bool higher = bytes > d->is.total || d->used + bytes > d->peak ||
                  (kind != BOOK_CONTEXT && d->allocated + bytes > d->peak_allocated);
    if (higher) books_reap(b);
    bool fits = holds(b, s) && bytes <= d->is.total && d->used <= d->is.total - bytes;
    if (fits)
        change(b, s, device, kind, bytes, live, 1);
    else
        d->refusals++;
    books_unlock(b);
    return fits;
}

bool books_others_on(struct books *b, const struct book_slot *s, int device) {
    bool others = false;
    books_lock(b);
    books_reap(b);
    for (uint32_t i = 0; i < b->slots_used; i++)
        others |= b->state[i] == SLOT_LIVE && &b->slot[i] != s && b->slot[i].contexts[device];
    books_unlock(b);
    return others;
}

void books_give(struct books *b, struct book_slot *s, int device, enum book_kind kind, uint64_t bytes, int live) {
    books_lock(b);
    if (holds(b, s)) change(b, s, device, kind, bytes, live, -1);
    books_unlock(b);
}

void books_refuse(struct books *b, int device) {
    books_lock(b);
    b->device[device].refusals++;
    books_unlock(b);
}

uint64_t books_used(struct books *b, int device) {
    books_lock(b);
    books_reap(b);
    uint64_t used = b->device[device].used;
    books_unlock(b);
    return used;
}
