/* A library of NVML that calls functions of its own by their exported names, as NVIDIA's does: a preloaded library that
 * exports them too gets those calls. */
int nvmlInitWithFlags(unsigned int flags) { return flags ? 2 : 0; }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount(unsigned int *count) {
    *count = 0;
    return 0;
}
int nvmlDeviceGetCount_v2(unsigned int *count) { return nvmlDeviceGetCount(count); }
