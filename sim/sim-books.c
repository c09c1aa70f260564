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

static void slot(const struct books *b, const struct book_slot *s, bool alive) {
    printf("{\"pid\":%d,\"start\":%llu,\"alive\":%s,\"devices\":[", s->pid, (unsigned long long)s->start, alive ? "true" : "false");
    for (int d = 0; d < b->devices; d++) {
        printf(d ? ",{" : "{");
        for (int k = 0; k < BOOK_KINDS; k++)
            printf("%s\"%s\":%llu", k ? "," : "", book_kind_names[k], (unsigned long long)s->bytes[d][k]);
        printf("}");
    }
    printf("],\"live\":%llu,\"calls\":{", (unsigned long long)s->live);
    bool first = true;
    for (int f = 0; f < FN_COUNT; f++) {
        unsigned long long n = atomic_load_explicit(&s->calls[f], memory_order_relaxed);
        if (!n) continue;
        printf("%s\"%s\":%llu", first ? "" : ",", function_names[f], n);
        first = false;
    }
    printf("}}");
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
        printf(d ? ",{\"uuid\":" : "{\"uuid\":");
        string(b->device[d].uuid);
        printf(",\"total\":%llu,\"used\":%llu,\"peak\":%llu}", (unsigned long long)b->device[d].total,
               (unsigned long long)b->device[d].used, (unsigned long long)b->device[d].peak);
    }
    printf("],\"processes\":[");
    bool first = true;
    for (uint32_t i = 0; i < b->slots_used; i++) {
        if (b->state[i] == SLOT_FREE) continue;
        if (!first) printf(",");
        first = false;
        slot(b, &b->slot[i], b->state[i] == SLOT_LIVE);
    }
    printf("]}\n");
    books_unlock(b);
    return 0;
}
