/* The driver's internal interface.
 *
 * A compiled model is the driver plus generated tables (struct rp_model) plus
 * objects with kernels. Files: engine.c walks programs with a pool of threads
 * (pool.c) over one arena (arena.c); files.c reads array files, checkpoint.c
 * safetensors checkpoints, data.c fills inputs; main.c is the executable's command
 * line and lib.c the shared library's interface. No file but main.c knows which of
 * the two it is part of, and none has mutable globals.
 */
#ifndef RP_H
#define RP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "reprise.h"

#define RP_SCRATCH_BYTES (1 << 20) /* private to each worker, 64-byte aligned */
#define RP_INIT_STEP 0xFFFFFFFFu   /* step in the key that Init sees */
#define RP_MAX_RANK 16
#define RP_MAX_THREADS 1024

/* ---- the generated tables ---- */

enum { RP_PARAM, RP_OPT, RP_BUFFER, RP_INPUT, RP_OUTPUT, RP_KEY, RP_STEP };

/* In the order of package dtype. */
enum { RP_INVALID, RP_BOOL, RP_I8, RP_I16, RP_I32, RP_I64, RP_U8, RP_U16, RP_U32, RP_U64, RP_F16, RP_BF16, RP_F32, RP_F64, RP_KEYTYPE };

enum { RP_FEED_NONE, RP_FEED_TOKENS, RP_FEED_TARGETS, RP_FEED_NORMAL, RP_FEED_UNIFORM, RP_FEED_UNIFORM_INT, RP_FEED_ZEROS };

enum { RP_LAUNCH, RP_JUMP, RP_BRANCH_IF_FALSE, RP_CASE, RP_CHECK };

typedef void rp_kernel(char *const *args, int64_t lo, int64_t hi, char *scratch);

typedef struct rp_value {
    const char *name, *layer;
    uint8_t role, dtype, rank, batch_axes, feed;
    int64_t feed_k; /* vocabulary or upper bound, 0: none given */
    const int64_t *shape;
    int64_t offset, bytes;
    int64_t data; /* offset of initial bytes in the weights, -1: none */
} rp_value;

static inline bool rp_is_state(const rp_value *v) { return v->role <= RP_BUFFER; }

/* To nearest, denormals kept, no traps: the arithmetic of a model must not depend on what a
 * caller of the library has set for its own (and its threads inherit). */
enum { RP_STANDARD_ARITHMETIC = 0x1f80 };

typedef struct rp_inst {
    uint8_t kind, wait, index_bytes;
    int32_t nargs;
    int64_t first;   /* index of the first argument (or of the predicate) in rp_program.args */
    int64_t tiles;   /* launch; check: elements of the predicate */
    rp_kernel *fn;   /* launch */
    const char *symbol, *layer; /* check: symbol is what is wrong where it does not hold */
    const int32_t *targets;
    int32_t ntargets;
    int32_t foreign; /* launch: 0, or one more than the index in rp_model.foreign, and fn is NULL */
} rp_inst;

/* A function of another library. */
typedef struct rp_foreign {
    const char *library, *symbol, *layer;
} rp_foreign;

/* One run of an op of the plan: op is its number there, sub that among the ops of its regions (0:
 * itself), clone which recomputation (0: the first). It runs as often as instruction entry, less as
 * often as instruction again (-1: none), which is a loop's way back to entry. */
typedef struct rp_op {
    const char *name, *layer;
    int32_t op, sub, clone, planned; /* planned: runs of op in a step, clones among them */
    int64_t entry, again;
} rp_op;

typedef struct rp_program {
    const rp_inst *insts;
    int64_t ninsts;
    const int64_t *args; /* ≥ 0: offset in the arena; < 0: ~offset in the constants */
    int64_t nargs;
} rp_program;

typedef struct rp_model rp_model;

/* What loads foreign functions: open fills functions, one for each of the model's, and makes handles,
 * which close takes. */
typedef struct rp_loader {
    int (*open)(const rp_model *m, rp_kernel **functions, void ***handles, reprise_error *e);
    void (*close)(void **handles, int n);
} rp_loader;

struct rp_model {
    const char *name, *target, *input_sha256;
    const char *const *features; /* NULL-terminated */
    bool train;
    int32_t loss; /* index in values, -1: none */
    const rp_value *values; /* in the byte order of their names */
    int32_t nvalues;
    rp_program init, step;
    const rp_op *ops; /* of step; by op, sub, clone */
    int32_t nops;
    int64_t arena_bytes, resident_bytes;
    const char *const *consts, *const *weights; /* pointers kept apart: the data may be out of 32-bit reach */
    const rp_foreign *foreign;
    int32_t nforeign;
    const rp_loader *loader;  /* NULL: there is nothing foreign */
    const char *library_dir;  /* where relative libraries may also be, or "" */
};

extern const rp_model rp_the_model;
extern const rp_loader rp_foreign_loader; /* foreign.c */
extern const char rp_description[]; /* JSON */

/* ---- errors (error.c) ---- */

typedef reprise_error rp_error;

/* Fills e (may be NULL) and returns code. */
int rp_fail(rp_error *e, int code, const char *hint, const char *format, ...) __attribute__((format(printf, 4, 5)));
const char *rp_code_name(int code);

/* ---- op print (print.c) ---- */

rp_kernel rp_print; /* args[0]: a reprise_call and a text behind it; on: the operands */

/* ---- element types (dtype.c) ---- */

int64_t rp_dtype_size(int dtype);
const char *rp_dtype_name(int dtype);
bool rp_is_float(int dtype);
bool rp_is_int(int dtype);
double rp_load_float(int dtype, const void *p);
void rp_store_float(int dtype, void *p, double x); /* one rounding, to nearest even */

int64_t rp_load_int(int dtype, const void *p); /* saturates at ±2^63 */
void rp_store_int(int dtype, void *p, int64_t x); /* x must fit */

/* Copies n elements, converting between integer types and bool (values must fit) or between
 * floating types (rounded). Returns the index of the first element that does not fit, or n. */
int64_t rp_convert(int to, void *dst, int from, const void *src, int64_t n);
bool rp_convertible(int to, int from);

/* "f32[2,3]" into buf. */
const char *rp_type_string(char *buf, size_t size, int dtype, int rank, const int64_t *shape);

/* ---- CPU (cpu.c) ---- */

bool rp_cpu_has(const char *feature);
int rp_cpu_check(const rp_model *m, rp_error *e);
int rp_cpu_count(void);

/* ---- memory (arena.c) ---- */

/* A private zeroed mapping between inaccessible pages; align a power of two ≥ 4096. */
typedef struct rp_mapping {
    char *base;
    int64_t bytes;
    void *whole;
    size_t whole_bytes;
} rp_mapping;

int rp_map(rp_mapping *m, int64_t bytes, int64_t align, bool huge, rp_error *e);
void rp_unmap(rp_mapping *m);
int64_t rp_resident(const rp_mapping *m); /* bytes of it in memory now */
int64_t rp_peak_rss(void);                /* of the process, bytes; −1: unknown */
int64_t rp_available_memory(void);        /* what the system could give, bytes; −1: unknown */

/* ---- threads (pool.c) ---- */

typedef struct rp_pool rp_pool;
typedef void rp_job(void *context, int worker, int workers);

int rp_pool_create(rp_pool **pool, int workers, rp_error *e);
void rp_pool_run(rp_pool *pool, rp_job *job, void *context); /* the caller is worker 0 */
void rp_pool_barrier(rp_pool *pool);                         /* all workers, inside a job */
int rp_pool_workers(const rp_pool *pool);
void rp_pool_destroy(rp_pool *pool);

/* ---- engine (engine.c) ---- */

typedef struct rp_profile {
    int64_t calls, run_ns, wait_ns;
} rp_profile;

typedef struct rp_engine {
    const rp_model *model;
    char *arena;
    rp_mapping own;     /* empty where the caller gave the arena */
    rp_mapping scratch; /* all workers' */
    rp_pool *pool;
    char **init_args, **step_args;
    rp_kernel **foreign; /* functions, by index in the model's table */
    void **libraries;
    uint64_t seed;
    int64_t step;        /* steps done */
    rp_profile *profile; /* per instruction of Step, or NULL */
    int64_t pc;          /* the next instruction of a step that is run one by one, -1: there is none */
    const rp_inst *failed; /* the check that ended the last program, or NULL */
    int64_t failed_at;     /* the first element that was false */
    bool poison;         /* overwrite everything but the state before each step */
    int64_t highest;     /* with poison: the end of the highest byte touched so far */
} rp_engine;

int rp_engine_create(rp_engine *g, const rp_model *m, void *arena, int threads, rp_error *e);
void rp_engine_destroy(rp_engine *g);
int rp_engine_init(rp_engine *g, uint64_t seed, rp_error *e);
void rp_engine_begin(rp_engine *g); /* before inputs are written: poison, key, step */
int rp_engine_run(rp_engine *g, rp_error *e); /* the step's program; counts the step unless an assertion fails */
int64_t rp_engine_next(rp_engine *g, rp_error *e);   /* instead of run, after pc = 0: one instruction; returns the index of the next, -1 after the last, -2 where an assertion fails */
int rp_engine_count(rp_engine *g, rp_error *e);      /* count executions from now on */
int64_t rp_op_count(const rp_engine *g, const rp_op *op); /* where they are counted */
rp_kernel *rp_function(const rp_engine *g, const rp_inst *i);
int rp_probe(rp_engine *g, bool init, int64_t pc, int threads, uint64_t seed, rp_error *e); /* probe.c */
const rp_value *rp_find(const rp_model *m, const char *name);
void rp_state_sha256(const rp_engine *g, char hex[65]);
int64_t rp_now_ns(void);

/* ---- SHA-256 (sha256.c) ---- */

typedef struct rp_sha256 {
    uint32_t h[8];
    void (*blocks)(uint32_t h[8], const uint8_t *p, size_t blocks);
    uint64_t bytes;
    uint8_t block[64];
} rp_sha256;

void rp_sha256_start(rp_sha256 *s);
void rp_sha256_add(rp_sha256 *s, const void *data, size_t bytes);
void rp_sha256_end(rp_sha256 *s, char hex[65]);

/* ---- JSON (json.c) ---- */

/* A pull reader over bytes in memory; every function returns false on malformed input. */
typedef struct rp_json {
    const char *p, *end;
    const char *wrong; /* what was wrong */
} rp_json;

bool rp_json_char(rp_json *j, char c);     /* skips space, wants c */
bool rp_json_try(rp_json *j, char c);      /* skips space, takes c if it is next */
char *rp_json_string(rp_json *j);          /* malloc'ed, without NUL inside; NULL on error */
bool rp_json_int(rp_json *j, int64_t *x);  /* non-negative integer */
void rp_json_print(const char *s);         /* to stdout as a JSON string */

/* ---- array files (files.c) ---- */

typedef struct rp_array {
    char *name; /* "" in a .npy file */
    int dtype, rank;
    int64_t shape[RP_MAX_RANK];
    int64_t count;         /* elements */
    int64_t offset, bytes; /* in the file */
} rp_array;

typedef struct rp_meta {
    char *key, *value;
} rp_meta;

enum { RP_FILE_BYTES, RP_FILE_NPY, RP_FILE_NPZ, RP_FILE_SAFETENSORS };

typedef struct rp_file {
    const char *path;
    int fd, kind;
    struct stat stat;
    rp_array *arrays;
    int narrays;
    rp_meta *meta;
    int nmeta;
} rp_file;

/* The kind is told by the name; code is that of errors (REPRISE_DATA, REPRISE_CHECKPOINT). */
int rp_file_open(rp_file *f, const char *path, int code, rp_error *e);
int rp_file_parse_safetensors(rp_file *f, int code, rp_error *e);
void rp_file_close(rp_file *f);
int rp_file_read(const rp_file *f, void *dst, int64_t bytes, int64_t offset, rp_error *e);
int rp_file_unchanged(const rp_file *f, rp_error *e);
const rp_array *rp_file_array(const rp_file *f, const char *name);
const char *rp_file_meta(const rp_file *f, const char *key);
bool rp_shape_equal(int rank, const int64_t *a, int rank_b, const int64_t *b);

/* Writes a file by temporary file, fsync and rename; fill writes the contents by rp_write_all. */
typedef int rp_fill(int fd, const void *context);
int rp_file_replace(const char *path, rp_fill *fill, const void *context, rp_error *e);
int rp_write_all(int fd, const void *data, size_t bytes); /* 0 or errno */
int rp_write_npy(const char *path, const rp_value *v, const void *data, rp_error *e);

/* ---- checkpoints (checkpoint.c) ---- */

/* Opens and compares without touching the arena. strict: a resumable checkpoint of this model
 * with all state; seed and step are set from it. Otherwise parameters by name, buffers if present. */
typedef struct rp_checkpoint {
    rp_file file;
    bool strict;
    uint64_t seed;
    int64_t step;
} rp_checkpoint;

int rp_checkpoint_open(rp_checkpoint *c, const rp_model *m, const char *path, bool strict, rp_error *e);
int rp_checkpoint_load(const rp_checkpoint *c, rp_engine *g, rp_error *e);
void rp_checkpoint_close(rp_checkpoint *c);
int rp_checkpoint_save(const rp_engine *g, const char *path, rp_error *e);

/* ---- inputs (data.c) ---- */

typedef struct rp_feeder rp_feeder;

/* data: path or NULL. named: n pairs of input name and file for inputs that are read whole. */
int rp_feeder_create(rp_feeder **f, const rp_model *m, const char *data, int n, const char *const *names, const char *const *paths, rp_error *e);
int rp_feeder_fill(rp_feeder *f, char *arena, uint64_t seed, int64_t step, rp_error *e);
int64_t rp_feeder_tokens(const rp_feeder *f); /* per step, 0 if none */
void rp_feeder_destroy(rp_feeder *f);

void rp_philox(uint32_t out[4], uint64_t seed, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3);

#endif
