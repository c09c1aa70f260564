/* What ThreadSanitizer has to be told of the standard library.
 *
 * std comes compiled, and not for ThreadSanitizer. Its short paths are inlined into our code and seen; where a
 * thread has to wait, std is called, and what it does there is not seen: two threads of which one waited for the
 * other would look as if they had raced. Each of these functions is std's, called by way of the linker's --wrap, with
 * the word by which it synchronises made known before or after.
 *
 * scripts/race gives the mangled names, by which macro each is known here. A name that this version of std lacks is
 * left out: whether that matters, the correct program tells that is run first.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void __tsan_acquire(void *address);
void __tsan_release(void *address);

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define WRAPPED(name) JOIN(__wrap_, name)
#define REAL(name) JOIN(__real_, name)

/* Where the words are within one of std's objects is std's own affair. They are few, and all aligned. */
static void acquire(void *object, unsigned bytes) {
    for (unsigned at = 0; at < bytes; at += 4)
        __tsan_acquire((char *)object + at);
}

static void release(void *object, unsigned bytes) {
    for (unsigned at = 0; at < bytes; at += 4)
        __tsan_release((char *)object + at);
}

#ifdef MUTEX_LOCK
void REAL(MUTEX_LOCK)(void *mutex);
void WRAPPED(MUTEX_LOCK)(void *mutex) {
    REAL(MUTEX_LOCK)(mutex);
    acquire(mutex, 4);
}
#endif

#ifdef RWLOCK_READ
void REAL(RWLOCK_READ)(void *lock);
void WRAPPED(RWLOCK_READ)(void *lock) {
    REAL(RWLOCK_READ)(lock);
    acquire(lock, 8);
}
#endif

#ifdef RWLOCK_WRITE
void REAL(RWLOCK_WRITE)(void *lock);
void WRAPPED(RWLOCK_WRITE)(void *lock) {
    REAL(RWLOCK_WRITE)(lock);
    acquire(lock, 8);
}
#endif

#ifdef CONDVAR_WAIT
void REAL(CONDVAR_WAIT)(void *condvar, void *mutex);
void WRAPPED(CONDVAR_WAIT)(void *condvar, void *mutex) {
    release(mutex, 4);
    REAL(CONDVAR_WAIT)(condvar, mutex);
    acquire(mutex, 4);
}
#endif

#ifdef CONDVAR_WAIT_TIMEOUT
bool REAL(CONDVAR_WAIT_TIMEOUT)(void *condvar, void *mutex, uint64_t seconds, uint32_t nanoseconds);
bool WRAPPED(CONDVAR_WAIT_TIMEOUT)(void *condvar, void *mutex, uint64_t seconds, uint32_t nanoseconds) {
    release(mutex, 4);
    bool in_time = REAL(CONDVAR_WAIT_TIMEOUT)(condvar, mutex, seconds, nanoseconds);
    acquire(mutex, 4);
    return in_time;
}
#endif

/* The word says that all is done before Once::call returns, and another thread may see it at once. So it is made known
 * in the closure's name, which is called by way of its table: drop, size, alignment, call_once, call_mut. */
#ifdef ONCE_CALL
enum { CALL_MUT = 4 };
struct closure {
    void *data;
    void **table;
    void *once;
};

static void call_and_release(struct closure *closure, void *state) {
    void (*call_mut)(void *, void *) = (void (*)(void *, void *))closure->table[CALL_MUT];
    call_mut(closure->data, state);
    release(closure->once, 4);
}

void REAL(ONCE_CALL)(void *once, bool ignore_poisoning, void *closure, void **table);
void WRAPPED(ONCE_CALL)(void *once, bool ignore_poisoning, void *data, void **table) {
    struct closure closure = {data, table, once};
    void *own_table[] = {NULL, (void *)sizeof closure, (void *)_Alignof(struct closure), NULL, (void *)call_and_release};
    REAL(ONCE_CALL)(once, ignore_poisoning, &closure, own_table);
    acquire(once, 4);
}
#endif

/* A thread of std::thread::scope has ended. */
#ifdef SCOPE_LEAVE
void REAL(SCOPE_LEAVE)(void *scope, bool panicked);
void WRAPPED(SCOPE_LEAVE)(void *scope, bool panicked) {
    release(scope, 24);
    REAL(SCOPE_LEAVE)(scope, panicked);
}
#endif

/* Arc gives a reference back with Release, and whoever was the last has a fence of Acquire behind it.
 * ThreadSanitizer knows no fences. Where our own code gave something back with Release that needs more than that, it
 * would not be seen here; nothing else uses this pair. */
enum { RELEASE = 3, ACQUIRE_AND_RELEASE = 4 };
uint64_t __real___tsan_atomic64_fetch_sub(volatile uint64_t *word, uint64_t by, int order);
uint64_t __wrap___tsan_atomic64_fetch_sub(volatile uint64_t *word, uint64_t by, int order) {
    return __real___tsan_atomic64_fetch_sub(word, by, order == RELEASE ? ACQUIRE_AND_RELEASE : order);
}
