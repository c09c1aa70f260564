/* Another library that stands in the place of dlsym, as tracers do. With JUMP it leaves the caller's return address;
 * without, it becomes the caller. With VERSIONED it finds the real one by dlvsym, without by dlsym's next. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static unsigned long seen;
static void *(*volatile next)(void *, const char *);

__attribute__((noinline)) static void find_next(void) {
    if (next) return;
#ifdef VERSIONED
    next = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
#else
    /* The C library's, since ours would come back here, or whoever stands before it. */
    static int busy;
    if (busy) abort();
    busy = 1;
    next = (void *(*)(void *, const char *))dlvsym(RTLD_DEFAULT, "dlsym", "GLIBC_2.34");
    busy = 0;
    if (!next) next = (void *(*)(void *, const char *))dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
#endif
    if (!next) abort();
}

#ifdef JUMP
__attribute__((used)) static void *count_and_find(void) {
    seen++;
    find_next();
    return (void *)next;
}
__asm__(".globl dlsym\n.type dlsym,@function\ndlsym:\n"
        "push %rdi\npush %rsi\nsub $8,%rsp\ncall count_and_find\nadd $8,%rsp\npop %rsi\npop %rdi\njmp *%rax\n");
#else
void *dlsym(void *handle, const char *name) {
    seen++;
    find_next();
    void *found = next(handle, name);
    __asm__ volatile("" ::: "memory");
    return found;
}
#endif

__attribute__((destructor)) static void tell(void) { fprintf(stderr, "other saw %lu look-ups\n", seen); }
