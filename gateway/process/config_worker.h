/* config_worker: what the own workers get of the configuration: flags, and secrets by variables.
 *
 * The section `worker:`, or an entry of `models:`, as it stands, and what is said for all programs:
 * the log, traces. Thread: the control loop's. */
#ifndef GATEWAY_PROCESS_CONFIG_WORKER_H
#define GATEWAY_PROCESS_CONFIG_WORKER_H

#include <stddef.h>

struct arena;
struct gw_config;
struct opts;
struct gw_worker_share { /* one own worker of n */
    unsigned number, n;
    const char *device; /* its own of several, which divide --ram and --nvme; NULL: worker.device */
    unsigned n_all;     /* own workers of all models, which share the cores; 0: n */
    const struct opts *model; /* of an entry of `models:`, instead of `worker:` (models.h) */
};
/* Its flags, "--ram=4GiB", …, from the arena: one of several has PATH.N of --nvme and, where no
 * --threads was given, its share of the cores. Their number; -ERANGE: more than cap; -ENOMEM. */
int gw_config_worker_args(const struct gw_config *c, const struct gw_worker_share *share,
                          struct arena *a, const char **out, size_t cap);
/* Secrets among its options come by its environment: sets variables of this process. */
int gw_config_worker_env(const struct gw_config *c);

#endif
