/* redis_worker: what a worker does with its store, for tests: builds records, looks them up, checks
 * every byte, and keeps count. Two of them with one URL are two workers on two hosts.
 *
 * Record `id` of a shape has content that only its id decides, so any worker can check it. A
 * look-up that is not a whole, right record is one of: missed (why says which way), late (a layer
 * did not come: the caller would compute), wrong (other bytes) or failed (an error). The last two
 * must never happen. Counters are atomic: loads run on threads of their own. */
#ifndef TESTS_UNIT_TIERS_REDIS_WORKER_H
#define TESTS_UNIT_TIERS_REDIS_WORKER_H

#include "tests/test.h"
#include "tiers/store.h"
#include "tiers/store_admin.h"

#include <pthread.h>
#include <stdatomic.h>

struct shape {
    uint32_t L, n_tok; /* a layer is n_tok KiB */
};
extern const struct shape SHAPE_SMALL; /* 32 KiB in one part */
extern const struct shape SHAPE_LARGE; /* 2 MiB in two parts */

struct tally {
    atomic_uint hits, late, wrong, failed, why[STORE_MISS_COUNT], from_ram;
    atomic_ullong slowest_ms;
};
unsigned tally_missed(const struct tally *t);
unsigned tally_asked(const struct tally *t);

struct worker {
    struct store *store;
    struct shape shape;
    struct tier_ident ident;
    const char *ns;
    struct tally tally;
};
void worker_start(struct worker *w, struct shape shape, const char *url);
/* Fails the test if an answer was wrong, a look-up failed, or one took 20 s. */
void worker_stop(struct worker *w);
/* Starts a worker whose server must not be used, and waits until that shows: it goes on without
 * the tier, the breaker is open, and the reason does not contain `secret`. */
void worker_is_refused(struct worker *w, const char *url, const char *secret);

/* Builds record `id`: 1, or 0 when it is there already. */
int worker_build(struct worker *w, unsigned id);
void worker_build_all(struct worker *w, unsigned lo, unsigned hi); /* and writes them behind */
bool worker_flush(struct worker *w);                               /* all is written */

/* Looks up record `id`, from the tier if `forget` (RAM's copy is dropped before): 1 whole and
 * right; 0 not, and counted. worth_ms as in store_ask. */
int worker_get(struct worker *w, unsigned id, bool forget, double worth_ms);
unsigned worker_get_all(struct worker *w, unsigned lo, unsigned hi); /* how many were right */

void worker_print(const struct worker *w); /* the tally, one line */
void worker_stat(struct worker *w, struct store_tier_stats *ret);
struct tier_stat worker_tier_stat(struct worker *w);
bool worker_is_open(struct worker *w);                 /* a breaker is */
bool worker_comes_back(struct worker *w, unsigned id); /* record `id` is a hit, none is open */

/* Threads that look up random ones of [0, n), or build new ones from `n` on. */
struct worker_load {
    struct worker *w;
    unsigned n;
    double worth_ms;
    bool builds;
    atomic_bool stop;
    atomic_uint n_done, n_built;
    uint64_t seed;
    pthread_t thread;
};
void worker_load_start(struct worker_load *l);
void worker_load_stop(struct worker_load *l);

#endif
