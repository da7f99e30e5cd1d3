#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "rp.h"

int rp_fail(rp_error *e, int code, const char *hint, const char *format, ...) {
    if (e != NULL) {
        va_list args;
        va_start(args, format);
        e->code = code;
        vsnprintf(e->message, sizeof e->message, format, args);
        snprintf(e->hint, sizeof e->hint, "%s", hint == NULL ? "" : hint);
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
