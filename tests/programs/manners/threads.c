/* threads HOW: threads that end in unusual ways, in and around calls into the driver. tests/programs/manners/slow.c is
 * the driver: its cuMemAlloc_v2 waits where a real one would wait for the kernel, and its functions can call back. */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "cuda.h"

extern void slow_wait_until_inside(void);
extern void slow_block(int yes);
extern void slow_call_back(void (*function)(void));

static void *context;
static sigjmp_buf out;

static void *allocate(void *unused) {
    address_t address;
    cuCtxSetCurrent(context);
    cuMemAlloc_v2(&address, 1000);
    return unused;
}

static void leave_thread(void) { pthread_exit((void *)77); }
static void jump(void) { siglongjmp(out, 1); }
static void handler(int number) {
    (void)number;
    siglongjmp(out, 1);
}

static void *interrupted(void *unused) {
    address_t address;
    cuCtxSetCurrent(context);
    if (!sigsetjmp(out, 1)) cuMemAlloc_v2(&address, 1000);
    slow_block(0);
    slow_call_back(NULL);
    /* What this thread does from here on is counted again. */
    for (int i = 0; i < 3; i++) cuMemAlloc_v2(&address, 100000);
    return unused;
}

int main(int argc, char **argv) {
    if (argc != 2) return 64;
    const char *how = argv[1];
    pthread_t thread;
    void *result = NULL;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 1;
    if (!strcmp(how, "cancel")) {
        slow_block(1);
        pthread_create(&thread, NULL, allocate, NULL);
        slow_wait_until_inside();
        pthread_cancel(thread);
        pthread_join(thread, &result);
        printf("%s\n", result == PTHREAD_CANCELED ? "cancelled" : "not cancelled");
        slow_block(0);
    } else if (!strcmp(how, "exit")) {
        slow_call_back(leave_thread);
        pthread_create(&thread, NULL, allocate, NULL);
        pthread_join(thread, &result);
        printf("ended with %ld\n", (long)result);
        slow_call_back(NULL);
    } else if (!strcmp(how, "jump")) {
        slow_call_back(jump);
        pthread_create(&thread, NULL, interrupted, NULL);
        pthread_join(thread, &result);
    } else if (!strcmp(how, "signal")) {
        signal(SIGUSR1, handler);
        slow_block(1);
        pthread_create(&thread, NULL, interrupted, NULL);
        slow_wait_until_inside();
        pthread_kill(thread, SIGUSR1);
        pthread_join(thread, &result);
    }
    address_t address;
    printf("main goes on %d\n", cuMemAlloc_v2(&address, 55));
    return 0;
}
