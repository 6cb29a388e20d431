/* fleet_verify: a measured curve of `kvblend-bench throughput` made again by the simulation, and
 * how far off that is.
 *
 * What is compared is the queue: requests come when they came, and each takes of the engine what
 * the worker said that it took (`engine_ms`). Beside it stands the same with the mean of the point
 * for every request, as a plan has it: the machine's speed changes by a tenth within minutes, and a
 * tenth of its capacity is most of a queue, so the difference between the two is what the machine
 * did. A report without requests has the mean alone, one without `busy_ms` a lone request's time.
 * Thread: any. */
#ifndef TOOLS_BENCH_FLEET_VERIFY_H
#define TOOLS_BENCH_FLEET_VERIFY_H

#include "tools/bench/fleet_sim.h"

#include "base/err.h"

#include <jansson.h>

/* Prints, and adds to meta and rows. o: the worker's order; kind: of its load, without requests.
 * 0, -EINVAL not such a report, -ENOMEM. */
int fleet_verify(const struct fleet_opts *o, const struct fleet_load *kind, const char *path,
                 json_t *meta, json_t *rows, struct err *err);
/* Both curves of those rows as SVG: p95 by how busy the engine was, in times of a lone request, so
 * that strategies share one axis. */
int fleet_verify_plot(const json_t *rows, const char *path, struct err *err);

#endif
