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
/* A handle is the address of an entry: first the cards in the order of the bus, then, by their place in the
 * books, instances of cards in MIG mode. */
static char handles[2 * SIM_MAX_DEVICES];

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

static int handle_of(nvmlDevice_t device) {
    char *h = (char *)device;
    int n = h >= handles && h < handles + 2 * SIM_MAX_DEVICES ? (int)(h - handles) : -1;
    if (n < SIM_MAX_DEVICES) return n < books->gpus ? n : -1;
    int d = n - SIM_MAX_DEVICES;
    return d < books->devices && books->device[d].is.instance >= 0 ? n : -1;
}

static bool is_instance(int h) { return h >= SIM_MAX_DEVICES; }

/* Whether a device of the books is the handle's, or one of its instances. */
static bool is_of(int h, int d) { return is_instance(h) ? d == h - SIM_MAX_DEVICES : books->device[d].is.gpu == h; }

/* The device of an instance's handle, or the first one of a card's. */
static const struct sim_device *is(int h) {
    int d = 0;
    while (!is_of(h, d)) d++;
    return &books->device[d].is;
}

static bool in_mig_mode(int h) { return !is_instance(h) && is(h)->instance >= 0; }

/* For functions of a device: sets `h`. */
#define DEVICE(name)               \
    ENTER(name);                   \
    int h = handle_of(device);     \
    REQUIRE(h >= 0)

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
        *count = (unsigned int)books->gpus;              \
        return NVML_SUCCESS;                             \
    }
COUNT(nvmlDeviceGetCount)
COUNT(nvmlDeviceGetCount_v2)

#define BY_INDEX(name)                                                            \
    API nvmlReturn_t name(unsigned int index, nvmlDevice_t *device) {             \
        ENTER(name);                                                              \
        REQUIRE(device && index < (unsigned int)books->gpus);                     \
        *device = (nvmlDevice_t)&handles[index];                                  \
        return NVML_SUCCESS;                                                      \
    }
BY_INDEX(nvmlDeviceGetHandleByIndex)
BY_INDEX(nvmlDeviceGetHandleByIndex_v2)

API nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    ENTER(nvmlDeviceGetHandleByUUID);
    REQUIRE(uuid && device);
    for (int d = 0; d < books->devices; d++) {
        const struct sim_device *one = &books->device[d].is;
        if (!strcmp(uuid, one->gpu_uuid))
            *device = (nvmlDevice_t)&handles[one->gpu];
        else if (!strcmp(uuid, one->uuid))
            *device = (nvmlDevice_t)&handles[SIM_MAX_DEVICES + d];
        else
            continue;
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

static nvmlReturn_t by_bus(const char *id, nvmlDevice_t *device) {
    unsigned int domain, bus, slot;
    REQUIRE(id && device && sscanf(id, "%x:%x:%x", &domain, &bus, &slot) == 3);
    if (domain || !bus || bus > (unsigned int)books->gpus) return NVML_ERROR_NOT_FOUND;
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
    return text(name, length, is_instance(h) ? "Simulated GPU MIG 1g" : "Simulated GPU");
}

API nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
    DEVICE(nvmlDeviceGetUUID);
    return text(uuid, length, is_instance(h) ? is(h)->uuid : is(h)->gpu_uuid);
}

API nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int length) {
    DEVICE(nvmlDeviceGetSerial);
    char value[32];
    snprintf(value, sizeof value, "51%011d", is(h)->gpu);
    return text(serial, length, value);
}

API nvmlReturn_t nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int length) {
    DEVICE(nvmlDeviceGetVbiosVersion);
    return text(version, length, "00.00.00.00.00");
}

static nvmlReturn_t pci(nvmlPciInfo_t *out, int gpu, size_t size) {
    REQUIRE(out);
    unsigned int bus = (unsigned int)gpu + 1;
    nvmlPciInfo_t info = {.bus = bus, .pciDeviceId = 0x233010de, .pciSubSystemId = 0x16c110de};
    snprintf(info.busIdLegacy, sizeof info.busIdLegacy, "0000:%02X:00.0", bus);
    snprintf(info.busId, sizeof info.busId, "00000000:%02X:00.0", bus);
    memcpy(out, &info, size);
    return NVML_SUCCESS;
}

/* The earlier ones are the beginning of today's structure. */
API nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *out) {
    DEVICE(nvmlDeviceGetPciInfo);
    return pci(out, is(h)->gpu, offsetof(nvmlPciInfo_t, pciSubSystemId));
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *out) {
    DEVICE(nvmlDeviceGetPciInfo_v2);
    return pci(out, is(h)->gpu, offsetof(nvmlPciInfo_t, busId));
}

API nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *out) {
    DEVICE(nvmlDeviceGetPciInfo_v3);
    return pci(out, is(h)->gpu, sizeof *out);
}

API nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    DEVICE(nvmlDeviceGetCudaComputeCapability);
    REQUIRE(major && minor);
    *major = 9;
    *minor = 0;
    return NVML_SUCCESS;
}

#include "nvml_mig.h"
#include "nvml_usage.h"
#include "nvml_fixed.h"
