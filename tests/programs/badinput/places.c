/* Changes what our paths and descriptors mean: places ACTION [PATH]. What it does ends with a refusal, which is an event. */
#include "../ways/driver.h"

#include <fcntl.h>
#include <unistd.h>

static void begin(void) {
    CUcontext ctx;
    OK(p_cuInit(0));
    OK(p_cuDevicePrimaryCtxRetain(&ctx, 0));
    OK(p_cuCtxSetCurrent(ctx));
}

static void refused(void) { GIVES(2, p_cuMemAlloc_v2(&(CUdeviceptr){0}, (size_t)1 << 40)); }

/* Descriptor 2 becomes a data file, opened as `flags` say. */
static void data_file(const char *path, int flags) {
    close(2);
    if (open(path, O_CREAT | O_RDWR | flags, 0600) != 2) DIE("another descriptor");
}

int main(int argc, char **argv) {
    if (argc < 3) return 64;
    const char *action = argv[1], *path = argv[2];
    driver_find("linked");
    if (!strcmp(action, "chdir")) {
        begin();
        if (chdir(path)) DIE("chdir");
        refused();
    } else if (!strcmp(action, "data-later")) {
        begin();
        data_file(path, 0);
        refused();
        if (write(2, "payload", 7) != 7) DIE("write");
    } else if (!strcmp(action, "data-before")) {
        data_file(path, O_CLOEXEC);
        begin();
        refused();
        if (write(2, "payload", 7) != 7) DIE("write");
    } else if (!strcmp(action, "redirected")) { /* as daemons do */
        begin();
        int fd = open(path, O_CREAT | O_WRONLY | O_APPEND, 0600);
        if (dup2(fd, 1) != 1 || dup2(fd, 2) != 2) DIE("dup2");
        refused();
    } else if (!strcmp(action, "planted")) { /* somebody guesses the name of the report before it has one */
        char link[4096];
        snprintf(link, sizeof link, "%s/.cuwarden-%d.json.tmp", path, getpid());
        if (symlink(argv[3], link)) DIE("symlink");
        begin();
    }
    return 0;
}
