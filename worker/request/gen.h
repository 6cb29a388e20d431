/* gen: one generation request from its body to its last byte.
 *
 * Stages: helper thread (parse, render, tokenise) → loop (checks, submit) → engine callbacks (text,
 * stop strings, tokens) → loop (frames or one reply). `m` guards what engine and loop share; the
 * rest belongs to the stage that has the request. It is freed on the loop, by gen_news(), when its
 * call is closed, the helper is done with it and every submitted job has ended. A prompt of a list
 * is a job of its own. */
#ifndef WORKER_REQUEST_GEN_H
#define WORKER_REQUEST_GEN_H

#include "worker/api/api_reply.h"
#include "worker/request/request.h"
#include "worker/worker.h"

struct wk_shadow;

struct gen_choice {
    /* engine writes, loop reads; under gen.m */
    struct buf text;
    size_t safe;           /* bytes that may be shown */
    struct api_token *tok; /* with logprobs only */
    size_t n_tok, cap_tok;
    uint64_t n_generated;
    bool finished, stopped; /* stopped: by a stop string, text is cut */
    enum fus_finish finish;
    struct ans said; /* the text as far as it is safe, read; where gen.how asks for it */
    size_t n_read;
    uint64_t n_thought;     /* tokens */
    struct gram_run *bound; /* engine only: what holds for the next token; NULL: nothing */
    struct tok_stream stream;
    uint64_t last_ns; /* engine only */
    /* loop only */
    size_t sent_bytes, sent_chars, sent_tok;
    size_t sent_content, sent_reasoning, sent_calls, sent_args; /* args: of the last call sent */
    bool role_sent, finish_sent;
};
struct gen_prompt {
    struct gen *g;
    struct wk_prompt p;
    void *arrays; /* of the plan */
    uint32_t n_captured;
    struct wk_load_item load;  /* engine; its beginning is the loop's */
    uint64_t told_ns;          /* engine; when `progress` was last set */
    struct fus_job *job;       /* under gen.m; NULL when not running */
    struct wk_shadow *shadow;  /* engine; NULL: not in the guard's sample */
    struct gen_choice *choice; /* [n] */
    /* under gen.m */
    bool started, done;
    bool advanced; /* `progress` has not been sent */
    struct api_progress progress;
    int status;
    struct fus_report report;
    struct fus_times ms;
    double ttft_ms;
};
struct gen {
    struct wk_task t; /* its body is parsed and prepared by a helper; msg: then something is new */
    bool chat;
    uint64_t start_ns;
    /* after the helper */
    struct api_req req;
    struct wk_format format; /* its texts: prompt * n + choice; then the engine's */
    struct ans_how how;      /* how answers are read */
    bool parsed;             /* they are */
    struct gen_prompt *prompt;
    size_t n_prompt;
    /* loop */
    unsigned n_open; /* jobs whose on_done the loop has not seen */
    bool planned;    /* what was missed is known of all prompts */
    bool headers_sent, ended, builds_asked, tokens_counted;
    uint64_t last_write_ns;
    char id[WK_REPLY_ID_BYTES], request_id[WK_ID_BYTES];
    char trace[TRACE_ID_BYTES]; /* "": none is kept */
    int64_t created;
    pthread_mutex_t m;
    bool fresh; /* under m: something to look at */
};

/* gen_engine.c: callbacks, and what to submit */
int gen_submit(struct gen *g, struct gen_prompt *p);
void gen_cancel_jobs(struct gen *g);
/* gen_out.c: everything that is written to the client; loop thread */
void gen_flush(struct gen *g); /* frames of what is new; the end when all is done */
void gen_fail(struct gen *g, const struct api_err *e);
void gen_silence(struct gen *g, uint64_t now_ns); /* headers after the grace, comments */
/* gen_said.c: what was read of a choice, number `index` of the request; gen.m is held */
/* What a stream has not sent, which counts as sent then: no more than one call's piece, in *call.
 * False: there is nothing. */
bool gen_said_new(const struct gen *g, struct gen_choice *c, unsigned index, struct api_call *call,
                  struct api_said *ret);
/* All of it; the caller mem_free()s ret->call. 0, -ENOMEM. */
int gen_said_all(const struct gen *g, const struct gen_choice *c, unsigned index,
                 struct api_said *ret);
/* gen_report.c: the `kvblend` object, usage, the access log's line */
enum { GEN_TIERS_MAX = STORE_TIERS_MAX + 1 };
struct gen_hits { /* records that were used, by tier */
    struct {
        const char *name;
        unsigned hits;
        uint64_t tokens;
    } tier[GEN_TIERS_MAX];
    size_t n;
};
void gen_hits(const struct gen *g, struct gen_hits *ret);
void gen_put_report(struct gen *g, bool explain, struct buf *out); /* `,"kvblend":{…}` */
void gen_usage(struct gen *g, struct api_usage *ret);
/* The mode as asked for; of auto, what came of it. */
const char *gen_mode_name(const struct gen *g, enum pol_strategy s);
void gen_put_spans(struct gen *g); /* gen_spans.c: into its call, which is traced, as it closes */
void gen_count(struct gen *g);     /* metrics, once; also of what was cut short */
void gen_log(const struct gen *g); /* the access log's line, once the engine is done with it */

#endif
