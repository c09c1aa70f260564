/* every_name NAMES MODULE: looks each name up through every kind of handle; each answer must lie in the module. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static int good(void *address, const char *module) {
    Dl_info info;
    if (!address || !dladdr(address, &info)) return 0;
    const char *slash = strrchr(info.dli_fname, '/');
    return !strcmp(slash ? slash + 1 : info.dli_fname, module);
}

int main(int argc, char **argv) {
    if (argc != 3) return 64;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL), *program = dlopen(NULL, RTLD_NOW);
    FILE *names = fopen(argv[1], "r");
    char name[128];
    int count = 0;
    if (!driver || !names) return 1;
    while (fscanf(names, "%127s", name) == 1) {
        void *answers[] = {dlsym(driver, name), dlsym(RTLD_DEFAULT, name), dlsym(RTLD_NEXT, name), dlsym(program, name)};
        if (!answers[0]) continue; /* The driver has no such function. */
        count++;
        for (int i = 0; i < 4; i++) {
            if (!good(answers[i], argv[2])) printf("%s, handle %d: not in %s\n", name, i, argv[2]);
            if (answers[i] != answers[0]) printf("%s, handle %d: another answer\n", name, i);
        }
    }
    printf("%d names\n", count);
    return 0;
}
