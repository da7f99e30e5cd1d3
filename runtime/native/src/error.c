#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "rp.h"

/* The way out of what names none of its own. */
static const char *way_out(int code) {
    switch (code) {
    case REPRISE_MEMORY: return "free some memory, or run on fewer threads";
    case REPRISE_DATA: return "--describe lists the model's inputs, with their types and shapes";
    case REPRISE_CHECKPOINT: return "give a file that this program has saved, undamaged";
    case REPRISE_IO: return "give a path in a directory that exists and may be written, with room on its disk";
    }
    return "";
}

int rp_fail(rp_error *e, int code, const char *hint, const char *format, ...) {
    if (e != NULL) {
        va_list args;
        va_start(args, format);
        e->code = code;
        vsnprintf(e->message, sizeof e->message, format, args);
        snprintf(e->hint, sizeof e->hint, "%s", hint == NULL ? way_out(code) : hint);
        va_end(args);
    }
    return code;
}

const char *rp_code_name(int code) {
    switch (code) {
    case REPRISE_OK: return "ok";
    case REPRISE_USAGE: return "usage";
    case REPRISE_CPU: return "cpu";
    case REPRISE_MEMORY: return "memory";
    case REPRISE_DATA: return "data";
    case REPRISE_CHANGED: return "changed";
    case REPRISE_CHECKPOINT: return "checkpoint";
    case REPRISE_IO: return "io";
    case REPRISE_FOREIGN: return "foreign";
    case REPRISE_ASSERT: return "assert";
    }
    return "unknown";
}
