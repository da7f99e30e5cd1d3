#include <math.h>
#include <stdio.h>
#include <string.h>

#include "rp.h"

int64_t rp_dtype_size(int t) {
    switch (t) {
    case RP_BOOL: case RP_I8: case RP_U8: return 1;
    case RP_I16: case RP_U16: case RP_F16: case RP_BF16: return 2;
    case RP_I32: case RP_U32: case RP_F32: return 4;
    case RP_I64: case RP_U64: case RP_F64: return 8;
    case RP_KEYTYPE: return 16;
    }
    return 0;
}

const char *rp_dtype_name(int t) {
    switch (t) {
    case RP_BOOL: return "bool";
    case RP_I8: return "i8";
    case RP_I16: return "i16";
    case RP_I32: return "i32";
    case RP_I64: return "i64";
    case RP_U8: return "u8";
    case RP_U16: return "u16";
    case RP_U32: return "u32";
    case RP_U64: return "u64";
    case RP_F16: return "f16";
    case RP_BF16: return "bf16";
    case RP_F32: return "f32";
    case RP_F64: return "f64";
    case RP_KEYTYPE: return "key";
    }
    return "invalid";
}

bool rp_is_float(int t) { return t >= RP_F16 && t <= RP_F64; }
bool rp_is_int(int t) { return t >= RP_BOOL && t <= RP_U64; }

const char *rp_type_string(char *buf, size_t size, int dtype, int rank, const int64_t *shape) {
    size_t n = (size_t)snprintf(buf, size, "%s[", rp_dtype_name(dtype));
    for (int i = 0; i < rank && n < size; i++)
        n += (size_t)snprintf(buf + n, size - n, "%s%lld", i ? "," : "", (long long)shape[i]);
    if (n < size) snprintf(buf + n, size - n, "]");
    return buf;
}

double rp_load_float(int t, const void *p) {
    uint16_t h;
    uint32_t w;
    float f;
    double d;
    switch (t) {
    case RP_F64:
        memcpy(&d, p, 8);
        return d;
    case RP_F32:
        memcpy(&f, p, 4);
        return f;
    case RP_BF16:
        memcpy(&h, p, 2);
        w = (uint32_t)h << 16;
        memcpy(&f, &w, 4);
        return f;
    default:
        memcpy(&h, p, 2);
        d = h & 0x3ff;
        if ((h >> 10 & 31) == 31) d = d != 0 ? (double)NAN : (double)INFINITY;
        else if ((h >> 10 & 31) == 0) d = ldexp(d, -24);
        else d = ldexp(d + 1024, (h >> 10 & 31) - 25);
        return h >> 15 ? -d : d;
    }
}

/* The bits of x in a format of eb exponent and mb mantissa bits, rounded once to nearest even.
 * bf16 and f16 are not made by way of f32: that would round twice. */
static uint16_t narrow(double x, int eb, int mb) {
    int bias = (1 << (eb - 1)) - 1, e;
    uint16_t sign = signbit(x) ? 0x8000 : 0, inf = (uint16_t)(((1 << eb) - 1) << mb);
    if (isnan(x)) return (uint16_t)(sign | inf | (1 << (mb - 1)));
    x = fabs(x);
    if (isinf(x)) return sign | inf;
    if (x == 0) return sign;
    frexp(x, &e); /* x = m·2^e, m in [0.5, 1) */
    e -= 1;
    if (e < 1 - bias) e = 1 - bias; /* denormal: fixed spacing */
    double q = rint(ldexp(x, mb - e)); /* in units of the last place; the default mode is to nearest even */
    if (q >= ldexp(2, mb)) q /= 2, e++;
    if (e > bias) return sign | inf;
    if (q < ldexp(1, mb)) return (uint16_t)(sign | (uint16_t)q);
    return (uint16_t)(sign | ((e + bias) << mb) | ((uint16_t)q & ((1 << mb) - 1)));
}

void rp_store_float(int t, void *p, double x) {
    uint16_t h;
    float f;
    switch (t) {
    case RP_F64:
        memcpy(p, &x, 8);
        return;
    case RP_F32:
        f = (float)x;
        memcpy(p, &f, 4);
        return;
    case RP_BF16:
        h = narrow(x, 8, 7);
        memcpy(p, &h, 2);
        return;
    default:
        h = narrow(x, 5, 10);
        memcpy(p, &h, 2);
    }
}

/* An integer as sign and magnitude, which holds i64 and u64 alike. */
typedef struct wide {
    bool negative;
    uint64_t magnitude;
} wide;

static wide load_int(int t, const void *p) {
    int64_t s;
    int8_t i8;
    int16_t i16;
    int32_t i32;
    uint64_t u = 0;
    switch (t) {
    case RP_I8: memcpy(&i8, p, 1); s = i8; break;
    case RP_I16: memcpy(&i16, p, 2); s = i16; break;
    case RP_I32: memcpy(&i32, p, 4); s = i32; break;
    case RP_I64: memcpy(&s, p, 8); break;
    default:
        memcpy(&u, p, (size_t)rp_dtype_size(t)); /* little endian */
        return (wide){false, u};
    }
    return s < 0 ? (wide){true, -(uint64_t)s} : (wide){false, (uint64_t)s};
}

static bool store_int(int t, void *p, wide x) {
    int bits = (int)rp_dtype_size(t) * 8;
    uint64_t max;
    if (t == RP_BOOL) max = 1;
    else if (t >= RP_U8) max = UINT64_MAX >> (64 - bits);
    else max = (UINT64_C(1) << (bits - 1)) - (x.negative ? 0 : 1);
    if (x.magnitude > max || (x.negative && t >= RP_U8)) return false;
    if (t == RP_BOOL && x.negative) return false;
    uint64_t u = x.negative ? -x.magnitude : x.magnitude;
    memcpy(p, &u, (size_t)bits / 8);
    return true;
}

int64_t rp_load_int(int t, const void *p) {
    wide x = load_int(t, p);
    if (x.magnitude > INT64_MAX) return x.negative ? INT64_MIN : INT64_MAX;
    return x.negative ? -(int64_t)x.magnitude : (int64_t)x.magnitude;
}

void rp_store_int(int t, void *p, int64_t x) { store_int(t, p, (wide){x < 0, x < 0 ? -(uint64_t)x : (uint64_t)x}); }

bool rp_convertible(int to, int from) {
    return to == from || (rp_is_float(to) && rp_is_float(from)) || (rp_is_int(to) && rp_is_int(from));
}

int64_t rp_convert(int to, void *dst, int from, const void *src, int64_t n) {
    int64_t ds = rp_dtype_size(to), ss = rp_dtype_size(from);
    if (to == from && to != RP_BOOL) {
        memcpy(dst, src, (size_t)(n * ds));
        return n;
    }
    for (int64_t i = 0; i < n; i++) {
        char *d = (char *)dst + i * ds;
        const char *s = (const char *)src + i * ss;
        if (rp_is_float(to)) rp_store_float(to, d, rp_load_float(from, s));
        else if (!store_int(to, d, load_int(from, s))) return i;
    }
    return n;
}
