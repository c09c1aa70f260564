/* Goes through its arguments, one step each, and says what came of it:
 *   init            cuInit of libcuda.so.1, found by dlsym
 *   open=LIBRARY    only loads it
 *   close=LIBRARY   the opposite
 *   count=LIBRARY   cudaGetDeviceCount of that runtime
 *   own             cudaGetDeviceCount of the runtime that is linked into this program
 *   quit            ends without exit handlers: that of libcudart 13.5 crashes after a failed start. Lines that are still
 *                   to be written get a moment, since nobody flushes them then
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifdef LINKED
extern int cudaGetDeviceCount(int *count);
#endif

static void *library(const char *path) {
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) printf("%s\n", dlerror());
    return handle;
}

int main(int argc, char **argv) {
    int devices = -1;
    for (int i = 1; i < argc; i++) {
        const char *step = argv[i];
        if (!strcmp(step, "init")) {
            void *driver = library("libcuda.so.1");
            int (*init)(unsigned) = driver ? (int (*)(unsigned))dlsym(driver, "cuInit") : 0;
            printf("init %d\n", init ? init(0) : -1);
        } else if (!strncmp(step, "open=", 5)) {
            printf("open %d\n", library(step + 5) != 0);
        } else if (!strncmp(step, "close=", 6)) {
            void *handle = dlopen(step + 6, RTLD_NOW | RTLD_NOLOAD);
            printf("close %d\n", handle && !dlclose(handle) && !dlclose(handle));
        } else if (!strncmp(step, "count=", 6)) {
            void *runtime = library(step + 6);
            int (*count)(int *) = runtime ? (int (*)(int *))dlsym(runtime, "cudaGetDeviceCount") : 0;
            printf("count %d\n", count ? count(&devices) : -1);
#ifdef LINKED
        } else if (!strcmp(step, "own")) {
            printf("own %d\n", cudaGetDeviceCount(&devices));
#endif
        } else if (!strcmp(step, "quit")) {
            fflush(stdout);
            usleep(300000);
            _exit(0);
        } else {
            printf("no such step: %s\n", step);
            return 1;
        }
    }
    return 0;
}
