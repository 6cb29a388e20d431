/* models: further models of a gateway's own, each served by a worker process beside those of
 * `model:`: one that crashes, or is out of memory, takes no other with it.
 *
 * An entry is a path, when its worker runs ("load=on_demand idle=10m"; else always), and options of
 * that worker, "PATH threads=2 served_model_name=emb", by the names of the section `worker:`. That
 * section is `model:`'s, since most of it (RAM, NVMe file, context) is about one model: what an
 * entry does not say has the option's own default.
 * gw_models_parse() → reads → gw_models_free(). Thread: any; constant. */
#ifndef GATEWAY_PROCESS_MODELS_H
#define GATEWAY_PROCESS_MODELS_H

#include "base/err.h"
#include "base/opt.h"

struct gw_strs;
struct gw_model {
    char *path;
    struct opts *opts; /* worker/opts_table.h */
    bool on_demand;    /* load=on_demand: a request starts its worker */
    uint32_t idle_ms;  /* idle=: so long without one, and the worker is ended; 0: never */
};
struct gw_models {
    struct gw_model *v;
    size_t n;
};
/* -EINVAL: err names the entry and what is wrong with it; -ENOMEM. */
int gw_models_parse(const struct gw_strs *entries, struct gw_models *ret, struct err *err);
/* The name that its worker will list. */
const char *gw_model_name(const struct gw_model *m, char *ret, size_t cap);
void gw_models_free(struct gw_models *m); /* accepts {0} */

#endif
