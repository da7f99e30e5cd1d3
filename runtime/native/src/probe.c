/* Runs single launches under schedules that a step would not choose: threads, cuts and order of tiles
 * are drawn from a seed, and so is what scratch memory holds before. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <xmmintrin.h>

#include "rp.h"

enum { MAX_PIECES = 4096 };

typedef struct piece {
    int64_t lo, hi;
} piece;

typedef struct probe {
    rp_kernel *fn;
    char *const *args;
    piece *pieces;
    int npieces;
    atomic_int next;
    uint64_t seed;
} probe;

typedef struct prober {
    probe *p;
    pthread_t thread;
    char *scratch;
    uint64_t state;
} prober;

/* splitmix64 */
static uint64_t roll(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static void *work(void *argument) {
    prober *w = argument;
    probe *p = w->p;
    unsigned callers = _mm_getcsr();
    _mm_setcsr(RP_STANDARD_ARITHMETIC);
    for (int i; (i = atomic_fetch_add(&p->next, 1)) < p->npieces;) {
        for (uint64_t n = roll(&w->state) % 4; n > 0; n--) sched_yield();
        p->fn(p->args, p->pieces[i].lo, p->pieces[i].hi, w->scratch);
        _mm_setcsr(RP_STANDARD_ARITHMETIC);
    }
    _mm_setcsr(callers);
    return NULL;
}

/* Cuts tiles 0 to tiles-1 at random places, single tiles among them, and shuffles the pieces. */
static int cut(piece *pieces, int64_t tiles, uint64_t *state) {
    int64_t least = (tiles + MAX_PIECES - 1) / MAX_PIECES;
    int64_t most = roll(state) % 2 == 0 ? least : least + tiles / 8;
    int n = 0;
    for (int64_t at = 0; at < tiles; n++) {
        int64_t left = tiles - at, size = least + (int64_t)(roll(state) % (uint64_t)(most - least + 1));
        pieces[n] = (piece){at, at + (size < left ? size : left)};
        at = pieces[n].hi;
    }
    for (int i = n - 1; i > 0; i--) {
        int k = (int)(roll(state) % (uint64_t)(i + 1));
        piece t = pieces[i];
        pieces[i] = pieces[k];
        pieces[k] = t;
    }
    return n;
}

int rp_probe(rp_engine *g, bool init, int64_t pc, int threads, uint64_t seed, rp_error *e) {
    const rp_program *program = init ? &g->model->init : &g->model->step;
    if (pc < 0 || pc >= program->ninsts || program->insts[pc].kind != RP_LAUNCH) return rp_fail(e, REPRISE_USAGE, NULL, "instruction %lld is no launch", (long long)pc);
    if (threads < 1 || threads > RP_MAX_THREADS) return rp_fail(e, REPRISE_USAGE, NULL, "%d threads: want 1 to %d", threads, RP_MAX_THREADS);
    const rp_inst *i = &program->insts[pc];
    rp_mapping scratch = {0};
    prober *w = calloc((size_t)threads, sizeof *w);
    probe p = {.fn = rp_function(g, i), .args = (init ? g->init_args : g->step_args) + i->first, .pieces = calloc(MAX_PIECES, sizeof(piece)), .seed = seed};
    int code = w == NULL || p.pieces == NULL ? rp_fail(e, REPRISE_MEMORY, NULL, "no memory for %d threads", threads) : rp_map(&scratch, (int64_t)threads * RP_SCRATCH_BYTES, 4096, false, e);
    if (code == REPRISE_OK) {
        p.npieces = cut(p.pieces, i->tiles, &seed);
        int started = 1;
        for (int t = 0; t < threads; t++) {
            w[t] = (prober){.p = &p, .scratch = scratch.base + (int64_t)t * RP_SCRATCH_BYTES, .state = roll(&seed)};
            if (w[t].state % 4 == 0) memset(w[t].scratch, (int)(w[t].state >> 8 & 0xff), RP_SCRATCH_BYTES); /* otherwise zeros */
        }
        for (; started < threads; started++)
            if (pthread_create(&w[started].thread, NULL, work, &w[started]) != 0) break; /* fewer threads are a schedule too */
        work(&w[0]);
        for (int t = 1; t < started; t++) pthread_join(w[t].thread, NULL);
    }
    rp_unmap(&scratch);
    free(p.pieces);
    free(w);
    return code;
}
