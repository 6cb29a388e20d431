/* segment: finds the retrieved chunks inside a request's message texts.
 *
 * Texts in, byte ranges out. Order (gateway.md C.2): explicit marks win (content parts,
 * `documents`, `kvblend.segments`, a separator) → presets of known frameworks (data files,
 * etc/presets/) → what the learner knows → paragraph blocks. Segmentation decides reuse only, never
 * content. Its own folder, because both the gateway and a worker asked directly need it (decision
 * in README).
 *
 * The learner remembers fingerprints (never text) of what stood on either side of every gap, by
 * namespace, in a fixed number of bytes: a gap becomes a boundary once either side was seen with
 * two different neighbours, and stops being one when both sides only ever move together. With the
 * same history it gives the same cuts; one namespace's history never shows in another's cuts.
 * Thread: any after seg_presets_load() and seg_learner_create(); the learner locks itself. */
#ifndef SEGMENT_SEGMENT_H
#define SEGMENT_SEGMENT_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A namespace is "OUTER" or "OUTER\x1fINNER": whose it is, and how he divides it. */
enum { SEG_SPACE_INNER = '\x1f' };
struct seg_text {     /* one message's text as the application sent it */
    const char *role; /* "prompt" for /v1/completions */
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
struct seg_learner;
struct seg_whys;
struct seg_opts {
    const char *separator;  /* literal, NULL = none */
    size_t block_bytes_min; /* shorter paragraphs are joined; 0 = default */
    bool no_presets, no_blocks;
    struct seg_learner *learner; /* NULL: every request is the first one */
    const char *space;           /* the namespace that sees and learns; NULL = "" */
    bool dry;                    /* use what was learned, learn nothing */
    struct seg_whys *whys;       /* filled when not NULL */
};
/* Why a gap is a cut or is none. All strings are constants or names of presets. */
struct seg_why {
    uint32_t msg, begin, end;  /* the bytes between two pieces; begin == end at a text's edge */
    bool cut;                  /* a chunk ends or starts here */
    const char *reason, *form; /* README: the table of reasons; "blank", "line", "rule", … */
    unsigned n_left, n_right;  /* different neighbours seen of the text before and behind, <= 8 */
    double confidence;         /* 0–1, 1 for explicit marks */
};
struct seg_whys { /* init {0}; seg_whys_fini() */
    struct seg_why *why;
    size_t n, cap;
};
struct seg_learner_stats {
    size_t bytes, budget_bytes, n_spaces;
    uint64_t n_texts, n_repeated, n_evicted; /* texts learned from, seen before; spaces dropped */
};
/* Load every *.json of a folder (NULL: the built-in copy of etc/presets). */
int seg_presets_load(const char *dir, struct seg_presets **ret, struct err *err);
void seg_presets_free(struct seg_presets *p);
/* budget: all it will ever allocate. -EINVAL below SEG_LEARNER_BYTES_MIN, -ENOMEM. */
enum { SEG_LEARNER_BYTES_MIN = 512 << 10, SEG_LEARNER_BYTES = 64 << 20 };
int seg_learner_create(size_t budget_bytes, struct seg_learner **ret);
void seg_learner_free(struct seg_learner *l);
void seg_learner_get_stats(struct seg_learner *l, struct seg_learner_stats *ret);
/* What it knows, as a file (fingerprints and names of namespaces; format: memory.c) that replaces
 * the old one whole or not at all. Blocking. */
struct buf;
int seg_learner_save(struct seg_learner *l, const char *path);
/* Into a fresh learner. -ENOENT, -EBADMSG damaged or none of ours, -ESTALE another version, -EPERM
 * another user's: then it starts afresh. */
int seg_learner_load(struct seg_learner *l, const char *path);
int seg_learner_format(struct seg_learner *l, struct buf *out);
int seg_learner_parse(struct seg_learner *l, const void *data, size_t len);
/* Find chunks in the texts (separator, presets, learner, blocks); ranges ascending, not
 * overlapping. What the learner has no memory for is found as on first sight. */
int seg_find(const struct seg_presets *p, const struct seg_opts *o, const struct seg_text *texts,
             size_t n, struct seg_list *out);
/* Append; -EINVAL for an empty range or one beyond 4 GiB. `detector` is borrowed: the caller's, or
 * of a preset, which lives as long as its table. */
int seg_add(struct seg_list *l, uint32_t msg, size_t begin, size_t end, const char *detector);
void seg_list_fini(struct seg_list *l);
void seg_whys_fini(struct seg_whys *w);
/* Wire form for header X-KVBlend-Segments: "msg:begin-end:detector,…"; parse is strict:
 * ascending, not overlapping, plain decimals, names of [a-z0-9_.-]; -EBADMSG leaves `out` alone. */
int seg_format(const struct seg_list *l, struct buf *out);
/* The explanation as a JSON array, one object per gap (docs/api.md, POST /admin/boundaries). */
int seg_whys_format(const struct seg_whys *w, struct buf *out);
int seg_parse(const char *s, size_t len, struct seg_list *out);
/* Identity of a chunk's text between gateways and workers (XXH3-64, seeded by the namespace, so
 * that one tenant's texts say nothing about another's). name_space: as the worker keys its records,
 * NULL = "". Equal bytes in one namespace, equal id; never 0. */
uint64_t seg_text_id(const char *name_space, const char *text, size_t len);
/* The same of a document that is ranked: its records are others than those of chats. */
uint64_t seg_ranked_id(const char *name_space, const char *text, size_t len);

#endif
