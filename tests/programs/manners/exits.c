/* exits HOW: other threads allocate while the process ends in one of many ways. */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include "cuda.h"

static void *context;
static atomic_int running;

static void *busy(void *unused) {
    address_t kept[16];
    cuCtxSetCurrent(context);
    running++;
    for (;;) {
        for (int i = 0; i < 16; i++)
            if (cuMemAlloc_v2(&kept[i], 4096)) return unused;
        for (int i = 0; i < 16; i++) cuMemFree_v2(kept[i]);
    }
    return unused;
}

static void *ender(void *unused) {
    (void)unused;
    exit(0);
}

static void in_handler(int number) {
    (void)number;
    exit(0);
}

/* The same from every thread that allocates, wherever it is: the timer's signal goes to any of them. */
static void start_timer(void) {
    struct itimerval soon = {.it_value = {.tv_usec = 500 + getpid() % 7 * 300}};
    setitimer(ITIMER_REAL, &soon, NULL);
}

int main(int argc, char **argv) {
    if (argc != 2) return 64;
    const char *how = argv[1];
    pthread_t thread;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 1;
    address_t leaked;
    cuMemAlloc_v2(&leaked, 12345);
    for (int i = 0; i < 3; i++) pthread_create(&thread, NULL, busy, NULL);
    while (running < 3) sched_yield();
    if (!strcmp(how, "exit")) exit(0);
    if (!strcmp(how, "_exit")) _exit(0);
    if (!strcmp(how, "quick_exit")) quick_exit(0);
    if (!strcmp(how, "abort")) abort();
    if (!strcmp(how, "thread")) {
        pthread_create(&thread, NULL, ender, NULL);
        pause();
    }
    if (!strcmp(how, "last thread")) {
        pthread_create(&thread, NULL, ender, NULL);
        pthread_exit(NULL);
    }
    if (!strcmp(how, "signal")) {
        signal(SIGALRM, in_handler);
        start_timer();
        busy(NULL);
    }
    return 2;
}
