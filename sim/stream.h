/* Streams and what capture hangs on them. */
#ifndef CUWARDEN_SIM_STREAM_H
#define CUWARDEN_SIM_STREAM_H

#include "sim.h"

struct graph;

/* One sequence from begin to end of capture; streams join it by waiting for its events. */
struct capture {
    struct graph *graph;
    struct stream *origin;
    pthread_t thread;
    int mode;
    bool invalidated;
    unsigned long long id;
    CUgraphNode last; /* what the next captured node depends on */
    struct capture *next;
};

struct stream {
    struct object object;
    struct context *owner;
    bool legacy, per_thread;
    pthread_t thread; /* of a per-thread default stream */
    unsigned int flags;
    int priority;
    unsigned long long id;
    struct capture *capture;
    struct stream *next; /* among the per-thread streams of a context */
};

struct event {
    struct object object;
    struct capture *capture; /* recorded in this one, so it has no state outside it */
    bool recorded;
};

void capture_end(struct capture *c); /* detaches its streams and events, frees it */

#endif
