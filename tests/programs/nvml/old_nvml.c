/* NVML as a few drivers of R530 and R535 had it: the third version of the list has longer entries, and there is no list
 * of details. Says that two processes, of which nobody knows, have the card. */
#include <stddef.h>

#include "../../../sim/nvml_abi.h"

static char card;

nvmlReturn_t nvmlInit_v2(void) { return 0; }
nvmlReturn_t nvmlDeviceGetConfComputeMemSizeInfo(nvmlDevice_t device, void *out) { return device && out ? 3 : 2; }

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    *device = (nvmlDevice_t)&card;
    return index ? 2 : 0;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
    static const char text[] = "GPU-1f0e3dad-51a7-4ed0-8000-000000000000";
    if ((char *)device != &card || length < sizeof text) return 2;
    for (size_t i = 0; i < sizeof text; i++) uuid[i] = text[i];
    return 0;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, void *out) {
    unsigned int room = *count;
    if ((char *)device != &card) return 2;
    *count = 2;
    if (room < 2) return 7;
    nvmlProcessDetail_v1_t *list = out;
    for (unsigned int i = 0; i < 2; i++) list[i] = (nvmlProcessDetail_v1_t){1000000000 + i, 5, ~0U, ~0U, 9};
    return 0;
}
