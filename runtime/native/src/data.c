#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rp.h"

/* Op ids of the driver's own random draws. Those of models stay below. */
enum { RNG_ROWS = 0xDA7A0000, RNG_VALUES = 0xDA7A0001 };

void rp_philox(uint32_t out[4], uint64_t seed, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int i = 0; i < 10; i++) { /* Salmon et al., SC 2011 */
        uint64_t p = (uint64_t)0xD2511F53 * c0, q = (uint64_t)0xCD9E8D57 * c2;
        c0 = (uint32_t)(q >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)q;
        c3 = (uint32_t)p;
        k0 += 0x9E3779B9;
        k1 += 0xBB67AE85;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

enum { FROM_WINDOWS, FROM_ROWS, FROM_WHOLE, FROM_SEED };

typedef struct source {
    const rp_value *v;
    int how;
    const rp_file *file;
    const rp_array *array; /* of rows, or the stream */
    int64_t rows;          /* samples in a step */
    int64_t row_elements;  /* of one sample in the input */
} source;

struct rp_feeder {
    const rp_model *model;
    int64_t window; /* T: the last axis of the tokens, 0 without them */
    int64_t tokens;
    source *sources;
    int nsources;
    rp_file *files;
    int nfiles;
    rp_array bytes; /* a plain file as one array of u8 */
    char *row;      /* one sample as it is in the file */
};

static int64_t elements(const rp_value *v) {
    int64_t n = 1;
    for (int i = 0; i < v->rank; i++) n *= v->shape[i];
    return n;
}

static bool is_window(const rp_value *v) { return v->feed == RP_FEED_TOKENS || v->feed == RP_FEED_TARGETS; }

static const char *list_inputs(const rp_model *m, char *buf, size_t size) {
    char type[256];
    size_t n = (size_t)snprintf(buf, size, "the model's inputs are");
    const char *comma = "";
    for (int i = 0; i < m->nvalues && n < size; i++) {
        const rp_value *v = &m->values[i];
        if (v->role != RP_INPUT) continue;
        n += (size_t)snprintf(buf + n, size - n, "%s %s %s", comma, v->name, rp_type_string(type, sizeof type, v->dtype, v->rank, v->shape));
        comma = ",";
    }
    return buf;
}

/* The stream of a file that feeds tokens: the bytes of a plain file, or the array itself
 * where it has one axis of integers. */
static bool is_stream(const rp_array *a) { return a != NULL && a->rank == 1 && rp_is_int(a->dtype) && a->dtype != RP_BOOL; }

static int bind_windows(rp_feeder *f, source *s, const rp_file *file, const rp_array *stream, rp_error *e) {
    s->how = FROM_WINDOWS;
    s->file = file;
    s->array = stream;
    int64_t n = elements(s->v);
    if (f->window < 1 || n % f->window != 0)
        return rp_fail(e, REPRISE_DATA, NULL, "input \"%s\" is not made of windows of %lld tokens", s->v->name, (long long)f->window);
    s->row_elements = f->window;
    s->rows = n / f->window;
    if (stream->count < f->window + 1) {
        int64_t size = rp_dtype_size(stream->dtype);
        return rp_fail(e, REPRISE_DATA, NULL, "%s is too short: a window of %lld tokens and its successor needs %lld bytes, it has %lld", file->path, (long long)f->window, (long long)((f->window + 1) * size), (long long)(stream->count * size));
    }
    return REPRISE_OK;
}

static int bind_array(source *s, const rp_file *file, const rp_array *a, bool whole, rp_error *e) {
    const rp_value *v = s->v;
    char got[256], want[256], hint[512];
    rp_type_string(got, sizeof got, a->dtype, a->rank, a->shape);
    rp_type_string(want, sizeof want, v->dtype, v->rank, v->shape);
    s->file = file;
    s->array = a;
    if (!rp_convertible(v->dtype, a->dtype)) return rp_fail(e, REPRISE_DATA, NULL, "%s has %s for input \"%s\", which is %s", file->path, got, v->name, want);
    int axes = whole ? 0 : v->batch_axes;
    if (axes == 0) {
        s->how = FROM_WHOLE;
        s->rows = 1;
        s->row_elements = elements(v);
        bool scalar = v->rank == 0 && a->count == 1;
        if (!scalar && !rp_shape_equal(v->rank, v->shape, a->rank, a->shape)) return rp_fail(e, REPRISE_DATA, NULL, "%s has %s for input \"%s\", which is %s", file->path, got, v->name, want);
        return REPRISE_OK;
    }
    s->how = FROM_ROWS;
    s->rows = 1;
    for (int i = 0; i < axes; i++) s->rows *= v->shape[i];
    s->row_elements = s->rows == 0 ? 0 : elements(v) / s->rows;
    if (a->rank != v->rank - axes + 1 || !rp_shape_equal(v->rank - axes, v->shape + axes, a->rank - 1, a->shape + 1)) {
        size_t n = (size_t)snprintf(hint, sizeof hint, "it takes an array of any number of rows N, [N");
        for (int i = axes; i < v->rank && n < sizeof hint; i++) n += (size_t)snprintf(hint + n, sizeof hint - n, ",%lld", (long long)v->shape[i]);
        if (n < sizeof hint) snprintf(hint + n, sizeof hint - n, "]");
        return rp_fail(e, REPRISE_DATA, hint, "%s has %s for input \"%s\", which is %s", file->path, got, v->name, want);
    }
    if (a->shape[0] < 1) return rp_fail(e, REPRISE_DATA, NULL, "%s is too short: input \"%s\" needs at least one row", file->path, v->name);
    return REPRISE_OK;
}

/* Finds where one input comes from when there is a data file. */
static int bind_data(rp_feeder *f, source *s, const rp_file *file, int inputs, rp_error *e) {
    const rp_value *v = s->v;
    char hint[512];
    const rp_array *a = file->kind == RP_FILE_BYTES ? &f->bytes : file->kind == RP_FILE_NPY ? &file->arrays[0] : rp_file_array(file, v->name);
    if (is_window(v)) {
        if (is_stream(a)) return bind_windows(f, s, file, a, e);
        for (int i = 0; a == NULL && i < f->model->nvalues; i++) { /* one stream gives both tokens and targets */
            const rp_value *other = &f->model->values[i];
            if (other->role == RP_INPUT && is_window(other) && is_stream(rp_file_array(file, other->name))) return bind_windows(f, s, file, rp_file_array(file, other->name), e);
        }
    }
    if (v->feed == RP_FEED_ZEROS && (a == NULL || file->kind == RP_FILE_BYTES || (file->kind == RP_FILE_NPY && inputs > 1))) return s->how = FROM_SEED, REPRISE_OK;
    if (a == NULL) return rp_fail(e, REPRISE_DATA, list_inputs(f->model, hint, sizeof hint), "%s has no array \"%s\"", file->path, v->name);
    if (file->kind == RP_FILE_BYTES)
        return rp_fail(e, REPRISE_DATA, list_inputs(f->model, hint, sizeof hint), "%s is plain bytes, which cannot feed input \"%s\"; give a .npz or .safetensors file with an array of that name", file->path, v->name);
    if (file->kind == RP_FILE_NPY && inputs > 1)
        return rp_fail(e, REPRISE_DATA, list_inputs(f->model, hint, sizeof hint), "%s is one array, the model has %d inputs; give a .npz or .safetensors file with arrays of their names", file->path, inputs);
    return bind_array(s, file, a, false, e);
}

static int bind_all(rp_feeder *f, const char *data, int n, const char *const *names, const char *const *paths, rp_error *e) {
    const rp_model *m = f->model;
    char hint[512];
    int inputs = 0, r;
    for (int i = 0; i < m->nvalues; i++) {
        const rp_value *v = &m->values[i];
        if (v->role != RP_INPUT) continue;
        inputs++;
        if (v->feed == RP_FEED_TOKENS && v->rank > 0) {
            f->window = v->shape[v->rank - 1];
            f->tokens += elements(v);
        }
    }
    for (int i = 0; i < m->nvalues && f->window == 0; i++) /* targets alone */
        if (m->values[i].role == RP_INPUT && is_window(&m->values[i]) && m->values[i].rank > 0) f->window = m->values[i].shape[m->values[i].rank - 1];
    for (int i = 0; i < n; i++) {
        const rp_value *v = rp_find(m, names[i]);
        if (v == NULL || v->role != RP_INPUT) return rp_fail(e, REPRISE_USAGE, list_inputs(m, hint, sizeof hint), "no input is named \"%s\"", names[i]);
    }
    const rp_file *file = NULL;
    if (data != NULL) {
        if ((r = rp_file_open(&f->files[f->nfiles], data, REPRISE_DATA, e)) != REPRISE_OK) return r;
        file = &f->files[f->nfiles++];
        f->bytes = (rp_array){.dtype = RP_U8, .rank = 1, .shape = {file->stat.st_size}, .count = file->stat.st_size, .bytes = file->stat.st_size};
    }
    for (int i = 0; i < m->nvalues; i++) {
        const rp_value *v = &m->values[i];
        if (v->role != RP_INPUT) continue;
        source *s = &f->sources[f->nsources++];
        *s = (source){.v = v, .how = FROM_SEED};
        int given = -1;
        for (int k = 0; k < n; k++)
            if (strcmp(names[k], v->name) == 0) given = k;
        if (given >= 0) {
            if ((r = rp_file_open(&f->files[f->nfiles], paths[given], REPRISE_DATA, e)) != REPRISE_OK) return r;
            const rp_file *own = &f->files[f->nfiles++];
            if (own->kind == RP_FILE_BYTES) return rp_fail(e, REPRISE_DATA, "save it with numpy.save", "%s is not an .npy file", own->path);
            const rp_array *a = own->kind == RP_FILE_NPY ? &own->arrays[0] : rp_file_array(own, v->name);
            if (a == NULL) return rp_fail(e, REPRISE_DATA, NULL, "%s has no array \"%s\"", own->path, v->name);
            if ((r = bind_array(s, own, a, true, e)) != REPRISE_OK) return r;
        } else if (file != NULL) {
            if ((r = bind_data(f, s, file, inputs, e)) != REPRISE_OK) return r;
        } else if (v->feed == RP_FEED_NONE) {
            return rp_fail(e, REPRISE_DATA, list_inputs(m, hint, sizeof hint), "input \"%s\" needs data: give %s", v->name, m->train ? "--data FILE with an array of that name" : "--input NAME=FILE.npy");
        }
    }
    int64_t rows = -1, bytes = 0;
    for (int i = 0; i < f->nsources; i++) {
        const source *s = &f->sources[i];
        if (s->array == NULL) continue;
        if (s->how == FROM_ROWS && rows >= 0 && rows != s->array->shape[0])
            return rp_fail(e, REPRISE_DATA, NULL, "%s has %lld rows for input \"%s\" and %lld for another", s->file->path, (long long)s->array->shape[0], s->v->name, (long long)rows);
        if (s->how == FROM_ROWS) rows = s->array->shape[0];
        int64_t need = s->row_elements * rp_dtype_size(s->array->dtype);
        if (need > bytes) bytes = need;
    }
    if ((f->row = malloc((size_t)bytes + 1)) == NULL) return rp_fail(e, REPRISE_MEMORY, NULL, "no memory for a row of data");
    return REPRISE_OK;
}

int rp_feeder_create(rp_feeder **out, const rp_model *m, const char *data, int n, const char *const *names, const char *const *paths, rp_error *e) {
    rp_feeder *f = calloc(1, sizeof *f);
    if (f != NULL) {
        f->model = m;
        f->sources = calloc((size_t)m->nvalues + 1, sizeof *f->sources);
        f->files = calloc((size_t)m->nvalues + 2, sizeof *f->files);
    }
    if (f == NULL || f->sources == NULL || f->files == NULL) {
        rp_feeder_destroy(f);
        return rp_fail(e, REPRISE_MEMORY, NULL, "no memory");
    }
    int r = bind_all(f, data, n, names, paths, e);
    if (r != REPRISE_OK) rp_feeder_destroy(f);
    else *out = f;
    return r;
}

void rp_feeder_destroy(rp_feeder *f) {
    if (f == NULL) return;
    for (int i = 0; i < f->nfiles; i++) rp_file_close(&f->files[i]);
    free(f->sources);
    free(f->files);
    free(f->row);
    free(f);
}

int64_t rp_feeder_tokens(const rp_feeder *f) { return f->tokens; }

/* Where sample row of a step is taken: in 0 … n−1, a function of seed, step and row only.
 * All inputs of a step draw the same number, so that rows belong together. */
static int64_t draw(uint64_t seed, int64_t step, int64_t row, int64_t n) {
    uint32_t w[4];
    rp_philox(w, seed, (uint32_t)row, RNG_ROWS, (uint32_t)step, 0);
    unsigned __int128 x = ((uint64_t)w[1] << 32 | w[0]) * (unsigned __int128)n;
    return (int64_t)(x >> 64);
}

static int fill_sample(const rp_feeder *f, const source *s, char *to, int64_t at, rp_error *e) {
    const rp_value *v = s->v;
    int64_t size = rp_dtype_size(s->array->dtype), width = rp_dtype_size(v->dtype);
    int r = rp_file_read(s->file, f->row, s->row_elements * size, s->array->offset + at * size, e);
    if (r != REPRISE_OK) return r;
    int64_t bad = rp_convert(v->dtype, to, s->array->dtype, f->row, s->row_elements);
    bool bounded = v->feed_k > 0 && rp_is_int(v->dtype);
    for (int64_t i = 0; bounded && i < bad; i++) {
        int64_t x = rp_load_int(v->dtype, to + i * width);
        if (x < 0 || x >= v->feed_k) bad = i;
    }
    if (bad == s->row_elements) return REPRISE_OK;
    long long x = rp_load_int(s->array->dtype, f->row + bad * size);
    if (bounded) return rp_fail(e, REPRISE_DATA, NULL, "%s: element %lld, for input \"%s\", is %lld; it must lie in 0 … %lld", s->file->path, (long long)(at + bad), v->name, x, (long long)v->feed_k - 1);
    return rp_fail(e, REPRISE_DATA, NULL, "%s: element %lld, for input \"%s\", is %lld, which %s cannot hold", s->file->path, (long long)(at + bad), v->name, x, rp_dtype_name(v->dtype));
}

/* A sequence that can be learned: seven times in eight the next token is 5x + 7 mod k. */
static void fill_chain(const source *s, char *to, int64_t row, int64_t window, uint64_t seed, int64_t step) {
    int64_t k = s->v->feed_k > 0 ? s->v->feed_k : 256, size = rp_dtype_size(s->v->dtype), x = 0;
    int shift = s->v->feed == RP_FEED_TARGETS;
    for (int64_t t = 0; t < window + shift; t++) {
        uint32_t w[4];
        rp_philox(w, seed, (uint32_t)t, RNG_VALUES, (uint32_t)step, (uint32_t)row);
        x = t == 0 || w[0] % 8 == 0 ? (int64_t)((uint64_t)w[1] * (uint64_t)k >> 32) : (5 * x + 7) % k;
        if (t < shift) continue;
        rp_store_int(s->v->dtype, to + (t - shift) * size, x);
    }
}

/* Sums of twelve 16-bit numbers stand in for normal ones: exact, so the same with every libm. */
static double normal(uint64_t seed, int64_t i, int64_t step, uint32_t input) {
    int64_t sum = 0;
    for (uint32_t half = 0; half < 2; half++) {
        uint32_t w[4];
        rp_philox(w, seed, (uint32_t)i, RNG_VALUES, (uint32_t)step, 0x80000000u | input << 8 | half << 7 | (uint32_t)(i >> 32 & 127));
        for (int k = 0; k < 3; k++) sum += (w[k] & 0xffff) + (w[k] >> 16);
    }
    return ((double)sum - 12 * 32767.5) / 65536;
}

static void fill_synthetic(const rp_feeder *f, const source *s, char *to, uint64_t seed, int64_t step, uint32_t input) {
    const rp_value *v = s->v;
    int64_t n = elements(v), size = rp_dtype_size(v->dtype);
    if (v->feed == RP_FEED_ZEROS) {
        memset(to, 0, (size_t)v->bytes);
    } else if (is_window(v)) {
        if (f->window < 1) return;
        for (int64_t row = 0; row < n / f->window; row++) fill_chain(s, to + row * f->window * size, row, f->window, seed, step);
    } else {
        for (int64_t i = 0; i < n; i++) {
            if (v->feed == RP_FEED_NORMAL) {
                rp_store_float(v->dtype, to + i * size, normal(seed, i, step, input));
                continue;
            }
            uint32_t w[4];
            rp_philox(w, seed, (uint32_t)i, RNG_VALUES, (uint32_t)step, 0x80000000u | input << 8 | (uint32_t)(i >> 32 & 127));
            if (v->feed == RP_FEED_UNIFORM_INT) rp_store_int(v->dtype, to + i * size, (int64_t)((uint64_t)w[0] * (uint64_t)v->feed_k >> 32));
            else rp_store_float(v->dtype, to + i * size, (w[0] >> 8) * 0x1p-24);
        }
    }
}

int rp_feeder_fill(rp_feeder *f, char *arena, uint64_t seed, int64_t step, rp_error *e) {
    int r;
    for (int i = 0; i < f->nsources; i++) {
        const source *s = &f->sources[i];
        char *to = arena + s->v->offset;
        if (s->how == FROM_SEED) {
            fill_synthetic(f, s, to, seed, step, (uint32_t)i);
            continue;
        }
        int64_t row_bytes = s->row_elements * rp_dtype_size(s->v->dtype);
        for (int64_t row = 0; row < s->rows; row++) {
            int64_t at = 0;
            if (s->how == FROM_WINDOWS) at = draw(seed, step, row, s->array->count - f->window) + (s->v->feed == RP_FEED_TARGETS);
            if (s->how == FROM_ROWS) at = draw(seed, step, row, s->array->shape[0]) * s->row_elements;
            if ((r = fill_sample(f, s, to + row * row_bytes, at, e)) != REPRISE_OK) return r;
        }
    }
    for (int i = 0; i < f->nfiles; i++)
        if ((r = rp_file_unchanged(&f->files[i], e)) != REPRISE_OK) return r;
    return REPRISE_OK;
}
