/* Token buckets in whole numbers. One request or token is 60e9 units and a limit of L a minute
 * brings L units each nanosecond: refilling is a product, exact at every instant. Rejected: a
 * sliding window of single events (unbounded memory per key) and fixed minutes (twice the limit
 * around a boundary for nothing, and a thundering herd at each). */
#include "gateway/front/limits.h"

#include "base/assert.h"
#include "base/buf.h"
#include "base/mem.h"

enum { MIN_MS = 60000, SEC_MS = 1000 };
static const uint64_t unit = 60000000000ull;

struct gw_account *gw_account_create(void)
{
    struct gw_account *a = mem_zalloc(sizeof *a);
    if (!a) return NULL;
    a->n_refs = 1;
    (void)pthread_mutex_init(&a->lock, NULL);
    return a;
}

struct gw_account *gw_account_ref(struct gw_account *a)
{
    unsigned before = atomic_fetch_add(&a->n_refs, 1);
    ASSERT(before > 0);
    return a;
}

void gw_account_unref(struct gw_account *a)
{
    if (!a) return;
    unsigned before = atomic_fetch_sub(&a->n_refs, 1);
    ASSERT(before > 0);
    if (before > 1) return;
    (void)pthread_mutex_destroy(&a->lock);
    mem_free(a);
}

/* A clock that steps back refills nothing and loses nothing. */
static void refill(struct gw_bucket *b, uint32_t limit, uint64_t now_ns)
{
    if (now_ns <= b->at_ns) return;
    uint64_t elapsed = now_ns - b->at_ns;
    b->at_ns = now_ns;
    if (limit == 0 || elapsed > b->spent / limit)
        b->spent = 0;
    else
        b->spent -= elapsed * limit;
}

static uint64_t capacity(uint32_t limit)
{
    return limit * unit;
}

/* Nanoseconds until n fit. n <= limit. */
static uint64_t wait_for(const struct gw_bucket *b, uint32_t limit, uint64_t n)
{
    uint64_t room = capacity(limit) - n * unit;
    return b->spent <= room ? 0 : (b->spent - room + limit - 1) / limit;
}

static void take_tokens(struct gw_bucket *b, uint64_t n)
{
    uint64_t units = n > UINT64_MAX / unit ? UINT64_MAX : n * unit;
    b->spent = b->spent > UINT64_MAX - units ? UINT64_MAX : b->spent + units;
}

static void give(struct gw_bucket *b, uint64_t n)
{
    uint64_t units = n > UINT64_MAX / unit ? UINT64_MAX : n * unit;
    b->spent = b->spent > units ? b->spent - units : 0;
}

static uint32_t left(const struct gw_bucket *b, uint32_t limit)
{
    uint64_t cap = capacity(limit);
    return b->spent >= cap ? 0 : (uint32_t)((cap - b->spent) / unit);
}

static uint64_t reset_ns(const struct gw_bucket *b, uint32_t limit)
{
    return limit ? b->spent / limit + (b->spent % limit != 0) : 0;
}

static void view(struct gw_account *a, const struct gw_limit *l, uint64_t now_ns,
                 struct gw_limit_view *ret)
{
    refill(&a->requests, l->requests_per_min, now_ns);
    refill(&a->tokens, l->tokens_per_min, now_ns);
    *ret = (struct gw_limit_view){
        .limit = *l,
        .n_running = a->n_running,
        .requests_left = left(&a->requests, l->requests_per_min),
        .tokens_left = left(&a->tokens, l->tokens_per_min),
        .requests_reset_ns = reset_ns(&a->requests, l->requests_per_min),
        .tokens_reset_ns = reset_ns(&a->tokens, l->tokens_per_min),
    };
}

void gw_account_view(struct gw_account *a, const struct gw_limit *l, uint64_t now_ns,
                     struct gw_limit_view *ret)
{
    (void)pthread_mutex_lock(&a->lock);
    view(a, l, now_ns, ret);
    (void)pthread_mutex_unlock(&a->lock);
}

/* Of the two rates; how many run is asked elsewhere. */
static enum gw_limit_verdict check_rates(const struct gw_account *a, const struct gw_limit *l,
                                         uint64_t tokens, uint64_t *ret_wait_ns)
{
    uint64_t wait_requests = 0, wait_tokens = 0;
    *ret_wait_ns = 0;
    if (l->tokens_per_min && tokens > l->tokens_per_min) return GW_LIMIT_NEVER;
    if (l->requests_per_min) wait_requests = wait_for(&a->requests, l->requests_per_min, 1);
    if (l->tokens_per_min) wait_tokens = wait_for(&a->tokens, l->tokens_per_min, tokens);
    if (wait_requests || wait_tokens) {
        *ret_wait_ns = wait_requests > wait_tokens ? wait_requests : wait_tokens;
        return wait_requests > wait_tokens ? GW_LIMIT_REQUESTS : GW_LIMIT_TOKENS;
    }
    return GW_LIMIT_OK;
}

enum gw_limit_verdict gw_account_enter(struct gw_account *a, const struct gw_limit *l,
                                       uint64_t tokens, uint64_t now_ns,
                                       struct gw_limit_view *ret_view, uint64_t *ret_wait_ns)
{
    ASSERT(l->tokens_per_min <= GW_LIMIT_MAX && l->requests_per_min <= GW_LIMIT_MAX);
    (void)pthread_mutex_lock(&a->lock);
    refill(&a->requests, l->requests_per_min, now_ns);
    refill(&a->tokens, l->tokens_per_min, now_ns);
    enum gw_limit_verdict v = check_rates(a, l, tokens, ret_wait_ns);
    if (v == GW_LIMIT_OK && l->running_max && a->n_running >= l->running_max) v = GW_LIMIT_RUNNING;
    if (v == GW_LIMIT_OK) {
        if (l->requests_per_min) take_tokens(&a->requests, 1);
        if (l->tokens_per_min) take_tokens(&a->tokens, tokens);
        a->n_running++;
    }
    view(a, l, now_ns, ret_view);
    (void)pthread_mutex_unlock(&a->lock);
    return v;
}

void gw_account_leave(struct gw_account *a, const struct gw_limit *l, uint64_t taken, uint64_t used,
                      bool never_ran)
{
    (void)pthread_mutex_lock(&a->lock);
    ASSERT(a->n_running > 0);
    a->n_running--;
    if (l->tokens_per_min && used > taken) take_tokens(&a->tokens, used - taken);
    if (l->tokens_per_min && used < taken) give(&a->tokens, taken - used);
    if (l->requests_per_min && never_ran) give(&a->requests, 1);
    (void)pthread_mutex_unlock(&a->lock);
}

void gw_account_clamp(struct gw_account *a, const struct gw_limit *l)
{
    uint64_t requests = capacity(l->requests_per_min), tokens = capacity(l->tokens_per_min);
    (void)pthread_mutex_lock(&a->lock);
    if (a->requests.spent > requests) a->requests.spent = requests;
    if (a->tokens.spent > tokens) a->tokens.spent = tokens;
    (void)pthread_mutex_unlock(&a->lock);
}

/* ---- headers ---- */

int gw_limit_duration(uint64_t ns, struct buf *out)
{
    uint64_t ms = ns / 1000000 + (ns % 1000000 != 0);
    if (ms > 0 && ms < SEC_MS) return buf_addf(out, "%ums", (unsigned)ms);
    int r = 0;
    if (ms >= MIN_MS) r = buf_addf(out, "%llum", (unsigned long long)(ms / MIN_MS));
    return r < 0 ? r : buf_addf(out, "%gs", (double)(ms % MIN_MS) / SEC_MS);
}

static int header_lines(const char *what, uint32_t limit, uint32_t n_left, uint64_t until_ns,
                        struct buf *out)
{
    if (limit == 0) return 0;
    int r = buf_addf(out,
                     "x-ratelimit-limit-%s: %u\r\nx-ratelimit-remaining-%s: %u\r\n"
                     "x-ratelimit-reset-%s: ",
                     what, limit, what, n_left, what);
    if (r == 0) r = gw_limit_duration(until_ns, out);
    return r < 0 ? r : buf_adds(out, "\r\n");
}

int gw_limit_headers(const struct gw_limit_view *v, struct buf *out)
{
    int r = header_lines("requests", v->limit.requests_per_min, v->requests_left,
                         v->requests_reset_ns, out);
    return r < 0 ? r
                 : header_lines("tokens", v->limit.tokens_per_min, v->tokens_left,
                                v->tokens_reset_ns, out);
}
