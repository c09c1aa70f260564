/* Prints what old_nvml.c lists, each entry with its protected bytes, and what it says of a function that it lacks. */
#include <dlfcn.h>
#include <stdio.h>

#include "../../../sim/nvml_abi.h"

/* Linked with a newer NVML than the one that is there. */
__attribute__((weak)) nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_v1_t *list);

int main(void) {
    nvmlDevice_t device;
    nvmlProcessDetail_v1_t list[8];
    unsigned int count = 8;
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (!library) return 1;
#define FUNCTION(name) __typeof__(&name) p_##name = (__typeof__(&name))dlsym(library, #name)
    FUNCTION(nvmlInit_v2);
    FUNCTION(nvmlDeviceGetHandleByIndex_v2);
    FUNCTION(nvmlDeviceGetComputeRunningProcesses_v3);
    if (p_nvmlInit_v2() || p_nvmlDeviceGetHandleByIndex_v2(0, &device)) return 2;
    printf("%d", p_nvmlDeviceGetComputeRunningProcesses_v3(device, &count, list));
    for (unsigned int i = 0; i < count; i++)
        printf(" %u:%llu:%d:%lld", list[i].pid, list[i].usedGpuMemory, (int)list[i].gpuInstanceId, (long long)list[i].usedGpuCcProtectedMemory);
    void *lacking = dlsym(library, "nvmlDeviceGetRunningProcessDetailList");
    printf("\n%s %s\n", lacking ? "found" : "lacking", dlerror() ? "and said so" : "and no error");
    if (nvmlDeviceGetRunningProcessDetailList) printf("linked %d\n", nvmlDeviceGetRunningProcessDetailList(device, NULL));
    return 0;
}
