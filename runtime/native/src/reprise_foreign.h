/* Interface of foreign kernels: C functions of a shared library that a model calls.
 *
 * A function runs tiles lo to hi-1 of a call. args[0] points to a reprise_call, args[1] on to the
 * operands and then to the results: dense row-major arrays that start at multiples of 64 bytes.
 * Operands are read only. scratch is 1 MiB of the worker's own, of undefined contents. An op that
 * declares one tile is run by one thread, as tile 0; tiles of one that declares more may run in any
 * order and at once, so they must not write to the same bytes. What the function gives may depend
 * on nothing but the operands, unless the op declares so (docs/foreign.md).
 */
#ifndef REPRISE_FOREIGN_H
#define REPRISE_FOREIGN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define REPRISE_FOREIGN_ABI 1

/* Element types. bool is one byte, 0 or 1; a key is {u64 seed, u32 step, u32 micro-batch}. */
enum {
    REPRISE_BOOL = 1, REPRISE_I8, REPRISE_I16, REPRISE_I32, REPRISE_I64, REPRISE_U8, REPRISE_U16, REPRISE_U32, REPRISE_U64,
    REPRISE_F16, REPRISE_BF16, REPRISE_F32, REPRISE_F64, REPRISE_KEY
};

typedef struct reprise_array {
    int32_t dtype, rank;
    int64_t bytes;
    int64_t shape[16]; /* 1 behind the rank */
} reprise_array;

typedef struct reprise_call {
    int32_t abi; /* REPRISE_FOREIGN_ABI */
    int32_t operands, results, reserved;
    int64_t tiles;
    char variant[40];       /* as the op declares it, or empty */
    reprise_array arrays[]; /* operands, then results */
} reprise_call;

typedef void reprise_foreign(char *const *args, int64_t lo, int64_t hi, char *scratch);

/* Elements of an array. */
static inline int64_t reprise_elements(const reprise_array *a) {
    int64_t n = 1;
    for (int32_t i = 0; i < a->rank; i++) n *= a->shape[i];
    return n;
}

#ifdef __cplusplus
}
#endif
#endif
