/* Runs the launches of one kernel over and over on the runtime's own pool of threads,
 * between launches the runtime's own barrier. */
#define _GNU_SOURCE
#include <time.h>

#include "rp.h"

typedef struct burst_launch {
    void (*fn)(char *const *args, int64_t lo, int64_t hi, char *scratch);
    char *const *args;
    int64_t tiles;
} burst_launch;

typedef struct burst {
    rp_pool *pool;
    const burst_launch *launches;
    int64_t nlaunches, times;
    char *scratch; /* RP_SCRATCH_BYTES for each worker */
} burst;

static void work(void *context, int worker, int workers) {
    const burst *b = context;
    char *scratch = b->scratch + (int64_t)worker * RP_SCRATCH_BYTES;
    for (int64_t t = 0; t < b->times; t++) {
        for (int64_t i = 0; i < b->nlaunches; i++) {
            const burst_launch *l = &b->launches[i];
            int64_t lo = worker * l->tiles / workers, hi = (worker + 1) * l->tiles / workers;
            if (lo < hi) l->fn(l->args, lo, hi, scratch);
            rp_pool_barrier(b->pool);
        }
    }
}

rp_pool *burst_pool(int64_t workers) {
    rp_pool *p = NULL;
    rp_error e;
    return rp_pool_create(&p, (int)workers, &e) == REPRISE_OK ? p : NULL;
}

void burst_free(rp_pool *p) { rp_pool_destroy(p); }

/* The nanoseconds of the burst; with one worker those that its thread computed, so that what
 * else runs on the machine does not count. */
int64_t burst_run(rp_pool *p, const burst_launch *launches, int64_t nlaunches, int64_t times, char *scratch) {
    burst b = {p, launches, nlaunches, times, scratch};
    clockid_t clock = rp_pool_workers(p) == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC;
    struct timespec t0, t1;
    clock_gettime(clock, &t0);
    rp_pool_run(p, work, &b);
    clock_gettime(clock, &t1);
    return (int64_t)(t1.tv_sec - t0.tv_sec) * 1000000000 + (t1.tv_nsec - t0.tv_nsec);
}
