/* prompt: one tokenised prompt with its chunks: made by request/prep.c, filled by reuse.c with what
 * was found of it, read by reports.
 *
 * Thread: of its stage: helper → loop → engine → loop. */
#ifndef WORKER_REUSE_PROMPT_H
#define WORKER_REUSE_PROMPT_H

#include "base/buf.h"
#include "fusor/text/chat.h"
#include "fusor/text/tok.h"
#include "tiers/store.h"
#include "worker/api/api.h"

enum {
    WK_CHUNK_TOKENS_MIN =
        16,                  /* shorter ones are glue: the record's overhead would exceed its use */
    WK_PART_TOKENS_MIN = 32, /* content parts: a short one is a question or a label */
    WK_BLOCK_TOKENS = 64,    /* exact prefix records of chats; KN_PAGE: loads are whole pages */
};
struct ctl_decision;
struct worker;
struct wk_lookup {         /* of one record; in this order: asked, settled, found */
    struct store_pin *pin; /* held for the prompt */
    uint64_t held_bytes;   /* charged for the pin */
    bool asked, asking;
    uint64_t batch; /* the same for all lookups of a prompt */
    enum store_miss why;
    const char *tier;       /* where it was found; NULL: nowhere */
    int status;             /* <0: it was found, but its KV could not be read */
    struct store_load load; /* once it is used, from a slower tier */
};
struct wk_block { /* of an exact prefix: its record is KV behind all that stands before it */
    uint32_t tok0, n;
    struct tier_key key; /* chained to the one before */
    struct wk_lookup lookup;
};
struct wk_cut { /* a chunk of a prompt */
    uint32_t tok0, n;
    uint32_t msg, begin, end; /* as the application sent it */
    const char *detector;
    struct tier_key key;
    uint64_t text_id; /* seg_text_id() of its bytes as sent */
    /* what the lookup found */
    enum wk_source { WK_COMPUTED, WK_STORED, WK_PREFIX } source;
    bool missed; /* for the reason lookup.why */
    bool merged; /* the record found has been encoded behind other chunks */
    struct wk_lookup lookup;
};
struct wk_moments {       /* of clock_ns(); 0: it has not come, or not been needed */
    uint64_t answered_ns; /* slower tiers have, or nothing was asked: it is ready for the engine */
    uint64_t looked_ns;   /* engine: all records that are used are found, and decided on */
};
struct wk_prompt { /* wk_prompt_fini() */
    struct tok_ids ids;
    int32_t *own_ids; /* ids.id, or the token ids of the request */
    const int32_t *tok;
    uint32_t n_tok;
    struct wk_cut *cut;
    size_t n_cut;
    struct wk_block *block; /* end to end from the first token on */
    size_t n_block;
    uint64_t warm_bytes;    /* of the worker's, for this prompt */
    struct worker *held_by; /* NULL: no lookup was made early */
    const char *id, *alias; /* of the request, and of its reply; NULL = none. Borrowed */
    unsigned index;         /* of a request with several prompts */
    uint64_t start_ns;      /* when it came; 0 = unknown */
    struct wk_moments at;
    struct ctl_decision *decision; /* by wk_plan() */
    unsigned guard_level;          /* in force when the plan was made, if it changed it; else 0 */
    struct buf text;               /* prompt text for echo; empty unless asked for */
    struct chat_out chat;
    struct arena names;     /* of detectors */
    bool thinking, calling; /* the prompt's end has opened a thought, or a call */
};
void wk_prompt_fini(struct wk_prompt *p);
/* The next block, up to token `end`; p->block has room for it. */
void wk_block_add(struct wk_prompt *p, const struct tier_ident *id, const char *ns, uint32_t end);

#endif
