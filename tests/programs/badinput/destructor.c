/* A library whose destructor frees its memory, after ours has run; with -DLIBRARY it, and without it the program, whose
 * argument says how the destructor ends. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void library_begin(const char *how);

#ifdef LIBRARY
#include "../../../sim/cuda_abi.h"

static CUdeviceptr mine, lost;
static const char *ending;

static void ok(CUresult code) {
    if (!code) return;
    fprintf(stderr, "the driver answers %d\n", code);
    _exit(3);
}

void library_begin(const char *how) {
    CUcontext ctx;
    ok(cuInit(0));
    ok(cuDevicePrimaryCtxRetain(&ctx, 0));
    ok(cuCtxSetCurrent(ctx));
    ok(cuMemAlloc_v2(&mine, 1 << 20));
    ok(cuMemAlloc_v2(&lost, 512));
    ending = how;
}

__attribute__((destructor)) static void end(void) {
    if (!strcmp(ending, "leave")) _exit(0);
    ok(cuMemFree_v2(mine));
    if (!strcmp(ending, "die")) raise(9);
}
#else
int main(int argc, char **argv) {
    if (argc < 2) return 64;
    library_begin(argv[1]);
    return 0;
}
#endif
