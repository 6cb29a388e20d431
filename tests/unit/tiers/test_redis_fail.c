/* The Redis tier when servers fail and when much happens at once; base/redis/redis_conn.h,
 * base/redis/redis_resolve.h. */
#include "base/redis/redis_resolve.h"
#include "tests/unit/tiers/redis_kit.h"

/* Reads with deadlines against a stopped server: all end in time, nobody waits for it, the breaker
 * opens, and closes when the server goes on. */
TEST(a_stopped_server_holds_up_nobody)
{
    struct redis_server *s = redis_server_start(NULL);
    struct tier *t = impatient(s);
    struct rec a = rec_make(21, 9, 8, 64, 64), b = rec_empty(&a.desc);
    ASSERT_OK(do_write(t, &a));
    ASSERT_EQ(stat_of(t).endpoints, 1);
    ASSERT_EQ(stat_of(t).endpoints_open, 0);
    redis_server_pause(s);
    int late = 0;
    for (int i = 0; i < 100 && stat_of(t).endpoints_open == 0; i++) {
        struct waiter w;
        waiter_init(&w, &b);
        w.op.deadline_ns = clock_ns() + 50000000;
        int r = t->ops->read(t, &w.op);
        if (r == 0) r = waiter_wait(&w);
        ASSERT_TRUE(r == -ETIMEDOUT || r == -EIO);
        late += r == -ETIMEDOUT;
        waiter_fini(&w);
    }
    ASSERT_TRUE(late > 0);
    WAIT_FOR(stat_of(t).endpoints_open == 1);
    ASSERT_EQ(t->ops->find(t, &a.desc.key), 0);
    ASSERT_ERR(do_read(t, &b), -EIO);
    ASSERT_ERR(do_write(t, &a), -EIO);
    ASSERT_TRUE(stat_of(t).timeouts > 0);
    redis_server_resume(s);
    WAIT_FOR(stat_of(t).endpoints_open == 0);
    WAIT_FOR(do_read(t, &b) == 0);
    rec_same(&a, &b);
    rec_free(&a);
    rec_free(&b);
    t->ops->destroy(t);
    redis_server_stop(s);
}

/* Without deadlines the stall timeout ends them. */
TEST(a_stall_ends)
{
    struct redis_server *s = redis_server_start(NULL);
    struct tier *t = impatient(s);
    struct rec a = rec_make(22, 33, 8, 128, 256), b = rec_empty(&a.desc);
    ASSERT_OK(do_write(t, &a));
    redis_server_pause(s);
    struct waiter w[3];
    for (int i = 0; i < 3; i++) {
        waiter_init(&w[i], i == 2 ? &a : &b);
        ASSERT_OK(i == 2 ? t->ops->write(t, &w[i].op) : t->ops->read(t, &w[i].op));
    }
    for (int i = 0; i < 3; i++) {
        int r = waiter_wait(&w[i]);
        ASSERT_TRUE(r == -ETIMEDOUT || r == -EIO);
        waiter_fini(&w[i]);
    }
    redis_server_resume(s);
    WAIT_FOR(do_read(t, &b) == 0);
    rec_same(&a, &b);
    rec_free(&a);
    rec_free(&b);
    t->ops->destroy(t);
    redis_server_stop(s);
}

TEST(a_restarted_server_is_found_again)
{
    struct redis_server *s = redis_server_start(NULL);
    struct tier *t = impatient(s);
    struct rec a = rec_make(23, 9, 8, 64, 64), b = rec_empty(&a.desc);
    for (int round = 0; round < 2; round++) {
        ASSERT_OK(do_write(t, &a));
        redis_server_kill(s);
        WAIT_FOR(t->ops->find(t, &a.desc.key) == 0);
        ASSERT_EQ(stat_of(t).endpoints_open, 1);
        redis_server_restart(s);
        WAIT_FOR(t->ops->find(t, &a.desc.key) == -EAGAIN);
        WAIT_FOR(do_read(t, &b) == -ENOENT);
    }
    rec_free(&a);
    rec_free(&b);
    t->ops->destroy(t);
    redis_server_stop(s);
}

static int visit_none(void *ctx, const struct tier_info *i)
{
    return 1;
}

TEST(a_server_may_come_later)
{
    struct redis_server *s = redis_server_start(NULL);
    struct rec a = rec_make(24, 5, 8, 64, 64), b = rec_empty(&a.desc);
    redis_server_kill(s);
    struct tier *t = impatient(s);
    ASSERT_TRUE(t->shared && t->persistent);
    WAIT_FOR(t->ops->find(t, &a.desc.key) == 0);
    ASSERT_ERR(do_read(t, &b), -EIO);
    ASSERT_ERR(t->ops->scan(t, visit_none, NULL), -EIO);
    redis_server_restart(s);
    WAIT_FOR(do_write(t, &a) == 0);
    ASSERT_OK(do_read(t, &b));
    rec_same(&a, &b);
    rec_free(&a);
    rec_free(&b);
    t->ops->destroy(t);
    redis_server_stop(s);
}

TEST(a_full_server_is_not_a_broken_one)
{
    struct redis_server *s = redis_server_start(
        &(struct redis_server_opts){.maxmemory = "24mb", .maxmemory_policy = "noeviction"});
    struct tier *t = tier_of(s);
    unsigned full = 0;
    struct rec r[8], b;
    bool stored[8];
    for (uint64_t i = 0; i < 8; i++) {
        r[i] = rec_make(300 + i, 9, 8, 128, 256); /* 8 MiB */
        int status = do_write(t, &r[i]);
        ASSERT_TRUE(status == 0 || status == -ENOSPC);
        full += status == -ENOSPC;
        stored[i] = status == 0;
    }
    ASSERT_TRUE(full >= 5 && full < 8);
    ASSERT_OK(do_drain(t));
    for (int i = 0; i < 8; i++) {
        b = rec_empty(&r[i].desc);
        int status = do_read(t, &b);
        ASSERT_EQ(status, stored[i] ? 0 : -ENOENT);
        if (stored[i]) rec_same(&r[i], &b);
        rec_free(&b);
        rec_free(&r[i]);
    }
    struct tier_stat st = stat_of(t);
    ASSERT_EQ(st.rejected[TIER_REJECT_FULL], full);
    ASSERT_EQ(st.endpoints_open, 0);
    ASSERT_EQ(redis_server_int(s, "DBSIZE"), 8 - full); /* what was refused left nothing */
    WAIT_FOR(stat_of(t).capacity_bytes == 24 << 20);
    ASSERT_TRUE(strstr(stat_of(t).degraded, "noeviction"));
    t->ops->destroy(t);
    redis_server_stop(s);
}

/* A server that evicts while records are being written: whatever is read is whole. */
TEST(an_evicting_server_never_lies)
{
    struct redis_server *s = redis_server_start(
        &(struct redis_server_opts){.maxmemory = "20mb", .maxmemory_policy = "allkeys-random"});
    struct tier *t = tier_of(s);
    enum { N = 12 };
    struct rec r[N];
    struct waiter w[N];
    unsigned found = 0;
    for (uint64_t i = 0; i < N; i++)
        r[i] = rec_make(400 + i, 5, 8, 128, 256); /* 4 MiB */
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++) {
            waiter_init(&w[i], &r[i]);
            ASSERT_OK(t->ops->write(t, &w[i].op));
        }
        for (int i = 0; i < N; i++) {
            int status = waiter_wait(&w[i]);
            ASSERT_TRUE(status == 0 || status == -ENOSPC);
            waiter_fini(&w[i]);
        }
        for (int i = 0; i < N; i++) {
            struct rec b = rec_empty(&r[i].desc);
            int status = do_read(t, &b);
            ASSERT_TRUE(status == 0 || status == -ENOENT || status == -EBADMSG);
            if (status == 0) rec_same(&r[i], &b);
            found += status == 0;
            rec_free(&b);
        }
    }
    ASSERT_TRUE(found > 0);
    WAIT_FOR(stat_of(t).evictions > 0);
    for (int i = 0; i < N; i++)
        rec_free(&r[i]);
    t->ops->destroy(t);
    redis_server_stop(s);
}

/* A server without AUTH repeats what it was sent: the password must not go on into logs. */
TEST(a_password_is_not_repeated)
{
    struct redis_server *s = redis_server_start(
        &(struct redis_server_opts){.args = {"--rename-command", "AUTH", "HTUA"}});
    struct tier_key k = {1, 2};
    char url[512];
    snprintf(url, sizeof url, "redis://me:hush-hush@127.0.0.1:%u", s->port);
    struct tier *t = tier_at(url, (struct tier_redis_opts){0});
    WAIT_FOR(t->ops->find(t, &k) == 0);
    ASSERT_TRUE(strstr(stat_of(t).degraded, "unknown command"));
    ASSERT_TRUE(!strstr(stat_of(t).degraded, "hush"));
    t->ops->destroy(t);
    redis_server_stop(s);
}

TEST(passwords)
{
    struct redis_server *s = redis_server_start(&(struct redis_server_opts){.password = "se:cr,t"});
    struct tier *t = tier_of(s);
    struct rec a = rec_make(31, 5, 8, 64, 64), b = rec_empty(&a.desc);
    char url[512];
    ASSERT_OK(do_write(t, &a));
    t->ops->destroy(t);
    snprintf(url, sizeof url, "redis://:wrong@127.0.0.1:%u", s->port);
    t = tier_at(url, (struct tier_redis_opts){0});
    WAIT_FOR(t->ops->find(t, &a.desc.key) == 0);
    ASSERT_TRUE(strstr(stat_of(t).degraded, "WRONGPASS"));
    ASSERT_ERR(do_read(t, &b), -EIO);
    t->ops->destroy(t);
    snprintf(url, sizeof url, "redis://127.0.0.1:%u", s->port);
    t = tier_at(url, (struct tier_redis_opts){0});
    WAIT_FOR(t->ops->find(t, &a.desc.key) == 0);
    ASSERT_TRUE(strstr(stat_of(t).degraded, "NOAUTH"));
    t->ops->destroy(t);
    /* A user of the server's access list, another database, the unix socket. */
    freeReplyObject(redis_server_command(s, "ACL SETUSER kv on >pw ~kvblend:* +@all"));
    snprintf(url, sizeof url, "redis://kv:pw@127.0.0.1:%u/3", s->port);
    t = tier_at(url, (struct tier_redis_opts){0});
    ASSERT_ERR(do_read(t, &b), -ENOENT);
    ASSERT_OK(do_write(t, &a));
    ASSERT_OK(do_read(t, &b));
    rec_same(&a, &b);
    t->ops->destroy(t);
    snprintf(url, sizeof url, "redis+unix://kv:pw@%s", s->socket);
    t = tier_at(url, (struct tier_redis_opts){0});
    memset(b.mem, 0, b.l.record_bytes);
    ASSERT_OK(do_read(t, &b));
    rec_same(&a, &b);
    t->ops->destroy(t);
    rec_free(&a);
    rec_free(&b);
    redis_server_stop(s);
}

/* A server that takes no writes is read from all the same. */
TEST(a_user_who_may_only_read)
{
    struct redis_server *s = redis_server_start(NULL);
    struct rec a = rec_make(34, 5, 8, 64, 64), b = rec_empty(&a.desc);
    char url[512];
    struct tier *t = tier_of(s);
    ASSERT_OK(do_write(t, &a));
    t->ops->destroy(t);
    freeReplyObject(redis_server_command(s, "ACL SETUSER kv on >pw ~* +@all -@write"));
    snprintf(url, sizeof url, "redis://kv:pw@127.0.0.1:%u", s->port);
    t = tier_at(url, (struct tier_redis_opts){0});
    for (int i = 0; i < 30; i++)
        ASSERT_ERR(do_write(t, &a), -EPERM);
    ASSERT_OK(do_read(t, &b));
    rec_same(&a, &b);
    WAIT_FOR(strstr(stat_of(t).degraded, "NOPERM"));
    ASSERT_EQ(stat_of(t).endpoints_open, 0);
    t->ops->destroy(t);
    rec_free(&a);
    rec_free(&b);
    redis_server_stop(s);
}

TEST(names_are_looked_up)
{
    struct redis_server *s = redis_server_start(NULL);
    struct rec a = rec_make(32, 5, 8, 64, 64), b = rec_empty(&a.desc);
    char url[512];
    snprintf(url, sizeof url, "redis://localhost:%u", s->port);
    struct tier *t = tier_at(url, (struct tier_redis_opts){0});
    ASSERT_OK(do_write(t, &a));
    ASSERT_OK(do_read(t, &b));
    rec_same(&a, &b);
    t->ops->destroy(t);
    snprintf(url, sizeof url, "redis://no-such-host.invalid:%u", s->port);
    t = tier_at(url, (struct tier_redis_opts){0});
    t->ops->destroy(t); /* at once, whatever the look-up does */
    t = tier_at(url, (struct tier_redis_opts){0});
    WAIT_FOR(t->ops->find(t, &a.desc.key) == 0);
    t->ops->destroy(t);
    struct names n = {0};
    const struct sockaddr *sa;
    socklen_t len;
    struct redis_addr addr = {.host = "::1", .port = 7};
    ASSERT_OK(names_get(&n, &addr, &sa, &len));
    ASSERT_EQ(sa->sa_family, AF_INET6);
    ASSERT_TRUE(!names_next(&n));
    names_fini(&n);
    rec_free(&a);
    rec_free(&b);
    redis_server_stop(s);
}

TEST(tls)
{
    struct redis_server *s =
        redis_server_start(&(struct redis_server_opts){.tls = true, .tls_clients = true});
    struct rec a = rec_make(33, 9, 8, 128, 256), b = rec_empty(&a.desc);
    char url[1024];
    const char *const format[] = {
        "rediss://127.0.0.1:%u?ca=%s&cert=%s&key=%s",
        "rediss://localhost:%u?ca=%s&cert=%s&key=%s", /* and its name in the certificate */
    };
    char ca[128], cert[128], key[128], other[128];
    snprintf(ca, sizeof ca, "%s", redis_server_tls_file("ca.crt"));
    snprintf(cert, sizeof cert, "%s", redis_server_tls_file("client.crt"));
    snprintf(key, sizeof key, "%s", redis_server_tls_file("client.key"));
    snprintf(other, sizeof other, "%s", redis_server_tls_file("other.crt"));
    for (int i = 0; i < 2; i++) {
        snprintf(url, sizeof url, format[i], s->port, ca, cert, key);
        struct tier *t = tier_at(url, (struct tier_redis_opts){0});
        ASSERT_OK(do_write(t, &a));
        memset(b.mem, 0, b.l.record_bytes);
        ASSERT_OK(do_read(t, &b));
        rec_same(&a, &b);
        t->ops->destroy(t);
    }
    /* A CA that did not sign the server; then the same, unverified on demand. */
    snprintf(url, sizeof url, format[0], s->port, other, cert, key);
    struct tier *t = tier_at(url, (struct tier_redis_opts){0});
    WAIT_FOR(t->ops->find(t, &a.desc.key) == 0);
    ASSERT_TRUE(strstr(stat_of(t).degraded, "certificate"));
    t->ops->destroy(t);
    snprintf(url, sizeof url, "rediss://127.0.0.1:%u?insecure=1&cert=%s&key=%s", s->port, cert,
             key);
    t = tier_at(url, (struct tier_redis_opts){0});
    ASSERT_OK(do_read(t, &b));
    t->ops->destroy(t);
    /* No client certificate where one is demanded. */
    snprintf(url, sizeof url, "rediss://127.0.0.1:%u?ca=%s", s->port, ca);
    t = tier_at(url, (struct tier_redis_opts){0});
    WAIT_FOR(t->ops->find(t, &a.desc.key) == 0);
    t->ops->destroy(t);
    /* Options that cannot be are refused at once. */
    struct redis_url u;
    struct err e;
    const char *bad = "rediss://127.0.0.1:1?ca=/nonexistent/ca.crt";
    ASSERT_OK(redis_url_parse(&bad, 1, &u, &e));
    ASSERT_ERR(tier_redis_create(&(struct tier_redis_opts){.url = &u}, &t, &e), -EINVAL);
    ASSERT_TRUE(strstr(e.msg, "/nonexistent/ca.crt"));
    redis_url_fini(&u);
    rec_free(&a);
    rec_free(&b);
    redis_server_stop(s);
}

/* ---- many at once ---- */

TEST(the_queue_is_bounded)
{
    struct redis_server *s = redis_server_start(NULL);
    char url[512];
    redis_server_url(s, url);
    struct tier *t =
        tier_at(url, (struct tier_redis_opts){.queue_ops = 4, .stall_timeout_ms = 500});
    struct rec a = rec_make(41, 3, 8, 64, 64);
    ASSERT_OK(do_write(t, &a));
    ASSERT_OK(do_drain(t));
    redis_server_pause(s);
    struct waiter w[6];
    int taken = 0;
    for (int i = 0; i < 6; i++) {
        waiter_init(&w[taken], &a);
        int r = t->ops->write(t, &w[taken].op);
        ASSERT_TRUE(r == 0 || r == -EAGAIN || r == -EIO);
        taken += r == 0;
        if (taken < 4) ASSERT_EQ(r, 0);
        if (r == -EAGAIN) ASSERT_TRUE(taken == 4);
    }
    ASSERT_TRUE(taken >= 4);
    ASSERT_TRUE(stat_of(t).inflight_ops <= 4);
    redis_server_resume(s);
    for (int i = 0; i < taken; i++) {
        (void)waiter_wait(&w[i]);
        waiter_fini(&w[i]);
    }
    ASSERT_OK(do_drain(t));
    ASSERT_EQ(stat_of(t).inflight_ops, 0);
    ASSERT_EQ(stat_of(t).inflight_bytes, 0);
    rec_free(&a);
    t->ops->destroy(t);
    redis_server_stop(s);
}

struct client {
    struct tier *t;
    struct rec *r;
    unsigned n, id;
    int errors;
};

static void *client_main(void *arg)
{
    struct client *c = arg;
    uint64_t seed = c->id;
    for (int i = 0; i < 60; i++) {
        struct rec *r = &c->r[test_rand(&seed) % c->n];
        struct rec b = rec_empty(&r->desc);
        unsigned what = test_rand(&seed) % 8;
        int s = 0;
        if (what < 4) {
            s = do_read(c->t, &b);
            /* -EBADMSG is an answer (torn by a removal under its writer), wrong bytes are not. */
            if (s == -EBADMSG)
                s = 0;
            else if (s == 0 && memcmp(b.mem, r->mem, r->l.record_bytes) != 0)
                s = -EILSEQ;
            if (s == -ENOENT) s = 0;
        } else if (what < 7) {
            s = do_write(c->t, r);
            if (s == -ENOSPC || s == -ECANCELED) s = 0; /* removed under its writer */
        } else {
            c->t->ops->remove(c->t, &r->desc.key, false);
        }
        if (s < 0) c->errors++;
        rec_free(&b);
    }
    return NULL;
}

/* Two workers share a server: writes, reads and removals of the same keys cross each other. */
TEST(two_workers_share_a_server)
{
    struct redis_server *s = redis_server_start(NULL);
    struct tier *t[2] = {tier_of(s), tier_of(s)};
    struct rec r[3];
    for (uint64_t i = 0; i < 3; i++)
        r[i] = rec_make(500 + i, 9, 4, 64, 128);
    struct client c[4];
    pthread_t thread[4];
    for (unsigned i = 0; i < 4; i++) {
        c[i] = (struct client){.t = t[i % 2], .r = r, .n = 3, .id = i + 1};
        ASSERT_EQ(pthread_create(&thread[i], NULL, client_main, &c[i]), 0);
    }
    for (unsigned i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        ASSERT_EQ(c[i].errors, 0);
    }
    ASSERT_OK(do_drain(t[0]));
    ASSERT_OK(do_drain(t[1]));
    /* In the end every record can be written and read again. */
    for (int i = 0; i < 3; i++) {
        struct rec b = rec_empty(&r[i].desc);
        ASSERT_OK(do_write(t[0], &r[i]));
        ASSERT_OK(do_read(t[1], &b));
        rec_same(&r[i], &b);
        rec_free(&b);
        rec_free(&r[i]);
    }
    t[0]->ops->destroy(t[0]);
    t[1]->ops->destroy(t[1]);
    redis_server_stop(s);
}

/* Both build the same chunk, with other bits: one record stays, whole and alone. */
TEST(the_first_builder_wins)
{
    struct redis_server *s = redis_server_start(NULL);
    struct tier *t[2] = {tier_of(s), tier_of(s)};
    struct rec r[2] = {rec_make(51, 17, 8, 64, 256), rec_make(51, 17, 8, 64, 256)};
    char key[64];
    key_text(&r[0], key);
    record_group(r[1].part, &r[1].l, 9)[3] ^= 1;
    record_seal(r[1].part, &r[1].l);
    for (int round = 0; round < 5; round++) {
        struct waiter w[2];
        struct rec b = rec_empty(&r[0].desc);
        for (int i = 0; i < 2; i++) {
            waiter_init(&w[i], &r[i]);
            ASSERT_OK(t[i]->ops->write(t[i], &w[i].op));
        }
        for (int i = 0; i < 2; i++) {
            ASSERT_OK(waiter_wait(&w[i]));
            waiter_fini(&w[i]);
        }
        ASSERT_OK(do_drain(t[0]));
        ASSERT_OK(do_drain(t[1]));
        ASSERT_OK(do_read(t[0], &b));
        ASSERT_TRUE(memcmp(b.mem, r[0].mem, b.l.record_bytes) == 0 ||
                    memcmp(b.mem, r[1].mem, b.l.record_bytes) == 0);
        ASSERT_EQ(redis_server_int(s, "HLEN %s", key), 1 + b.l.n_parts);
        rec_free(&b);
        freeReplyObject(redis_server_command(s, "UNLINK %s", key));
    }
    rec_free(&r[0]);
    rec_free(&r[1]);
    t[0]->ops->destroy(t[0]);
    t[1]->ops->destroy(t[1]);
    redis_server_stop(s);
}

TEST(destroy_ends_everything)
{
    struct redis_server *s = redis_server_start(NULL);
    struct rec a = rec_make(61, 17, 8, 128, 256);
    enum { N = 24 };
    struct rec b[N];
    struct waiter w[N];
    struct tier *t = tier_of(s);
    ASSERT_OK(do_write(t, &a));
    t->ops->destroy(t);
    for (int round = 0; round < 4; round++) {
        t = tier_of(s);
        if (round % 2) redis_server_pause(s);
        for (int i = 0; i < N; i++) {
            b[i] = rec_empty(&a.desc);
            waiter_init(&w[i], &b[i]);
            w[i].op.prio = (enum tier_prio)(i % TIER_PRIO_COUNT);
            ASSERT_OK(t->ops->read(t, &w[i].op));
        }
        t->ops->destroy(t);
        for (int i = 0; i < N; i++) {
            int status = waiter_wait(&w[i]);
            ASSERT_TRUE(status == 0 || status == -ECANCELED);
            if (status == 0) rec_same(&a, &b[i]);
            waiter_fini(&w[i]);
            rec_free(&b[i]);
        }
        if (round % 2) redis_server_resume(s);
    }
    rec_free(&a);
    redis_server_stop(s);
}

/* Any allocation may fail: an op ends with an error or is done, and the next one is served. */
TEST(allocations_fail)
{
    struct redis_server *s = redis_server_start(NULL);
    struct rec a = rec_make(71, 5, 8, 64, 64), b = rec_empty(&a.desc);
    char url[512];
    const char *u = url;
    struct redis_url parsed;
    redis_server_url(s, url);
    ASSERT_OK(redis_url_parse(&u, 1, &parsed, NULL));
    for (unsigned n = 1;; n++) {
        struct tier *t = NULL;
        mem_fail_nth(n);
        int r = tier_redis_create(&(struct tier_redis_opts){.url = &parsed}, &t, NULL);
        if (r == 0) {
            int wrote = do_write(t, &a);
            int got = do_read(t, &b);
            t->ops->remove(t, &a.desc.key, false);
            ASSERT_TRUE(wrote == 0 || wrote == -ENOMEM || wrote == -EIO);
            ASSERT_TRUE(got == 0 || got == -ENOMEM || got == -EIO || got == -ENOENT);
            if (got == 0) rec_same(&a, &b);
            bool fired = mem_fail_fired();
            mem_fail_nth(0);
            if (fired) {
                WAIT_FOR(do_write(t, &a) == 0);
                WAIT_FOR(do_read(t, &b) == 0);
                rec_same(&a, &b);
            }
            t->ops->destroy(t);
            if (!fired) break;
        } else {
            mem_fail_nth(0);
            ASSERT_EQ(r, -ENOMEM);
        }
    }
    redis_url_fini(&parsed);
    rec_free(&a);
    rec_free(&b);
    redis_server_stop(s);
}
