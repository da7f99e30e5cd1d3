#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rp.h"

static bool wrong(rp_json *j, const char *what) {
    if (j->wrong == NULL) j->wrong = what;
    return false;
}

static void skip(rp_json *j) {
    while (j->p < j->end && (*j->p == ' ' || *j->p == '\n' || *j->p == '\r' || *j->p == '\t')) j->p++;
}

bool rp_json_try(rp_json *j, char c) {
    skip(j);
    if (j->p == j->end || *j->p != c) return false;
    j->p++;
    return true;
}

bool rp_json_char(rp_json *j, char c) {
    if (rp_json_try(j, c)) return true;
    switch (c) {
    case '{': return wrong(j, "want '{'");
    case '}': return wrong(j, "want '}' or ','");
    case '[': return wrong(j, "want '['");
    case ']': return wrong(j, "want ']' or ','");
    case ':': return wrong(j, "want ':'");
    case ',': return wrong(j, "want ','");
    }
    return wrong(j, "unexpected character");
}

static int hex4(rp_json *j) {
    int x = 0;
    if (j->end - j->p < 4) return -1;
    for (int i = 0; i < 4; i++) {
        char c = *j->p++;
        int d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
        if (d < 0) return -1;
        x = x * 16 + d;
    }
    return x;
}

static char *put_utf8(char *to, int x) {
    if (x < 0x80) {
        *to++ = (char)x;
    } else if (x < 0x800) {
        *to++ = (char)(0xc0 | x >> 6), *to++ = (char)(0x80 | (x & 63));
    } else if (x < 0x10000) {
        *to++ = (char)(0xe0 | x >> 12), *to++ = (char)(0x80 | (x >> 6 & 63)), *to++ = (char)(0x80 | (x & 63));
    } else {
        *to++ = (char)(0xf0 | x >> 18), *to++ = (char)(0x80 | (x >> 12 & 63)), *to++ = (char)(0x80 | (x >> 6 & 63)), *to++ = (char)(0x80 | (x & 63));
    }
    return to;
}

char *rp_json_string(rp_json *j) {
    skip(j);
    if (j->p == j->end || *j->p != '"') return wrong(j, "want a string"), NULL;
    const char *scan = ++j->p;
    while (scan < j->end && *scan != '"') scan += *scan == '\\' && j->end - scan > 1 ? 2 : 1;
    if (scan == j->end) return wrong(j, "unterminated string"), NULL;
    char *s = malloc((size_t)(scan - j->p) + 1), *to = s; /* an escape is never shorter than what it stands for */
    if (s == NULL) return wrong(j, "no memory"), NULL;
    while (*j->p != '"') {
        unsigned char c = (unsigned char)*j->p++;
        if (c < 0x20) goto bad;
        if (c != '\\') {
            *to++ = (char)c;
            continue;
        }
        switch (*j->p++) {
        case '"': *to++ = '"'; break;
        case '\\': *to++ = '\\'; break;
        case '/': *to++ = '/'; break;
        case 'b': *to++ = '\b'; break;
        case 'f': *to++ = '\f'; break;
        case 'n': *to++ = '\n'; break;
        case 'r': *to++ = '\r'; break;
        case 't': *to++ = '\t'; break;
        case 'u': {
            int x = hex4(j);
            if (x >= 0xd800 && x < 0xdc00) {
                if (j->end - j->p < 6 || j->p[0] != '\\' || j->p[1] != 'u') goto bad;
                j->p += 2;
                int low = hex4(j);
                if (low < 0xdc00 || low > 0xdfff) goto bad;
                x = 0x10000 + ((x - 0xd800) << 10) + (low - 0xdc00);
            } else if (x <= 0 || (x >= 0xdc00 && x < 0xe000)) {
                goto bad; /* also NUL, which no name of ours can hold */
            }
            to = put_utf8(to, x);
            break;
        }
        default: goto bad;
        }
    }
    j->p++;
    *to = 0;
    return s;
bad:
    free(s);
    wrong(j, "malformed string");
    return NULL;
}

bool rp_json_int(rp_json *j, int64_t *x) {
    skip(j);
    const char *start = j->p;
    *x = 0;
    while (j->p < j->end && *j->p >= '0' && *j->p <= '9') {
        if (__builtin_mul_overflow(*x, 10, x) || __builtin_add_overflow(*x, *j->p - '0', x)) return wrong(j, "number too large");
        j->p++;
    }
    if (j->p == start) return wrong(j, "want a non-negative integer");
    if (*start == '0' && j->p - start > 1) return wrong(j, "number with a leading zero");
    return true;
}

void rp_json_print(const char *s) {
    putchar('"');
    for (; *s != 0; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\') printf("\\%c", c);
        else if (c < 0x20 || c == 0x7f) printf("\\u%04x", c);
        else putchar(c);
    }
    putchar('"');
}
