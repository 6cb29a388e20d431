/* redis_kit: records, ops that wait and tiers, for tests of the Redis tier. Thread: any. */
#ifndef TESTS_UNIT_TIERS_REDIS_KIT_H
#define TESTS_UNIT_TIERS_REDIS_KIT_H

#include "base/clock.h"
#include "base/mem.h"
#include "tests/unit/tiers/redis_server.h"
#include "tiers/redis/redis.h"
#include "tiers/redis/redis_frame.h"

#include <pthread.h>

struct rec {
    struct record_desc desc;
    struct record_layout l;
    int32_t *tok;
    uint8_t *mem; /* the parts end to end */
    uint8_t **part;
};
struct rec rec_empty(const struct record_desc *d);
/* A sealed record; its bytes are a function of the seed and their place. */
struct rec rec_make(uint64_t seed, uint32_t L, uint32_t G, uint32_t K, uint32_t n);
void rec_free(struct rec *r);
void rec_same(const struct rec *a, const struct rec *b);

struct waiter {
    pthread_mutex_t m;
    pthread_cond_t c;
    struct tier_op op;
    int status, n_done;
    uint32_t n_parts, first; /* parts that arrived; the first of them */
    int stop_at;             /* on_part() says no to this one; -1 never */
    struct rec *late;        /* memory of parts above 0 comes with part 0 */
};
void waiter_init(struct waiter *w, struct rec *r);
int waiter_wait(struct waiter *w);  /* the status; -1000: ended twice or not within a minute */
bool waiter_over(struct waiter *w); /* has it ended? */
void waiter_fini(struct waiter *w);
int do_write(struct tier *t, struct rec *r);
int do_read(struct tier *t, struct rec *r);
int do_drain(struct tier *t);

struct tier *tier_at(const char *url, struct tier_redis_opts o);
struct tier *tier_of(const struct redis_server *s);
struct tier *impatient(const struct redis_server *s); /* with short timeouts */
struct tier_stat stat_of(struct tier *t);

void key_text(const struct rec *r, char ret[64]);
uint64_t gen_of(const struct redis_server *s, const char *key); /* as its info says */

#endif
