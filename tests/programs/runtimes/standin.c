/* Stands for a libcudart. Each function answers with a number that tells which library it is in (INSTANCE), which
 * function it is and what it was given. */
#include <pthread.h>

#include "calls.h"

static int answer(const char *name, unsigned long sum) {
    for (; *name; name++) sum = sum * 31 + (unsigned char)*name;
    return INSTANCE * 10000000 + (int)(sum % 9999991);
}

/* What the thread gives as a device for the call not to come back. */
enum { LEAVES = 4711 };

#define WORDS(name)                                                                             \
    int name(long a, long b, long c, long d, long e, long f) {                                  \
        if (sizeof #name == sizeof "cudaSetDevice" && #name[4] == 'S' && a == LEAVES) pthread_exit(0); \
        return answer(#name, a + b * 3 + c * 5 + d * 7 + e * 11 + f * 13);                      \
    }
#define EXTENT(name)                                                                            \
    int name(long a, long b, struct extent x, long c, long d) {                                 \
        return answer(#name, a + b * 3 + x.width * 5 + x.height * 7 + x.depth * 11 + c * 13 + d * 17); \
    }
ALL_CALLS(WORDS, EXTENT)

/* Not hooked. */
int cudaRuntimeGetVersion(int *version) { return *version = INSTANCE, 0; }
