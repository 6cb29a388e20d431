/* opts_table: what a worker can be told about its model, its records and its answers.
 *
 * The worker reads it from flags and KVBLEND_WORKER_* variables; the gateway takes the same options
 * as its section `worker:` and hands to its own workers what was given. What is about one process
 * (its address, its keys) stands in opts.c. Thread: any; constant. */
#ifndef WORKER_OPTS_TABLE_H
#define WORKER_OPTS_TABLE_H

#include "base/opt.h"

extern const struct opt_def wk_opts_table[]; /* ended by {0} */

#endif
