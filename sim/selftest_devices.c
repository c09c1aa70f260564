/* The part of the self-test that is about devices: which there are, in which order, and what NVML says of them. */
#include <sys/wait.h>

#include "nvml_abi.h"
#include "selftest.h"

static const char *expected;

/* Each device by its place on the bus, in CUDA's order. */
static void check_ordinals(void) {
    char found[64] = "", id[32];
    int count, result = cuInit(0);
    CHECK(!result || result == CUDA_ERROR_NO_DEVICE);
    if (!result) OK(cuDeviceGetCount(&count));
    for (int i = 0; !result && i < count; i++) {
        CUdevice again;
        OK(cuDeviceGetPCIBusId(id, sizeof id, i));
        OK(cuDeviceGetByPCIBusId(&again, id));
        EQUAL(again, i);
        sprintf(found + strlen(found), "%s%d", i ? "," : "", (int)strtol(id + 5, NULL, 16) - 1);
    }
    if (strcmp(found, expected)) {
        fprintf(stderr, "CUDA_VISIBLE_DEVICES=%s gives \"%s\", not \"%s\"\n", getenv("CUDA_VISIBLE_DEVICES"), found, expected);
        _exit(1);
    }
    _exit(0);
}

/* In a child, since a process has its devices once and for all. */
static void in_child(const char *order, const char *visible, void (*test)(void)) {
    pid_t pid = fork();
    if (!pid) {
        order ? setenv("CUDA_DEVICE_ORDER", order, 1) : unsetenv("CUDA_DEVICE_ORDER");
        visible ? setenv("CUDA_VISIBLE_DEVICES", visible, 1) : unsetenv("CUDA_VISIBLE_DEVICES");
        test();
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && !status);
}

static void gives(const char *order, const char *visible, const char *ordinals) {
    expected = ordinals;
    in_child(order, visible, check_ordinals);
}

#define FIRST "GPU-1f0e3dad-51a7-4ed0-8000-000000000000"
#define SECOND "GPU-3e1c7b5a-51a7-4ed0-8000-000000000001"
#define THIRD "GPU-5d2ab907-51a7-4ed0-8000-000000000002"

static void second_is_first(void) {
    CUdeviceptr p;
    CUuuid uuid;
    start_context(0);
    OK(cuDeviceGetUuid_v2(&uuid, 0));
    EQUAL((unsigned char)uuid.bytes[0], 0x3e);
    OK(cuMemAlloc_v2(&p, MIB));
    EQUAL(held(1, BOOK_LINEAR), MIB);
    EQUAL(held(0, BOOK_LINEAR), 0);
}

void test_visible(void) {
    in_child(NULL, "1,0", second_is_first);
    gives(NULL, NULL, "0,1");
    gives(NULL, "", "");
    gives(NULL, "1", "1");
    gives(NULL, "1,0", "1,0");
    gives(NULL, " 1 , 0", "1,0");
    gives(NULL, "1gpu,0x7", "1,0"); /* as strtol reads them */
    gives(NULL, "1,-1,0", "1");
    gives(NULL, "0,2,1", "0"); /* up to the first that is none */
    gives(NULL, "none", "");
    gives(NULL, "1,1", ""); /* twice: no device at all */
    gives(NULL, SECOND, "1");
    gives(NULL, SECOND "," FIRST, "1,0");
    gives(NULL, "GPU-3e1,GPU-1", "1,0");
    gives(NULL, "GPU-3e1," SECOND, "");
    gives(NULL, "GPU-3e1,0", "1"); /* not of the kind of the first */
    gives(NULL, "0,GPU-3e1", "0");
    gives(NULL, "GPU-f", "");
    gives(NULL, "GPU-1,GPU-f,GPU-3", "0");
    gives(NULL, "MIG-1f0e3dad", "");
}

void test_order(void) {
    setenv("CUWARDEN_SIM_DEVICES", "3", 1);
    setenv("CUWARDEN_SIM_ORDER", "2,0,1", 1);
    nvmlDevice_t d;
    nvmlPciInfo_t pci;
    gives(NULL, NULL, "2,0,1");
    gives("FASTEST_FIRST", NULL, "2,0,1");
    gives("nonsense", NULL, "2,0,1");
    gives("PCI_BUS_ID", NULL, "0,1,2");
    gives(NULL, "0", "2");
    gives("PCI_BUS_ID", "0", "0");
    gives(NULL, "1,0", "0,2");
    gives("PCI_BUS_ID", "2,1", "2,1");
    gives(NULL, THIRD, "2");
    gives("PCI_BUS_ID", "GPU-5," FIRST, "2,0");
    setenv("CUDA_VISIBLE_DEVICES", "1", 1); /* which is CUDA's alone */
    OK(nvmlInit_v2());
    for (unsigned int i = 0; i < 3; i++) {
        char uuid[96];
        OK(nvmlDeviceGetHandleByIndex_v2(i, &d));
        OK(nvmlDeviceGetPciInfo_v3(d, &pci));
        EQUAL(pci.bus, i + 1);
        OK(nvmlDeviceGetUUID(d, uuid, sizeof uuid));
        CHECK(!strcmp(uuid, (const char *[]){FIRST, SECOND, THIRD}[i]));
    }
}

/* ---- a card in MIG mode between two that are not ------------------------------------------------------- */

#define SLICE_A "MIG-aa000000-0000-0000-0000-000000000001"
#define SLICE_B "MIG-ab000000-0000-0000-0000-000000000002"

static void second_slice(void) {
    int count;
    CUuuid uuid;
    CUdeviceptr p;
    size_t free_bytes, total;
    start_context(0);
    OK(cuDeviceGetCount(&count));
    EQUAL(count, 1);
    OK(cuDeviceGetUuid_v2(&uuid, 0));
    CHECK(!memcmp(uuid.bytes, "\xab\0\0\0\0\0\0\0\0\0\0\0\0\0\0\2", 16));
    OK(cuDeviceGetUuid(&uuid, 0));
    CHECK(!memcmp(uuid.bytes, "\x3e\x1c\x7b\x5a\x51\xa7\x4e\xd0\x80\0\0\0\0\0\0\1", 16));
    OK(cuMemAlloc_v2(&p, MIB));
    EQUAL(held(2, BOOK_LINEAR), MIB);
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    EQUAL(total, 2048 * MIB);
    EQUAL(total - free_bytes, 257 * MIB);
    EQUAL(cuMemAlloc_v2(&p, 2000 * MIB), CUDA_ERROR_OUT_OF_MEMORY);
    nvmlDevice_t card, slice, again;
    nvmlMemory_t m;
    nvmlProcessInfo_t list[2];
    unsigned int n, current, pending;
    char text[96];
    OK(nvmlInit_v2());
    OK(nvmlDeviceGetCount_v2(&n));
    EQUAL(n, 3);
    OK(nvmlDeviceGetHandleByIndex_v2(1, &card));
    OK(nvmlDeviceGetUUID(card, text, sizeof text));
    CHECK(!strcmp(text, SECOND));
    OK(nvmlDeviceGetMigMode(card, &current, &pending));
    EQUAL(current, 1);
    OK(nvmlDeviceGetMaxMigDeviceCount(card, &n));
    EQUAL(n, 7);
    OK(nvmlDeviceGetMigDeviceHandleByIndex(card, 1, &slice));
    EQUAL(nvmlDeviceGetMigDeviceHandleByIndex(card, 2, &again), NVML_ERROR_NOT_FOUND);
    EQUAL(nvmlDeviceGetMigDeviceHandleByIndex(card, 7, &again), NVML_ERROR_INVALID_ARGUMENT);
    OK(nvmlDeviceGetUUID(slice, text, sizeof text));
    CHECK(!strcmp(text, SLICE_B));
    OK(nvmlDeviceIsMigDeviceHandle(slice, &n));
    EQUAL(n, 1);
    OK(nvmlDeviceGetIndex(slice, &n));
    EQUAL(n, 1);
    OK(nvmlDeviceGetGpuInstanceId(slice, &n));
    EQUAL(n, 2);
    OK(nvmlDeviceGetHandleByUUID(SLICE_B, &again));
    CHECK(again == slice);
    OK(nvmlDeviceGetHandleByUUID(SECOND, &again));
    CHECK(again == card);
    OK(nvmlDeviceGetDeviceHandleFromMigDeviceHandle(slice, &again));
    CHECK(again == card);
    OK(nvmlDeviceGetMemoryInfo(slice, &m));
    EQUAL(m.total, 2048 * MIB);
    EQUAL(m.used, 257 * MIB);
    OK(nvmlDeviceGetMemoryInfo(card, &m));
    EQUAL(m.total, 3072 * MIB);
    EQUAL(m.used, 257 * MIB);
    for (int i = 0; i < 2; i++) {
        n = 2;
        OK(nvmlDeviceGetComputeRunningProcesses_v3(i ? slice : card, &n, list));
        EQUAL(n, 1);
        EQUAL(list[0].usedGpuMemory, 257 * MIB);
        EQUAL(list[0].gpuInstanceId, 2);
        EQUAL(list[0].computeInstanceId, 0);
    }
    OK(nvmlDeviceGetMigDeviceHandleByIndex(card, 0, &slice));
    n = 0;
    OK(nvmlDeviceGetComputeRunningProcesses_v3(slice, &n, NULL));
    EQUAL(n, 0);
    OK(nvmlDeviceGetHandleByIndex_v2(0, &card));
    OK(nvmlDeviceGetMigMode(card, &current, &pending));
    EQUAL(current, 0);
    OK(nvmlDeviceGetMaxMigDeviceCount(card, &n));
    EQUAL(n, 0);
    EQUAL(nvmlDeviceGetMigDeviceHandleByIndex(card, 0, &slice), NVML_ERROR_NOT_SUPPORTED);
}

static void first_slice(void) {
    CUuuid uuid;
    OK(cuInit(0));
    OK(cuDeviceGetUuid_v2(&uuid, 0));
    EQUAL((unsigned char)uuid.bytes[0], 0xaa);
    check_ordinals();
}

void test_instances(void) {
    setenv("CUWARDEN_SIM_DEVICES", "4", 1);
    setenv("CUWARDEN_SIM_UUIDS", "," SLICE_A "," SLICE_B, 1);
    setenv("CUWARDEN_SIM_MEMORY", "16g,1g,2g,16g", 1);
    in_child(NULL, SLICE_B, second_slice);
    in_child(NULL, "MIG-ab", second_slice);
    in_child(NULL, SLICE_B "," SLICE_A, second_slice);
    gives(NULL, SLICE_A "," SLICE_A, "");
    gives(NULL, "MIG-a", "");
    gives(NULL, "0,2", "0,2");
    expected = "1";
    in_child(NULL, NULL, first_slice); /* one, and then no whole card */
    in_child(NULL, "0,1", first_slice);
    in_child(NULL, "1", first_slice);
    in_child(NULL, SECOND, first_slice);
}

/* ---- NVML ---------------------------------------------------------------------------------------------- */

void test_nvml(void) {
    nvmlDevice_t d;
    nvmlMemory_t m;
    nvmlMemory_v2_t m2 = {.version = sizeof m2 | 2U << 24};
    unsigned int count;
    CHECK(!strcmp(nvmlErrorString(2), "Invalid Argument"));
    EQUAL(nvmlDeviceGetCount_v2(&count), NVML_ERROR_UNINITIALIZED);
    OK(nvmlInit_v2());
    OK(nvmlDeviceGetCount_v2(&count));
    EQUAL(count, 2);
    EQUAL(nvmlDeviceGetHandleByIndex_v2(2, &d), NVML_ERROR_INVALID_ARGUMENT);
    OK(nvmlDeviceGetHandleByIndex_v2(0, &d));
    start_context(0);
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, MIB));
    OK(nvmlDeviceGetMemoryInfo(d, &m));
    EQUAL(m.used, 257 * MIB);
    EQUAL(m.free, m.total - m.used);
    OK(nvmlDeviceGetMemoryInfo_v2(d, &m2));
    EQUAL(m2.used, 257 * MIB);
    EQUAL(m2.free + m2.used + m2.reserved, m2.total);
    m2.version = 0;
    EQUAL(nvmlDeviceGetMemoryInfo_v2(d, &m2), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    EQUAL(nvmlDeviceGetMemoryInfo((nvmlDevice_t)&m, &m), NVML_ERROR_INVALID_ARGUMENT);
    OK(nvmlShutdown());
    EQUAL(nvmlShutdown(), NVML_ERROR_UNINITIALIZED);
}

/* How many processes are asked for, and how a list is read: v1 has no instances. */
typedef nvmlReturn_t (*list_function)(nvmlDevice_t, unsigned int *, void *);

static void check_list(list_function of, size_t entry, pid_t first, pid_t second) {
    unsigned char room[5 * sizeof(nvmlProcessInfo_t)];
    nvmlDevice_t d;
    OK(nvmlDeviceGetHandleByIndex_v2(0, &d));
    EQUAL(of(d, NULL, room), NVML_ERROR_INVALID_ARGUMENT);
    unsigned int count = 3;
    EQUAL(of(d, &count, NULL), NVML_ERROR_INVALID_ARGUMENT);
    for (unsigned int given = 0; given < 2; given++) {
        memset(room, 0x55, sizeof room);
        count = given;
        EQUAL(of(d, &count, given ? room : NULL), NVML_ERROR_INSUFFICIENT_SIZE);
        EQUAL(count, 2);
        EQUAL(room[0], 0x55);
    }
    for (unsigned int given = 2; given < 4; given++) {
        memset(room, 0x55, sizeof room);
        count = given;
        OK(of(d, &count, room));
        EQUAL(count, 2);
        EQUAL(room[2 * entry], 0x55);
        for (int i = 0; i < 2; i++) {
            nvmlProcessInfo_t one;
            memcpy(&one, room + (size_t)i * entry, entry);
            bool is_first = one.pid == (unsigned int)first;
            CHECK(is_first || one.pid == (unsigned int)second);
            EQUAL(one.usedGpuMemory, (is_first ? 263 : 257) * MIB);
            if (entry == sizeof one) EQUAL(one.gpuInstanceId, -1U);
        }
    }
}

static void hold_one(void) {
    CUdeviceptr p;
    start_context(0);
    OK(cuMemAlloc_v2(&p, MIB));
}

void test_nvml_processes(void) {
    nvmlDevice_t d;
    unsigned int count = 0;
    OK(nvmlInit_v2());
    OK(nvmlDeviceGetHandleByIndex_v2(0, &d));
    OK(nvmlDeviceGetComputeRunningProcesses_v3(d, &count, NULL));
    EQUAL(count, 0);
    pid_t first = child(hold_some), second = child_in_namespace(hold_one, false), its_own = 1;
    if (second < 0) its_own = second = child(hold_one);
    eventually_used(0, 520 * MIB);
    check_list(nvmlDeviceGetComputeRunningProcesses, sizeof(nvmlProcessInfo_v1_t), first, its_own);
    check_list(nvmlDeviceGetComputeRunningProcesses_v2, sizeof(nvmlProcessInfo_t), first, its_own);
    check_list(nvmlDeviceGetComputeRunningProcesses_v3, sizeof(nvmlProcessInfo_t), first, its_own);
    nvmlProcessInfo_t list[4];
    count = 4;
    OK(nvmlDeviceGetGraphicsRunningProcesses_v3(d, &count, list));
    EQUAL(count, 0);
    OK(nvmlDeviceGetMPSComputeRunningProcesses_v3(d, &count, NULL));
    end(first);
    count = 4;
    OK(nvmlDeviceGetComputeRunningProcesses_v3(d, &count, list));
    EQUAL(count, 1);
    EQUAL(list[0].pid, its_own);
    OK(nvmlDeviceGetHandleByIndex_v2(1, &d));
    OK(nvmlDeviceGetComputeRunningProcesses_v3(d, &count, list));
    EQUAL(count, 0);
    end(second);
}
