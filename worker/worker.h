/* worker: the process that serves one model: HTTP routes, glue between engine, store and policy.
 *
 * Life cycle: wk_opts_read() → wk_create() (listens at once, loads the model in a thread) →
 * wk_run() → wk_destroy(). Threads: the loop (HTTP, all wk_call and gen state), the loader (once),
 * the helpers (parsing and tokenising: wk_pool), the engine thread (callbacks in gen.c, chunks.c).
 * They speak to the loop through wk_post(): intrusive messages on one list, one loop wake-up at a
 * time, so no queue can overflow. Lock order: gen.m → worker.mail_m; those of
 * builds, guard and logs stand alone. Only this folder knows engine, tiers and policy at once. */
#ifndef WORKER_WORKER_H
#define WORKER_WORKER_H

#include "base/net/http.h"
#include "fusor/core/engine.h"
#include "fusor/core/profile.h"
#include "fusor/text/chat.h"
#include "fusor/text/tok.h"
#include "worker/api/api.h"
#include "worker/api/api_reply.h"
#include "worker/opts.h"
#include "segment/segment.h"
#include "tiers/store.h"
#include "tiers/store_admin.h"

#include <pthread.h>
#include <stdatomic.h>

enum {
    WK_CHUNK_TOKENS_MIN =
        16,                  /* shorter ones are glue: the record's overhead would exceed its use */
    WK_PART_TOKENS_MIN = 32, /* content parts: a short one is a question or a label */
    WK_BLOCK_TOKENS = 64,    /* exact prefix records; KN_PAGE, so that loads are whole pages */
    WK_BUILDS_MAX = 4096,    /* queued isolated builds */
    WK_BUILDS_FLIGHT_MAX = 8, /* handed to the engine at a time, and as many urgent ones */
    WK_LIVE_MAX = 4096,       /* requests in any stage, before the engine's own queue says no */
    WK_GRACE_MS = 2000,       /* stream headers wait this long for a real status */
    WK_COMMENT_MS = 10000,    /* keep-alive comment while a stream is silent */
};

/* ---- the worker ---- */
struct wk_msg { /* embedded; at most once on the list */
    struct wk_msg *next;
    bool queued;
    void (*fn)(struct wk_msg *m); /* loop thread */
};
enum wk_state { WK_LOADING, WK_READY, WK_DRAINING, WK_FAILED };
/* Start me again; 1: that may not help, 2: usage. */
enum { WK_EXIT_DEVICE_LOST = 3, WK_EXIT_MODEL_FILE = 4 };
struct wk_pool;
struct gen;
struct residents;
struct seg_task;
struct wk_builds;
struct wk_announce;
struct wk_load;
struct wk_names;
struct wk_kvlog;
struct wk_reader;
struct wk_guard;
struct worker {
    struct wk_opts o;
    struct http_loop *loop;
    struct http_server *server;
    struct http_bounds *bounds; /* of the server: of bodies */
    struct http_timer *tick;
    struct wk_pool *pool;
    _Atomic int state;         /* enum wk_state */
    bool device_lost;          /* loop: why it drains */
    bool replays_refused;      /* loop: that was logged */
    _Atomic unsigned progress; /* of loading, per mille */
    double started_s;
    int exit_code;
    /* loaded once, immutable after WK_READY */
    struct model *model;
    struct tok *tok;
    struct chat *chat; /* NULL: the file has no template; chat routes answer 400 */
    char chat_error[240];
    struct fus_profile profile;
    char profile_source[4200]; /* its file, or "default" */
    struct fus_core *core;
    struct gpu *gpu; /* the core's device, for its tier; NULL on the CPU */
    struct fus_engine *engine;
    struct store *store;
    struct tier_ident ident;
    _Atomic double ms_per_token; /* of a prefill, as measured; 0 = unknown */
    _Atomic uint64_t held_bytes; /* of records pinned for prompts that wait */
    _Atomic uint64_t warm_bytes; /* of records that come nearer for prompts that wait, unpinned */
    _Atomic uint64_t n_batches;  /* prompts that have asked tiers */
    struct wk_kvlog *kvlog;      /* NULL: no access log */
    struct wk_control *control;  /* NULL: the rules decide (control.h) */
    struct wk_tier_seen {        /* loop; as logged last */
        char degraded[96];
        const char *breaker; /* NULL: not yet */
    } tier_seen[STORE_TIERS_MAX];
    struct seg_presets *presets;
    struct seg_learner *learner; /* what the segmenter remembers, when asked directly */
    int32_t sink_token;          /* -1 = none */
    bool blend_ok;               /* self-test passed */
    char blend_error[240];
    char model_name[256], model_base[256], cache_dir[4096];
    unsigned ctx_max;
    double load_s;
    pthread_t loader;
    bool loader_started;
    atomic_bool loader_ended;
    struct err load_error;
    struct wk_msg load_msg;
    /* mail */
    pthread_mutex_t mail_m; /* guards the list and every wk_msg's next and queued */
    struct wk_msg *mail_head, **mail_tail;
    bool mail_scheduled;
    /* loop thread */
    struct gen *gens;
    unsigned n_gens;
    struct seg_task *seg_tasks;
    struct residents *residents;  /* which texts are here: any thread */
    struct wk_announce *announce; /* NULL: not registered */
    struct wk_reader *readers;    /* who waits for news of them */
    struct wk_load *load;         /* what waits here: any thread (load.c) */
    struct wk_names *names;       /* of namespaces: any thread (names.c) */
    _Atomic uint64_t lost_told;   /* writes that a flush has reported as lost */
    uint64_t epoch, read_ns;      /* of this life; when somebody asked last */
    uint64_t drain_deadline_ns;
    struct event *signals[2], *stdin_event;
    struct wk_builds *builds; /* builds.c */
    struct wk_senses *senses;
    struct wk_guard *guard; /* guard.h */
};
int wk_create(const struct wk_opts *o, struct worker **ret, struct err *err);
bool wk_is_loading(const struct worker *w);
int wk_run(struct worker *w); /* exit code of the process */
void wk_destroy(struct worker *w);
void wk_drain(struct worker *w); /* stop accepting, end when idle or late; again: end now */
/* loader.c */
int wk_load_start(struct worker *w);
/* profile.c: loader thread, once the model and the cache folder are known. What the options leave
 * open (strategy, ratio) becomes the profile's. Fails only for --profile. */
int wk_profile_load(struct worker *w, struct err *err);
int wk_profile_put(const struct worker *w, struct buf *out); /* as JSON */
/* tiers.c: the tiers beside RAM into o, by the options; what is in o already is destroyed on
 * failure. */
int wk_tiers_open(struct worker *w, struct store_opts *o, struct err *err);
void wk_tiers_limits(struct worker *w); /* quotas and lives of namespaces */
void wk_tiers_watch(struct worker *w);  /* log what has changed for better or worse; loop */
/* "ok", "degraded" (it serves, but not as was asked for) or "refuses". */
const char *wk_tier_state(const struct store_tier_stats *s);
bool wk_serves_model(const struct worker *w, const char *name);
/* mail.c. Thread: any. wk_unpost() takes a message off the list when it is on it. */
void wk_post(struct worker *w, struct wk_msg *m);
void wk_unpost(struct worker *w, struct wk_msg *m);
void wk_mail_kick(struct worker *w); /* every tick: a wake-up that found the loop's ring full */

/* ---- helper threads (mail.c) ---- */
struct wk_job {
    struct wk_job *next;
    void (*fn)(struct wk_job *j); /* helper thread */
};
int wk_pool_create(unsigned n_threads, struct wk_pool **ret);
void wk_pool_submit(struct wk_pool *p, struct wk_job *j);
void wk_pool_destroy(struct wk_pool *p); /* runs what is queued, joins */

/* ---- one HTTP request (call.c); loop thread ---- */
enum { WK_ID_BYTES = 129 };
struct wk_call {
    struct worker *w;
    struct http_req *r;
    char id[WK_ID_BYTES];         /* x-request-id */
    const struct wk_route *found; /* at the head; NULL: an admin route, by its path */
    const char *route, *rest;     /* for the log; what the path has behind the route's */
    int status;
    bool stream;
    /* whoever works on the call hears of its end; then the call is gone */
    void (*on_close)(void *owner, bool aborted);
    void *owner;
    /* access log */
    uint64_t n_prompt, n_completion, n_prefix, n_reused, n_recomputed;
    unsigned n_chunks;
    double ttft_ms, queue_ms;
};
/* The client's x-request-id when it is printable ASCII of a sane length, else one of ours. */
void wk_call_id(const char *sent, char ret[WK_ID_BYTES]);
int wk_call_create(struct worker *w, struct http_req *r, struct wk_call **ret);
void wk_call_closed(struct wk_call *c, bool aborted); /* tells the owner, logs, frees */
/* A parameter of the query as it stands there, cut where it is too long; false and "": absent. */
bool wk_call_query(const struct wk_call *c, const char *name, char *ret, size_t cap);
/* After any of these the call may be closed and freed at any moment: do not touch it again unless
 * the owner has not heard on_close. `extra`: more header lines or NULL. */
void wk_reply_json(struct wk_call *c, int status, const char *extra, const struct buf *body);
void wk_reply_error(struct wk_call *c, const struct api_err *e);
void wk_refuse(struct wk_call *c, enum api_fault f, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void wk_reply_oom(struct wk_call *c);
/* With b, which is freed; 500 when b has failed. */
void wk_reply_buf(struct wk_call *c, int status, struct buf *b);
int wk_call_headers(const struct wk_call *c, const char *extra, struct buf *out);
int wk_not_ready(struct worker *w, struct api_err *e); /* 0 ready, else e = 503 */

/* ---- text work shared by generation and admin (prep.c); any thread ---- */
struct wk_look {           /* of one record; in this order: asked, settled, found */
    struct store_pin *pin; /* held for the prompt */
    uint64_t held_bytes;   /* charged for the pin */
    bool asked, asking;
    uint64_t batch; /* the same for all looks of a prompt */
    enum store_miss why;
    const char *tier; /* where it was found; NULL: nowhere */
    int status;       /* <0: it was found, but its KV could not be read */
};
struct wk_cut { /* a chunk of a prompt */
    uint32_t tok0, n;
    uint32_t msg, begin, end; /* as the application sent it */
    const char *detector;
    bool own_detector; /* heap copy: the name of a preset */
    struct tier_key key;
    uint64_t text_id; /* seg_text_id() of its bytes as sent */
    /* what the look-up found */
    enum wk_source { WK_COMPUTED, WK_STORED, WK_PREFIX } source;
    bool missed; /* for the reason look.why */
    struct wk_look look;
};
struct wk_prompt { /* one tokenised prompt; wk_prompt_fini() */
    struct tok_ids ids;
    int32_t *own_ids; /* ids.id, or the token ids of the request */
    const int32_t *tok;
    uint32_t n_tok;
    struct wk_cut *cut;
    size_t n_cut;
    struct tier_key *block; /* chained keys of the exact prefix blocks */
    struct wk_look *block_look;
    size_t n_block;
    uint64_t warm_bytes;           /* of the worker's, for this prompt */
    struct worker *held_by;        /* NULL: no look-up was made early */
    const char *id, *alias;        /* of the request, and of its reply; NULL = none. Borrowed */
    unsigned index;                /* of a request with several prompts */
    uint64_t start_ns;             /* when it came; 0 = unknown */
    struct ctl_decision *decision; /* by wk_plan() */
    unsigned guard_level;          /* in force when the plan was made, if it changed it; else 0 */
    struct buf text;               /* prompt text for echo; empty unless asked for */
    struct chat_out chat;
};
struct wk_hints { /* from headers; NULL = absent. Copied strings. */
    char *segments, *mode, *ns, *separator;
};
/* Effective settings of a request: body, then headers, then the worker's defaults. */
struct wk_mode {
    enum pol_strategy wish; /* the mode or, where that is auto or blend, the strategy named */
    enum pol_strategy mode; /* asked for, of the report */
    double ratio, min_ratio, max_ttft_ms; /* -1 = not given */
    bool store;
    char ns[512];
    const char *separator;
    struct seg_whys *whys; /* a preview: filled, and nothing is learned */
};
int wk_mode_of(const struct worker *w, const struct api_req *r, const struct wk_hints *h,
               struct wk_mode *ret, struct api_err *e);
/* Render, tokenise and cut prompt `i` of the request (0 for chat). */
int wk_prepare(const struct worker *w, const struct api_req *r, const struct wk_hints *h,
               const struct wk_mode *m, size_t i, struct wk_prompt *out, struct api_err *e);
void wk_prompt_fini(struct wk_prompt *p);
/* Tokens that lie wholly within bytes [begin, end): *ret_tok0, returns their number. */
uint32_t wk_map_range(const struct tok_ids *ids, size_t begin, size_t end, uint32_t *ret_tok0);
/* Token ids a text will have inside a prompt: between line breaks. mem_free() the result. */
int wk_encode_chunk(const struct worker *w, const char *text, size_t len, int32_t **ret,
                    uint32_t *ret_n);

/* ---- context sensitivity of chunks, measured in idle time (sense.c) ---- */
int wk_senses_create(struct worker *w);
void wk_senses_destroy(struct worker *w); /* after the engine has ended */
/* This record has no scores yet. Thread: any, not from inside a callback of the engine's that holds
 * a lock of ours. A wish too many is dropped: the next request that finds the record asks again. */
void wk_sense_want(struct worker *w, const struct tier_key *key, const char *ns, const int32_t *tok,
                   uint32_t n);
struct wk_sense_stats {
    unsigned n_pending;
    uint64_t n_measured, n_failed;
};
void wk_sense_get_stats(struct worker *w, struct wk_sense_stats *ret);

/* ---- look-ups (asks.c) ---- */
/* Helper thread: ask for all that the prompt may reuse and wait for the answers, not for the KV. */
void wk_ask_prompt(struct worker *w, struct wk_prompt *p, const struct wk_mode *m,
                   const atomic_bool *gone);
void wk_drop_looks(struct worker *w, struct wk_prompt *p);
/* Engine thread: 1 and a pin, 0 a miss (look->why), <0. late_ns: until when a prompt that was not
 * asked for early may wait. */
int wk_find(struct worker *w, double worth_ms, const struct tier_key *key, const int32_t *tok,
            uint32_t n, struct wk_look *l, uint64_t late_ns, struct store_pin **ret);
uint64_t wk_late_ns(void);
/* One look-up by hand: ask, settle, drop. As store_ask(); true = a hit. */
int wk_look_ask(struct worker *w, double worth_ms, const struct tier_key *key, const int32_t *tok,
                uint32_t n, struct wk_look *l);
bool wk_look_settle(struct worker *w, struct wk_look *l, uint64_t until_ns);
void wk_look_drop(struct worker *w, struct wk_look *l);
/* What n reused tokens save, by what prefills have taken so far. m NULL: all of their compute. */
double wk_worth_ms(const struct worker *w, const struct wk_mode *m, uint32_t n);
/* With the controller: what any record of the prompt may be waited for, since it decides later; 0:
 * it is off. */
double wk_prompt_worth_ms(struct worker *w, const struct wk_prompt *p);
void wk_measured(struct worker *w, double prefill_ms, double n_tok); /* engine thread */

/* ---- the plan (chunks.c) ---- */
/* Look up and decide (control.h), on the engine thread: fills ranges, captures and the strategy of
 * plan, and p->decision. The arrays belong to *ret_arena (mem_free). */
int wk_plan(struct worker *w, struct wk_prompt *p, const struct wk_mode *m, struct fus_plan *plan,
            void **ret_arrays, uint32_t *ret_captured);
/* ---- builds (builds.c) ---- */
/* Queue an isolated build of a chunk; loop thread. 0 queued (or already), 1 already stored (when
 * not urgent a request has missed it: only RAM counts), -EAGAIN full. */
int wk_build_queue(struct worker *w, const struct tier_key *key, const char *ns, const int32_t *tok,
                   uint32_t n, bool urgent);
/* Any thread. ns NULL: of whatever namespace. */
bool wk_build_pending(struct worker *w, const struct tier_key *key, const char *ns);
/* A request comes with chunks that another one has missed before: they are built now. Loop. */
void wk_builds_hurry(struct worker *w, const struct wk_prompt *p);
/* Is one of its chunks with the engine, to be built urgently? Any thread. */
bool wk_builds_due(struct worker *w, const struct wk_prompt *p);
struct wk_build_stats {
    unsigned n_pending; /* queued or with the engine */
    uint64_t n_built, n_failed;
};
void wk_builds_get_stats(const struct worker *w, struct wk_build_stats *ret); /* loop */
/* on_built: hears of the end of each build on the loop; NULL: not wanted. */
int wk_builds_create(struct worker *w,
                     void (*on_built)(struct worker *w, const struct tier_key *key, int status));
void wk_builds_destroy(struct worker *w); /* after the engine has ended */
void wk_segments_built(struct worker *w, const struct tier_key *key, int status); /* loop thread */

/* ---- routes (routes.c): the head, which answers whom it turns away; then the body ---- */
void wk_route_head(struct worker *w, struct wk_call *c);
void wk_route(struct worker *w, struct wk_call *c);
void wk_gen_start(struct worker *w, struct wk_call *c, bool chat); /* gen.c */
void wk_gens_tick(struct worker *w);                               /* loop, every 250 ms */
void wk_gens_abort(struct worker *w);
void wk_gens_abandon(struct worker *w); /* at the end: no engine, no server any more */
/* A POST body worked on by a helper: fn fills status and out, or e. */
struct wk_task {
    struct wk_job job;
    struct wk_msg msg;
    struct worker *w;
    struct wk_call *call; /* NULL once closed */
    char *body;
    size_t body_len;
    struct wk_hints hints;
    int (*fn)(struct wk_task *t);
    void (*then)(struct wk_task *t); /* loop thread, after fn succeeded; NULL: reply 200 with out */
    void *data;
    void (*data_free)(void *data);
    struct api_err e;
    struct buf out;
};
void wk_task_start(struct worker *w, struct wk_call *c, int (*fn)(struct wk_task *t),
                   void (*then)(struct wk_task *t));
void wk_task_free(struct wk_task *t);
int wk_hints_read(const struct http_req *r, struct wk_hints *ret);
void wk_hints_fini(struct wk_hints *h);
/* A namespace within the gateway's: a body cannot leave the one its caller was put in. Either may
 * be NULL. -ERANGE when too long. */
int wk_ns_join(char *out, size_t cap, const char *outer, const char *inner);
/* As operators write it: "acme" (of the caller's key), "/team" (of the body), "acme/team". */
int wk_ns_parse(const char *text, char *out, size_t cap);
/* names.c, any thread: what a namespace is called, as far as it was heard of since the start. */
int wk_names_create(struct wk_names **ret);
void wk_names_destroy(struct wk_names *n);
void wk_names_note(struct wk_names *n, const char *ns); /* n may be NULL */
/* As operators write it, in quotes; "/": of nobody's; null: not known. */
int wk_names_put(struct wk_names *n, uint64_t hash, struct buf *out);
void wk_percent_decode(char *s);
void wk_segments_post(struct worker *w, struct wk_call *c); /* segments.c */
void wk_segment_get(struct worker *w, struct wk_call *c, const char *id);
void wk_segment_delete(struct worker *w, struct wk_call *c, const char *id);
int wk_segment_id(struct wk_call *c, const char *id, struct tier_key *ret); /* <0: refused */
void wk_segment_absent(struct wk_call *c, const struct tier_key *k);
/* Whoever's it is (admin), from one tier or from all (NULL). */
void wk_segment_drop(struct worker *w, struct wk_call *c, const char *id, const char *tier);
void wk_segments_fini(struct worker *w);
int wk_admin(struct worker *w, struct wk_call *c, const char *path); /* admin.c: 0 not its path */
int wk_admin_tiers(struct worker *w, struct wk_call *c, const char *path); /* admin_tiers.c */
bool wk_tier_known(const struct worker *w, const char *name);
int wk_tokenize(struct wk_task *t); /* text_routes.c */
int wk_detokenize(struct wk_task *t);

/* ---- which texts are here (feed.c, residents.h) ---- */
void wk_feed_get(struct worker *w, struct wk_call *c); /* GET /admin/residents */
void wk_feed_tick(struct worker *w);                   /* loop, every 250 ms, with a store */
void wk_feed_load(struct worker *w);                   /* loop: who waits for news of the load */
void wk_feed_note(struct worker *w, const struct wk_prompt *p); /* any thread */

/* ---- what waits here, for gateways (load.c); any thread ---- */
int wk_load_create(struct wk_load **ret);
void wk_load_destroy(struct wk_load *l);
/* A prompt's life: queued, its prefill begins, its first token (or it failed), its end. Each is
 * told once at most, none without the one before but the end, which may follow any. */
struct wk_load_item {
    double work_ms; /* predicted */
    enum { WK_LOAD_NONE, WK_LOAD_QUEUED, WK_LOAD_PREFILL, WK_LOAD_DECODE } stage;
    uint64_t begin_ns;
};
void wk_load_queued(struct wk_load *l, struct wk_load_item *i, double work_ms);
void wk_load_begin(struct wk_load *l, struct wk_load_item *i);
/* reused_ms: what its n_reused tokens that were held took; 0 tokens: nothing is learnt from it. */
void wk_load_first(struct wk_load *l, struct wk_load_item *i, double reused_ms, uint64_t n_reused);
void wk_load_end(struct wk_load *l, struct wk_load_item *i);
uint64_t wk_load_seq(struct wk_load *l); /* of the last change; never 0 */
/* docs/api.md, GET /admin/residents: the line "=SEQ …". token_ms: of a computed token. */
int wk_load_put(struct wk_load *l, double token_ms, unsigned slots, struct buf *out);

/* ---- the registry (announce.c); loop ---- */
int wk_announce_start(struct worker *w);  /* once it serves; no --advertise: nothing */
void wk_announce_leave(struct worker *w); /* at once, without waiting for it */
void wk_announce_end(struct worker *w);

/* ---- access log (kvlog.c) ---- */
struct buf;
/* flag: which names the path in messages. */
int wk_kvlog_open(const char *path, const char *flag, struct wk_kvlog **ret, struct err *err);
/* One line, taken over (buf is emptied). Never waits: a full queue drops it and counts. */
void wk_kvlog_put(struct wk_kvlog *l, struct buf *line);
uint64_t wk_kvlog_dropped(struct wk_kvlog *l);
void wk_kvlog_close(struct wk_kvlog *l); /* writes what is queued */

#endif
