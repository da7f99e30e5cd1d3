#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "rp.h"

static int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

/* The inaccessible pages around it make an overrun a fault, and keep the kernel from
 * merging the mapping with a neighbour, so that rp_resident measures this and no more. */
int rp_map(rp_mapping *m, int64_t bytes, int64_t align, bool huge, rp_error *e) {
    int64_t page = sysconf(_SC_PAGESIZE), body = round_up(bytes < 1 ? 1 : bytes, page);
    size_t whole = (size_t)(body + 2 * page + align);
    char *p = mmap(NULL, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return rp_fail(e, REPRISE_MEMORY, "lower --budget, or free address space (ulimit -v)", "cannot reserve %lld bytes of memory: %s", (long long)bytes, strerror(errno));
    char *base = (char *)(uintptr_t)round_up((int64_t)(uintptr_t)(p + page), align);
    if (mprotect(base, (size_t)body, PROT_READ | PROT_WRITE) != 0) {
        int error = errno;
        munmap(p, whole);
        return rp_fail(e, REPRISE_MEMORY, "lower --budget, or free memory", "cannot get %lld bytes of memory: %s", (long long)bytes, strerror(error));
    }
    if (huge) madvise(base, (size_t)body, MADV_HUGEPAGE); /* a wish; refused is fine */
    *m = (rp_mapping){base, body, p, whole};
    return REPRISE_OK;
}

void rp_unmap(rp_mapping *m) {
    if (m->whole != NULL) munmap(m->whole, m->whole_bytes);
    *m = (rp_mapping){0};
}

int64_t rp_resident(const rp_mapping *m) {
    int64_t page = sysconf(_SC_PAGESIZE), resident = 0;
    unsigned char present[4096];
    for (int64_t at = 0; at < m->bytes; at += page * (int64_t)sizeof present) {
        int64_t n = m->bytes - at;
        if (n > page * (int64_t)sizeof present) n = page * (int64_t)sizeof present;
        if (mincore(m->base + at, (size_t)n, present) != 0) return -1;
        for (int64_t i = 0; i < n / page; i++) resident += present[i] & 1 ? page : 0;
    }
    return resident;
}

/* A number of kB in a file of /proc, in bytes; −1 where it is not there. */
static int64_t proc_kb(const char *path, const char *key) {
    char text[8192];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return -1;
    text[n] = 0;
    const char *line = strstr(text, key);
    return line == NULL ? -1 : strtoll(line + strlen(key), NULL, 10) * 1024;
}

/* VmHWM, not getrusage: the latter's maximum is inherited through fork and exec. */
int64_t rp_peak_rss(void) { return proc_kb("/proc/self/status", "VmHWM:"); }

int64_t rp_available_memory(void) {
    int64_t free = proc_kb("/proc/meminfo", "MemAvailable:"), swap = proc_kb("/proc/meminfo", "SwapFree:");
    return free < 0 ? -1 : free + (swap < 0 ? 0 : swap);
}
