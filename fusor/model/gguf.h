/* gguf: read-only view of a GGUF file (versions 2 and 3, little-endian), mapped into memory.
 *
 * A file split into parts (NAME-00001-of-00003.gguf) is opened by its first one.
 * Life cycle: gguf_open() maps and checks everything (counts, offsets, sizes against the file) →
 * gguf_find(), gguf_tensors() → gguf_close(), which all that they give lives until.
 * Every number in the file is distrusted: a lying file gives -EBADMSG with a sentence.
 * Thread: any after open (immutable). Format: ggml's docs/gguf.md. */
#ifndef FUSOR_MODEL_GGUF_H
#define FUSOR_MODEL_GGUF_H

#include "base/err.h"
#include "fusor/model/tensors.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum gguf_type { /* metadata value types, as in the file */
                 GGUF_U8,
                 GGUF_I8,
                 GGUF_U16,
                 GGUF_I16,
                 GGUF_U32,
                 GGUF_I32,
                 GGUF_F32,
                 GGUF_BOOL,
                 GGUF_STR,
                 GGUF_ARR,
                 GGUF_U64,
                 GGUF_I64,
                 GGUF_F64
};
struct gguf;
struct gguf_kv { /* one metadata entry */
    const char *key;
    enum gguf_type type; /* of an array its elements' */
    bool is_array;
    size_t n;            /* elements of an array, else 0 */
    const uint8_t *data; /* number or first one of an array, unaligned */
    const char *text;    /* string, up to the first NUL */
    const uint8_t **str; /* array of strings: each one's length field; owned */
};

int gguf_open(const char *path, struct gguf **ret, struct err *err);
void gguf_close(struct gguf *g);
void gguf_drop_pages(const struct gguf *g); /* of its file and parts: map_drop_pages() */
const struct gguf_kv *gguf_find(const struct gguf *g, const char *key); /* NULL = absent */
/* Typed reads: 1 found and converted, 0 absent or other type; `key` forms for convenience. */
int gguf_u64(const struct gguf *g, const char *key, uint64_t *ret);
int gguf_f64(const struct gguf *g, const char *key, double *ret);
int gguf_bool(const struct gguf *g, const char *key, bool *ret);
const char *gguf_str(const struct gguf *g, const char *key); /* NULL: absent or other type */
/* Element i of an array, if it has so many; strings in O(1) (indexed at open). */
int gguf_arr_str(const struct gguf_kv *kv, size_t i, const char **ret, size_t *ret_len);
int gguf_arr_i64(const struct gguf_kv *kv, size_t i, int64_t *ret);
int gguf_arr_f64(const struct gguf_kv *kv, size_t i, double *ret);
struct tensors *gguf_tensors(struct gguf *g); /* sorted by name */

#endif
