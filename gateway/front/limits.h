/* limits: how much one API key may use: requests and tokens a minute, requests at once.
 *
 * Two token buckets and a counter per account, as plain arithmetic: no clock, no loop, no HTTP.
 * A bucket holds one minute's worth and refills evenly, so that in any window of t seconds at most
 * limit + limit * t/60 is granted, an idle account gets its whole minute at once, and never more.
 * Levels are whole numbers (a unit is one 60e9th), so that nothing drifts however often it is
 * asked. Tokens are taken by estimate before a request runs and corrected afterwards; a request
 * that used more than its estimate leaves a debt that is paid off before the next one goes.
 * Life cycle: gw_account_create() (one holder) → _ref()/_unref(); every gw_account_enter() that
 * returned GW_LIMIT_OK is answered by exactly one gw_account_leave(). Thread: any; an account locks
 * itself. */
#ifndef GATEWAY_FRONT_LIMITS_H
#define GATEWAY_FRONT_LIMITS_H

#include "gateway/front/admit.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { GW_LIMIT_MAX = 100000000 }; /* tokens a minute: what the arithmetic has room for */

struct gw_limit { /* 0: no limit */
    uint32_t requests_per_min, tokens_per_min, running_max;
};
struct gw_bucket {
    uint64_t spent; /* what is missing from a full bucket, in 1/60e9 */
    uint64_t at_ns; /* when that was true */
};
enum gw_key_use { GW_USE_REQUESTS, GW_USE_LIMITED, GW_USE_PROMPT, GW_USE_COMPLETION, GW_USE_N };
struct gw_account {
    atomic_uint n_refs;
    atomic_ullong use[GW_USE_N]; /* for metrics; the last two in tokens */
    pthread_mutex_t lock;
    /* guarded by lock */
    unsigned n_running;
    struct gw_bucket requests, tokens;
    struct gw_flow flow; /* guarded by the queue's own lock (admit.h) */
};
struct gw_limit_view { /* what the x-ratelimit headers say */
    struct gw_limit limit;
    unsigned n_running;
    uint32_t requests_left, tokens_left;
    uint64_t requests_reset_ns, tokens_reset_ns; /* until the bucket is full again */
};
enum gw_limit_verdict {
    GW_LIMIT_OK,
    GW_LIMIT_REQUESTS,
    GW_LIMIT_TOKENS,
    GW_LIMIT_RUNNING,
    GW_LIMIT_NEVER, /* more tokens than a minute holds: waiting does not help */
};

struct gw_account *gw_account_create(void); /* NULL: out of memory */
struct gw_account *gw_account_ref(struct gw_account *a);
void gw_account_unref(struct gw_account *a);

/* Take one request and `tokens`, all or nothing. ret_view: the state afterwards; ret_wait_ns: when
 * to try again (0 unless refused, and for GW_LIMIT_RUNNING, where it is unknown). */
enum gw_limit_verdict gw_account_enter(struct gw_account *a, const struct gw_limit *l,
                                       uint64_t tokens, uint64_t now_ns,
                                       struct gw_limit_view *ret_view, uint64_t *ret_wait_ns);
/* taken: as given to enter(); used: what it really was. A request that never ran is given back. */
void gw_account_leave(struct gw_account *a, const struct gw_limit *l, uint64_t taken, uint64_t used,
                      bool never_ran);
/* The limits have changed: what was granted at an old rate is not paid for at the new one. */
void gw_account_clamp(struct gw_account *a, const struct gw_limit *l);
void gw_account_view(struct gw_account *a, const struct gw_limit *l, uint64_t now_ns,
                     struct gw_limit_view *ret);

struct buf;
/* The x-ratelimit-{limit,remaining,reset}-{requests,tokens} lines of the limits there are. */
int gw_limit_headers(const struct gw_limit_view *v, struct buf *out);
/* As Go prints durations, which is what the clients parse: "120ms", "7.66s", "6m0s", "0s". */
int gw_limit_duration(uint64_t ns, struct buf *out);

#endif
