#define _GNU_SOURCE
#include <cpuid.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "rp.h"

int64_t rp_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* What package exe may name in a model's features. xcr0 is the register state that the
 * operating system must have switched on for the instructions to work. */
typedef struct feature {
    const char *name;
    uint32_t leaf, subleaf;
    int reg; /* 0 eax, 1 ebx, 2 ecx, 3 edx */
    int bit;
    uint32_t xcr0;
} feature;

#define YMM 0x6u
#define ZMM 0xe6u
#define TILE 0x60000u

static const feature known[] = {
    {"sse3", 1, 0, 2, 0, 0},
    {"ssse3", 1, 0, 2, 9, 0},
    {"sse4.1", 1, 0, 2, 19, 0},
    {"sse4.2", 1, 0, 2, 20, 0},
    {"popcnt", 1, 0, 2, 23, 0},
    {"movbe", 1, 0, 2, 22, 0},
    {"fma", 1, 0, 2, 12, YMM},
    {"avx", 1, 0, 2, 28, YMM},
    {"f16c", 1, 0, 2, 29, YMM},
    {"lzcnt", 0x80000001, 0, 2, 5, 0},
    {"sse4a", 0x80000001, 0, 2, 6, 0},
    {"bmi", 7, 0, 1, 3, 0},
    {"avx2", 7, 0, 1, 5, YMM},
    {"bmi2", 7, 0, 1, 8, 0},
    {"sha", 7, 0, 1, 29, 0},
    {"avx512f", 7, 0, 1, 16, ZMM},
    {"avx512dq", 7, 0, 1, 17, ZMM},
    {"avx512cd", 7, 0, 1, 28, ZMM},
    {"avx512bw", 7, 0, 1, 30, ZMM},
    {"avx512vl", 7, 0, 1, 31, ZMM},
    {"avx512ifma", 7, 0, 1, 21, ZMM},
    {"avx512vbmi", 7, 0, 2, 1, ZMM},
    {"avx512vbmi2", 7, 0, 2, 6, ZMM},
    {"avx512vnni", 7, 0, 2, 11, ZMM},
    {"avx512bitalg", 7, 0, 2, 12, ZMM},
    {"avx512vpopcntdq", 7, 0, 2, 14, ZMM},
    {"avx512fp16", 7, 0, 3, 23, ZMM},
    {"avx512bf16", 7, 1, 0, 5, ZMM},
    {"avxvnni", 7, 1, 0, 4, YMM},
    {"amx-bf16", 7, 0, 3, 22, TILE},
    {"amx-tile", 7, 0, 3, 24, TILE},
    {"amx-int8", 7, 0, 3, 25, TILE},
};

bool rp_cpu_has(const char *name) {
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const feature *f = &known[i];
        if (strcmp(f->name, name) != 0) continue;
        uint32_t r[4];
        if (!__get_cpuid_count(f->leaf, f->subleaf, &r[0], &r[1], &r[2], &r[3])) return false;
        if ((r[f->reg] >> f->bit & 1) == 0) return false;
        if (f->xcr0 == 0) return true;
        __get_cpuid(1, &r[0], &r[1], &r[2], &r[3]);
        if ((r[2] >> 27 & 1) == 0) return false; /* no xgetbv */
        uint32_t lo, hi;
        __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
        return (lo & f->xcr0) == f->xcr0;
    }
    return false;
}

int rp_cpu_check(const rp_model *m, rp_error *e) {
    char missing[512] = "", all[512] = "", hint[700];
    for (const char *const *f = m->features; *f != NULL; f++) {
        size_t n = strlen(all), k = strlen(missing);
        snprintf(all + n, sizeof all - n, "%s%s", n ? " " : "", *f);
        if (!rp_cpu_has(*f)) snprintf(missing + k, sizeof missing - k, "%s%s", k ? " " : "", *f);
    }
    if (missing[0] == 0) return REPRISE_OK;
    snprintf(hint, sizeof hint, "it needs %s; compile it with --target cpu:x86-64-v3, or with --target cpu:native on this machine", all);
    return rp_fail(e, REPRISE_CPU, hint, "this CPU lacks instructions that the program was compiled for (%s): %s", m->target, missing);
}

int rp_cpu_count(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    int n = CPU_COUNT(&set);
    return n < 1 ? 1 : n > RP_MAX_THREADS ? RP_MAX_THREADS : n;
}
