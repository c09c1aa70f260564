/* The lock of the books. Not a robust mutex: that knows its owner by a thread id, and ids of two namespaces are
 * the same (the first process of every container is 1), so that a waiter's death can free it under its owner.
 * Here the owner is a slot, whose death is known exactly; a waiter looks for it now and then. */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <string.h>
#include <sys/file.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "books.h"

/* The lock word: 0, or the owner's slot + 1, and whether somebody waits. */
#define WAITERS 0x80000000U
#define NOBODYS 0x7fffffffU /* an owner without a slot: it cannot be seen to die */

/* ---- a slot of one's own --------------------------------------------------------------------------------- */

static struct mark seated;
static struct books *seated_in;
static uint32_t seat_index = BOOK_SLOTS;
static struct identity self; /* as it was then: after a chroot /proc may be out of reach */
static atomic_int seating; /* the pid of the process whose thread is at it: a child may find its parent's */

/* Slots are given out under a lock of the file, since the lock of the books needs a slot. */
int books_guard_enter(void) {
    char path[4200];
    strcpy(path, books_dir);
    strcat(path, "/sim-books.bin");
    int guard = open(path, O_RDWR | O_CLOEXEC);
    while (guard >= 0 && flock(guard, LOCK_EX))
        if (errno != EINTR) break;
    return guard;
}

/* A child that was forked meanwhile has the descriptor too: closing would not unlock. */
void books_guard_leave(int guard) {
    if (guard < 0) return;
    flock(guard, LOCK_UN);
    close(guard);
}

static uint32_t seat_in(struct books *b) {
    for (uint32_t i = 0; i < BOOK_SLOTS; i++) {
        if (atomic_load(&b->state[i]) != SLOT_FREE || !life_hold(books_dir, i)) continue;
        struct book_slot *s = &b->slot[i];
        memset(s, 0, sizeof *s);
        identity_of_self(&self);
        s->who = self;
        if (i >= atomic_load(&b->slots_used)) atomic_store(&b->slots_used, i + 1);
        atomic_store(&b->state[i], SLOT_GUEST);
        return i;
    }
    return BOOK_SLOTS;
}

bool books_seat(struct books *b) {
    int pid = getpid(), other = atomic_load(&seating);
    while (!mark_ours(&seated)) {
        if (other == pid || !atomic_compare_exchange_strong(&seating, &other, pid)) {
            nanosleep(&(struct timespec){0, 100000}, NULL);
            other = atomic_load(&seating);
            continue;
        }
        int guard = books_guard_enter();
        seat_index = guard >= 0 ? seat_in(b) : BOOK_SLOTS;
        seated_in = b;
        books_guard_leave(guard);
        if (seat_index < BOOK_SLOTS) mark_set(&seated);
        atomic_store(&seating, 0);
        if (seat_index == BOOK_SLOTS) return false;
    }
    /* A program that closed descriptors that it did not know has lost its lock; it gets it again. */
    if (!life_held()) life_hold(books_dir, seat_index);
    return true;
}

/* A library that is unloaded leaves, unless it holds memory: that goes with the process. */
__attribute__((destructor)) static void leave(void) {
    if (!mark_ours(&seated)) return;
    uint32_t guest = SLOT_GUEST;
    if (!atomic_compare_exchange_strong(&seated_in->state[seat_index], &guest, SLOT_FREE)) return;
    life_let_go();
    mark_clear(&seated);
}

const struct identity *books_self(void) {
    if (!mark_ours(&seated)) identity_of_self(&self); /* without a slot of its own */
    return &self;
}

uint32_t books_seat_index(struct books *b) { return books_seat(b) ? seat_index : BOOK_SLOTS; }

/* ---- the lock -------------------------------------------------------------------------------------------- */

static __thread int cancel_state;

static bool wait_while(struct books *b, uint32_t word) {
    struct timespec patience = {0, 3000000};
    return !syscall(SYS_futex, &b->lock, FUTEX_WAIT, word, &patience, NULL, 0) || errno != ETIMEDOUT;
}

static bool owner_died(struct books *b, uint32_t word) {
    uint32_t owner = (word & ~WAITERS) - 1;
    if (owner >= BOOK_SLOTS) return false;
    return !life_goes_on(books_dir, owner, &b->slot[owner].who, books_self());
}

void books_lock(struct books *b) {
    int cancel;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
    uint32_t index = books_seat_index(b), me = index < BOOK_SLOTS ? index + 1 : NOBODYS, seen = 0;
    if (!atomic_compare_exchange_strong(&b->lock, &seen, me)) {
        for (;;) {
            if (!seen) {
                /* Others may be waiting: this one cannot know. */
                if (atomic_compare_exchange_strong(&b->lock, &seen, me | WAITERS)) break;
                continue;
            }
            if (!(seen & WAITERS)) {
                if (!atomic_compare_exchange_strong(&b->lock, &seen, seen | WAITERS)) continue;
                seen |= WAITERS;
            }
            if (!wait_while(b, seen) && owner_died(b, seen)) {
                if (atomic_compare_exchange_strong(&b->lock, &seen, me | WAITERS)) {
                    books_mend(b);
                    break;
                }
                continue;
            }
            seen = atomic_load(&b->lock);
        }
    }
    cancel_state = cancel;
}

void books_unlock(struct books *b) {
    int cancel = cancel_state;
    if (atomic_exchange(&b->lock, 0) & WAITERS) syscall(SYS_futex, &b->lock, FUTEX_WAKE, 1, NULL, NULL, 0);
    pthread_setcancelstate(cancel, NULL);
}
