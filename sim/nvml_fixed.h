/* The functions of NVML that answer with a fixed value, or with "not supported"; part of nvml.c. */

#define VALUE(name, type, value)                                        \
    API nvmlReturn_t name(nvmlDevice_t device, type *out) {             \
        DEVICE(name);                                                   \
        REQUIRE(out);                                                   \
        *out = (type)(value);                                           \
        return NVML_SUCCESS;                                            \
    }
#define PAIR(name, a, b)                                                                    \
    API nvmlReturn_t name(nvmlDevice_t device, unsigned int *first, unsigned int *second) { \
        DEVICE(name);                                                                       \
        REQUIRE(first && second);                                                           \
        *first = (a);                                                                       \
        *second = (b);                                                                      \
        return NVML_SUCCESS;                                                                \
    }
#define BY_KIND(name, type, value)                                                  \
    API nvmlReturn_t name(nvmlDevice_t device, unsigned int kind, type *out) {      \
        DEVICE(name);                                                               \
        (void)kind;                                                                 \
        REQUIRE(out);                                                               \
        *out = (type)(value);                                                       \
        return NVML_SUCCESS;                                                        \
    }
/* Whatever the other arguments are, none is touched. */
#define UNSUPPORTED(name)                            \
    API nvmlReturn_t name(nvmlDevice_t device) {     \
        DEVICE(name);                                \
        return NVML_ERROR_NOT_SUPPORTED;             \
    }

VALUE(nvmlDeviceGetIndex, unsigned int, is_instance(h) ? is(h)->instance : h)
VALUE(nvmlDeviceGetMinorNumber, unsigned int, is(h)->gpu)
VALUE(nvmlDeviceGetBrand, unsigned int, 14)       /* NVML_BRAND_NVIDIA */
VALUE(nvmlDeviceGetArchitecture, unsigned int, 9) /* Hopper */
VALUE(nvmlDeviceGetPowerUsage, unsigned int, 70000)
VALUE(nvmlDeviceGetEnforcedPowerLimit, unsigned int, 700000)
VALUE(nvmlDeviceGetPowerManagementLimit, unsigned int, 700000)
VALUE(nvmlDeviceGetPowerManagementDefaultLimit, unsigned int, 700000)
VALUE(nvmlDeviceGetPowerManagementMode, unsigned int, 1)
VALUE(nvmlDeviceGetPerformanceState, unsigned int, 0)
VALUE(nvmlDeviceGetPowerState, unsigned int, 0)
VALUE(nvmlDeviceGetComputeMode, unsigned int, sim_config()->compute_mode)
VALUE(nvmlDeviceGetPersistenceMode, unsigned int, 1)
VALUE(nvmlDeviceGetDisplayMode, unsigned int, 0)
VALUE(nvmlDeviceGetDisplayActive, unsigned int, 0)
VALUE(nvmlDeviceGetVirtualizationMode, unsigned int, 0)
VALUE(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, 1) /* idle */
VALUE(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, 1)
VALUE(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, 0x1ff)
VALUE(nvmlDeviceGetTotalEnergyConsumption, unsigned long long, 0)
VALUE(nvmlDeviceGetMultiGpuBoard, unsigned int, 0)
VALUE(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, 5)
VALUE(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, 5)
VALUE(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, 16)
VALUE(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, 16)
VALUE(nvmlDeviceGetPcieReplayCounter, unsigned int, 0)
VALUE(nvmlDeviceGetNumGpuCores, unsigned int, 16896)
VALUE(nvmlDeviceGetMemoryBusWidth, unsigned int, 5120)
VALUE(nvmlDeviceGetRetiredPagesPendingStatus, unsigned int, 0)
PAIR(nvmlDeviceGetEccMode, 1, 1)
PAIR(nvmlDeviceGetEncoderUtilization, 0, 1000000)
PAIR(nvmlDeviceGetDecoderUtilization, 0, 1000000)
PAIR(nvmlDeviceGetPowerManagementLimitConstraints, 200000, 700000)
BY_KIND(nvmlDeviceGetTemperature, unsigned int, 35)
BY_KIND(nvmlDeviceGetTemperatureThreshold, unsigned int, 90)
BY_KIND(nvmlDeviceGetClockInfo, unsigned int, 345)
BY_KIND(nvmlDeviceGetMaxClockInfo, unsigned int, 1980)
BY_KIND(nvmlDeviceGetApplicationsClock, unsigned int, 1980)
BY_KIND(nvmlDeviceGetPcieThroughput, unsigned int, 0)
UNSUPPORTED(nvmlDeviceGetFanSpeed)
UNSUPPORTED(nvmlDeviceGetFanSpeed_v2)
UNSUPPORTED(nvmlDeviceGetNumFans)
UNSUPPORTED(nvmlDeviceGetBAR1MemoryInfo)
UNSUPPORTED(nvmlDeviceGetProcessUtilization)
UNSUPPORTED(nvmlDeviceGetAccountingMode)
UNSUPPORTED(nvmlDeviceGetAttributes_v2)
UNSUPPORTED(nvmlDeviceGetFieldValues)
UNSUPPORTED(nvmlDeviceGetNvLinkState)
UNSUPPORTED(nvmlDeviceGetDriverModel)
UNSUPPORTED(nvmlDeviceGetInforomVersion)
UNSUPPORTED(nvmlDeviceGetConfComputeProtectedMemoryUsage)

API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *out) {
    DEVICE(nvmlDeviceGetUtilizationRates);
    REQUIRE(out);
    *out = (nvmlUtilization_t){0, 0};
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, unsigned int type, unsigned int counter, unsigned long long *out) {
    DEVICE(nvmlDeviceGetTotalEccErrors);
    (void)type, (void)counter;
    REQUIRE(out);
    *out = 0;
    return NVML_SUCCESS;
}

#define NO_PAGES(name, ...)                                                                              \
    API nvmlReturn_t name(nvmlDevice_t device, unsigned int cause, unsigned int *count __VA_ARGS__) {    \
        DEVICE(name);                                                                                    \
        (void)cause;                                                                                     \
        REQUIRE(count);                                                                                  \
        *count = 0;                                                                                      \
        return NVML_SUCCESS;                                                                             \
    }
NO_PAGES(nvmlDeviceGetRetiredPages)
NO_PAGES(nvmlDeviceGetRetiredPages_v2)

API nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, unsigned int *corrected, unsigned int *uncorrected, unsigned int *pending, unsigned int *failed) {
    DEVICE(nvmlDeviceGetRemappedRows);
    REQUIRE(corrected && uncorrected && pending && failed);
    *corrected = *uncorrected = *pending = *failed = 0;
    return NVML_SUCCESS;
}

/* A bare device: no vGPU, so no licence is asked for. */
#define NO_LICENCE(name)                                                                 \
    API nvmlReturn_t name(nvmlDevice_t device, nvmlGridLicensableFeatures_t *out) {      \
        DEVICE(name);                                                                    \
        REQUIRE(out);                                                                    \
        *out = (nvmlGridLicensableFeatures_t){0, 0};                                     \
        return NVML_SUCCESS;                                                             \
    }
NO_LICENCE(nvmlDeviceGetGridLicensableFeatures)
NO_LICENCE(nvmlDeviceGetGridLicensableFeatures_v2)
NO_LICENCE(nvmlDeviceGetGridLicensableFeatures_v3)
NO_LICENCE(nvmlDeviceGetGridLicensableFeatures_v4)

API nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *out) {
    DEVICE(nvmlDeviceGetGpuFabricInfo);
    REQUIRE(out);
    *out = (nvmlGpuFabricInfo_t){0}; /* state 0: no fabric */
    return NVML_SUCCESS;
}
