#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

static int physical[SIM_MAX_DEVICES], visible;

int device_count(void) { return visible; }
int device_physical(int ordinal) { return physical[ordinal]; }
bool device_valid(int ordinal) { return ordinal >= 0 && ordinal < visible; }

/* One entry of CUDA_VISIBLE_DEVICES: an index, a UUID or a prefix of exactly one UUID. */
static int find_device(const char *entry, size_t length) {
    if (!length) return -1;
    if (entry[0] >= '0' && entry[0] <= '9') {
        char *end;
        long n = strtol(entry, &end, 10);
        return end == entry + length && n < sim_books->devices ? (int)n : -1;
    }
    if (length < 5 || (strncmp(entry, "GPU-", 4) && strncmp(entry, "MIG-", 4))) return -1;
    int found = -1;
    for (int d = 0; d < sim_books->devices; d++) {
        if (strncmp(sim_books->device[d].is.uuid, entry, length)) continue;
        if (found >= 0) return -1;
        found = d;
    }
    return found;
}

/* CUDA_DEVICE_ORDER changes nothing here: simulated devices are all equally fast, and among
 * equals "fastest first" is the order of the bus. */
CUresult devices_select(void) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    visible = 0;
    if (!list) {
        for (int d = 0; d < sim_books->devices; d++) physical[visible++] = d;
    } else {
        for (const char *at = list; *at;) {
            while (*at == ' ') at++;
            size_t length = strcspn(at, ",");
            size_t used = length;
            while (used && at[used - 1] == ' ') used--;
            int d = find_device(at, used);
            /* CUDA stops at the first entry that it cannot use, a repeated one too. */
            for (int i = 0; i < visible; i++)
                if (physical[i] == d) d = -1;
            if (d < 0) break;
            physical[visible++] = d;
            at += length;
            if (*at) at++;
        }
    }
    return visible ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

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
    snprintf(name, (size_t)len, "Simulated GPU");
    return CUDA_SUCCESS;
}

static CUresult uuid_of(CUuuid *uuid, CUdevice device) {
    REQUIRE(uuid);
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    const char *at = sim_books->device[physical[device]].is.uuid;
    at += !strncmp(at, "GPU-", 4) || !strncmp(at, "MIG-", 4) ? 4 : 0;
    memset(uuid, 0, sizeof *uuid);
    for (int nibble = 0; *at && nibble < 32; at++) {
        unsigned int digit;
        if (sscanf((char[]){*at, 0}, "%1x", &digit) != 1) continue;
        uuid->bytes[nibble / 2] = (char)(uuid->bytes[nibble / 2] | (int)(digit << (nibble % 2 ? 0 : 4)));
        nibble++;
    }
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    ENTER(cuDeviceGetUuid, NEED_INIT);
    return uuid_of(uuid, device);
}

API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    ENTER(cuDeviceGetUuid_v2, NEED_INIT);
    return uuid_of(uuid, device);
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
    uint64_t total = sim_books->device[physical[device]].is.total;
    *bytes = total > UINT32_MAX ? UINT32_MAX : (unsigned int)total;
    return CUDA_SUCCESS;
}

API CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    ENTER(cuDeviceTotalMem_v2, NEED_INIT);
    REQUIRE(bytes);
    if (!device_valid(device)) return CUDA_ERROR_INVALID_DEVICE;
    *bytes = sim_books->device[physical[device]].is.total;
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
    *value = attribute == 33 ? physical[device] + 1 : attributes[attribute]; /* 33: PCI bus */
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
    snprintf(id, (size_t)len, "0000:%02X:00.0", physical[device] + 1);
    return CUDA_SUCCESS;
}

API CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *id) {
    ENTER(cuDeviceGetByPCIBusId, NEED_INIT);
    REQUIRE(device && id);
    unsigned int domain = 0, bus, slot, function = 0;
    if (sscanf(id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3 && sscanf(id, "%x:%x.%x", &bus, &slot, &function) < 2)
        return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < visible; i++) {
        if ((unsigned int)physical[i] + 1 != bus) continue;
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
