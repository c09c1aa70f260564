/* The books: who holds how much of which device, shared by all processes that name one directory. */
#ifndef CUWARDEN_SIM_BOOKS_H
#define CUWARDEN_SIM_BOOKS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "config.h"
#include "life.h"

enum book_kind {
    BOOK_LINEAR, BOOK_PITCH, BOOK_MANAGED, BOOK_ARRAY, BOOK_POOL,
    BOOK_VMM, BOOK_GRAPH, BOOK_MODULE, BOOK_CONTEXT, BOOK_KINDS
};
extern const char *const book_kind_names[BOOK_KINDS];

enum { BOOK_SLOTS = 4096, BOOK_FUNCTIONS = 1024 };

/* A guest has the books open and may lock them, but holds nothing: NVML, sim-books, a driver before cuInit. */
enum slot_state { SLOT_FREE, SLOT_GUEST, SLOT_LIVE, SLOT_DEAD };

/* A change is written here first, so that a process killed half way through it leaves either
 * the old figures or the new ones, never a mixture. */
struct book_change {
    atomic_uint valid;
    uint32_t device, kind, contexts;
    uint64_t bytes, live, grants;
};

struct book_slot {
    struct identity who;
    uint64_t joined, died; /* their order; died also for taking the longest-dead slot again */
    struct book_change change;
    uint64_t live;
    uint32_t contexts[SIM_MAX_DEVICES];
    uint64_t bytes[SIM_MAX_DEVICES][BOOK_KINDS];
    atomic_uint_fast64_t calls[BOOK_FUNCTIONS];
};

struct book_device {
    struct sim_device is;
    uint64_t used, peak;                /* all that is taken */
    uint64_t allocated, peak_allocated; /* without contexts' own cost */
    uint64_t grants, refusals;
};

struct books {
    atomic_uint magic;
    uint32_t version;
    atomic_uint lock; /* see lock.c */
    int32_t devices, gpus;
    int32_t order[SIM_MAX_DEVICES]; /* of GPUs, the fastest first */
    atomic_uint slots_used;
    uint64_t joins, deaths;
    struct book_device device[SIM_MAX_DEVICES];
    atomic_uint state[BOOK_SLOTS];
    struct book_slot slot[BOOK_SLOTS];
};

/* Maps the books of `dir`, making them if need be; NULL with a line on stderr when it cannot.
 * The first process to use a directory decides what devices there are. */
struct books *books_open(const struct sim_config *config);
struct books *books_open_existing(const char *dir);

/* Works across namespaces of pids, and frees itself and mends the books when its owner dies. */
void books_lock(struct books *b);
void books_unlock(struct books *b);

/* With the lock held. */
void books_reap(struct books *b);

/* Whether a process other than that of `s` has a context on the device. */
bool books_others_on(struct books *b, const struct book_slot *s, int device);

/* Makes this process's slot one that holds memory; NULL when 4096 live processes have all slots. */
struct book_slot *books_join(struct books *b);

/* Adds to what this process holds; false, with nothing changed, when the device is too full. */
bool books_take(struct books *b, struct book_slot *s, int device, enum book_kind kind, uint64_t bytes, int live);
void books_give(struct books *b, struct book_slot *s, int device, enum book_kind kind, uint64_t bytes, int live);
/* Counts a refusal that was decided before the books were asked. */
void books_refuse(struct books *b, int device);

uint64_t books_used(struct books *b, int device);

/* ---- between books.c and lock.c -------------------------------------------------------------------------- */

extern char books_dir[4096];
int books_guard_enter(void);
void books_guard_leave(int guard);
bool books_seat(struct books *b);          /* a slot as guest, for the identity of the lock's owner */
uint32_t books_seat_index(struct books *b); /* BOOK_SLOTS when there is none */
const struct identity *books_self(void);
void books_mend(struct books *b);

#endif
