/* grows STEPS PAUSE_US: one step is a MiB that nobody frees, one for a cache that is full after thirty, and one in a ring of
 * eight. Before them 5 MiB at once. */
#include "../manners/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define OK(call)                                                         \
    do {                                                                 \
        int got_ = (call);                                               \
        if (got_) fprintf(stderr, "%s gave %d\n", #call, got_), exit(3); \
    } while (0)

enum { MIB = 1 << 20 };

__attribute__((noinline)) static void leak(void) { OK(cuMemAlloc_v2(&(address_t){0}, MIB)); }
__attribute__((noinline)) static void fill_cache(int step) {
    if (step < 30) OK(cuMemAlloc_v2(&(address_t){0}, MIB));
}
__attribute__((noinline)) static void turn_ring(int step) {
    static address_t ring[8];
    address_t *place = &ring[step % 8];
    if (*place) OK(cuMemFree_v2(*place));
    OK(cuMemAlloc_v2(place, MIB));
}
__attribute__((noinline)) static void load_weights(void) { OK(cuMemAlloc_v2(&(address_t){0}, 5 * MIB)); }

int main(int argc, char **argv) {
    if (argc < 3) return 64;
    int steps = atoi(argv[1]);
    void *context;
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    OK(cuCtxSetCurrent(context));
    load_weights();
    for (int step = 0; step < steps; step++) {
        leak();
        fill_cache(step);
        turn_ring(step);
        usleep((useconds_t)atoi(argv[2]));
    }
    return 0;
}
