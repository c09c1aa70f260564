/* A library that was linked with one runtime: CALLER_all prints what each call answers, CALLER_leaves does not return. */
#include <stdio.h>

#include "calls.h"

#define DECLARE_WORDS(name) int name(long, long, long, long, long, long);
#define DECLARE_EXTENT(name) int name(long, long, struct extent, long, long);
ALL_CALLS(DECLARE_WORDS, DECLARE_EXTENT)
int cudaRuntimeGetVersion(int *);

#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)
#define TEXT_(a) #a
#define TEXT(a) TEXT_(a)

void JOIN(CALLER, all)(void) {
    int version = 0;
    cudaRuntimeGetVersion(&version);
    printf("%s is linked with %d\n", TEXT(CALLER), version);
#define CALL_WORDS(name) printf("%s %s %d\n", TEXT(CALLER), #name, name(1, 2, 3, 4, 5, 6));
#define CALL_EXTENT(name) printf("%s %s %d\n", TEXT(CALLER), #name, name(1, 2, (struct extent){3, 4, 5}, 6, 7));
    ALL_CALLS(CALL_WORDS, CALL_EXTENT)
}

int JOIN(CALLER, once)(void) { return cudaMalloc(1, 2, 3, 4, 5, 6); }

void JOIN(CALLER, leaves)(void) { cudaSetDevice(4711, 0, 0, 0, 0, 0); }
