/* Parsing goes left to right over one URL: scheme, credentials, hosts, path, parameters. Every
 * value is stored through a setter that refuses a second, different one, which is all that several
 * URLs need in order to describe one installation. */
#include "base/redis/redis_url.h"

#include "base/assert.h"
#include "base/opt.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { URL_BYTES_MAX = 8192 };

static const struct scheme {
    const char *name;
    enum redis_mode mode;
    bool tls, is_unix;
} schemes[] = {
    {"redis", REDIS_PLAIN, false, false},
    {"rediss", REDIS_PLAIN, true, false},
    {"redis-cluster", REDIS_CLUSTER, false, false},
    {"rediss-cluster", REDIS_CLUSTER, true, false},
    {"redis-sentinel", REDIS_SENTINEL, false, false},
    {"rediss-sentinel", REDIS_SENTINEL, true, false},
    {"unix", REDIS_PLAIN, false, true},
    {"redis+unix", REDIS_PLAIN, false, true},
};

enum { DB, TTL, CONNECTIONS, INSECURE, N_NUMBERS };
struct parser {
    struct redis_url *u;
    size_t i; /* of the URL under way */
    const struct scheme *scheme;
    uint64_t number[N_NUMBERS];
    bool said[N_NUMBERS];
    struct err *err;
};

static int refuse_url(const struct parser *p, const char *why)
{
    return err_set(p->err, -EINVAL, "Redis URL %zu: %s", p->i + 1, why);
}

/* %XX decoded in place. */
static int decode(const struct parser *p, char *s)
{
    char *out = s;
    for (; *s; s++) {
        char c = *s;
        if (c == '%') {
            if (!isxdigit((unsigned char)s[1]) || !isxdigit((unsigned char)s[2]))
                return refuse_url(p, "'%' must be followed by two hex digits");
            c = (char)strtoul((char[]){s[1], s[2], '\0'}, NULL, 16);
            if (c == '\0') return refuse_url(p, "a NUL byte");
            s += 2;
        }
        *out++ = c;
    }
    *out = '\0';
    return 0;
}

static bool is_printable(const char *s) /* and without a space */
{
    for (; *s; s++)
        if ((unsigned char)*s <= ' ' || *s == 0x7f) return false;
    return true;
}

static int refuse_second(const struct parser *p, const char *what)
{
    return err_set(p->err, -EINVAL, "Redis URL %zu: another %s was given before", p->i + 1, what);
}

static int set_str(const struct parser *p, const char **at, const char *value, const char *what)
{
    if (*at && strcmp(*at, value) != 0) return refuse_second(p, what);
    *at = value;
    return 0;
}

static int parse_number(const char *text, uint64_t *ret)
{
    int64_t v;
    if (opt_parse_int(text, &v) < 0 || v < 0) return -EINVAL;
    *ret = (uint64_t)v;
    return 0;
}

static int parse_bool(const char *text, uint64_t *ret)
{
    bool v;
    if (opt_parse_bool(text, &v) < 0) return -EINVAL;
    *ret = v;
    return 0;
}

static const struct number {
    const char *name, *what, *why;
    int (*parse)(const char *text, uint64_t *ret);
    uint64_t min, max;
} numbers[N_NUMBERS] = {
    [DB] = {"db", "database", "the database must be a number from 0 to 65535", parse_number, 0,
            65535},
    /* chosen: an expiry stays far below the server's limit of 2^63 ms since the epoch */
    [TTL] = {"ttl", "ttl", "ttl must be a duration up to ten years, such as 36h",
             opt_parse_duration_ms, 0, 10ull * 365 * 86400 * 1000},
    [CONNECTIONS] = {"connections", "number of connections",
                     "connections must be a number from 1 to 64", parse_number, 1,
                     REDIS_CONNECTIONS_MAX},
    [INSECURE] = {"insecure", "word on insecure", "insecure must be true or false", parse_bool, 0,
                  1},
};

static int set_number(struct parser *p, size_t i, const char *value)
{
    const struct number *n = &numbers[i];
    uint64_t v;
    if (n->parse(value, &v) < 0 || v < n->min || v > n->max) return refuse_url(p, n->why);
    if (p->said[i] && p->number[i] != v) return refuse_second(p, n->what);
    p->said[i] = true;
    p->number[i] = v;
    return 0;
}

static bool is_prefix(const char *s) /* a hash tag would put every key into one slot */
{
    return strlen(s) < REDIS_PREFIX_MAX && is_printable(s) && !strpbrk(s, "{}");
}

static bool is_group(const char *s)
{
    const size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.");
    return n > 0 && n < REDIS_PREFIX_MAX && !s[n];
}

static int set_parameter(struct parser *p, const char *name, const char *value)
{
    struct redis_url *u = p->u;
    const struct {
        const char *name;
        const char **at;
        const char *what;
        bool (*check)(const char *value); /* NULL: anything but "" */
        const char *why;
    } strings[] = {
        {"user", &u->user, "user"},
        {"password", &u->password, "password"},
        {"sentinel_user", &u->sentinel_user, "sentinel user"},
        {"sentinel_password", &u->sentinel_password, "sentinel password"},
        {"ca", &u->ca, "CA file"},
        {"cert", &u->cert, "certificate file"},
        {"key", &u->key, "key file"},
        {"prefix", &u->prefix, "prefix", is_prefix,
         "the prefix must be up to 63 printable characters without braces"},
        {"group", &u->group, "group", is_group,
         "the group must be up to 63 letters, digits, '_', '-' or '.'"},
    };
    const bool tls = strcmp(name, "ca") == 0 || strcmp(name, "cert") == 0 ||
                     strcmp(name, "key") == 0 || strcmp(name, "insecure") == 0;
    if (tls && !p->scheme->tls)
        return refuse_url(p, "ca, cert, key and insecure need a TLS scheme such as rediss://");
    for (size_t i = 0; i < sizeof(strings) / sizeof(strings[0]); i++) {
        if (strcmp(name, strings[i].name) != 0) continue;
        if (strings[i].check && !strings[i].check(value)) return refuse_url(p, strings[i].why);
        if (!strings[i].check && !*value) return refuse_url(p, "a parameter without a value");
        return set_str(p, strings[i].at, value, strings[i].what);
    }
    for (size_t i = 0; i < N_NUMBERS; i++)
        if (strcmp(name, numbers[i].name) == 0) return set_number(p, i, value);
    return refuse_url(p, "a parameter that is not known");
}

/* ---- the pieces of a URL, which are cut in place; NULL where there is none ---- */

static int parse_query(struct parser *p, char *rest)
{
    for (char *value; (value = strsep(&rest, "&")) != NULL;) {
        if (!*value) continue;
        char *name = strsep(&value, "=");
        if (!value) return refuse_url(p, "a parameter without '='");
        int r = decode(p, name);
        if (r == 0) r = decode(p, value);
        if (r == 0) r = set_parameter(p, name, value);
        if (r < 0) return r;
    }
    return 0;
}

/* [user][:password]; a password alone is what servers without users want. */
static int parse_userinfo(struct parser *p, char *password)
{
    char *name = strsep(&password, ":");
    if (!password) return refuse_url(p, "a user without a password; ':' stands before a password");
    int r = decode(p, name);
    if (r == 0 && *name) r = set_str(p, &p->u->user, name, "user");
    if (r == 0) r = decode(p, password);
    if (r < 0) return r;
    if (!*password) return refuse_url(p, "an empty password");
    return set_str(p, &p->u->password, password, "password");
}

static int add_host(struct parser *p, const struct redis_addr *a)
{
    struct redis_url *u = p->u;
    for (size_t i = 0; i < u->n_hosts; i++)
        if (redis_addr_same(&u->host[i], a)) return 0;
    if (u->n_hosts == REDIS_HOSTS_MAX) return refuse_url(p, "more than 64 hosts");
    u->host[u->n_hosts++] = *a;
    return 0;
}

/* host, host:port, [ipv6], [ipv6]:port */
static int parse_host(struct parser *p, char *host)
{
    struct redis_addr a = {.port = p->scheme->mode == REDIS_SENTINEL ? 26379 : 6379};
    char *port = host;
    if (*host == '[') {
        char *end = strchr(++host, ']');
        if (!end) return refuse_url(p, "'[' without ']'");
        if (end[1] && end[1] != ':') return refuse_url(p, "']' must end the host");
        port = end[1] ? end + 2 : NULL;
        *end = '\0';
    } else {
        (void)strsep(&port, ":");
        if (port && strchr(port, ':'))
            return refuse_url(p, "an IPv6 address must stand in brackets");
    }
    int r = decode(p, host);
    if (r < 0) return r;
    if (!*host || strlen(host) >= REDIS_HOST_MAX || !is_printable(host) || strpbrk(host, "/@[]"))
        return refuse_url(p, "a host is missing or is not a name or an address");
    memcpy(a.host, host, strlen(host) + 1);
    if (port) {
        int64_t v = 0;
        r = decode(p, port);
        if (r < 0) return r;
        if (opt_parse_int(port, &v) < 0 || v < 1 || v > 65535)
            return refuse_url(p, "a port must be a number from 1 to 65535");
        a.port = (uint16_t)v;
    }
    return add_host(p, &a);
}

static int parse_unix(struct parser *p, char *rest)
{
    struct redis_addr a = {0};
    char *path = strchr(rest, '/');
    if (!path) return refuse_url(p, "a unix socket needs a path, as in unix:///run/redis.sock");
    if (path > rest) {
        if (path[-1] != '@') return refuse_url(p, "a unix socket has no host: unix:///path");
        path[-1] = '\0';
        int r = parse_userinfo(p, rest);
        if (r < 0) return r;
    }
    int r = decode(p, path);
    if (r < 0) return r;
    enum { SUN_PATH_MAX = 108 }; /* struct sockaddr_un, with the NUL */
    if (strlen(path) >= SUN_PATH_MAX || strlen(path) < 2)
        return refuse_url(p, "no path of a unix socket");
    memcpy(a.host, path, strlen(path) + 1);
    return add_host(p, &a);
}

static int parse_hosts(struct parser *p, char *rest)
{
    char *at = strrchr(rest, '@');
    int r = 0;
    if (at) {
        *at = '\0';
        r = parse_userinfo(p, rest);
        rest = at + 1;
    }
    for (char *one; r == 0 && (one = strsep(&rest, ",")) != NULL;)
        r = parse_host(p, one);
    return r;
}

static int parse_path(struct parser *p, char *path)
{
    int r = path ? decode(p, path) : 0;
    if (r < 0) return r;
    if (p->scheme->mode != REDIS_SENTINEL) return path && *path ? set_number(p, DB, path) : 0;
    if (!path || !*path || !is_printable(path) || strchr(path, '/'))
        return refuse_url(p, "behind the sentinels the master's name is wanted, as in /mymaster");
    return set_str(p, &p->u->master, path, "master name");
}

static int parse_one(struct parser *p, const char *url)
{
    size_t len = strlen(url);
    if (len > URL_BYTES_MAX) return refuse_url(p, "too long");
    const char *sep = strstr(url, "://");
    p->scheme = NULL;
    for (size_t i = 0; sep && i < sizeof(schemes) / sizeof(schemes[0]); i++)
        if (strlen(schemes[i].name) == (size_t)(sep - url) &&
            strncmp(url, schemes[i].name, (size_t)(sep - url)) == 0)
            p->scheme = &schemes[i];
    if (!p->scheme)
        return refuse_url(
            p, "begins with none of redis:// rediss:// redis-cluster:// rediss-cluster://"
               " redis-sentinel:// rediss-sentinel:// unix:// redis+unix://");
    if (p->i > 0 && (p->u->mode != p->scheme->mode || p->u->tls != p->scheme->tls))
        return refuse_url(p, "another scheme than the URLs before it");
    p->u->mode = p->scheme->mode;
    p->u->tls = p->scheme->tls;
    char *query = arena_strndup(&p->u->arena, sep + 3, strlen(sep + 3)), *hosts;
    if (!query) return err_set(p->err, -ENOMEM, "no memory for a Redis URL");
    if (strchr(query, '#')) return refuse_url(p, "'#' must be written %23");
    char *path = hosts = strsep(&query, "?");
    int r;
    if (p->scheme->is_unix) {
        r = parse_unix(p, hosts);
    } else {
        (void)strsep(&path, "/");
        r = parse_hosts(p, hosts);
        if (r == 0) r = parse_path(p, path);
    }
    return r < 0 ? r : parse_query(p, query);
}

/* What only all URLs together can tell. */
static int check_all(const struct parser *p)
{
    const struct redis_url *u = p->u;
    if (u->user && !u->password) return refuse_url(p, "a user without a password");
    if (u->sentinel_user && !u->sentinel_password)
        return refuse_url(p, "a sentinel user without a password");
    if (u->mode != REDIS_SENTINEL && u->sentinel_password)
        return refuse_url(p, "a sentinel password without redis-sentinel://");
    if (!u->cert != !u->key) return refuse_url(p, "cert and key come together");
    if (u->mode == REDIS_CLUSTER && u->db != 0)
        return refuse_url(p, "a cluster has database 0 only");
    if (u->n_hosts > 1 && u->db != 0 && u->mode == REDIS_PLAIN)
        return refuse_url(p, "several servers are a cluster, which has database 0 only");
    for (size_t i = 0; u->n_hosts > 1 && i < u->n_hosts; i++)
        if (redis_addr_is_unix(&u->host[i]))
            return refuse_url(p, "a unix socket is one server and stands alone");
    return 0;
}

int redis_url_parse(const char *const *urls, size_t n, struct redis_url *ret, struct err *err)
{
    ASSERT(urls || n == 0);
    if (n == 0) return err_set(err, -EINVAL, "no Redis URL");
    struct redis_url *u = mem_zalloc(sizeof(*u));
    if (!u) return err_set(err, -ENOMEM, "no memory for a Redis URL");
    arena_init(&u->arena);
    struct parser p = {.u = u, .err = err};
    int r = 0;
    for (p.i = 0; r == 0 && p.i < n; p.i++)
        r = parse_one(&p, urls[p.i]);
    if (r == 0) {
        p.i = n - 1;
        u->db = (unsigned)p.number[DB];
        u->ttl_ms = p.number[TTL];
        u->connections = (unsigned)p.number[CONNECTIONS];
        u->insecure = p.number[INSECURE];
        r = check_all(&p);
        if (!u->group) u->group = "default";
    }
    if (r == 0)
        *ret = *u;
    else
        redis_url_fini(u);
    mem_free(u);
    return r;
}

void redis_url_fini(struct redis_url *u)
{
    if (u) arena_fini(&u->arena);
}

bool redis_addr_same(const struct redis_addr *a, const struct redis_addr *b)
{
    return a->port == b->port && strcmp(a->host, b->host) == 0;
}
