/* A preloaded library that injects faults into one process: steps of the wall clock, a full disk, failing syncs, and
 * a SIGKILL inside an operation on a store file. The torturer writes the control file; this process maps it.
 *
 * Monotonic clocks are left alone. Only files whose path contains "/store/" are affected: the ledger of effects is the
 * outside world, and has to stay trustworthy. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct control {
    int64_t clock_offset_seconds;
    int64_t is_disk_full;      /* writes fail with ENOSPC while it is not zero */
    int64_t syncs_to_fail;     /* the next syncs fail with EIO */
    int64_t kill_after_ops;    /* SIGKILL in the n-th store operation from now; off at zero */
    int64_t kill_stage;        /* 0: before the operation, 1: in the middle of a write, 2: after the operation */
    int64_t failed_writes;     /* counted by this library */
    int64_t failed_syncs;
};

static struct control *control;

__attribute__((constructor)) static void map_control(void) {
    const char *path = getenv("WINDLASS_TORTURE_CONTROL");
    if (!path) return;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    void *page = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page != MAP_FAILED) control = page;
    close(fd);
}

static int64_t load(int64_t *field) { return __atomic_load_n(field, __ATOMIC_SEQ_CST); }
static void count(int64_t *field) { __atomic_add_fetch(field, 1, __ATOMIC_SEQ_CST); }

static int is_store_file(int fd) {
    if (!control) return 0;
    char link[64], path[512];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return strstr(path, "/store/") != NULL;
}

static void die(void) { syscall(SYS_kill, getpid(), SIGKILL); for (;;) pause(); }

/* True if this operation is the one in which the process dies. */
static int is_last_op(void) {
    if (load(&control->kill_after_ops) <= 0) return 0;
    return __atomic_sub_fetch(&control->kill_after_ops, 1, __ATOMIC_SEQ_CST) == 0;
}

static void *next_symbol(const char *name) { return dlsym(RTLD_NEXT, name); }

#define WRITE_CALL(name, parameters, whole, half)                                   \
    ssize_t name parameters {                                                       \
        static ssize_t (*real) parameters;                                          \
        if (!real) real = (ssize_t (*) parameters)next_symbol(#name);               \
        if (!is_store_file(fd)) return real whole;                                  \
        int is_last = is_last_op();                                                 \
        int64_t stage = load(&control->kill_stage);                                 \
        if (is_last && stage == 0) die();                                           \
        if (is_last && stage == 1) { real half; die(); }                            \
        if (load(&control->is_disk_full)) {                                         \
            count(&control->failed_writes);                                         \
            errno = ENOSPC;                                                         \
            return -1;                                                              \
        }                                                                           \
        ssize_t done = real whole;                                                  \
        if (is_last) die();                                                         \
        return done;                                                                \
    }

WRITE_CALL(write, (int fd, const void *bytes, size_t length), (fd, bytes, length), (fd, bytes, length / 2))
WRITE_CALL(pwrite, (int fd, const void *bytes, size_t length, off_t at), (fd, bytes, length, at), (fd, bytes, length / 2, at))
WRITE_CALL(pwrite64, (int fd, const void *bytes, size_t length, off64_t at), (fd, bytes, length, at), (fd, bytes, length / 2, at))

#define OTHER_CALL(type, name, parameters, arguments)                               \
    type name parameters {                                                          \
        static type (*real) parameters;                                             \
        if (!real) real = (type (*) parameters)next_symbol(#name);                  \
        if (!is_store_file(fd)) return real arguments;                              \
        int is_last = is_last_op();                                                 \
        if (is_last && load(&control->kill_stage) == 0) die();                      \
        type done = real arguments;                                                 \
        if (is_last) die();                                                         \
        return done;                                                                \
    }

OTHER_CALL(ssize_t, read, (int fd, void *bytes, size_t length), (fd, bytes, length))
OTHER_CALL(ssize_t, pread, (int fd, void *bytes, size_t length, off_t at), (fd, bytes, length, at))
OTHER_CALL(ssize_t, pread64, (int fd, void *bytes, size_t length, off64_t at), (fd, bytes, length, at))
OTHER_CALL(int, ftruncate, (int fd, off_t length), (fd, length))
OTHER_CALL(int, ftruncate64, (int fd, off64_t length), (fd, length))

#define SYNC_CALL(name)                                                             \
    int name(int fd) {                                                              \
        static int (*real)(int);                                                    \
        if (!real) real = (int (*)(int))next_symbol(#name);                         \
        if (!is_store_file(fd)) return real(fd);                                    \
        int is_last = is_last_op();                                                 \
        if (is_last && load(&control->kill_stage) == 0) die();                      \
        if (load(&control->syncs_to_fail) > 0) {                                    \
            __atomic_sub_fetch(&control->syncs_to_fail, 1, __ATOMIC_SEQ_CST);       \
            count(&control->failed_syncs);                                          \
            errno = EIO;                                                            \
            return -1;                                                              \
        }                                                                           \
        int done = real(fd);                                                        \
        if (is_last) die();                                                         \
        return done;                                                                \
    }

SYNC_CALL(fsync)
SYNC_CALL(fdatasync)

static int64_t offset(void) { return control ? load(&control->clock_offset_seconds) : 0; }

int clock_gettime(clockid_t clock, struct timespec *time) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))next_symbol("clock_gettime");
    int done = real(clock, time);
    if (done == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) time->tv_sec += offset();
    return done;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    static int (*real)(struct timeval *, void *);
    if (!real) real = (int (*)(struct timeval *, void *))next_symbol("gettimeofday");
    int done = real(time, zone);
    if (done == 0) time->tv_sec += offset();
    return done;
}

time_t time(time_t *seconds) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (seconds) *seconds = now.tv_sec;
    return now.tv_sec;
}
