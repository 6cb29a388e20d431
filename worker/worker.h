/* worker: the process that serves one model, and what its modules share.
 *
 * Life cycle: wk_opts_read() → wk_create() (listens at once, loads the model in a thread) →
 * wk_run() → wk_destroy(). Threads: the loop (HTTP, calls, lists of requests), the loader (once),
 * the helpers (parsing and tokenising), the engine thread (callbacks of request/ and reuse/); they
 * speak to the loop through loop_queue.h. Lock order: gen.m → queue.m; all other locks stand alone.
 *
 * Each module keeps its state in a part of its own below, declared in its own header; what no other
 * module needs is opaque. Calls go downwards: routes → admin → request → reuse → records, quality
 * beside reuse; an arrow upwards is a callback given at creation. */
#ifndef WORKER_WORKER_H
#define WORKER_WORKER_H

#include "base/net/http.h"
#include "fusor/core/engine.h"
#include "fusor/core/profile.h"
#include "fusor/grammar/vocab.h"
#include "fusor/text/chat.h"
#include "fusor/text/tok.h"
#include "segment/segment.h"
#include "tiers/store.h"
#include "worker/fleet/fleet.h"
#include "worker/loop_queue.h"
#include "worker/opts.h"
#include "worker/startup.h"

enum wk_state { WK_LOADING, WK_READY, WK_DRAINING, WK_FAILED };
/* Start me again; 1: that may not help, 2: usage. */
enum { WK_EXIT_DEVICE_LOST = 3, WK_EXIT_MODEL_FILE = 4 };

struct event;
struct mrc;
struct otlp;
struct wk_task;
struct wk_builds;
struct wk_contexts;
struct wk_decider;
struct wk_embedder;
struct wk_guard;
struct wk_heat;
struct wk_kvlog;
struct wk_namespaces;
struct wk_past;
struct wk_recuts;
struct wk_reranker;

struct wk_process { /* worker.c; loop */
    struct http_server *server;
    struct http_bounds *bounds; /* of the server: of bodies */
    struct otlp *traces;        /* NULL: off */
    struct http_timer tick;
    struct wk_past *past; /* of the counters */
    struct event *signals[2], *stdin_event;
    uint64_t drain_deadline_ns; /* 0: it does not drain */
    int exit_code;
    bool device_lost;           /* why it drains */
    bool replays_refused;       /* that was logged */
    struct kn_refusals refused; /* the last shape that was */
};
struct wk_requests { /* request/; loop */
    LIST_HEAD(, wk_task) tasks;
    unsigned n_gens; /* of them, those that the engine computes */
};
struct wk_reuse {               /* reuse/; any thread */
    struct mrc *mrc;            /* of all look-ups that are not turned away; NULL: no store */
    struct wk_recuts *recuts;   /* likewise */
    struct wk_decider *decider; /* NULL: the rules decide */
    struct wk_heat *heat;
    _Atomic double ms_per_token; /* of a prefill, as measured; 0 = unknown */
    _Atomic uint64_t held_bytes; /* of records pinned for prompts that wait */
    _Atomic uint64_t warm_bytes; /* of records that come nearer for prompts that wait, unpinned */
    _Atomic uint64_t n_batches;  /* prompts that have asked tiers */
};
struct wk_segmenter {
    struct seg_presets *presets;
    struct seg_learner *learner; /* what the segmenter remembers, when asked directly */
};
struct wk_speech { /* how the model writes what is no content */
    const struct ans_syntax *calls;
    bool explained; /* by the prompt: the chat template names no tools, or writes calls strangely */
    const struct ans_marks *thoughts; /* NULL: it does not think aloud */
};
struct worker {
    struct wk_opts o;
    _Atomic int state; /* enum wk_state */
    double started_s;
    struct http_loop *loop;
    struct wk_loop_queue queue;
    struct jobs *helpers;
    struct wk_process process;
    struct wk_loader loader;
    /* loaded once, immutable after WK_READY */
    struct wk_embedder
        *embedder; /* NULL: the model generates; else the next are, and core to store */
    struct model *model;
    struct tok *tok;          /* with an embedder, its */
    struct gram_vocab *vocab; /* of the tokenizer */
    struct chat *chat;        /* NULL: the file has no template; chat routes answer 400 */
    char chat_error[240];
    struct wk_speech speech;
    struct wk_reranker *reranker;
    struct fus_profile profile;
    char profile_source[4200]; /* its file, or "default" */
    struct fus_core *core;
    struct fus_engine *engine;
    struct store *store;
    struct tier_ident ident;
    int32_t sink_token; /* -1 = none */
    bool blend_ok;      /* self-test passed */
    char blend_error[240];
    char model_name[256], model_base[256], model_path[4096], cache_dir[4096];
    unsigned ctx_max;
    struct wk_tiers tiers;
    struct wk_segmenter segmenter;
    struct wk_kvlog *kvlog; /* NULL: no access log */
    /* modules */
    struct wk_requests requests;
    struct wk_reuse reuse;
    struct wk_builds *builds;
    struct wk_namespaces *namespaces;
    struct wk_guard *guard;
    struct wk_contexts *contexts;
    struct wk_fleet fleet;
};
int wk_create(const struct wk_opts *o, struct worker **ret, struct err *err);
int wk_run(struct worker *w); /* exit code of the process */
void wk_destroy(struct worker *w);
/* routes.c: the head, which is answered where it is turned away; then the body */
struct wk_call;
void wk_route_head(struct worker *w, struct wk_call *c);
void wk_route(struct worker *w, struct wk_call *c);

#endif
