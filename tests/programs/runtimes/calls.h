/* The runtime's functions that have entries in the shim, as W (words only) and E (with an extent by value). */
struct extent {
    unsigned long width, height, depth;
};

#define ALL_CALLS(W, E)                                                                                              \
    W(cudaDeviceReset) W(cudaFree) W(cudaFreeArray) W(cudaFreeAsync) W(cudaFreeAsync_ptsz) W(cudaFreeMipmappedArray) \
    W(cudaGetDeviceCount) W(cudaGetDeviceProperties) W(cudaGetDriverEntryPoint) W(cudaGetDriverEntryPoint_ptsz)      \
    W(cudaMalloc) W(cudaMallocArray) W(cudaMallocAsync) W(cudaMallocAsync_ptsz) W(cudaMallocFromPoolAsync)           \
    W(cudaMallocFromPoolAsync_ptsz) W(cudaMallocManaged) W(cudaMallocPitch) W(cudaMemGetInfo) W(cudaSetDevice)       \
    E(cudaMalloc3D) E(cudaMalloc3DArray) E(cudaMallocMipmappedArray) LATER_CALLS(W)

#ifdef BEFORE_12
#define LATER_CALLS(W)
#elif defined FROM_13
#define LATER_CALLS(W) W(cudaGetDriverEntryPointByVersion) W(cudaGetDriverEntryPointByVersion_ptsz) W(cudaInitDevice)
#else
#define LATER_CALLS(W)                                                                                   \
    W(cudaGetDriverEntryPointByVersion) W(cudaGetDriverEntryPointByVersion_ptsz) W(cudaGetDeviceProperties_v2) \
    W(cudaInitDevice)
#endif
