/* A program with a dl_iterate_phdr of its own, on top of the one that dlsym finds for it: Seastar does so, to throw
 * exceptions from many threads. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>

typedef int (*iterator)(int (*)(struct dl_phdr_info *, size_t, void *), void *);

int dl_iterate_phdr(int (*visit)(struct dl_phdr_info *, size_t, void *), void *data)
{
    static iterator original;
    if (!original)
        original = (iterator)dlsym(RTLD_NEXT, "dl_iterate_phdr");
    return original(visit, data);
}

static int count(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)info, (void)size;
    ++*(int *)data;
    return 0;
}

int main(void)
{
    int libraries = 0;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    dl_iterate_phdr(count, &libraries);
    puts(libraries > 2 && driver && dlsym(driver, "cuInit") ? "found" : "nothing");
    return 0;
}
