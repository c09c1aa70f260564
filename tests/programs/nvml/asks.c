/* Asks NVML what it is told to, one word a call, and prints what was answered.
 *
 *   asks HOW ORDER...
 *
 * HOW is linked or handle. An order is the name of a function, without "nvml", and for some an argument after a colon:
 * Init_v2, DeviceGetHandleByIndex_v2:0. Functions of a device are asked about the one that was found last. cuInit,
 * context:DEVICE and module:FILE are CUDA's, and fork goes on in a child, for which the parent waits. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../../sim/nvml_abi.h"

int cuInit(unsigned int flags) __attribute__((weak));
int cuDevicePrimaryCtxRetain(void **context, int device) __attribute__((weak));
int cuCtxSetCurrent(void *context) __attribute__((weak));
int cuModuleLoadData(void **module, const void *image) __attribute__((weak));

/* Weak, so that the same program runs without being linked with NVML. */
#define EVERY(each)                                                                                          \
    each(nvmlInit) each(nvmlInit_v2) each(nvmlInitWithFlags) each(nvmlShutdown)                              \
    each(nvmlSystemGetDriverVersion) each(nvmlSystemGetNVMLVersion)                                          \
    each(nvmlSystemGetCudaDriverVersion) each(nvmlSystemGetCudaDriverVersion_v2)                             \
    each(nvmlDeviceGetCount) each(nvmlDeviceGetCount_v2)                                                     \
    each(nvmlDeviceGetHandleByIndex) each(nvmlDeviceGetHandleByIndex_v2) each(nvmlDeviceGetHandleByUUID)     \
    each(nvmlDeviceGetHandleByPciBusId) each(nvmlDeviceGetHandleByPciBusId_v2)                               \
    each(nvmlDeviceGetName) each(nvmlDeviceGetUUID) each(nvmlDeviceGetComputeMode) each(nvmlDeviceGetMigMode) \
    each(nvmlDeviceGetMemoryInfo) each(nvmlDeviceGetMemoryInfo_v2)                                           \
    each(nvmlDeviceGetComputeRunningProcesses_v3) each(nvmlDeviceGetRunningProcessDetailList)
#define WEAK(name) extern __typeof__(name) name __attribute__((weak));
nvmlReturn_t nvmlSystemGetNVMLVersion(char *, unsigned int), nvmlSystemGetCudaDriverVersion(int *), nvmlDeviceGetCount(unsigned int *);
nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int, nvmlDevice_t *), nvmlDeviceGetHandleByPciBusId(const char *, nvmlDevice_t *);
nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *, nvmlDevice_t *), nvmlDeviceGetComputeMode(nvmlDevice_t, unsigned int *);
EVERY(WEAK)

typedef int call(void *, void *, unsigned long);

static call *found(const char *how, const char *library, const char *name, void *linked) {
    void *handle = !strcmp(how, "linked") ? NULL : dlopen(library, RTLD_NOW);
    void *address = handle ? dlsym(handle, name) : linked;
    if (!address) {
        printf("no %s\n", name);
        exit(3);
    }
    return (call *)address;
}

static bool begins(const char *text, const char *with) { return !strncmp(text, with, strlen(with)); }

int main(int argc, char **argv) {
    nvmlDevice_t device = NULL;
    setvbuf(stdout, NULL, _IONBF, 0);
    for (int i = 2; i < argc; i++) {
        char name[96], *colon = strchr(argv[i], ':');
        snprintf(name, sizeof name, "nvml%.*s", colon ? (int)(colon - argv[i]) : 90, argv[i]);
        char *argument = colon ? colon + 1 : NULL;
        unsigned long number = argument ? strtoul(argument, NULL, 0) : 0;
        union {
            char text[200];
            unsigned numbers[2];
            nvmlMemory_t memory;
            nvmlMemory_v2_t second;
            nvmlProcessDetailList_v1_t list;
        } out = {{0}};
        if (!strcmp(argv[i], "fork")) {
            if (fork()) {
                int status;
                return wait(&status) < 0 || status;
            }
            continue;
        }
        errno = 77;
        if (!strcmp(argv[i], "cuInit")) {
            int code = found(argv[1], "libcuda.so.1", "cuInit", cuInit)(0, 0, 0);
            printf("cuInit %d errno %d\n", code, errno);
            continue;
        }
        if (begins(argv[i], "context:")) {
            void *context;
            call *retain = found(argv[1], "libcuda.so.1", "cuDevicePrimaryCtxRetain", cuDevicePrimaryCtxRetain);
            int code = retain(&context, (void *)number, 0);
            if (!code) found(argv[1], "libcuda.so.1", "cuCtxSetCurrent", cuCtxSetCurrent)(context, 0, 0);
            printf("context %d\n", code);
            continue;
        }
        if (begins(argv[i], "module:")) {
            static char image[1 << 16];
            void *module;
            FILE *file = fopen(argument, "re");
            if (!file || !fread(image, 1, sizeof image, file)) return 66;
            fclose(file);
            printf("module %d\n", found(argv[1], "libcuda.so.1", "cuModuleLoadData", cuModuleLoadData)(&module, image, 0));
            continue;
        }
        call *function = NULL;
#define TAKE(one) \
    if (!strcmp(name, #one)) function = found(argv[1], "libnvidia-ml.so.1", #one, (void *)one);
        EVERY(TAKE)
        if (!function) return 64;
        int code;
        if (strstr(name, "HandleByIndex") || strstr(name, "InitWithFlags"))
            /* Registers are wider than the argument: what is in the upper half means nothing. */
            code = function((void *)(number | 5UL << 32), &device, 0);
        else if (strstr(name, "HandleBy"))
            code = function(argument, &device, 0);
        else if (begins(name, "nvmlDevice") && !strstr(name, "Count")) {
            if (strstr(name, "Memory")) out.second.version = sizeof out.second | 2U << 24;
            if (strstr(name, "Detail")) out.list.version = sizeof out.list | 1U << 24;
            void *asked = argument ? (void *)number : device;
            code = function(asked, &out, strstr(name, "Mig") ? (unsigned long)&out.numbers[1] : strstr(name, "Processes") ? 0 : sizeof out);
        } else
            code = function(&out, (void *)sizeof out, 0);
        printf("%s %d errno %d", name, code, errno);
        if (strstr(name, "Memory"))
            printf(" %llu\n", out.second.total);
        else if (out.text[0] >= '0')
            printf(" %.100s\n", out.text);
        else
            printf(" %u %u\n", out.numbers[0], out.numbers[1]);
    }
    return 0;
}
