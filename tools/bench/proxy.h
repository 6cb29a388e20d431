/* proxy: what it costs to stand between clients and an OpenAI-compatible server.
 *
 * An origin of our own (a forked process with one epoll loop), wrk as the load, and the proxies
 * under test as children on loopback ports. Every server must pass proxy_check() before it is
 * measured: the origin gets each byte of a body, the client each byte of an answer and each event
 * of a stream, in order. Under load wrk counts answers that are no 200 and connections that break,
 * either of which ends the run. The origin takes and drops request bodies, answers a fixed JSON
 * text, or sends an event per tick and stream, one write each. CPU of a proxy is its process CPU
 * clock, which all its threads share, so that nothing depends on clock ticks.
 * Thread: main; proxy_origin_run() is for a forked child. */
#ifndef TOOLS_BENCH_PROXY_H
#define TOOLS_BENCH_PROXY_H

#include "base/buf.h"
#include "tools/bench/child.h"

#include <stdint.h>

enum { PROXY_ANSWER_BYTES = 1024 /* body of a plain answer */ };

struct proxy_point { /* one cell of the matrix */
    bool sse;
    size_t body_bytes;
    unsigned conns;   /* each with one request under way */
    unsigned tick_us; /* between the events of a stream */
};

/* ---- origin ---- */
/* Listens on a free port of 127.0.0.1. */
int proxy_listen(int *ret_fd, uint16_t *ret_port, struct err *err);
/* n_events: in memory that the caller shares, counts the events that were sent. */
_Noreturn void proxy_origin_run(int listen_fd, volatile uint64_t *n_events);
/* An event of a stream holds its number behind this. */
#define PROXY_EVENT_ID "data: {\"id\":\"chatcmpl-"

/* ---- load ---- */
/* A chat request as JSON of exactly this many bytes, with escapes and UTF-8 beyond ASCII. The
 * fields that the origin reads come first. n_events 0: no stream. */
int proxy_body(size_t bytes, unsigned n_events, unsigned tick_us, struct buf *out);
bool proxy_stream_is_whole(
    const char *text); /* all events of proxy_check()'s, in order, and their end */
/* Does the proxy pass on every byte of bodies, answers and streams? -EBADMSG with a sentence. */
int proxy_check(uint16_t port, struct err *err);

struct proxy_load {
    struct proxy_point point;
    uint16_t port;
    pid_t server; /* whose CPU is measured; 0: none */
    unsigned seconds;
    const char *dir;                   /* for what wrk reads */
    int cpu;                           /* wrk's; -1: any */
    const volatile uint64_t *n_events; /* of the origin */
};
struct proxy_result {
    double wall_s, cpu_s;
    double done;           /* requests, or events */
    double p50_ms, p99_ms; /* of a request; NAN for streams */
};
int proxy_load_run(const struct proxy_load *o, struct proxy_result *ret, struct err *err);

/* ---- servers under test ---- */
struct proxy_server {
    const char *name;
    pid_t pid;
    uint16_t port;
    bool missing; /* its program is not here */
    char version[64];
    struct buf config; /* its configuration file, or its command line */
};
struct proxy_setup {
    char dir[CHILD_PATH_MAX]; /* for configuration files */
    uint16_t origin_port;
    unsigned loops;
    int cpu0, n_cpus; /* the proxies' */
};
/* Names: direct, kvblend, nginx, nginx-stream (no request buffering), nginx-default, haproxy. 0,
 * also when its program is missing. */
int proxy_server_start(struct proxy_setup *s, const char *name, struct proxy_server *ret,
                       struct err *err);
void proxy_server_stop(struct proxy_server *s);

#endif
