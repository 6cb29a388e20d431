/* proxy: what it costs to stand between clients and an OpenAI-compatible server.
 *
 * An origin and a load generator of our own, each a forked process with one epoll loop, and the
 * proxies under test as children on loopback ports. Closed loop: a connection sends its next
 * request when the last answer is complete and was checked (status, length; of a stream: number
 * and order of events, [DONE]). The origin takes and drops request bodies, answers a fixed JSON
 * text, or sends an event per tick and stream, one write each. CPU of a proxy is its process CPU
 * clock, which all its threads share, so that nothing depends on clock ticks.
 * Thread: main; proxy_origin_run() and proxy_load_run() are for forked children. */
#ifndef TOOLS_BENCH_PROXY_H
#define TOOLS_BENCH_PROXY_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum {
    PROXY_ANSWER_BYTES = 1024, /* body of a plain answer */
    PROXY_WHY_MAX = 160,
    PROXY_PATH_MAX = 256,
};

/* A program of ours: beside this one, where it was built (a path from here), else on PATH. */
void proxy_program(const char *name, const char *built, char ret[PROXY_PATH_MAX]);

struct proxy_point { /* one cell of the matrix */
    bool sse;
    size_t body_bytes;
    unsigned conns;   /* each with one request under way */
    unsigned tick_us; /* between the events of a stream */
};

/* A chat request as JSON of exactly this many bytes, with escapes and UTF-8 beyond ASCII. The
 * fields that the origin reads come first. n_events 0: no stream. */
int proxy_body(size_t bytes, unsigned n_events, unsigned tick_us, struct buf *out);

/* ---- origin ---- */
/* Listens on a free port of 127.0.0.1. */
int proxy_listen(int *ret_fd, uint16_t *ret_port, struct err *err);
_Noreturn void proxy_origin_run(int listen_fd);

/* ---- load generator ---- */
struct proxy_load {
    struct proxy_point point;
    uint16_t port;
    pid_t server; /* whose CPU is measured; 0: none */
    double warm_s, seconds;
};
struct proxy_result {
    bool ok;
    char why[PROXY_WHY_MAX];
    double wall_s, cpu_s;
    uint64_t done;         /* requests, or events, within the window */
    uint64_t reads;        /* that brought them */
    double p50_ms, p99_ms; /* of a request; from the origin's write to the client for an event */
};
void proxy_load_run(const struct proxy_load *o, struct proxy_result *ret);
/* One request whose body comes back as a hash: does the proxy pass on every byte? */
int proxy_check(uint16_t port, size_t body_bytes, struct err *err);

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
    char dir[PROXY_PATH_MAX]; /* for configuration files; removed by proxy_setup_fini() */
    uint16_t origin_port;
    unsigned loops;
    int cpu0, n_cpus; /* the proxies' */
};
/* Names: direct, kvblend, nginx, nginx-stream (no request buffering), haproxy. 0, also when its
 * program is missing. */
int proxy_server_start(struct proxy_setup *s, const char *name, struct proxy_server *ret,
                       struct err *err);
void proxy_server_stop(struct proxy_server *s);
void proxy_setup_fini(struct proxy_setup *s);
void proxy_pin(int cpu0, int n_cpus); /* this process; -1: leave it */

#endif
