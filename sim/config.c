#include "config.h"

#include <ctype.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_RULES = 64, RULE_NAME = 64 };

struct rule {
    char name[RULE_NAME];
    int code;
    unsigned long first, last;
    atomic_ulong seen;
};

static struct sim_config config;
static bool config_good;
static struct rule rules[MAX_RULES];
static int rule_count;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static bool complain(const char *variable, const char *value) {
    fprintf(stderr, "simulated GPU: %s=%s makes no sense\n", variable, value);
    return false;
}

bool sim_parse_size(const char *text, const char **end, uint64_t *bytes) {
    if (!isdigit((unsigned char)*text)) return false;
    char *after;
    unsigned long long n = strtoull(text, &after, 10);
    int shift = 0;
    switch (tolower((unsigned char)*after)) {
    case 'k': shift = 10; break;
    case 'm': shift = 20; break;
    case 'g': shift = 30; break;
    case 't': shift = 40; break;
    }
    if (shift) after++;
    if (shift && n > (UINT64_MAX >> shift)) return false;
    *bytes = n << shift;
    *end = after;
    return true;
}

static bool read_size(const char *variable, uint64_t fallback, uint64_t *out) {
    const char *text = getenv(variable), *end;
    *out = fallback;
    if (!text || !*text) return true;
    return (sim_parse_size(text, &end, out) && !*end) || complain(variable, text);
}

static bool read_count(void) {
    const char *text = getenv("CUWARDEN_SIM_DEVICES");
    config.devices = 2;
    if (!text || !*text) return true;
    char *end;
    long n = strtol(text, &end, 10);
    if (*end || n < 0 || n > SIM_MAX_DEVICES) return complain("CUWARDEN_SIM_DEVICES", text);
    config.devices = (int)n;
    return true;
}

/* A list shorter than the number of devices repeats its last entry. */
static bool read_memory(void) {
    const char *text = getenv("CUWARDEN_SIM_MEMORY"), *at = text && *text ? text : "16g", *end;
    for (int i = 0; i < SIM_MAX_DEVICES; i++) {
        if (!sim_parse_size(at, &end, &config.device[i].total) || (*end && *end != ',')) return complain("CUWARDEN_SIM_MEMORY", text);
        if (*end == ',') at = end + 1;
    }
    return true;
}

/* Short prefixes must be unique, so the part that differs comes first. */
static void usual_uuid(char *uuid, int i) {
    snprintf(uuid, SIM_UUID_SIZE, "GPU-%08x-51a7-4ed0-8000-%012x", 0x1f0e3dadU * (unsigned)(i + 1), (unsigned)i);
}

/* Neighbours that are MIG-... are instances of one card, and that has the UUID that it would have as a whole. */
static bool read_uuids(void) {
    const char *text = getenv("CUWARDEN_SIM_UUIDS"), *at = text ? text : "";
    for (int i = 0; i < config.devices; i++) {
        struct sim_device *d = &config.device[i], *before = i ? d - 1 : NULL;
        size_t n = strcspn(at, ",");
        if (n >= SIM_UUID_SIZE) return complain("CUWARDEN_SIM_UUIDS", text);
        usual_uuid(d->uuid, i);
        if (n) snprintf(d->uuid, SIM_UUID_SIZE, "%.*s", (int)n, at);
        at += n;
        if (*at == ',') at++;
        bool slice = !strncmp(d->uuid, "MIG-", 4);
        if (slice && before && before->instance >= 0) {
            d->gpu = before->gpu;
            d->instance = before->instance + 1;
            memcpy(d->gpu_uuid, before->gpu_uuid, SIM_UUID_SIZE);
            if (d->instance == SIM_MAX_INSTANCES) return complain("CUWARDEN_SIM_UUIDS", text);
            continue;
        }
        d->gpu = config.gpus++;
        d->instance = slice ? 0 : -1;
        if (slice)
            usual_uuid(d->gpu_uuid, i);
        else
            memcpy(d->gpu_uuid, d->uuid, SIM_UUID_SIZE);
    }
    return true;
}

/* The cards from the fastest to the slowest, each once, by their place in the order of the bus. */
static bool read_order(void) {
    const char *text = getenv("CUWARDEN_SIM_ORDER"), *at = text;
    unsigned int seen = 0;
    for (int i = 0; i < config.gpus; i++) config.order[i] = i;
    if (!text || !*text) return true;
    for (int i = 0; i < config.gpus; i++) {
        char *end;
        long n = strtol(at, &end, 10);
        if (end == at || n < 0 || n >= config.gpus || (seen & 1U << n)) return complain("CUWARDEN_SIM_ORDER", text);
        if (*end != (i + 1 < config.gpus ? ',' : 0)) return complain("CUWARDEN_SIM_ORDER", text);
        seen |= 1U << n;
        config.order[i] = (int32_t)n;
        at = end + 1;
    }
    return true;
}

static bool read_driver(void) {
    const char *text = getenv("CUWARDEN_SIM_DRIVER");
    config.driver = 13000;
    if (text && *text) {
        int major, minor, used = 0;
        if (sscanf(text, "%d.%d%n", &major, &minor, &used) == 2 && !text[used] && major > 0 && minor >= 0 && minor < 100)
            config.driver = major * 1000 + minor * 10;
        else if (sscanf(text, "%d%n", &major, &used) == 1 && !text[used] && major >= 1000)
            config.driver = major;
        else
            return complain("CUWARDEN_SIM_DRIVER", text);
    }
    text = getenv("CUWARDEN_SIM_DRIVER_RELEASE");
    snprintf(config.release, sizeof config.release, "%s", text && *text ? text : "580.65.06");
    return true;
}

static bool read_compute_mode(void) {
    static const char *const names[] = {[0] = "default", [2] = "prohibited", [3] = "exclusive"};
    const char *text = getenv("CUWARDEN_SIM_COMPUTE_MODE");
    if (!text || !*text) return true;
    for (unsigned int mode = 0; mode < sizeof names / sizeof *names; mode++)
        if (names[mode] && !strcmp(text, names[mode])) {
            config.compute_mode = mode;
            return true;
        }
    return complain("CUWARDEN_SIM_COMPUTE_MODE", text);
}

/* name=code, name=code@3 (the third call only), name=code@3+ (from the third on) */
static bool read_rules(void) {
    const char *text = getenv("CUWARDEN_SIM_FAIL");
    for (const char *at = text; at && *at;) {
        if (rule_count == MAX_RULES) return complain("CUWARDEN_SIM_FAIL", text);
        struct rule *r = &rules[rule_count];
        int used = 0;
        if (sscanf(at, "%63[A-Za-z0-9_]=%d%n", r->name, &r->code, &used) != 2 || !used) return complain("CUWARDEN_SIM_FAIL", text);
        at += used;
        r->first = 1;
        r->last = (unsigned long)-1;
        if (*at == '@') {
            char *end;
            r->first = r->last = strtoul(at + 1, &end, 10);
            if (end == at + 1 || !r->first) return complain("CUWARDEN_SIM_FAIL", text);
            if (*end == '+') r->last = (unsigned long)-1, end++;
            at = end;
        }
        if (*at && *at++ != ',') return complain("CUWARDEN_SIM_FAIL", text);
        rule_count++;
    }
    return true;
}

static void read_all(void) {
    const char *dir = getenv("CUWARDEN_SIM_DIR");
    if (dir && *dir)
        snprintf(config.dir, sizeof config.dir, "%s", dir);
    else
        snprintf(config.dir, sizeof config.dir, "/tmp/cuwarden-sim-%u", (unsigned)getuid());
    const char *null_mode = getenv("CUWARDEN_SIM_NULL");
    config.null_mode = null_mode && !strcmp(null_mode, "1");
    config_good = read_count() && read_memory() && read_uuids() && read_order() && read_driver() && read_rules() &&
                  read_compute_mode() &&
                  read_size("CUWARDEN_SIM_CONTEXT", 256ULL << 20, &config.context) &&
                  read_size("CUWARDEN_SIM_MODULE", 1ULL << 20, &config.module);
}

const struct sim_config *sim_config(void) {
    pthread_once(&once, read_all);
    return config_good ? &config : NULL;
}

int sim_injected(const char *name) {
    pthread_once(&once, read_all);
    int code = 0;
    for (int i = 0; i < rule_count; i++) {
        struct rule *r = &rules[i];
        if (strcmp(r->name, name)) continue;
        unsigned long n = atomic_fetch_add_explicit(&r->seen, 1, memory_order_relaxed) + 1;
        if (n >= r->first && n <= r->last && !code) code = r->code;
    }
    return code;
}
