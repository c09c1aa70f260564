/* A library that looks names up from within itself: what RTLD_NEXT and RTLD_DEFAULT mean depends on who asks.
 * Built several times with another ASKER each. */
#define _GNU_SOURCE
#include <dlfcn.h>

#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)

__attribute__((noinline)) void *JOIN(ask_, ASKER)(void *handle, const char *name, const char *version) {
    void *found = version ? dlvsym(handle, name, version) : dlsym(handle, name);
    /* No tail call: the caller would be someone else. */
    __asm__ volatile("" ::: "memory");
    return found;
}

/* As OpenMP tools do: a function that asks for the next one of its own name. */
void *ompt_start_tool(void) {
    void *next = JOIN(ask_, ASKER)(RTLD_NEXT, "ompt_start_tool", 0);
    __asm__ volatile("" ::: "memory");
    return next;
}

#ifdef WITH_OWN
/* A function of the driver's name that is not the driver's. */
int cuMemAlloc_v2(unsigned long long *address, unsigned long bytes) {
    (void)bytes;
    *address = 0;
    return 77;
}
#endif
