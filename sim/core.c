#include "sim.h"

#include <stdlib.h>
#include <unistd.h>

struct books *sim_books;
struct book_slot *_Atomic sim_slot;
atomic_bool sim_null;

static pthread_mutex_t process_lock = PTHREAD_MUTEX_INITIALIZER;
static struct mark owner; /* who called cuInit; a forked child is somebody else */
static int owner_pid;     /* which tells a child apart that shares this memory */

bool sim_forked(void) { return sim_slot && (!mark_ours(&owner) || owner_pid != getpid()); }

CUresult sim_start(void) {
    if (sim_forked()) return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&process_lock);
    if (!sim_slot) {
        const struct sim_config *config = sim_config();
        if (!config)
            result = CUDA_ERROR_UNKNOWN;
        else if (!sim_books && !(sim_books = books_open(config)))
            result = CUDA_ERROR_UNKNOWN;
        else if (!(result = devices_select())) {
            mark_set(&owner);
            owner_pid = getpid();
            sim_null = config->null_mode;
            sim_slot = books_join(sim_books);
            if (!sim_slot) result = CUDA_ERROR_UNKNOWN;
        }
    }
    pthread_mutex_unlock(&process_lock);
    return result;
}

CUresult call_enter(struct call *c, enum function_id id, enum need need) {
    bool forked = sim_forked();
    struct book_slot *slot = sim_slot;
    if (slot && !forked) atomic_fetch_add_explicit(&slot->calls[id], 1, memory_order_relaxed);
    CUresult injected = sim_injected(function_names[id]);
    if (injected) return injected;
    if (need == NEED_NOTHING) return CUDA_SUCCESS;
    /* Before the lock: in a forked child a thread that no longer exists may hold it. */
    if (forked || !slot) return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&process_lock);
    c->locked = true;
    return need == NEED_CONTEXT ? context_state() : CUDA_SUCCESS;
}

void call_leave(struct call *c) {
    if (c->locked) pthread_mutex_unlock(&process_lock);
    errno = c->saved_errno;
}

bool take(int ordinal, enum book_kind kind, uint64_t bytes, int live) {
    return books_take(sim_books, sim_slot, device_physical(ordinal), kind, bytes, live);
}

void give(int ordinal, enum book_kind kind, uint64_t bytes, int live) {
    books_give(sim_books, sim_slot, device_physical(ordinal), kind, bytes, live);
}

bool others_on(int ordinal) { return books_others_on(sim_books, sim_slot, device_physical(ordinal)); }

void refuse(int ordinal) { books_refuse(sim_books, device_physical(ordinal)); }

/* ---- objects ------------------------------------------------------------------------------ */

enum { BUCKETS = 1 << 14 };
static struct object *buckets[BUCKETS];

static struct object **bucket_of(const void *handle) {
    uintptr_t n = (uintptr_t)handle;
    return &buckets[((n >> 4) ^ (n >> 18)) % BUCKETS];
}

void *object_new(enum object_kind kind, size_t size, struct context *ctx) {
    struct object *o = calloc(1, size);
    if (!o) abort();
    o->kind = kind;
    o->ctx = ctx;
    struct object **bucket = bucket_of(o);
    o->next = *bucket;
    *bucket = o;
    return o;
}

void *object_find(enum object_kind kind, const void *handle) {
    for (struct object *o = *bucket_of(handle); o; o = o->next)
        if (o == handle) return o->kind == kind ? o : NULL;
    return NULL;
}

void object_free(void *object) {
    for (struct object **at = bucket_of(object); *at; at = &(*at)->next) {
        if (*at != object) continue;
        *at = (*at)->next;
        free(object);
        return;
    }
}

struct object *object_first_of(const struct context *ctx) {
    for (int i = 0; i < BUCKETS; i++)
        for (struct object *o = buckets[i]; o; o = o->next)
            if (o->ctx == ctx) return o;
    return NULL;
}

void objects_each(void (*visit)(struct object *, void *), void *with) {
    for (int i = 0; i < BUCKETS; i++)
        for (struct object *o = buckets[i]; o; o = o->next) visit(o, with);
}
