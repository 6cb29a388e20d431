/* core: a loaded model on a device, and sessions (one sequence's KV), run synchronously.
 *
 * fus_core_create() packs the weights → fus_session_create() reserves KV pages for a sequence →
 * prefill.h runs a prompt → fus_decode() appends one token to each of several sessions. The
 * benchmarks call this directly; the server goes through engine.h. Nothing allocates per token or
 * layer. Thread: one thread at a time per core (the engine thread); fus_core_create() any. */
#ifndef FUSOR_CORE_CORE_H
#define FUSOR_CORE_CORE_H

#include "base/err.h"
#include "fusor/model/model.h"
#include "kernels/kn.h"

#include <stdatomic.h>

#define FUS_KV_AUTO UINT64_MAX
struct fus_core_opts {
    struct kn_dev_opts dev;
    unsigned ctx_max; /* tokens; 0 = the model's */
    /* Page pool for running sequences; 0 = enough for 8 full contexts, <= 2 GiB; FUS_KV_AUTO: most
     * of what the device has left beside the weights, 0 on the CPU. */
    uint64_t kv_bytes;
    void (*progress)(void *ctx, double share); /* weight packing, 0…1; may be NULL */
    void *progress_ctx;
};
struct fus_core;
/* The model must outlive the core (embedding rows are read from it). */
int fus_core_create(const struct model *m, const struct fus_core_opts *o, struct fus_core **ret,
                    struct err *err);
void fus_core_destroy(struct fus_core *c);
const struct model_cfg *fus_core_config(const struct fus_core *c);
struct kn_dev *fus_core_dev(const struct fus_core *c);
unsigned fus_core_ctx_max(const struct fus_core *c);
double fus_core_gemm_gflops(struct fus_core *c, size_t rows); /* over the model's linear shapes */
double fus_core_linear_params(const struct fus_core *c);      /* without embedding and head */
/* Every weight of its dense products with its name: "kv", "q", "o", "gate_up", "down" of the layers
 * (on a GPU also "qkv"), "head". For those who measure. */
typedef void (*fus_weight_fn)(void *ctx, const char *name, const struct kn_mat *w);
void fus_core_each_weight(const struct fus_core *c, fus_weight_fn fn, void *ctx);
/* Startup self-test (blending.md 6): r = 1 equals full, re-position property. 0 or -EBADMSG: then
 * blending must stay off for this model. */
int fus_core_self_test(struct fus_core *c, struct err *err);
/* Break blending on purpose, to show that the self-test and the guard notice. Before the engine. */
enum fus_fault {
    FUS_FAULT_NONE,
    FUS_FAULT_REPOSITION, /* stored K of chunks is not rotated to its place */
    FUS_FAULT_OFFSET,     /* it is rotated to the next one */
};
void fus_core_set_fault(struct fus_core *c, enum fus_fault f);
/* Have the memory that a prompt of n_tok tokens takes at hand, a quarter of the pool at most: the
 * system gives memory when it is first touched, and that had better not be between two tokens of a
 * stream. While no session exists. 0 or -ENOMEM. */
int fus_core_warm(struct fus_core *c, uint32_t n_tok);
/* The same for one page, in idle time, until there are as many more than ever were in use at once
 * as the largest prompt took. false: there was nothing to do. */
bool fus_core_warm_page(struct fus_core *c);
uint32_t fus_core_kv_tokens_free(const struct fus_core *c); /* tokens that still fit in the pool */
/* Tokens of KV that sharing saves: a stored prefix that several prompts begin with (a system
 * message, say) and what choices of one prompt have in common are held once. */
uint32_t fus_core_kv_tokens_shared(const struct fus_core *c);

/* The page pool, to share with a keeper of things in pages that sequences do not need: from then
 * on each page is asked for when a sequence needs it. `lend` always has one for all but n_kept
 * pages. While no session exists; the lender is there as long as there are any. */
struct fus_pool {
    void *base; /* the device's memory */
    size_t page_bytes;
    uint32_t n_pages;
};
struct fus_lender {
    int32_t (*lend)(void *ctx); /* a page's number */
    void (*take_back)(void *ctx, int32_t page);
    void *ctx;
};
struct fus_pool fus_core_pool(const struct fus_core *c);
void fus_core_share_pool(struct fus_core *c, const struct fus_lender *l, uint32_t n_kept);

struct fus_session;
int fus_session_create(struct fus_core *c, uint32_t cap_tokens,
                       struct fus_session **ret); /* -ENOMEM: pool */
void fus_session_destroy(struct fus_session *s);
uint32_t fus_session_len(const struct fus_session *s);
void fus_session_drop(struct fus_session *s, uint32_t n); /* its last n tokens */
int fus_session_fork(struct fus_session *s, uint32_t cap_tokens,
                     struct fus_session **ret); /* copies KV */

enum { FUS_EDITS_MAX = 1024 }; /* chosen: of a row; 16 KiB on their way a step */
struct fus_decode_row {
    struct fus_session *s;
    int32_t tok;                /* appended to it */
    bool wants;                 /* its row of logits, edited; else that may stay as it was */
    const struct kn_edit *edit; /* of logits, first; of different ids */
    size_t n_edit;              /* FUS_EDITS_MAX at most */
    struct kn_draw draw;        /* how the next token is drawn; 0: that of the largest logit */
    int32_t next;               /* set to it; -1: no logit is finite */
};
/* One token more for each of n sessions; logits [n, V]. Several rows of a session stand together:
 * each follows the one before it, and says what would have followed it in a step of its own. */
int fus_decode_rows(struct fus_core *c, struct fus_decode_row *row, size_t n,
                    const atomic_bool *cancel, float *logits);
/* The same for a caller that looks at all logits itself: append tok[i] to s[i]. */
int fus_decode(struct fus_core *c, struct fus_session *const *s, const int32_t *tok, size_t n,
               const atomic_bool *cancel, float *ret_logits);

#endif
