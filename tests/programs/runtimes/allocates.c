/* A library that was linked with one runtime, and keeps SIZE bytes by each way of allocating. */
#include <stdio.h>

struct cudaExtent {
    unsigned long width, height, depth;
};
struct cudaPitchedPtr {
    void *ptr;
    unsigned long pitch, xsize, ysize;
};
struct cudaChannelFormatDesc {
    int x, y, z, w, f;
};
int cudaMalloc(void **, unsigned long);
int cudaFree(void *);
int cudaMallocManaged(void **, unsigned long, unsigned);
int cudaMallocPitch(void **, unsigned long *, unsigned long, unsigned long);
int cudaMalloc3D(struct cudaPitchedPtr *, struct cudaExtent);
int cudaMallocArray(void **, const struct cudaChannelFormatDesc *, unsigned long, unsigned long, unsigned);
int cudaMallocAsync(void **, unsigned long, void *);
int cudaMemGetInfo(unsigned long *, unsigned long *);

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)

void JOIN(CALLER, all)(void) {
    void *kept, *given;
    unsigned long pitch, free, total;
    struct cudaPitchedPtr pitched;
    struct cudaChannelFormatDesc floats = {32, 0, 0, 0, 2};
    int failed = cudaMalloc(&kept, SIZE) | cudaMalloc(&given, SIZE) | cudaFree(given) | cudaMallocManaged(&kept, SIZE, 1) |
                 cudaMallocPitch(&kept, &pitch, 512, SIZE / 512) | cudaMalloc3D(&pitched, (struct cudaExtent){512, 4, SIZE / 2048}) |
                 cudaMallocArray(&kept, &floats, 128, SIZE / 512, 0) | cudaMallocAsync(&kept, SIZE, 0) |
                 cudaMemGetInfo(&free, &total);
    printf("%d %lu\n", failed, total);
}
