/* Shared by the parts of the self-test. */
#ifndef CUWARDEN_SIM_SELFTEST_H
#define CUWARDEN_SIM_SELFTEST_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "books.h"
#include "cuda_abi.h"
#include "function-ids.h"

#define MIB (1ULL << 20)

/* Ends the test at the first wrong thing. */
#define CHECK(condition)                                                        \
    do {                                                                        \
        if (!(condition)) {                                                     \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
            _exit(1);                                                           \
        }                                                                       \
    } while (0)
#define EQUAL(got, wanted)                                                                          \
    do {                                                                                            \
        long long got_ = (long long)(got), wanted_ = (long long)(wanted);                           \
        if (got_ != wanted_) {                                                                      \
            fprintf(stderr, "%s:%d: %s is %lld, not %lld\n", __FILE__, __LINE__, #got, got_, wanted_); \
            _exit(1);                                                                               \
        }                                                                                           \
    } while (0)
#define OK(call) EQUAL(call, CUDA_SUCCESS)

extern char test_dir[256];
struct books *test_books(void);
uint64_t held(int device, enum book_kind kind); /* by this process */
CUcontext start_context(int device);

void test_killed(void);
void test_storm(void);
void test_fork(void);
void test_reuse_of_slot(void);
void test_ipc(void);
void test_no_descriptor(void);

#endif
