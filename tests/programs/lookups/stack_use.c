/* How much stack each call takes: it runs on a stack of its own that was filled with a pattern before.
 * The call is made once on a large stack first where `warm` is given, since a first call does more. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { STACK = 1 << 20, PATTERN = 0x5c };
typedef unsigned long long address_t;

static void *driver, *context;
static int (*init)(unsigned);
static int (*retain)(void **, int);
static int (*set_current)(void *);
static int (*allocate)(address_t *, size_t);
static int (*release)(address_t);
static address_t address;

static void *nothing(void *unused) { return unused; }
static void *look_up_hooked(void *unused) { return dlsym(driver, "cuMemAlloc_v2") ? unused : unused; }
static void *look_up_default(void *unused) { return dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") ? unused : unused; }
static void *look_up_other(void *unused) { return dlsym(driver, "cuCtxSynchronize") ? unused : unused; }
static void *first_init(void *unused) { return init(0) ? abort(), unused : unused; }
static void *one_allocation(void *unused) { return set_current(context) || allocate(&address, 4096) ? abort(), unused : unused; }
static void *one_free(void *unused) { return set_current(context) || release(address) ? abort(), unused : unused; }

static long used_by(void *(*work)(void *)) {
    unsigned char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED) abort();
    memset(stack, PATTERN, STACK);
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, stack, STACK);
    if (pthread_create(&thread, &attributes, work, NULL)) abort();
    pthread_join(thread, NULL);
    long untouched = 0;
    while (untouched < STACK && stack[untouched] == PATTERN) untouched++;
    munmap(stack, STACK);
    return STACK - untouched;
}

int main(void) {
    driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver) return puts(dlerror()), 1;
    long base = used_by(nothing);
    printf("first look-up %ld\n", used_by(look_up_hooked) - base);
    printf("look-up %ld\n", used_by(look_up_hooked) - base);
    printf("look-up in global scope %ld\n", used_by(look_up_default) - base);
    printf("unhooked look-up %ld\n", used_by(look_up_other) - base);
    init = dlsym(driver, "cuInit");
    retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
    set_current = dlsym(driver, "cuCtxSetCurrent");
    allocate = dlsym(driver, "cuMemAlloc_v2");
    release = dlsym(driver, "cuMemFree_v2");
    printf("cuInit %ld\n", used_by(first_init) - base);
    if (retain(&context, 0)) return 2;
    printf("first allocation %ld\n", used_by(one_allocation) - base);
    printf("first free %ld\n", used_by(one_free) - base);
    printf("allocation %ld\n", used_by(one_allocation) - base);
    printf("free %ld\n", used_by(one_free) - base);
    return 0;
}
