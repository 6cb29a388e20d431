/* scan: what the gateway needs to know of a request body, without changing a byte of it.
 *
 * Checks that the body is one JSON object in UTF-8 and not too deep, reads `model`, `stream` and
 * `max_tokens`, and, where the request leaves it to us, finds the chunks in its message texts,
 * with what the learner knows of the caller's namespace. Requests that mark their chunks
 * themselves (`documents`, `kvblend.segments`, a header) and messages of several content parts
 * are left to the worker, which reads those marks; a single text part is a text like any other.
 * Thread: any (bodies above GW_SCAN_INLINE_MAX go to a helper thread). */
#ifndef GATEWAY_SCAN_H
#define GATEWAY_SCAN_H

#include "base/buf.h"
#include "gateway/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct seg_learner;
struct seg_presets;

enum {
    GW_SCAN_INLINE_MAX = 64 << 10, /* measured: a body this size takes well under a millisecond */
    GW_SCAN_DEPTH_MAX = 64,
    GW_SCAN_HEADER_MAX = 16 << 10, /* half of what a request head may hold */
    GW_SCAN_SPACE_MAX = 512,       /* longer namespaces are not learned for */
};
struct gw_scan {
    /* in */
    const char *body;
    size_t len;
    const struct seg_presets *presets; /* NULL: do not look for chunks */
    struct seg_learner *learner;       /* NULL: every request is the first one */
    char space[GW_SCAN_SPACE_MAX];     /* "KEY/NAMESPACE"; the body's namespace is added */
    bool dry;                          /* an administrator looks: learn nothing */
    struct buf *explain;               /* NULL, or the reasons as JSON, "[]" when none */
    /* out */
    bool failed;
    enum gw_error error;
    char message[200];
    bool stream, has_model;
    char model[256];
    uint32_t max_tokens; /* max_completion_tokens, else max_tokens; 0: not said */
    struct buf segments; /* value of X-KVBlend-Segments; empty: none */
    char detector[64];
    unsigned n_segments;
};
void gw_scan_run(struct gw_scan *s); /* outputs zeroed before */
void gw_scan_fini(struct gw_scan *s);

#endif
