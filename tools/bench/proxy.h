/* proxy: what it costs to stand between clients and an OpenAI-compatible server.
 *
 * An origin of our own (a forked process), wrk as the load, and the proxies under test as children
 * on loopback ports. Every server must pass proxy_check() before it is measured: the origin gets
 * each byte of a body, the client each byte of an answer and each event of a stream, in order.
 * Under load wrk counts answers that are no 200 and connections that break, either of which ends
 * the run. CPU of a proxy is its process CPU clock, which all its threads share, so that nothing
 * depends on clock ticks. Thread: main. */
#ifndef TOOLS_BENCH_PROXY_H
#define TOOLS_BENCH_PROXY_H

#include "base/buf.h"
#include "tools/bench/child.h"

#include <stdatomic.h>
#include <stdint.h>

/* ---- origin ---- */
/* POST: takes and drops the body and answers 1 KB; with ?echo the body; with ?events=N&tick_us=T a
 * stream, one event a tick and one write each, then its end. GET: a list of models. */
struct proxy_origin {
    pid_t pid;
    uint16_t port;
    const atomic_ullong *n_events; /* that were sent, by all streams */
};
int proxy_origin_start(int cpu, struct proxy_origin *ret, struct err *err); /* cpu -1: any */
/* Listens on a free port of 127.0.0.1. */
int proxy_listen(int *ret_fd, uint16_t *ret_port, struct err *err);
int proxy_event(unsigned i, struct buf *out);
#define PROXY_LAST_EVENT "data: [DONE]\n\n"

/* ---- servers under test ---- */
struct proxy_setup {
    char dir[CHILD_PATH_MAX]; /* for configuration files */
    struct proxy_origin origin;
    int load_cpu, cpu; /* wrk's and the servers'; -1: any */
    unsigned seconds;  /* of a load */
};
struct proxy_server {
    const char *name;
    pid_t pid; /* 0: none, it is the origin itself */
    uint16_t port;
    bool missing; /* its program is not here */
    char version[64];
    struct buf config; /* its configuration file */
};
/* Names: direct, kvblend, nginx, nginx-stream (no request buffering), nginx-default, haproxy. 0,
 * also when its program is missing. */
int proxy_server_start(const struct proxy_setup *s, const char *name, struct proxy_server *ret,
                       struct err *err);
void proxy_server_stop(struct proxy_server *s);
int proxy_write(const char *path, const struct buf *text, struct err *err); /* a file */

/* ---- load ---- */
struct proxy_point { /* one cell of the matrix */
    size_t body_bytes;
    unsigned conns;   /* each with one request under way */
    unsigned tick_us; /* between the events of a stream; 0: no stream */
};
/* A chat request as JSON of exactly this many bytes, with escapes and UTF-8 beyond ASCII; NUL
 * behind it. */
int proxy_body(size_t bytes, bool stream, struct buf *out);
/* Does the proxy pass on every byte of bodies, answers and streams? -EBADMSG with a sentence. */
int proxy_check(uint16_t port, struct err *err);
/* Does it answer the body with exactly that? query: "" or "?…". */
int proxy_check_answer(uint16_t port, const char *query, const struct buf *body,
                       const struct buf *want, struct err *err);

/* Requests, or events, a second; CPU of one of them; latency of a request, NAN for streams. */
enum { PROXY_RATE, PROXY_CPU_US, PROXY_P50_MS, PROXY_P99_MS, PROXY_FIGURES };
int proxy_load_run(const struct proxy_setup *s, const struct proxy_server *server,
                   const struct proxy_point *p, double ret[PROXY_FIGURES], struct err *err);

#endif
