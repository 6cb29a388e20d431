/* engine: the thread that runs requests: queue, continuous batching, builds in idle time.
 *
 * fus_engine_create() starts one thread that owns the core. fus_submit() queues a request; tokens
 * come by callback on the engine thread; fus_cancel() may come at any time from any thread. Every
 * submitted request gets exactly one on_done. Callbacks must be short (hand the event to a ring)
 * and may not call back into the engine except fus_cancel(). Order of work: decode steps of all
 * running choices between the steps of one prefill (step_budget.h), that of the request that was
 * due first; builds only when no request waits or runs, urgent ones whenever there is a turn, and
 * before the request that waits for them; some give way to everything.
 * Thread: any for submit/cancel/stats. */
#ifndef FUSOR_CORE_ENGINE_H
#define FUSOR_CORE_ENGINE_H

#include "fusor/core/prefill.h"
#include "fusor/core/sample.h"

struct fus_engine;
enum fus_work {
    FUS_WORK_PREFILL,
    FUS_WORK_DECODE, /* a step of all running choices */
    FUS_WORK_BUILD,
    FUS_WORKS
};
/* One thing that the thread did without looking up: what a running stream may have to wait for. */
struct fus_engine_unit {
    enum fus_work work;
    enum fus_step_kind kind; /* unless it decoded; rows: that it went through */
    size_t rows;
    bool streams;        /* choices were running meanwhile */
    bool first;          /* since the last decode step */
    double predicted_ns; /* 0: of that kind none has been seen */
    double left_ns;      /* of what may lie between two decode steps */
    uint64_t took_ns;
    uint64_t spent_ns; /* since the one before, or since there was something to do: with what lies
                          between */
};
struct fus_engine_opts {
    unsigned max_running; /* choices decoded together; 0 = 16 */
    unsigned max_queue;   /* waiting requests; 0 = 64; full: -EAGAIN */
    /* Rows that a decode step may have with guesses (draft.h) among them; 0: none are made, as
     * where a row's result depends on the others'. */
    unsigned draft_rows;
    void (*on_unit)(void *ctx, const struct fus_engine_unit *u); /* engine thread; may be NULL */
    void *unit_ctx;
};
enum fus_finish { FUS_STOP, FUS_LENGTH, FUS_CANCELLED, FUS_FAILED };
struct fus_event_token {
    unsigned choice;
    struct fus_picked picked;
    bool end; /* this token is EOG or a stop id: it counts as generated, its choice ends (FUS_STOP)
               */
};
struct fus_event_done {
    enum fus_finish
        finish; /* of the whole request: FAILED and CANCELLED; else of the last choice */
    int status; /* negative errno when FAILED */
};
struct fus_times { /* of a request until its first token, ms */
    double queue, prefill;
    double engine; /* of the prefill, what the engine worked for this prompt; the rest are other
                      requests' decode steps, builds, and waiting for stored KV */
};
struct fus_request_ops { /* engine thread */
    /* Just before the prefill starts: the caller may look its chunks up now (as late as possible)
     * and fill plan->range/capture/strategy. After 0 the engine sees to every release() and done();
     * a negative errno fails the request, and the caller keeps what it looked up. May be NULL. */
    int (*on_plan)(void *ctx, struct fus_plan *plan);
    void (*on_first)(void *ctx, const struct fus_report *r, const struct fus_times *ms);
    /* 0 go on, 1 stop this choice (the caller saw a stop string, or the end of what it wants), a
     * negative errno fails the request. */
    int (*on_token)(void *ctx, const struct fus_event_token *t);
    void (*on_choice)(void *ctx, unsigned choice, enum fus_finish f); /* that choice ended */
    void (*on_done)(void *ctx, const struct fus_event_done *d);
    /* Logits [V] that a token of this choice is about to be drawn from, as the model gave them; the
     * caller says which ids may be (one bit each [V], in words, until the next call; untouched:
     * all). A negative errno fails the request. May be NULL. looks(): whether it wants to be asked
     * about the next ones, so that others need not be brought to the host; NULL: about all of them.
     */
    int (*on_logits)(void *ctx, unsigned choice, const float *logits, const uint64_t **ret_allowed);
    bool (*looks)(void *ctx, unsigned choice);
    /* Is a chunk of it about to be built urgently? Then it starts behind such builds, as long as
     * they get on, and on_plan finds what they made. May be NULL. */
    bool (*waits)(void *ctx);
    /* Once the prefill has begun, and behind each of its steps but the last: a layer, or as much of
     * it as streams allow. May be NULL, and then costs nothing. */
    void (*on_progress)(void *ctx, const struct fus_progress *p);
    /* Right before on_first: what the prefill knows beyond its report. May be NULL. */
    void (*on_prefilled)(void *ctx, const struct fus_prefill *f);
};
struct fus_request {
    struct fus_plan plan; /* its arrays must stay valid until on_done */
    struct fus_sampling sampling;
    unsigned n_choices; /* >= 1; seeds seed, seed+1, … */
    /* The queue is sorted by arrival + due_ms (policy/order.h); 0 for all: as they come. */
    double due_ms;
    uint32_t max_new, min_new; /* max_new is cut to what the context holds; 0 = prefill only */
    bool ignore_eos;
    bool whole;              /* nobody reads the answer before its end (step_budget.h) */
    const int32_t *stop_ids; /* likewise */
    size_t n_stop_ids;
    bool (*is_eog)(void *ctx, int32_t id); /* end-of-generation test */
    const struct fus_request_ops *ops;
    void *ctx;
};
struct fus_job; /* valid from submit until on_done returns */

int fus_engine_create(struct fus_core *core /* taken over while running, not owned */,
                      const struct fus_engine_opts *o, struct fus_engine **ret);
/* Cancels everything and joins; the last callbacks come on the calling thread. */
void fus_engine_destroy(struct fus_engine *e);
/* 0, -EAGAIN queue full, -EINVAL, -ENOMEM. Fails later (on_done): -ERANGE prompt over the context,
 * -ENOMEM more KV than the pool will ever have, what on_plan said, -EBADMSG logits are not numbers.
 */
int fus_submit(struct fus_engine *e, const struct fus_request *r, struct fus_job **ret);
void fus_cancel(struct fus_engine *e, struct fus_job *job); /* only before its on_done has run */

/* Background work, a plan of at most `n` tokens: an isolated chunk's build, a measurement, or any
 * prompt for its logits. */
struct fus_build {
    uint32_t n;
    bool urgent;    /* not only in idle time */
    bool gives_way; /* runs only while the engine has nothing else to do, and with a request
                       submitted ends at once, with -EAGAIN: nothing waits for it or its pages */
    /* Just before it starts, on the engine thread: fill *ret (claim the record), whose tokens stay
     * valid until on_end. 1 go: the engine sees to every release() and done(); 0 skip, <0 error. */
    int (*on_plan)(void *ctx, struct fus_plan *ret);
    /* The rows [n_rows, V], before on_end(0). May be NULL. */
    void (*on_logits)(void *ctx, const float *logits, size_t n_rows, const struct fus_report *r);
    void (*on_end)(void *ctx, int status); /* exactly once: 0, <0, 1 = skipped */
    void *ctx;
};
int fus_build_submit(struct fus_engine *e, const struct fus_build *b); /* -EAGAIN: queue full */
/* The build of that ctx has become urgent; nothing happens when it is not in the queue any more. */
void fus_build_hurry(struct fus_engine *e, const void *ctx);

struct fus_engine_stats {
    unsigned n_waiting, n_running, n_builds, n_active;
    uint32_t kv_tokens_free, kv_tokens_shared; /* as core.h */
    uint64_t n_steps;
    uint64_t n_drafted, n_draft_right; /* tokens that were guessed; that came true */
};
void fus_engine_get_stats(struct fus_engine *e, struct fus_engine_stats *ret);

#endif
