/* reuse: from a prompt to the plan by which the engine runs it, and what was learned from it.
 *
 * The path, each stop one function: wk_lookup_prompt() asks slower tiers while the prompt waits →
 * wk_plan() on the engine thread looks up what is here now, has wk_decide() say what is reused, by
 * which strategy and ratio, and loads it as sources of the plan → wk_report() with what was
 * measured → wk_build_missed() behind the first token. reuse.c reads top to bottom in this order.
 * Thread: as said at each; any where nothing is. The decider's lock stands alone. */
#ifndef WORKER_REUSE_REUSE_H
#define WORKER_REUSE_REUSE_H

#include "worker/reuse/decision.h"
#include "worker/reuse/prompt.h"

#include <stdatomic.h>

struct fus_plan;
struct fus_report;
enum { WK_DECISIONS_KEPT = 1024 };

/* ---- reuse.c ---- */
/* Helper thread: ask for all that the prompt may reuse and wait for the answers, not for the KV;
 * counts in the miss-ratio curve. Once for each prompt. */
void wk_lookup_prompt(struct worker *w, struct wk_prompt *p, const struct api_settings *m,
                      const atomic_bool *gone);
/* Engine thread: fills ranges, captures and the strategy of plan, and p->decision. The arrays
 * belong to *ret_arrays (mem_free). */
int wk_plan(struct worker *w, struct wk_prompt *p, const struct api_settings *m,
            struct fus_plan *plan, void **ret_arrays, uint32_t *ret_captured);
/* Does a chunk stand where its record was built, so that its KV is exact? */
bool wk_at_built(const struct worker *w, const struct wk_prompt *p, const struct wk_cut *c);
/* A chunk whose KV could not be read was computed after all. True: a slower tier was waited for. */
bool wk_settle_sources(struct wk_prompt *p);
const char *wk_source_name(const struct wk_cut *c); /* a tier's, "prefix" or "computed" */
/* The first token is out, or will never be (r NULL): the decision gets the measured part and is
 * kept, prices follow. */
struct wk_outcome {
    const struct fus_report *report;
    double prefill_ms, ttft_ms, queue_ms;
    bool slow; /* wk_settle_sources() */
};
void wk_report(struct worker *w, struct wk_prompt *p, const struct wk_outcome *r);
/* Loop: queue builds of the chunks that a prompt has missed. */
void wk_build_missed(struct worker *w, const struct wk_prompt *p, const char *ns);

/* ---- decide.c ---- */
int wk_decider_open(struct worker *w, struct err *err); /* loader, before the engine */
void wk_decider_close(struct worker *w);
/* A decision about a prompt (with more than POL_CHUNKS_MAX chunks the rules decide): id, geometry
 * and time are filled in; the caller adds what it found: d->chunk, n_prefix, prefix_tier,
 * prefix_bytes. NULL out of memory. */
struct ctl_decision *wk_decision_create(struct worker *w, const struct wk_prompt *p);
/* own_bytes: of the loads that d's chunks wait for, by tier: no queue to them. Afterwards d->out
 * and d->reuse hold. */
void wk_decide(struct worker *w, const struct api_settings *m,
               const uint64_t own_bytes[POL_TIERS_MAX], struct ctl_decision *d);
void wk_decision_done(struct worker *w, struct ctl_decision *d, const struct wk_outcome *r);
/* What all of a prompt may be worth waiting for, ms: its exact prefill and its place in the queue.
 * 0 = unknown. */
double wk_decider_worth_ms(struct worker *w, uint32_t n_tok);
/* Visit what is kept, newest first; fn != 0 stops. Under the lock: short. */
void wk_decisions_visit(struct worker *w, int (*fn)(void *ctx, const struct ctl_decision *d),
                        void *ctx);

#endif
