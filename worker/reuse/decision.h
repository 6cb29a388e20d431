/* decision: one decision of the controller as a value, and as JSON for people and logs.
 *
 * ctl_decision_create() → the snapshot and the choice are filled in → ctl_decision_json(). Numbers
 * are written with 17 digits: what is read is what was. No HTTP, no engine, no store.
 * Thread: any; a decision belongs to one at a time. */
#ifndef WORKER_REUSE_DECISION_H
#define WORKER_REUSE_DECISION_H

#include "base/buf.h"
#include "policy/control.h"

#include <jansson.h>

enum { CTL_ID_BYTES = 129, CTL_TIER_NAME_BYTES = 16, CTL_DETECTOR_BYTES = 24 };
enum ctl_by {               /* who decided */
              CTL_BY_RULES, /* asked for, nothing held, or the controller is off */
              CTL_BY_CONTROLLER,
};
struct ctl_end {                       /* what became of a chunk */
    char id[33];                       /* "": it is not known yet */
    char source[CTL_TIER_NAME_BYTES];  /* a tier's name, "prefix" or "computed" */
    char detector[CTL_DETECTOR_BYTES]; /* that found it in the text */
    const char *miss; /* why it was not found, a static text; NULL: it was not missed */
};
/* Times are those of the request, from when it came; they may be negative: a record that another
 * request had asked for. */
struct ctl_load {          /* of the records from one tier that were used */
    double begin_s, end_s; /* the tier was asked; the last part was here */
    uint64_t bytes;
    uint32_t n; /* records; 0: of this tier none */
};
struct ctl_step {                    /* of the prefill */
    const char *name;                /* embed, score, layers, head: a static text */
    unsigned layer_begin, layer_end; /* of the group of layers; 0, 0 of others */
    double begin_s, end_s;
    double compute_s; /* within, in which others' turns and waiting are not */
};
enum { CTL_STEPS_MAX = 11 };
struct ctl_decision {
    char id[CTL_ID_BYTES]; /* of the request: x-request-id */
    char alias[48];        /* of its reply: chatcmpl-… */
    unsigned prompt;       /* of a request with several */
    double t;              /* wall clock */
    double before_s;       /* that the request had spent by then: parsing, queue */
    double decide_s;       /* that deciding took */
    enum ctl_by by;
    bool loose;         /* what ran may differ: a chunk was out of reach */
    unsigned n_running; /* other requests that were being decoded: the cost says how dear that is */
    struct pol_control_in in;    /* chunk points to the next field */
    struct pol_chunk_now *chunk; /* [in.n_chunk] */
    char tier_name[POL_TIERS_MAX][CTL_TIER_NAME_BYTES];
    struct pol_control out;
    bool *reuse;         /* [in.n_chunk] */
    struct ctl_end *end; /* [in.n_chunk] */
    struct {             /* 0 until the first token is out; <0 it never came */
        double prefill_s, compute_s, ttft_s, queue_s;
        uint32_t n_prefix, n_reused, n_recomputed, n_computed; /* tokens */
        bool whole; /* nothing failed on the way: prediction and measurement are of the same work */
        struct ctl_load load[POL_TIERS_MAX];
        struct ctl_step step[CTL_STEPS_MAX];
        unsigned n_step;
    } measured;
};
/* Room for n chunks; NULL out of memory. */
struct ctl_decision *ctl_decision_create(size_t n_chunk);
struct ctl_decision *ctl_decision_copy(const struct ctl_decision *d);
void ctl_decision_free(struct ctl_decision *d);

/* NULL out of memory. more: with what each strategy would have cost, and what became of chunks. */
json_t *ctl_decision_json(const struct ctl_decision *d, bool more);
json_t *ctl_tokens_json(const struct ctl_decision *d); /* by how their KV came about */
/* The JSON as text on one line; 17 digits are all of a number. */
int ctl_json_put(const json_t *o, int digits, struct buf *out);

#endif
