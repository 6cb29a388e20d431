/* openloop: sends requests at given times, whether or not earlier ones were answered, and times the
 * streams that come back.
 *
 * Open loop, because a closed one slows down with the server and hides its queue (coordinated
 * omission): times count from when a request was due. Beside them long streams may run, each sent
 * again when it has ended: what a reader of an answer feels while others come. One HTTP loop on the
 * calling thread; any OpenAI-compatible server. Thread: caller's. */
#ifndef TOOLS_BENCH_OPENLOOP_H
#define TOOLS_BENCH_OPENLOOP_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>

struct openloop_shot {                      /* of one request */
    double ttft_ms, end_ms;                 /* from when it was due; NAN: never */
    double queue_ms, prefill_ms, engine_ms; /* as a kvblend worker explains itself (docs/api.md) */
    double gap_ms_max;                      /* longest pause between two pieces of text */
    unsigned n_pieces;                      /* of text */
    unsigned n_prompt;               /* tokens, as the server counts them; 0 = it did not say */
    unsigned n_cached, n_recomputed; /* of them: taken from a cache; found there, computed again */
    int http_status, err;            /* err: of the exchange, 0 or negative errno */
};
enum { OPENLOOP_CALLS_MAX = 256, OPENLOOP_STREAM = OPENLOOP_CALLS_MAX + 1 };
struct openloop_opts {
    const char *address; /* HOST:PORT or unix:/path */
    const char *path;    /* "/v1/chat/completions" */
    const double *at_s;  /* [n] ascending */
    size_t n;
    double give_up_s; /* requests still open that long after the last was due are cut */
    /* What each request asks first, all at once, before its own call: MapReduce. Its time runs on
     * meanwhile; a call that fails fails the request. no_own: it makes none, one of the texts is
     * its answer, which begins when the last of them has come (MapRerank). */
    unsigned n_calls;
    bool no_own;
    /* Streams run alone until all of them answer and for alone_s more; then the requests' time
     * begins. */
    unsigned n_streams;
    double alone_s;
    /* Body of a streaming call: the k-th of those that request i asks first, or with k = n_calls
     * its own, from the texts that came [n_calls]; with OPENLOOP_STREAM of the i-th stream. */
    int (*body)(void *ctx, size_t i, unsigned k, const char *const text[], struct buf *out);
    void *ctx;
    bool (*stopped)(void); /* asked often: is there no use for the rest? May be NULL: never */
};
enum openloop_gap { OPENLOOP_REQUESTS, OPENLOOP_STREAMS, OPENLOOP_ALONE, OPENLOOP_GAPS };
struct openloop_ret {           /* openloop_ret_fini() */
    struct openloop_shot *shot; /* [n] */
    /* Doubles, ms between two pieces of one answer: of requests, of streams beside them and before
     * the first was due. */
    struct buf gap[OPENLOOP_GAPS];
    double answering_s; /* of streams while requests were under way, over all of them */
    double load_s;      /* how long that was */
};
/* 0, -ECANCELED when it was stopped, -EIO when a stream got no answer before the requests began, or
 * what kept it from running at all. */
int openloop_run(const struct openloop_opts *o, struct openloop_ret *ret, struct err *err);
void openloop_ret_fini(struct openloop_ret *r);
/* One plain exchange: body NULL = GET. The HTTP status or <0; appends to ret_body, may be NULL. */
int openloop_call(const char *address, const char *path, const char *body, struct buf *ret_body,
                  unsigned timeout_ms);

#endif
