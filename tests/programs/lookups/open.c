/* open LIBRARY: can the program open the private library, and can the library? */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv) {
    if (argc != 2) return 64;
    printf("the program: %s\n", dlopen("libprivate.so", RTLD_NOW) ? "yes" : "no");
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    int (*open_private)(void) = library ? dlsym(library, "open_private") : NULL;
    if (!open_private) return puts(dlerror()), 1;
    printf("the library: %s\n", open_private() ? "yes" : "no");
    return 0;
}
