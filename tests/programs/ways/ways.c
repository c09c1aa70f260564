/* Allocates in every way that CUDA has.
 *
 *   ways METHOD keep|free SCENARIO...    (all of them: all)
 *
 * METHOD says how the driver's functions are found: see driver.h. Each scenario leaves some of its memory behind (keep)
 * or none (free). At the end one JSON object: successful allocations by device, and what cuMemGetInfo says of device 0. */
#include "driver.h"

static unsigned long taken[2];
#define TAKES_ON(device, count, call) \
    do {                              \
        OK(call);                     \
        taken[device] += (count);     \
    } while (0)
#define TAKES(count, call) TAKES_ON(0, count, call)

#include "linear.h"
#include "pools.h"
#include "vmm.h"
#include "arrays.h"
#include "graphs.h"
#include "contexts.h"
#include "shared.h"

#define SCENARIOS(X)                                                                                                       \
    X(linear_v1) X(linear_v2) X(pitched) X(managed) X(page_locked) X(freed_otherwise)                                      \
    X(pool_default) X(pool_explicit) X(pool_of_the_device) X(pool_reserve) X(pool_synchronised) X(pool_destroyed_in_use)   \
    X(pool_of_host_memory) X(pool_of_the_other_device) X(pool_shared)                                                      \
    X(vmm_held) X(vmm_released_but_mapped) X(vmm_mapped_twice) X(vmm_unmapped_together) X(vmm_retained) X(vmm_elsewhere)   \
    X(vmm_imported)                                                                                                        \
    X(arrays_of_every_shape) X(arrays_by_every_function) X(mipmapped_arrays) X(sparse_arrays) X(sparse_arrays_mapped_anew) \
    X(sparse_mipmapped_arrays)                                                                                             \
    X(graphs_freed_outside) X(graphs_freed_inside) X(graphs_uploaded) X(graphs_launched_again) X(graphs_captured)          \
    X(graphs_in_graphs) X(graphs_never_launched)                                                                           \
    X(modules) X(contexts_destroyed) X(contexts_destroyed_with_sparse_arrays) X(contexts_detached)                         \
    X(contexts_beside_each_other) X(ipc) X(external) X(two_devices) X(primary_contexts)                  \
    X(primary_contexts_with_sparse_arrays) X(green_contexts)

static const struct {
    const char *name;
    void (*run)(bool keep);
} scenarios[] = {
#define SCENARIO(name) {#name, name},
    SCENARIOS(SCENARIO)
};
enum { COUNT = sizeof scenarios / sizeof *scenarios };

int main(int argc, char **argv) {
    if (argc == 2 && !strcmp(argv[1], "list")) {
        for (int i = 0; i < COUNT; i++) puts(scenarios[i].name);
        return 0;
    }
    if (argc < 4) return 64;
    bool keep = !strcmp(argv[2], "keep");
    driver_find(argv[1]);
    CUcontext ctx;
    OK(p_cuInit(0));
    OK(p_cuDevicePrimaryCtxRetain(&ctx, 0));
    for (int a = 3; a < argc; a++) {
        int found = 0;
        for (int i = 0; i < COUNT; i++) {
            if (strcmp(argv[a], "all") && strcmp(argv[a], scenarios[i].name)) continue;
            OK(p_cuCtxSetCurrent(ctx));
            scenarios[i].run(keep);
            found++;
        }
        if (!found) DIE("no scenario %s", argv[a]);
    }
    size_t free_bytes, total;
    OK(p_cuCtxSetCurrent(ctx));
    OK(p_cuMemGetInfo_v2(&free_bytes, &total));
    printf("{\"taken\":[%lu,%lu],\"free\":%zu,\"total\":%zu}\n", taken[0], taken[1], free_bytes, total);
    return 0;
}
