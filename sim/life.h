/* Who a process is, and whether it still lives: in its own namespace of pids and seen from another one. */
#ifndef CUWARDEN_SIM_LIFE_H
#define CUWARDEN_SIM_LIFE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Tells the process that set it from its forked children, however they were forked: a child may even have
 * its parent's pid, in another namespace. */
struct mark {
    atomic_uint *_Atomic page;
};
void mark_set(struct mark *m);
void mark_clear(struct mark *m);
bool mark_ours(const struct mark *m);

/* One image of one process: exec makes another one. */
struct identity {
    int32_t pid;             /* in its own namespace */
    uint64_t start;          /* clock ticks since boot; 0 where /proc does not tell */
    uint64_t namespace;      /* of pids, its inode; 0 where /proc does not tell */
    unsigned char image[16]; /* the kernel's random bytes, new at every exec */
};
void identity_of_self(struct identity *who);

bool life_make_folder(const char *path); /* or finds it there */

/* Makes this process the living owner of a slot: until it ends or becomes another program, or closes all its
 * descriptors. Fails where somebody else is, or without a free descriptor. */
bool life_hold(const char *dir, uint32_t slot);
bool life_held(void);
void life_let_go(void);

/* Whether the owner of a slot still lives and is still the same program. */
bool life_goes_on(const char *dir, uint32_t slot, const struct identity *owner, const struct identity *self);

#endif
