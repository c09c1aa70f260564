/* Shared by the parts of the self-test. */
#ifndef CUWARDEN_SIM_SELFTEST_H
#define CUWARDEN_SIM_SELFTEST_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
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
struct book_slot *own_slot(void);
uint64_t held(int device, enum book_kind kind); /* by this process */
CUcontext start_context(int device);

uint64_t used(int device);
void eventually_used(int device, uint64_t bytes);
void hold_some(void); /* 263 MiB on device 0, of these 7 MiB beside the context */
pid_t child(void (*test)(void)); /* goes on with pause() */
pid_t child_in_namespace(void (*test)(void), bool own_proc); /* of pids; -1 where that is not permitted */
void wait_for(pid_t pid);
void end(pid_t pid);
void *shared_memory(size_t size);
int become(const char *what);

void test_visible(void);
void test_order(void);
void test_instances(void);
void test_nvml(void);
void test_nvml_processes(void);

void test_killed(void);
void test_storm(void);
void test_fork(void);
void test_reuse_of_slot(void);
void test_ipc(void);
void test_compute_mode(void);
void test_no_descriptor(void);
void test_peaks(void);
void test_lock(void);

void test_exec(void);
void test_forked_child(void);
void test_closed_descriptors(void);
void test_out_of_reach(void);
void test_leader_ends(void);
void test_pid_reuse(void);
void test_namespaces(void);
void test_unloaded(void);

#endif
