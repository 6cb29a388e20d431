/* An entry is cut into words as a shell would (quotes, backslashes within them), the first is the
 * URL, the others are fields of one table. */
#include "gateway/fleet/upstream.h"

#include "base/buf.h"
#include "base/mem.h"
#include "gateway/process/config.h"
#include "gateway/process/entry.h"

#include <fnmatch.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_KEY_MAX = 4096, NAME_MAX_BYTES = 100, INFLIGHT_MAX = 1000000 };

struct entry { /* one being read */
    struct gw_upstream *up;
    const char *where; /* "upstreams, entry 2" */
    bool worker;
    struct err *err;
};

/* ---- text ---- */

static int set_text(struct gw_upstream *u, char **f, const char *text)
{
    *f = arena_strndup(&u->list->texts, text, strlen(text));
    return *f ? 0 : -ENOMEM;
}

static int next_word(const struct entry *e, const char **p, struct buf *word)
{
    int r = gw_entry_word(p, word);
    return r == -EINVAL ? err_set(e->err, r, "%s: a quote is not closed", e->where) : r;
}

/* ---- addresses and files ---- */

int gw_parse_address(const char *s, struct buf *out)
{
    if (strncmp(s, "http://", 7) == 0) s += 7;
    if (strncmp(s, "unix:", 5) == 0) return s[5] ? buf_adds(out, s) : -EINVAL;
    size_t len = strlen(s);
    while (len > 0 && s[len - 1] == '/')
        len--;
    const char *colon = memrchr(s, ':', len), *first = memchr(s, ':', len);
    if (!colon || strcspn(s, "/ @") < len) return -EINVAL;
    if (*s == '[' ? colon[-1] != ']' : colon != first) return -EINVAL; /* IPv6 without brackets */
    size_t digits = strspn(colon + 1, "0123456789");
    if (digits == 0 || colon + 1 + digits != s + len || strtoul(colon + 1, NULL, 10) > 65535)
        return -EINVAL;
    return buf_add(out, s, len);
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
    struct buf address = BUF_INIT, checked = BUF_INIT;
    const char *dflt = u->tls ? ":443" : ":80", *colon = memrchr(s, ':', len);
    if (colon && memchr(colon, ']', len - (size_t)(colon - s))) colon = NULL;
    size_t host_len = colon ? (size_t)(colon - s) : len;
    int r = host_len > 0 ? buf_addf(&address, "%.*s%s", (int)len, s, colon ? "" : dflt) : -EINVAL;
    if (r == 0) r = gw_parse_address(address.data, &checked);
    if (r == 0) r = set_text(u, &u->address, address.data);
    if (r == 0) r = set_text(u, &u->name, address.data);
    if (r == 0 && colon && strcmp(u->address + host_len, dflt) != 0) host_len = len;
    if (r == 0) u->host = arena_strndup(&u->list->texts, s, host_len);
    buf_fini(&address);
    buf_fini(&checked);
    return r == 0 && !u->host ? -ENOMEM : r;
}

static int set_url(struct entry *e, const char *s)
{
    struct gw_upstream *u = e->up;
    int r = 0;
    if (strncmp(s, "unix:/", 6) == 0) {
        r = set_text(u, &u->address, s);
        if (r == 0) r = set_text(u, &u->name, s);
        if (r == 0) r = set_text(u, &u->host, "localhost");
        return r < 0 ? r : set_text(u, &u->base, "/v1");
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
    if (!s[len]) return set_text(u, &u->base, "/v1");
    r = set_text(u, &u->base, s + len);
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

static int set_name(void *entry, struct arena *texts, const char *s)
{
    struct gw_upstream *u = entry;
    return name_is_plain(s) ? set_text(u, &u->name, s) : -EINVAL;
}

static int add_rule(struct gw_upstream *u, struct arena *texts, const char *s, size_t len)
{
    struct gw_model_rule *m = &u->model[u->n_models++];
    const char *eq = memchr(s, '=', len);
    size_t n = eq ? (size_t)(eq - s) : len;
    if (n == 0 || (eq && n + 1 == len)) return -EINVAL;
    m->pattern = arena_strndup(texts, s, n);
    if (eq) m->sent = arena_strndup(texts, eq + 1, len - n - 1);
    return m->pattern && (!eq || m->sent) ? 0 : -ENOMEM;
}

static int set_models(void *entry, struct arena *texts, const char *s)
{
    struct gw_upstream *u = entry;
    size_t n_max = u->n_models + 1;
    for (const char *p = s; (p = strchr(p, ',')); p++)
        n_max++;
    struct gw_model_rule *v = arena_alloc(texts, n_max * sizeof *v);
    if (!v) return -ENOMEM;
    if (u->n_models) memcpy(v, u->model, u->n_models * sizeof *v);
    u->model = v;
    int r = *s ? 0 : -EINVAL;
    while (r == 0 && *s) {
        size_t n = strcspn(s, ",");
        r = add_rule(u, texts, s, n);
        s += n + (s[n] == ',');
    }
    return r;
}

static int set_key(struct gw_upstream *u, struct arena *texts, const char *key)
{
    size_t n = 0;
    while ((unsigned char)key[n] > ' ' && (unsigned char)key[n] < 0x7f)
        n++;
    if (n == 0 || key[n]) return -EINVAL;
    u->authorization = arena_alloc(texts, n + sizeof "Bearer ");
    if (!u->authorization) return -ENOMEM;
    (void)snprintf(u->authorization, n + sizeof "Bearer ", "Bearer %s", key);
    return 0;
}

/* Flags can be seen by others: variables are looked up here, too. */
static int set_api_key(void *entry, struct arena *texts, const char *s)
{
    char name[256];
    const char *key = gw_entry_names_variable(s, name, sizeof name) ? getenv(name) : s;
    return key ? set_key(entry, texts, key) : -EINVAL;
}

static int note_exposed(struct gw_upstream *u, const char *path)
{
    return opt_file_exposed(path) ? set_text(u, &u->exposed, path) : 0;
}

static int set_key_file(void *entry, struct arena *texts, const char *path)
{
    char line[FILE_KEY_MAX];
    FILE *f = fopen(path, "re");
    if (!f) return -EINVAL;
    bool whole = fgets(line, sizeof line, f) && (strchr(line, '\n') || feof(f));
    int r = whole ? 0 : -EINVAL; /* half a key is none */
    (void)fclose(f);
    if (r == 0) {
        line[strcspn(line, "\r\n")] = '\0';
        r = set_key(entry, texts, line);
    }
    explicit_bzero(line, sizeof line);
    return r < 0 ? r : note_exposed(entry, path);
}

static int set_health(void *entry, struct arena *texts, const char *s)
{
    struct gw_upstream *u = entry;
    bool off = strcmp(s, "off") == 0;
    if (off) u->health = NULL;
    if (off) return 0;
    return s[0] == '/' && !s[strcspn(s, " \t\r\n")] ? set_text(u, &u->health, s) : -EINVAL;
}

/* Segments of plain characters, so that nothing in a request's path can be read in two ways. */
static int set_paths(void *entry, struct arena *texts, const char *s)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_/";
    struct gw_upstream *u = entry;
    for (const char *p = s;; p++) {
        size_t n = strcspn(p, ",");
        bool all = n == 1 && *p == '*';
        if (n == 0 || *p == '/' || p[n - 1] == '/' || (!all && strspn(p, plain) < n))
            return -EINVAL;
        p += n;
        if (!*p) return set_text(u, &u->paths, s);
    }
}

static int set_separator(void *entry, struct arena *texts, const char *s)
{
    struct gw_upstream *u = entry;
    struct buf b = BUF_INIT;
    int r = *s ? buf_add_json_str(&b, s, strlen(s)) : -EINVAL;
    if (r == 0) {
        b.data[b.len - 1] = '\0'; /* without its quotes */
        r = set_text(u, &u->separator, b.data + 1);
    }
    buf_fini(&b);
    return r;
}

#define AT(field) offsetof(struct gw_upstream, field)
static const struct gw_entry_field fields[] = {
    {.name = "name", .set = set_name},
    {.name = "models", .set = set_models},
    {.name = "paths", .set = set_paths},
    {.name = "health", .set = set_health},
    {.name = "lmcache_separator", .set = set_separator},
    {"weight", GW_ENTRY_DOUBLE, AT(weight), 0.001, 1000, NULL},
    {"priority", GW_ENTRY_UINT, AT(priority), 0, 1000, NULL},
    {"max_inflight", GW_ENTRY_UINT, AT(inflight_max), 0, INFLIGHT_MAX, NULL},
    {"max_connections", GW_ENTRY_UINT, AT(connections_max), 0, INFLIGHT_MAX, NULL},
    {"health_interval", GW_ENTRY_MS, AT(health_interval_ms), 10, 3600000, NULL},
    {"connect_timeout", GW_ENTRY_MS, AT(connect_timeout_ms), 1, 600000, NULL},
    {"first_byte_timeout", GW_ENTRY_MS, AT(first_byte_timeout_ms), 1, 86400000, NULL},
    {"idle_timeout", GW_ENTRY_MS, AT(idle_timeout_ms), 1, 86400000, NULL},
    {"total_timeout", GW_ENTRY_MS, AT(total_timeout_ms), 0, 604800000, NULL},
    {"lmcache", GW_ENTRY_BOOL, AT(lmcache), 0, 0, NULL},
    {"client_organization", GW_ENTRY_BOOL, AT(client_organization), 0, 0, NULL},
    /* How to get in is all that is to be said of a worker: it tells the rest itself. */
    {.name = "api_key", .set = set_api_key},
    {.name = "api_key_file", .set = set_key_file},
    {"ca_file", GW_ENTRY_TEXT, AT(ca_file), 0, 0, NULL},
    {"cert_file", GW_ENTRY_TEXT, AT(cert_file), 0, 0, NULL},
    {"key_file", GW_ENTRY_TEXT, AT(key_file), 0, 0, NULL},
    {"insecure", GW_ENTRY_BOOL, AT(insecure), 0, 0, NULL},
    {0}};
#undef AT
enum { N_FIELDS = sizeof fields / sizeof fields[0] - 1, OF_WORKERS = 6 };

/* ---- entries ---- */

static int set_defaults(struct gw_upstream *u, const struct gw_config *c)
{
    u->weight = 1;
    u->health_interval_ms = c->health_interval_ms;
    u->connect_timeout_ms = c->connect_timeout_ms;
    u->first_byte_timeout_ms = c->first_byte_timeout_ms;
    u->idle_timeout_ms = c->idle_timeout_ms;
    u->total_timeout_ms = c->total_timeout_ms;
    return set_separator(u, &u->list->texts,
                         " # # "); /* cited: LMCache's LMCACHE_BLEND_SPECIAL_STR */
}

static int default_health(struct gw_upstream *u)
{
    size_t cap = strlen(u->base) + sizeof "/models";
    u->health = arena_alloc(&u->list->texts, cap);
    if (!u->health) return -ENOMEM;
    (void)snprintf(u->health, cap, "%s/models", u->base);
    return 0;
}

static int set_word(struct entry *e, char *word)
{
    const struct gw_entry_field *table = e->worker ? fields + N_FIELDS - OF_WORKERS : fields;
    char *eq = strchr(word, '=');
    if (eq) *eq = '\0';
    int r = eq ? gw_entry_set(table, e->up, &e->up->list->texts, word, eq + 1) : -ENOENT;
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
    if (r == 0) r = set_url(e, url.data);
    if (r == 0 && *e->up->base && strcmp(e->up->base, "/v1") != 0)
        r = err_set(e->err, -EINVAL, "%s: a worker's URL has no path", e->where);
    buf_fini(&url);
    return r;
}

static int parse_entry(struct entry *e, const struct gw_config *c, const char *text)
{
    struct buf word = BUF_INIT;
    const char *p = text;
    int r = set_text(e->up, &e->up->text, text);
    if (r == 0) r = set_defaults(e->up, c);
    if (r == 0) r = next_word(e, &p, &word);
    if (r == 0) r = bad_url(e);
    if (r == 1) {
        const char *url = word.len > 0 ? word.data : "";
        if (strncmp(url, "url=", 4) == 0) url += 4;
        r = e->worker ? set_worker_url(e, url) : set_url(e, url);
        if (r == 0) r = default_health(e->up);
    }
    while (r == 0 && (r = next_word(e, &p, &word)) == 1)
        r = set_word(e, word.data);
    if (r == 0 && e->up->key_file) r = note_exposed(e->up, e->up->key_file);
    if (word.data) explicit_bzero(word.data, word.cap);
    buf_fini(&word);
    return r;
}

int gw_upstreams_parse(const struct gw_config *c, bool workers, struct gw_upstreams **ret,
                       struct err *err)
{
    const struct gw_strs *texts = workers ? &c->workers : &c->upstreams;
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

static void wipe(char *secret)
{
    if (secret) explicit_bzero(secret, strlen(secret));
}

void gw_upstreams_free(struct gw_upstreams *l)
{
    if (!l) return;
    for (size_t i = 0; i < l->n; i++) {
        wipe(l->up[i].text);
        wipe(l->up[i].authorization);
    }
    arena_fini(&l->texts);
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
