/* The simulated management library: figures come from the same books as the driver's. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "books.h"
#include "config.h"
#include "nvml_abi.h"

#define API __attribute__((visibility("default")))

static struct books *books;
static atomic_int users; /* nvmlInit less nvmlShutdown */
static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;
static char handles[SIM_MAX_DEVICES]; /* a device's handle is the address of its entry */

static void restore_errno(const int *saved) { errno = *saved; }

#define ENTER_ANY(name)                                                                  \
    __attribute__((cleanup(restore_errno), unused)) const int saved_errno_ = errno;      \
    do {                                                                                 \
        nvmlReturn_t injected_ = sim_injected(#name);                                    \
        if (injected_) return injected_;                                                 \
    } while (0)
#define ENTER(name)                                                  \
    ENTER_ANY(name);                                                 \
    if (!atomic_load(&users)) return NVML_ERROR_UNINITIALIZED
#define REQUIRE(condition) \
    do {                   \
        if (!(condition)) return NVML_ERROR_INVALID_ARGUMENT; \
    } while (0)

static int index_of(nvmlDevice_t device) {
    char *h = (char *)device;
    return h >= handles && h < handles + books->devices ? (int)(h - handles) : -1;
}

/* For functions of a device: sets `d`. */
#define DEVICE(name)               \
    ENTER(name);                   \
    int d = index_of(device);      \
    REQUIRE(d >= 0)

static nvmlReturn_t init(void) {
    nvmlReturn_t result = NVML_SUCCESS;
    pthread_mutex_lock(&init_lock);
    const struct sim_config *config = sim_config();
    if (!books && (!config || !(books = books_open(config)))) result = NVML_ERROR_UNKNOWN;
    if (!result) atomic_fetch_add(&users, 1);
    pthread_mutex_unlock(&init_lock);
    return result;
}

API nvmlReturn_t nvmlInit(void) {
    ENTER_ANY(nvmlInit);
    return init();
}

API nvmlReturn_t nvmlInit_v2(void) {
    ENTER_ANY(nvmlInit_v2);
    return init();
}

API nvmlReturn_t nvmlInitWithFlags(unsigned int flags) {
    ENTER_ANY(nvmlInitWithFlags);
    REQUIRE(!(flags & ~3U));
    return init();
}

API nvmlReturn_t nvmlShutdown(void) {
    ENTER_ANY(nvmlShutdown);
    nvmlReturn_t result = NVML_ERROR_UNINITIALIZED;
    pthread_mutex_lock(&init_lock);
    if (atomic_load(&users)) {
        atomic_fetch_sub(&users, 1);
        result = NVML_SUCCESS;
    }
    pthread_mutex_unlock(&init_lock);
    return result;
}

API const char *nvmlErrorString(nvmlReturn_t result) {
    static const char *const texts[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions", "Already Initialized",
        "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded", "Timeout", "Interrupt Request Issue",
        "NVML Shared Library Not Found", "Function Not Found", "Corrupted infoROM", "GPU is lost", "GPU requires reset",
        "The operating system has blocked the request", "RM has detected an NVML/RM version mismatch", "In use by another client",
        "Insufficient Memory", "No data", "The requested vgpu operation is not available on target device", "Insufficient resources",
    };
    return result >= 0 && result < (int)(sizeof texts / sizeof *texts) ? texts[result] : "Unknown Error";
}

/* ---- system ----------------------------------------------------------------------------------------- */

static nvmlReturn_t text(char *out, unsigned int length, const char *value) {
    REQUIRE(out);
    if (strlen(value) >= length) return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(out, value);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    ENTER(nvmlSystemGetDriverVersion);
    return text(version, length, sim_config()->release);
}

API nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length) {
    ENTER(nvmlSystemGetNVMLVersion);
    char value[64];
    snprintf(value, sizeof value, "%d.%s", sim_config()->driver / 1000, sim_config()->release);
    return text(version, length, value);
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    ENTER(nvmlSystemGetCudaDriverVersion);
    REQUIRE(version);
    *version = sim_config()->driver;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    ENTER(nvmlSystemGetCudaDriverVersion_v2);
    REQUIRE(version);
    *version = sim_config()->driver;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length) {
    ENTER(nvmlSystemGetProcessName);
    REQUIRE(name && length);
    char path[64];
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *f = fopen(path, "re");
    if (!f) return NVML_ERROR_NOT_FOUND;
    size_t n = fread(name, 1, length - 1, f);
    fclose(f);
    name[n] = 0;
    return NVML_SUCCESS;
}

/* ---- finding devices ---------------------------------------------------------------------------------- */

#define COUNT(name)                                      \
    API nvmlReturn_t name(unsigned int *count) {         \
        ENTER(name);                                     \
        REQUIRE(count);                                  \
        *count = (unsigned int)books->devices;           \
        return NVML_SUCCESS;                             \
    }
COUNT(nvmlDeviceGetCount)
COUNT(nvmlDeviceGetCount_v2)

#define BY_INDEX(name)                                                            \
    API nvmlReturn_t name(unsigned int index, nvmlDevice_t *device) {             \
        ENTER(name);                                                              \
        REQUIRE(device && index < (unsigned int)books->devices);                  \
        *device = (nvmlDevice_t)&handles[index];                                  \
        return NVML_SUCCESS;                                                      \
    }
BY_INDEX(nvmlDeviceGetHandleByIndex)
BY_INDEX(nvmlDeviceGetHandleByIndex_v2)

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    ENTER(nvmlDeviceGetHandleByUUID);
    REQUIRE(uuid && device);
    for (int d = 0; d < books->devices; d++) {
        if (strcmp(uuid, books->device[d].is.uuid)) continue;
        *device = (nvmlDevice_t)&handles[d];
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t by_bus(const char *id, nvmlDevice_t *device) {
    unsigned int domain, bus, slot;
    REQUIRE(id && device && sscanf(id, "%x:%x:%x", &domain, &bus, &slot) == 3);
    if (domain || !bus || bus > (unsigned int)books->devices) return NVML_ERROR_NOT_FOUND;
    *device = (nvmlDevice_t)&handles[bus - 1];
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *device) {
    ENTER(nvmlDeviceGetHandleByPciBusId);
    return by_bus(id, device);
}

API nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device) {
    ENTER(nvmlDeviceGetHandleByPciBusId_v2);
    return by_bus(id, device);
}

/* ---- identity ------------------------------------------------------------------------------------------ */

API nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length) {
    DEVICE(nvmlDeviceGetName);
    return text(name, length, "Simulated GPU");
}

API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
    DEVICE(nvmlDeviceGetUUID);
    return text(uuid, length, books->device[d].is.uuid);
}

API nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length) {
    DEVICE(nvmlDeviceGetSerial);
    char value[32];
    snprintf(value, sizeof value, "51%011d", d);
    return text(serial, length, value);
}

API nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int length) {
    DEVICE(nvmlDeviceGetVbiosVersion);
    return text(version, length, "00.00.00.00.00");
}

static nvmlReturn_t pci(nvmlPciInfo_t *out, int d, size_t size) {
    REQUIRE(out);
    nvmlPciInfo_t info = {.bus = (unsigned int)d + 1, .pciDeviceId = 0x233010de, .pciSubSystemId = 0x16c110de};
    snprintf(info.busIdLegacy, sizeof info.busIdLegacy, "0000:%02X:00.0", (unsigned int)d + 1);
    snprintf(info.busId, sizeof info.busId, "00000000:%02X:00.0", (unsigned int)d + 1);
    memcpy(out, &info, size);
    return NVML_SUCCESS;
}

/* The earlier ones are the beginning of today's structure. */
API nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *out) {
    DEVICE(nvmlDeviceGetPciInfo);
    return pci(out, d, offsetof(nvmlPciInfo_t, pciSubSystemId));
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *out) {
    DEVICE(nvmlDeviceGetPciInfo_v2);
    return pci(out, d, offsetof(nvmlPciInfo_t, busId));
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *out) {
    DEVICE(nvmlDeviceGetPciInfo_v3);
    return pci(out, d, sizeof *out);
}

API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    DEVICE(nvmlDeviceGetCudaComputeCapability);
    REQUIRE(major && minor);
    *major = 9;
    *minor = 0;
    return NVML_SUCCESS;
}

/* ---- memory and processes -------------------------------------------------------------------------------- */

API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out) {
    DEVICE(nvmlDeviceGetMemoryInfo);
    REQUIRE(out);
    uint64_t used = books_used(books, d), total = books->device[d].is.total;
    *out = (nvmlMemory_t){total, total - used, used};
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out) {
    DEVICE(nvmlDeviceGetMemoryInfo_v2);
    REQUIRE(out);
    if (out->version != (sizeof *out | 2U << 24)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    uint64_t used = books_used(books, d), total = books->device[d].is.total;
    out->total = total;
    out->reserved = 0;
    out->free = total - used;
    out->used = used;
    return NVML_SUCCESS;
}

struct holder {
    unsigned int pid;
    unsigned long long bytes;
};

static int holders(int d, struct holder *out) {
    int n = 0;
    books_lock(books);
    books_reap(books);
    for (uint32_t i = 0; i < books->slots_used; i++) {
        const struct book_slot *s = &books->slot[i];
        /* A process shows from the day it has a context there. */
        if (books->state[i] != SLOT_LIVE || !s->contexts[d]) continue;
        out[n] = (struct holder){(unsigned int)s->who.pid, 0};
        for (int k = 0; k < BOOK_KINDS; k++) out[n].bytes += s->bytes[d][k];
        n++;
    }
    books_unlock(books);
    return n;
}

static nvmlReturn_t processes(int d, unsigned int *count, void *out, bool first_layout) {
    REQUIRE(count && (out || !*count));
    struct holder list[BOOK_SLOTS];
    unsigned int n = (unsigned int)holders(d, list), room = *count;
    *count = n;
    if (n > room) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < n; i++) {
        if (first_layout)
            ((nvmlProcessInfo_v1_t *)out)[i] = (nvmlProcessInfo_v1_t){list[i].pid, list[i].bytes};
        else
            ((nvmlProcessInfo_t *)out)[i] = (nvmlProcessInfo_t){list[i].pid, list[i].bytes, ~0U, ~0U};
    }
    return NVML_SUCCESS;
}

#define RUNNING(name, first_layout)                                                     \
    API nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, void *out) {        \
        DEVICE(name);                                                                   \
        return processes(d, count, out, first_layout);                                  \
    }
RUNNING(nvmlDeviceGetComputeRunningProcesses, true)
RUNNING(nvmlDeviceGetComputeRunningProcesses_v2, false)
RUNNING(nvmlDeviceGetComputeRunningProcesses_v3, false)

#define NONE_RUNNING(name)                                                              \
    API nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, void *out) {        \
        DEVICE(name);                                                                   \
        (void)out;                                                                      \
        REQUIRE(count);                                                                 \
        *count = 0;                                                                     \
        return NVML_SUCCESS;                                                            \
    }
NONE_RUNNING(nvmlDeviceGetGraphicsRunningProcesses)
NONE_RUNNING(nvmlDeviceGetGraphicsRunningProcesses_v2)
NONE_RUNNING(nvmlDeviceGetGraphicsRunningProcesses_v3)
NONE_RUNNING(nvmlDeviceGetMPSComputeRunningProcesses)
NONE_RUNNING(nvmlDeviceGetMPSComputeRunningProcesses_v2)
NONE_RUNNING(nvmlDeviceGetMPSComputeRunningProcesses_v3)

#include "nvml_fixed.h"
