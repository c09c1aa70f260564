/* What a program can see of its own process, before and after it used CUDA: one fact a line.
 *   state nothing|cuda */
#define _GNU_SOURCE
#include <dirent.h>
#include <locale.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include "cuda.h"

extern char **environ;

/* The simulated driver keeps one file of its own open. */
static void descriptors(const char *when) {
    DIR *folder = opendir("/proc/self/fd");
    struct dirent *entry;
    printf("%s descriptors:", when);
    while ((entry = readdir(folder))) {
        char path[64], target[4096];
        snprintf(path, sizeof path, "/proc/self/fd/%.20s", entry->d_name);
        ssize_t length = readlink(path, target, sizeof target - 1);
        if (length < 0 || entry->d_name[0] == '.' || atoi(entry->d_name) == dirfd(folder)) continue;
        target[length] = 0;
        const char *slash = strrchr(target, '/');
        printf(" %s", atoi(entry->d_name) <= 2 ? "standard" : slash ? slash : target);
    }
    closedir(folder);
    printf("\n");
}

static void threads(const char *when) {
    DIR *folder = opendir("/proc/self/task");
    struct dirent *entry;
    printf("%s threads:", when);
    while ((entry = readdir(folder))) {
        char path[64], name[64] = "";
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "/proc/self/task/%.20s/comm", entry->d_name);
        FILE *file = fopen(path, "r");
        if (file && fgets(name, sizeof name, file)) printf(" %s", strtok(name, "\n"));
        if (file) fclose(file);
    }
    closedir(folder);
    printf("\n");
}

static void mappings(const char *when) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[4096];
    int both = 0;
    while (fgets(line, sizeof line, maps)) both += line[0] && strstr(line, " rwx") != NULL;
    fclose(maps);
    printf("%s writable code: %d\n", when, both);
}

static void facts(const char *when) {
    mode_t mask = umask(0);
    umask(mask);
    char folder[4096];
    printf("%s umask %03o, folder %s, locale %s\n", when, mask, getcwd(folder, sizeof folder), setlocale(LC_ALL, NULL));
    for (int number = 1; number < 65; number++) {
        struct sigaction action;
        if (sigaction(number, NULL, &action)) continue;
        if (action.sa_handler != SIG_DFL) printf("%s signal %d: %s\n", when, number, action.sa_handler == SIG_IGN ? "ignored" : "handled");
    }
    sigset_t mask_of_signals;
    pthread_sigmask(SIG_SETMASK, NULL, &mask_of_signals);
    printf("%s blocked:", when);
    for (int number = 1; number < 65; number++)
        if (sigismember(&mask_of_signals, number) == 1) printf(" %d", number);
    stack_t stack;
    sigaltstack(NULL, &stack);
    printf(", alternate stack %d", stack.ss_flags);
    printf(", dumpable %d, subreaper no", prctl(PR_GET_DUMPABLE));
    char name[16] = "";
    prctl(PR_GET_NAME, name);
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    printf(", name %s, limit %lu, nice %d\n", name, (unsigned long)limit.rlim_cur, getpriority(PRIO_PROCESS, 0));
    for (char **entry = environ; *entry; entry++)
        if (strncmp(*entry, "LD_PRELOAD=", 11) && strncmp(*entry, "CUWARDEN_", 9)) printf("%s environment %s\n", when, *entry);
    descriptors(when);
    threads(when);
    mappings(when);
}

int main(int argc, char **argv) {
    if (argc != 2) return 64;
    umask(0137);
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &blocked, NULL);
    signal(SIGUSR1, SIG_IGN);
    setlocale(LC_ALL, "");
    facts("before");
    if (!strcmp(argv[1], "cuda")) {
        void *context;
        address_t address;
        if (cuInit(0)) return 1;
        facts("started");
        if (cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 2;
        if (cuMemAlloc_v2(&address, 4096) || cuMemFree_v2(address)) return 3;
        facts("used");
    }
    return 0;
}
