/* The books: who holds how much of which device, shared by all processes that name one directory. */
#ifndef CUWARDEN_SIM_BOOKS_H
#define CUWARDEN_SIM_BOOKS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "config.h"

enum book_kind {
    BOOK_LINEAR, BOOK_PITCH, BOOK_MANAGED, BOOK_ARRAY, BOOK_POOL,
    BOOK_VMM, BOOK_GRAPH, BOOK_MODULE, BOOK_CONTEXT, BOOK_KINDS
};
extern const char *const book_kind_names[BOOK_KINDS];

enum { BOOK_SLOTS = 4096, BOOK_FUNCTIONS = 1024 };
enum slot_state { SLOT_FREE, SLOT_LIVE, SLOT_DEAD };

/* A change is written here first, so that a process killed half way through it leaves either
 * the old figures or the new ones, never a mixture. */
struct book_change {
    atomic_uint valid;
    uint32_t device, kind;
    uint64_t bytes, live;
};

struct book_slot {
    int32_t pid;
    uint64_t start;     /* clock ticks since boot, /proc/<pid>/stat */
    uint64_t stack;     /* stack start: an exec keeps pid and start, but moves the stack */
    uint64_t namespace; /* of pids; another namespace's pids say nothing here */
    uint64_t died;      /* order of deaths, for taking the longest-dead slot again */
    struct book_change change;
    uint64_t live;
    uint64_t bytes[SIM_MAX_DEVICES][BOOK_KINDS];
    atomic_uint_fast64_t calls[BOOK_FUNCTIONS];
};

struct book_device {
    char uuid[SIM_UUID_SIZE];
    uint64_t total, used, peak;
};

struct books {
    atomic_uint magic;
    uint32_t version;
    pthread_mutex_t lock; /* robust: its owner may be killed at any instruction */
    int32_t devices;
    uint32_t slots_used;
    uint64_t deaths;
    struct book_device device[SIM_MAX_DEVICES];
    uint32_t state[BOOK_SLOTS];
    struct book_slot slot[BOOK_SLOTS];
};

/* Maps the books of `dir`, making them if need be; NULL with a line on stderr when it cannot.
 * The first process to use a directory decides what devices there are. */
struct books *books_open(const struct sim_config *config);
struct books *books_open_existing(const char *dir);

void books_lock(struct books *b);
void books_unlock(struct books *b);

/* Both with the lock held. */
void books_reap(struct books *b);
bool books_alive(const struct books *b, uint32_t index);

/* A slot for this process; NULL when 4096 live processes hold one. */
struct book_slot *books_join(struct books *b);

/* Adds to what this process holds; false, with nothing changed, when the device is too full. */
bool books_take(struct books *b, struct book_slot *s, int device, enum book_kind kind, uint64_t bytes, int live);
void books_give(struct books *b, struct book_slot *s, int device, enum book_kind kind, uint64_t bytes, int live);

uint64_t books_used(struct books *b, int device);

#endif
