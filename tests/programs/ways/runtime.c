/* Allocates in every way that the CUDA runtime has: runtime keep|free. Says at the end what ways.c says. */
#include <cudart.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OK(call)                                                              \
    do {                                                                      \
        int got_ = (call);                                                    \
        if (got_) fprintf(stderr, "%s gave %d\n", #call, got_), exit(3);      \
    } while (0)

static unsigned long taken;
#define TAKES(call) (taken++, (call))

int main(int argc, char **argv) {
    int keep = argc > 1 && !strcmp(argv[1], "keep");
    struct cudaChannelFormatDesc desc = {32, 0, 0, 0, 2};
    struct cudaPitchedPtr pitched;
    size_t pitch, free_bytes, total;
    void *p[12];
    cudaArray_t a[3];
    cudaMipmappedArray_t m;
    cudaStream_t stream;
    cudaMemPool_t pool;
    OK(cudaStreamCreate(&stream));
    OK(cudaDeviceGetDefaultMemPool(&pool, 0));
    OK(TAKES(cudaMalloc(&p[0], 1000)));
    OK(TAKES(cudaMalloc(&p[1], 3 << 20)));
    OK(TAKES(cudaMallocManaged(&p[2], 5000, 1)));
    OK(TAKES(cudaMallocPitch(&p[3], &pitch, 100, 7)));
    OK(TAKES(cudaMalloc3D(&pitched, (struct cudaExtent){100, 5, 3})));
    OK(TAKES(cudaMallocArray(&a[0], &desc, 64, 32, 0)));
    OK(TAKES(cudaMallocArray(&a[1], &desc, 1000, 0, 0)));
    OK(TAKES(cudaMalloc3DArray(&a[2], &desc, (struct cudaExtent){16, 16, 8}, 0)));
    OK(TAKES(cudaMallocMipmappedArray(&m, &desc, (struct cudaExtent){64, 64, 0}, 4, 0)));
    OK(TAKES(cudaMallocAsync(&p[4], 7000, stream)));
    OK(TAKES(cudaMallocAsync_ptsz(&p[5], 3 << 20, 0)));
    OK(TAKES(cudaMallocFromPoolAsync(&p[6], 1 << 20, pool, stream)));
    OK(TAKES(cudaMallocFromPoolAsync_ptsz(&p[7], 100, pool, 0)));
    OK(cudaMallocHost(&p[8], 4096));
    OK(cudaFree(p[0]));
    OK(cudaFreeAsync(p[1], stream));
    OK(cudaFreeAsync_ptsz(p[4], stream));
    OK(cudaFree(p[6]));
    OK(cudaFreeArray(a[1]));
    OK(cudaStreamSynchronize(stream));
    if (!keep) {
        OK(cudaFree(p[2]));
        OK(cudaFree(p[3]));
        OK(cudaFree(pitched.ptr));
        OK(cudaFreeArray(a[0]));
        OK(cudaFreeArray(a[2]));
        OK(cudaFreeMipmappedArray(m));
        OK(cudaFree(p[5]));
        OK(cudaFreeAsync(p[7], stream));
        OK(cudaFreeHost(p[8]));
        OK(cudaDeviceSynchronize());
    }
    OK(cudaMemGetInfo(&free_bytes, &total));
    printf("{\"taken\":[%lu],\"free\":%zu,\"total\":%zu}\n", taken, free_bytes, total);
    return 0;
}
