/* The program of the example in scripts/ab-example: `trainer N` is run number N. */
#include <stdlib.h>

void load_weights(void);
void make_workspace(void);
void open_session(void);
void cache_batch(unsigned run);

static void train(unsigned run) {
    make_workspace();
    for (int step = 0; step < 2; step++) cache_batch(run * 2 + (unsigned)step);
}

int main(int count, char **argument) {
    load_weights();
    open_session();
    train(count > 1 ? (unsigned)atoi(argument[1]) : 0);
    return 0;
}
