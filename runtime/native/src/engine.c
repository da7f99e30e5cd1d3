#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xmmintrin.h>

#include "rp.h"


const rp_value *rp_find(const rp_model *m, const char *name) {
    int lo = 0, hi = m->nvalues;
    while (lo < hi) {
        int mid = (lo + hi) / 2, c = strcmp(m->values[mid].name, name);
        if (c == 0) return &m->values[mid];
        if (c < 0) lo = mid + 1;
        else hi = mid;
    }
    return NULL;
}

/* ---- walking a program ---- */

typedef struct walk {
    rp_engine *g;
    const rp_program *program;
    char **args;
    rp_profile *profile;
} walk;

static int64_t load_index(const char *p, int bytes) {
    int32_t narrow;
    int64_t wide;
    if (bytes == 8) {
        memcpy(&wide, p, 8);
        return wide;
    }
    memcpy(&narrow, p, 4);
    return narrow;
}

/* The first false element of a check's predicate, -1 if it holds. */
static int64_t first_false(const rp_inst *i, char *const *args) {
    for (int64_t k = 0; k < i->tiles; k++)
        if (args[0][k] == 0) return k;
    return -1;
}

/* Where control goes after instruction pc, which is no launch, and no check that fails. */
static int64_t follow(const rp_inst *i, char *const *args, int64_t pc) {
    if (i->kind == RP_CHECK) return pc + 1;
    if (i->kind == RP_JUMP) return i->targets[0];
    if (i->kind == RP_BRANCH_IF_FALSE) return *args[0] ? pc + 1 : i->targets[0];
    int64_t at = load_index(args[0], i->index_bytes); /* RP_CASE */
    return i->targets[at < 0 || at >= i->ntargets ? i->ntargets - 1 : at];
}

rp_kernel *rp_function(const rp_engine *g, const rp_inst *i) { return i->foreign == 0 ? i->fn : g->foreign[i->foreign - 1]; }

static void walk_program(void *context, int worker, int workers) {
    const walk *w = context;
    unsigned callers = _mm_getcsr();
    _mm_setcsr(RP_STANDARD_ARITHMETIC);
    char *scratch = w->g->scratch.base + (int64_t)worker * RP_SCRATCH_BYTES;
    rp_profile *last = NULL, *profile = worker == 0 ? w->profile : NULL;
    int64_t mark = profile != NULL ? rp_now_ns() : 0;
    for (int64_t pc = 0; pc < w->program->ninsts;) {
        const rp_inst *i = &w->program->insts[pc];
        char *const *args = w->args + i->first;
        if (i->wait) {
            rp_pool_barrier(w->g->pool);
            if (profile != NULL) {
                int64_t now = rp_now_ns();
                if (last != NULL) last->wait_ns += now - mark; /* the wait is for the launch before it */
                mark = now;
            }
        }
        if (i->kind == RP_LAUNCH) {
            int64_t lo = worker * i->tiles / workers, hi = (worker + 1) * i->tiles / workers;
            if (lo < hi) {
                rp_function(w->g, i)(args, lo, hi, scratch);
                if (i->foreign != 0) _mm_setcsr(RP_STANDARD_ARITHMETIC); /* whatever it has set */
            }
            if (profile != NULL) {
                int64_t now = rp_now_ns();
                last = &profile[pc];
                last->calls++;
                last->run_ns += now - mark;
                mark = now;
            }
            pc++;
        } else {
            if (profile != NULL) profile[pc].calls++;
            int64_t wrong = i->kind == RP_CHECK ? first_false(i, args) : -1;
            if (wrong >= 0) { /* all workers see the same, and end here */
                if (worker == 0) {
                    w->g->failed = i;
                    w->g->failed_at = wrong;
                }
                break;
            }
            pc = follow(i, args, pc);
        }
    }
    _mm_setcsr(callers);
}

static void run_program(rp_engine *g, const rp_program *program, char **args, rp_profile *profile) {
    walk w = {g, program, args, profile};
    g->failed = NULL;
    rp_pool_run(g->pool, walk_program, &w);
}

static int failure(const rp_engine *g, rp_error *e) {
    const rp_inst *i = g->failed;
    if (i == NULL) return REPRISE_OK;
    return rp_fail(e, REPRISE_ASSERT, g->model->train ? "the model asserts this; the state may be half of this step's: go on from a checkpoint" : "the model asserts this", "layer %s: assertion failed: %s (element %lld of %lld is false)", i->layer, i->symbol,
                   (long long)g->failed_at, (long long)i->tiles);
}

static char **resolve(const rp_program *program, char *arena, const char *consts) {
    char **args = calloc((size_t)program->nargs + 1, sizeof *args);
    for (int64_t i = 0; args != NULL && i < program->nargs; i++) {
        int64_t a = program->args[i];
        args[i] = a >= 0 ? arena + a : (char *)(uintptr_t)(consts + ~a); /* kernels do not write constants */
    }
    return args;
}

/* ---- life ---- */

/* The first touch of a page costs as much as streaming through it several times: all of
 * them are touched once, by all workers, before the first step. */
static void touch(void *context, int worker, int workers) {
    rp_engine *g = context;
    int64_t page = sysconf(_SC_PAGESIZE), pages = g->own.bytes / page;
    int64_t lo = worker * pages / workers, hi = (worker + 1) * pages / workers;
    for (int64_t i = lo; i < hi; i++) *(volatile char *)(g->own.base + i * page) = 0;
}

int rp_engine_create(rp_engine *g, const rp_model *m, void *arena, int threads, rp_error *e) {
    int code;
    *g = (rp_engine){.model = m, .arena = arena, .pc = -1};
    if ((code = rp_cpu_check(m, e)) != REPRISE_OK) return code;
    if (threads == 0) threads = rp_cpu_count();
    if (threads < 1 || threads > RP_MAX_THREADS)
        return rp_fail(e, REPRISE_USAGE, NULL, "%d threads: want 1 to %d", threads, RP_MAX_THREADS);
    if ((uintptr_t)arena % 64 != 0) return rp_fail(e, REPRISE_USAGE, NULL, "the arena must start at a multiple of 64 bytes");
    if (m->loader != NULL) {
        if ((g->foreign = calloc((size_t)m->nforeign + 1, sizeof *g->foreign)) == NULL) return rp_fail(e, REPRISE_MEMORY, NULL, "no memory for %d foreign kernels", (int)m->nforeign);
        if ((code = m->loader->open(m, g->foreign, &g->libraries, e)) != REPRISE_OK) goto fail;
    }
    if ((code = rp_map(&g->scratch, (int64_t)threads * RP_SCRATCH_BYTES, 4096, false, e)) != REPRISE_OK) goto fail;
    if (arena == NULL) {
        /* Asked now, because later there is no error: the kernel kills a process that touches
         * more memory than there is. */
        int64_t available = rp_available_memory();
        if (available >= 0 && m->arena_bytes > available) {
            code = rp_fail(e, REPRISE_MEMORY, "compile it with a smaller --budget, or free memory", "the arena takes %lld bytes of memory, %lld are available", (long long)m->arena_bytes, (long long)available);
            goto fail;
        }
        if ((code = rp_map(&g->own, m->arena_bytes, 2 << 20, true, e)) != REPRISE_OK) goto fail;
        g->arena = g->own.base;
    }
    g->init_args = resolve(&m->init, g->arena, *m->consts);
    g->step_args = resolve(&m->step, g->arena, *m->consts);
    if (g->init_args == NULL || g->step_args == NULL) {
        code = rp_fail(e, REPRISE_MEMORY, NULL, "no memory for the argument table");
        goto fail;
    }
    if ((code = rp_pool_create(&g->pool, threads, e)) != REPRISE_OK) goto fail;
    if (arena == NULL) rp_pool_run(g->pool, touch, g);
    return REPRISE_OK;
fail:
    rp_engine_destroy(g);
    return code;
}

void rp_engine_destroy(rp_engine *g) {
    rp_pool_destroy(g->pool);
    free(g->init_args);
    free(g->step_args);
    free(g->profile);
    free(g->foreign);
    if (g->libraries != NULL) g->model->loader->close(g->libraries, g->model->nforeign);
    rp_unmap(&g->own);
    rp_unmap(&g->scratch);
    *g = (rp_engine){0};
}

/* Pages of the file that have been copied are given back at once: they would otherwise
 * count in the process's memory beside the arena that now holds the same bytes. */
static void copy_weights(rp_engine *g, const rp_value *v) {
    const int64_t chunk = 4 << 20, page = sysconf(_SC_PAGESIZE);
    const char *from = *g->model->weights + v->data;
    for (int64_t at = 0; at < v->bytes; at += chunk) {
        int64_t n = v->bytes - at < chunk ? v->bytes - at : chunk;
        memcpy(g->arena + v->offset + at, from + at, (size_t)n);
        uintptr_t lo = ((uintptr_t)(from + at) + (uintptr_t)page - 1) & ~(uintptr_t)(page - 1), hi = (uintptr_t)(from + at + n) & ~(uintptr_t)(page - 1);
        if (lo < hi) madvise((void *)lo, hi - lo, MADV_DONTNEED);
    }
}

static void write_key(rp_engine *g, uint32_t step) {
    for (int i = 0; i < g->model->nvalues; i++) {
        const rp_value *v = &g->model->values[i];
        char *p = g->arena + v->offset;
        uint32_t micro = 0;
        if (v->role == RP_KEY) {
            memcpy(p, &g->seed, 8);
            memcpy(p + 8, &step, 4);
            memcpy(p + 12, &micro, 4);
        } else if (v->role == RP_STEP) {
            memcpy(p, &g->step, 8);
        }
    }
}

int rp_engine_init(rp_engine *g, uint64_t seed, rp_error *e) {
    g->seed = seed;
    g->step = 0;
    for (int i = 0; i < g->model->nvalues; i++)
        if (g->model->values[i].data >= 0) copy_weights(g, &g->model->values[i]);
    write_key(g, RP_INIT_STEP);
    run_program(g, &g->model->init, g->init_args, NULL);
    return failure(g, e);
}

/* Bytes of the poison are all ones: NaN in every floating format, −1 or the maximum in
 * integers, so that a value read before it is written shows. */
enum { POISON = 0xff };

static bool covered_by_state(const rp_engine *g, int64_t at, int64_t *next) {
    *next = g->model->arena_bytes;
    for (int i = 0; i < g->model->nvalues; i++) {
        const rp_value *v = &g->model->values[i];
        if (!rp_is_state(v) || v->bytes == 0) continue;
        if (v->offset <= at && at < v->offset + v->bytes) {
            *next = v->offset + v->bytes;
            return true;
        }
        if (v->offset > at && v->offset < *next) *next = v->offset;
    }
    return false;
}

void rp_engine_begin(rp_engine *g) {
    if (g->poison) {
        for (int64_t at = 0, next; at < g->model->arena_bytes; at = next)
            if (!covered_by_state(g, at, &next)) memset(g->arena + at, POISON, (size_t)(next - at));
    }
    write_key(g, (uint32_t)g->step);
}

static void find_highest(rp_engine *g) {
    int64_t top = g->model->arena_bytes;
    while (top > g->highest && (uint8_t)g->arena[top - 1] == POISON) top--;
    for (int i = 0; i < g->model->nvalues; i++) {
        const rp_value *v = &g->model->values[i];
        if (v->offset + v->bytes > top) top = v->offset + v->bytes;
    }
    g->highest = top;
}

int rp_engine_run(rp_engine *g, rp_error *e) {
    run_program(g, &g->model->step, g->step_args, g->profile);
    if (g->failed != NULL) return failure(g, e);
    g->step++;
    if (g->poison) find_highest(g);
    return REPRISE_OK;
}

/* Launches run as one-instruction programs, so that nothing here costs a step that is run whole. */
int64_t rp_engine_next(rp_engine *g, rp_error *e) {
    const rp_program *p = &g->model->step;
    int64_t pc = g->pc;
    if (pc < 0) return -1;
    if (pc < p->ninsts) {
        const rp_inst *i = &p->insts[pc];
        rp_profile *profile = g->profile == NULL ? NULL : g->profile + pc;
        if (i->kind == RP_LAUNCH) {
            rp_program one = *p;
            one.insts = i;
            one.ninsts = 1;
            run_program(g, &one, g->step_args, profile);
            pc++;
        } else {
            if (profile != NULL) profile->calls++;
            if (i->kind == RP_CHECK && (g->failed_at = first_false(i, g->step_args + i->first)) >= 0) {
                g->failed = i;
                failure(g, e);
                g->pc = -1;
                return -2;
            }
            pc = follow(i, g->step_args + i->first, pc);
        }
    }
    if (pc >= p->ninsts) {
        pc = -1;
        g->step++;
    }
    return g->pc = pc;
}

int rp_engine_count(rp_engine *g, rp_error *e) {
    if (g->profile == NULL) g->profile = calloc((size_t)g->model->step.ninsts + 1, sizeof *g->profile);
    return g->profile != NULL ? REPRISE_OK : rp_fail(e, REPRISE_MEMORY, NULL, "no memory for the counters");
}

int64_t rp_op_count(const rp_engine *g, const rp_op *op) {
    return g->profile[op->entry].calls - (op->again >= 0 ? g->profile[op->again].calls : 0);
}

void rp_state_sha256(const rp_engine *g, char hex[65]) {
    rp_sha256 s;
    rp_sha256_start(&s);
    for (int i = 0; i < g->model->nvalues; i++) /* in the byte order of names */
        if (rp_is_state(&g->model->values[i])) rp_sha256_add(&s, g->arena + g->model->values[i].offset, (size_t)g->model->values[i].bytes);
    rp_sha256_end(&s, hex);
}
