/* The tier's functions and its thread.
 *
 * Callers put an op into the inbox under the lock and wake the thread; everything else, connections
 * included, belongs to the thread and needs no lock. It sleeps in epoll_wait() alone, so a server
 * that does not answer holds up nothing but its own ops, and those until their deadline. */
#include "tiers/redis/redis_int.h"

#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>
#include <xxhash.h>

enum {
    EVENTS_MAX = 64,
    TICK_BUSY_MS = 5, /* chosen: how late a deadline may be noticed */
    TICK_IDLE_MS = 250,
    SCAN_COUNT = 256,
    SCAN_TIMEOUT_MS = 10000,
    BULK_MAX = 256 << 20, /* chosen: half of proto-max-bulk-len, the server's limit */
};
static const uint64_t TOUCH_NS = 60ull * 1000 * 1000 * 1000; /* cited: memcached, CacheLib */

static struct redis_tier *of(struct tier *t)
{
    return (struct redis_tier *)t;
}

/* ---- the queue ---- */

struct rop *redis_rop_new(struct redis_tier *t, enum rop_kind kind, const struct tier_key *k,
                          size_t extra)
{
    struct rop *r = mem_alloc(sizeof *r + extra);
    if (!r) return NULL;
    memset(r, 0, sizeof *r);
    r->kind = kind;
    r->submitted_ns = clock_ns();
    if (!k) return r;
    char hex[33];
    r->key = *k;
    tier_key_hex(k, hex);
    int n = snprintf(r->rkey, sizeof r->rkey, "%s%s", t->url.prefix, hex);
    ASSERT(n > 0 && n < (int)sizeof r->rkey);
    r->rkey_len = (size_t)n;
    r->slot = redis_slot(r->rkey, r->rkey_len);
    return r;
}

void redis_rop_free(struct rop *r)
{
    if (r) mem_free(r->text);
    mem_free(r);
}

int redis_submit(struct redis_tier *t, struct rop *r)
{
    uint64_t one = 1;
    pthread_mutex_lock(&t->m);
    int s = t->stopping ? -ECANCELED : t->n_ops >= t->o.queue_ops ? -EAGAIN : 0;
    bool wake = s == 0 && !t->woken;
    if (s == 0) {
        TAILQ_INSERT_TAIL(&t->inbox, r, link);
        t->n_ops++;
        t->woken = true;
        t->stat.inflight_bytes += r->bytes;
    } else if (s == -EAGAIN && r->kind == ROP_WRITE) {
        t->stat.rejected[TIER_REJECT_BUSY]++;
    }
    pthread_mutex_unlock(&t->m);
    if (wake && write(t->wake, &one, sizeof one) < 0) ASSERT(errno == EAGAIN); /* awake already */
    return s;
}

static void count_op(struct tier_stat *st, const struct rop *r, int status)
{
    bool write = r->kind != ROP_READ;
    st->inflight_bytes -= r->bytes;
    if (r->kind > ROP_WRITE) return;
    tier_stat_count(st, write, status, r->bytes, r->submitted_ns, r->first_ns);
    if (write && status == 0) st->device_written_bytes += r->bytes;
    st->corrupt += status == -EBADMSG;
    st->rejected[TIER_REJECT_FULL] += status == -ENOSPC;
}

void redis_rop_end(struct redis_tier *t, struct rop *r, int status)
{
    if (r->op) r->op->on_done(r->op, status);
    pthread_mutex_lock(&t->m);
    count_op(&t->stat, r, status);
    if (r->call) {
        r->call->status = status;
        r->call->done = true;
    }
    t->n_ops--;
    if (t->n_ops == 0 || r->call) pthread_cond_broadcast(&t->idle);
    pthread_mutex_unlock(&t->m);
    redis_rop_free(r);
}

/* A removal overtakes writes that have not begun: they would bring the record back. */
static void call_off(struct redis_tier *t, const struct tier_key *k)
{
    for (int p = 0; p < TIER_PRIO_COUNT; p++) {
        struct rop *r, *next;
        for (r = TAILQ_FIRST(&t->waiting[p]); r; r = next) {
            next = TAILQ_NEXT(r, link);
            if (r->kind != ROP_WRITE || !tier_key_same(&r->key, k)) continue;
            TAILQ_REMOVE(&t->waiting[p], r, link);
            redis_rop_end(t, r, -ECANCELED);
        }
    }
}

static bool take_inbox(struct redis_tier *t)
{
    struct rop_list in = TAILQ_HEAD_INITIALIZER(in);
    pthread_mutex_lock(&t->m);
    TAILQ_CONCAT(&in, &t->inbox, link);
    t->woken = false;
    bool stopping = t->stopping;
    pthread_mutex_unlock(&t->m);
    struct rop *r;
    while ((r = TAILQ_FIRST(&in))) {
        TAILQ_REMOVE(&in, r, link);
        if (r->removes) call_off(t, &r->key);
        t->n_removes += r->removes;
        TAILQ_INSERT_TAIL(&t->waiting[r->prio], r, link);
        t->dirty = true;
    }
    return !stopping;
}

static void *thread_main(void *arg)
{
    struct redis_tier *t = arg;
    uint64_t tick_ns = 0;
    sigset_t all;
    sigfillset(&all); /* signals are the program's; SIGPIPE of a TLS socket means nothing */
    (void)pthread_sigmask(SIG_BLOCK, &all, NULL);
    (void)pthread_setname_np(pthread_self(), "tier-redis");
    for (;;) {
        struct epoll_event ev[EVENTS_MAX];
        bool busy = redis_any_waiting(t) || redis_net_busy(t);
        int n = epoll_wait(t->epoll, ev, EVENTS_MAX, busy ? TICK_BUSY_MS : TICK_IDLE_MS);
        t->now_ns = clock_ns();
        for (int i = 0; i < n; i++) {
            uint64_t v;
            if (ev[i].data.ptr)
                redis_conn_event(ev[i].data.ptr, ev[i].events, t->now_ns);
            else if (read(t->wake, &v, sizeof v) < 0)
                ASSERT(errno == EAGAIN);
        }
        if (!take_inbox(t)) break;
        if (t->now_ns >= tick_ns) {
            redis_end_ops(t, 0);
            redis_net_tick(t);
            tick_ns = t->now_ns + TICK_BUSY_MS * 1000000ull / 2;
        }
        /* What ends may begin something else: until nothing changes. */
        for (int round = 0; round < 8; round++) {
            redis_net_reap(t);
            if (!t->dirty) break;
            t->dirty = false;
            redis_pump(t);
        }
        redis_net_flush(t);
    }
    redis_net_close(t);
    redis_end_ops(t, -ECANCELED);
    while (take_inbox(t), redis_any_waiting(t)) /* what the last callbacks submitted */
        redis_end_ops(t, -ECANCELED);
    return NULL;
}

/* ---- the tier's functions ---- */

static int redis_find(struct tier *tier, const struct tier_key *k)
{
    return atomic_load_explicit(&of(tier)->usable, memory_order_relaxed) ? -EAGAIN : 0;
}

static uint64_t new_gen(struct redis_tier *t)
{
    static atomic_uint_fast64_t n;
    uint64_t v[3] = {t->seed, atomic_fetch_add(&n, 1), clock_ns()};
    return XXH3_64bits(v, sizeof v);
}

static bool fits_a_field(const struct record_layout *l)
{
    return l->header_bytes <= BULK_MAX && (l->n_parts == 1 || record_part_bytes(l, 1) <= BULK_MAX);
}

static int submit_op(struct redis_tier *t, struct tier_op *op, enum rop_kind kind)
{
    int s = tier_op_check(op, kind != ROP_READ);
    if (s == 0 && !fits_a_field(op->layout)) s = -ENOSPC;
    if (s == -ENOSPC && kind != ROP_READ) {
        pthread_mutex_lock(&t->m);
        t->stat.rejected[TIER_REJECT_SIZE]++;
        pthread_mutex_unlock(&t->m);
    }
    if (s < 0) return s;
    if (!atomic_load_explicit(&t->usable, memory_order_relaxed)) return -EIO;
    const struct record_layout *l = op->layout;
    uint64_t tails = redis_tails_bytes(l);
    bool own_part0 = kind == ROP_READ && op->part_lo > 0;
    struct rop *r = redis_rop_new(t, kind, &op->key, tails + (own_part0 ? l->header_bytes : 0));
    if (!r) return -ENOMEM;
    r->op = op;
    r->prio = op->prio;
    r->deadline_ns = op->deadline_ns;
    r->own.tails = r->extra;
    r->own.part0 = own_part0 ? r->extra + tails : NULL;
    r->next = op->part_lo > 0 ? op->part_lo : 1;
    r->n_parts = op->part_hi > r->next ? op->part_hi - r->next : 0;
    r->gen = new_gen(t);
    for (uint32_t p = op->part_lo; p < op->part_hi; p++)
        r->bytes += record_part_bytes(l, p);
    s = redis_submit(t, r);
    if (s < 0) redis_rop_free(r);
    return s;
}

static int redis_read(struct tier *tier, struct tier_op *op)
{
    return submit_op(of(tier), op, ROP_READ);
}

static int redis_write(struct tier *tier, struct tier_op *op)
{
    return submit_op(of(tier), op, ROP_WRITE);
}

static int redis_remove(struct tier *tier, const struct tier_key *k, bool also_pinned)
{
    redis_text(of(tier), k, TIER_DEMAND, 2, (const char *[]){"UNLINK", NULL});
    return 1;
}

/* At most once a minute per key, as long as no other key takes its place in the table. */
static void redis_touch(struct tier *tier, const struct tier_key *k)
{
    struct redis_tier *t = of(tier);
    uint64_t now = clock_ns();
    size_t i = k->lo % TOUCH_TABLE;
    pthread_mutex_lock(&t->m);
    bool again = t->touched[i].key == k->hi && now - t->touched[i].at_ns < TOUCH_NS;
    if (!again) {
        t->touched[i].key = k->hi;
        t->touched[i].at_ns = now;
    }
    pthread_mutex_unlock(&t->m);
    if (again || !atomic_load(&t->usable)) return;
    char ttl[24];
    snprintf(ttl, sizeof ttl, "%llu", (unsigned long long)t->ttl_ms);
    if (t->ttl_ms)
        redis_text(t, k, TIER_BEHIND, 3, (const char *[]){"PEXPIRE", NULL, ttl});
    else
        redis_text(t, k, TIER_BEHIND, 2, (const char *[]){"TOUCH", NULL});
}

static int redis_set_pinned(struct tier *tier, const struct tier_key *k, bool pinned)
{
    return -ENOTSUP;
}

static int redis_set_quota(struct tier *tier, uint64_t ns_hash, uint64_t bytes)
{
    return -ENOTSUP;
}

static int redis_resize(struct tier *tier, uint64_t capacity_bytes)
{
    return -ENOTSUP;
}

static int redis_add_memory(struct tier *tier, void *base, size_t size_bytes)
{
    return -ENOTSUP;
}

static int redis_set_policy(struct tier *tier, enum evict_policy p)
{
    return -ENOTSUP;
}

static void redis_stat(struct tier *tier, struct tier_stat *ret)
{
    struct redis_tier *t = of(tier);
    pthread_mutex_lock(&t->m);
    *ret = t->stat;
    ret->inflight_ops = t->n_ops;
    pthread_mutex_unlock(&t->m);
}

static int redis_drain(struct tier *tier, uint64_t deadline_ns)
{
    struct redis_tier *t = of(tier);
    int r = 0;
    pthread_mutex_lock(&t->m);
    while (t->n_ops > 0 && r == 0)
        r = wait_until(&t->idle, &t->m, deadline_ns);
    int s = t->n_ops == 0 ? 0 : -ETIMEDOUT;
    pthread_mutex_unlock(&t->m);
    return s;
}

/* ---- scan ---- */

static int call_wait(struct redis_tier *t, int node, struct buf *text, struct call *k)
{
    struct rop *r = redis_rop_new(t, ROP_CALL, NULL, 0);
    if (!r) return -ENOMEM;
    r->call = k;
    r->node = node;
    r->text = buf_take(text, &r->text_len);
    if (!r->text) {
        redis_rop_free(r);
        return -ENOMEM;
    }
    r->prio = TIER_BEHIND;
    r->deadline_ns = clock_ns() + SCAN_TIMEOUT_MS * 1000000ull;
    k->done = false;
    k->n_got = 0;
    int s = redis_submit(t, r);
    if (s < 0) {
        redis_rop_free(r);
        return s;
    }
    pthread_mutex_lock(&t->m);
    while (!k->done)
        pthread_cond_wait(&t->idle, &t->m);
    s = k->status;
    pthread_mutex_unlock(&t->m);
    return s;
}

static void call_fini(struct call *k)
{
    for (unsigned i = 0; i < k->n_got; i++)
        freeReplyObject(k->reply[i]);
    k->n_got = 0;
}

static int visit_one(struct redis_tier *t, const redisReply *key, const redisReply *info,
                     tier_visit_fn fn, void *ctx)
{
    const char *prefix = t->url.prefix;
    size_t skip = strlen(prefix);
    char hex[33];
    struct redis_record_info i;
    if (key->type != REDIS_REPLY_STRING || (size_t)key->len != skip + 32) return 0;
    memcpy(hex, key->str + skip, 33);
    if (info->type != REDIS_REPLY_STRING) return 0;
    if (redis_record_info_decode((const uint8_t *)info->str, (size_t)info->len, &i) < 0) return 0;
    if (tier_key_parse(hex, &i.info.key) < 0) return 0;
    return fn(ctx, &i.info);
}

/* The infos of the keys of one SCAN step. */
static int visit_keys(struct redis_tier *t, int node, const redisReply *keys, tier_visit_fn fn,
                      void *ctx)
{
    struct call k = {.n = (unsigned)keys->elements};
    struct buf b = BUF_INIT;
    int s = 0;
    if (keys->elements == 0) return 0;
    k.reply = mem_alloc(keys->elements * sizeof *k.reply);
    if (!k.reply) return -ENOMEM;
    for (size_t i = 0; i < keys->elements && s == 0; i++) {
        const redisReply *e = keys->element[i];
        if (e->type != REDIS_REPLY_STRING) s = -EBADMSG;
        if (s == 0) s = redis_format(&b, 3, (const char *[]){"HGET", e->str, "i"});
    }
    if (s == 0) s = call_wait(t, node, &b, &k);
    for (unsigned i = 0; s == 0 && i < k.n_got; i++)
        s = visit_one(t, keys->element[i], k.reply[i], fn, ctx);
    call_fini(&k);
    mem_free(k.reply);
    buf_fini(&b);
    return s;
}

static int scan_node(struct redis_tier *t, int node, tier_visit_fn fn, void *ctx)
{
    char cursor[24] = "0", match[REDIS_PREFIX_MAX + 2], count[16];
    snprintf(match, sizeof match, "%s*", t->url.prefix);
    snprintf(count, sizeof count, "%d", SCAN_COUNT);
    int s;
    do {
        redisReply *reply[1];
        struct call k = {.reply = reply, .n = 1};
        const char *argv[] = {"SCAN", cursor, "MATCH", match, "COUNT", count};
        struct buf text = BUF_INIT;
        s = redis_format(&text, 6, argv);
        if (s == 0) s = call_wait(t, node, &text, &k);
        buf_fini(&text);
        const redisReply *r = k.n_got ? k.reply[0] : NULL;
        if (s == 0 &&
            (!r || r->type != REDIS_REPLY_ARRAY || r->elements != 2 ||
             r->element[0]->type != REDIS_REPLY_STRING || r->element[1]->type != REDIS_REPLY_ARRAY))
            s = -EIO;
        if (s == 0) {
            snprintf(cursor, sizeof cursor, "%s", r->element[0]->str);
            s = visit_keys(t, node, r->element[1], fn, ctx);
        }
        call_fini(&k);
    } while (s == 0 && strcmp(cursor, "0") != 0);
    return s;
}

/* Every server that holds slots. A key may be seen twice while slots move, as SCAN has it. */
static int redis_scan(struct tier *tier, tier_visit_fn fn, void *ctx)
{
    struct redis_tier *t = of(tier);
    int s = 0;
    pthread_mutex_lock(&t->m);
    while (!t->settled)
        pthread_cond_wait(&t->idle, &t->m);
    pthread_mutex_unlock(&t->m);
    if (!atomic_load(&t->usable)) return -EIO;
    for (int i = 0; s == 0 && i < REDIS_ENDPOINTS_MAX; i++)
        if (atomic_load(&t->serves[i])) s = scan_node(t, i, fn, ctx);
    return s;
}

/* ---- life ---- */

static void free_tier(struct redis_tier *t)
{
    redis_net_fini(t);
    if (t->wake >= 0) close(t->wake);
    if (t->epoll >= 0) close(t->epoll);
    pthread_mutex_destroy(&t->m);
    pthread_cond_destroy(&t->idle);
    arena_fini(&t->url.arena);
    mem_free(t);
}

static void redis_destroy(struct tier *tier)
{
    struct redis_tier *t = of(tier);
    uint64_t one = 1;
    pthread_mutex_lock(&t->m);
    t->stopping = true;
    pthread_mutex_unlock(&t->m);
    if (write(t->wake, &one, sizeof one) < 0) ASSERT(errno == EAGAIN);
    pthread_join(t->thread, NULL);
    free_tier(t);
}

static const struct tier_ops redis_ops = {
    .find = redis_find,
    .read = redis_read,
    .write = redis_write,
    .remove = redis_remove,
    .touch = redis_touch,
    .set_pinned = redis_set_pinned,
    .set_quota = redis_set_quota,
    .scan = redis_scan,
    .stat = redis_stat,
    .resize = redis_resize,
    .add_memory = redis_add_memory,
    .set_policy = redis_set_policy,
    .drain = redis_drain,
    .destroy = redis_destroy,
};

static int copy_string(struct arena *a, const char **s)
{
    if (!*s) return 0;
    *s = arena_strndup(a, *s, strlen(*s));
    return *s ? 0 : -ENOMEM;
}

static int add_form(struct redis_tier *t, const char *form)
{
    char prefix[REDIS_PREFIX_MAX];
    int n = snprintf(prefix, sizeof prefix, "%s%s", t->url.prefix ? t->url.prefix : REDIS_PREFIX,
                     form ? form : "");
    if (n < 0 || (size_t)n >= sizeof prefix) return -ENAMETOOLONG;
    t->url.prefix = prefix;
    return copy_string(&t->url.arena, &t->url.prefix);
}

static int copy_url(struct redis_tier *t, const struct redis_url *u)
{
    t->url = *u;
    arena_init(&t->url.arena);
    const char **s[] = {&t->url.user,   &t->url.password, &t->url.sentinel_user,
                        &t->url.master, &t->url.ca,       &t->url.sentinel_password,
                        &t->url.cert,   &t->url.key,      &t->url.prefix};
    int r = 0;
    for (size_t i = 0; i < sizeof s / sizeof *s && r == 0; i++)
        r = copy_string(&t->url.arena, s[i]);
    return r;
}

static unsigned or_else(unsigned v, unsigned otherwise)
{
    return v ? v : otherwise;
}

static void set_options(struct redis_tier *t, const struct tier_redis_opts *o)
{
    t->o = *o;
    t->o.connections = or_else(or_else(t->url.connections, o->connections), 4);
    t->o.queue_ops = or_else(o->queue_ops, 1024);
    t->o.connect_timeout_ms = or_else(o->connect_timeout_ms, 1000);
    t->o.stall_timeout_ms = or_else(o->stall_timeout_ms, 5000);
    t->ttl_ms = t->url.ttl_ms;
    t->tier.ops = &redis_ops;
    t->tier.persistent = t->tier.shared = true;
    snprintf(t->tier.name, sizeof t->tier.name, "redis");
}

int tier_redis_create(const struct tier_redis_opts *o, struct tier **ret, struct err *err)
{
    if (!o->url || o->url->n_hosts == 0) return err_set(err, -EINVAL, "redis: no server was named");
    if (o->connections > REDIS_CONNECTIONS_MAX || o->depth > REDIS_RING / 2)
        return err_set(err, -EINVAL, "redis: at most %d connections and a depth of %d",
                       REDIS_CONNECTIONS_MAX, REDIS_RING / 2);
    struct redis_tier *t = mem_zalloc(sizeof *t);
    if (!t) return err_set(err, -ENOMEM, "redis: no memory");
    (void)wait_init(&t->idle);
    pthread_mutex_init(&t->m, NULL);
    TAILQ_INIT(&t->inbox);
    for (int p = 0; p < TIER_PRIO_COUNT; p++) {
        TAILQ_INIT(&t->waiting[p]);
        TAILQ_INIT(&t->active[p]);
    }
    t->epoll = epoll_create1(EPOLL_CLOEXEC);
    t->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event e = {.events = EPOLLIN};
    int s = t->epoll < 0 || t->wake < 0 ? -errno : 0;
    if (s == 0 && epoll_ctl(t->epoll, EPOLL_CTL_ADD, t->wake, &e) < 0) s = -errno;
    if (s == 0 && getrandom(&t->seed, sizeof t->seed, 0) != sizeof t->seed) s = -EIO;
    if (s == 0) s = copy_url(t, o->url);
    if (s == 0) s = add_form(t, o->form);
    if (s < 0) err_set(err, s, "redis: cannot begin: %s", err_name(s));
    if (s == 0) {
        set_options(t, o);
        s = redis_net_init(t, err);
    }
    if (s == 0 && (s = -pthread_create(&t->thread, NULL, thread_main, t)) < 0)
        err_set(err, s, "redis: cannot start a thread: %s", err_name(s));
    if (s < 0) {
        free_tier(t);
        return s;
    }
    *ret = &t->tier;
    return 0;
}
