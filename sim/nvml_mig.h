/* The functions of NVML about cards in MIG mode and their instances; part of nvml.c. */

API nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig) {
    DEVICE(nvmlDeviceIsMigDeviceHandle);
    REQUIRE(is_mig);
    *is_mig = is_instance(h);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
    DEVICE(nvmlDeviceGetMigMode);
    REQUIRE(current && pending);
    if (is_instance(h)) return NVML_ERROR_NOT_SUPPORTED;
    *current = *pending = in_mig_mode(h);
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count) {
    DEVICE(nvmlDeviceGetMaxMigDeviceCount);
    REQUIRE(count);
    *count = in_mig_mode(h) ? SIM_MAX_INSTANCES : 0;
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig) {
    DEVICE(nvmlDeviceGetMigDeviceHandleByIndex);
    REQUIRE(mig && !is_instance(h));
    if (!in_mig_mode(h)) return NVML_ERROR_NOT_SUPPORTED;
    REQUIRE(index < SIM_MAX_INSTANCES);
    for (int d = 0; d < books->devices; d++) {
        if (!is_of(h, d) || books->device[d].is.instance != (int)index) continue;
        *mig = (nvmlDevice_t)&handles[SIM_MAX_DEVICES + d];
        return NVML_SUCCESS;
    }
    return NVML_ERROR_NOT_FOUND;
}

API nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t device, nvmlDevice_t *card) {
    DEVICE(nvmlDeviceGetDeviceHandleFromMigDeviceHandle);
    REQUIRE(card && is_instance(h));
    *card = (nvmlDevice_t)&handles[is(h)->gpu];
    return NVML_SUCCESS;
}

/* Numbered from 1, so that a test can tell it from an index. */
static unsigned int gpu_instance(const struct sim_device *one) { return one->instance < 0 ? ~0U : (unsigned int)one->instance + 1; }
static unsigned int compute_instance(const struct sim_device *one) { return one->instance < 0 ? ~0U : 0; }

API nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id) {
    DEVICE(nvmlDeviceGetGpuInstanceId);
    REQUIRE(id);
    if (!is_instance(h)) return NVML_ERROR_NOT_SUPPORTED;
    *id = gpu_instance(is(h));
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id) {
    DEVICE(nvmlDeviceGetComputeInstanceId);
    REQUIRE(id);
    if (!is_instance(h)) return NVML_ERROR_NOT_SUPPORTED;
    *id = compute_instance(is(h));
    return NVML_SUCCESS;
}
