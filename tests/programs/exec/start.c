/*
 * Starts a program in every way that libc has:
 *   start FUNCTION FROM ENVIRONMENT... -- FILE ARGUMENT...
 * FROM: main, thread (with a small stack), fork (in a process with threads), vfork, many (vforks).
 * ENVIRONMENT: NAME=value..., or = for the process's own, or 0 for a null pointer; @COUNT,SIZE stands for so many large
 * variables. Functions without an environment of their own get it by way of environ.
 * Further words before FUNCTION: `hold LIBCUDA BYTES` allocates first; `title` writes over what the process was started
 * with, as setproctitle does.
 *   start show ARGUMENT...           prints its arguments and its environment
 *   start allocate LIBCUDA BYTES     prints the driver's answer
 *
 * malloc is its own, and ends a process that allocates on the way to another program: the lock of an allocator may be held
 * for ever there.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern int execveat(int, const char *, char *const[], char *const[], int);

static volatile int on_the_way;

static _Alignas(64) char heap[256 << 20];
static size_t used;

void *aligned_alloc(size_t alignment, size_t size) {
    if (on_the_way && write(2, "allocates\n", 10)) abort();
    size_t whole = size + alignment + 64;
    char *at = heap + __atomic_fetch_add(&used, (whole + 63) & ~(size_t)63, __ATOMIC_RELAXED);
    at += 64;
    at = (char *)(((size_t)at + alignment - 1) & -alignment);
    ((size_t *)at)[-1] = size;
    return at;
}
void *malloc(size_t size) { return aligned_alloc(16, size); }
void *calloc(size_t count, size_t size) { return malloc(count * size); }
void free(void *at) {
    if (at && on_the_way && write(2, "frees\n", 6)) abort();
}
void *memalign(size_t alignment, size_t size) { return aligned_alloc(alignment, size); }
int posix_memalign(void **at, size_t alignment, size_t size) {
    *at = aligned_alloc(alignment, size);
    return 0;
}
void *realloc(void *old, size_t size) {
    void *fresh = malloc(size);
    if (old) memcpy(fresh, old, ((size_t *)old)[-1] < size ? ((size_t *)old)[-1] : size);
    return fresh;
}

static const char *function, *from;
static char **envp, **argv, **initial;
static int count, is_own, spawn_left;

#define A(n) argv[n]
#define EACH(call, ...)                                                                              \
    switch (count) {                                                                                 \
    case 1: return call(A(0), A(0), NULL __VA_ARGS__);                                               \
    case 2: return call(A(0), A(0), A(1), NULL __VA_ARGS__);                                         \
    case 3: return call(A(0), A(0), A(1), A(2), NULL __VA_ARGS__);                                   \
    case 4: return call(A(0), A(0), A(1), A(2), A(3), NULL __VA_ARGS__);                             \
    case 5: return call(A(0), A(0), A(1), A(2), A(3), A(4), NULL __VA_ARGS__);                       \
    case 6: return call(A(0), A(0), A(1), A(2), A(3), A(4), A(5), NULL __VA_ARGS__);                 \
    case 7: return call(A(0), A(0), A(1), A(2), A(3), A(4), A(5), A(6), NULL __VA_ARGS__);           \
    case 8: return call(A(0), A(0), A(1), A(2), A(3), A(4), A(5), A(6), A(7), NULL __VA_ARGS__);     \
    }                                                                                                \
    abort();

static int by_execl(void) { EACH(execl) }
static int by_execlp(void) { EACH(execlp) }
static int by_execle(void) { EACH(execle, , envp) }

static int is(const char *name) { return strcmp(function, name) == 0; }

/* 0: a process was started; else -1 and errno, as exec has it. */
static int call(pid_t *pid) {
    int result = -1, before = environ == envp;
    errno = 7;
    if (is("execve")) result = execve(A(0), argv, envp);
    else if (is("execvpe")) result = execvpe(A(0), argv, envp);
    else if (is("execv")) result = execv(A(0), argv);
    else if (is("execvp")) result = execvp(A(0), argv);
    else if (is("execl")) result = by_execl();
    else if (is("execlp")) result = by_execlp();
    else if (is("execle")) result = by_execle();
    else if (is("execveat")) result = execveat(AT_FDCWD, A(0), argv, envp, 0);
    else if (is("fexecve")) {
        int fd = open(A(0), O_PATH);
        errno = 7;
        result = fexecve(fd, argv, envp);
        int saved = errno;
        close(fd);
        errno = saved;
    } else if (is("posix_spawn") || is("posix_spawnp")) {
        int code = (is("posix_spawn") ? posix_spawn : posix_spawnp)(pid, A(0), NULL, NULL, argv, envp);
        spawn_left = errno; /* which libc's changes, in the memory that it shares with its child */
        errno = code;
        result = code ? -1 : 0;
    } else {
        abort();
    }
    if (before != (environ == envp)) abort();
    return result;
}

static void start(void) {
    pid_t pid = 0;
    char **environment_then = environ;
    if (!is_own && (is("execv") || is("execvp") || is("execl") || is("execlp"))) environ = envp;
    fflush(stdout);
    on_the_way = 1;
    int result = call(&pid), error = errno;
    on_the_way = 0;
    environ = environment_then;
    if (result) {
        dprintf(1, "%s: %d %s", function, result, strerrorname_np(error));
        if (spawn_left) dprintf(1, ", errno %s", strerrorname_np(spawn_left));
        dprintf(1, "\n");
        _exit(3);
    }
    if (pid) waitpid(pid, NULL, 0);
}

static void *start_in_thread(void *unused) {
    start();
    return NULL;
}

static void *spin(void *unused) {
    for (;;) pthread_testcancel();
    return NULL;
}

static int mappings(void) {
    char text[4096];
    int lines = 0, fd = open("/proc/self/maps", O_RDONLY);
    for (ssize_t got; (got = read(fd, text, sizeof text)) > 0;)
        for (ssize_t i = 0; i < got; i++) lines += text[i] == '\n';
    close(fd);
    return lines;
}

static void wait_for(pid_t pid) {
    int status;
    on_the_way = 0;
    if (waitpid(pid, &status, 0) != pid) abort();
    if (WIFSIGNALED(status)) printf("signal %d\n", WTERMSIG(status));
}

static char **with_large_ones(char **list) {
    static char *all[20000];
    int length = 0, many, size;
    for (; *list; list++) {
        if (sscanf(*list, "@%d,%d", &many, &size) != 2) {
            all[length++] = *list;
            continue;
        }
        for (int i = 0; i < many; i++) {
            char *entry = malloc(size + 20);
            int head = sprintf(entry, "V%d=", i);
            memset(entry + head, 'x', size);
            entry[head + size] = 0;
            all[length++] = entry;
        }
    }
    return all;
}

static void start_from(void) {
    pthread_t thread;
    pid_t pid;
    if (strcmp(from, "main") == 0) {
        start();
    } else if (strcmp(from, "thread") == 0) {
        pthread_attr_t small;
        pthread_attr_init(&small);
        if (pthread_attr_setstacksize(&small, 32 << 10)) abort();
        if (pthread_create(&thread, &small, start_in_thread, NULL)) abort();
        pthread_join(thread, NULL);
    } else if (strcmp(from, "fork") == 0) {
        for (int i = 0; i < 3; i++) pthread_create(&thread, NULL, spin, NULL);
        pid = fork();
        if (pid == 0) {
            start();
            _exit(0);
        }
        wait_for(pid);
    } else {
        int times = strcmp(from, "many") == 0 ? 300 : 1, before = mappings();
        for (int i = 0; i < times; i++) {
            char **environment = environ;
            pid = vfork();
            if (pid == 0) {
                start();
                _exit(0);
            }
            environ = environment; /* which the child has set, in the memory that it shares with us */
            wait_for(pid);
        }
        if (mappings() != before) printf("%d mappings became %d\n", before, mappings());
    }
}

static int allocate(const char *library, size_t bytes) {
    void *cuda = dlopen(library, RTLD_NOW), *context;
    unsigned long long address;
    if (!cuda) return fprintf(stderr, "%s\n", dlerror()), 1;
    int (*init)(unsigned) = dlsym(cuda, "cuInit");
    int (*retain)(void **, int) = dlsym(cuda, "cuDevicePrimaryCtxRetain");
    int (*set)(void *) = dlsym(cuda, "cuCtxSetCurrent");
    int (*take)(unsigned long long *, size_t) = dlsym(cuda, "cuMemAlloc_v2");
    int error = init(0);
    if (!error) error = retain(&context, 0);
    if (!error) error = set(context);
    if (!error) error = take(&address, bytes);
    printf("allocated: %d\n", error);
    return 0;
}

int main(int argument_count, char **arguments) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argument_count > 1 && strcmp(arguments[1], "show") == 0) {
        for (char **argument = arguments + 1; *argument; argument++) printf("argument %s\n", *argument);
        for (char **entry = environ; *entry; entry++) printf("variable %.200s\n", *entry);
        return 0;
    }
    if (argument_count > 3 && strcmp(arguments[1], "allocate") == 0)
        return allocate(arguments[2], strtoull(arguments[3], NULL, 0));
    arguments++;
    for (;;) {
        if (strcmp(*arguments, "hold") == 0) {
            allocate(arguments[1], strtoull(arguments[2], NULL, 0));
            arguments += 3;
        } else if (strcmp(*arguments, "title") == 0) {
            initial = environ;
            char **copy = calloc(1000, sizeof *copy);
            for (int i = 0; environ[i]; i++) copy[i] = strdup(environ[i]);
            for (char **entry = initial; *entry; entry++) memset(*entry, 'x', strlen(*entry));
            environ = copy;
            arguments++;
        } else {
            break;
        }
    }
    function = *arguments++;
    from = *arguments++;
    envp = arguments;
    while (strcmp(*arguments, "--") != 0) arguments++;
    *arguments++ = NULL;
    if (envp[0] && strcmp(envp[0], "=") == 0) envp = environ, is_own = 1;
    else if (envp[0] && strcmp(envp[0], "0") == 0) envp = NULL;
    else envp = with_large_ones(envp);
    argv = arguments;
    while (argv[count]) count++;
    start_from();
    return 0;
}
