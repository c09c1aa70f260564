/* A thread with a request to be cancelled pending, which acts at the next open, read, write, poll, ... It must act in
 * the application's own code: cancelled refused, where the driver is not called, or cancelled exit. */
#include "../ways/driver.h"

#include <pthread.h>

static void *refused(void *unused) {
    (void)unused;
    pthread_cancel(pthread_self());
    GIVES(800, p_cuInit(0));
    pthread_testcancel();
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 2) return 64;
    driver_find("linked");
    if (!strcmp(argv[1], "refused")) {
        pthread_t thread;
        void *end;
        pthread_create(&thread, NULL, refused, NULL);
        pthread_join(thread, &end);
        if (end != PTHREAD_CANCELED) DIE("it was not cancelled");
        return 0;
    }
    CUcontext ctx;
    OK(p_cuInit(0));
    OK(p_cuDevicePrimaryCtxRetain(&ctx, 0));
    OK(p_cuCtxSetCurrent(ctx));
    for (int i = 0; i < 30; i++) OK(p_cuMemAlloc_v2(&(CUdeviceptr){0}, 512));
    pthread_cancel(pthread_self());
    exit(0);
}
