/* Fuzz target: any bytes as a Redis URL, as what a server says about its cluster, its sentinels and
 * itself, and as the answers on a connection. The first byte chooses. */
#include "base/assert.h"
#include "base/redis/redis_conn.h"
#include "base/redis/redis_topo.h"
#include "tiers/redis/redis_frame.h"

#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/un.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void url(const char *p, size_t len)
{
    struct redis_url u;
    struct err err = {0};
    char *text = mem_strndup(p, len);
    const char *urls[] = {text, "redis://:secret@other:1?ttl=5"};
    for (size_t n = 1; text && n <= 2; n++) {
        int r = redis_url_parse(urls, n, &u, &err);
        ASSERT(r == 0 || (r == -EINVAL && err.msg[0]));
        if (r < 0) continue;
        ASSERT(u.n_hosts > 0 && (!u.user || u.password) && !u.cert == !u.key);
        ASSERT((u.mode == REDIS_SENTINEL) == (u.master != NULL));
        for (size_t i = 0; i < u.n_hosts; i++)
            ASSERT(u.host[i].host[0] && redis_addr_is_unix(&u.host[i]) == !u.host[i].port);
        redis_url_fini(&u);
    }
    mem_free(text);
}

/* hiredis allocates what an array promises before it has come; that is not what is tried here. */
static bool promises_much(const char *p, size_t len)
{
    size_t digits = 0;
    for (size_t i = 0; i < len; i++) {
        digits = p[i] >= '0' && p[i] <= '9' ? digits + 1 : 0;
        if (digits > 4 && digits <= i && p[i - digits] == '*') return true;
    }
    return false;
}

static void topology(const char *p, size_t len)
{
    static struct redis_topo t;
    const struct redis_url u = {.n_hosts = 1, .host = {{"seed", 6379}}};
    struct redis_addr a;
    struct redis_redirect d;
    struct redis_info info;
    struct err err;
    redis_topo_init(&t, &u);
    char *text = mem_strndup(p, len);
    ASSERT(text);
    if (redis_redirect_parse(text, &u.host[0], &d) == 1) {
        ASSERT(d.slot < REDIS_SLOTS && d.addr.host[0] && d.addr.port);
        ASSERT(redis_topo_set_slot(&t, d.slot, &d.addr) >= 0);
    }
    redis_info_parse(text, &info);
    mem_free(text);
    (void)redis_topo_check(&u, &info, &err);
    ASSERT(redis_slot(p, len) < REDIS_SLOTS);
    redisReader *reader = redisReaderCreate();
    void *r = NULL;
    if (reader && !promises_much(p, len) && redisReaderFeed(reader, p, len) == REDIS_OK) {
        while (redisReaderGetReply(reader, &r) == REDIS_OK && r) {
            (void)redis_topo_set_slots(&t, r, &u.host[0]);
            (void)redis_sentinel_parse_master(r, &a);
            (void)redis_sentinel_parse_switch(r, "mymaster", &a);
            freeReplyObject(r);
        }
    }
    if (reader) redisReaderFree(reader);
    unsigned n[REDIS_ENDPOINTS_MAX] = {0};
    for (unsigned s = 0; s < REDIS_SLOTS; s++) {
        int e = redis_topo_endpoint(&t, s);
        ASSERT(e >= -1 && e < (int)t.n);
        if (e >= 0) n[e]++;
    }
    for (unsigned i = 0; i < t.n; i++)
        ASSERT(n[i] == t.ep[i].n_slots);
}

/* ---- a connection whose server says anything ---- */

enum { COMMANDS = 6, BODY_A = 700, BODY_B = 3, BODY_C = 5000 };
static struct {
    int listener, epoll;
    struct sockaddr_un addr;
    struct redis_conn conn;
    unsigned n_done, n_pushed;
    uint8_t a[BODY_A], b[BODY_B], c[BODY_C];
} peer = {.listener = -1};

static void on_done(struct redis_cmd *c, int status)
{
    ASSERT(status <= 0);
    peer.n_done++;
}

static void on_reply(struct redis_cmd *c, redisReply *r)
{
    freeReplyObject(r);
}

static void on_ready(struct redis_conn *c)
{
    for (unsigned i = 0; i < COMMANDS; i++) {
        struct redis_cmd *cmd = redis_conn_push(c);
        if (!cmd) return;
        peer.n_pushed++;
        cmd->done = on_done;
        redis_cmd_out(cmd, "x\r\n", 3);
        if (i % 3 == 0) {
            redis_cmd_in(cmd, peer.a, BODY_A);
            redis_cmd_in(cmd, peer.b, BODY_B);
            redis_cmd_in(cmd, peer.c, i == 3 ? BODY_C : 1);
        }
        if (i % 3 == 1) cmd->n_replies = 2;
        if (i % 3 == 2) cmd->on_reply = on_reply;
    }
}

static int listen_once(void)
{
    if (peer.listener >= 0) return 0;
    peer.addr.sun_family = AF_UNIX;
    (void)snprintf(peer.addr.sun_path + 1, sizeof(peer.addr.sun_path) - 1, "fuzz-redis-%d",
                   getpid());
    peer.epoll = epoll_create1(EPOLL_CLOEXEC);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&peer.addr, sizeof(peer.addr)) < 0 ||
        listen(fd, 8) < 0)
        return -errno;
    peer.listener = fd;
    return 0;
}

static void answers(const char *p, size_t len)
{
    static const struct redis_login login;
    struct redis_conn *c = &peer.conn;
    char sink[4096];
    if (len < 2 || promises_much(p, len) || listen_once() < 0) return;
    peer.n_done = peer.n_pushed = 0;
    redis_conn_init(c, peer.epoll, &login, on_ready, NULL);
    if (redis_conn_open(c, (struct sockaddr *)&peer.addr, sizeof(peer.addr), "x", 1) < 0) return;
    int fd = accept(peer.listener, NULL, NULL);
    ASSERT(fd >= 0);
    redis_conn_event(c, EPOLLOUT, 1);
    if (p[0] & 1) {
        (void)!write(fd, "+PONG\r\n", 7);
        redis_conn_event(c, EPOLLIN, 1); /* logged in: the commands go out */
    }
    size_t step = 1 + (unsigned char)p[1] * 8;
    for (size_t off = 2; off < len && !c->doom; off += step) {
        (void)!write(fd, p + off, len - off < step ? len - off : step);
        redis_conn_event(c, EPOLLIN, 1);
        (void)!recv(fd, sink, sizeof(sink), MSG_DONTWAIT);
    }
    (void)close(fd);
    redis_conn_event(c, EPOLLIN | EPOLLHUP, 1);
    redis_conn_close(c, -ECONNRESET);
    ASSERT(peer.n_done == peer.n_pushed && c->lo == c->hi && c->bytes == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    if (len == 0) return 0;
    const char *p = (const char *)data + 1;
    struct redis_record_info info;
    switch (data[0] % 4) {
    case 0:
        url(p, len - 1);
        break;
    case 1:
        topology(p, len - 1);
        break;
    case 2:
        answers(p, len - 1);
        break;
    default:
        (void)redis_record_info_decode(data + 1, len - 1, &info);
    }
    return 0;
}
