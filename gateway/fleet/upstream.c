/* An entry is cut into words as a shell would (quotes, backslashes within them), the first is the
 * URL, the others are fields of one table. */
#include "gateway/fleet/upstream.h"

#include "base/buf.h"
#include "base/mem.h"
#include "base/opt.h"
#include "gateway/process/config.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { FILE_KEY_MAX = 4096, NAME_MAX_BYTES = 100, INFLIGHT_MAX = 1000000 };

struct entry { /* one being read */
    struct gw_upstream *up;
    const char *where; /* "upstreams, entry 2" */
    bool worker;
    struct err *err;
};

/* ---- text ---- */

static int set_text(char **f, const char *text)
{
    char *copy = mem_strdup(text);
    if (!copy) return -ENOMEM;
    mem_free(*f);
    *f = copy;
    return 0;
}

static int take_buf(char **f, struct buf *b)
{
    const char *s = buf_cstr(b);
    return s ? set_text(f, s) : -ENOMEM;
}

/* The next word of *p, unquoted. 1, 0 at the end, -EINVAL for a quote that is not closed. */
static int next_word(const char **p, struct buf *word)
{
    const char *s = *p + strspn(*p, " \t\r\n");
    bool quoted = false;
    buf_clear(word);
    if (!*s) return 0;
    for (; *s && (quoted || !strchr(" \t\r\n", *s)); s++) {
        if (*s == '"') {
            quoted = !quoted;
            continue;
        }
        if (quoted && *s == '\\' && s[1]) s++;
        if (buf_addc(word, *s) < 0) return -ENOMEM;
    }
    *p = s;
    return quoted ? -EINVAL : 1;
}

/* ---- addresses and files ---- */

int gw_parse_address(const char *s, struct buf *out)
{
    if (strncmp(s, "http://", 7) == 0) s += 7;
    if (strncmp(s, "unix:", 5) == 0) return s[5] ? buf_adds(out, s) : -EINVAL;
    size_t len = strlen(s);
    while (len > 0 && s[len - 1] == '/')
        len--;
    const char *colon = NULL;
    for (size_t i = 0; i < len; i++) {
        if (s[i] == ':') colon = s + i;
        if (s[i] == '/' || s[i] == ' ' || s[i] == '@') return -EINVAL;
    }
    if (!colon) return -EINVAL;
    if (*s != '[' && memchr(s, ':', (size_t)(colon - s)))
        return -EINVAL; /* IPv6 without brackets */
    if (*s == '[' && colon[-1] != ']') return -EINVAL;
    unsigned port = 0;
    const char *p = colon + 1;
    if (p == s + len) return -EINVAL;
    for (; p < s + len; p++) {
        if (!isdigit((unsigned char)*p)) return -EINVAL;
        port = port * 10 + (unsigned)(*p - '0');
        if (port > 65535) return -EINVAL;
    }
    return buf_add(out, s, len);
}

bool gw_secret_is_exposed(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && (st.st_mode & (S_IRWXG | S_IRWXO));
}

/* ---- URL ---- */

static int bad_url(const struct entry *e)
{
    return err_set(e->err, -EINVAL,
                   "%s: expected http(s)://HOST[:PORT][/PATH] or unix:/path as its first word",
                   e->where);
}

/* HOST[:PORT] of `len` bytes; the port may be missing. */
static int set_host(struct entry *e, const char *s, size_t len)
{
    struct gw_upstream *u = e->up;
    struct buf address = BUF_INIT, norm = BUF_INIT;
    const char *end = s + len, *colon = NULL;
    for (const char *p = *s == '[' ? memchr(s, ']', len) : s; p && p < end; p++)
        if (*p == ':') colon = p;
    const char *dflt = u->tls ? "443" : "80";
    bool plain = !colon || ((size_t)(end - colon - 1) == strlen(dflt) &&
                            strncmp(colon + 1, dflt, strlen(dflt)) == 0);
    size_t host_len = colon ? (size_t)(colon - s) : len;
    int r = host_len > 0 ? buf_add(&address, s, len) : -EINVAL;
    if (r == 0 && !colon) r = buf_addf(&address, ":%s", dflt);
    if (r == 0 && !buf_cstr(&address)) r = -ENOMEM;
    if (r == 0) r = gw_parse_address(address.data, &norm);
    if (r == 0) r = take_buf(&u->address, &norm);
    if (r == 0) u->host = mem_strndup(s, plain ? host_len : len);
    if (r == 0 && !u->host) r = -ENOMEM;
    if (r == 0) r = set_text(&u->name, u->address);
    buf_fini(&address);
    buf_fini(&norm);
    return r;
}

static int set_url(struct entry *e, const char *s)
{
    struct gw_upstream *u = e->up;
    int r = 0;
    if (strncmp(s, "unix:/", 6) == 0) {
        r = set_text(&u->address, s);
        if (r == 0) r = set_text(&u->name, s);
        if (r == 0) r = set_text(&u->host, "localhost");
        return r < 0 ? r : set_text(&u->base, "/v1");
    }
    u->tls = strncmp(s, "https://", 8) == 0;
    if (!u->tls && strncmp(s, "http://", 7) != 0) return bad_url(e);
    s += u->tls ? 8 : 7;
    for (const char *p = s; *p; p++)
        if ((unsigned char)*p <= ' ' || *p == 0x7f || strchr("?#@\\", *p)) return bad_url(e);
    size_t len = strcspn(s, "/");
    r = set_host(e, s, len);
    if (r == -EINVAL) return bad_url(e);
    if (r < 0) return r;
    if (!s[len]) return set_text(&u->base, "/v1");
    r = set_text(&u->base, s + len);
    for (size_t n = r == 0 ? strlen(u->base) : 0; n > 0 && u->base[n - 1] == '/'; n--)
        u->base[n - 1] = '\0';
    return r;
}

/* ---- fields ---- */

static bool name_is_plain(const char *s)
{
    size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:@[]");
    return n > 0 && n < NAME_MAX_BYTES && s[n] == '\0';
}

static int add_rule(struct gw_upstream *u, const char *s, size_t len)
{
    const char *eq = memchr(s, '=', len);
    size_t n = eq ? (size_t)(eq - s) : len;
    if (n == 0 || (eq && n + 1 == len)) return -EINVAL;
    struct gw_model_rule *v = mem_realloc(u->model, (u->n_models + 1) * sizeof *v);
    if (!v) return -ENOMEM;
    u->model = v;
    v[u->n_models] = (struct gw_model_rule){mem_strndup(s, n), NULL};
    struct gw_model_rule *m = &v[u->n_models++];
    if (eq) m->sent = mem_strndup(eq + 1, len - n - 1);
    return m->pattern && (!eq || m->sent) ? 0 : -ENOMEM;
}

static int set_models(struct gw_upstream *u, const char *s)
{
    int r = *s ? 0 : -EINVAL;
    while (r == 0 && *s) {
        size_t n = strcspn(s, ",");
        r = add_rule(u, s, n);
        s += n + (s[n] == ',');
    }
    return r;
}

/* "${NAME}" and "os.environ/NAME" stand for a variable here, too: flags can be seen by others. */
static const char *from_environment(const char *s, struct buf *scratch)
{
    size_t len = strlen(s);
    const char *name = strncmp(s, "os.environ/", 11) == 0 ? s + 11 : NULL;
    if (!name && len > 3 && strncmp(s, "${", 2) == 0 && s[len - 1] == '}') {
        if (buf_add(scratch, s + 2, len - 3) < 0) return NULL;
        name = buf_cstr(scratch);
    }
    return name ? getenv(name) : s;
}

static int set_key(struct gw_upstream *u, const char *key)
{
    struct buf b = BUF_INIT;
    size_t n = 0;
    while ((unsigned char)key[n] > ' ' && (unsigned char)key[n] < 0x7f)
        n++;
    int r = n > 0 && !key[n] ? buf_addf(&b, "Bearer %s", key) : -EINVAL;
    if (r == 0) r = take_buf(&u->authorization, &b);
    if (b.data) explicit_bzero(b.data, b.cap);
    buf_fini(&b);
    return r;
}

static int note_exposed(struct gw_upstream *u, const char *path)
{
    return gw_secret_is_exposed(path) ? set_text(&u->exposed, path) : 0;
}

static int set_key_file(struct gw_upstream *u, const char *path)
{
    char line[FILE_KEY_MAX];
    FILE *f = fopen(path, "re");
    if (!f) return -EINVAL;
    bool whole = fgets(line, sizeof line, f) && (strchr(line, '\n') || feof(f));
    int r = whole ? 0 : -EINVAL; /* half a key is none */
    (void)fclose(f);
    if (r == 0) {
        line[strcspn(line, "\r\n")] = '\0';
        r = set_key(u, line);
    }
    explicit_bzero(line, sizeof line);
    return r < 0 ? r : note_exposed(u, path);
}

static int set_uint(const char *s, unsigned max, unsigned *ret)
{
    char *end;
    errno = 0;
    unsigned long v = strtoul(s, &end, 10);
    if (!isdigit((unsigned char)*s) || errno || *end || v > max) return -EINVAL;
    *ret = (unsigned)v;
    return 0;
}

static int set_weight(const char *s, double *ret)
{
    char *end;
    double v = strtod(s, &end);
    if (end == s || *end || !(v >= 0.001 && v <= 1000)) return -EINVAL;
    *ret = v;
    return 0;
}

static int set_health(struct gw_upstream *u, const char *s)
{
    if (strcmp(s, "off") != 0)
        return s[0] == '/' && !s[strcspn(s, " \t\r\n")] ? set_text(&u->health, s) : -EINVAL;
    mem_free(u->health);
    u->health = NULL;
    return 0;
}

/* Segments of plain characters, so that nothing in a request's path can be read in two ways. */
static int set_paths(struct gw_upstream *u, const char *s)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_/";
    for (const char *p = s;; p++) {
        size_t n = strcspn(p, ",");
        bool all = n == 1 && *p == '*';
        if (n == 0 || *p == '/' || p[n - 1] == '/' || (!all && strspn(p, plain) < n))
            return -EINVAL;
        p += n;
        if (!*p) return set_text(&u->paths, s);
    }
}

static int set_separator(struct gw_upstream *u, const char *s)
{
    struct buf b = BUF_INIT;
    int r = *s ? buf_add_json_str(&b, s, strlen(s)) : -EINVAL;
    if (r == 0) {
        b.len--; /* without its quotes */
        buf_consume(&b, 1);
        r = take_buf(&u->separator, &b);
    }
    buf_fini(&b);
    return r;
}

enum kind { WEIGHT, UINT, MS, TEXT, BOOL };
static const struct field {
    const char *name;
    enum kind kind;
    size_t offset;
    uint64_t min, max;
} fields[] = {
#define F(name, kind, field, min, max)                                                             \
    {                                                                                              \
        name, kind, offsetof(struct gw_upstream, field), min, max                                  \
    }
    F("weight", WEIGHT, weight, 0, 0),
    F("priority", UINT, priority, 0, 1000),
    F("max_inflight", UINT, inflight_max, 0, INFLIGHT_MAX),
    F("max_connections", UINT, connections_max, 0, INFLIGHT_MAX),
    F("health_interval", MS, health_interval_ms, 10, 3600000),
    F("connect_timeout", MS, connect_timeout_ms, 1, 600000),
    F("first_byte_timeout", MS, first_byte_timeout_ms, 1, 86400000),
    F("idle_timeout", MS, idle_timeout_ms, 1, 86400000),
    F("total_timeout", MS, total_timeout_ms, 0, 604800000),
    F("ca_file", TEXT, ca_file, 0, 0),
    F("cert_file", TEXT, cert_file, 0, 0),
    F("key_file", TEXT, key_file, 0, 0),
    F("insecure", BOOL, insecure, 0, 0),
    F("lmcache", BOOL, lmcache, 0, 0),
    F("client_organization", BOOL, client_organization, 0, 0),
#undef F
};

static int set_plain_field(const struct field *f, struct gw_upstream *u, const char *value)
{
    void *p = (char *)u + f->offset;
    uint64_t ms;
    switch (f->kind) {
    case WEIGHT:
        return set_weight(value, p);
    case UINT:
        return set_uint(value, (unsigned)f->max, p);
    case MS:
        if (opt_parse_duration_ms(value, &ms) < 0 || ms < f->min || ms > f->max) return -EINVAL;
        *(uint32_t *)p = (uint32_t)ms;
        return 0;
    case TEXT:
        return *value ? set_text(p, value) : -EINVAL;
    case BOOL:
        return opt_parse_bool(value, p) < 0 ? -EINVAL : 0;
    }
    return -EINVAL;
}

static int set_field(struct gw_upstream *u, const char *name, const char *value)
{
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if (strcmp(fields[i].name, name) == 0) return set_plain_field(&fields[i], u, value);
    if (strcmp(name, "name") == 0)
        return name_is_plain(value) ? set_text(&u->name, value) : -EINVAL;
    if (strcmp(name, "models") == 0) return set_models(u, value);
    if (strcmp(name, "paths") == 0) return set_paths(u, value);
    if (strcmp(name, "api_key_file") == 0) return set_key_file(u, value);
    if (strcmp(name, "health") == 0) return set_health(u, value);
    if (strcmp(name, "lmcache_separator") == 0) return set_separator(u, value);
    if (strcmp(name, "api_key") != 0) return -ENOENT;
    struct buf scratch = BUF_INIT;
    const char *key = from_environment(value, &scratch);
    int r = key ? set_key(u, key) : -EINVAL;
    buf_fini(&scratch);
    return r;
}

/* How to get in is all that is to be said of a worker: it tells the rest itself. */
static bool is_of_worker(const char *name)
{
    static const char *const names[] = {"api_key",   "api_key_file", "ca_file",
                                        "cert_file", "key_file",     "insecure"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

/* ---- entries ---- */

static int set_defaults(struct gw_upstream *u, const struct gw_config *c)
{
    u->weight = 1;
    u->health_interval_ms = c->health_interval_ms;
    u->connect_timeout_ms = c->connect_timeout_ms;
    u->first_byte_timeout_ms = c->first_byte_timeout_ms;
    u->idle_timeout_ms = c->idle_timeout_ms;
    u->total_timeout_ms = c->total_timeout_ms;
    return set_separator(u, " # # "); /* cited: LMCache's LMCACHE_BLEND_SPECIAL_STR */
}

static int default_health(struct gw_upstream *u)
{
    struct buf path = BUF_INIT;
    int r = buf_addf(&path, "%s/models", u->base);
    if (r == 0) r = take_buf(&u->health, &path);
    buf_fini(&path);
    return r;
}

static int set_word(struct entry *e, char *word)
{
    char *eq = strchr(word, '=');
    if (eq) *eq = '\0';
    bool known = eq && (!e->worker || is_of_worker(word));
    int r = known ? set_field(e->up, word, eq + 1) : -ENOENT;
    if (r == -ENOENT)
        return err_set(e->err, -EINVAL, "%s: unknown field \"%.40s\" behind the URL", e->where,
                       eq ? word : "(a word without =)");
    if (r == -EINVAL)
        return err_set(e->err, r, "%s: %.40s= has a value that cannot be used", e->where, word);
    return r;
}

/* A worker's routes have one place. */
static int set_worker_url(struct entry *e, const char *s)
{
    struct buf url = BUF_INIT;
    bool bare = !strstr(s, "://") && strncmp(s, "unix:", 5) != 0;
    int r = buf_addf(&url, "%s%s", bare ? "http://" : "", s);
    if (r == 0) r = buf_cstr(&url) ? set_url(e, url.data) : -ENOMEM;
    if (r == 0 && *e->up->base && strcmp(e->up->base, "/v1") != 0)
        r = err_set(e->err, -EINVAL, "%s: a worker's URL has no path", e->where);
    buf_fini(&url);
    return r;
}

static int parse_entry(struct entry *e, const struct gw_config *c, const char *text)
{
    struct buf word = BUF_INIT;
    const char *p = text;
    bool has_url = false;
    int r = set_text(&e->up->text, text), more = 1;
    if (r == 0) r = set_defaults(e->up, c);
    while (r == 0 && (more = next_word(&p, &word)) == 1) {
        if (!buf_cstr(&word)) {
            r = -ENOMEM;
        } else if (has_url) {
            r = set_word(e, word.data);
        } else {
            if (strncmp(word.data, "url=", 4) == 0) buf_consume(&word, 4);
            if (!buf_cstr(&word))
                r = -ENOMEM;
            else
                r = e->worker ? set_worker_url(e, word.data) : set_url(e, word.data);
            if (r == 0) r = default_health(e->up);
            has_url = true;
        }
    }
    if (r == 0 && more == -EINVAL)
        r = err_set(e->err, more, "%s: a quote is not closed", e->where);
    else if (r == 0 && more < 0)
        r = more;
    if (r == 0 && !has_url) r = bad_url(e);
    if (r == 0 && e->up->key_file) r = note_exposed(e->up, e->up->key_file);
    if (word.data) explicit_bzero(word.data, word.cap);
    buf_fini(&word);
    return r;
}

static int parse_list(const struct gw_config *c, const struct gw_strs *texts, bool workers,
                      struct gw_upstreams **ret, struct err *err)
{
    struct gw_upstreams *l = mem_zalloc(sizeof *l);
    if (!l) return -ENOMEM;
    int r = 0;
    if (texts->n > 0) l->up = mem_zalloc(texts->n * sizeof *l->up);
    if (texts->n > 0 && !l->up) r = -ENOMEM;
    for (size_t i = 0; r == 0 && i < texts->n; i++) {
        char where[40];
        (void)snprintf(where, sizeof where, "%s, entry %zu", workers ? "workers" : "upstreams",
                       i + 1);
        struct entry e = {&l->up[l->n++], where, workers, err};
        e.up->list = l;
        r = parse_entry(&e, c, texts->v[i]);
        for (size_t j = 0; r == 0 && j < i; j++)
            if (strcmp(l->up[j].name, l->up[i].name) == 0)
                r = err_set(err, -EINVAL,
                            "%s: the name %.100s is taken; give it another by name=", where,
                            l->up[i].name);
    }
    if (r < 0) {
        gw_upstreams_free(l);
        return r;
    }
    *ret = l;
    return 0;
}

int gw_upstreams_parse(const struct gw_config *c, struct gw_upstreams **ret, struct err *err)
{
    return parse_list(c, &c->upstreams, false, ret, err);
}

int gw_workers_parse(const struct gw_config *c, struct gw_upstreams **ret, struct err *err)
{
    return parse_list(c, &c->workers, true, ret, err);
}

static void wipe(char *secret)
{
    if (secret) explicit_bzero(secret, strlen(secret));
    mem_free(secret);
}

void gw_upstreams_free(struct gw_upstreams *l)
{
    if (!l) return;
    for (size_t i = 0; i < l->n; i++) {
        struct gw_upstream *u = &l->up[i];
        wipe(u->text);
        wipe(u->authorization);
        char *texts[] = {u->name,     u->address, u->host,      u->base,  u->ca_file, u->cert_file,
                         u->key_file, u->health,  u->separator, u->paths, u->exposed};
        for (size_t j = 0; j < sizeof texts / sizeof texts[0]; j++)
            mem_free(texts[j]);
        for (size_t j = 0; j < u->n_models; j++) {
            mem_free(u->model[j].pattern);
            mem_free(u->model[j].sent);
        }
        mem_free(u->model);
    }
    mem_free(l->up);
    mem_free(l);
}

const struct gw_model_rule *gw_upstream_rule(const struct gw_upstream *u, const char *model)
{
    for (size_t i = 0; i < u->n_models; i++) {
        const struct gw_model_rule *m = &u->model[i];
        if (m->sent ? strcmp(m->pattern, model) == 0 : fnmatch(m->pattern, model, 0) == 0) return m;
    }
    return NULL;
}

bool gw_upstream_opens(const struct gw_upstream *u, const char *path)
{
    for (const char *p = u->paths; p && *p; p += strspn(p, ",")) {
        size_t n = strcspn(p, ",");
        if (n == 1 && *p == '*') return true;
        if (strncmp(path, p, n) == 0 && (path[n] == '/' || !path[n])) return true;
        p += n;
    }
    return false;
}
