/* One table drives every source of configuration, so that a key cannot exist in one and be missing
 * in another. Rejected: libcyaml for the file, because its schema would be a second table and its
 * messages do not name the key's line together with what was expected; libyaml's events do. */
#include "gateway/process/config.h"

#include "base/buf.h"
#include "base/mem.h"
#include "base/opt.h"
#include "base/opt_removed.h"
#include "base/redis/registry.h"
#include "gateway/fleet/address.h"
#include "gateway/fleet/upstream.h"
#include "gateway/front/cors.h"
#include "gateway/front/listen.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const struct gw_conf_key gw_conf_keys[] = {
#define X(kind, field, yaml, flag, def, min, max, props, choices, help)                            \
    {kind, offsetof(struct gw_config, field), yaml, flag, def, min, max, props, choices, help},
    GW_CONF_TABLE(X)
#undef X
};
const size_t gw_conf_n_keys = sizeof gw_conf_keys / sizeof gw_conf_keys[0];

static void *field_of(struct gw_config *c, const struct gw_conf_key *k)
{
    return (char *)c + k->offset;
}

static const void *cfield_of(const struct gw_config *c, const struct gw_conf_key *k)
{
    return (const char *)c + k->offset;
}

static bool in_choices(const char *choices, const char *s)
{
    size_t len = strlen(s);
    for (const char *p = choices; p;) {
        const char *bar = strchr(p, '|');
        size_t n = bar ? (size_t)(bar - p) : strlen(p);
        if (n == len && strncmp(p, s, n) == 0) return true;
        p = bar ? bar + 1 : NULL;
    }
    return false;
}

/* ---- problems ---- */

void gw_conf_problem(struct gw_conf_build *b, const struct gw_conf_source *src, const char *fmt,
                     ...)
{
    b->n_problems++;
    if (!b->problems) return;
    if (src && src->line)
        (void)buf_addf(b->problems, "%s:%u: ", src->name, src->line);
    else if (src)
        (void)buf_addf(b->problems, "%s: ", src->name);
    va_list ap;
    va_start(ap, fmt);
    (void)buf_vaddf(b->problems, fmt, ap);
    va_end(ap);
    (void)buf_addc(b->problems, '\n');
}

static const char *key_name(const struct gw_conf_key *k, const struct gw_conf_source *src)
{
    static _Thread_local char name[80];
    if (src && src->rank == 1)
        (void)snprintf(name, sizeof name, "%s", k->yaml);
    else
        (void)snprintf(name, sizeof name, "--%s", k->flag);
    return name;
}

static int bad_value(struct gw_conf_build *b, const struct gw_conf_key *k,
                     const struct gw_conf_source *src, const char *text, const char *expected)
{
    gw_conf_problem(b, src, "%s: expected %s, found \"%.60s\"", key_name(k, src), expected, text);
    return -EINVAL;
}

static int out_of_range(struct gw_conf_build *b, const struct gw_conf_key *k,
                        const struct gw_conf_source *src, const char *text)
{
    const char *unit = k->kind == GW_MS ? " ms" : k->kind == GW_SIZE ? " bytes" : "";
    gw_conf_problem(b, src, "%s: expected a value from %.10g to %.10g%s, found \"%.60s\"",
                    key_name(k, src), k->min, k->max, unit, text);
    return -EINVAL;
}

/* ---- setting one key ---- */

static void strs_clear(struct gw_strs *l)
{
    for (size_t i = 0; i < l->n; i++)
        mem_free(l->v[i]);
    mem_free(l->v);
    *l = (struct gw_strs){NULL, 0};
}

static int strs_add(struct gw_strs *l, const char *s, size_t len)
{
    char **v = mem_realloc(l->v, (l->n + 1) * sizeof *v);
    if (!v) return -ENOMEM;
    l->v = v;
    v[l->n] = mem_strndup(s, len);
    if (!v[l->n]) return -ENOMEM;
    l->n++;
    return 0;
}

/* Bytes up to the separator; a ';' within quotes is none. */
static size_t item_len(const char *text, const char *separator)
{
    if (!strchr(separator, ';')) return strcspn(text, separator);
    bool quoted = false;
    size_t n = 0;
    for (; text[n] && (quoted || !strchr(separator, text[n])); n++) {
        if (text[n] == '"') quoted = !quoted;
        if (text[n] == '\\' && text[n + 1]) n++;
    }
    return n;
}

/* Variables hold lists; a flag or a YAML item is one entry (no separator). */
static int set_list(struct gw_strs *l, const char *text, const char *separator)
{
    if (!separator) return strs_add(l, text, strlen(text));
    while (*text) {
        size_t n = item_len(text, separator);
        if (n > 0) {
            int r = strs_add(l, text, n);
            if (r < 0) return r;
        }
        text += n + (text[n] != '\0');
    }
    return 0;
}

static int set_number(struct gw_conf_build *b, const struct gw_conf_key *k, const char *text,
                      const struct gw_conf_source *src)
{
    uint64_t v = 0;
    void *f = field_of(b->c, k);
    if (k->kind == GW_SIZE) {
        if (opt_parse_size(text, &v) < 0) return bad_value(b, k, src, text, "a size such as 32MiB");
    } else if (k->kind == GW_MS) {
        if (opt_parse_duration_ms(text, &v) < 0)
            return bad_value(b, k, src, text, "a duration such as 30s, 500ms or 2m");
    } else {
        char *end;
        errno = 0;
        if (!isdigit((unsigned char)*text)) return bad_value(b, k, src, text, "a whole number");
        v = strtoull(text, &end, 10);
        if (errno || *end) return bad_value(b, k, src, text, "a whole number");
    }
    if ((double)v < k->min || (double)v > k->max) return out_of_range(b, k, src, text);
    if (k->kind == GW_SIZE)
        *(uint64_t *)f = v;
    else
        *(uint32_t *)f = (uint32_t)v;
    return 0;
}

static int set_text(struct gw_conf_build *b, const struct gw_conf_key *k, const char *text,
                    const struct gw_conf_source *src)
{
    uint64_t bytes;
    if (k->kind == GW_NUMBER) {
        char *end;
        errno = 0;
        double v = strtod(text, &end);
        if (errno || end == text || *end || !isfinite(v))
            return bad_value(b, k, src, text, "a number");
        if (v < k->min || v > k->max) return out_of_range(b, k, src, text);
    } else if (k->choices && strcmp(k->choices, "SIZE") == 0) {
        if (opt_parse_size(text, &bytes) < 0)
            return bad_value(b, k, src, text, "a size such as 512MiB or 4GiB");
    } else if (k->choices && strcmp(k->choices, "DURATION") == 0) {
        if (opt_parse_duration_ms(text, &bytes) < 0)
            return bad_value(b, k, src, text, "a duration such as 30s, 12h or 7d");
    } else if (k->choices && !in_choices(k->choices, text)) {
        const char *instead = opt_removed(k->flag, text);
        if (!instead) return bad_value(b, k, src, text, k->choices);
        gw_conf_problem(b, src, "%s: %s was removed; %s", key_name(k, src), text, instead);
        return -EINVAL;
    }
    char *copy = mem_strdup(text);
    if (!copy) return -ENOMEM;
    char **f = field_of(b->c, k);
    mem_free(*f);
    *f = copy;
    return 0;
}

int gw_conf_set(struct gw_conf_build *b, const struct gw_conf_key *k, const char *text,
                const struct gw_conf_source *src)
{
    size_t i = (size_t)(k - gw_conf_keys);
    void *f = field_of(b->c, k);
    int rank = src ? src->rank : 0;
    const char *separator = k->props & GW_SPACES   ? " "
                            : k->props & GW_COMMAS ? ",;"
                            : k->props & GW_QUOTED ? ";"
                                                   : ",";
    switch (k->kind) {
    case GW_LIST:
        if (b->rank[i] != rank) strs_clear(f);
        b->rank[i] = rank;
        return set_list(f, text, rank == 2 ? separator : NULL);
    case GW_BOOL:
        if (opt_parse_bool(text, f) < 0) return bad_value(b, k, src, text, "true or false");
        return 0;
    case GW_STR:
    case GW_NUMBER:
        return set_text(b, k, text, src);
    case GW_U32:
    case GW_SIZE:
    case GW_MS:
        return set_number(b, k, text, src);
    }
    return -EINVAL;
}

const struct gw_conf_key *gw_conf_find_yaml(const char *path)
{
    for (size_t i = 0; i < gw_conf_n_keys; i++)
        if (!(gw_conf_keys[i].props & GW_NOFILE) && strcmp(gw_conf_keys[i].yaml, path) == 0)
            return &gw_conf_keys[i];
    return NULL;
}

static const struct gw_conf_key *find_flag(const char *name, size_t len)
{
    for (size_t i = 0; i < gw_conf_n_keys; i++)
        if (strlen(gw_conf_keys[i].flag) == len && strncmp(gw_conf_keys[i].flag, name, len) == 0)
            return &gw_conf_keys[i];
    return NULL;
}

/* ---- sources ---- */

enum { VARIABLE_BYTES = 80 };

/* "KVBLEND_RAM_POLICY"; "" for flags that no variable stands for. */
static void variable_of(const struct gw_conf_key *k, char ret[VARIABLE_BYTES])
{
    ret[0] = '\0';
    if (k->kind == GW_BOOL && (k->props & GW_NOFILE)) return;
    (void)snprintf(ret, VARIABLE_BYTES, "KVBLEND_%s", k->flag);
    for (char *p = ret; *p; p++)
        *p = (char)(*p == '-' ? '_' : toupper((unsigned char)*p));
}

/* only: as for read_flags(). */
static int read_env(struct gw_conf_build *b, char *const *envp, const char *only)
{
    for (size_t i = 0; i < gw_conf_n_keys; i++) {
        const struct gw_conf_key *k = &gw_conf_keys[i];
        if (only && strcmp(only, k->flag) != 0) continue;
        char name[VARIABLE_BYTES], where[VARIABLE_BYTES + 32];
        variable_of(k, name);
        size_t n = strlen(name);
        for (char *const *e = envp; n > 0 && e && *e; e++) {
            if (strncmp(*e, name, n) != 0 || (*e)[n] != '=' || (*e)[n + 1] == '\0') continue;
            (void)snprintf(where, sizeof where, "environment variable %s", name);
            struct gw_conf_source src = {where, 0, 2};
            int r = gw_conf_set(b, k, *e + n + 1, &src);
            if (r == -ENOMEM) return r;
        }
    }
    return 0;
}

/* What others of our programs read; the worker's own variables begin with KVBLEND_WORKER_. */
static const char *const other_variables[] = {"KVBLEND_ADMIN", "KVBLEND_INJECT", "KVBLEND_ISA",
                                              "KVBLEND_KERNELS_DIR", "KVBLEND_MODELS"};

/* The known name that is nearest; *ret_distance 0: it is that one. */
static void nearest_variable(const char *name, char ret[VARIABLE_BYTES], size_t *ret_distance)
{
    enum { N_OTHERS = sizeof other_variables / sizeof other_variables[0] };
    char known[VARIABLE_BYTES];
    for (size_t i = 0; i < gw_conf_n_keys + N_OTHERS; i++) {
        if (i < gw_conf_n_keys)
            variable_of(&gw_conf_keys[i], known);
        else
            (void)snprintf(known, sizeof known, "%s", other_variables[i - gw_conf_n_keys]);
        size_t d = *known ? opt_distance(name, known) : SIZE_MAX;
        if (d >= *ret_distance) continue;
        *ret_distance = d;
        memcpy(ret, known, sizeof known);
    }
}

/* A typing error in a variable's name would else pass in silence. What the file or a flag refers
 * to by ${NAME} is the operator's own. */
static void warn_of_variables(struct gw_conf_build *b, int argc, char *const *argv,
                              char *const *envp)
{
    for (char *const *e = envp; b->problems && e && *e; e++) {
        char name[VARIABLE_BYTES], near[VARIABLE_BYTES] = "", spaced[VARIABLE_BYTES + 2];
        size_t n = strcspn(*e, "="), best = n / 3; /* chosen: of PORT two are too many */
        if (strncmp(*e, "KVBLEND_", 8) != 0 || strncmp(*e, "KVBLEND_WORKER_", 15) == 0) continue;
        if (n >= sizeof name) continue;
        (void)snprintf(name, sizeof name, "%.*s", (int)n, *e);
        (void)snprintf(spaced, sizeof spaced, " %s ", name);
        bool used = b->named.len > 0 && memmem(b->named.data, b->named.len, spaced, n + 2);
        for (int i = 1; i < argc && !used; i++)
            used = strstr(argv[i], name) != NULL;
        nearest_variable(name, near, &best);
        if (used || (*near && strcmp(near, name) == 0)) continue;
        const char *instead = opt_removed(name + strlen("KVBLEND_"), NULL);
        if (instead)
            (void)buf_addf(b->problems, "warning: environment variable %s was removed; %s\n", name,
                           instead);
        else
            (void)buf_addf(b->problems, "warning: environment variable %s is unknown%s%s\n", name,
                           *near ? "; expected one like " : "", near);
    }
}

static void unknown_flag(struct gw_conf_build *b, const struct gw_conf_source *src, const char *arg,
                         size_t len)
{
    char name[VARIABLE_BYTES];
    (void)snprintf(name, sizeof name, "%.*s", (int)len, arg + 2);
    const char *instead = opt_removed(name, NULL);
    if (instead)
        gw_conf_problem(b, src, "--%s was removed; %s", name, instead);
    else
        gw_conf_problem(b, src, "unknown flag \"%.60s\"; see --help", arg);
}

/* only: NULL = all flags; else just that key (the file's name must be known before it is read). */
static int read_flags(struct gw_conf_build *b, int argc, char *const *argv, const char *only)
{
    struct gw_conf_source src = {"command line", 0, 3};
    for (int i = 1; i < argc; i++) {
        const char *a = argv[i];
        if (strcmp(a, "-h") == 0) a = "--help";
        if (strncmp(a, "--", 2) != 0 || !a[2]) {
            if (!only) gw_conf_problem(b, &src, "unexpected argument \"%.60s\"; see --help", a);
            continue;
        }
        const char *eq = strchr(a, '=');
        size_t len = eq ? (size_t)(eq - a - 2) : strlen(a + 2);
        const struct gw_conf_key *k = find_flag(a + 2, len);
        if (!k) {
            if (!only) unknown_flag(b, &src, a, len);
            continue;
        }
        const char *value = eq ? eq + 1 : NULL;
        if (!value && k->kind == GW_BOOL) value = "true";
        if (!value && i + 1 < argc) value = argv[++i];
        if (!value) {
            if (!only) gw_conf_problem(b, &src, "--%s needs a value", k->flag);
            continue;
        }
        if (only && strcmp(only, k->flag) != 0) continue;
        int r = gw_conf_set(b, k, value, &src);
        if (r == -ENOMEM) return r;
    }
    return 0;
}

static int set_defaults(struct gw_conf_build *b)
{
    for (size_t i = 0; i < gw_conf_n_keys; i++) {
        if (!gw_conf_keys[i].def) continue;
        int r = gw_conf_set(b, &gw_conf_keys[i], gw_conf_keys[i].def, NULL);
        if (r < 0) return r;
    }
    return 0;
}

static void check_listen(struct gw_conf_build *b)
{
    const struct gw_config *c = b->c;
    for (size_t i = 0; i < c->listen.n; i++) {
        if (!gw_listen_valid(c->listen.v[i], true))
            gw_conf_problem(b, NULL,
                            "listen: expected HOST:PORT, https://HOST:PORT, unix:/path or systemd, "
                            "found \"%.60s\"",
                            c->listen.v[i]);
        if (strncmp(c->listen.v[i], "https://", 8) == 0 && !c->tls_cert)
            gw_conf_problem(b, NULL, "listen: \"%.60s\" needs tls.cert", c->listen.v[i]);
    }
    for (size_t i = 0; i < c->admin.n; i++)
        if (!gw_listen_valid(c->admin.v[i], false))
            gw_conf_problem(b, NULL,
                            "admin.listen: expected HOST:PORT, unix:/path or systemd, found "
                            "\"%.60s\"",
                            c->admin.v[i]);
    bool tcp = false; /* systemd may pass what it likes: without a key nobody is let in there */
    for (size_t i = 0; i < c->admin.n; i++)
        tcp |= strncmp(c->admin.v[i], "unix:", 5) != 0 && strcmp(c->admin.v[i], "systemd") != 0;
    if (c->admin_keys.n == 0 && (tcp || c->admin_public))
        gw_conf_problem(b, NULL, "%s needs admin.keys: whoever reaches it could else do anything",
                        tcp ? "admin.listen: HOST:PORT" : "admin.public");
    const char *const files[] = {c->tls_cert, c->tls_key, c->tls_client_ca};
    static const char *const names[] = {"tls.cert", "tls.key", "tls.client_ca"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        if (files[i] && access(files[i], R_OK) != 0)
            gw_conf_problem(b, NULL, "%s: expected a readable file, found \"%s\": %s", names[i],
                            files[i], strerror(errno));
}

/* A device has a size of its own; the worker alone could say that a file has none. */
static void check_nvme(struct gw_conf_build *b)
{
    const char *text = b->c->nvme, *colon = text ? strrchr(text, ':') : NULL;
    uint64_t bytes = 0;
    struct stat st;
    if (!text || (!colon && stat(text, &st) == 0 && S_ISBLK(st.st_mode))) return;
    if (!colon || colon == text || opt_parse_size(colon + 1, &bytes) < 0 || bytes == 0)
        gw_conf_problem(b, NULL,
                        "worker.nvme: expected PATH:SIZE such as /var/cache/kvblend/tier:100GiB, "
                        "found \"%.200s\"",
                        text);
}

static void check_registry(struct gw_conf_build *b)
{
    const char *url = b->c->registry;
    struct redis_url u;
    struct err e = {0};
    if (!registry_group_ok(b->c->registry_group))
        gw_conf_problem(b, NULL,
                        "registry.group: expected letters, digits, '_', '-' or '.', found "
                        "\"%.60s\"",
                        b->c->registry_group);
    const char *key = b->c->registry_api_key;
    if (key && (!*key || key[strcspn(key, " \t\r\n")]))
        gw_conf_problem(b, NULL, "registry.api_key: expected a key without spaces");
    if (!url) return;
    if (redis_url_parse(&url, 1, &u, &e) == 0)
        redis_url_fini(&u);
    else
        gw_conf_problem(b, NULL, "registry.url: %s", e.msg);
}

/* ---- files with secrets ---- */

static void warn_exposed(struct gw_conf_build *b, const char *where, const char *path)
{
    if (b->problems && path && gw_secret_is_exposed(path))
        (void)buf_addf(b->problems,
                       "warning: %s: others than its owner may read or write %s; chmod 600 it\n",
                       where, path);
}

static void warn_of_files(struct gw_conf_build *b, const char *list, const struct gw_upstreams *l)
{
    char where[40];
    for (size_t i = 0; l && i < l->n; i++) {
        (void)snprintf(where, sizeof where, "%s, entry %zu", list, i + 1);
        warn_exposed(b, where, l->up[i].exposed);
    }
}

/* What a single value cannot show. */
static void check_whole(struct gw_conf_build *b)
{
    const struct gw_config *c = b->c;
    check_listen(b);
    check_registry(b);
    check_nvme(b);
    if (c->model && access(c->model, R_OK) != 0)
        gw_conf_problem(b, NULL, "model: expected a readable GGUF file or folder, found \"%s\": %s",
                        c->model, strerror(errno));
    if (c->worker_bin && access(c->worker_bin, X_OK) != 0)
        gw_conf_problem(b, NULL, "worker.bin: expected a program, found \"%s\": %s", c->worker_bin,
                        strerror(errno));
    if (c->api_key_file && access(c->api_key_file, R_OK) != 0)
        gw_conf_problem(b, NULL, "keys.file: expected a readable file, found \"%s\": %s",
                        c->api_key_file, strerror(errno));
    struct stat st;
    if (c->presets && (stat(c->presets, &st) != 0 || !S_ISDIR(st.st_mode)))
        gw_conf_problem(b, NULL, "worker.presets: expected a folder, found \"%s\"", c->presets);
    for (size_t i = 0; i < c->cors_origins.n; i++)
        if (!gw_cors_pattern_ok(c->cors_origins.v[i]))
            gw_conf_problem(b, NULL,
                            "cors.origins: expected https://HOST, https://*.DOMAIN or *, found "
                            "\"%.60s\"",
                            c->cors_origins.v[i]);
    for (size_t i = 0; i < c->api_keys.n; i++)
        if (c->api_keys.v[i][0] == '\0')
            gw_conf_problem(b, NULL, "keys.list: expected a key, found an empty text");
    struct gw_upstreams *ups = NULL, *workers = NULL;
    struct err err = {0};
    int r = gw_upstreams_parse(c, &ups, &err);
    if (r == 0) r = gw_workers_parse(c, &workers, &err);
    if (r < 0) gw_conf_problem(b, NULL, "%s", err.msg[0] ? err.msg : "upstreams: out of memory");
    warn_exposed(b, "keys.file", c->api_key_file);
    warn_exposed(b, "worker.secret_file", c->secret_file);
    warn_exposed(b, c->tls_key ? "tls.key" : "tls.cert", c->tls_key ? c->tls_key : c->tls_cert);
    warn_of_files(b, "upstreams", ups);
    warn_of_files(b, "workers", workers);
    gw_upstreams_free(ups);
    gw_upstreams_free(workers);
}

int gw_config_load(int argc, char *const *argv, char *const *envp, struct gw_config **ret,
                   struct buf *problems)
{
    struct gw_conf_build b = {.problems = problems};
    int r = -ENOMEM;
    b.c = mem_zalloc(sizeof *b.c);
    b.rank = mem_zalloc(gw_conf_n_keys * sizeof *b.rank);
    if (!b.c || !b.rank) goto out;
    r = set_defaults(&b);
    if (r == 0) r = read_env(&b, envp, "config");
    if (r == 0) r = read_flags(&b, argc, argv, "config");
    if (r < 0) goto out;
    b.n_problems = 0;
    if (problems) buf_clear(problems);
    if (b.c->config) {
        r = gw_conf_read_yaml(&b, b.c->config);
        if (r == -ENOMEM) goto out;
    }
    r = read_env(&b, envp, NULL);
    if (r == 0) r = read_flags(&b, argc, argv, NULL);
    if (r < 0) goto out;
    if (!b.c->help && !b.c->version && !b.c->hash_key) {
        check_whole(&b);
        warn_of_variables(&b, argc, argv, envp);
    }
    if (b.n_problems > 0) r = -EINVAL;
out:
    mem_free(b.rank);
    buf_fini(&b.named);
    if (r < 0) {
        gw_config_free(b.c);
        return r;
    }
    *ret = b.c;
    return 0;
}

void gw_config_free(struct gw_config *c)
{
    if (!c) return;
    for (size_t i = 0; i < gw_conf_n_keys; i++) {
        const struct gw_conf_key *k = &gw_conf_keys[i];
        if (k->kind == GW_LIST) strs_clear(field_of(c, k));
        if (k->kind == GW_STR || k->kind == GW_NUMBER) mem_free(*(char **)field_of(c, k));
    }
    mem_free(c);
}

/* ---- uses ---- */

/* "--worker-x" here is "--x" there, where the gateway has an "--x" of its own. */
static const char *worker_flag(const struct gw_conf_key *k)
{
    return strncmp(k->flag, "worker-", 7) == 0 ? k->flag + 7 : k->flag;
}

/* The worker takes such a value only behind a "=". */
static bool is_switch(const struct gw_conf_key *k)
{
    return k->choices && strcmp(k->choices, "on|off") == 0;
}

int gw_config_worker_args(const struct gw_config *c, const char **out, size_t cap, size_t *ret_n)
{
    static _Thread_local char flags[sizeof gw_conf_keys / sizeof gw_conf_keys[0]][40];
    size_t n = 0;
    for (size_t i = 0; i < gw_conf_n_keys; i++) {
        const struct gw_conf_key *k = &gw_conf_keys[i];
        if (!(k->props & GW_PASS)) continue;
        const struct gw_strs *list = cfield_of(c, k);
        char *const *v = k->kind == GW_LIST ? list->v : cfield_of(c, k);
        size_t n_values = k->kind == GW_LIST ? list->n : *v != NULL;
        (void)snprintf(flags[i], sizeof flags[i], "--%s", worker_flag(k));
        for (size_t m = 0; m < n_values; m++) {
            if (n + 2 > cap) return -ERANGE;
            if (is_switch(k)) {
                (void)snprintf(flags[i], sizeof flags[i], "--%s=%s", worker_flag(k), v[m]);
                out[n++] = flags[i];
                continue;
            }
            out[n++] = flags[i];
            out[n++] = v[m];
        }
    }
    *ret_n = n;
    return 0;
}

int gw_config_worker_env(const struct gw_config *c)
{
    struct buf urls = BUF_INIT;
    int r = 0;
    if (c->secret && setenv("KVBLEND_WORKER_SECRET", c->secret, 1) < 0) return -ENOMEM;
    for (size_t i = 0; r == 0 && i < c->redis.n; i++)
        r = buf_addf(&urls, "%s%s", i ? " " : "", c->redis.v[i]);
    if (r == 0 && c->redis.n > 0 && setenv("KVBLEND_WORKER_REDIS_URLS", buf_cstr(&urls), 1) < 0)
        r = -ENOMEM;
    if (r == 0 && c->redis.n > 0) (void)unsetenv("KVBLEND_WORKER_REDIS");
    buf_fini(&urls);
    return r;
}

static bool strs_equal(const struct gw_strs *a, const struct gw_strs *b)
{
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++)
        if (strcmp(a->v[i], b->v[i]) != 0) return false;
    return true;
}

static bool key_equal(const struct gw_config *a, const struct gw_config *b,
                      const struct gw_conf_key *k)
{
    const void *x = cfield_of(a, k), *y = cfield_of(b, k);
    switch (k->kind) {
    case GW_LIST:
        return strs_equal(x, y);
    case GW_BOOL:
        return *(const bool *)x == *(const bool *)y;
    case GW_SIZE:
        return *(const uint64_t *)x == *(const uint64_t *)y;
    case GW_U32:
    case GW_MS:
        return *(const uint32_t *)x == *(const uint32_t *)y;
    case GW_STR:
    case GW_NUMBER: {
        const char *s = *(char *const *)x, *t = *(char *const *)y;
        return (!s && !t) || (s && t && strcmp(s, t) == 0);
    }
    }
    return false;
}

int gw_config_restart_keys(const struct gw_config *a, const struct gw_config *b, struct buf *out)
{
    int n = 0;
    for (size_t i = 0; i < gw_conf_n_keys; i++) {
        const struct gw_conf_key *k = &gw_conf_keys[i];
        if ((k->props & (GW_LIVE | GW_NOFILE)) || key_equal(a, b, k)) continue;
        int r = buf_addf(out, "%s%s", n++ ? "," : "", k->yaml);
        if (r < 0) return r;
    }
    return n;
}

int gw_config_help(struct buf *out)
{
    int r =
        buf_adds(out, "usage: kvblend [--model PATH] [--listen HOST:PORT] [--config FILE] …\n\n"
                      "OpenAI-compatible gateway that reuses the KV cache of retrieved chunks.\n"
                      "Every flag but the last four has a variable, KVBLEND_NAME with _ for -; its "
                      "key in the YAML file stands in\nparentheses, its default in brackets. "
                      "kvblend-worker --help has the worker's own defaults.\n\n");
    for (size_t i = 0; r == 0 && i < gw_conf_n_keys; i++) {
        const struct gw_conf_key *k = &gw_conf_keys[i];
        r = buf_addf(out, "  --%-20s %s", k->flag, k->help);
        if (r == 0 && k->def && k->kind != GW_BOOL) r = buf_addf(out, " [%s]", k->def);
        if (r == 0 && k->yaml[0]) r = buf_addf(out, " (%s)", k->yaml);
        if (r == 0) r = buf_addc(out, '\n');
    }
    return r;
}
