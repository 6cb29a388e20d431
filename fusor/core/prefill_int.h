/* prefill_int: the state of one prefill, shared by prefill.c (the state machine), select.c (roles,
 * scores, selection), reuse.c (sources and sinks) and their neighbours.
 * Internal to fusor/. */
#ifndef FUSOR_CORE_PREFILL_INT_H
#define FUSOR_CORE_PREFILL_INT_H

#include "fusor/core/core_int.h"
#include "fusor/core/prefill.h"

enum fus_pass { /* what runs before the selected rows do */
                PASS_NONE,
                PASS_QUERY, /* what is no chunk runs over the stored KV of the score's layers */
                PASS_SIDE, /* it runs blind to the chunks, and only their K of one layer is asked */
};
struct fus_method { /* what a strategy needs */
    enum fus_pass pass;
    bool by_deviation; /* everything runs up to the check layer; its deviation of K decides */
};

enum fus_kind {                /* what becomes of a prompt token */
                KIND_COMPUTED, /* a row in every layer */
                KIND_MISSED,   /* of a chunk that is not held: that, but not asked with */
                KIND_EXACT,    /* prefix: KV of a full prefill, never a row */
                KIND_REUSED,   /* isolated chunk: may be selected */
};

enum fus_choice {
    CHOICE_OUT,
    CHOICE_CANDIDATE, /* within a choice only */
    CHOICE_ROW,       /* a row, as any token that is not reused */
};

/* Layers on their way to the device at once (chosen: one is computed, one queued behind it, one
 * comes, and one for where the next is known late). */
enum { PRE_NEAR = 4 };
struct pre_range {
    struct fus_range r; /* n may be cut short where logits are wanted */
    uint32_t ask0;      /* where it stands in a prompt without the missed chunks */
    bool used;          /* has a role in the plan (fus_roles_set) */
    bool active;        /* its source is used; cleared when it failed or was never needed */
    struct kv_layer cur, near[PRE_NEAR]; /* near: as staged; k NULL: it is not */
};

struct pre_near { /* a layer on its way to the device */
    unsigned layer;
    bool open;
    uint64_t turn; /* kn_staged() */
};

struct pre_capture {
    struct fus_capture c;
    atomic_int status;   /* first error of the sink's rows() */
    unsigned next_layer; /* layers below have been delivered (a restart must not do it again) */
    bool open;           /* done() not called yet */
};

enum pre_stage { STAGE_LAYER0, STAGE_SCORE, STAGE_MAIN, STAGE_HEAD, STAGE_DONE };
enum pre_part { PART_STORED, PART_A, PART_B, PART_SCORE }; /* of a layer, in this order */

/* The parts of the work block. What operations read or write from tok to score they have copies of
 * (fus_seen()): memory that both sides touch would move to and fro with every turn. */
struct pre_buffers {
    float *emb;        /* [n_tok, D] dev */
    float *x;          /* [n_tok, D] dev, residual of the current rows */
    char *seen;        /* the copies, dev; tok itself where memory is plain */
    size_t sent_bytes; /* from tok on: what operations only read, copied when rows change */
    int32_t *tok;      /* [n_tok] the prompt */
    int32_t *pos_all;  /* [n_tok] 0, 1, 2, … */
    int32_t *pos;      /* [n_tok] positions of the current rows */
    int32_t *ask;      /* [n_tok] the same in a prompt without the missed chunks */
    int32_t *slot;     /* [n_tok] where their KV stands while chunks are not seen (PASS_SIDE) */
    int32_t *from;     /* [n_tok] of these, the first that a row sees in layers with chunks */
    int32_t *row;      /* [n_tok] rows that stay behind a choosing layer */
    int32_t *cand;     /* [n_tok] positions of the candidates */
    int32_t *pick;     /* [n_tok] those of them that were taken */
    float *dev;        /* [n_tok] deviation of K */
    float *score;      /* [n_tok] attention mass, by token */
    float *cand_score; /* [n_tok] of the candidates only; room for other things before */
    int32_t *sel;      /* [n_tok] selected positions, ascending */
    uint8_t *chosen;   /* [n_tok] enum fus_choice */
    float *att;        /* [rows of a slice, H*K] dev */
    float *keep_q;     /* [n_suffix, H*K] dev */
    float *keep_lse;   /* [n_suffix, H] dev */
    float *logits;     /* [n_logits, V] or NULL */
    int *bad;          /* [n_capture] 1: a value of its rows did not fit their type */
};

struct fus_prefill {
    struct fus_core *core;
    struct fus_session *s;
    struct fus_plan plan; /* resolved: score layers, check layer; tok borrowed */
    const struct fus_method *how;
    struct kn_kv kv;
    struct pre_range *range;
    size_t n_range;
    struct kn_piece *piece; /* [2, n_range] */
    struct pre_near near[PRE_NEAR];
    struct pre_capture *capture;
    size_t n_capture;

    struct fus_block block;
    struct pre_buffers b;
    uint8_t *kind; /* [n_tok] enum fus_kind */
    size_t n_logits;

    size_t n_rows, n_reusable, n_at_built, n_missed, n_suffix;
    size_t n_front;       /* first rows, through with the layers that asked (front_rows()) */
    bool rough;           /* what asks is rounded: kn_rough() */
    size_t n_sel;         /* selected */
    size_t n_rows_chosen; /* of them still rows */
    size_t budget;        /* tokens, the mean over the layers from the choice on */
    enum pre_stage stage;
    unsigned layer;     /* next layer to run */
    size_t step_rows;   /* rows of a step, 0 = fus_slice_rows() */
    enum pre_part part; /* of that layer, next to run */
    size_t row0;        /* rows that are through with it */
    unsigned loaded_to; /* layers below are in the pages */
    unsigned done_to;   /* layers below have been waited for */
    bool checked;       /* by deviation: the choice is made (or there is none to make) */
    bool joint;         /* this layer's halves are one (struct fus_phase) */
    bool at_choice;     /* in this layer tokens are chosen, before phase B */
    bool chooses;       /* there are tokens to choose from, and a budget */
    double token_layers;
    struct fus_report report;
};

/* prefill.c: where operations find a part, or a place in it, from tok to score; NULL for NULL. */
void *fus_seen(const struct fus_prefill *f, const void *part);
/* On a stream to what operations see (up) or back; nothing where memory is plain. */
int fus_part_copy(const struct fus_prefill *f, struct kn_stream *st, void *part, size_t bytes,
                  bool up);

/* select.c */
int fus_plan_resolve(struct fus_prefill *f); /* checks and defaults; -EINVAL */
void fus_roles_set(struct fus_prefill *f);   /* kind[], n_reusable from plan and active ranges */
size_t fus_select_budget(const struct fus_prefill *f);
/* Choose by what the strategy has gathered in score or dev: first among the reusable tokens, which
 * sets sel, n_sel and what the report says is left, then in a later layer among what still is a
 * row. */
int fus_select(struct fus_prefill *f);
bool fus_select_again(const struct fus_prefill *f); /* this layer's set is smaller */
void fus_select_sink(struct fus_prefill *f);
void fus_select_weigh(struct fus_prefill *f); /* the score times what ranges know */
bool fus_rows_exact(const struct fus_prefill *f, uint32_t tok0, uint32_t n);

/* prefix_sharing.c: after the last layer; the session's pages of the exact prefix may change */
int fus_prefix_share(struct fus_prefill *f);

#endif
