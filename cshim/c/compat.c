/*
 * What our objects need and glibc 2.17 does not have as a dynamic symbol. Everything here is hidden.
 *
 * Until glibc 2.33 the stat family, atexit and pthread_atfork came from libc_nonshared.a, as small
 * functions over the dynamic symbols used below. Those still exist in every later glibc.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <link.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#define HIDDEN __attribute__((visibility("hidden")))

#ifndef __x86_64__
#error "libcuwarden.so is built for x86-64 only"
#endif

/* stat: one layout for all of them on x86-64, called version 1 by the kernel interface. */

enum { STAT_VERSION = 1 };

extern int __xstat64(int, const char *, void *);
extern int __fxstat64(int, int, void *);
extern int __lxstat64(int, const char *, void *);
extern int __fxstatat64(int, int, const char *, void *, int);

/* Assembler names, so that no header can turn these into something else. */
#define STAT_FAMILY(suffix)                                                                        \
    HIDDEN int compat_stat##suffix(const char *, void *) __asm__("stat" #suffix);                  \
    HIDDEN int compat_fstat##suffix(int, void *) __asm__("fstat" #suffix);                         \
    HIDDEN int compat_lstat##suffix(const char *, void *) __asm__("lstat" #suffix);                \
    HIDDEN int compat_fstatat##suffix(int, const char *, void *, int) __asm__("fstatat" #suffix);  \
    int compat_stat##suffix(const char *path, void *out) {                                         \
        return __xstat64(STAT_VERSION, path, out);                                                 \
    }                                                                                              \
    int compat_fstat##suffix(int fd, void *out) {                                                  \
        return __fxstat64(STAT_VERSION, fd, out);                                                  \
    }                                                                                              \
    int compat_lstat##suffix(const char *path, void *out) {                                        \
        return __lxstat64(STAT_VERSION, path, out);                                                \
    }                                                                                              \
    int compat_fstatat##suffix(int dir, const char *path, void *out, int flags) {                  \
        return __fxstatat64(STAT_VERSION, dir, path, out, flags);                                  \
    }

STAT_FAMILY()
STAT_FAMILY(64)

/* Handlers belong to this library: __dso_handle is what the C library knows it by. */

HIDDEN extern void *__dso_handle;
extern int __cxa_atexit(void (*)(void *), void *, void *);
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *);

HIDDEN int compat_atexit(void (*)(void)) __asm__("atexit");
int compat_atexit(void (*f)(void)) {
    /* A function that ignores its argument: the same conversion as in glibc's own atexit. */
    return __cxa_atexit((void (*)(void *))(uintptr_t)f, NULL, __dso_handle);
}

HIDDEN int compat_atfork(void (*)(void), void (*)(void), void (*)(void)) __asm__("pthread_atfork");
int compat_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void)) {
    return __register_atfork(prepare, parent, child, __dso_handle);
}

/*
 * In libpthread until 2.31. The kernel's mask is the thread's, so sigprocmask does the same; only the error
 * comes back another way.
 */
HIDDEN int compat_sigmask(int, const sigset_t *, sigset_t *) __asm__("pthread_sigmask");
int compat_sigmask(int how, const sigset_t *set, sigset_t *old) {
    int saved = errno, result = 0;

    if (sigprocmask(how, set, old) != 0) {
        result = errno;
        errno = saved;
    }
    return result;
}

/* System calls whose wrappers came after 2.17. syscall() sets errno. */

HIDDEN int compat_gettid(void) __asm__("gettid");
int compat_gettid(void) {
    return (int)syscall(SYS_gettid);
}

HIDDEN int compat_memfd_create(const char *, unsigned) __asm__("memfd_create");
int compat_memfd_create(const char *name, unsigned flags) {
    return (int)syscall(SYS_memfd_create, name, flags);
}

/*
 * _dl_find_object (glibc 2.35), which the unwinder of gcc 12 and later asks for the object of an
 * address. The linker's --wrap sends its calls here: on to the C library's own function where there is
 * one (a weak reference without a version, so an old glibc leaves it NULL), else to a walk over the
 * loaded objects.
 */
struct found_object {
    unsigned long long flags;
    void *map_start;
    void *map_end;
    struct link_map *link_map;
    void *eh_frame;
    unsigned long long reserved[7];
};

struct search {
    uintptr_t address;
    struct found_object *out;
};

extern int __real__dl_find_object(void *, struct found_object *) __attribute__((weak));
HIDDEN int __wrap__dl_find_object(void *, struct found_object *);

static int visit(struct dl_phdr_info *info, size_t size, void *data) {
    struct search *search = data;
    uintptr_t low = UINTPTR_MAX, high = 0;
    const void *eh_frame = NULL;
    int inside = 0;

    (void)size;
    for (size_t i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + segment->p_vaddr;

        if (segment->p_type == PT_GNU_EH_FRAME) {
            eh_frame = (const void *)start;
        } else if (segment->p_type == PT_LOAD) {
            if (start < low)
                low = start;
            if (start + segment->p_memsz > high)
                high = start + segment->p_memsz;
            /* Of this segment only: another object may lie in a gap. */
            if (search->address - start < segment->p_memsz)
                inside = 1;
        }
    }
    if (!inside)
        return 0;
    if (!eh_frame)
        return -1; /* Found, but it cannot be unwound: the caller takes that as not found. */
    *search->out = (struct found_object){
        .map_start = (void *)low,
        .map_end = (void *)high,
        .link_map = NULL, /* dl_iterate_phdr does not tell, and the unwinder does not ask. */
        .eh_frame = (void *)eh_frame,
    };
    return 1;
}

int __wrap__dl_find_object(void *address, struct found_object *out) {
    struct search search = {.address = (uintptr_t)address, .out = out};

    if (__real__dl_find_object)
        return __real__dl_find_object(address, out);
    return dl_iterate_phdr(visit, &search) == 1 ? 0 : -1;
}

/* c/late.S: the address of a function in libpthread or libdl as loaded by now, or NULL. */

struct tables {
    const char *strings;
    const ElfW(Sym) *symbols;
    const uint32_t *gnu_hash;
};

static uint32_t gnu_hash(const char *name) {
    uint32_t hash = 5381;
    for (; *name; name++)
        hash = hash * 33 + (unsigned char)*name;
    return hash;
}

static const ElfW(Sym) *symbol(const struct tables *tables, const char *name) {
    uint32_t hash = gnu_hash(name);
    /* Number of buckets, first symbol in the table, words of the filter, its shift; the filter; the buckets. */
    const uint32_t *table = tables->gnu_hash;
    const uint32_t *buckets = table + 4 + 2 * table[2], *chain = buckets + table[0];
    uint32_t i = buckets[hash % table[0]];

    if (i < table[1])
        return NULL;
    for (;; i++) {
        const ElfW(Sym) *candidate = &tables->symbols[i];
        uint32_t entry = chain[i - table[1]];

        if ((entry | 1) == (hash | 1) && candidate->st_shndx != SHN_UNDEF &&
            ELF64_ST_TYPE(candidate->st_info) == STT_FUNC &&
            strcmp(tables->strings + candidate->st_name, name) == 0)
            return candidate;
        if (entry & 1)
            return NULL;
    }
}

struct request {
    const char *name;
    void *function;
};

static int visit_late(struct dl_phdr_info *info, size_t size, void *data) {
    struct request *request = data;
    struct tables tables = {NULL, NULL, NULL};
    const ElfW(Dyn) *entry = NULL;
    const char *file = info->dlpi_name ? strrchr(info->dlpi_name, '/') : NULL;

    (void)size;
    if (!file || (strcmp(file, "/libpthread.so.0") != 0 && strcmp(file, "/libdl.so.2") != 0))
        return 0;
    for (size_t i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            entry = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    for (; entry && entry->d_tag != DT_NULL; entry++) {
        /* The loader has turned the offsets of these into addresses. */
        if (entry->d_tag == DT_STRTAB)
            tables.strings = (const char *)entry->d_un.d_ptr;
        else if (entry->d_tag == DT_SYMTAB)
            tables.symbols = (const ElfW(Sym) *)entry->d_un.d_ptr;
        else if (entry->d_tag == DT_GNU_HASH)
            tables.gnu_hash = (const uint32_t *)entry->d_un.d_ptr;
    }
    if (tables.strings && tables.symbols && tables.gnu_hash) {
        const ElfW(Sym) *found = symbol(&tables, request->name);
        if (found)
            request->function = (void *)(info->dlpi_addr + found->st_value);
    }
    return request->function != NULL;
}

HIDDEN void *cuwarden_late_function(const char *);
void *cuwarden_late_function(const char *name) {
    struct request request = {.name = name, .function = NULL};

    dl_iterate_phdr(visit_late, &request);
    return request.function;
}
