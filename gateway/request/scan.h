/* scan: what the gateway needs to know of a request body, without changing a byte of it.
 *
 * Two steps. gw_scan_head() checks that the body is one JSON object in UTF-8 and not too deep and
 * reads its top-level keys: enough to route and to limit a request, and all that an upstream needs.
 * gw_scan_chunks() finds the chunks in its texts, with what the learner knows of the caller's
 * namespace; only own workers and LMCache upstreams need it. Content parts,
 * `documents`, `kvblend.segments` and separators are chunks by the sender's word; where there are
 * none, presets, learned boundaries and paragraph blocks say where chunks are. An own worker reads
 * explicit marks itself, so `segments` (its header) lists only what the gateway found.
 * A step may run on a helper thread: between the steps the struct may be copied, and `body` set to
 * an equal copy. Thread: any; one at a time. */
#ifndef GATEWAY_REQUEST_SCAN_H
#define GATEWAY_REQUEST_SCAN_H

#include "base/buf.h"
#include "gateway/front/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gw_asked;
struct seg_learner;
struct seg_presets;

enum {
    GW_SCAN_HEAD_INLINE_MAX = 1 << 20, /* longer heads go to a helper thread; see README */
    GW_SCAN_INLINE_MAX = 64 << 10,     /* the same for chunks: well under a millisecond */
    GW_SCAN_DEPTH_MAX = 64,
    GW_SCAN_HEADER_MAX = 16 << 10, /* half of what a request head may hold */
    GW_SCAN_SPACE_MAX = 512,       /* longer namespaces are not learned for */
    GW_SCAN_DOCUMENT = UINT32_MAX, /* gw_scan_chunk.msg of an entry of `documents` */
};
struct gw_scan_range { /* bytes of the body; len 0: not there */
    size_t at, len;
};
struct gw_scan_chunk {
    uint32_t msg;        /* which message, or prompt */
    uint32_t begin, end; /* bytes of its text (parts joined by "\n"); documents: 0, length */
    /* The same ends in the body: within one JSON string, never inside an escape or a character;
     * documents: the whole value. */
    size_t body_begin, body_end;
    size_t string_begin, string_end; /* the inside of that string; documents: 0 */
    uint64_t text_id;                /* seg_text_id() in the worker's namespace */
};
struct gw_scan {
    /* in */
    const char *body;
    size_t len;
    bool skim;  /* what the body's strings hold is not checked: enough to pass it on */
    bool lone;  /* there is one target only: `affinity` is not needed */
    bool ranks; /* documents are ranked for a query, and there are no texts */
    /* out of gw_scan_head() */
    bool failed;   /* error, message */
    bool overflow; /* ... because of a number that some readers take for infinity */
    enum gw_error error;
    bool stream, has_model;           /* has_model: model */
    struct gw_scan_range model_value; /* with its quotes, or null: replace it to send a name */
    uint32_t max_tokens;              /* the larger of it and max_completion_tokens; 0: not said */
    uint64_t prompt_bytes; /* of the body, with a ranking's one query as often as it is read */
    uint64_t affinity;     /* of prompt_cache_key, else of the conversation's beginning; 0: none */
    unsigned priority;     /* kvblend.priority: 0 (first, or not said) to 9 */
    double max_ttft_ms;    /* kvblend.max_ttft_ms; 0: not said */
    bool asks_map; /* kvblend.strategy is map_reduce or map_rerank, which are served no longer */
    struct gw_scan_range texts;           /* messages or prompt */
    struct gw_scan_range documents, salt; /* values of these keys; documents: or text_2 */
    /* kvblend.segments, .separator, .namespace */
    struct gw_scan_range said_segments, said_separator, said_space;
    bool full;    /* kvblend.mode: no chunks are wanted */
    bool is_chat; /* `texts` is messages */
    /* in of gw_scan_chunks() */
    const struct seg_presets *presets; /* NULL: only chunks by the sender's word */
    struct seg_learner *learner;       /* NULL: every request is the first one; else `space` */
    const char *separator;             /* X-KVBlend-Separator, decoded; NULL: none */
    struct gw_asked *asked; /* a dialect's request: to become chat before it is scanned; owned */
    const char *given;      /* X-KVBlend-Segments from the client; NULL: none */
    bool dry;               /* an administrator looks: learn nothing */
    struct buf *explain;    /* NULL, or the reasons as JSON, "[]" when none */
    /* out of gw_scan_chunks() */
    struct gw_scan_chunk *chunk; /* in the order of the texts, documents first */
    size_t n_chunks;
    struct buf segments; /* value of X-KVBlend-Segments; empty: none to be sent */
    unsigned n_segments; /* n_chunks, for logs */
    /* Texts: "" at first. */
    char message[200], model[256];
    char detector[64];             /* of the first chunk */
    char space[GW_SCAN_SPACE_MAX]; /* in: the caller's namespace; the body's lies within it */
};
/* Cheaper than clearing all of it. */
void gw_scan_init(struct gw_scan *s, const char *body, size_t len, bool skim);
void gw_scan_head(struct gw_scan *s);
/* After a head that has not failed. No failure of it is the client's: there are no chunks then. */
void gw_scan_chunks(struct gw_scan *s);
void gw_scan_run(struct gw_scan *s);  /* both; chunks only with presets */
void gw_scan_fini(struct gw_scan *s); /* its chunks and segments are empty then */

#endif
