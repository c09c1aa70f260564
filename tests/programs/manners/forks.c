/* forks HOW: children of a process whose threads allocate, and some start CUDA again, all the time. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "cuda.h"

extern char **environ;
static void *context;
static atomic_int stop, running, starting;

static void *busy(void *unused) {
    address_t address;
    cuCtxSetCurrent(context);
    running++;
    while (!stop) {
        if (cuMemAlloc_v2(&address, 4096)) abort();
        if (cuMemFree_v2(address)) abort();
        if (starting && cuInit(0)) abort();
    }
    return unused;
}

/* The child's own start, as the driver sees it: what it allows is its affair, but it must come back. */
static int child(void) {
    address_t address;
    int started = cuInit(0);
    int allocated = cuMemAlloc_v2(&address, 4096);
    return started == 0 && allocated == 0 ? 1 : started ? 10 + started : 100 + allocated % 50;
}

static int wait_for(pid_t pid) {
    int status;
    if (pid < 0 || waitpid(pid, &status, 0) != pid) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static void *forker(void *unused) {
    long codes = 0;
    for (int i = 0; i < 40; i++) {
        pid_t pid = fork();
        if (pid == 0) _exit(child());
        int code = wait_for(pid);
        codes |= code < 0 ? 1l << 62 : 1l << (code % 60);
    }
    (void)unused;
    return (void *)codes;
}

static int shared_memory_thread(void *argument) {
    address_t address;
    int *code = argument;
    *code = cuMemAlloc_v2(&address, 4096);
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 2) return 64;
    const char *how = argv[1];
    pthread_t threads[6];
    if (!strcmp(how, "before")) {
        /* The parent has nothing to do with CUDA yet. */
        for (int i = 0; i < 3; i++) {
            pid_t pid = fork();
            if (pid == 0) {
                address_t address;
                if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) _exit(2);
                exit(cuMemAlloc_v2(&address, 1000 * (size_t)(i + 1)) ? 3 : 0);
            }
            printf("child %d\n", wait_for(pid));
        }
        return 0;
    }
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 1;
    address_t leaked;
    if (cuMemAlloc_v2(&leaked, 12345)) return 1;
    if (!strcmp(how, "storm") || !strcmp(how, "starting storm")) {
        starting = !strcmp(how, "starting storm");
        for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, busy, NULL);
        while (running < 3) sched_yield();
        long codes = 0;
        for (int i = 3; i < 6; i++) pthread_create(&threads[i], NULL, forker, NULL);
        for (int i = 3; i < 6; i++) {
            void *result;
            pthread_join(threads[i], &result);
            codes |= (long)result;
        }
        stop = 1;
        for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
        printf("codes %lx\n", codes);
    } else if (!strcmp(how, "exiting child")) {
        pid_t pid = fork();
        if (pid == 0) exit(7);
        printf("child %d\n", wait_for(pid));
    } else if (!strcmp(how, "vfork")) {
        pid_t pid = vfork();
        if (pid == 0) {
            execl("/bin/sh", "sh", "-c", "exit 7", (char *)NULL);
            _exit(9);
        }
        printf("child %d\n", wait_for(pid));
    } else if (!strcmp(how, "spawn")) {
        pid_t pid;
        char *arguments[] = {"sh", "-c", "exit 7", NULL};
        if (posix_spawn(&pid, "/bin/sh", NULL, NULL, arguments, environ)) return 2;
        printf("child %d\n", wait_for(pid));
    } else if (!strcmp(how, "system")) {
        printf("child %d\n", WEXITSTATUS(system("exit 7")));
        fflush(stdout);
        FILE *pipe = popen("echo from the pipe", "r");
        char line[64] = "";
        if (!pipe || !fgets(line, sizeof line, pipe)) return 2;
        printf("%s%d\n", line, pclose(pipe));
    } else if (!strcmp(how, "clone")) {
        /* Another process by its number, with the memory of this one, and this one waits for it. */
        char *stack = malloc(1 << 18);
        int code = -1;
        cuCtxSetCurrent(context);
        pid_t pid = clone(shared_memory_thread, stack + (1 << 18), CLONE_VM | CLONE_VFORK | SIGCHLD, &code);
        printf("child %d, code %d\n", wait_for(pid), code);
    }
    address_t more;
    printf("parent goes on %d\n", cuMemAlloc_v2(&more, 55));
    return 0;
}
