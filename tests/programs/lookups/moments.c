/* Look-ups and allocations at moments that are unusual: before main, at exit, in a signal handler, in many threads,
 * on a small stack. Says what each gave. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef unsigned long long address_t;

static void *driver;
static int (*init)(unsigned);
static int (*retain)(void **, int);
static int (*set_current)(void *);
static int (*allocate)(address_t *, size_t);
static int (*release)(address_t);
static int (*get)(const char *, void **, int, uint64_t, int *);
static void *context;

static void check(const char *when) {
    errno = 4711;
    void *again = dlsym(driver, "cuMemAlloc_v2");
    int after_look_up = errno;
    address_t address = 0;
    int taken = set_current(context);
    if (!taken) taken = allocate(&address, 4096);
    int after_allocation = errno;
    int given = release(address);
    void *found = NULL;
    get("cuMemAlloc", &found, 12000, 0, NULL);
    char line[256];
    int length = snprintf(line, sizeof line, "%s: %s %s, allocated %d, freed %d, errno %d %d %d\n", when,
                          again == (void *)allocate ? "same" : "ANOTHER", found == again ? "same" : "ANOTHER", taken,
                          given, after_look_up, after_allocation, errno);
    if (write(1, line, (size_t)length) != length) abort();
}

static void start(void) {
    driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!driver) _exit(3);
    init = dlsym(driver, "cuInit");
    retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
    set_current = dlsym(driver, "cuCtxSetCurrent");
    allocate = dlsym(driver, "cuMemAlloc_v2");
    release = dlsym(driver, "cuMemFree_v2");
    get = dlsym(driver, "cuGetProcAddress_v2");
    if (!init || !retain || !set_current || !allocate || !release || !get) _exit(4);
    if (init(0) || retain(&context, 0)) _exit(5);
}

/* Before every constructor of a library that lets others come first. */
__attribute__((constructor(101))) static void early(void) {
    start();
    check("constructor");
}

static void last(void) { check("atexit"); }
__attribute__((destructor)) static void late(void) { check("destructor"); }
static void handler(int number) {
    (void)number;
    check("signal handler");
}

static void *many(void *unused) {
    long wrong = 0;
    for (int i = 0; i < 2000; i++) {
        wrong += dlsym(driver, "cuMemAlloc_v2") != (void *)allocate;
        wrong += dlsym(RTLD_DEFAULT, "cuNoSuchFunction") != NULL;
        wrong += dlsym(RTLD_NEXT, "cuMemAlloc_v2") != NULL;
        wrong += dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5") == NULL;
    }
    (void)unused;
    return (void *)wrong;
}

static void *small(void *unused) {
    check("small stack");
    return unused;
}

int main(void) {
    check("main");
    atexit(last);
    signal(SIGUSR1, handler);
    raise(SIGUSR1);
    pthread_t threads[8];
    long wrong = 0;
    for (int i = 0; i < 8; i++) pthread_create(&threads[i], NULL, many, NULL);
    for (int i = 0; i < 8; i++) {
        void *result;
        pthread_join(threads[i], &result);
        wrong += (long)result;
    }
    printf("threads: %ld wrong\n", wrong);
    fflush(stdout);
    /* The smallest that the C library allows. */
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 16384);
    if (pthread_create(&threads[0], &attributes, small, NULL)) return 6;
    pthread_join(threads[0], NULL);
    return 0;
}
