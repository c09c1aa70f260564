/* starts THREADS: the first CUDA calls of a process come from all threads at once, and the process ends while some of
 * them go on. */
#include "../../../tests/programs/quota/kinds.h"

#include <pthread.h>
#include <sched.h>

void write_reports(void); /* hooks.rs */

static pthread_barrier_t barrier;

static void *work(void *joined) {
    CUcontext context;
    CUdeviceptr held;
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    pthread_barrier_wait(&barrier);
    /* Who starts CUDA is one thing, and who finds it started another. */
    if (joined) OK(p_cuInit(0));
    while (p_cuDevicePrimaryCtxRetain(&context, 0)) sched_yield();
    OK(p_cuCtxSetCurrent(context));
    OK(p_cuStreamCreate(&own_stream, 1));
    OK(p_cuMemPoolCreate(&own_pool, &props));
    OK(p_cuMemAlloc_v2(&held, 512));
    /* Beside the end of the process the driver may answer what it likes. */
    do {
        for (int i = 0; i < KINDS; i++) {
            struct got g = {0};
            if (!kinds[i].take(&g, kinds[i].grain)) (void)kinds[i].give(&g);
        }
    } while (!joined);
    return NULL;
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 0;
    pthread_t thread[64];
    if (threads < 2 || threads > 64) return 64;
    driver_find("linked");
    atexit(write_reports);
    pthread_barrier_init(&barrier, NULL, (unsigned)threads);
    for (int i = 0; i < threads; i++) pthread_create(&thread[i], NULL, work, i % 2 ? thread : NULL);
    for (int i = 1; i < threads; i += 2) pthread_join(thread[i], NULL);
    return 0;
}
