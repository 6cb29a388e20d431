/* control: the one place where a request is decided: what is reused from where, by which strategy
 * and ratio.
 *
 * wk_decide() takes a snapshot of tiers, compute and quality floors, and what client, operator and
 * guard say; lets pol_decide() choose and keeps snapshot and choice for `explain`, the log and the
 * replay. wk_control_done() adds what was measured and corrects the cost model.
 * Life cycle: wk_control_open() (loader, before the engine) → per prompt wk_decision_create(),
 * wk_decide(), wk_control_done() → wk_control_close(). Thread: any, but for open and close; one
 * lock that stands alone guards all that changes. */
#ifndef WORKER_REUSE_CONTROL_H
#define WORKER_REUSE_CONTROL_H

#include "worker/reuse/calib.h"
#include "worker/reuse/control_io.h"
#include "worker/worker.h"

enum { WK_DECISIONS_KEPT = 1024 };

int wk_control_open(struct worker *w, struct err *err);
void wk_control_close(struct worker *w);

/* A decision about a prompt (with more than POL_CHUNKS_MAX chunks the rules decide): id, geometry
 * and time are filled in; the caller adds what it found: d->chunk, n_prefix, prefix_tier,
 * prefix_bytes. NULL out of memory. */
struct ctl_decision *wk_decision_create(struct worker *w, const struct wk_prompt *p);
/* Of a place by its name, "ram" is 0; -1: none. */
int wk_tier_index(const struct worker *w, const char *name);
/* Decide. own_bytes: of the loads that d's chunks wait for, by tier: no queue to them. Afterwards
 * d->out and d->reuse hold. */
void wk_decide(struct worker *w, const struct wk_mode *m, const uint64_t own_bytes[POL_TIERS_MAX],
               struct ctl_decision *d);

/* The first token is out, or will never be (r NULL): d gets the measured part and is kept. */
struct wk_outcome {
    const struct fus_report *report;
    double prefill_ms, ttft_ms;
    bool whole; /* no source failed: what was measured is what was predicted */
};
void wk_control_done(struct worker *w, struct ctl_decision *d, const struct wk_outcome *r);

/* What all of a prompt may be worth waiting for, ms: its exact prefill and its place in the queue.
 * 0 = unknown. */
double wk_control_worth_ms(struct worker *w, uint32_t n_tok);
/* Where a new record of n tokens is written to first (policy/control's pol_place): its writer is
 * told. */
void wk_control_place(struct worker *w, uint32_t n, struct store_writer *writer);

/* control_admin.c: GET /admin/decisions and /admin/decisions/REQUEST_ID; 0 not its path. */
int wk_admin_decisions(struct worker *w, struct wk_call *c, const char *path);
/* Visit what is kept, newest first; fn != 0 stops. Under the lock: short. */
void wk_control_visit(struct worker *w, int (*fn)(void *ctx, const struct ctl_decision *d),
                      void *ctx);

#endif
