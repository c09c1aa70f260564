/* closed none|stderr|all|descriptors OUTPUT: closes what a daemon closes, then meets its quota. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "cuda.h"

int main(int argc, char **argv) {
    if (argc != 3) return 64;
    void *context;
    address_t address;
    FILE *output = fopen(argv[2], "w");
    if (!output) return 2;
    int most = fileno(output);
    if (!strcmp(argv[1], "stderr")) close(2);
    if (!strcmp(argv[1], "all"))
        for (int fd = 0; fd < 3; fd++) close(fd);
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) return 1;
    if (!strcmp(argv[1], "descriptors"))
        for (int fd = 3; fd < 1024; fd++)
            if (fd != most) close(fd);
    int denied = cuMemAlloc_v2(&address, 2 << 20);
    fprintf(output, "denied %d\n", denied);
    return fclose(output) != 0;
}
