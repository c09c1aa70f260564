/* Another preloaded library that hooks the family: it says which it saw, and goes on to the next one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <spawn.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static void saw(const char *name) {
    if (write(2, "saw ", 4) < 0 || write(2, name, strlen(name)) < 0 || write(2, "\n", 1) < 0) _exit(9);
}

int execve(const char *path, char *const argv[], char *const envp[]) {
    saw("execve");
    return NEXT(execve)(path, argv, envp);
}

int execv(const char *path, char *const argv[]) {
    saw("execv");
    return NEXT(execv)(path, argv);
}

int execvpe(const char *file, char *const argv[], char *const envp[]) {
    saw("execvpe");
    return NEXT(execvpe)(file, argv, envp);
}

int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                const posix_spawnattr_t *attributes, char *const argv[], char *const envp[]) {
    saw("posix_spawn");
    return NEXT(posix_spawn)(pid, path, actions, attributes, argv, envp);
}

int execl(const char *path, const char *first, ...) {
    char *argv[64] = {(char *)first};
    va_list rest;
    va_start(rest, first);
    for (int i = 0; argv[i] && i < 62;) argv[++i] = va_arg(rest, char *);
    va_end(rest);
    saw("execl");
    return NEXT(execv)(path, argv);
}
