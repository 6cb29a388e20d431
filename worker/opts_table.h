/* opts_table: what a worker can be told about its model, its records and its answers.
 *
 * The worker reads it from flags and KVBLEND_WORKER_* variables; the gateway takes the same options
 * as its section `worker:` and hands to its own workers what was given. What is about one process
 * (its address, its keys) stands in opts.c. Thread: any; constant. */
#ifndef WORKER_OPTS_TABLE_H
#define WORKER_OPTS_TABLE_H

#include "base/opt.h"

extern const struct opt_def wk_opts_table[]; /* ended by {0} */

/* The inner forms of some of its texts; 0 or -EINVAL. A namespace is the text's first bytes, 0: of
 * all; sizes that are not named are 0. */
int wk_parse_quota(const char *text, size_t *ret_ns_len, uint64_t *ret_ram, uint64_t *ret_nvme);
int wk_parse_ttl(const char *text, size_t *ret_ns_len, uint64_t *ret_ms);
int wk_parse_kv_pages(const char *text, uint64_t *ret_bytes, uint64_t *ret_reserve);
int wk_parse_guard(const char *text, double *ret_share, double *ret_kl); /* kl 0: by the profile */

#endif
