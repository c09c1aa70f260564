/* What the environment says about the simulated machine. */
#ifndef CUWARDEN_SIM_CONFIG_H
#define CUWARDEN_SIM_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

enum { SIM_MAX_DEVICES = 16, SIM_UUID_SIZE = 48 };

struct sim_device {
    uint64_t total;
    char uuid[SIM_UUID_SIZE];
};

struct sim_config {
    char dir[512];
    int devices;
    struct sim_device device[SIM_MAX_DEVICES];
    int driver;        /* as cuDriverGetVersion gives it: 13000 */
    char release[32];  /* as NVML gives it: 580.65.06 */
    uint64_t context, module;
    bool null_mode;
};

/* Read once, at first use; NULL with a line on stderr when a value makes no sense. */
const struct sim_config *sim_config(void);

/* The code that CUWARDEN_SIM_FAIL wants from this call of `name`, or 0. Counts the call. */
int sim_injected(const char *name);

/* Parses 16g, 512m, 1024: false when it is not a size. */
bool sim_parse_size(const char *text, const char **end, uint64_t *bytes);

#endif
