/* Loads the libraries of foreign kernels. Only models that have some are linked with this file. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reprise_foreign.h"
#include "rp.h"

_Static_assert(REPRISE_BOOL == (int)RP_BOOL && REPRISE_F32 == (int)RP_F32 && REPRISE_KEY == (int)RP_KEYTYPE, "element types");
_Static_assert(sizeof(reprise_array) == 144 && sizeof(reprise_call) == 64, "as the compiler writes them");

/* The directory of the file that this code was loaded from, executable or library; "" if unknown. */
static void own_directory(char *dir, size_t size) {
    char line[PATH_MAX + 128];
    uintptr_t here = (uintptr_t)&rp_foreign_loader, lo, hi;
    dir[0] = 0;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        char *path = strchr(line, '/'), *slash = strrchr(line, '/');
        if (path == NULL || sscanf(line, "%zx-%zx", &lo, &hi) != 2 || here < lo || here >= hi) continue;
        snprintf(dir, size, "%.*s", (int)(slash - path), path);
        break;
    }
    if (maps != NULL) fclose(maps);
}

static int load(void **handle, const rp_model *m, const rp_foreign *f, rp_error *e) {
    char path[PATH_MAX], dir[PATH_MAX], first[512] = "";
    own_directory(dir, sizeof dir);
    const char *dirs[] = {dir, m->library_dir};
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        if (f->library[0] == '/') snprintf(path, sizeof path, "%s", f->library);
        else if (dirs[i][0] == 0) continue;
        else snprintf(path, sizeof path, "%s/%s", dirs[i], f->library);
        if ((*handle = dlopen(path, RTLD_NOW | RTLD_LOCAL)) != NULL) return REPRISE_OK;
        if (first[0] == 0) snprintf(first, sizeof first, "%s", dlerror());
    }
    return rp_fail(e, REPRISE_FOREIGN, f->library[0] == '/' ? "the model names the library by this path" : "put it beside the program, or name it by an absolute path",
                   "layer %s: foreign kernel \"%s\": cannot load its library: %s%s%s", f->layer, f->symbol, first,
                   f->library[0] != '/' && m->library_dir[0] != 0 ? "; nor from " : "", f->library[0] != '/' ? m->library_dir : "");
}

static void close_all(void **handles, int n) {
    for (int i = 0; handles != NULL && i < n; i++)
        if (handles[i] != NULL) dlclose(handles[i]);
    free(handles);
}

static int open_all(const rp_model *m, rp_kernel **functions, void ***handles, rp_error *e) {
    void **h = calloc((size_t)m->nforeign + 1, sizeof *h);
    if (h == NULL) return rp_fail(e, REPRISE_MEMORY, NULL, "no memory for %d foreign kernels", (int)m->nforeign);
    for (int i = 0; i < m->nforeign; i++) {
        const rp_foreign *f = &m->foreign[i];
        int code = f->library[0] == 0 ? REPRISE_OK : load(&h[i], m, f, e);
        if (code == REPRISE_OK) {
            void *p = dlsym(f->library[0] == 0 ? RTLD_DEFAULT : h[i], f->symbol);
            memcpy(&functions[i], &p, sizeof p); /* ISO C has no cast from an object to a function */
            if (p == NULL)
                code = rp_fail(e, REPRISE_FOREIGN, "export it: it must be neither static nor hidden", "layer %s: foreign kernel \"%s\": %s%s has no such function", f->layer, f->symbol,
                               f->library[0] == 0 ? "this process" : "library ", f->library);
        }
        if (code != REPRISE_OK) {
            close_all(h, m->nforeign);
            return code;
        }
    }
    *handles = h;
    return REPRISE_OK;
}

const rp_loader rp_foreign_loader = {open_all, close_all};
