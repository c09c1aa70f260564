/* Graphs, their nodes, and the memory that alloc nodes stand for. */
#ifndef CUWARDEN_SIM_GRAPH_H
#define CUWARDEN_SIM_GRAPH_H

#include "sim.h"

/* Has its address from the day its node is made; takes memory from launch to free. */
struct graph_memory {
    int refs; /* its node, and each executable graph made from it */
    CUdeviceptr addr;
    size_t size;
    int device;
    bool live;
};

struct node {
    struct object object;
    struct graph *graph;
    int type;
    CUgraphNode *deps;
    size_t dep_count;
    struct graph_memory *memory; /* of an alloc node */
    CUdeviceptr ptr;             /* of an alloc or a free node */
    struct graph *child;
};

struct graph {
    struct object object;
    struct node **nodes;
    size_t count, room;
    bool is_child;
    unsigned long long id; /* a later graph may have the same address */
    int instances; /* live executables, counted where memory nodes allow one only */
};

struct graph *graph_new(void);
void graph_destroy(struct graph *g);
struct node *graph_add(struct graph *g, int type);
struct node *graph_add_alloc(struct graph *g, size_t bytes, int device);
CUresult graph_add_free(struct graph *g, CUdeviceptr ptr, struct node **out);
void node_depends(struct node *n, const CUgraphNode *deps, size_t count);
bool graph_has_memory(const struct graph *g);
void memory_unref(struct graph_memory *m);

#endif
