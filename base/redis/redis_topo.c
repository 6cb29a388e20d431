#include "base/redis/redis_topo.h"

#include "base/assert.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* ---- slots ---- */

/* CRC16/XMODEM: polynomial 0x1021, most significant bit first, from 0 (the cluster specification).
 * Bit by bit: a key has about 50 bytes, and one is hashed per record. */
static uint16_t crc16(const char *p, size_t len)
{
    uint16_t crc = 0;
    for (size_t i = 0; i < len; i++) {
        crc ^= (uint16_t)((unsigned char)p[i] << 8);
        for (int bit = 0; bit < 8; bit++)
            crc = (uint16_t)(crc & 0x8000 ? crc << 1 ^ 0x1021 : crc << 1);
    }
    return crc;
}

/* The tag is what stands between the first '{' and the first '}' behind it, if that is anything. */
unsigned redis_slot(const char *key, size_t len)
{
    const char *open = len ? memchr(key, '{', len) : NULL;
    const char *close = open ? memchr(open, '}', len - (size_t)(open - key)) : NULL;
    if (close && close > open + 1) return crc16(open + 1, (size_t)(close - open) - 1) % REDIS_SLOTS;
    return crc16(key, len) % REDIS_SLOTS;
}

/* ---- the table of endpoints ---- */

void redis_topo_init(struct redis_topo *t, const struct redis_url *u)
{
    memset(t, 0, sizeof(*t));
    memset(t->slot, 0xff, sizeof(t->slot));
    ASSERT(t->slot[0] == -1);
    for (size_t i = 0; u->mode != REDIS_SENTINEL && i < u->n_hosts; i++)
        (void)redis_topo_add(t, &u->host[i]); /* REDIS_HOSTS_MAX of them fit */
}

static int find_endpoint(const struct redis_topo *t, const struct redis_addr *a)
{
    for (unsigned i = 0; i < t->n; i++)
        if (redis_addr_same(&t->ep[i].addr, a)) return (int)i;
    return -1;
}

int redis_topo_add(struct redis_topo *t, const struct redis_addr *a)
{
    int i = find_endpoint(t, a);
    if (i >= 0) return i;
    unsigned at = t->n;
    if (t->n < REDIS_ENDPOINTS_MAX) {
        t->n++;
    } else {
        for (at = 0; at < t->n && t->ep[at].n_slots > 0;)
            at++;
        if (at == t->n) return -ENOSPC;
    }
    t->ep[at].addr = *a;
    t->ep[at].n_slots = 0;
    t->ep[at].generation++;
    return (int)at;
}

int redis_topo_endpoint(const struct redis_topo *t, unsigned slot)
{
    ASSERT(slot < REDIS_SLOTS);
    return t->slot[slot];
}

static void set_range(struct redis_topo *t, unsigned lo, unsigned hi, int endpoint)
{
    for (unsigned s = lo; s <= hi; s++) {
        if (t->slot[s] >= 0) t->ep[t->slot[s]].n_slots--;
        t->slot[s] = (int16_t)endpoint;
        if (endpoint >= 0) t->ep[endpoint].n_slots++;
    }
}

int redis_topo_set_master(struct redis_topo *t, const struct redis_addr *a)
{
    int i = find_endpoint(t, a);
    if (i >= 0 && !t->cluster && t->ep[i].n_slots == REDIS_SLOTS) return 0;
    i = redis_topo_add(t, a);
    if (i < 0) return i;
    set_range(t, 0, REDIS_SLOTS - 1, i);
    t->cluster = false;
    return 1;
}

int redis_topo_set_slot(struct redis_topo *t, unsigned slot, const struct redis_addr *a)
{
    ASSERT(slot < REDIS_SLOTS);
    int i = redis_topo_add(t, a);
    if (i < 0) return i;
    if (t->slot[slot] == i) return 0;
    set_range(t, slot, slot, i);
    return 1;
}

/* ---- CLUSTER SLOTS ---- */

static bool is_text(const redisReply *r)
{
    return r && (r->type == REDIS_REPLY_STRING || r->type == REDIS_REPLY_STATUS);
}

static bool is_text_of(const redisReply *r, const char *s)
{
    return is_text(r) && (size_t)r->len == strlen(s) && memcmp(r->str, s, (size_t)r->len) == 0;
}

/* A host as servers write it. false: none of ours (too long, empty, not one word). */
static bool set_host(struct redis_addr *a, const char *p, size_t len)
{
    if (len == 0 || len >= REDIS_HOST_MAX || p[0] == '/') return false;
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)p[i] <= ' ' || p[i] == 0x7f) return false;
    memcpy(a->host, p, len);
    a->host[len] = 0;
    return true;
}

/* A node without a name is the one that answered; behind a unix socket that is this machine. */
static void set_host_from(struct redis_addr *a, const struct redis_addr *from)
{
    memcpy(a->host, from->host, sizeof(a->host));
    if (redis_addr_is_unix(from)) memcpy(a->host, "127.0.0.1", sizeof("127.0.0.1"));
}

/* [host, port, id, [name, value, …]]. 1; 0 the node cannot be reached under any name that it
 * gives ("?" without an ip beside it, no port for this transport); -EBADMSG. */
static int parse_node(const redisReply *r, const struct redis_addr *from, struct redis_addr *ret)
{
    if (!r || r->type != REDIS_REPLY_ARRAY || r->elements < 2) return -EBADMSG;
    const redisReply *host = r->element[0], *port = r->element[1];
    if (!port || port->type != REDIS_REPLY_INTEGER || port->integer < 0 || port->integer > 65535)
        return -EBADMSG;
    if (!host || (host->type != REDIS_REPLY_NIL && !is_text(host))) return -EBADMSG;
    *ret = (struct redis_addr){.port = (uint16_t)port->integer};
    if (port->integer == 0) return 0;
    if (host->type == REDIS_REPLY_NIL || host->len == 0) {
        set_host_from(ret, from);
        return 1;
    }
    if (!is_text_of(host, "?")) return set_host(ret, host->str, (size_t)host->len) ? 1 : -EBADMSG;
    const redisReply *more = r->elements > 3 ? r->element[3] : NULL;
    for (size_t i = 0; more && more->type == REDIS_REPLY_ARRAY && i + 1 < more->elements; i += 2)
        if (is_text_of(more->element[i], "ip") && is_text(more->element[i + 1]))
            return set_host(ret, more->element[i + 1]->str, (size_t)more->element[i + 1]->len);
    return 0;
}

struct range {
    unsigned lo, hi;
    struct redis_addr addr;
};

/* [first, last, master, replica…]. As parse_node(). */
static int parse_range(const redisReply *r, const struct redis_addr *from, struct range *ret)
{
    if (!r || r->type != REDIS_REPLY_ARRAY || r->elements < 3) return -EBADMSG;
    const redisReply *lo = r->element[0], *hi = r->element[1];
    if (!lo || lo->type != REDIS_REPLY_INTEGER || !hi || hi->type != REDIS_REPLY_INTEGER)
        return -EBADMSG;
    if (lo->integer < 0 || hi->integer < lo->integer || hi->integer >= REDIS_SLOTS) return -EBADMSG;
    ret->lo = (unsigned)lo->integer;
    ret->hi = (unsigned)hi->integer;
    return parse_node(r->element[2], from, &ret->addr);
}

static int fill_slots(struct redis_topo *t, const redisReply *r, const struct redis_addr *from)
{
    struct range range;
    set_range(t, 0, REDIS_SLOTS - 1, -1);
    /* Known nodes are marked first, so that no new one takes the place of one that comes later. */
    for (size_t i = 0; i < r->elements; i++) {
        int n = parse_range(r->element[i], from, &range);
        if (n < 0) return n;
        int e = n == 1 ? find_endpoint(t, &range.addr) : -1;
        if (e >= 0) set_range(t, range.lo, range.hi, e);
    }
    for (size_t i = 0; i < r->elements; i++) {
        if (parse_range(r->element[i], from, &range) != 1) continue;
        int e = redis_topo_add(t, &range.addr);
        if (e < 0) return e;
        set_range(t, range.lo, range.hi, e);
    }
    return 0;
}

int redis_topo_set_slots(struct redis_topo *t, const redisReply *r, const struct redis_addr *from)
{
    if (!r || r->type != REDIS_REPLY_ARRAY) return -EBADMSG;
    struct redis_topo *next = mem_alloc(sizeof(*next));
    if (!next) return -ENOMEM;
    *next = *t;
    int res = fill_slots(next, r, from);
    if (res == 0) {
        next->cluster = true;
        if (!t->cluster || memcmp(t->slot, next->slot, sizeof(t->slot)) != 0) res = 1;
        *t = *next;
    }
    mem_free(next);
    return res;
}

/* ---- redirects ---- */

static bool take_number(const char *p, size_t len, unsigned max, unsigned *ret)
{
    unsigned v = 0;
    size_t i = 0;
    for (; i < len && p[i] >= '0' && p[i] <= '9' && v <= max; i++)
        v = v * 10 + (unsigned)(p[i] - '0');
    *ret = v;
    return len > 0 && i == len && v <= max;
}

/* An empty host is `from`'s, if there is one. 1, -EBADMSG. */
static int set_addr(struct redis_addr *ret, const char *host, size_t n_host, const char *port,
                    size_t n_port, const struct redis_addr *from)
{
    struct redis_addr a = {0};
    unsigned v;
    if (n_host == 0 && from)
        set_host_from(&a, from);
    else if (!set_host(&a, host, n_host))
        return -EBADMSG;
    if (!take_number(port, n_port, 65535, &v) || v == 0) return -EBADMSG;
    a.port = (uint16_t)v;
    *ret = a;
    return 1;
}

int redis_redirect_parse(const char *text, const struct redis_addr *from,
                         struct redis_redirect *ret)
{
    struct redis_redirect d = {.ask = strncmp(text, "ASK ", 4) == 0};
    if (!d.ask && strncmp(text, "MOVED ", 6) != 0) return 0;
    const char *slot = strchr(text, ' ') + 1, *host = strchr(slot, ' ');
    const char *colon = host ? strrchr(++host, ':') : NULL; /* IPv6 comes without brackets */
    if (!colon || !take_number(slot, (size_t)(host - 1 - slot), REDIS_SLOTS - 1, &d.slot))
        return -EBADMSG;
    int r = set_addr(&d.addr, host, (size_t)(colon - host), colon + 1, strlen(colon + 1), from);
    if (r == 1) *ret = d;
    return r;
}

/* ---- sentinels ---- */

int redis_sentinel_parse_master(const redisReply *r, struct redis_addr *ret)
{
    if (!r) return -EBADMSG;
    if (r->type == REDIS_REPLY_NIL) return 0;
    if (r->type != REDIS_REPLY_ARRAY || r->elements != 2 || !is_text(r->element[0]) ||
        !is_text(r->element[1]))
        return -EBADMSG;
    const redisReply *host = r->element[0], *port = r->element[1];
    return set_addr(ret, host->str, (size_t)host->len, port->str, (size_t)port->len, NULL);
}

/* ["message", "+switch-master", "<master> <old host> <old port> <new host> <new port>"] */
int redis_sentinel_parse_switch(const redisReply *r, const char *master, struct redis_addr *ret)
{
    if (!r || r->type != REDIS_REPLY_ARRAY || r->elements != 3) return 0;
    if (!is_text_of(r->element[0], "message") || !is_text_of(r->element[1], "+switch-master"))
        return 0;
    if (!is_text(r->element[2])) return -EBADMSG;
    const char *word[6] = {r->element[2]->str};
    size_t n = 1, n_name = strlen(master);
    for (; n < 6 && (word[n] = strchr(word[n - 1], ' ')) != NULL; n++)
        word[n]++;
    if (n != 5) return -EBADMSG;
    if ((size_t)(word[1] - word[0]) != n_name + 1 || memcmp(word[0], master, n_name) != 0) return 0;
    return set_addr(ret, word[3], (size_t)(word[4] - word[3]) - 1, word[4], strlen(word[4]), NULL);
}

/* ---- INFO ---- */

/* What stands behind "name:" at the beginning of a line; "": there is no such line. */
static const char *field(const char *text, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = text; (p = strstr(p, name)) != NULL; p += n)
        if ((p == text || p[-1] == '\n') && p[n] == ':') return p + n + 1;
    return "";
}

static uint64_t number(const char *p)
{
    return isdigit((unsigned char)*p) ? strtoull(p, NULL, 10) : 0; /* too large: the largest */
}

static bool says(const char *text, const char *name, const char *word)
{
    const char *p = field(text, name);
    size_t n = strcspn(p, "\r\n");
    return n == strlen(word) && memcmp(p, word, n) == 0;
}

void redis_info_parse(const char *text, struct redis_info *ret)
{
    const char *policy = field(text, "maxmemory_policy");
    *ret = (struct redis_info){
        .maxmemory_bytes = number(field(text, "maxmemory")),
        .used_memory_bytes = number(field(text, "used_memory")),
        .evicted_keys = number(field(text, "evicted_keys")),
        .expired_keys = number(field(text, "expired_keys")),
        .is_cluster = says(text, "redis_mode", "cluster") || says(text, "cluster_enabled", "1"),
        .is_sentinel = says(text, "redis_mode", "sentinel"),
        .is_replica = says(text, "role", "slave"),
    };
    size_t n = strcspn(policy, "\r\n"), cap = sizeof ret->maxmemory_policy - 1;
    memcpy(ret->maxmemory_policy, policy, n < cap ? n : cap);
    for (const char *p = text; (p = strstr(p, ":keys=")) != NULL;) /* db0:keys=…, db1:keys=… */
        ret->keys += number(p += 6);
}

/* ---- what the URLs promised ---- */

int redis_topo_check(const struct redis_url *u, const struct redis_info *i, struct err *err)
{
    if (i->is_sentinel)
        return err_set(err, -EINVAL,
                       "the server is a sentinel, which keeps no records: write "
                       "redis-sentinel://host:port/MASTER");
    if (i->is_cluster) {
        if (u->mode == REDIS_SENTINEL)
            return err_set(err, -EINVAL,
                           "the sentinels' master is a node of a cluster: write redis-cluster://");
        if (u->db != 0)
            return err_set(err, -EINVAL,
                           "the server is a node of a cluster, which has database 0 only");
        return 1;
    }
    if (u->mode == REDIS_CLUSTER)
        return err_set(err, -EINVAL, "the server is no node of a cluster: write redis://");
    if (u->mode == REDIS_PLAIN && u->n_hosts > 1)
        return err_set(err, -EINVAL,
                       "%zu servers that are no cluster: keys are not spread over unrelated "
                       "servers; make them a cluster or name one",
                       u->n_hosts);
    if (i->is_replica)
        return err_set(err, -EAGAIN, "the server is a replica: records go to the master");
    return 0;
}
