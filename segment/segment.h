/* segment: finds the retrieved chunks inside a request's message texts.
 *
 * Pure apart from its preset table: texts in, byte ranges out. Order (gateway.md C.2): explicit
 * marks win (content parts, `documents`, `kvblend.segments`, a separator) → presets of known
 * frameworks (data files, etc/presets/) → paragraph blocks. Segmentation decides reuse only, never
 * content. Its own folder, because both the gateway and a worker asked directly need it (decision
 * in README). Thread: any after seg_presets_load(). */
#ifndef SEGMENT_SEGMENT_H
#define SEGMENT_SEGMENT_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum seg_kind { SEG_CHUNK, SEG_GLUE }; /* what lies between chunks is glue by default */
struct seg_text {                      /* one message's text as the application sent it */
    const char *role;                  /* "prompt" for /v1/completions */
    const char *text;
    size_t len;
};
struct seg { /* one chunk: bytes [begin, end) of text `msg` */
    uint32_t msg;
    uint32_t begin, end;
    const char *detector; /* "parts", "documents", "api", "separator", preset name, "blocks" */
};
struct seg_list { /* init {0}; seg_list_fini() */
    struct seg *seg;
    size_t n, cap;
    char **name; /* seg_parse(): the list's own detector names, freed by seg_list_fini() */
    size_t n_names;
};
struct seg_presets;
struct seg_opts {
    const char *separator;  /* literal, NULL = none */
    size_t block_bytes_min; /* shorter paragraphs are joined; 0 = default */
    bool no_presets, no_blocks;
};
/* Load every *.json of a folder (NULL: the built-in copy of etc/presets). */
int seg_presets_load(const char *dir, struct seg_presets **ret, struct err *err);
void seg_presets_free(struct seg_presets *p);
/* Find chunks in the texts (presets, separator, blocks); ranges ascending, not overlapping. */
int seg_find(const struct seg_presets *p, const struct seg_opts *o, const struct seg_text *texts,
             size_t n, struct seg_list *out);
/* Append; -EINVAL for an empty range or one beyond 4 GiB. `detector` is borrowed: the caller's, or
 * of a preset, which lives as long as its table. */
int seg_add(struct seg_list *l, uint32_t msg, size_t begin, size_t end, const char *detector);
void seg_list_fini(struct seg_list *l);
/* Wire form for header X-KVBlend-Segments: "msg:begin-end:detector,…"; parse is strict:
 * ascending, not overlapping, plain decimals, names of [a-z0-9_.-]; -EBADMSG leaves `out` alone. */
struct buf;
int seg_format(const struct seg_list *l, struct buf *out);
int seg_parse(const char *s, size_t len, struct seg_list *out);

#endif
