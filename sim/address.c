/* Device addresses: unique, never those of host memory, and used again soon after a free, as the
 * real driver does: what an interposer forgets to forget shows up. */
#include <stdlib.h>

#include "sim.h"

enum { SIZE_BUCKETS = 1 << 12, NONE = UINT32_MAX };

struct size_list {
    size_t capacity;
    uint32_t first; /* most recently freed */
    struct size_list *next;
};

struct space {
    CUdeviceptr next, limit;
    struct block *blocks; /* in address order: a block is carved once and keeps its extent */
    uint32_t count, room;
    struct size_list *sizes[SIZE_BUCKETS];
};

static struct space spaces[2] = {
    {.next = 0x0302000000, .limit = 0x500000000000},
    {.next = 0x02000000, .limit = 0x100000000}, /* for the first functions, whose pointers have 32 bits */
};
static unsigned long long next_id = 1;

static struct size_list *size_list(struct space *s, size_t capacity) {
    struct size_list **at = &s->sizes[(capacity >> 9) % SIZE_BUCKETS];
    for (; *at; at = &(*at)->next)
        if ((*at)->capacity == capacity) return *at;
    *at = calloc(1, sizeof **at);
    if (!*at) abort();
    (*at)->capacity = capacity;
    (*at)->first = NONE;
    return *at;
}

struct block *block_new(enum block_kind kind, size_t size, size_t alignment, bool below_4g) {
    struct space *s = &spaces[below_4g];
    if (size > s->limit) return NULL;
    size_t capacity = align_up(size, alignment > VMM_GRANULARITY ? VMM_GRANULARITY : alignment);
    struct size_list *list = size_list(s, capacity);
    struct block *b = NULL;
    if (list->first != NONE && s->blocks[list->first].addr % alignment == 0) {
        b = &s->blocks[list->first];
        list->first = b->next_free;
    } else {
        CUdeviceptr addr = align_up(s->next, alignment);
        if (addr + capacity > s->limit) return NULL;
        if (s->count == s->room) {
            s->room = s->room ? s->room * 2 : 1024;
            s->blocks = realloc(s->blocks, s->room * sizeof *s->blocks);
            if (!s->blocks) abort();
        }
        s->next = addr + capacity;
        b = &s->blocks[s->count++];
        b->addr = addr;
        b->capacity = capacity;
    }
    *b = (struct block){.addr = b->addr, .capacity = b->capacity, .size = size, .kind = kind, .live = true,
                        .next_free = NONE, .id = next_id++};
    return b;
}

struct block *block_containing(CUdeviceptr ptr) {
    struct space *s = &spaces[ptr < 0x100000000];
    uint32_t low = 0, high = s->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (s->blocks[middle].addr <= ptr)
            low = middle + 1;
        else
            high = middle;
    }
    if (!low) return NULL;
    struct block *b = &s->blocks[low - 1];
    return b->kind != BLOCK_FREE && ptr - b->addr < b->size ? b : NULL;
}

struct block *block_at(CUdeviceptr ptr) {
    struct block *b = block_containing(ptr);
    return b && b->addr == ptr ? b : NULL;
}

void block_free(struct block *b) {
    struct space *s = &spaces[b->addr < 0x100000000];
    struct size_list *list = size_list(s, b->capacity);
    b->kind = BLOCK_FREE;
    b->ctx = NULL;
    b->next_free = list->first;
    list->first = (uint32_t)(b - s->blocks);
}

struct block *block_of_context(const struct context *ctx) {
    for (int i = 0; i < 2; i++)
        for (uint32_t n = 0; n < spaces[i].count; n++)
            if (spaces[i].blocks[n].kind != BLOCK_FREE && spaces[i].blocks[n].ctx == ctx) return &spaces[i].blocks[n];
    return NULL;
}

/* ---- CUWARDEN_SIM_NULL: what the driver costs when it costs nothing ------------------------ */

enum { STACK = 64 };
#define NULL_BASE 0x600000000000ULL /* up to 2^44 bytes more: see below */
static __thread struct {
    CUdeviceptr free[STACK], next;
    int count;
} mine;

CUresult null_alloc(CUdeviceptr *ptr, size_t bytes) {
    if (!ptr || !bytes) return CUDA_ERROR_INVALID_VALUE;
    if (mine.count) {
        *ptr = mine.free[--mine.count];
        return CUDA_SUCCESS;
    }
    /* The thread's own storage has an address that no other thread shares. */
    if (!mine.next) mine.next = NULL_BASE + (((uintptr_t)&mine & 0xffffffffffULL) << 4);
    *ptr = mine.next;
    mine.next += 512;
    return CUDA_SUCCESS;
}

/* Pitched and managed memory is in the books in this mode too, and is freed there. */
bool null_gave(CUdeviceptr ptr) {
    return !ptr || (ptr >= NULL_BASE && ptr < NULL_BASE + (1ULL << 45));
}

CUresult null_free(CUdeviceptr ptr) {
    if (ptr && mine.count < STACK) mine.free[mine.count++] = ptr;
    return CUDA_SUCCESS;
}
