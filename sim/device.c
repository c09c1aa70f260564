#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

static int physical[SIM_MAX_DEVICES], visible;

int device_count(void) { return visible; }
int device_physical(int ordinal) { return physical[ordinal]; }
bool device_valid(int ordinal) { return ordinal >= 0 && ordinal < visible; }

static const struct sim_device *is(int ordinal) { return &sim_books->device[physical[ordinal]].is; }

/* ---- which devices there are, and in which order --------------------------------------------- */

/* A card, or all instances of one; false when they were named before. */
static bool add_gpu(int gpu) {
    for (int i = 0; i < visible; i++)
        if (is(i)->gpu == gpu) return false;
    for (int d = 0; d < sim_books->devices; d++)
        if (sim_books->device[d].is.gpu == gpu) physical[visible++] = d;
    return true;
}

static bool add_instance(int d) {
    for (int i = 0; i < visible; i++)
        if (physical[i] == d) return false;
    physical[visible++] = d;
    return true;
}

/* The only one that begins like this, or -1. */
static int find_uuid(const char *entry, size_t length, bool instances) {
    int found = -1;
    for (int d = 0; d < sim_books->devices; d++) {
        const struct sim_device *device = &sim_books->device[d].is;
        if (instances ? device->instance < 0 : device->instance > 0) continue;
        if (strncmp(instances ? device->uuid : device->gpu_uuid, entry, length)) continue;
        if (found >= 0) return -1;
        found = d;
    }
    return found;
}

/* By index, or by UUIDs of cards, or by those of instances: the first entry decides. The list ends at the
 * first entry that is of another kind or names nothing; one that names a device again leaves no device at
 * all. An index is in the order of CUDA_DEVICE_ORDER. */
static void select_listed(const char *list, const int32_t *order) {
    const char *at = list + strspn(list, " ");
    const char *kind = !strncmp(at, "GPU-", 4) ? "GPU-" : !strncmp(at, "MIG-", 4) ? "MIG-" : "";
    for (;;) {
        at += strspn(at, " ");
        size_t length = strcspn(at, ",");
        bool fresh;
        if (*kind) {
            size_t used = length;
            while (used && at[used - 1] == ' ') used--;
            if (used < 5 || strncmp(at, kind, 4)) return;
            int d = find_uuid(at, used, *kind == 'M');
            if (d < 0) return;
            fresh = *kind == 'M' ? add_instance(d) : add_gpu(sim_books->device[d].is.gpu);
        } else {
            char *end; /* what follows the number is ignored */
            long n = strtol(at, &end, 10);
            if (end == at || n < 0 || n >= sim_books->gpus) return;
            fresh = add_gpu(order[n]);
        }
        if (!fresh) visible = 0;
        if (!fresh || !at[length]) return;
        at += length + 1;
    }
}

/* A process gets one instance of a card in MIG mode, the first that it may see, and then no whole card. */
static void keep_one_instance(void) {
    for (int i = 0; i < visible; i++) {
        if (is(i)->instance < 0) continue;
        physical[0] = physical[i];
        visible = 1;
    }
}

CUresult devices_select(void) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES"), *order = getenv("CUDA_DEVICE_ORDER");
    int32_t by_bus[SIM_MAX_DEVICES];
    for (int i = 0; i < SIM_MAX_DEVICES; i++) by_bus[i] = i;
    const int32_t *used = order && !strcmp(order, "PCI_BUS_ID") ? by_bus : sim_books->order;
    visible = 0;
    if (list)
        select_listed(list, used);
    else
        for (int i = 0; i < sim_books->gpus; i++) add_gpu(used[i]);
    keep_one_instance();
    return visible ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

/* ---- the calls -------------------------------------------------------------------------------- */

API CUresult cuInit(unsigned int flags) {
    __attribute__((cleanup(call_leave))) struct call call_ = {.saved_errno = errno};
    CUresult injected = sim_injected("cuInit");
    if (injected) return injected;
    REQUIRE(!flags);
    CUresult result = sim_start();
    if (!result) atomic_fetch_add_explicit(&sim_slot->calls[FN_cuInit], 1, memory_order_relaxed);
    return result;
}

API CUresult cuDriverGetVersion(int *version) {
    ENTER(cuDriverGetVersion, NEED_NOTHING);
    REQUIRE(version);
    const struct sim_config *config = sim_config();
    if (!config) return CUDA_ERROR_UNKNOWN;
    *version = config->driver;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    ENTER(cuDeviceGet, NEED_INIT);
    REQUIRE(device);
    if (!device_valid(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
    *device = ordinal;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetCount(int *count) {
    ENTER(cuDeviceGetCount, NEED_INIT);
    REQUIRE(count);
    *count = visible;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetName(char *name, int len, CUdevice device) {
    ENTER(cuDeviceGetName, NEED_INIT);
    REQUIRE(name && len > 0);
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    snprintf(name, (size_t)len, "Simulated GPU%s", is(device)->instance < 0 ? "" : " MIG 1g");
    return CUDA_SUCCESS;
}

static void parse_uuid(CUuuid *uuid, const char *at) {
    at += !strncmp(at, "GPU-", 4) || !strncmp(at, "MIG-", 4) ? 4 : 0;
    memset(uuid, 0, sizeof *uuid);
    for (int nibble = 0; *at && nibble < 32; at++) {
        unsigned int digit;
        if (sscanf((char[]){*at, 0}, "%1x", &digit) != 1) continue;
        uuid->bytes[nibble / 2] = (char)(uuid->bytes[nibble / 2] | (int)(digit << (nibble % 2 ? 0 : 4)));
        nibble++;
    }
}

/* The card's, also where the device is an instance of it. */
API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    ENTER(cuDeviceGetUuid, NEED_INIT);
    REQUIRE(uuid);
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    parse_uuid(uuid, is(device)->gpu_uuid);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    ENTER(cuDeviceGetUuid_v2, NEED_INIT);
    REQUIRE(uuid);
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    parse_uuid(uuid, is(device)->uuid);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetLuid(char *luid, unsigned int *mask, CUdevice device) {
    ENTER(cuDeviceGetLuid, NEED_INIT);
    (void)luid, (void)mask, (void)device;
    return CUDA_ERROR_NOT_SUPPORTED; /* Windows only */
}

API CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice device) {
    ENTER(cuDeviceTotalMem, NEED_INIT);
    REQUIRE(bytes);
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    uint64_t total = is(device)->total;
    *bytes = total > UINT32_MAX ? UINT32_MAX : (unsigned int)total;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    ENTER(cuDeviceTotalMem_v2, NEED_INIT);
    REQUIRE(bytes);
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    *bytes = is(device)->total;
    return CUDA_SUCCESS;
}

enum { LAST_ATTRIBUTE = 161 };

/* Those that programs decide by, with values of a large data-centre device; the rest are 0. */
static const int attributes[LAST_ATTRIBUTE + 1] = {
    [1] = 1024, [2] = 1024, [3] = 1024, [4] = 64, [5] = 2147483647, [6] = 65535, [7] = 65535, [8] = 49152,
    [9] = 65536, [10] = 32, [11] = 2147483647, [12] = 65536, [13] = 1980000, [14] = 512, [15] = 1, [16] = 132,
    [19] = 1, [21] = 131072, [22] = 131072, [23] = 65536, [24] = 16384, [25] = 16384, [26] = 16384, [27] = 32768,
    [28] = 32768, [29] = 2048, [30] = 512, [31] = 1, [32] = 1, [36] = 2619000, [37] = 5120, [38] = 52428800,
    [39] = 2048, [40] = 3, [41] = 1, [42] = 32768, [43] = 2048, [51] = 32, [69] = 268435456, [75] = 9, [76] = 0,
    [78] = 1, [79] = 1, [80] = 1, [81] = 233472, [82] = 65536, [83] = 1, [89] = 1, [90] = 1, [91] = 1, [95] = 1,
    [97] = 232448, [99] = 1, [102] = 1, [103] = 1, [106] = 32, [107] = 1, [111] = 1024, [112] = 1, [115] = 1,
    [119] = 1, [120] = 1, [121] = 1, [125] = 1, [126] = 4, [129] = 1, [132] = 1,
};

API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    ENTER(cuDeviceGetAttribute, NEED_INIT);
    REQUIRE(value && attribute > 0 && attribute <= LAST_ATTRIBUTE);
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    *value = attributes[attribute];
    if (attribute == 20) *value = (int)sim_config()->compute_mode;
    if (attribute == 33) *value = is(device)->gpu + 1; /* PCI bus */
    return CUDA_SUCCESS;
}

API CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
    ENTER(cuDeviceComputeCapability, NEED_INIT);
    REQUIRE(major && minor);
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    *major = attributes[75];
    *minor = attributes[76];
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetPCIBusId(char *id, int len, CUdevice device) {
    ENTER(cuDeviceGetPCIBusId, NEED_INIT);
    REQUIRE(id && len > 0);
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    snprintf(id, (size_t)len, "0000:%02X:00.0", (unsigned int)is(device)->gpu + 1);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *id) {
    ENTER(cuDeviceGetByPCIBusId, NEED_INIT);
    REQUIRE(device && id);
    unsigned int domain = 0, bus, slot, function = 0;
    if (sscanf(id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3 && sscanf(id, "%x:%x.%x", &bus, &slot, &function) < 2)
        return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < visible; i++) {
        if ((unsigned int)is(i)->gpu + 1 != bus) continue;
        *device = i;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

API CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    ENTER(cuDeviceCanAccessPeer, NEED_INIT);
    REQUIRE(can);
    if (!device_valid(device) || !device_valid(peer)) return CUDA_ERROR_INVALID_DEVICE;
    *can = device != peer;
    return CUDA_SUCCESS;
}
