#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rp.h"

#define FORMAT "reprise.checkpoint/1"


static bool is_wanted(const rp_value *v, bool strict) { return strict ? rp_is_state(v) : v->role == RP_PARAM || v->role == RP_BUFFER; }

static bool parse_u64(const char *s, uint64_t *x) {
    char *end;
    if (s == NULL || *s < '0' || *s > '9') return false;
    errno = 0;
    *x = strtoull(s, &end, 10);
    return errno == 0 && *end == 0;
}

static int compare(rp_checkpoint *c, const rp_model *m, rp_error *e) {
    const char *path = c->file.path;
    char want[256], got[256];
    const char *format = rp_file_meta(&c->file, "format");
    if (c->strict && (format == NULL || strcmp(format, FORMAT) != 0))
        return rp_fail(e, REPRISE_CHECKPOINT, "to start from its weights, use --init instead of --resume", "%s holds no training state: it was not written by --save", path);
    int state = 0;
    for (int i = 0; i < m->nvalues; i++) {
        const rp_value *v = &m->values[i];
        if (rp_is_state(v)) state++;
        if (!is_wanted(v, c->strict)) continue;
        const rp_array *a = rp_file_array(&c->file, v->name);
        rp_type_string(want, sizeof want, v->dtype, v->rank, v->shape);
        if (a == NULL) {
            if (!c->strict && v->role == RP_BUFFER) continue; /* weights from elsewhere have no counters of ours */
            return rp_fail(e, REPRISE_CHECKPOINT, NULL, "%s is a checkpoint of another model: it has no tensor \"%s\" %s", path, v->name, want);
        }
        if (a->dtype != v->dtype || !rp_shape_equal(a->rank, a->shape, v->rank, v->shape))
            return rp_fail(e, REPRISE_CHECKPOINT, NULL, "%s is a checkpoint of another model: tensor \"%s\" is %s there and %s here", path, v->name,
                           rp_type_string(got, sizeof got, a->dtype, a->rank, a->shape), want);
    }
    if (!c->strict) return REPRISE_OK;
    if (c->file.narrays != state)
        for (int i = 0; i < c->file.narrays; i++) {
            const rp_array *a = &c->file.arrays[i];
            const rp_value *v = rp_find(m, a->name);
            if (v == NULL || !rp_is_state(v))
                return rp_fail(e, REPRISE_CHECKPOINT, NULL, "%s is a checkpoint of another model: this one has no tensor \"%s\" %s", path, a->name, rp_type_string(got, sizeof got, a->dtype, a->rank, a->shape));
        }
    const char *hash = rp_file_meta(&c->file, "input_sha256");
    if (hash == NULL || strcmp(hash, m->input_sha256) != 0)
        return rp_fail(e, REPRISE_CHECKPOINT, "to start from its weights, use --init instead of --resume", "%s is a checkpoint of another model: that one's hash is %.16s, this one's %.16s", path, hash == NULL ? "missing" : hash, m->input_sha256);
    uint64_t step;
    if (!parse_u64(rp_file_meta(&c->file, "seed"), &c->seed) || !parse_u64(rp_file_meta(&c->file, "step"), &step) || step > UINT32_MAX)
        return rp_fail(e, REPRISE_CHECKPOINT, NULL, "%s is damaged: its seed or step number is missing or malformed", path);
    c->step = (int64_t)step;
    return REPRISE_OK;
}

int rp_checkpoint_open(rp_checkpoint *c, const rp_model *m, const char *path, bool strict, rp_error *e) {
    *c = (rp_checkpoint){.strict = strict};
    int r = rp_file_open(&c->file, path, REPRISE_CHECKPOINT, e);
    if (r != REPRISE_OK) return r;
    if ((r = compare(c, m, e)) != REPRISE_OK) rp_file_close(&c->file);
    return r;
}

int rp_checkpoint_load(const rp_checkpoint *c, rp_engine *g, rp_error *e) {
    for (int i = 0; i < g->model->nvalues; i++) {
        const rp_value *v = &g->model->values[i];
        const rp_array *a = is_wanted(v, c->strict) ? rp_file_array(&c->file, v->name) : NULL;
        if (a == NULL) continue;
        int r = rp_file_read(&c->file, g->arena + v->offset, v->bytes, a->offset, e);
        if (r != REPRISE_OK) return r;
    }
    if (c->strict) {
        g->seed = c->seed;
        g->step = c->step;
    }
    return rp_file_unchanged(&c->file, e);
}

void rp_checkpoint_close(rp_checkpoint *c) { rp_file_close(&c->file); }

/* ---- save ---- */

/* Text that is counted (fd < 0) or written, so that the header needs no memory. */
typedef struct text {
    int fd, error;
    int64_t total;
    size_t used;
    char buffer[4096];
} text;

static void flush(text *t) {
    if (t->fd >= 0 && t->error == 0) t->error = rp_write_all(t->fd, t->buffer, t->used);
    t->used = 0;
}

static void put(text *t, const char *s) {
    for (; *s != 0; s++) {
        if (t->used == sizeof t->buffer) flush(t);
        t->buffer[t->used++] = *s;
        t->total++;
    }
}

static void put_string(text *t, const char *s) {
    put(t, "\"");
    for (; *s != 0; s++) {
        char c[8];
        if (*s == '"' || *s == '\\') snprintf(c, sizeof c, "\\%c", *s);
        else if ((unsigned char)*s < 0x20) snprintf(c, sizeof c, "\\u%04x", *s);
        else snprintf(c, sizeof c, "%c", *s);
        put(t, c);
    }
    put(t, "\"");
}

/* Calls each on the state in the file's order: wider elements first, so that all are
 * aligned, then by name. */
typedef void visit(void *context, const rp_value *v);

static void each_state(const rp_model *m, visit *f, void *context) {
    for (int64_t size = 8; size >= 1; size /= 2)
        for (int i = 0; i < m->nvalues; i++)
            if (rp_is_state(&m->values[i]) && rp_dtype_size(m->values[i].dtype) == size) f(context, &m->values[i]);
}

typedef struct header {
    text t;
    int64_t offset;
} header;

static void put_tensor(void *context, const rp_value *v) {
    static const char *const names[] = {"", "BOOL", "I8", "I16", "I32", "I64", "U8", "U16", "U32", "U64", "F16", "BF16", "F32", "F64"};
    header *h = context;
    char s[96];
    put(&h->t, ",");
    put_string(&h->t, v->name);
    put(&h->t, ":{\"dtype\":\"");
    put(&h->t, names[v->dtype]);
    put(&h->t, "\",\"shape\":[");
    for (int i = 0; i < v->rank; i++) {
        snprintf(s, sizeof s, "%s%" PRId64, i ? "," : "", v->shape[i]);
        put(&h->t, s);
    }
    snprintf(s, sizeof s, "],\"data_offsets\":[%" PRId64 ",%" PRId64 "]}", h->offset, h->offset + v->bytes);
    put(&h->t, s);
    h->offset += v->bytes;
}

static int put_header(const rp_engine *g, int fd, int64_t *bytes) {
    char s[64];
    header h = {.t = {.fd = fd}};
    put(&h.t, "{\"__metadata__\":{\"format\":\"" FORMAT "\",\"input_sha256\":");
    put_string(&h.t, g->model->input_sha256);
    put(&h.t, ",\"model\":");
    put_string(&h.t, g->model->name);
    snprintf(s, sizeof s, ",\"seed\":\"%" PRIu64 "\",\"step\":\"%" PRId64 "\"}", g->seed, g->step);
    put(&h.t, s);
    each_state(g->model, put_tensor, &h);
    put(&h.t, "}");
    while (h.t.total % 8 != 0) put(&h.t, " ");
    flush(&h.t);
    *bytes = h.t.total;
    return h.t.error;
}

typedef struct saving {
    const rp_engine *g;
    int fd, error;
} saving;

static void put_data(void *context, const rp_value *v) {
    saving *s = context;
    if (s->error == 0) s->error = rp_write_all(s->fd, s->g->arena + v->offset, (size_t)v->bytes);
}

static int fill_checkpoint(int fd, const void *context) {
    saving s = {.g = context, .fd = fd};
    int64_t bytes;
    put_header(s.g, -1, &bytes);
    uint64_t length = (uint64_t)bytes;
    s.error = rp_write_all(fd, &length, 8);
    if (s.error == 0) s.error = put_header(s.g, fd, &bytes);
    each_state(s.g->model, put_data, &s);
    return s.error;
}

int rp_checkpoint_save(const rp_engine *g, const char *path, rp_error *e) { return rp_file_replace(path, fill_checkpoint, g, e); }
