/* Servers: addresses, connections, breakers, and who holds which key.
 *
 * Every address of the topology has a node beside it: its connections, its breaker, what it last
 * said about itself. A node whose breaker is closed keeps all its connections open; one that
 * cannot be reached with no connection left opens the breaker, and then the breaker's clock alone
 * says when one new connection, login and PING included, tries again: a stopped server accepts
 * connections but answers no PING.
 * The map is asked of the servers: INFO on the first connection says what they are, CLUSTER SLOTS
 * fetches it, a sentinel names the master and announces the next one. Whatever looks as if the map
 * were old (a redirect, a lost connection, READONLY) asks again, at most every REFRESH_NS. */
#include "tiers/redis/redis_int.h"

#include "base/assert.h"
#include "base/buf.h"

#include <limits.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>

enum {
    SMALL_MORE = 4,          /* chosen: small commands that may queue behind bodies */
    WINDOW_BYTES = 16 << 20, /* chosen: of bodies in flight per connection */
};
static const uint64_t MS = 1000000ull;
static const uint64_t INFO_NS = 5000 * 1000000ull, /* chosen: figures for operators */
    CHECK_NS = 500 * 1000000ull,                   /* chosen: until the server is understood */
    REFRESH_NS = 100 * 1000000ull,                 /* chosen: a map is tens of KiB */
    BACKOFF_MIN_NS = 50 * 1000000ull, BACKOFF_MAX_NS = 5000 * 1000000ull;

static const struct redis_endpoint *endpoint(const struct node *n)
{
    return &n->t->topo.ep[n->index];
}

static bool needed(const struct node *n)
{
    return !n->t->mapped || endpoint(n)->n_slots > 0 || n->probing;
}

static unsigned ready(const struct node *n)
{
    unsigned k = 0;
    for (unsigned i = 0; i < n->t->o.connections; i++)
        k += n->conn[i].state == REDIS_CONN_READY && !n->conn[i].doom;
    return k;
}

struct node *redis_node_of(struct redis_tier *t, unsigned slot)
{
    int i = redis_topo_endpoint(&t->topo, slot);
    return i < 0 ? NULL : t->node[i];
}

void redis_net_refresh(struct redis_tier *t)
{
    if (t->url.mode == REDIS_SENTINEL)
        t->watch.stale = true;
    else
        t->want_map = true;
}

/* ---- nodes follow the topology ---- */

static void conn_ready(struct redis_conn *c);

static void close_all(struct node *n, int status)
{
    for (unsigned i = 0; i < n->t->o.connections; i++)
        redis_conn_close(&n->conn[i], status);
}

static void node_breaker_init(struct node *n)
{
    breaker_init(&n->breaker, n->t->seed + n->index);
    n->breaker.rule.backoff_max_ns = BREAKER_CHEAP_NS; /* a probe is a connection and a PING */
}

static int make_node(struct redis_tier *t, unsigned i)
{
    struct node *n = mem_zalloc(sizeof *n);
    if (n) n->conn = mem_alloc(t->o.connections * sizeof *n->conn);
    if (!n || !n->conn) {
        mem_free(n);
        return -ENOMEM;
    }
    n->t = t;
    n->index = i;
    n->generation = t->topo.ep[i].generation;
    node_breaker_init(n);
    for (unsigned k = 0; k < t->o.connections; k++)
        redis_conn_init(&n->conn[k], t->epoll, &t->login, conn_ready, n);
    t->node[i] = n;
    return 0;
}

/* Another address has taken the place. */
static void renew_node(struct node *n)
{
    close_all(n, -EIO);
    names_fini(&n->names);
    n->generation = endpoint(n)->generation;
    node_breaker_init(n);
    n->probing = n->info_asked = n->info_known = false;
    n->retry_ns = n->backoff_ns = n->info_ns = 0;
    n->why[0] = '\0';
}

static int follow_topology(struct redis_tier *t)
{
    int r = 0;
    for (unsigned i = 0; i < t->topo.n && r == 0; i++) {
        if (!t->node[i])
            r = make_node(t, i);
        else if (t->node[i]->generation != t->topo.ep[i].generation)
            renew_node(t->node[i]);
    }
    t->dirty = true;
    return r;
}

struct node *redis_node_at(struct redis_tier *t, const struct redis_addr *a)
{
    int i = redis_topo_add(&t->topo, a);
    if (i < 0 || follow_topology(t) < 0) return NULL;
    return t->node[i];
}

/* ---- breakers ---- */

void redis_node_report(struct node *n, enum breaker_result r, uint64_t began_ns)
{
    enum breaker_state before = n->breaker.state;
    breaker_report(&n->breaker, r, began_ns, n->t->now_ns);
    /* Commands of other ops are under way: they end when the connections are reaped. */
    if (before == BREAKER_CLOSED && n->breaker.state == BREAKER_OPEN)
        for (unsigned i = 0; i < n->t->o.connections; i++)
            if (n->conn[i].state != REDIS_CONN_CLOSED)
                redis_conn_doom(&n->conn[i], -EIO, "the breaker has opened");
}

static void connect_failed(struct node *n, int status, const char *why)
{
    enum breaker_result r = status == -ETIMEDOUT ? BREAKER_TIMEOUT : BREAKER_FAILED;
    if (!why[0]) why = strerrordesc_np(-status); /* "Connection refused" */
    if (why) snprintf(n->why, sizeof n->why, "%.*s", (int)sizeof n->why - 1, why);
    if (n->probing) {
        n->probing = false;
        breaker_report(&n->breaker, r, n->t->now_ns, n->t->now_ns);
    } else if (ready(n) == 0) {
        /* Nothing is left: no need to let ops find that out one by one. */
        for (int i = 0; i < 20 && n->breaker.state == BREAKER_CLOSED; i++)
            breaker_report(&n->breaker, r, n->t->now_ns, n->t->now_ns);
        n->probing = false;
        close_all(n, -EIO);
        redis_net_refresh(n->t);
        n->t->dirty = true;
    } else {
        n->backoff_ns = n->backoff_ns ? 2 * n->backoff_ns : BACKOFF_MIN_NS;
        if (n->backoff_ns > BACKOFF_MAX_NS) n->backoff_ns = BACKOFF_MAX_NS;
        n->retry_ns = n->t->now_ns + n->backoff_ns;
    }
}

/* ---- what servers say about themselves ---- */

static struct redis_conn *any_ready(struct node *n)
{
    for (unsigned i = 0; i < n->t->o.connections; i++) {
        struct redis_conn *c = &n->conn[i];
        if (c->state == REDIS_CONN_READY && !c->doom && redis_conn_load(c) < REDIS_RING) return c;
    }
    return NULL;
}

static bool ask(struct redis_conn *c, int argc, const char *const *argv,
                void (*on_reply)(struct redis_cmd *, redisReply *),
                void (*done)(struct redis_cmd *, int))
{
    struct redis_cmd *cmd = c ? redis_conn_push(c) : NULL;
    struct buf text = BUF_INIT;
    if (!cmd) return false;
    cmd->on_reply = on_reply;
    cmd->done = done;
    (void)redis_format(&text, argc, argv);
    if (!redis_cmd_head(cmd, &text)) redis_conn_doom(c, -ENOMEM, NULL);
    return true;
}

static void publish(struct redis_tier *t);

static void understood(struct redis_tier *t)
{
    t->mapped = true;
    t->refused = false;
    t->why[0] = '\0';
    publish(t);
}

static void set_master(struct redis_tier *t, const struct redis_addr *a)
{
    if (redis_topo_set_master(&t->topo, a) >= 0 && follow_topology(t) == 0) understood(t);
}

static void check_server(struct node *n)
{
    struct redis_tier *t = n->t;
    struct err e;
    int s = redis_topo_check(&t->url, &n->info, &e);
    if (s == 0) {
        set_master(t, &endpoint(n)->addr);
    } else if (s == 1) {
        t->want_map = true;
    } else if (s < 0) {
        t->refused = true;
        snprintf(t->why, sizeof t->why, "%.*s", (int)sizeof t->why - 1, e.msg);
    }
}

static void info_reply(struct redis_cmd *c, redisReply *r)
{
    struct node *n = c->conn->owner;
    struct redis_tier *t = n->t;
    if (r->type == REDIS_REPLY_STRING) {
        redis_info_parse(r->str, &n->info);
        n->info_known = true;
        if (t->url.mode != REDIS_SENTINEL && !t->mapped) check_server(n);
        if (t->url.mode == REDIS_SENTINEL && n->info.is_replica) redis_net_refresh(t);
    } else if (r->type == REDIS_REPLY_ERROR) {
        snprintf(n->why, sizeof n->why, "%.*s", (int)sizeof n->why - 1, r->str);
    }
    freeReplyObject(r);
}

static void info_done(struct redis_cmd *c, int status)
{
    struct node *n = c->conn->owner;
    n->info_asked = false;
    n->info_ns = n->t->now_ns + (n->t->mapped ? INFO_NS : CHECK_NS);
    n->t->dirty = true;
}

static void slots_reply(struct redis_cmd *c, redisReply *r)
{
    struct node *n = c->conn->owner;
    struct redis_tier *t = n->t;
    if (redis_topo_set_slots(&t->topo, r, &endpoint(n)->addr) >= 0 && follow_topology(t) == 0) {
        understood(t);
        t->want_map = false;
    }
    freeReplyObject(r);
}

static void slots_done(struct redis_cmd *c, int status)
{
    struct node *n = c->conn->owner;
    n->t->map_asked = false;
    n->t->map_ns = n->t->now_ns + REFRESH_NS;
    n->t->dirty = true;
}

/* Of each server in turn: the one at hand may be the one that lags. */
static void ask_for_map(struct redis_tier *t)
{
    if (t->mapped && !t->topo.cluster) t->want_map = false;
    if (!t->want_map || t->map_asked || t->now_ns < t->map_ns) return;
    const char *slots[] = {"CLUSTER", "SLOTS"};
    for (unsigned k = 0; k < t->topo.n; k++) {
        struct node *n = t->node[t->map_from++ % t->topo.n];
        if (n && n->info_known && n->info.is_cluster &&
            ask(any_ready(n), 2, slots, slots_reply, slots_done)) {
            t->map_asked = true;
            return;
        }
    }
}

/* ---- sentinels ---- */

static void master_reply(struct redis_cmd *c, redisReply *r)
{
    struct redis_tier *t = c->conn->owner;
    struct redis_addr a;
    if (redis_sentinel_parse_master(r, &a) == 1)
        set_master(t, &a);
    else
        redis_conn_doom(c->conn, -EIO, "the sentinel does not know the master");
    freeReplyObject(r);
}

static void switch_reply(struct redis_cmd *c, redisReply *r)
{
    struct redis_tier *t = c->conn->owner;
    struct redis_addr a;
    t->watch.subscribed = true;
    if (redis_sentinel_parse_switch(r, t->url.master, &a) == 1) set_master(t, &a);
    freeReplyObject(r);
}

static void watch_done(struct redis_cmd *c, int status)
{
}

static void watch_ready(struct redis_conn *c)
{
    struct redis_tier *t = c->owner;
    const char *master[] = {"SENTINEL", "get-master-addr-by-name", t->url.master};
    const char *changes[] = {"SUBSCRIBE", "+switch-master"};
    (void)ask(c, 3, master, master_reply, watch_done); /* nothing is under way on it */
    if (ask(c, 2, changes, switch_reply, watch_done))
        c->ring[(c->hi - 1) % REDIS_RING].n_replies = UINT_MAX;
}

static void watch_failed(struct redis_tier *t)
{
    struct watch *w = &t->watch;
    w->i = (w->i + 1) % t->url.n_hosts;
    names_fini(&w->names);
    w->retry_ns = t->now_ns + REFRESH_NS;
    if (++w->n_failed < t->url.n_hosts) return;
    w->n_failed = 0;
    w->retry_ns = t->now_ns + CHECK_NS;
    if (!t->mapped) {
        t->refused = true;
        snprintf(t->why, sizeof t->why, "no sentinel names the master");
    }
}

static void watch_tick(struct redis_tier *t)
{
    struct watch *w = &t->watch;
    struct redis_conn *c = w->conn;
    if (c->state != REDIS_CONN_CLOSED && !c->doom) {
        bool late = t->now_ns - c->opened_ns > t->o.connect_timeout_ms * MS;
        if (!w->subscribed && late) redis_conn_doom(c, -ETIMEDOUT, NULL);
        if (w->subscribed && w->stale && late) redis_conn_doom(c, -EIO, "asks again");
        return;
    }
    if (c->doom && c->state != REDIS_CONN_CLOSED) return; /* to be reaped */
    if (t->now_ns < w->retry_ns) return;
    const struct sockaddr *sa;
    socklen_t len;
    const struct redis_addr *a = &t->url.host[w->i];
    int s = names_get(&w->names, a, &sa, &len);
    if (s == -EAGAIN) return;
    w->subscribed = w->stale = false;
    if (s == 0) s = redis_conn_open(c, sa, len, a->host, t->now_ns);
    if (s < 0 && !names_next(&w->names)) watch_failed(t);
}

static void watch_reap(struct redis_tier *t)
{
    struct watch *w = &t->watch;
    if (!w->conn || !w->conn->doom || w->conn->state == REDIS_CONN_CLOSED) return;
    redis_conn_close(w->conn, w->conn->doom);
    if (w->subscribed)
        w->retry_ns = t->now_ns; /* the next one at once */
    else if (!names_next(&w->names))
        watch_failed(t);
    if (w->subscribed) {
        w->i = (w->i + 1) % t->url.n_hosts;
        names_fini(&w->names);
    }
    w->subscribed = false;
}

/* ---- connections ---- */

static void conn_ready(struct redis_conn *c)
{
    struct node *n = c->owner;
    n->why[0] = '\0';
    n->backoff_ns = 0;
    if (n->probing) {
        n->probing = false;
        breaker_report(&n->breaker, BREAKER_OK, n->t->now_ns, n->t->now_ns);
        n->info_ns = 0;
    }
    n->t->dirty = true;
}

static bool is_local(const struct sockaddr *sa)
{
    if (sa->sa_family == AF_UNIX) return true;
    if (sa->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)sa)->sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)sa)->sin6_addr);
}

/* 0 begun, -EAGAIN its name is being looked up, else it cannot be. */
static int connect_one(struct node *n, struct redis_conn *c)
{
    const struct sockaddr *sa;
    socklen_t len;
    int s = names_get(&n->names, &endpoint(n)->addr, &sa, &len);
    if (s < 0) return s;
    n->local = is_local(sa);
    return redis_conn_open(c, sa, len, endpoint(n)->addr.host, n->t->now_ns);
}

static void could_not(struct node *n, int status, const char *why)
{
    if (names_next(&n->names)) {
        n->retry_ns = 0; /* the name's next address, at once */
        if (n->probing && connect_one(n, &n->conn[0]) == 0) return;
        if (!n->probing) return;
    }
    connect_failed(n, status, why);
}

static void connect_node(struct node *n)
{
    uint64_t now = n->t->now_ns;
    if (n->breaker.state == BREAKER_CLOSED) {
        /* One tries first, so that a server that is down refuses one and not all of them. */
        unsigned limit = ready(n) > 0 ? n->t->o.connections : 1;
        for (unsigned i = 0; i < limit && now >= n->retry_ns; i++) {
            struct redis_conn *c = &n->conn[i];
            if (c->state != REDIS_CONN_CLOSED) continue;
            int s = connect_one(n, c);
            if (s == -EAGAIN) return;
            if (s < 0) could_not(n, s, s == -EIO ? "no such name" : "");
            if (n->breaker.state != BREAKER_CLOSED) return;
        }
    } else if (n->probing) {
        if (n->conn[0].state != REDIS_CONN_CLOSED) return;
        int s = connect_one(n, &n->conn[0]); /* its name has been looked up by now */
        if (s < 0 && s != -EAGAIN) could_not(n, s, s == -EIO ? "no such name" : "");
    } else if (breaker_allow(&n->breaker, now)) {
        n->probing = true;
        names_fini(&n->names);
    }
}

static void time_out(struct node *n)
{
    for (unsigned i = 0; i < n->t->o.connections; i++) {
        struct redis_conn *c = &n->conn[i];
        uint64_t now = n->t->now_ns;
        if (c->state == REDIS_CONN_CLOSED || c->doom) continue;
        if (c->state < REDIS_CONN_READY && now - c->opened_ns > n->t->o.connect_timeout_ms * MS)
            redis_conn_doom(c, -ETIMEDOUT, "no answer to the login");
        if (c->state == REDIS_CONN_READY && redis_conn_load(c) > 0 && now > c->moved_ns &&
            now - c->moved_ns > n->t->o.stall_timeout_ms * MS)
            redis_conn_doom(c, -ETIMEDOUT, "it stalls");
    }
}

static void node_tick(struct node *n)
{
    time_out(n);
    if (needed(n)) connect_node(n);
    if (!n->info_asked && n->t->now_ns >= n->info_ns && needed(n))
        n->info_asked = ask(any_ready(n), 1, (const char *[]){"INFO"}, info_reply, info_done);
}

static void reap_node(struct node *n)
{
    for (unsigned i = 0; i < n->t->o.connections; i++) {
        struct redis_conn *c = &n->conn[i];
        if (!c->doom || c->state == REDIS_CONN_CLOSED) continue;
        bool was_ready = c->state == REDIS_CONN_READY;
        char why[sizeof c->why];
        memcpy(why, c->why, sizeof why);
        int status = c->doom;
        redis_conn_close(c, status);
        if (was_ready) {
            redis_net_refresh(n->t);
            if (status == -ETIMEDOUT && ready(n) == 0) n->retry_ns = 0;
        } else {
            could_not(n, status, why);
        }
        n->t->dirty = true;
    }
}

void redis_net_reap(struct redis_tier *t)
{
    for (unsigned i = 0; i < t->topo.n; i++)
        if (t->node[i]) reap_node(t->node[i]);
    watch_reap(t);
}

void redis_net_flush(struct redis_tier *t)
{
    for (unsigned k = 0; k < t->topo.n; k++)
        for (unsigned i = 0; t->node[k] && i < t->o.connections; i++) {
            struct redis_conn *c = &t->node[k]->conn[i];
            if (c->mid != c->hi) redis_conn_flush(c, t->now_ns);
        }
    if (t->watch.conn) redis_conn_flush(t->watch.conn, t->now_ns);
}

bool redis_net_busy(struct redis_tier *t)
{
    for (unsigned k = 0; k < t->topo.n; k++) {
        const struct node *n = t->node[k];
        if (!n || !needed(n)) continue;
        if (n->probing || n->names.resolve) return true;
        for (unsigned i = 0; i < t->o.connections; i++)
            if (n->conn[i].state != REDIS_CONN_READY && n->breaker.state == BREAKER_CLOSED)
                return true;
    }
    const struct watch *w = &t->watch;
    return (t->want_map && t->mapped) ||
           (w->conn && !w->subscribed && w->conn->state != REDIS_CONN_CLOSED);
}

unsigned redis_node_depth(const struct node *n)
{
    const struct tier_redis_opts *o = &n->t->o;
    if (o->depth) return o->depth;
    /* measured (2-core box, 1 MiB fields): four connections with one body each already keep a local
     * server busy; two each cost it 10-25 % more CPU, as its reply buffers leave the caches. Over a
     * network (cited: research/tiers.md B2) more must be under way. */
    if (n->local) return o->connections > 1 ? 1 : 2;
    return 4;
}

struct redis_conn *redis_node_pick(struct node *n, enum tier_prio prio, bool bulk)
{
    const struct tier_redis_opts *o = &n->t->o;
    unsigned limit = redis_node_depth(n) + (bulk ? 0 : SMALL_MORE);
    struct redis_conn *best = NULL;
    /* The first connection is kept clear of what no request waits for. */
    for (unsigned i = prio >= TIER_BEHIND && o->connections > 1; i < o->connections; i++) {
        struct redis_conn *c = &n->conn[i];
        unsigned load = redis_conn_load(c);
        if (c->state != REDIS_CONN_READY || c->doom || load >= limit) continue;
        if (bulk && load > 0 && c->bytes >= WINDOW_BYTES) continue;
        if (!best || load < redis_conn_load(best)) best = c;
    }
    return best;
}

/* ---- all together ---- */

static void publish(struct redis_tier *t)
{
    struct tier_stat s = {0};
    bool usable = false;
    const char *why = t->why;
    for (unsigned i = 0; i < t->topo.n; i++) {
        struct node *n = t->node[i];
        bool serves = n && (t->mapped ? endpoint(n)->n_slots > 0 : t->url.mode != REDIS_SENTINEL);
        atomic_store_explicit(&t->serves[i], serves && t->mapped, memory_order_relaxed);
        if (!serves) continue;
        bool open = t->refused || n->breaker.state != BREAKER_CLOSED;
        s.endpoints++;
        s.endpoints_open += open;
        usable |= !open;
        if (!why[0]) why = n->why;
        if (!n->info_known) continue;
        s.capacity_bytes += n->info.maxmemory_bytes;
        s.used_bytes += n->info.used_memory_bytes;
        s.n_records += n->info.keys;
        s.evictions += n->info.evicted_keys;
        s.expired += n->info.expired_keys;
        if (!why[0] && n->info.maxmemory_bytes == 0) why = "the server has no maxmemory";
        if (!why[0] && strcmp(n->info.maxmemory_policy, "noeviction") == 0)
            why = "maxmemory-policy is noeviction: full means full";
    }
    if (t->url.mode == REDIS_SENTINEL && !t->mapped) usable = !t->refused;
    atomic_store_explicit(&t->usable, usable, memory_order_relaxed);
    pthread_mutex_lock(&t->m);
    t->stat.endpoints = s.endpoints;
    t->stat.endpoints_open = s.endpoints_open;
    t->stat.capacity_bytes = s.capacity_bytes;
    t->stat.used_bytes = s.used_bytes;
    t->stat.n_records = s.n_records;
    t->stat.evictions = s.evictions;
    t->stat.expired = s.expired;
    snprintf(t->stat.degraded, sizeof t->stat.degraded, "%.*s", (int)sizeof t->stat.degraded - 1,
             why);
    if (!t->settled && (t->mapped || !usable)) {
        t->settled = true;
        pthread_cond_broadcast(&t->idle);
    }
    pthread_mutex_unlock(&t->m);
}

void redis_net_tick(struct redis_tier *t)
{
    for (unsigned i = 0; i < t->topo.n; i++)
        if (t->node[i]) node_tick(t->node[i]);
    ask_for_map(t);
    if (t->watch.conn) watch_tick(t);
    publish(t);
    if (!atomic_load_explicit(&t->usable, memory_order_relaxed)) redis_end_ops(t, -EIO);
}

int redis_net_init(struct redis_tier *t, struct err *err)
{
    const struct redis_url *u = &t->url;
    if (u->tls) {
        t->tls = redis_tls_create(u, err);
        if (!t->tls) return err ? err->code : -EINVAL;
    }
    int user_timeout_ms = (int)t->o.stall_timeout_ms * 2;
    t->login = (struct redis_login){.user = u->user,
                                    .password = u->password,
                                    .client_name = "kvblend",
                                    .db = u->db,
                                    .tls = t->tls,
                                    .insecure = u->insecure,
                                    .user_timeout_ms = user_timeout_ms};
    t->sentinel_login = t->login;
    t->sentinel_login.user = u->sentinel_user;
    t->sentinel_login.password = u->sentinel_password;
    t->sentinel_login.db = 0;
    redis_topo_init(&t->topo, u);
    int s = follow_topology(t);
    if (s == 0 && u->mode == REDIS_SENTINEL) {
        t->watch.conn = mem_alloc(sizeof *t->watch.conn);
        if (t->watch.conn)
            redis_conn_init(t->watch.conn, t->epoll, &t->sentinel_login, watch_ready, t);
        else
            s = -ENOMEM;
    }
    if (s < 0) return err_set(err, s, "redis: no memory");
    atomic_store(&t->usable, true);
    return 0;
}

void redis_net_close(struct redis_tier *t)
{
    for (unsigned i = 0; i < t->topo.n; i++)
        if (t->node[i]) close_all(t->node[i], -ECANCELED);
    if (t->watch.conn) redis_conn_close(t->watch.conn, -ECANCELED);
}

void redis_net_fini(struct redis_tier *t)
{
    for (unsigned i = 0; i < REDIS_ENDPOINTS_MAX; i++) {
        if (!t->node[i]) continue;
        names_fini(&t->node[i]->names);
        mem_free(t->node[i]->conn);
        mem_free(t->node[i]);
    }
    names_fini(&t->watch.names);
    mem_free(t->watch.conn);
    redis_tls_destroy(t->tls);
}
