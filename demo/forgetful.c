/* The program of `cuwarden demo`: it trains a toy network and does three things wrong, one for each argument.
 *
 *   forgetful leak    does not free all that it allocates
 *   forgetful quota   wants more memory than it may have
 *   forgetful start   finds no usable device
 *   forgetful hold    has the device to itself, until its input ends
 */
#include "cudart.h"

#include <stdio.h>
#include <string.h>

#define MIB ((size_t)1 << 20)

static void *weights[3], *history[4];

static int failed(const char *what, cudaError_t error) {
    if (error != cudaSuccess) printf("%s: %s\n", what, cudaGetErrorString(error));
    return error != cudaSuccess;
}

/* Leaks 3 x 4 MiB: nobody ever frees the weights. */
static void load_weights(void) {
    for (int layer = 0; layer < 3; layer++) {
        cudaError_t error = cudaMalloc(&weights[layer], 4 * MIB);
        if (failed("load_weights", error)) return;
    }
    printf("loaded the weights of 3 layers, 4 MiB each\n");
}

/* Leaks 4 x 1 MiB: a copy for each step, in case somebody asks for it. */
static void remember_gradients(int step) {
    cudaError_t error = cudaMalloc(&history[step], 1 * MIB);
    failed("remember_gradients", error);
}

/* Frees what it allocates, so no report names it. */
static void run_batch(void) {
    void *batch = NULL;
    if (failed("run_batch", cudaMalloc(&batch, 8 * MIB))) return;
    failed("run_batch", cudaFree(batch));
}

static void train(void) {
    for (int step = 0; step < 4; step++) {
        run_batch();
        remember_gradients(step);
    }
    printf("trained 4 steps\n");
}

static int leak(void) {
    load_weights();
    train();
    printf("done\n");
    return 0;
}

static int grow_until_refused(void) {
    void *block[8];
    int held = 0;
    size_t free_bytes = 0, total = 0;
    if (!failed("cudaMemGetInfo", cudaMemGetInfo(&free_bytes, &total)))
        printf("the device shows %zu MiB in all, %zu MiB free\n", total / MIB, free_bytes / MIB);
    while (held < 8) {
        cudaError_t error = cudaMalloc(&block[held], 24 * MIB);
        if (failed("cudaMalloc(24 MiB)", error)) break;
        printf("cudaMalloc(24 MiB): ok, %zu MiB held\n", (size_t)++held * 24);
    }
    while (held > 0) failed("cudaFree", cudaFree(block[--held]));
    printf("freed everything\n");
    return 0;
}

/* The first call of the runtime makes the context. */
static int make_context(void) {
    cudaError_t error = cudaFree(NULL);
    if (!failed("cudaFree(NULL)", error)) printf("made a context\n");
    return error != cudaSuccess;
}

/* Somebody else's job, in exclusive mode. */
static int hold(void) {
    if (failed("cudaFree(NULL)", cudaFree(NULL))) return 1;
    puts("holding");
    fflush(stdout);
    while (getchar() != EOF) {
    }
    return 0;
}

int main(int count, char **argument) {
    const char *what = count > 1 ? argument[1] : "";
    if (!strcmp(what, "leak")) return leak();
    if (!strcmp(what, "quota")) return grow_until_refused();
    if (!strcmp(what, "start")) return make_context();
    if (!strcmp(what, "hold")) return hold();
    fprintf(stderr, "usage: %s leak|quota|start|hold\n", argument[0]);
    return 64;
}
