/* Median time to start and reap /bin/true, with LD_PRELOAD set to the argument, if any, in microseconds. */
#define _GNU_SOURCE
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>

enum { RUNS = 400 };

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double once(char *const environment[])
{
    char *const arguments[] = {"/bin/true", NULL};
    struct timespec start, end;
    pid_t pid;
    clock_gettime(CLOCK_MONOTONIC, &start);
    if (posix_spawn(&pid, "/bin/true", NULL, NULL, arguments, environment) != 0)
        exit(1);
    waitpid(pid, NULL, 0);
    clock_gettime(CLOCK_MONOTONIC, &end);
    return (end.tv_sec - start.tv_sec) * 1e6 + (end.tv_nsec - start.tv_nsec) / 1e3;
}

int main(int argc, char **argv)
{
    char preload[4096];
    char *without[] = {NULL};
    char *with[] = {preload, NULL};
    static double bare[RUNS], loaded[RUNS];
    if (argc != 2)
        return 64;
    snprintf(preload, sizeof preload, "LD_PRELOAD=%s", argv[1]);
    /* In turns, so that whatever else the machine does falls on both. */
    for (int i = 0; i < RUNS; i++) {
        bare[i] = once(without);
        loaded[i] = once(with);
    }
    qsort(bare, RUNS, sizeof *bare, ascending);
    qsort(loaded, RUNS, sizeof *loaded, ascending);
    printf("spawn_bare %.2f\nspawn_preloaded %.2f\n", bare[RUNS / 2], loaded[RUNS / 2]);
    return 0;
}
