/* The library of the example in scripts/ab-example, built once for each version of CUDA. It forgets to free:
 *
 *   load_weights     12 MiB, with every version
 *   make_workspace   8 MiB; with CUDA 13 it asks for 12 MiB
 *   cache_batch      0 to 7 MiB: what is in the cache at the end differs from run to run
 *   legacy_handle    1 MiB, with CUDA 12 only
 *   open_graph       2 MiB, with CUDA 13 only
 */
#include "cudart.h"

#include <stdlib.h>

#define MIB ((size_t)1 << 20)

static void *take(size_t bytes) {
    void *memory = NULL;
    if (cudaMalloc(&memory, bytes) != cudaSuccess) exit(1);
    return memory;
}

void load_weights(void) {
    for (int layer = 0; layer < 3; layer++) take(4 * MIB);
}

void make_workspace(void) {
    take((CUDA_MAJOR >= 13 ? 12 : 8) * MIB);
}

#if CUDA_MAJOR >= 13
static void open_graph(void) {
    take(2 * MIB);
}
#else
static void legacy_handle(void) {
    take(1 * MIB);
}
#endif

void open_session(void) {
#if CUDA_MAJOR >= 13
    open_graph();
#else
    legacy_handle();
#endif
}

/* Chance, but the same in every experiment: it begins at the number of the run. */
void cache_batch(unsigned run) {
    unsigned chance = (run * 31 + CUDA_MAJOR) * 2654435761u;
    for (unsigned batch = chance >> 29; batch > 0; batch--) take(1 * MIB);
}
