#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reprise_foreign.h"
#include "rp.h"

/* Op print: one line on standard error, written at once so that lines of several instances do not
 * mix. The interpreter writes the same line (ir/ops, printRow). */

enum { SHOWN = 8, TYPE = 256, NUMBER = 64 };

/* The fewest digits that give x back, as a float or a double, in the form of Go's %v. */
static int print_float(char *to, double x, bool wide) {
    if (x != x) return snprintf(to, NUMBER, " NaN");
    if (x - x != 0) return snprintf(to, NUMBER, x > 0 ? " +Inf" : " -Inf");
    char text[NUMBER];
    int digits = 1;
    for (;; digits++) {
        snprintf(text, sizeof text, "%.*e", digits - 1, x);
        if (digits == 17 || (wide ? strtod(text, NULL) == x : strtof(text, NULL) == (float)x)) break;
    }
    int exponent = atoi(strchr(text, 'e') + 1);
    if (exponent < -4 || exponent >= 6) return snprintf(to, NUMBER, " %s", text);
    return snprintf(to, NUMBER, " %.*f", digits - 1 > exponent ? digits - 1 - exponent : 0, x);
}

static int print_element(char *to, int dtype, const char *p) {
    if (rp_is_float(dtype)) return print_float(to, rp_load_float(dtype, p), dtype == RP_F64);
    if (dtype == RP_U64) {
        uint64_t u;
        memcpy(&u, p, sizeof u);
        return snprintf(to, NUMBER, " %llu", (unsigned long long)u);
    }
    if (dtype == RP_BOOL) return snprintf(to, NUMBER, " %d", *p);
    return snprintf(to, NUMBER, " %lld", (long long)rp_load_int(dtype, p));
}

void rp_print(char *const *args, int64_t lo, int64_t hi, char *scratch) {
    (void)lo, (void)hi;
    const reprise_call *call = (const void *)args[0];
    const char *text = (const char *)&call->arrays[call->operands + call->results];
    size_t room = RP_SCRATCH_BYTES, n = strlen(text);
    if (n > room / 2) n = room / 2;
    memcpy(scratch, text, n);
    for (int k = 0; k < call->operands && n + TYPE + SHOWN * NUMBER + 2 < room; k++) {
        const reprise_array *a = &call->arrays[k];
        int64_t size = rp_dtype_size(a->dtype), count = size > 0 ? a->bytes / size : 0;
        if (n > 0) scratch[n++] = ' ';
        char type[TYPE];
        n += (size_t)snprintf(scratch + n, TYPE, "%s", rp_type_string(type, sizeof type, a->dtype, a->rank, a->shape));
        for (int64_t i = 0; i < count && i < SHOWN && a->dtype != RP_KEYTYPE; i++) n += (size_t)print_element(scratch + n, a->dtype, args[1 + k] + i * size);
    }
    scratch[n++] = '\n';
    fwrite(scratch, 1, n, stderr);
}
