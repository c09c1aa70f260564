/* Opens a library that only its own RUNPATH or RPATH leads to. */
#include <dlfcn.h>

int open_private(void) {
    void *found = dlopen("libprivate.so", RTLD_NOW | RTLD_LOCAL);
    return found && dlsym(found, "ask_private");
}
