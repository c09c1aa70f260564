/* The part of the self-test that is about devices: which there are, and what NVML says of them. */
#include "nvml_abi.h"
#include "selftest.h"

void test_visible(void) {
    setenv("CUDA_VISIBLE_DEVICES", "GPU-3e1,0,9,1", 1);
    CUdeviceptr p;
    CUuuid uuid;
    int count;
    start_context(0);
    OK(cuDeviceGetCount(&count));
    EQUAL(count, 2);
    OK(cuDeviceGetUuid_v2(&uuid, 0));
    EQUAL((unsigned char)uuid.bytes[0], 0x3e);
    OK(cuMemAlloc_v2(&p, MIB));
    EQUAL(held(1, BOOK_LINEAR), MIB);
    EQUAL(held(0, BOOK_LINEAR), 0);
}

void test_invisible(void) {
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    EQUAL(cuInit(0), CUDA_ERROR_NO_DEVICE);
}

void test_nvml(void) {
    nvmlDevice_t d;
    nvmlMemory_t m;
    unsigned int count;
    struct { unsigned int pid; unsigned long long bytes; unsigned int a, b; } list[4];
    CHECK(!strcmp(nvmlErrorString(2), "Invalid Argument"));
    EQUAL(nvmlDeviceGetCount_v2(&count), NVML_ERROR_UNINITIALIZED);
    OK(nvmlInit_v2());
    EQUAL(nvmlDeviceGetHandleByIndex_v2(2, &d), NVML_ERROR_INVALID_ARGUMENT);
    OK(nvmlDeviceGetHandleByIndex_v2(0, &d));
    start_context(0);
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, MIB));
    OK(nvmlDeviceGetMemoryInfo(d, &m));
    EQUAL(m.used, 257 * MIB);
    count = 4;
    OK(nvmlDeviceGetComputeRunningProcesses_v3(d, &count, list));
    EQUAL(count, 1);
    EQUAL(list[0].pid, getpid());
    EQUAL(list[0].bytes, 257 * MIB);
    OK(nvmlShutdown());
    EQUAL(nvmlShutdown(), NVML_ERROR_UNINITIALIZED);
}
