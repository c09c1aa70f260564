/* Looks up names that are nobody's business here, as any program does. */
#define _GNU_SOURCE
#include <dlfcn.h>

int main(void) {
    static const char *const names[] = {"curl_easy_init", "cudnnCreate", "cublasCreate_v2", "cuserid", "cufftPlan1d",
                                        "cuInitialise", "dlopen", "dlinfo", "nvmlInit_v2", "nvmlShutdown"};
    for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
        dlsym(RTLD_DEFAULT, names[i]);
        dlsym(RTLD_NEXT, names[i]);
        dlvsym(RTLD_DEFAULT, names[i], "GLIBC_2.2.5");
    }
    /* Not even these, where there is no CUDA. */
    return dlsym(RTLD_DEFAULT, "cuInit") || dlsym(RTLD_NEXT, "cuMemAlloc_v2");
}
