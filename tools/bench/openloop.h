/* openloop: sends requests at given times, whether or not earlier ones were answered, and times the
 * streams that come back.
 *
 * Open loop, because a closed one slows down with the server and hides its queue (coordinated
 * omission): times count from when a request was due. Beside them long streams may run, each sent
 * again when it has ended: what a reader of an answer feels while others come. One HTTP loop on the
 * calling thread; any OpenAI-compatible server. Thread: caller's. */
#ifndef TOOLS_BENCH_OPENLOOP_H
#define TOOLS_BENCH_OPENLOOP_H

#include "base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;

struct openloop_shot { /* of one request; times in ms from when it was due, < 0 = never */
    double ttft_ms, end_ms;
    double gap_ms_max; /* longest pause between two pieces of text */
    unsigned n_pieces; /* of text */
    unsigned n_prompt; /* tokens, as the server counts them; 0 = it did not say */
    unsigned n_cached; /* of them */
    double queue_ms, prefill_ms, engine_ms; /* as a kvblend worker explains itself (docs/api.md) */
    int http_status, err;                   /* err: of the exchange, 0 or negative errno */
};
struct openloop_gap { /* between two pieces of one answer */
    bool of_stream;
    bool alone; /* no request was due yet */
    double ms;
};
struct openloop_streams {
    size_t n;
    double alone_s; /* they run that long before the first request is due, all of them answering */
    int (*body)(void *ctx, size_t i, struct buf *out); /* of the i-th that is begun */
    double answering_s; /* out: while requests were under way, over all of them */
    double load_s;      /* out: how long that was */
};
/* What each request asks first, all at once, before its own call: MapReduce. Its time runs on
 * meanwhile; a call that fails fails the request. */
struct openloop_calls {
    size_t n; /* of each request, at least 1 */
    int (*body)(void *ctx, size_t i, size_t call, struct buf *out); /* a streaming one */
    /* The request's own call, from the texts [n] that came. NULL: it makes none, one of the texts
     * is its answer, which begins when the last of them has come (MapRerank). */
    int (*own)(void *ctx, size_t i, struct buf *text, struct buf *out);
};
struct openloop_opts {
    const char *address; /* HOST:PORT or unix:/path */
    const char *path;    /* "/v1/chat/completions" */
    const double *at_s;  /* [n] ascending */
    size_t n;
    double give_up_s; /* requests still open that long after the last was due are cut */
    /* Body of request i, a streaming one; not used with `calls`. */
    int (*body)(void *ctx, size_t i, struct buf *out);
    void *ctx;
    const struct openloop_calls *calls;                      /* NULL: a request is one call */
    struct openloop_streams *streams;                        /* NULL: none */
    void (*on_gap)(void *ctx, const struct openloop_gap *g); /* may be NULL */
    bool (*stopped)(void); /* asked often: has nobody a use for the rest? May be NULL: never */
};
/* ret [n] is filled. 0, -ECANCELED when it was stopped, -EIO when a stream got no answer before the
 * requests began, or what kept it from running at all. */
int openloop_run(const struct openloop_opts *o, struct openloop_shot *ret, struct err *err);
/* One plain exchange: body NULL = GET. The HTTP status or <0; ret_body may be NULL. */
int openloop_call(const char *address, const char *path, const char *body, struct buf *ret_body,
                  unsigned timeout_ms);

#endif
