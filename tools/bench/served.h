/* served: the server that a load asks: a worker that the benchmark starts, or another, by its
 * address (`foreign`: no kvblend object in requests). Zeroed → served_start() → served_stop().
 * Thread: one. */
#ifndef TOOLS_BENCH_SERVED_H
#define TOOLS_BENCH_SERVED_H

#include "base/buf.h"
#include "base/opt.h"
#include "tools/bench/child.h"

#include <jansson.h>

struct served {
    char dir[CHILD_PATH_MAX], address[CHILD_PATH_MAX], model_name[128];
    pid_t pid;
    bool foreign;
};
/* The worker takes the options of its names; ready when this returns 0. */
int served_start(struct served *s, const struct opts *opts, const char *model, struct err *err);
void served_stop(struct served *s); /* also what was not started */
/* Texts' KV into the store, and what idle time adds: what is timed then is a worker that knows its
 * documents. */
int served_build(const struct served *s, char *const text[], size_t n, struct err *err);
/* Appends a streaming request for that many tokens, not fewer unless it may_end. Takes kvblend. */
int served_body(const struct served *s, struct buf *text, unsigned n_tokens, bool may_end,
                json_t *kvblend, struct buf *out);
/* Processor time of all the worker's threads since it started; NAN: it is not ours. */
double served_cpu_ms(const struct served *s);
/* The engine's work since it started; NAN: the server does not say. */
enum { SERVED_PREFILL_S, SERVED_DECODE_S, SERVED_BUILD_S, SERVED_METRICS };
void served_metrics(const struct served *s, double ret[SERVED_METRICS]);

#endif
