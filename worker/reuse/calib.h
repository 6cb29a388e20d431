/* calib: what this machine takes to compute with this model, by timing short real prefills.
 *
 * ctl_calibrate() runs full prefills of growing length, then reuse and scoring over stored KV (of
 * random numbers: only the time counts), and has policy/cost fit the terms of struct pol_cost. A
 * second or two; the result is kept in `cache_dir` under machine, model, threads, GEMM and the
 * layers that are scored: a file of another key, version or of nonsense is ignored and replaced.
 * Not for a core that is busy: before the engine starts, or with none.
 * Used by the worker and kvblend-bench; no HTTP, no store. Thread: the core's. */
#ifndef WORKER_REUSE_CALIB_H
#define WORKER_REUSE_CALIB_H

#include "fusor/core/profile.h"
#include "policy/control.h"

struct ctl_calib_opts {
    const char *cache_dir; /* NULL: measure, keep nothing */
    double budget_s;       /* about; 0 = 2. One prefill of 64 tokens is run however long it takes */
    bool fresh;            /* measure, whatever the cache holds */
    enum kn_dtype kv_dtype; /* that records are stored in */
};
/* 1 measured, 0 from the cache; <0 with a sentence: *ret untouched. */
int ctl_calibrate(struct fus_core *c, const struct fus_profile *p, const struct ctl_calib_opts *o,
                  struct pol_cost *ret, struct err *err);

#endif
