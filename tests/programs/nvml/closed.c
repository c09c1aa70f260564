/* A library to be preloaded: files whose path contains CLOSED cannot be opened, with the error number CLOSED_ERROR. That is
 * how a device node behaves that a rule of the device cgroup forbids, or behind which the card is gone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

int open64(const char *path, int flags, ...) {
    const char *closed = getenv("CLOSED"), *error = getenv("CLOSED_ERROR");
    if (closed && error && strstr(path, closed)) {
        errno = atoi(error);
        return -1;
    }
    va_list arguments;
    va_start(arguments, flags);
    int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, int) : 0;
    va_end(arguments);
    int (*real)(const char *, int, ...) = (int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open64");
    return real(path, flags, mode);
}
