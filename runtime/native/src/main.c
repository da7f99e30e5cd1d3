#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "rp.h"

/* The command line of a standalone executable. Exit status: 0; 1 the request can't be met;
 * 2 wrong usage; 130 and 143 after SIGINT and SIGTERM. */

#define MAX_INPUTS 1024

typedef struct options {
    const char *program;
    bool json, quiet, profile, counts, poison, describe, help;
    bool seed_given;
    uint64_t seed, steps, save_every, repeat, threads;
    const char *data, *init, *save, *resume, *output;
    int ninputs;
    const char *names[MAX_INPUTS], *paths[MAX_INPUTS];
} options;

static const rp_model *const model = &rp_the_model;

/* ---- messages ---- */

static int report(const options *o, const rp_error *e) {
    if (o->json) {
        printf("{\"error\":{\"code\":\"%s\",\"message\":", rp_code_name(e->code));
        rp_json_print(e->message);
        printf(",\"hint\":");
        rp_json_print(e->hint);
        printf("}}\n");
    } else {
        bool color = isatty(2) && getenv("NO_COLOR") == NULL;
        fprintf(stderr, "%s: %serror:%s %s\n", o->program, color ? "\033[1;31m" : "", color ? "\033[0m" : "", e->message);
        if (e->hint[0] != 0) fprintf(stderr, "  hint: %s\n", e->hint);
    }
    fflush(stdout);
    return e->code == REPRISE_USAGE ? 2 : 1;
}

static void print_types(const char *label, int role) {
    char type[256];
    const char *sep = label;
    for (int i = 0; i < model->nvalues; i++) {
        const rp_value *v = &model->values[i];
        if (v->role != role) continue;
        printf("%s%s %s", sep, v->name, rp_type_string(type, sizeof type, v->dtype, v->rank, v->shape));
        sep = ", ";
    }
    if (sep != label) printf("\n");
}

static void help(const options *o) {
    if (model->train)
        printf("%s trains %s, compiled by reprise for %s.\n\n"
               "usage: %s [--data FILE] [--steps N] [flags]\n\n"
               "  --data FILE       what to train on: bytes (a byte-level model), or .npy, .npz (stored), .safetensors\n"
               "                    with arrays named as the model's inputs; without it, data made from the seed\n"
               "  --steps N         steps to do in this run (default 100)\n"
               "  --seed N          of initialization, data order and dropout (default 0)\n"
               "  --init FILE       start from the parameters in a .safetensors file\n"
               "  --resume FILE     go on from a checkpoint, with its seed and step number\n"
               "  --save FILE       write a checkpoint at the end, also after SIGINT or SIGTERM\n"
               "  --save-every N    write it after every N steps too\n",
               o->program, model->name, model->target, o->program);
    else
        printf("%s runs %s, compiled by reprise for %s.\n\n"
               "usage: %s [--input NAME=FILE.npy]... [--output DIR] [flags]\n\n"
               "  --input NAME=FILE an input, .npy (or an array of that name in .npz, .safetensors); one that is not\n"
               "                    given is made from the seed\n"
               "  --output DIR      write each output to DIR/NAME.npy\n"
               "  --init FILE       take the parameters from a .safetensors file\n"
               "  --repeat N        run N times, for timing (default 1)\n"
               "  --seed N          of initialization, synthetic inputs and random ops (default 0)\n",
               o->program, model->name, model->target, o->program);
    printf("  --threads N       default: the CPUs it may run on, here %d; the result does not depend on it\n"
           "  --json            print JSON, one object a line\n"
           "  --quiet           print nothing but errors (and what --json asks for)\n"
           "  --profile         print where the time went, by layer and kernel\n"
           "  --counts          print how often each op of the plan ran, forward and recomputed\n"
           "  --poison          test: overwrite all memory but the state before each step\n"
           "  --describe        print the signature and the plan as JSON\n"
           "  --help\n\n",
           rp_cpu_count());
    print_types("inputs: ", RP_INPUT);
    print_types("outputs: ", RP_OUTPUT);
    printf("memory: %.1f MiB for the arena, promised and exact; up to 16 MiB beside it\n", (double)model->arena_bytes / (1 << 20));
}

/* ---- flags ---- */

static int usage(rp_error *e, const char *format, const char *what) {
    rp_fail(e, REPRISE_USAGE, "--help lists the flags", "%s", "");
    snprintf(e->message, sizeof e->message, format, what);
    return REPRISE_USAGE;
}

typedef struct flag {
    const char *name;
    bool *on;             /* a switch */
    const char **text;    /* or with a value */
    uint64_t *number, least;
} flag;

static int parse_flags(options *o, int argc, char **argv, rp_error *e) {
    const char *input = NULL;
    const flag common[] = {
        {"threads", .number = &o->threads, .least = 1},
        {"seed", .number = &o->seed},
        {"init", .text = &o->init},
        {"json", .on = &o->json},
        {"quiet", .on = &o->quiet},
        {"profile", .on = &o->profile},
        {"counts", .on = &o->counts},
        {"poison", .on = &o->poison},
        {"describe", .on = &o->describe},
        {"help", .on = &o->help},
        {0},
    };
    const flag train[] = {
        {"data", .text = &o->data},
        {"steps", .number = &o->steps},
        {"save", .text = &o->save},
        {"save-every", .number = &o->save_every, .least = 1},
        {"resume", .text = &o->resume},
        {0},
    };
    const flag infer[] = {
        {"input", .text = &input},
        {"output", .text = &o->output},
        {"repeat", .number = &o->repeat, .least = 1},
        {0},
    };
    const flag *tables[] = {common, model->train ? train : infer};
    for (int i = 1; i < argc; i++) /* so that the error for any other flag knows it */
        if (strcmp(argv[i], "--json") == 0) o->json = true;
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i], *value = NULL;
        const flag *f = NULL;
        if (strcmp(a, "-h") == 0) a = "--help";
        if (a[0] != '-' || a[1] != '-') return usage(e, "unexpected argument \"%s\"", a);
        const char *name = a + 2, *equals = strchr(name, '=');
        size_t n = equals != NULL ? (size_t)(equals - name) : strlen(name);
        for (int t = 0; t < 2 && f == NULL; t++)
            for (const flag *k = tables[t]; k->name != NULL && f == NULL; k++)
                if (strlen(k->name) == n && strncmp(k->name, name, n) == 0) f = k;
        if (f == NULL) return usage(e, "unknown flag %s", a);
        if (f->on != NULL) {
            if (equals != NULL) return usage(e, "flag --%s takes no value", f->name);
            *f->on = true;
            continue;
        }
        if (equals != NULL) value = equals + 1;
        else if (i + 1 < argc) value = argv[++i];
        if (value == NULL || *value == 0) return usage(e, "flag --%s needs a value", f->name);
        if (f->number != NULL) {
            char *end;
            errno = 0;
            *f->number = strtoull(value, &end, 10);
            if (errno != 0 || *end != 0 || *value < '0' || *value > '9' || *f->number < f->least) return usage(e, f->least ? "flag --%s wants a positive integer" : "flag --%s wants an integer", f->name);
            if (f->number == &o->seed) o->seed_given = true;
            continue;
        }
        *f->text = value;
        if (f->text == &input) {
            char *split = strchr(value, '=');
            if (split == NULL || split == value || split[1] == 0) return usage(e, "--input %s: want NAME=FILE.npy", value);
            if (o->ninputs == MAX_INPUTS) return usage(e, "too many --%s", "input");
            o->names[o->ninputs] = strndup(value, (size_t)(split - value));
            o->paths[o->ninputs++] = split + 1;
        }
    }
    if (o->help || o->describe) return REPRISE_OK;
    if (o->init != NULL && o->resume != NULL) return usage(e, "--init and --resume exclude each other%s", "");
    if (o->save_every != 0 && o->save == NULL) return usage(e, "--save-every needs --save%s", "");
    if (o->threads > RP_MAX_THREADS) return usage(e, "too many --%s", "threads");
    if (o->steps > UINT32_MAX) return usage(e, "too many --%s", "steps");
    return REPRISE_OK;
}

/* ---- shared by both kinds ---- */

static void print_memory(const rp_engine *g) {
    /* The arena's own part of the peak is what of it is resident: it never shrinks. The last
     * page's rest beyond the arena's end is not the arena's. */
    int64_t arena = rp_resident(&g->own), peak = rp_peak_rss();
    if (arena > model->arena_bytes) arena = model->arena_bytes;
    printf("\"promised_peak_bytes\":%" PRId64 ",\"arena_bytes\":%" PRId64 ",\"peak_rss_bytes\":%" PRId64 ",\"other_rss_bytes\":%" PRId64,
           model->arena_bytes, model->arena_bytes, peak, peak - arena);
    if (g->poison) printf(",\"highest_byte\":%" PRId64, g->highest);
}

typedef struct row {
    const char *symbol, *layer;
    rp_profile p;
} row;

static int by_time(const void *a, const void *b) {
    const row *x = a, *y = b;
    int64_t s = x->p.run_ns + x->p.wait_ns, t = y->p.run_ns + y->p.wait_ns;
    if (s != t) return s < t ? 1 : -1;
    int c = strcmp(x->symbol, y->symbol);
    return c != 0 ? c : strcmp(x->layer, y->layer);
}

static int by_kernel(const void *a, const void *b) {
    const row *x = a, *y = b;
    int c = strcmp(x->symbol, y->symbol);
    return c != 0 ? c : strcmp(x->layer, y->layer);
}

/* As worker 0 sees it: ms in the kernel, and waiting for the others after it. */
static void print_profile(const options *o, const rp_engine *g, int64_t steps) {
    int64_t n = 0;
    row *rows = calloc((size_t)model->step.ninsts + 1, sizeof *rows);
    if (rows == NULL || steps == 0) return free(rows);
    for (int64_t i = 0; i < model->step.ninsts; i++)
        if (model->step.insts[i].kind == RP_LAUNCH && g->profile[i].calls > 0) rows[n++] = (row){model->step.insts[i].symbol, model->step.insts[i].layer, g->profile[i]};
    qsort(rows, (size_t)n, sizeof *rows, by_kernel);
    int64_t k = 0;
    for (int64_t i = 0; i < n; i++) {
        if (k > 0 && by_kernel(&rows[k - 1], &rows[i]) == 0) {
            rows[k - 1].p.calls += rows[i].p.calls;
            rows[k - 1].p.run_ns += rows[i].p.run_ns;
            rows[k - 1].p.wait_ns += rows[i].p.wait_ns;
        } else {
            rows[k++] = rows[i];
        }
    }
    qsort(rows, (size_t)k, sizeof *rows, by_time);
    double per = 1e-6 / (double)steps, total = 0;
    for (int64_t i = 0; i < k; i++) total += (double)(rows[i].p.run_ns + rows[i].p.wait_ns) * per;
    if (o->json) printf("{\"profile\":[");
    else fprintf(stderr, "%10s %6s %10s %9s %8s  %-40s %s\n", "ms/step", "%", "run ms", "wait ms", "calls", "kernel", "layer");
    for (int64_t i = 0; i < k; i++) {
        double run = (double)rows[i].p.run_ns * per, wait = (double)rows[i].p.wait_ns * per, calls = (double)rows[i].p.calls / (double)steps;
        if (o->json) {
            printf("%s{\"kernel\":", i ? "," : "");
            rp_json_print(rows[i].symbol);
            printf(",\"layer\":");
            rp_json_print(rows[i].layer);
            printf(",\"run_ms\":%.6f,\"wait_ms\":%.6f,\"calls\":%g}", run, wait, calls);
        } else {
            fprintf(stderr, "%10.3f %6.2f %10.3f %9.3f %8g  %-40s %s\n", run + wait, total > 0 ? 100 * (run + wait) / total : 0, run, wait, calls, rows[i].symbol, rows[i].layer);
        }
    }
    if (o->json) printf("],\"ms_per_step\":%.6f}\n", total);
    else fprintf(stderr, "%10.3f  in all, per step, on worker 0\n", total);
    free(rows);
}

/* By op of the plan: how often it was to run in these steps, how often it ran, and how much of that was
 * recomputation. What stands in a region runs as often as its region does: the plan gives no number. */
static void print_counts(const options *o, const rp_engine *g, int64_t steps) {
    if (o->json) printf("{\"counts\":[");
    else fprintf(stderr, "%9s %9s %9s %9s  %s\n", "planned", "executed", "forward", "again", "op");
    for (int32_t i = 0, next; i < model->nops; i = next) {
        const rp_op *op = &model->ops[i];
        int64_t planned = steps * op->planned, forward = 0, again = 0;
        for (next = i; next < model->nops && model->ops[next].op == op->op && model->ops[next].sub == op->sub; next++)
            *(model->ops[next].clone == 0 ? &forward : &again) += rp_op_count(g, &model->ops[next]);
        if (o->json) {
            printf("%s{\"op\":%" PRId32 ",\"sub\":%" PRId32 ",\"name\":", i ? "," : "", op->op, op->sub);
            rp_json_print(op->name);
            printf(",\"layer\":");
            rp_json_print(op->layer);
            if (op->sub == 0) printf(",\"planned\":%" PRId64, planned);
            printf(",\"executed\":%" PRId64 ",\"forward\":%" PRId64 ",\"recomputed\":%" PRId64 "}", forward + again, forward, again);
        } else {
            char text[24] = "region";
            if (op->sub == 0) snprintf(text, sizeof text, "%" PRId64, planned);
            fprintf(stderr, "%9s %9" PRId64 " %9" PRId64 " %9" PRId64 "  %s\n", text, forward + again, forward, again, op->name);
        }
    }
    if (o->json) printf("]}\n");
}

static int start(const options *o, rp_engine *g, rp_error *e) {
    int r = rp_engine_create(g, model, NULL, (int)o->threads, e);
    if (r != REPRISE_OK) return r;
    g->poison = o->poison;
    return o->profile || o->counts ? rp_engine_count(g, e) : r;
}

/* ---- training ---- */

static int fill_nothing(int fd, const void *context) { return (void)fd, (void)context, 0; }

/* A --save that cannot work should fail now, not after hours of training. */
static int check_writable(const char *path, rp_error *e) {
    char probe[PATH_MAX];
    struct stat s;
    if (stat(path, &s) == 0 && S_ISDIR(s.st_mode)) return rp_fail(e, REPRISE_IO, NULL, "cannot write %s: %s", path, strerror(EISDIR));
    if ((size_t)snprintf(probe, sizeof probe, "%s.probe.%ld", path, (long)getpid()) >= sizeof probe) return rp_fail(e, REPRISE_IO, NULL, "cannot write %s: %s", path, strerror(ENAMETOOLONG));
    int r = rp_file_replace(probe, fill_nothing, NULL, e);
    if (r == REPRISE_OK) unlink(probe);
    else snprintf(e->message, sizeof e->message, "cannot write %s: its directory does not exist or may not be written", path);
    return r;
}

/* The loss as a number and as its bits in hex. */
static double loss_of(const rp_engine *g, char bits[17]) {
    const rp_value *v = &model->values[model->loss];
    const unsigned char *p = (const unsigned char *)g->arena + v->offset;
    int size = (int)rp_dtype_size(v->dtype);
    for (int i = 0; i < size; i++) snprintf(bits + 2 * i, 3, "%02x", p[size - 1 - i]);
    return rp_load_float(v->dtype, p);
}

static void print_loss(double loss) {
    if (isfinite(loss)) printf(model->values[model->loss].dtype == RP_F64 ? "%.17g" : "%.9g", loss);
    else printf("null"); /* JSON has no other number for it; loss_bits tells */
}

static int pending_signal(const sigset_t *signals) {
    const struct timespec now = {0};
    int s = sigtimedwait(signals, NULL, &now);
    return s == SIGINT || s == SIGTERM ? s : 0;
}

typedef struct run {
    rp_engine g;
    rp_feeder *feeder;
    rp_checkpoint from;
    bool has_from;
} run;

static int prepare(run *t, const options *o, rp_error *e) {
    int r;
    if ((r = rp_feeder_create(&t->feeder, model, o->data, o->ninputs, o->names, o->paths, e)) != REPRISE_OK) return r;
    const char *from = o->resume != NULL ? o->resume : o->init;
    if (from != NULL) {
        if ((r = rp_checkpoint_open(&t->from, model, from, o->resume != NULL, e)) != REPRISE_OK) return r;
        t->has_from = true;
        if (o->resume != NULL && o->seed_given && o->seed != t->from.seed)
            return rp_fail(e, REPRISE_CHECKPOINT, "leave --seed away: a resumed run keeps its seed", "%s was saved by a run with seed %" PRIu64 ", and --seed is %" PRIu64, o->resume, t->from.seed, o->seed);
        if (o->resume != NULL && (uint64_t)t->from.step + o->steps > UINT32_MAX) return rp_fail(e, REPRISE_USAGE, NULL, "step numbers end at 2^32 - 1");
    }
    if (o->save != NULL && (r = check_writable(o->save, e)) != REPRISE_OK) return r;
    if ((r = start(o, &t->g, e)) != REPRISE_OK) return r;
    if ((r = rp_engine_init(&t->g, o->seed, e)) != REPRISE_OK) return r;
    if (t->has_from) {
        r = rp_checkpoint_load(&t->from, &t->g, e);
        rp_checkpoint_close(&t->from);
        t->has_from = false;
    }
    return r;
}

static void end_run(run *t) {
    if (t->has_from) rp_checkpoint_close(&t->from);
    rp_feeder_destroy(t->feeder);
    rp_engine_destroy(&t->g);
}

static void print_step(const options *o, const run *t, double loss, const char *bits, double ms, int64_t left, bool progress) {
    double tokens = rp_feeder_tokens(t->feeder) > 0 ? (double)rp_feeder_tokens(t->feeder) / ms * 1e3 : 0;
    if (o->json) {
        printf("{\"step\":%" PRId64 ",\"loss\":", t->g.step);
        print_loss(loss);
        printf(",\"loss_bits\":\"%s\",\"ms\":%.3f", bits, ms);
        if (tokens > 0) printf(",\"tokens_per_s\":%.1f", tokens);
        printf("}\n");
        fflush(stdout);
    } else if (progress) {
        fprintf(stderr, "\r\033[Kstep %" PRId64 "  loss %.4f  %.0f ms", t->g.step, loss, ms);
        if (tokens > 0) fprintf(stderr, "  %.0f tokens/s", tokens);
        fprintf(stderr, "  %.0f s left", (double)left * ms * 1e-3);
    }
}

static int train(run *t, const options *o, int *signal, rp_error *e) {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals, NULL); /* taken between steps */
    int r = prepare(t, o, e);
    if (r != REPRISE_OK) return r;
    rp_engine *g = &t->g;
    bool progress = !o->json && !o->quiet && isatty(2);
    double first = NAN, last = NAN, total = 0;
    char bits[17] = "";
    uint64_t done = 0;
    *signal = pending_signal(&signals);
    while (done < o->steps && *signal == 0) {
        int64_t begin = rp_now_ns();
        rp_engine_begin(g);
        if ((r = rp_feeder_fill(t->feeder, g->arena, g->seed, g->step, e)) != REPRISE_OK) {
            /* What was learned so far need not be lost with the data. */
            size_t n = strlen(e->hint);
            if (o->save != NULL && done > 0 && rp_checkpoint_save(g, o->save, NULL) == REPRISE_OK)
                snprintf(e->hint + n, sizeof e->hint - n, "%s%s has the state after step %" PRId64, n > 0 ? "; " : "", o->save, g->step);
            break;
        }
        if ((r = rp_engine_run(g, e)) != REPRISE_OK) break;
        double ms = (double)(rp_now_ns() - begin) * 1e-6;
        total += ms;
        last = loss_of(g, bits);
        if (done++ == 0) first = last;
        print_step(o, t, last, bits, ms, (int64_t)(o->steps - done), progress);
        *signal = pending_signal(&signals);
        bool now = done == o->steps || *signal != 0 || (o->save_every != 0 && (uint64_t)g->step % o->save_every == 0);
        if (o->save != NULL && now && (r = rp_checkpoint_save(g, o->save, e)) != REPRISE_OK) break;
    }
    if (progress) fprintf(stderr, "\r\033[K");
    if (r != REPRISE_OK) return r;
    if (o->save != NULL && done == 0 && (r = rp_checkpoint_save(g, o->save, e)) != REPRISE_OK) return r;
    if (o->profile) print_profile(o, g, (int64_t)done);
    if (o->counts) print_counts(o, g, (int64_t)done);
    char hash[65];
    rp_state_sha256(g, hash);
    double tokens = total > 0 ? (double)rp_feeder_tokens(t->feeder) * (double)done / total * 1e3 : 0;
    if (o->json) {
        printf("{\"done\":true,\"steps\":%" PRIu64 ",\"step\":%" PRId64 ",\"seed\":%" PRIu64 ",\"loss\":", done, g->step, g->seed);
        print_loss(last);
        printf(",\"loss_bits\":\"%s\",\"state_sha256\":\"%s\",", bits, hash);
        print_memory(g);
        printf(",\"threads\":%d,\"ms\":%.3f", rp_pool_workers(g->pool), total);
        if (tokens > 0) printf(",\"tokens_per_s\":%.1f", tokens);
        if (*signal != 0) printf(",\"signal\":%d", *signal);
        printf("}\n");
    } else if (!o->quiet) {
        printf("%" PRIu64 " steps", done);
        if (done > 0) printf(", loss %.4f -> %.4f, %.1f ms a step", first, last, total / (double)done);
        if (tokens > 0) printf(", %.0f tokens/s", tokens);
        printf(", arena %.1f MiB\nstate %s after step %" PRId64 "\n", (double)model->arena_bytes / (1 << 20), hash, g->step);
        if (o->save != NULL) printf("saved %s\n", o->save);
    }
    return REPRISE_OK;
}

/* ---- inference ---- */

static void print_values(const rp_value *v, const char *data) {
    char type[256];
    int64_t size = rp_dtype_size(v->dtype), n = size > 0 ? v->bytes / size : 0;
    printf("%s %s", v->name, rp_type_string(type, sizeof type, v->dtype, v->rank, v->shape));
    for (int64_t i = 0; i < n && i < 8; i++) {
        if (rp_is_float(v->dtype)) printf(" %.6g", rp_load_float(v->dtype, data + i * size));
        else printf(" %" PRId64, rp_load_int(v->dtype, data + i * size));
    }
    printf("%s\n", n > 8 ? " ..." : "");
}

/* DIR/NAME.npy; a name's slashes would lead elsewhere. */
static void output_path(char *path, size_t size, const char *dir, const char *name) {
    size_t n = (size_t)snprintf(path, size, "%s/", dir);
    for (; *name != 0 && n + 5 < size; name++) path[n++] = *name == '/' ? '_' : *name;
    snprintf(path + n, size - n, ".npy");
}

/* Two outputs of one file are an error before anything runs. */
static int distinct_paths(const char *dir, rp_error *e) {
    char path[PATH_MAX], other[PATH_MAX];
    for (int i = 0; i < model->nvalues; i++) {
        if (model->values[i].role != RP_OUTPUT) continue;
        output_path(path, sizeof path, dir, model->values[i].name);
        for (int j = 0; j < i; j++) {
            if (model->values[j].role != RP_OUTPUT) continue;
            output_path(other, sizeof other, dir, model->values[j].name);
            if (strcmp(path, other) == 0)
                return rp_fail(e, REPRISE_IO, "give one of them another name in the model", "outputs \"%s\" and \"%s\" would both be written to %s", model->values[j].name, model->values[i].name, path);
        }
    }
    return REPRISE_OK;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int infer(run *t, const options *o, rp_error *e) {
    char path[PATH_MAX];
    if (o->output != NULL && distinct_paths(o->output, e) != REPRISE_OK) return e->code;
    if (o->output != NULL && mkdir(o->output, 0777) != 0 && errno != EEXIST) return rp_fail(e, REPRISE_IO, NULL, "cannot make directory %s: %s", o->output, strerror(errno));
    double *ms = o->repeat < SIZE_MAX / sizeof *ms ? calloc(o->repeat, sizeof *ms) : NULL;
    if (ms == NULL) return rp_fail(e, REPRISE_MEMORY, NULL, "no memory for %" PRIu64 " times", o->repeat);
    int r = prepare(t, o, e);
    rp_engine *g = &t->g;
    for (uint64_t i = 0; r == REPRISE_OK && i < o->repeat; i++) {
        g->step = 0; /* a repetition is the same step again */
        rp_engine_begin(g);
        if ((r = rp_feeder_fill(t->feeder, g->arena, g->seed, 0, e)) != REPRISE_OK) break;
        int64_t begin = rp_now_ns();
        if ((r = rp_engine_run(g, e)) != REPRISE_OK) break;
        ms[i] = (double)(rp_now_ns() - begin) * 1e-6;
    }
    for (int i = 0; r == REPRISE_OK && o->output != NULL && i < model->nvalues; i++) {
        const rp_value *v = &model->values[i];
        if (v->role != RP_OUTPUT) continue;
        output_path(path, sizeof path, o->output, v->name);
        r = rp_write_npy(path, v, g->arena + v->offset, e);
    }
    if (r != REPRISE_OK) {
        free(ms);
        return r;
    }
    if (o->profile) print_profile(o, g, (int64_t)o->repeat);
    if (o->counts) print_counts(o, g, (int64_t)o->repeat);
    qsort(ms, o->repeat, sizeof *ms, compare_doubles);
    if (o->json) {
        printf("{\"done\":true,\"repeat\":%" PRIu64 ",\"ms\":%.3f,\"ms_min\":%.3f,\"outputs\":[", o->repeat, ms[o->repeat / 2], ms[0]);
        const char *comma = "";
        for (int i = 0; i < model->nvalues; i++) {
            const rp_value *v = &model->values[i];
            if (v->role != RP_OUTPUT) continue;
            char hash[65];
            rp_sha256 s;
            rp_sha256_start(&s);
            rp_sha256_add(&s, g->arena + v->offset, (size_t)v->bytes);
            rp_sha256_end(&s, hash);
            printf("%s{\"name\":", comma);
            comma = ",";
            rp_json_print(v->name);
            printf(",\"dtype\":\"%s\",\"shape\":[", rp_dtype_name(v->dtype));
            for (int k = 0; k < v->rank; k++) printf("%s%" PRId64, k ? "," : "", v->shape[k]);
            printf("],\"sha256\":\"%s\"", hash);
            if (o->output != NULL) {
                output_path(path, sizeof path, o->output, v->name);
                printf(",\"file\":");
                rp_json_print(path);
            }
            putchar('}');
        }
        char hash[65];
        rp_state_sha256(g, hash);
        printf("],\"state_sha256\":\"%s\",\"threads\":%d,", hash, rp_pool_workers(g->pool));
        print_memory(g);
        printf("}\n");
    } else if (!o->quiet) {
        for (int i = 0; i < model->nvalues; i++)
            if (model->values[i].role == RP_OUTPUT) print_values(&model->values[i], g->arena + model->values[i].offset);
        printf("%.3f ms", ms[o->repeat / 2]);
        if (o->repeat > 1) printf(" (median of %" PRIu64 ", least %.3f)", o->repeat, ms[0]);
        printf(", arena %.1f MiB\n", (double)model->arena_bytes / (1 << 20));
    }
    free(ms);
    return REPRISE_OK;
}

int main(int argc, char **argv) {
    const char *slash = strrchr(argv[0] != NULL ? argv[0] : "model", '/');
    options o = {.program = slash != NULL ? slash + 1 : argv[0] != NULL ? argv[0] : "model", .steps = 100, .repeat = 1};
    rp_error e = {0};
    run t = {0};
    int signal = 0;
    if (parse_flags(&o, argc, argv, &e) != REPRISE_OK) return report(&o, &e);
    if (o.help) {
        help(&o);
        return fflush(stdout) != 0;
    }
    if (o.describe) {
        puts(rp_description);
        return fflush(stdout) != 0;
    }
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigaction(SIGXFSZ, &ignore, NULL); /* a file-size limit is an error of write like a full disk */
    int r = rp_cpu_check(model, &e);
    if (r == REPRISE_OK) r = model->train ? train(&t, &o, &signal, &e) : infer(&t, &o, &e);
    if (fflush(stdout) != 0 && r == REPRISE_OK) r = rp_fail(&e, REPRISE_IO, NULL, "cannot write to standard output: %s", strerror(errno));
    int status = r != REPRISE_OK ? report(&o, &e) : signal != 0 ? 128 + signal : 0;
    end_run(&t);
    for (int i = 0; i < o.ninputs; i++) free((char *)(uintptr_t)o.names[i]);
    return status;
}
