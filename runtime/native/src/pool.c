#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "rp.h"

/* How long a worker spins before it parks. At most about what parking and being woken costs
 * (most where a halted virtual CPU must be started), so that waiting never costs more than
 * twice the better of the two. Each time in vain halves it: where others use the CPUs, the
 * one waited for may only run once the waiter has gone. Each success doubles it, and now and
 * then the most is tried again. */
enum { MAX_SPIN_NS = 50000, MIN_SPIN_NS = 2000, SPINS_PER_LOOK = 32, VAIN_BEFORE_RETRY = 32 };

struct rp_pool {
    _Alignas(64) atomic_uint arrived;
    _Alignas(64) atomic_uint generation; /* of the barrier; what sleepers wait on */
    atomic_uint sleepers;
    atomic_int spin_ns; /* these two are rough and need no order */
    atomic_uint vain;
    _Alignas(64) int workers;
    bool spin; /* every worker can have a CPU of its own */
    bool quit;
    rp_job *job;
    void *context;
    pthread_t *threads; /* workers 1 … */
    struct start {
        struct rp_pool *pool;
        int worker;
    } *starts;
};

/* Whether the barrier was over in time. */
static bool spin(rp_pool *p, unsigned generation) {
    int budget = atomic_load_explicit(&p->spin_ns, memory_order_relaxed);
    int64_t end = rp_now_ns() + budget;
    do {
        for (int i = 0; i < SPINS_PER_LOOK; i++) {
            if (atomic_load_explicit(&p->generation, memory_order_acquire) == generation) {
                __builtin_ia32_pause();
                continue;
            }
            if (budget < MAX_SPIN_NS) atomic_store_explicit(&p->spin_ns, 2 * budget, memory_order_relaxed);
            return true;
        }
    } while (rp_now_ns() < end);
    bool retry = atomic_fetch_add_explicit(&p->vain, 1, memory_order_relaxed) % VAIN_BEFORE_RETRY == VAIN_BEFORE_RETRY - 1;
    atomic_store_explicit(&p->spin_ns, retry ? MAX_SPIN_NS : budget / 2 > MIN_SPIN_NS ? budget / 2 : MIN_SPIN_NS, memory_order_relaxed);
    return false;
}

/* Lets go those who wait, all others having arrived. */
static void release(rp_pool *p) {
    atomic_store(&p->arrived, 0);
    atomic_fetch_add(&p->generation, 1);
    if (atomic_load(&p->sleepers) != 0)
        syscall(SYS_futex, &p->generation, FUTEX_WAKE_PRIVATE, p->workers, NULL, NULL, 0);
}

void rp_pool_barrier(rp_pool *p) {
    if (p->workers == 1) return;
    unsigned generation = atomic_load(&p->generation);
    if (atomic_fetch_add(&p->arrived, 1) + 1 == (unsigned)p->workers) {
        release(p);
        return;
    }
    if (p->spin && spin(p, generation)) return;
    /* A sleeper counts itself before the kernel compares the generation, and the last to
     * arrive reads the count after it has changed the generation: none sleeps through. */
    atomic_fetch_add(&p->sleepers, 1);
    while (atomic_load(&p->generation) == generation)
        syscall(SYS_futex, &p->generation, FUTEX_WAIT_PRIVATE, generation, NULL, NULL, 0);
    atomic_fetch_sub(&p->sleepers, 1);
}

static void *worker_main(void *argument) {
    struct start *s = argument;
    rp_pool *p = s->pool;
    for (;;) {
        rp_pool_barrier(p); /* released by rp_pool_run */
        if (p->quit) return NULL;
        p->job(p->context, s->worker, p->workers);
        rp_pool_barrier(p);
    }
}

void rp_pool_run(rp_pool *p, rp_job *job, void *context) {
    p->job = job;
    p->context = context;
    rp_pool_barrier(p);
    job(context, 0, p->workers);
    rp_pool_barrier(p);
}

int rp_pool_workers(const rp_pool *p) { return p->workers; }

/* Lets the started threads see quit and joins them; started counts worker 0. Where it is not
 * all of them, the barrier would never be full, so they are let go by hand. */
static void stop(rp_pool *p, int started) {
    p->quit = true;
    while (started < p->workers && atomic_load(&p->arrived) != (unsigned)started - 1) sched_yield();
    if (started < p->workers) release(p);
    else rp_pool_barrier(p);
    for (int i = 1; i < started; i++) pthread_join(p->threads[i], NULL);
    free(p->threads);
    free(p->starts);
    free(p);
}

int rp_pool_create(rp_pool **out, int workers, rp_error *e) {
    rp_pool *p = aligned_alloc(64, sizeof *p);
    if (p != NULL) {
        memset(p, 0, sizeof *p);
        p->threads = calloc((size_t)workers, sizeof *p->threads);
        p->starts = calloc((size_t)workers, sizeof *p->starts);
    }
    if (p == NULL || p->threads == NULL || p->starts == NULL) {
        if (p != NULL) free(p->threads), free(p->starts);
        free(p);
        return rp_fail(e, REPRISE_MEMORY, NULL, "no memory for %d threads", workers);
    }
    p->workers = workers;
    p->spin_ns = MAX_SPIN_NS;
    p->spin = workers <= rp_cpu_count();
    /* Signals belong to the thread that runs main. */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int error = 0, i;
    for (i = 1; i < workers; i++) {
        p->starts[i] = (struct start){p, i};
        error = pthread_create(&p->threads[i], NULL, worker_main, &p->starts[i]);
        if (error != 0) break;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (error != 0) {
        stop(p, i);
        return rp_fail(e, REPRISE_MEMORY, "use fewer --threads, or raise ulimit -u", "cannot start thread %d of %d: %s", i + 1, workers, strerror(error));
    }
    *out = p;
    return REPRISE_OK;
}

void rp_pool_destroy(rp_pool *p) {
    if (p != NULL) stop(p, p->workers);
}
