/* A client of NVML: finds the functions in one of the ways there are, and prints what they answer.
 *
 *   client HOW UUID [ROOM]...
 *
 * HOW is linked, handle, default, next or program. The memory figures of the device come first, then, for each ROOM,
 * every kind of list with room for so many: a line each. "null" is a list without a place, whose count is 0. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../sim/nvml_abi.h"

#define LISTS(each)                               \
    each(nvmlDeviceGetComputeRunningProcesses)    \
    each(nvmlDeviceGetComputeRunningProcesses_v2) \
    each(nvmlDeviceGetComputeRunningProcesses_v3) \
    each(nvmlDeviceGetGraphicsRunningProcesses)   \
    each(nvmlDeviceGetGraphicsRunningProcesses_v2) \
    each(nvmlDeviceGetGraphicsRunningProcesses_v3) \
    each(nvmlDeviceGetMPSComputeRunningProcesses) \
    each(nvmlDeviceGetMPSComputeRunningProcesses_v2) \
    each(nvmlDeviceGetMPSComputeRunningProcesses_v3)

typedef nvmlReturn_t list_function(nvmlDevice_t, unsigned int *, void *);

static const char *how;
static void *library;

/* The address of a function, in the way that was asked for. */
static void *found(const char *name, void *linked) {
    void *address = !strcmp(how, "linked")    ? linked
                    : !strcmp(how, "default") ? dlsym(RTLD_DEFAULT, name)
                    : !strcmp(how, "next")    ? dlsym(RTLD_NEXT, name)
                                              : dlsym(library, name);
    if (!address) exit(3);
    return address;
}
#define FOUND(name) ((__typeof__(&name))found(#name, (void *)name))

static int by_pid(const void *a, const void *b) {
    unsigned x = *(const unsigned *)a, y = *(const unsigned *)b;
    return (x > y) - (x < y);
}

/* Entries are 16, 24 or 32 bytes long. What lies behind the last one must stay as it was. */
static void show(const char *name, nvmlReturn_t code, unsigned count, unsigned room, char *entries, size_t size) {
    printf("%s %d %u", name, code, count);
    if (!code && entries) qsort(entries, count, size, by_pid);
    for (unsigned i = 0; !code && i < count; i++) {
        nvmlProcessDetail_v1_t one = {.gpuInstanceId = ~0U, .computeInstanceId = ~0U};
        memcpy(&one, entries + i * size, size);
        printf(" %u:%llu:%d:%d", one.pid, one.usedGpuMemory, (int)one.gpuInstanceId, (int)one.computeInstanceId);
    }
    unsigned used = code ? 0 : count;
    for (size_t at = used * size; entries && at < (room + 1) * size; at++)
        if (entries[at] != 0x55) {
            printf(" WRITTEN BEHIND");
            break;
        }
    printf("\n");
}

static void list(const char *name, list_function *function, nvmlDevice_t device, const char *text) {
    size_t size = !strstr(name, "_v") ? sizeof(nvmlProcessInfo_v1_t) : sizeof(nvmlProcessInfo_t);
    unsigned room = (unsigned)atoi(text), count = room;
    char *entries = malloc((room + 1) * size);
    memset(entries, 0x55, (room + 1) * size);
    nvmlReturn_t code = function(device, &count, strcmp(text, "null") ? entries : NULL);
    show(name, code, count, room, entries, size);
    free(entries);
}

static void details(nvmlDevice_t device, unsigned mode, const char *text) {
    size_t size = sizeof(nvmlProcessDetail_v1_t);
    unsigned room = (unsigned)atoi(text);
    char *entries = malloc((room + 1) * size), name[32];
    memset(entries, 0x55, (room + 1) * size);
    nvmlProcessDetailList_v1_t asked = {sizeof asked | 1U << 24, mode, room, strcmp(text, "null") ? (void *)entries : NULL};
    nvmlReturn_t code = FOUND(nvmlDeviceGetRunningProcessDetailList)(device, &asked);
    snprintf(name, sizeof name, "details-%u", mode);
    show(name, code, asked.numProcArrayEntries, room, entries, size);
    free(entries);
}

int main(int argc, char **argv) {
    if (argc < 3) return 64;
    how = argv[1];
    library = !strcmp(how, "program") || !strcmp(how, "linked") ? dlopen(NULL, RTLD_NOW)
                                                                 : dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_GLOBAL);
    nvmlDevice_t device;
    nvmlMemory_t memory;
    nvmlMemory_v2_t second = {.version = sizeof second | 2U << 24};
    /* Nothing is known of a device before NVML is started. */
    printf("uninitialized %d\n", FOUND(nvmlDeviceGetMemoryInfo)(NULL, &memory));
    if (FOUND(nvmlInit_v2)() || FOUND(nvmlDeviceGetHandleByUUID)(argv[2], &device)) return 4;
    printf("memory %d", FOUND(nvmlDeviceGetMemoryInfo)(device, &memory));
    printf(" %llu %llu %llu\n", memory.total, memory.free, memory.used);
    printf("memory_v2 %d", FOUND(nvmlDeviceGetMemoryInfo_v2)(device, &second));
    printf(" %llu %llu %llu %llu\n", second.total, second.free, second.used, second.reserved);
    second.version = 1;
    second.total = 5;
    printf("another version %d", FOUND(nvmlDeviceGetMemoryInfo_v2)(device, &second));
    printf(" %llu\n", second.total);
    printf("nothing %d %d\n", FOUND(nvmlDeviceGetMemoryInfo)(device, NULL), FOUND(nvmlDeviceGetMemoryInfo)(NULL, &memory));
    unsigned count = 1;
    nvmlProcessDetailList_v1_t other = {.version = 9, .numProcArrayEntries = 4};
    printf("no count %d\n", FOUND(nvmlDeviceGetComputeRunningProcesses_v3)(device, NULL, NULL));
    printf("no place %d", FOUND(nvmlDeviceGetComputeRunningProcesses_v3)(device, &count, NULL));
    printf(" %u\n", count);
    printf("no list %d\n", FOUND(nvmlDeviceGetRunningProcessDetailList)(device, NULL));
    printf("other list %d", FOUND(nvmlDeviceGetRunningProcessDetailList)(device, &other));
    printf(" %u\n", other.numProcArrayEntries);
    for (int i = 3; i < argc; i++) {
#define LIST(name) list(&#name[strlen("nvmlDeviceGet")], FOUND(name), device, argv[i]);
        LISTS(LIST)
        for (unsigned mode = 0; mode < 4; mode++) details(device, mode, argv[i]);
    }
    return 0;
}
