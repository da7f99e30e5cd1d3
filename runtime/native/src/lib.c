#include <stdlib.h>
#include <string.h>

#include "rp.h"

/* The interface of a shared library; what each function promises stands in reprise.h. */

#define EXPORT __attribute__((visibility("default")))

struct reprise_instance {
    rp_engine engine;
    void **bound; /* per value */
};

EXPORT const char *reprise_describe(void) { return rp_description; }

EXPORT int64_t reprise_arena_bytes(void) { return rp_the_model.arena_bytes; }

EXPORT int reprise_create(void *arena, const reprise_options *options, reprise_instance **instance, reprise_error *error) {
    const reprise_options defaults = {0};
    if (instance == NULL) return rp_fail(error, REPRISE_USAGE, NULL, "instance is NULL");
    if (options == NULL) options = &defaults;
    *instance = NULL;
    reprise_instance *i = calloc(1, sizeof *i);
    if (i != NULL) i->bound = calloc((size_t)rp_the_model.nvalues + 1, sizeof *i->bound);
    if (i == NULL || i->bound == NULL) {
        free(i);
        return rp_fail(error, REPRISE_MEMORY, NULL, "no memory for an instance");
    }
    int r = rp_engine_create(&i->engine, &rp_the_model, arena, options->threads, error);
    if (r != REPRISE_OK) {
        free(i->bound);
        free(i);
        return r;
    }
    if ((r = rp_engine_init(&i->engine, options->seed, error)) != REPRISE_OK) {
        reprise_destroy(i);
        return r;
    }
    *instance = i;
    return REPRISE_OK;
}

/* The value of that name and size, or NULL and an error. */
static const rp_value *find(const char *name, const void *data, int64_t bytes, reprise_error *error) {
    const rp_value *v = name == NULL ? NULL : rp_find(&rp_the_model, name);
    if (v == NULL) {
        rp_fail(error, REPRISE_USAGE, "reprise_describe() lists the names", "the model has no value \"%s\"", name == NULL ? "" : name);
        return NULL;
    }
    if (bytes != v->bytes && data != NULL) {
        char type[256];
        rp_fail(error, REPRISE_USAGE, NULL, "\"%s\" is %s and takes %lld bytes, not %lld", name, rp_type_string(type, sizeof type, v->dtype, v->rank, v->shape), (long long)v->bytes, (long long)bytes);
        return NULL;
    }
    return v;
}

EXPORT int reprise_bind(reprise_instance *i, const char *name, void *data, int64_t bytes, reprise_error *error) {
    const rp_value *v = find(name, data, bytes, error);
    if (v == NULL) return REPRISE_USAGE;
    if (v->role != RP_INPUT && v->role != RP_OUTPUT) return rp_fail(error, REPRISE_USAGE, "use reprise_read and reprise_write for state", "\"%s\" is neither an input nor an output", name);
    i->bound[v - rp_the_model.values] = data;
    return REPRISE_OK;
}

/* What comes before a step's program. */
static int begin(reprise_instance *i, reprise_error *error) {
    const rp_model *m = &rp_the_model;
    for (int k = 0; k < m->nvalues; k++)
        if (m->values[k].role == RP_INPUT && i->bound[k] == NULL && m->values[k].bytes > 0)
            return rp_fail(error, REPRISE_USAGE, "bind it with reprise_bind", "input \"%s\" is not bound", m->values[k].name);
    if (i->engine.step >= UINT32_MAX) return rp_fail(error, REPRISE_USAGE, NULL, "step numbers end at 2^32 - 1");
    rp_engine_begin(&i->engine);
    for (int k = 0; k < m->nvalues; k++)
        if (m->values[k].role == RP_INPUT && i->bound[k] != NULL) memcpy(i->engine.arena + m->values[k].offset, i->bound[k], (size_t)m->values[k].bytes);
    return REPRISE_OK;
}

/* And after it. */
static void end(reprise_instance *i) {
    const rp_model *m = &rp_the_model;
    for (int k = 0; k < m->nvalues; k++)
        if (m->values[k].role == RP_OUTPUT && i->bound[k] != NULL) memcpy(i->bound[k], i->engine.arena + m->values[k].offset, (size_t)m->values[k].bytes);
}

EXPORT int reprise_step(reprise_instance *i, reprise_error *error) {
    int r = begin(i, error);
    if (r != REPRISE_OK) return r;
    i->engine.pc = -1;
    if ((r = rp_engine_run(&i->engine, error)) != REPRISE_OK) return r;
    end(i);
    return REPRISE_OK;
}

EXPORT int reprise_step_begin(reprise_instance *i, reprise_error *error) {
    int r = begin(i, error);
    i->engine.pc = r == REPRISE_OK ? 0 : -1;
    return r;
}

EXPORT int64_t reprise_step_next(reprise_instance *i, reprise_error *error) {
    bool running = i->engine.pc >= 0;
    int64_t at = rp_engine_next(&i->engine, error);
    if (running && at == -1) end(i);
    return at;
}

EXPORT int reprise_count(reprise_instance *i, reprise_error *error) { return rp_engine_count(&i->engine, error); }

EXPORT int reprise_counts(const reprise_instance *i, int64_t *counts, int64_t n, reprise_error *error) {
    if (i->engine.profile == NULL) return rp_fail(error, REPRISE_USAGE, "call reprise_count first", "nothing was counted");
    if (counts == NULL || n != rp_the_model.nops) return rp_fail(error, REPRISE_USAGE, "reprise_describe() lists them under \"ops\"", "%lld counts for %d ops", (long long)n, (int)rp_the_model.nops);
    for (int k = 0; k < rp_the_model.nops; k++) counts[k] = rp_op_count(&i->engine, &rp_the_model.ops[k]);
    return REPRISE_OK;
}

EXPORT int reprise_probe(reprise_instance *i, int init, int64_t instruction, int threads, uint64_t seed, reprise_error *error) {
    return rp_probe(&i->engine, init != 0, instruction, threads, seed, error);
}

EXPORT int reprise_read(reprise_instance *i, const char *name, void *data, int64_t bytes, reprise_error *error) {
    const rp_value *v = find(name, data, bytes, error);
    if (v == NULL) return REPRISE_USAGE;
    if (v->role > RP_BUFFER && v->role != RP_OUTPUT) return rp_fail(error, REPRISE_USAGE, NULL, "\"%s\" is neither state nor an output", name);
    if (data != NULL) memcpy(data, i->engine.arena + v->offset, (size_t)v->bytes);
    return REPRISE_OK;
}

EXPORT int reprise_write(reprise_instance *i, const char *name, const void *data, int64_t bytes, reprise_error *error) {
    const rp_value *v = find(name, data, bytes, error);
    if (v == NULL) return REPRISE_USAGE;
    if (v->role > RP_BUFFER) return rp_fail(error, REPRISE_USAGE, "use reprise_bind for inputs", "\"%s\" is not state", name);
    if (data != NULL) memcpy(i->engine.arena + v->offset, data, (size_t)v->bytes);
    return REPRISE_OK;
}

EXPORT int reprise_reset(reprise_instance *i, uint64_t seed, reprise_error *error) {
    return rp_engine_init(&i->engine, seed, error);
}

EXPORT int64_t reprise_get_step(const reprise_instance *i) { return i->engine.step; }

EXPORT int reprise_set_step(reprise_instance *i, int64_t step, reprise_error *error) {
    if (step < 0 || step > UINT32_MAX) return rp_fail(error, REPRISE_USAGE, NULL, "step %lld: want 0 to 2^32 - 1", (long long)step);
    i->engine.step = step;
    return REPRISE_OK;
}

EXPORT int reprise_load(reprise_instance *i, const char *path, int strict, reprise_error *error) {
    rp_checkpoint c;
    if (path == NULL) return rp_fail(error, REPRISE_USAGE, NULL, "path is NULL");
    int r = rp_checkpoint_open(&c, &rp_the_model, path, strict != 0, error);
    if (r != REPRISE_OK) return r;
    r = rp_checkpoint_load(&c, &i->engine, error);
    rp_checkpoint_close(&c);
    return r;
}

EXPORT int reprise_save(reprise_instance *i, const char *path, reprise_error *error) {
    if (path == NULL) return rp_fail(error, REPRISE_USAGE, NULL, "path is NULL");
    return rp_checkpoint_save(&i->engine, path, error);
}

EXPORT int reprise_state_sha256(reprise_instance *i, char hex[65], reprise_error *error) {
    if (hex == NULL) return rp_fail(error, REPRISE_USAGE, NULL, "hex is NULL");
    rp_state_sha256(&i->engine, hex);
    return REPRISE_OK;
}

EXPORT void reprise_destroy(reprise_instance *i) {
    if (i == NULL) return;
    rp_engine_destroy(&i->engine);
    free(i->bound);
    free(i);
}
