/* sim-books [DIR]: prints the books as JSON. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "books.h"
#include "function-ids.h"

/* Names come from the environment, so they may hold anything. */
static void string(const char *s) {
    putchar('"');
    for (; *s; s++) {
        if (*s == '"' || *s == '\\')
            printf("\\%c", *s);
        else if ((unsigned char)*s < ' ')
            printf("\\u%04x", (unsigned)*s);
        else
            putchar(*s);
    }
    putchar('"');
}

typedef unsigned long long ull;

static void device(const struct book_device *d) {
    printf("{\"uuid\":");
    string(d->is.uuid);
    printf(",\"gpu\":%d,\"total\":%llu,\"used\":%llu,\"peak\":%llu,\"allocated\":%llu,\"peak_allocated\":%llu", d->is.gpu,
           (ull)d->is.total, (ull)d->used, (ull)d->peak, (ull)d->allocated, (ull)d->peak_allocated);
    printf(",\"grants\":%llu,\"refusals\":%llu}", (ull)d->grants, (ull)d->refusals);
}

static void slot(const struct books *b, const struct book_slot *s, bool alive) {
    printf("{\"pid\":%d,\"start\":%llu,\"namespace\":%llu,\"alive\":%s,\"devices\":[", s->who.pid, (ull)s->who.start,
           (ull)s->who.namespace, alive ? "true" : "false");
    for (int d = 0; d < b->devices; d++) {
        printf(d ? ",{" : "{");
        for (int k = 0; k < BOOK_KINDS; k++) printf("%s\"%s\":%llu", k ? "," : "", book_kind_names[k], (ull)s->bytes[d][k]);
        printf("}");
    }
    printf("],\"contexts\":[");
    for (int d = 0; d < b->devices; d++) printf("%s%u", d ? "," : "", s->contexts[d]);
    printf("],\"live\":%llu,\"calls\":{", (ull)s->live);
    bool first = true;
    for (int f = 0; f < FN_COUNT; f++) {
        ull n = atomic_load_explicit(&s->calls[f], memory_order_relaxed);
        if (!n) continue;
        printf("%s\"%s\":%llu", first ? "" : ",", function_names[f], n);
        first = false;
    }
    printf("}}");
}

static const struct books *books;

static int by_joining(const void *a, const void *b) {
    uint64_t x = books->slot[*(const uint32_t *)a].joined, y = books->slot[*(const uint32_t *)b].joined;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv) {
    if (argc > 2 || (argc == 2 && argv[1][0] == '-')) {
        fprintf(stderr, "usage: sim-books [DIR]\n");
        return 64;
    }
    const struct sim_config *config = sim_config();
    const char *dir = argc == 2 ? argv[1] : config ? config->dir : NULL;
    struct books *b = dir ? books_open_existing(dir) : NULL;
    if (!b) {
        fprintf(stderr, "sim-books: no books in %s\n", dir ? dir : "(no folder)");
        return 66;
    }
    books_lock(b);
    books_reap(b);
    printf("{\"devices\":[");
    for (int d = 0; d < b->devices; d++) {
        if (d) printf(",");
        device(&b->device[d]);
    }
    printf("],\"processes\":[");
    static uint32_t order[BOOK_SLOTS];
    size_t n = 0;
    for (uint32_t i = 0; i < b->slots_used; i++)
        if (b->state[i] == SLOT_LIVE || b->state[i] == SLOT_DEAD) order[n++] = i;
    books = b;
    qsort(order, n, sizeof *order, by_joining);
    for (size_t i = 0; i < n; i++) {
        if (i) printf(",");
        slot(b, &b->slot[order[i]], b->state[order[i]] == SLOT_LIVE);
    }
    printf("]}\n");
    books_unlock(b);
    return 0;
}
