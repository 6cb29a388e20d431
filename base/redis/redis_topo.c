#include "base/redis/redis_topo.h"

#include "base/assert.h"

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
    t->version++;
    return 1;
}

int redis_topo_set_slot(struct redis_topo *t, unsigned slot, const struct redis_addr *a)
{
    ASSERT(slot < REDIS_SLOTS);
    int i = redis_topo_add(t, a);
    if (i < 0) return i;
    if (t->slot[slot] == i) return 0;
    set_range(t, slot, slot, i);
    t->version++;
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
        next->version += (uint64_t)res;
        *t = *next;
    }
    mem_free(next);
    return res;
}

/* ---- redirects ---- */

/* Digits up to the end or a space; *p moves behind them. */
static bool take_number(const char **p, const char *end, unsigned max, unsigned *ret)
{
    unsigned v = 0;
    const char *s = *p;
    for (; s < end && *s >= '0' && *s <= '9' && v <= max; s++)
        v = v * 10 + (unsigned)(*s - '0');
    if (s == *p || v > max || (s < end && *s != ' ')) return false;
    *p = s;
    *ret = v;
    return true;
}

int redis_redirect_parse(const char *text, size_t len, const struct redis_addr *from,
                         struct redis_redirect *ret)
{
    struct redis_redirect d = {0};
    const char *p = text, *end = text + len;
    if (len >= 6 && memcmp(p, "MOVED ", 6) == 0)
        p += 6;
    else if (len >= 4 && memcmp(p, "ASK ", 4) == 0)
        p += 4;
    else
        return 0;
    d.ask = text[0] == 'A';
    unsigned port;
    if (!take_number(&p, end, REDIS_SLOTS - 1, &d.slot) || p == end) return -EBADMSG;
    p++;
    const char *colon = memrchr(p, ':', (size_t)(end - p)); /* IPv6 comes without brackets */
    if (!colon) return -EBADMSG;
    if (colon == p)
        set_host_from(&d.addr, from);
    else if (!set_host(&d.addr, p, (size_t)(colon - p)))
        return -EBADMSG;
    p = colon + 1;
    if (!take_number(&p, end, 65535, &port) || port == 0 || p != end) return -EBADMSG;
    d.addr.port = (uint16_t)port;
    *ret = d;
    return 1;
}

/* ---- sentinels ---- */

int redis_sentinel_parse_master(const redisReply *r, struct redis_addr *ret)
{
    if (!r) return -EBADMSG;
    if (r->type == REDIS_REPLY_NIL) return 0;
    if (r->type != REDIS_REPLY_ARRAY || r->elements != 2 || !is_text(r->element[0]) ||
        !is_text(r->element[1]))
        return -EBADMSG;
    struct redis_addr a = {0};
    const char *p = r->element[1]->str, *end = p + r->element[1]->len;
    unsigned port;
    if (!set_host(&a, r->element[0]->str, (size_t)r->element[0]->len) ||
        !take_number(&p, end, 65535, &port) || p != end || port == 0)
        return -EBADMSG;
    a.port = (uint16_t)port;
    *ret = a;
    return 1;
}

/* ["message", "+switch-master", "<master> <old host> <old port> <new host> <new port>"] */
int redis_sentinel_parse_switch(const redisReply *r, const char *master, struct redis_addr *ret)
{
    if (!r || r->type != REDIS_REPLY_ARRAY || r->elements != 3) return 0;
    if (!is_text_of(r->element[0], "message") || !is_text_of(r->element[1], "+switch-master"))
        return 0;
    if (!is_text(r->element[2])) return -EBADMSG;
    const char *p = r->element[2]->str, *end = p + r->element[2]->len;
    struct {
        const char *p;
        size_t len;
    } word[5];
    size_t n = 0;
    for (; n < 5; n++) {
        const char *space = memchr(p, ' ', (size_t)(end - p));
        word[n].p = p;
        word[n].len = (size_t)((space ? space : end) - p);
        if (!space) break;
        p = space + 1;
    }
    if (n != 4) return -EBADMSG;
    if (word[0].len != strlen(master) || memcmp(word[0].p, master, word[0].len) != 0) return 0;
    struct redis_addr a = {0};
    unsigned port;
    if (!set_host(&a, word[3].p, word[3].len) || !take_number(&word[4].p, end, 65535, &port) ||
        word[4].p != end || port == 0)
        return -EBADMSG;
    a.port = (uint16_t)port;
    *ret = a;
    return 1;
}

/* ---- INFO ---- */

static uint64_t number(const char *p, size_t len)
{
    uint64_t v = 0;
    for (size_t i = 0; i < len && p[i] >= '0' && p[i] <= '9'; i++)
        v = v > (UINT64_MAX - 9) / 10 ? UINT64_MAX / 10 : v * 10 + (uint64_t)(p[i] - '0');
    return v;
}

static bool is_word(const char *p, size_t len, const char *word)
{
    return len == strlen(word) && memcmp(p, word, len) == 0;
}

static void set_field(struct redis_info *i, const char *name, size_t n_name, const char *v,
                      size_t n)
{
    const struct {
        const char *name;
        uint64_t *at;
    } numbers[] = {
        {"maxmemory", &i->maxmemory_bytes},
        {"used_memory", &i->used_memory_bytes},
        {"evicted_keys", &i->evicted_keys},
        {"expired_keys", &i->expired_keys},
    };
    const struct {
        const char *name, *word;
        bool *at;
    } flags[] = {
        {"redis_mode", "cluster", &i->is_cluster},
        {"cluster_enabled", "1", &i->is_cluster},
        {"redis_mode", "sentinel", &i->is_sentinel},
        {"role", "slave", &i->is_replica},
        {"loading", "1", &i->loading},
    };
    const struct {
        const char *name;
        char *at;
        size_t cap;
    } texts[] = {
        {"maxmemory_policy", i->maxmemory_policy, sizeof(i->maxmemory_policy)},
        {"redis_version", i->version, sizeof(i->version)},
    };
    for (size_t k = 0; k < sizeof(numbers) / sizeof(numbers[0]); k++)
        if (is_word(name, n_name, numbers[k].name)) *numbers[k].at = number(v, n);
    for (size_t k = 0; k < sizeof(flags) / sizeof(flags[0]); k++)
        if (is_word(name, n_name, flags[k].name) && is_word(v, n, flags[k].word))
            *flags[k].at = true;
    for (size_t k = 0; k < sizeof(texts) / sizeof(texts[0]); k++) {
        if (!is_word(name, n_name, texts[k].name)) continue;
        size_t len = n < texts[k].cap ? n : texts[k].cap - 1;
        memcpy(texts[k].at, v, len);
        texts[k].at[len] = 0;
    }
    bool is_db = n_name > 2 && memcmp(name, "db", 2) == 0 && name[2] >= '0' && name[2] <= '9';
    if (is_db && n > 5 && memcmp(v, "keys=", 5) == 0) i->keys += number(v + 5, n - 5);
}

void redis_info_parse(const char *text, size_t len, struct redis_info *ret)
{
    memset(ret, 0, sizeof(*ret));
    for (const char *p = text, *end = text + len; p < end;) {
        const char *eol = memchr(p, '\n', (size_t)(end - p));
        size_t n = (size_t)((eol ? eol : end) - p);
        size_t n_line = n > 0 && p[n - 1] == '\r' ? n - 1 : n;
        const char *colon = memchr(p, ':', n_line);
        if (colon)
            set_field(ret, p, (size_t)(colon - p), colon + 1, n_line - (size_t)(colon + 1 - p));
        p += n + (eol ? 1 : 0);
    }
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
