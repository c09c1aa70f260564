/* The functions of the driver that the programs here use, linked. */
#ifndef MANNERS_CUDA_H
#define MANNERS_CUDA_H
#include <stddef.h>
typedef unsigned long long address_t;
extern int cuInit(unsigned flags);
extern int cuDevicePrimaryCtxRetain(void **context, int device);
extern int cuDevicePrimaryCtxRelease_v2(int device);
extern int cuCtxSetCurrent(void *context);
extern int cuMemAlloc_v2(address_t *address, size_t bytes);
extern int cuMemFree_v2(address_t address);
#endif
