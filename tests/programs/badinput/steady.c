/* Allocates steadily: steady ACTION COUNT [...]. Each allocation has 512 bytes; every third is freed again, so what is
 * left is known. Ends with cuMemGetInfo's figures. */
#include "../ways/driver.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static CUcontext begin(void) {
    CUcontext ctx;
    OK(p_cuInit(0));
    OK(p_cuDevicePrimaryCtxRetain(&ctx, 0));
    OK(p_cuCtxSetCurrent(ctx));
    return ctx;
}

/* One call site for each allocation would make one stack; recursion makes many. */
static __attribute__((noinline)) void allocate(int depth, CUdeviceptr *p) {
    if (depth)
        allocate(depth - 1, p);
    else
        OK(p_cuMemAlloc_v2(p, 512));
    __asm__ volatile("");
}

static void steadily(int count) {
    for (int i = 0; i < count; i++) {
        CUdeviceptr p;
        allocate(i % 16, &p);
        if (i % 3 == 2) OK(p_cuMemFree_v2(p));
    }
}

static void touch(const char *path) { close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600)); }
static void wait_for(const char *path) {
    while (access(path, F_OK)) usleep(1000);
}

static int child_of(pid_t child) {
    int status;
    if (waitpid(child, &status, 0) != child) DIE("no child");
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void *leave(void *unused) {
    CUdeviceptr p;
    (void)unused;
    OK(p_cuCtxSetCurrent(unused));
    allocate(0, &p);
    pthread_exit(NULL);
}

static void deny(int times) {
    for (int i = 0; i < times; i++) GIVES(2, p_cuMemAlloc_v2(&(CUdeviceptr){0}, (size_t)1 << 40));
}

int main(int argc, char **argv) {
    if (argc < 3) return 64;
    const char *action = argv[1];
    int count = atoi(argv[2]);
    driver_find("linked");
    if (!strcmp(action, "init")) {
        printf("%d\n", p_cuInit(0));
        return 0;
    }
    if (!strcmp(action, "fork-first")) { /* before any use: the child is a process of its own */
        pid_t child = fork();
        if (!child) {
            begin();
            steadily(count);
            exit(0);
        }
        if (child_of(child)) DIE("the child failed");
    }
    CUcontext ctx = begin();
    if (!strcmp(action, "pause")) { /* somebody changes the world in the middle */
        steadily(count);
        touch(argv[3]);
        wait_for(argv[4]);
    } else if (!strcmp(action, "close")) { /* as daemons do */
        steadily(count);
        for (int fd = 3; fd < 1024; fd++) close(fd);
    } else if (!strcmp(action, "fork")) { /* the child may not use CUDA, and what it does is its own affair */
        steadily(count);
        for (int i = 0; i < 3; i++) {
            pid_t child = fork();
            if (!child) {
                CUdeviceptr p;
                GIVES(3, p_cuMemAlloc_v2(&p, 512));
                p_cuMemFree_v2(512);
                if (i == 0) exit(0);
                if (i == 1) _exit(0);
                execl("/proc/self/exe", argv[0], "steady", argv[2], NULL);
                _exit(9);
            }
            if (child_of(child)) DIE("a child failed");
        }
    } else if (!strcmp(action, "vfork")) {
        steadily(count);
        pid_t child = vfork();
        if (!child) {
            execl("/bin/true", "true", NULL);
            _exit(9);
        }
        if (child_of(child)) DIE("the child failed");
    } else if (!strcmp(action, "threads")) {
        for (int i = 0; i < count; i++) {
            pthread_t thread;
            pthread_create(&thread, NULL, leave, ctx);
            pthread_join(thread, NULL);
        }
        return 0;
    } else if (!strcmp(action, "deny")) {
        deny(count);
        return 0;
    } else if (!strcmp(action, "deny-loudly")) { /* one event a kind: as many kinds as there are */
        for (int i = 0; i < count; i++) {
            size_t pitch;
            deny(1);
            GIVES(2, p_cuMemAllocManaged(&(CUdeviceptr){0}, (size_t)1 << 40, 1));
            GIVES(2, p_cuMemAllocPitch_v2(&(CUdeviceptr){0}, &pitch, 512, (size_t)1 << 31, 4));
            GIVES(2, p_cuMemAllocAsync(&(CUdeviceptr){0}, (size_t)1 << 40, NULL));
        }
        return 0;
    } else if (!strcmp(action, "for-ever")) { /* until it is killed */
        for (unsigned i = 0;; i++) {
            static CUdeviceptr ring[64];
            CUdeviceptr *p = &ring[i % 64];
            CUmemGenericAllocationHandle h;
            CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
            if (*p) OK(i % 2 ? p_cuMemFreeAsync(*p, NULL) : p_cuMemFree_v2(*p));
            if (i / 64 % 3 == 0) OK(p_cuMemAllocAsync(p, 1000 + i % 64, NULL));
            else allocate((int)(i % 16), p);
            if (i % 16 == 0) {
                OK(p_cuMemCreate(&h, 2 * MIB, &prop, 0));
                OK(p_cuMemRelease(h));
            }
            if (i == 200) touch(argv[3]);
        }
    }
    steadily(count);
    return 0;
}
