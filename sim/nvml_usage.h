/* What NVML says about memory and who has it; part of nvml.c. */

static void usage(int h, uint64_t *total, uint64_t *used) {
    *total = *used = 0;
    books_lock(books);
    books_reap(books);
    for (int d = 0; d < books->devices; d++) {
        if (!is_of(h, d)) continue;
        *total += books->device[d].is.total;
        *used += books->device[d].used;
    }
    books_unlock(books);
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *out) {
    DEVICE(nvmlDeviceGetMemoryInfo);
    REQUIRE(out);
    uint64_t total, used;
    usage(h, &total, &used);
    *out = (nvmlMemory_t){total, total - used, used};
    return NVML_SUCCESS;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *out) {
    DEVICE(nvmlDeviceGetMemoryInfo_v2);
    REQUIRE(out);
    if (out->version != (sizeof *out | 2U << 24)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    uint64_t total, used;
    usage(h, &total, &used);
    out->total = total;
    out->reserved = 0;
    out->free = total - used;
    out->used = used;
    return NVML_SUCCESS;
}

/* What each process has on each device of the handle: from its first context there to its last. Of all
 * namespaces; the pid is the one that the process has in its own. Counts them all, and writes those for which
 * there is room. */
enum layout { FIRST, SECOND, DETAIL };

static unsigned int list_holders(int h, unsigned int room, void *out, enum layout layout) {
    unsigned int n = 0;
    for (uint32_t i = 0; i < books->slots_used; i++) {
        const struct book_slot *s = &books->slot[i];
        for (int d = 0; books->state[i] == SLOT_LIVE && d < books->devices; d++) {
            if (!s->contexts[d] || !is_of(h, d)) continue;
            unsigned int pid = (unsigned int)s->who.pid;
            const struct sim_device *one = &books->device[d].is;
            unsigned long long bytes = 0;
            for (int k = 0; k < BOOK_KINDS; k++) bytes += s->bytes[d][k];
            if (n < room && layout == FIRST)
                ((nvmlProcessInfo_v1_t *)out)[n] = (nvmlProcessInfo_v1_t){pid, bytes};
            else if (n < room && layout == SECOND)
                ((nvmlProcessInfo_t *)out)[n] = (nvmlProcessInfo_t){pid, bytes, gpu_instance(one), compute_instance(one)};
            else if (n < room)
                ((nvmlProcessDetail_v1_t *)out)[n] =
                    (nvmlProcessDetail_v1_t){pid, bytes, gpu_instance(one), compute_instance(one), 0};
            n++;
        }
    }
    return n;
}

/* Without enough room nothing is written but the count that is needed. */
static nvmlReturn_t processes(int h, unsigned int *count, void *out, enum layout layout) {
    REQUIRE(count && (out || !*count));
    unsigned int room = *count;
    books_lock(books);
    books_reap(books);
    unsigned int n = list_holders(h, 0, out, layout);
    if (n <= room) list_holders(h, room, out, layout);
    books_unlock(books);
    *count = n;
    return n > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

#define RUNNING(name, layout)                                                           \
    API nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, void *out) {        \
        DEVICE(name);                                                                   \
        return processes(h, count, out, layout);                                        \
    }
RUNNING(nvmlDeviceGetComputeRunningProcesses, FIRST)
RUNNING(nvmlDeviceGetComputeRunningProcesses_v2, SECOND)
RUNNING(nvmlDeviceGetComputeRunningProcesses_v3, SECOND)

/* Those of graphics contexts and of clients of MPS: there are none. */
#define NONE_RUNNING(name)                                                              \
    API nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, void *out) {        \
        DEVICE(name);                                                                   \
        REQUIRE(count && (out || !*count));                                             \
        *count = 0;                                                                     \
        return NVML_SUCCESS;                                                            \
    }
NONE_RUNNING(nvmlDeviceGetGraphicsRunningProcesses)
NONE_RUNNING(nvmlDeviceGetGraphicsRunningProcesses_v2)
NONE_RUNNING(nvmlDeviceGetGraphicsRunningProcesses_v3)
NONE_RUNNING(nvmlDeviceGetMPSComputeRunningProcesses)
NONE_RUNNING(nvmlDeviceGetMPSComputeRunningProcesses_v2)
NONE_RUNNING(nvmlDeviceGetMPSComputeRunningProcesses_v3)

API nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_v1_t *list) {
    DEVICE(nvmlDeviceGetRunningProcessDetailList);
    REQUIRE(list);
    if (list->version != (sizeof *list | 1U << 24)) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    REQUIRE(list->mode < 3 && (list->procArray || !list->numProcArrayEntries));
    if (!list->mode) return processes(h, &list->numProcArrayEntries, list->procArray, DETAIL);
    list->numProcArrayEntries = 0;
    return NVML_SUCCESS;
}
