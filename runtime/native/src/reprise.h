/* C interface of a compiled model (shared library).
 *
 * One instance owns (or borrows) an arena and a pool of threads. Instances are
 * independent; one instance is used by one thread at a time. The library keeps no
 * mutable state outside its instances. Every call that can fail returns a code,
 * REPRISE_OK or one of the others, and says more in *error where that is not NULL.
 */
#ifndef REPRISE_H
#define REPRISE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define REPRISE_ABI 2

enum {
    REPRISE_OK = 0,
    REPRISE_USAGE = 1,      /* wrong argument: unknown name, wrong size, null pointer */
    REPRISE_CPU = 2,        /* this CPU lacks instructions that the model was compiled for */
    REPRISE_MEMORY = 3,     /* memory, threads or another system resource */
    REPRISE_DATA = 4,       /* data missing, too short, of the wrong type or shape */
    REPRISE_CHANGED = 5,    /* a data file changed while it was read */
    REPRISE_CHECKPOINT = 6, /* checkpoint damaged, cut short or of another model */
    REPRISE_IO = 7,         /* a file could not be read or written */
    REPRISE_FOREIGN = 8,    /* a foreign kernel's library or function is missing */
    REPRISE_ASSERT = 9      /* an assertion of the model does not hold */
};

typedef struct reprise_error {
    int code;
    char message[1024];
    char hint[512]; /* a way out, or empty */
} reprise_error;

typedef struct reprise_options {
    uint64_t seed;  /* of initialization and of random ops */
    int threads;    /* 0: the CPUs this process may run on */
} reprise_options;

typedef struct reprise_instance reprise_instance;

/* The signature as JSON: names, roles, element types, shapes, bytes, plan. */
const char *reprise_describe(void);

/* Bytes that reprise_create wants in the arena, its alignment being 64. */
int64_t reprise_arena_bytes(void);

/* Makes an instance, initializes its state and binds nothing. arena: memory of
 * reprise_arena_bytes() bytes that outlives the instance, or NULL to have one
 * mapped. options: NULL for seed 0 and all CPUs. */
int reprise_create(void *arena, const reprise_options *options, reprise_instance **instance, reprise_error *error);

/* Input: data is copied from here before every step. Output: copied to here after
 * every step. The memory is borrowed until it is bound again (NULL unbinds) or the
 * instance is destroyed. bytes must be the value's size. */
int reprise_bind(reprise_instance *instance, const char *name, void *data, int64_t bytes, reprise_error *error);

/* One step: inputs in, program, outputs out. Every input must be bound. REPRISE_ASSERT: the step ended
 * where an assertion did not hold, it is not counted, and what it has written of the state by then stays:
 * load or reset it. */
int reprise_step(reprise_instance *instance, reprise_error *error);

/* The same step, one instruction of the program at a time, for whoever wants to look at the arena in
 * between: step_next runs one on all threads, instruction 0 after step_begin, and returns the index of
 * the one that it will run next (those of "ops" in the signature), or -1 after the last, when outputs are
 * out and the step is counted, or -2 where an assertion did not hold, which *error then says. */
int reprise_step_begin(reprise_instance *instance, reprise_error *error);
int64_t reprise_step_next(reprise_instance *instance, reprise_error *error);

/* count: from now on the instance counts how often each op of the plan runs; it can't be undone.
 * counts: the numbers so far, in the order of "ops" in the signature, n being how many these are. */
int reprise_count(reprise_instance *instance, reprise_error *error);
int reprise_counts(const reprise_instance *instance, int64_t *counts, int64_t n, reprise_error *error);

/* Runs one launch of the program of init (1) or step (0) on the arena as it is, its tiles cut, ordered and
 * spread over threads by a seed: what it writes must not depend on that. */
int reprise_probe(reprise_instance *instance, int init, int64_t instruction, int threads, uint64_t seed, reprise_error *error);

/* Copies state (parameters, optimizer state, buffers) out or in, between steps;
 * read also serves outputs, right after a step. */
int reprise_read(reprise_instance *instance, const char *name, void *data, int64_t bytes, reprise_error *error);
int reprise_write(reprise_instance *instance, const char *name, const void *data, int64_t bytes, reprise_error *error);

/* Initializes the state anew; the step number becomes 0. */
int reprise_reset(reprise_instance *instance, uint64_t seed, reprise_error *error);

/* The number of steps done: part of what random ops and schedules depend on. */
int64_t reprise_get_step(const reprise_instance *instance);
int reprise_set_step(reprise_instance *instance, int64_t step, reprise_error *error);

/* Checkpoints (safetensors). load: strict = 1 wants a checkpoint of this model with all
 * its state and restores seed and step; strict = 0 takes parameters (and buffers, where
 * present) by name from any safetensors file. save: temporary file, then rename. */
int reprise_load(reprise_instance *instance, const char *path, int strict, reprise_error *error);
int reprise_save(reprise_instance *instance, const char *path, reprise_error *error);

/* SHA-256 of the state in the byte order of its names, as 64 hex digits and a 0. */
int reprise_state_sha256(reprise_instance *instance, char hex[65], reprise_error *error);

void reprise_destroy(reprise_instance *instance);

#ifdef __cplusplus
}
#endif
#endif
