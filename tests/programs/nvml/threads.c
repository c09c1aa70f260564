/* Asks NVML from several threads while the process forks, and from every child. Ends with 0, or hangs. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../../sim/nvml_abi.h"

enum { THREADS = 3, CHILDREN = 100 };
static nvmlDevice_t device;
static atomic_int is_over;
static unsigned long long total;

/* The figure of the quota, and a list that fits. */
static int ask(void) {
    nvmlMemory_t memory;
    nvmlProcessInfo_t list[8];
    unsigned count = 8;
    if (nvmlDeviceGetMemoryInfo(device, &memory)) return 1;
    if (memory.total != total) return 2;
    return nvmlDeviceGetComputeRunningProcesses_v3(device, &count, list) || count > 1 ? 3 : 0;
}

static void *work(void *unused) {
    while (!atomic_load(&is_over)) {
        int wrong = ask();
        if (wrong) {
            fprintf(stderr, "a thread: %d\n", wrong);
            _exit(wrong);
        }
    }
    return unused;
}

int main(int argc, char **argv) {
    pthread_t threads[THREADS];
    if (argc != 2 || nvmlInit_v2() || nvmlDeviceGetHandleByIndex_v2(0, &device)) return 64;
    total = strtoull(argv[1], NULL, 10);
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, NULL);
    for (int i = 0; i < CHILDREN; i++) {
        pid_t child = fork();
        if (!child) _exit(ask());
        int status;
        waitpid(child, &status, 0);
        if (status) {
            fprintf(stderr, "child %d: 0x%x\n", i, status);
            return 5;
        }
    }
    atomic_store(&is_over, 1);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    return 0;
}
