/* jsonscan: skim a JSON object without building it: validate all, remember the top level.
 *
 * One pass over the bytes, no allocation, no recursion. The whole document is checked (RFC 8259
 * grammar, numbers, escapes with paired surrogates, UTF-8, nesting of at most 64), and each key of
 * the outermost object is reported with the byte range of its value, so that a gateway can read
 * "model" and "stream" out of a body of megabytes and forward the bytes as they are.
 * Repeated keys are reported as they come; readers that must not be fooled take the last, as
 * jansson does (json_find() does). Not for: building trees (jansson does that). Thread: any. All
 * pointers are into the caller's text. */
#ifndef BASE_JSONSCAN_H
#define BASE_JSONSCAN_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;

enum { JSON_DEPTH_MAX = 64 };
enum json_type {
    JSON_T_NULL,
    JSON_T_BOOL,
    JSON_T_NUMBER,
    JSON_T_STRING,
    JSON_T_ARRAY,
    JSON_T_OBJECT
};

struct json_val {
    const char *p; /* strings: with their quotes */
    size_t len;
    enum json_type type;
};
struct json_field {
    struct json_val key; /* a string with its quotes and escapes */
    struct json_val val;
};
/* A position for errors: byte offset from the start and what was wrong. */
struct json_fault {
    size_t at;
    const char *why;
};

/* Scan a whole document that must be an object. on_field (may be NULL) returns 0, or a negative
 * code that ends the scan and is returned. 0, -EBADMSG (malformed, or not an object), -ERANGE (too
 * deep), -EDOM (a number that no double holds, which readers take for infinity or refuse); fault
 * (may be NULL) is filled for those three. */
int json_scan_object(const char *text, size_t len,
                     int (*on_field)(void *ctx, const struct json_field *f), void *ctx,
                     struct json_fault *fault);
/* The same where somebody else judges the text, and strings are most of it: what strings hold is
 * not checked (escapes, control characters, UTF-8). A value that is read must be scanned first. */
int json_skim_object(const char *text, size_t len,
                     int (*on_field)(void *ctx, const struct json_field *f), void *ctx,
                     struct json_fault *fault);
/* The same of an object with which the text only begins: what follows it is not looked at. */
int json_scan_object_at(const char *text, size_t len,
                        int (*on_field)(void *ctx, const struct json_field *f), void *ctx);
/* Validate a whole document of any type. */
int json_scan(const char *text, size_t len, struct json_val *ret, struct json_fault *fault);
/* Call on_item for each element of an array value that was scanned before. */
int json_each(const struct json_val *array, int (*on_item)(void *ctx, const struct json_val *v),
              void *ctx);
/* The last value of the key in an object text. 1 found, 0 not there, <0 as json_scan_object(). */
int json_find(const char *text, size_t len, const char *key, struct json_val *ret);

/* Deepest nesting of a JSON text, strings skipped and syntax not checked: a guard in front of
 * parsers that recurse. */
unsigned json_depth(const char *text, size_t len);
/* A string in which every byte stands for itself, ASCII throughout? Then its text is what stands
 * between the quotes, even where it was only skimmed. */
bool json_str_plain(const struct json_val *v);
/* Whether a string value (with quotes) equals `text` after unescaping. Most differ in their first
 * character. */
bool json_str_equals(const struct json_val *v, const char *text);
static inline bool json_str_is(const struct json_val *v, const char *text)
{
    bool differs = v->len > 2 && v->p[1] != *text && v->p[1] != '\\';
    return !differs && json_str_equals(v, text);
}
/* Append the unescaped string. 0, -EINVAL when not a string, -ENOMEM. May contain NUL bytes when
 * the text had \u0000; the length is what counts. */
int json_str_read(const struct json_val *v, struct buf *out);
/* From v->p[*at] (1: its start; never within an escape or a character) as many bytes on as unescape
 * to n bytes. Stops between characters only, so it may go up to 3 bytes too far, and at the closing
 * quote. Moves *at; returns how many unescaped bytes it passed. */
size_t json_str_seek(const struct json_val *v, size_t *at, size_t n);
int json_bool_read(const struct json_val *v, bool *ret);     /* 0, -EINVAL */
int json_int_read(const struct json_val *v, int64_t *ret);   /* 0, -EINVAL (fraction), -ERANGE */
int json_double_read(const struct json_val *v, double *ret); /* 0, -EINVAL, -ERANGE */
/* Length of the valid UTF-8 sequence at s (1..4), 0 if there is none; len > 0. */
size_t json_utf8_len(const char *s, size_t len);

#endif
