/* One thread captures a stream in global mode, which forbids others many calls and is broken by them. Another thread
 * makes only calls that are allowed, beside a quota that makes the shim ask and trim: the capture must come out whole. */
#include "kinds.h"

#include <pthread.h>

static size_t limit;
static CUcontext context;
static CUgraphExec with_memory;
static pthread_barrier_t step;

static void *allowed(void *unused) {
    CUmemoryPool pool;
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    struct got a = {0}, b = {0};
    size_t free_bytes, total;
    OK(p_cuCtxSetCurrent(context));
    OK(p_cuStreamCreate(&own_stream, 1));
    OK(p_cuMemPoolCreate(&own_pool, &props));
    pthread_barrier_wait(&step);
    OK(take_pool(&a, limit / 2));
    OK(take_async(&b, limit / 4));
    GIVES(2, take_pool(&(struct got){0}, limit)); /* trims */
    GIVES(2, take_physical(&(struct got){0}, limit));
    OK(p_cuMemGetInfo_v2(&free_bytes, &total));
    OK(give_async(&a));
    OK(give_async(&b));
    OK(p_cuGraphLaunch(with_memory, own_stream));
    OK(p_cuGraphUpload(with_memory, own_stream));
    OK(take_physical(&a, limit / 2)); /* fits once the pools are trimmed */
    OK(give_physical(&a));
    OK(p_cuDeviceGetDefaultMemPool(&pool, 0));
    OK(p_cuMemPoolTrimTo(pool, 0));
    OK(p_cuStreamSynchronize(own_stream));
    OK(p_cuMemPoolDestroy(own_pool));
    pthread_barrier_wait(&step);
    return unused;
}

int main(int argc, char **argv) {
    pthread_t thread;
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr ptr, captured;
    if (argc < 2) return 64;
    limit = strtoull(argv[1], NULL, 10);
    context = begin_cuda();
    with_memory = graph_that_allocates(limit / 4, &ptr);
    OK(p_cuStreamCreate(&stream, 1));
    pthread_barrier_init(&step, NULL, 2);
    pthread_create(&thread, NULL, allowed, NULL);
    OK(p_cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(p_cuMemAllocAsync(&captured, limit / 4, stream));
    pthread_barrier_wait(&step);
    pthread_barrier_wait(&step);
    /* This thread may as well, on another stream. */
    CUstream other;
    struct got g = {0};
    OK(p_cuStreamCreate(&other, 1));
    own_stream = other;
    OK(take_async(&g, limit / 8));
    GIVES(2, take_pool(&(struct got){0}, limit));
    OK(give_async(&g));
    OK(p_cuMemFreeAsync(captured, stream));
    OK(p_cuStreamEndCapture(stream, &graph));
    OK(p_cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(p_cuGraphLaunch(exec, stream));
    pthread_join(thread, NULL);
    return 0;
}
