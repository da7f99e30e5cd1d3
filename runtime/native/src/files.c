#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "rp.h"

/* ---- reading ---- */

static bool ends_with(const char *s, const char *suffix) {
    size_t n = strlen(s), k = strlen(suffix);
    return n >= k && strcmp(s + n - k, suffix) == 0;
}

static int changed(const rp_file *f, rp_error *e, int64_t now) {
    return rp_fail(e, REPRISE_CHANGED, "leave the file alone while the program runs, or give it a copy",
                   "%s changed while it was read: it had %lld bytes, now it has %lld", f->path, (long long)f->stat.st_size, (long long)now);
}

/* pread, not a mapping: a file that shrinks under a mapping kills the process, and pages of
 * a large file would count as memory of ours. */
int rp_file_read(const rp_file *f, void *dst, int64_t bytes, int64_t offset, rp_error *e) {
    while (bytes > 0) {
        ssize_t n = pread(f->fd, dst, (size_t)bytes, offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return rp_fail(e, REPRISE_IO, NULL, "cannot read %s: %s", f->path, strerror(errno));
        if (n == 0) {
            struct stat now = f->stat;
            fstat(f->fd, &now);
            return changed(f, e, now.st_size);
        }
        dst = (char *)dst + n;
        bytes -= n;
        offset += n;
    }
    return REPRISE_OK;
}

int rp_file_unchanged(const rp_file *f, rp_error *e) {
    struct stat now;
    if (fstat(f->fd, &now) != 0) return rp_fail(e, REPRISE_IO, NULL, "cannot stat %s: %s", f->path, strerror(errno));
    if (now.st_size == f->stat.st_size && now.st_mtim.tv_sec == f->stat.st_mtim.tv_sec && now.st_mtim.tv_nsec == f->stat.st_mtim.tv_nsec) return REPRISE_OK;
    return changed(f, e, now.st_size);
}

bool rp_shape_equal(int rank, const int64_t *a, int rank_b, const int64_t *b) {
    if (rank != rank_b) return false;
    for (int i = 0; i < rank; i++)
        if (a[i] != b[i]) return false;
    return true;
}

static rp_array *add_array(rp_file *f) {
    if ((f->narrays & (f->narrays - 1)) == 0) { /* grow at powers of two */
        rp_array *a = realloc(f->arrays, sizeof *a * (size_t)(f->narrays ? 2 * f->narrays : 1));
        if (a == NULL) return NULL;
        f->arrays = a;
    }
    rp_array *a = &f->arrays[f->narrays++];
    *a = (rp_array){0};
    return a;
}

static bool add_meta(rp_file *f, char *key, char *value) {
    rp_meta *m = realloc(f->meta, sizeof *m * (size_t)(f->nmeta + 1));
    if (m == NULL) return false;
    f->meta = m;
    m[f->nmeta++] = (rp_meta){key, value};
    return true;
}

const rp_array *rp_file_array(const rp_file *f, const char *name) {
    int lo = 0, hi = f->narrays;
    while (lo < hi) {
        int mid = (lo + hi) / 2, c = strcmp(f->arrays[mid].name, name);
        if (c == 0) return &f->arrays[mid];
        if (c < 0) lo = mid + 1;
        else hi = mid;
    }
    return NULL;
}

const char *rp_file_meta(const rp_file *f, const char *key) {
    for (int i = 0; i < f->nmeta; i++)
        if (strcmp(f->meta[i].key, key) == 0) return f->meta[i].value;
    return NULL;
}

void rp_file_close(rp_file *f) {
    for (int i = 0; i < f->narrays; i++) free(f->arrays[i].name);
    for (int i = 0; i < f->nmeta; i++) free(f->meta[i].key), free(f->meta[i].value);
    free(f->arrays);
    free(f->meta);
    if (f->fd >= 0) close(f->fd);
    *f = (rp_file){.fd = -1};
}

static int by_name(const void *a, const void *b) { return strcmp(((const rp_array *)a)->name, ((const rp_array *)b)->name); }
static int by_offset(const void *a, const void *b) {
    const rp_array *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes; /* empty ones first */
}

/* Sorts by name and refuses duplicates. */
static int finish(rp_file *f, int code, rp_error *e) {
    if (f->narrays > 1) qsort(f->arrays, (size_t)f->narrays, sizeof f->arrays[0], by_name);
    for (int i = 1; i < f->narrays; i++)
        if (strcmp(f->arrays[i - 1].name, f->arrays[i].name) == 0)
            return rp_fail(e, code, NULL, "%s is damaged: it has two arrays named \"%s\"", f->path, f->arrays[i].name);
    return REPRISE_OK;
}

static bool count_elements(rp_array *a) {
    int64_t n = 1;
    for (int i = 0; i < a->rank; i++)
        if (__builtin_mul_overflow(n, a->shape[i], &n)) return false;
    a->count = n;
    return !__builtin_mul_overflow(n, rp_dtype_size(a->dtype), &n) && (a->dtype == RP_INVALID || (a->bytes = n, true));
}

/* ---- .npy ---- */

/* The dtype of a numpy descr, RP_INVALID if there is none of ours. bf16 is what ml_dtypes
 * saves: two opaque bytes. */
static int npy_dtype(const char *descr) {
    static const struct {
        const char *descr;
        int dtype;
    } table[] = {
        {"b1", RP_BOOL}, {"i1", RP_I8}, {"i2", RP_I16}, {"i4", RP_I32}, {"i8", RP_I64}, {"u1", RP_U8}, {"u2", RP_U16},
        {"u4", RP_U32}, {"u8", RP_U64}, {"f2", RP_F16}, {"V2", RP_BF16}, {"f4", RP_F32}, {"f8", RP_F64},
    };
    if (*descr != '<' && *descr != '|' && *descr != '=') return RP_INVALID;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strcmp(table[i].descr, descr + 1) == 0) return table[i].dtype;
    return RP_INVALID;
}

/* The header is a Python dictionary in a fixed style: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), } */
static int parse_npy(rp_file *f, const char *name, int64_t offset, int64_t bytes, int code, rp_error *e) {
    unsigned char fixed[12];
    char header[65536], descr[32], what[512];
    if (*name) snprintf(what, sizeof what, "array \"%s\" of %s", name, f->path);
    else snprintf(what, sizeof what, "%s", f->path);
    if (bytes < 12) return rp_fail(e, code, NULL, "%s is cut short: %lld bytes", what, (long long)bytes);
    int r = rp_file_read(f, fixed, 12, offset, e);
    if (r != REPRISE_OK) return r;
    if (memcmp(fixed, "\x93NUMPY", 6) != 0) return rp_fail(e, code, NULL, "%s is not an .npy file", what);
    int64_t start = fixed[6] == 1 ? 10 : 12;
    int64_t length = fixed[6] == 1 ? fixed[8] | fixed[9] << 8 : (int64_t)((uint32_t)fixed[8] | (uint32_t)fixed[9] << 8 | (uint32_t)fixed[10] << 16 | (uint32_t)fixed[11] << 24);
    if (fixed[6] < 1 || fixed[6] > 3 || length >= (int64_t)sizeof header) return rp_fail(e, code, NULL, "%s has a malformed .npy header", what);
    if (start + length > bytes) return rp_fail(e, code, NULL, "%s is cut short: %lld bytes, its header alone takes %lld", what, (long long)bytes, (long long)(start + length));
    if ((r = rp_file_read(f, header, length, offset + start, e)) != REPRISE_OK) return r;
    header[length] = 0;

    rp_array *a = add_array(f);
    if (a == NULL || (a->name = strdup(name)) == NULL) return rp_fail(e, REPRISE_MEMORY, NULL, "no memory");
    const char *d = strstr(header, "'descr':"), *o = strstr(header, "'fortran_order':"), *s = strstr(header, "'shape':");
    if (d == NULL || o == NULL || s == NULL || (s = strchr(s, '(')) == NULL || sscanf(d + 8, " '%31[^']'", descr) != 1)
        return rp_fail(e, code, NULL, "%s has a malformed .npy header", what);
    a->dtype = npy_dtype(descr);
    if (a->dtype == RP_INVALID)
        return rp_fail(e, code, "save it as a little-endian bool, integer or floating array", "%s has element type %s, which is not supported", what, descr);
    for (s++;;) {
        while (*s == ' ' || *s == ',') s++;
        if (*s == ')') break;
        char *end;
        errno = 0;
        long long x = strtoll(s, &end, 10);
        if (end == s || errno != 0 || x < 0 || a->rank == RP_MAX_RANK) return rp_fail(e, code, NULL, "%s has a malformed shape", what);
        a->shape[a->rank++] = x;
        s = end;
        if (*s == 'L') s++;
    }
    for (o += 16; *o == ' '; o++) {}
    if (*o == 'T' && a->rank > 1) return rp_fail(e, code, "save numpy.ascontiguousarray(x)", "%s is in Fortran order", what);
    if (!count_elements(a)) return rp_fail(e, code, NULL, "%s has a malformed shape", what);
    a->offset = offset + start + length;
    if (bytes - start - length < a->bytes)
        return rp_fail(e, code, NULL, "%s is cut short: its data takes %lld bytes, %lld are there", what, (long long)a->bytes, (long long)(bytes - start - length));
    return REPRISE_OK;
}

/* ---- .npz: a zip archive with stored members ---- */

static uint64_t little(const unsigned char *p, int bytes) {
    uint64_t x = 0;
    for (int i = bytes - 1; i >= 0; i--) x = x << 8 | p[i];
    return x;
}

static int parse_npz(rp_file *f, int code, rp_error *e) {
    int64_t size = f->stat.st_size, tail = size < 65536 + 22 ? size : 65536 + 22, at = -1;
    int r = REPRISE_OK;
    unsigned char *t = malloc((size_t)tail + 1), *dir = NULL;
    if (t == NULL) return rp_fail(e, REPRISE_MEMORY, NULL, "no memory");
    if ((r = rp_file_read(f, t, tail, size - tail, e)) != REPRISE_OK) goto done;
    for (int64_t i = tail - 22; i >= 0 && at < 0; i--)
        if (memcmp(t + i, "PK\5\6", 4) == 0) at = i;
    if (at < 0) {
        r = rp_fail(e, code, NULL, "%s is not a complete .npz file: it has no zip directory", f->path);
        goto done;
    }
    uint64_t n = little(t + at + 10, 2), dir_bytes = little(t + at + 12, 4), dir_at = little(t + at + 16, 4);
    if (at >= 20 && memcmp(t + at - 20, "PK\6\7", 4) == 0) { /* zip64 */
        unsigned char end64[56];
        uint64_t end_at = little(t + at - 12, 8);
        if (end_at > (uint64_t)size || (uint64_t)size - end_at < 56) goto bad;
        if ((r = rp_file_read(f, end64, 56, (int64_t)end_at, e)) != REPRISE_OK) goto done;
        if (memcmp(end64, "PK\6\6", 4) != 0) goto bad;
        n = little(end64 + 32, 8), dir_bytes = little(end64 + 40, 8), dir_at = little(end64 + 48, 8);
    }
    if (dir_at > (uint64_t)size || dir_bytes > (uint64_t)size - dir_at || dir_bytes > 100 << 20) goto bad;
    if ((dir = malloc(dir_bytes + 1)) == NULL) {
        r = rp_fail(e, REPRISE_MEMORY, NULL, "no memory");
        goto done;
    }
    if ((r = rp_file_read(f, dir, (int64_t)dir_bytes, (int64_t)dir_at, e)) != REPRISE_OK) goto done;
    uint64_t p = 0;
    for (uint64_t i = 0; i < n; i++) {
        unsigned char local[30];
        if (dir_bytes - p < 46 || memcmp(dir + p, "PK\1\2", 4) != 0) goto bad;
        uint64_t flags = little(dir + p + 8, 2), method = little(dir + p + 10, 2), bytes = little(dir + p + 24, 4);
        uint64_t name_bytes = little(dir + p + 28, 2), extra = little(dir + p + 30, 2), comment = little(dir + p + 32, 2), head = little(dir + p + 42, 4);
        uint64_t packed = little(dir + p + 20, 4);
        if (dir_bytes - p - 46 < name_bytes + extra + comment) goto bad;
        char name[1024];
        if (name_bytes >= sizeof name) goto bad;
        memcpy(name, dir + p + 46, name_bytes);
        name[name_bytes] = 0;
        const unsigned char *x = dir + p + 46 + name_bytes, *x_end = x + extra;
        while (x_end - x >= 4) {
            uint64_t id = little(x, 2), len = little(x + 2, 2);
            x += 4;
            if ((uint64_t)(x_end - x) < len) goto bad;
            if (id == 1) { /* zip64: only the fields that did not fit, in this order */
                const unsigned char *q = x;
                if (bytes == UINT32_MAX && x + len - q >= 8) bytes = little(q, 8), q += 8;
                if (packed == UINT32_MAX && x + len - q >= 8) packed = little(q, 8), q += 8;
                if (head == UINT32_MAX && x + len - q >= 8) head = little(q, 8);
            }
            x += len;
        }
        p += 46 + name_bytes + extra + comment;
        if (!ends_with(name, ".npy")) continue;
        name[name_bytes - 4] = 0;
        if (method != 0 || (flags & 1) != 0 || packed != bytes) {
            r = rp_fail(e, code, "save it with numpy.savez, not savez_compressed", "array \"%s\" of %s is compressed", name, f->path);
            goto done;
        }
        if (head > (uint64_t)size || (uint64_t)size - head < 30) goto bad;
        if ((r = rp_file_read(f, local, 30, (int64_t)head, e)) != REPRISE_OK) goto done;
        uint64_t data = head + 30 + little(local + 26, 2) + little(local + 28, 2);
        if (memcmp(local, "PK\3\4", 4) != 0 || data > (uint64_t)size || bytes > (uint64_t)size - data) goto bad;
        if ((r = parse_npy(f, name, (int64_t)data, (int64_t)bytes, code, e)) != REPRISE_OK) goto done;
    }
    goto done;
bad:
    r = rp_fail(e, code, NULL, "%s is damaged: its zip directory is malformed", f->path);
done:
    free(t);
    free(dir);
    return r;
}

/* ---- .safetensors ---- */

static int safetensors_dtype(const char *s) {
    static const struct {
        const char *name;
        int dtype;
    } table[] = {
        {"BOOL", RP_BOOL}, {"I8", RP_I8}, {"I16", RP_I16}, {"I32", RP_I32}, {"I64", RP_I64}, {"U8", RP_U8}, {"U16", RP_U16},
        {"U32", RP_U32}, {"U64", RP_U64}, {"F16", RP_F16}, {"BF16", RP_BF16}, {"F32", RP_F32}, {"F64", RP_F64},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strcmp(table[i].name, s) == 0) return table[i].dtype;
    return RP_INVALID; /* F8_E4M3 and others: may be in the file, may not be used */
}

/* {"dtype":"F32","shape":[2,3],"data_offsets":[0,24]} in any order, each once. */
static bool parse_tensor(rp_json *j, rp_array *a) {
    bool dtype = false, shape = false, offsets = false;
    int64_t begin = 0, end = 0;
    if (!rp_json_char(j, '{')) return false;
    do {
        char *key = rp_json_string(j);
        bool ok = key != NULL && rp_json_char(j, ':');
        if (ok && strcmp(key, "dtype") == 0 && !dtype) {
            char *s = rp_json_string(j);
            ok = dtype = s != NULL;
            if (ok) a->dtype = safetensors_dtype(s);
            free(s);
        } else if (ok && strcmp(key, "shape") == 0 && !shape) {
            ok = shape = rp_json_char(j, '[');
            if (ok && !rp_json_try(j, ']')) {
                do {
                    if (a->rank == RP_MAX_RANK) j->wrong = "a tensor of more than 16 axes", ok = false;
                    ok = ok && rp_json_int(j, &a->shape[a->rank++]);
                } while (ok && rp_json_try(j, ','));
                ok = ok && rp_json_char(j, ']');
            }
        } else if (ok && strcmp(key, "data_offsets") == 0 && !offsets) {
            ok = offsets = rp_json_char(j, '[') && rp_json_int(j, &begin) && rp_json_char(j, ',') && rp_json_int(j, &end) && rp_json_char(j, ']');
        } else if (ok) {
            j->wrong = "an unknown or repeated field of a tensor";
            ok = false;
        }
        free(key);
        if (!ok) return false;
    } while (rp_json_try(j, ','));
    if (!rp_json_char(j, '}')) return false;
    if (!dtype || !shape || !offsets || begin > end) {
        j->wrong = "a tensor without dtype, shape or proper data_offsets";
        return false;
    }
    a->offset = begin;
    a->bytes = end - begin;
    int64_t want = a->bytes;
    if (!count_elements(a) || a->bytes != want) {
        j->wrong = "a tensor whose data_offsets do not fit its shape";
        return false;
    }
    return true;
}

static bool parse_metadata(rp_json *j, rp_file *f) {
    if (!rp_json_char(j, '{')) return false;
    if (rp_json_try(j, '}')) return true;
    do {
        char *key = rp_json_string(j), *value = NULL;
        bool ok = key != NULL && rp_json_char(j, ':') && (value = rp_json_string(j)) != NULL;
        if (ok && rp_file_meta(f, key) != NULL) j->wrong = "a repeated key in __metadata__", ok = false;
        if (!ok || !add_meta(f, key, value)) {
            free(key);
            free(value);
            return false;
        }
    } while (rp_json_try(j, ','));
    return rp_json_char(j, '}');
}

int rp_file_parse_safetensors(rp_file *f, int code, rp_error *e) {
    unsigned char fixed[8];
    int64_t size = f->stat.st_size;
    if (size < 8) return rp_fail(e, code, NULL, "%s is cut short: %lld bytes, a safetensors file has at least 8", f->path, (long long)size);
    int r = rp_file_read(f, fixed, 8, 0, e);
    if (r != REPRISE_OK) return r;
    uint64_t length = little(fixed, 8);
    if (length > 100 << 20) return rp_fail(e, code, NULL, "%s is not a safetensors file: its header would take %llu bytes", f->path, (unsigned long long)length);
    if ((int64_t)length > size - 8)
        return rp_fail(e, code, NULL, "%s is cut short: its header takes %llu bytes, %lld are there", f->path, (unsigned long long)length, (long long)(size - 8));
    char *header = malloc(length + 1);
    if (header == NULL) return rp_fail(e, REPRISE_MEMORY, NULL, "no memory");
    rp_json j = {header, header + length, NULL};
    if ((r = rp_file_read(f, header, (int64_t)length, 8, e)) != REPRISE_OK) goto done;
    bool metadata = false, ok = length > 0 && *header == '{' && rp_json_char(&j, '{');
    if (ok && !rp_json_try(&j, '}')) {
        do {
            char *name = rp_json_string(&j);
            ok = name != NULL && rp_json_char(&j, ':');
            if (ok && strcmp(name, "__metadata__") == 0) {
                free(name);
                if (metadata) j.wrong = "two __metadata__ entries", ok = false;
                metadata = true;
                ok = ok && parse_metadata(&j, f);
            } else if (ok) {
                rp_array *a = add_array(f);
                if (a == NULL) {
                    free(name);
                    r = rp_fail(e, REPRISE_MEMORY, NULL, "no memory");
                    goto done;
                }
                a->name = name;
                ok = parse_tensor(&j, a);
            } else {
                free(name);
            }
        } while (ok && rp_json_try(&j, ','));
        ok = ok && rp_json_char(&j, '}');
    }
    while (ok && j.p < j.end)
        if (*j.p++ != ' ') j.wrong = "bytes after the end of the header's object", ok = false;
    if (!ok) {
        r = rp_fail(e, code, NULL, "%s is damaged or not a safetensors file: header byte %lld: %s", f->path, (long long)(j.p - header), j.wrong != NULL ? j.wrong : "want '{'");
        goto done;
    }
    if (f->narrays > 1) qsort(f->arrays, (size_t)f->narrays, sizeof f->arrays[0], by_offset);
    int64_t at = 0;
    for (int i = 0; i < f->narrays; i++) {
        rp_array *a = &f->arrays[i];
        if (a->offset != at) {
            r = rp_fail(e, code, NULL, "%s is damaged: tensor \"%s\" starts at byte %lld of the data, where %lld is due (%s)", f->path, a->name, (long long)a->offset, (long long)at, a->offset < at ? "an overlap" : "a hole");
            goto done;
        }
        at += a->bytes;
        a->offset += 8 + (int64_t)length;
    }
    if (at != size - 8 - (int64_t)length) {
        r = rp_fail(e, code, NULL, "%s is %s: its tensors take %lld bytes, %lld are there", f->path, at > size - 8 - (int64_t)length ? "cut short" : "damaged", (long long)at, (long long)(size - 8 - (int64_t)length));
        goto done;
    }
    r = finish(f, code, e);
done:
    free(header);
    return r;
}

/* ---- open ---- */

int rp_file_open(rp_file *f, const char *path, int code, rp_error *e) {
    *f = (rp_file){.path = path, .fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)}; /* a FIFO must not hang us */
    if (f->fd < 0) return rp_fail(e, code, errno == ENOENT ? "look at the path: it is taken from the directory that the program runs in" : "see that it can be read: ls -l shows whose it is", "cannot open %s: %s", path, strerror(errno));
    int r = REPRISE_OK;
    if (fstat(f->fd, &f->stat) != 0) r = rp_fail(e, REPRISE_IO, NULL, "cannot stat %s: %s", path, strerror(errno));
    else if (!S_ISREG(f->stat.st_mode)) r = rp_fail(e, code, NULL, "%s is not a regular file", path);
    else if (ends_with(path, ".npy")) f->kind = RP_FILE_NPY, r = parse_npy(f, "", 0, f->stat.st_size, code, e);
    else if (ends_with(path, ".npz")) {
        f->kind = RP_FILE_NPZ;
        if ((r = parse_npz(f, code, e)) == REPRISE_OK) r = finish(f, code, e);
    } else if (ends_with(path, ".safetensors") || code == REPRISE_CHECKPOINT) f->kind = RP_FILE_SAFETENSORS, r = rp_file_parse_safetensors(f, code, e);
    if (r != REPRISE_OK) rp_file_close(f);
    return r;
}

/* ---- writing ---- */

int rp_write_all(int fd, const void *data, size_t bytes) {
    while (bytes > 0) {
        ssize_t n = write(fd, data, bytes < 1 << 24 ? bytes : 1 << 24);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return errno;
        data = (const char *)data + n;
        bytes -= (size_t)n;
    }
    return 0;
}

int rp_file_replace(const char *path, rp_fill *fill, const void *context, rp_error *e) {
    char temporary[PATH_MAX], dir[PATH_MAX];
    struct stat at;
    if (stat(path, &at) == 0 && !S_ISREG(at.st_mode)) { /* a pipe, a device: it is written to, not replaced */
        int fd = open(path, O_WRONLY | O_CLOEXEC);
        int error = fd < 0 ? errno : fill(fd, context);
        if (fd >= 0 && close(fd) != 0 && error == 0) error = errno;
        return error == 0 ? REPRISE_OK : rp_fail(e, REPRISE_IO, NULL, "cannot write %s: %s", path, strerror(error));
    }
    if ((size_t)snprintf(temporary, sizeof temporary, "%s.tmp.%ld", path, (long)getpid()) >= sizeof temporary)
        return rp_fail(e, REPRISE_IO, NULL, "cannot write %s: %s", path, strerror(ENAMETOOLONG));
    unlink(temporary); /* of a process that had this number and was killed */
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    int error = fd < 0 ? errno : fill(fd, context);
    if (fd >= 0) {
        if (error == 0 && fsync(fd) != 0) error = errno;
        if (close(fd) != 0 && error == 0) error = errno;
        if (error == 0 && rename(temporary, path) != 0) error = errno;
        if (error != 0) unlink(temporary);
    }
    if (error != 0) {
        bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
        return rp_fail(e, REPRISE_IO, full ? "free some space or write elsewhere" : NULL, "cannot write %s: %s; %s", path, strerror(error),
                       access(path, F_OK) == 0 ? "the old file is untouched" : "nothing was left behind");
    }
    snprintf(dir, sizeof dir, "%s", path);
    char *slash = strrchr(dir, '/');
    if (slash == NULL) strcpy(dir, ".");
    else slash[slash == dir] = 0;
    fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC); /* makes the rename last; not all file systems can */
    if (fd >= 0) fsync(fd), close(fd);
    return REPRISE_OK;
}

typedef struct npy {
    const rp_value *v;
    const void *data;
} npy;

static int fill_npy(int fd, const void *context) {
    static const char *const descr[] = {"", "|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<V2", "<f4", "<f8", "|V16"};
    const npy *n = context;
    char header[1024];
    int k = snprintf(header + 10, sizeof header - 10, "{'descr': '%s', 'fortran_order': False, 'shape': (", descr[n->v->dtype]);
    for (int i = 0; i < n->v->rank; i++)
        k += snprintf(header + 10 + k, sizeof header - 10 - (size_t)k, "%lld%s", (long long)n->v->shape[i], n->v->rank == 1 ? "," : i + 1 < n->v->rank ? ", " : "");
    k += snprintf(header + 10 + k, sizeof header - 10 - (size_t)k, "), }");
    while ((10 + k + 1) % 64 != 0) header[10 + k++] = ' ';
    header[10 + k++] = '\n';
    memcpy(header, "\x93NUMPY\1\0", 8);
    header[8] = (char)(k & 255);
    header[9] = (char)(k >> 8);
    int error = rp_write_all(fd, header, (size_t)(10 + k));
    return error != 0 ? error : rp_write_all(fd, n->data, (size_t)n->v->bytes);
}

int rp_write_npy(const char *path, const rp_value *v, const void *data, rp_error *e) {
    npy n = {v, data};
    return rp_file_replace(path, fill_npy, &n, e);
}
