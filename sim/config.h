/* What the environment says about the simulated machine. */
#ifndef CUWARDEN_SIM_CONFIG_H
#define CUWARDEN_SIM_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

enum { SIM_MAX_DEVICES = 16, SIM_UUID_SIZE = 48, SIM_MAX_INSTANCES = 7 };

/* What can be allocated from: a GPU, or an instance of one in MIG mode. */
struct sim_device {
    uint64_t total;
    char uuid[SIM_UUID_SIZE];     /* GPU-... or MIG-... */
    char gpu_uuid[SIM_UUID_SIZE]; /* the card's; its own where the device is a whole one */
    int32_t gpu;                  /* the card's place in the order of the bus */
    int32_t instance;             /* which of the card's instances, or -1: the whole card */
};

struct sim_config {
    char dir[512];
    int devices, gpus;
    struct sim_device device[SIM_MAX_DEVICES];
    int32_t order[SIM_MAX_DEVICES]; /* of GPUs, the fastest first */
    int driver;        /* as cuDriverGetVersion gives it: 13000 */
    char release[32];  /* as NVML gives it: 580.65.06 */
    uint64_t context, module;
    unsigned int compute_mode; /* as cuda.h and nvml.h number them; of all devices */
    bool null_mode;
};

/* Read once, at first use; NULL with a line on stderr when a value makes no sense. */
const struct sim_config *sim_config(void);

/* The code that CUWARDEN_SIM_FAIL wants from this call of `name`, or 0. Counts the call. */
int sim_injected(const char *name);

/* Parses 16g, 512m, 1024: false when it is not a size. */
bool sim_parse_size(const char *text, const char **end, uint64_t *bytes);

#endif
