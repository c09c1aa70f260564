/* Inside the simulated libcuda: the frame around every call, objects, contexts, addresses. */
#ifndef CUWARDEN_SIM_H
#define CUWARDEN_SIM_H

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "books.h"
#include "config.h"
#include "cuda_abi.h"
#include "function-ids.h" /* generated: enum FN_cuInit, ..., FN_COUNT and function_names[] */

#define API __attribute__((visibility("default")))

/* ---- the frame around every call -------------------------------------------------------- */

struct call {
    int saved_errno;
    bool locked;
};

enum need { NEED_NOTHING, NEED_INIT, NEED_CONTEXT };

/* Counts the call, injects a failure when one is asked for, checks the state that the function
 * needs, and takes the process lock (all but NEED_NOTHING). */
CUresult call_enter(struct call *c, enum function_id id, enum need need);
void call_leave(struct call *c);

#define ENTER_ID(id, need)                                                           \
    __attribute__((cleanup(call_leave))) struct call call_ = {.saved_errno = errno}; \
    do {                                                                             \
        CUresult refused_ = call_enter(&call_, (id), (need));                        \
        if (refused_) return refused_;                                               \
    } while (0)
#define ENTER(name, need) ENTER_ID(FN_##name, need)
#define REQUIRE(condition) \
    do {                   \
        if (!(condition)) return CUDA_ERROR_INVALID_VALUE; \
    } while (0)

/* ---- the process's state; all of it under the process lock ------------------------------ */

extern struct books *sim_books;
extern struct book_slot *_Atomic sim_slot; /* set last: who sees it sees the rest */
extern atomic_bool sim_null; /* CUWARDEN_SIM_NULL, known from cuInit on */

CUresult sim_start(void);
bool sim_forked(void);

bool take(int ordinal, enum book_kind kind, uint64_t bytes, int live);
void give(int ordinal, enum book_kind kind, uint64_t bytes, int live);
bool others_on(int ordinal); /* whether another process has a context there */
void refuse(int ordinal); /* out of memory without having asked the books */

/* ---- devices ----------------------------------------------------------------------------- */

int device_count(void);
int device_physical(int ordinal); /* its place in the books */
bool device_valid(int ordinal);
CUresult devices_select(void); /* reads CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER */

/* ---- objects ----------------------------------------------------------------------------- */

enum object_kind {
    OBJECT_CONTEXT = 1, OBJECT_GREEN, OBJECT_STREAM, OBJECT_EVENT, OBJECT_MODULE, OBJECT_LIBRARY,
    OBJECT_FUNCTION, OBJECT_ARRAY, OBJECT_MIPMAP, OBJECT_POOL, OBJECT_VMM, OBJECT_EXTERNAL,
    OBJECT_GRAPH, OBJECT_NODE, OBJECT_EXEC
};

struct context;
struct object {
    enum object_kind kind;
    struct context *ctx; /* whose end ends this object too, or NULL */
    struct object *next;
};

void *object_new(enum object_kind kind, size_t size, struct context *ctx);
void *object_find(enum object_kind kind, const void *handle); /* NULL for any unknown handle */
void object_free(void *object);
struct object *object_first_of(const struct context *ctx); /* any object that ends with ctx */
void objects_each(void (*visit)(struct object *, void *), void *with); /* visit may free nothing */

/* ---- contexts ---------------------------------------------------------------------------- */

struct stream;
struct context {
    struct object object;
    int device;
    bool primary, active;
    unsigned int flags, attached, api_version;
    unsigned long long id;
    struct stream *legacy;
    struct stream *per_thread; /* list, one for each thread that used it */
};

struct context *context_current(void); /* after NEED_CONTEXT: never NULL */
CUresult context_state(void);
CUresult primary_retain(CUcontext *out, int device);
void context_push(struct context *ctx);

/* ---- addresses --------------------------------------------------------------------------- */

enum block_kind {
    BLOCK_FREE, BLOCK_LINEAR, BLOCK_PITCH, BLOCK_MANAGED, BLOCK_POOL, BLOCK_GRAPH, BLOCK_RESERVED,
    BLOCK_IPC, BLOCK_EXTERNAL, BLOCK_IMPORTED, BLOCK_GLOBAL
};

struct block {
    CUdeviceptr addr;
    size_t capacity, size, charge;
    enum block_kind kind;
    int device;
    bool live; /* graph memory: between the launch that allocates it and its free */
    uint32_t next_free;
    struct context *ctx;
    void *owner; /* pool, graph memory, import: by kind */
    unsigned long long id;
};

/* A block stays where it is until it is released, but may move when another one is made. */
struct block *block_new(enum block_kind kind, size_t size, size_t alignment, bool below_4g);
struct block *block_at(CUdeviceptr ptr);         /* begins at ptr */
struct block *block_containing(CUdeviceptr ptr); /* has ptr inside */
void block_free(struct block *b);
struct block *block_of_context(const struct context *ctx);

/* ---- the parts, as the others see them --------------------------------------------------- */

CUresult memory_release(struct block *b); /* gives back what the block is charged, and the block */
void array_end(struct object *o);
void vmm_array_ended(void *array); /* gives back the tiles mapped to it */
CUresult array_of_external(CUmipmappedArray *mipmap, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int levels);
void module_end(struct object *o);
void stream_end(struct object *o);

struct pool;
CUresult pool_free_block(struct block *b);
void pools_synchronize(int device); /* any device when negative */

struct stream *stream_resolve(CUstream handle, bool per_thread, CUresult *why);
struct context *stream_context(const struct stream *s);

struct capture;
struct capture *stream_capture(const struct stream *s); /* of a capturing stream, else NULL */
bool capture_active(const struct capture *c);
CUresult capture_forbids(void); /* 0, or 900 after having invalidated what it broke */
CUresult capture_forbids_legacy(const struct stream *s); /* 906 for the legacy stream beside a capture */
void capture_invalidate(struct capture *c);
CUresult capture_alloc(struct capture *c, CUdeviceptr *ptr, size_t bytes, int device);
CUresult capture_free(struct capture *c, CUdeviceptr ptr);
void capture_note_node(struct capture *c, int type);

CUresult graph_memory_free(struct block *b);
#define FORBIDDEN_IN_CAPTURE()                        \
    do {                                              \
        CUresult forbidden_ = capture_forbids();      \
        if (forbidden_) return forbidden_;            \
    } while (0)

CUresult null_alloc(CUdeviceptr *ptr, size_t bytes);
bool null_gave(CUdeviceptr ptr);
CUresult null_free(CUdeviceptr ptr);

static inline size_t align_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
enum { VMM_GRANULARITY = 2 << 20 };

#endif
