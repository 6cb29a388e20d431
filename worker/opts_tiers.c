/* Options of the tiers whose values have an inner form: PATH:SIZE, NS=tier:SIZE, URLs, secrets. */
#include "worker/worker.h"
#include "worker/reuse/namespaces.h"

#include "base/redis/registry.h"
#include "base/assert.h"
#include "base/opt.h"
#include "tiers/nvme/nvme.h"
#include "worker/opts_table.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SECRET_BYTES_MAX = 4096 };

static int ns_of(struct arena *a, const char *text, size_t len, const char **ret)
{
    char *given = arena_strndup(a, text, len), ns[512];

    if (!given) return -ENOMEM;
    if (wk_ns_parse(given, ns, sizeof ns) < 0) return -ERANGE;
    *ret = arena_strndup(a, ns, strlen(ns));
    return *ret ? 0 : -ENOMEM;
}

static int parse_nvme(struct wk_tier_opts *t, const char *text, struct err *err)
{
    struct err e = {0};
    char path[4096];
    int rc = tier_nvme_parse(text, path, sizeof path, &t->nvme_bytes, &e);

    if (rc < 0)
        return err_set(err, rc, "--nvme: %s", strncmp(e.msg, "nvme: ", 6) ? e.msg : e.msg + 6);
    t->nvme_path = arena_strndup(&t->arena, path, strlen(path));
    return t->nvme_path ? 0 : -ENOMEM;
}

static int take_kv_pages(struct wk_opts *w, const struct opts *o, struct err *err)
{
    uint64_t bytes = 0, reserve = 0;

    (void)wk_parse_kv_pages(opt_str(o, "kv-pages"), &bytes, &reserve); /* its form was checked */
    w->tiers.gpu_reserve_bytes = reserve;
    if (strcmp(opt_str(o, "device"), "cpu") != 0)
        w->tiers.gpu_bytes = bytes ? bytes : FUS_KV_AUTO;
    else if (reserve)
        return err_set(err, -EINVAL, "--kv-pages: a reserve needs --device cuda");
    else
        w->kv_pages_bytes = bytes;
    return 0;
}

static int take_quota(struct wk_tier_opts *t, const char *text, struct err *err)
{
    struct wk_quota *q = &t->quota[t->n_quota++];
    size_t n = 0;

    (void)wk_parse_quota(text, &n, &q->ram_bytes, &q->nvme_bytes);
    int rc = ns_of(&t->arena, text, n, &q->ns);
    if (rc < 0)
        return err_set(err, rc, "--quota: expected a namespace before the =, found \"%s\"", text);
    if (q->nvme_bytes && !t->nvme_path)
        return err_set(err, -EINVAL, "--quota: \"%s\" limits nvme, but there is no --nvme", text);
    return 0;
}

static int take_ttl(struct wk_tier_opts *t, const char *text, struct err *err)
{
    size_t n = 0;
    uint64_t ms = 0;

    (void)wk_parse_ttl(text, &n, &ms);
    if (n == 0) {
        t->ttl_ms = ms;
        return 0;
    }
    struct wk_ttl *ttl = &t->ttl[t->n_ttl++];
    ttl->ms = ms;
    int rc = ns_of(&t->arena, text, n, &ttl->ns);
    return rc < 0 ? err_set(err, rc, "--ttl: expected a namespace before the =, found \"%s\"", text)
                  : 0;
}

static int take_redis(struct wk_tier_opts *t, const struct opts *o, struct err *err)
{
    size_t n;
    char **url = opt_list(o, "redis", &n);
    struct err e = {0};

    if (n == 0) return 0;
    t->redis = mem_zalloc(sizeof *t->redis);
    if (!t->redis) return -ENOMEM;
    int rc = redis_url_parse((const char *const *)url, n, t->redis, &e);
    if (rc >= 0) return 0;
    mem_free(t->redis);
    t->redis = NULL;
    return err_set(err, rc, "--redis: %s", e.msg);
}

int wk_registry_opts_take(struct wk_opts *w, const struct opts *o, struct err *err)
{
    const char *url = opt_str(o, "registry"), *advertise = opt_str(o, "advertise");
    struct err e = {0};
    char *address;

    w->registry_group = opt_str(o, "registry-group");
    if (!*advertise && opt_source(o, "registry") == OPT_FLAG)
        return err_set(err, -EINVAL, "--registry: there is no --advertise");
    if (!*advertise) return 0;
    if (!*url && !w->tiers.redis)
        return err_set(err, -EINVAL, "--advertise: needs --registry or --redis to register in");
    if (!registry_group_ok(w->registry_group))
        return err_set(err, -EINVAL, "--registry-group: expected letters, digits, '_', '-' or '.'");
    address = arena_alloc(&w->tiers.arena, REGISTRY_ADDRESS_BYTES);
    if (!address) return err_set(err, -ENOMEM, "out of memory");
    if (registry_address(advertise, address) < 0)
        return err_set(err, -EINVAL,
                       "--advertise: expected http://HOST:PORT that others can reach, found \"%s\"",
                       advertise);
    w->advertise = address;
    if (!*url) return 0;
    w->registry = mem_zalloc(sizeof *w->registry);
    if (!w->registry) return err_set(err, -ENOMEM, "out of memory");
    int rc = redis_url_parse(&url, 1, w->registry, &e);
    if (rc >= 0) return 0;
    mem_free(w->registry);
    w->registry = NULL;
    return err_set(err, rc, "--registry: %s", e.msg);
}

static void derive_secret(struct wk_tier_opts *t, const char *text)
{
    tier_secret(text, t->secret);
    tier_secret_auth(text, t->auth_key);
    t->has_secret = true;
}

static int take_secret(struct wk_tier_opts *t, const struct opts *o, struct err *err)
{
    const char *text = opt_str(o, "secret"), *path = opt_str(o, "secret-file");
    char buf[SECRET_BYTES_MAX];
    ssize_t n;
    int fd;

    if (*text) derive_secret(t, text);
    if (!*path) return 0;
    if (*text) return err_set(err, -EINVAL, "--secret and --secret-file exclude each other");
    fd = open(path, O_RDONLY | O_CLOEXEC);
    n = fd >= 0 ? read(fd, buf, sizeof buf) : -1;
    if (n < 0) {
        int e = errno;
        if (fd >= 0) (void)close(fd);
        return err_set(err, -e, "--secret-file: \"%s\" cannot be read: %s", path, strerror(e));
    }
    (void)close(fd);
    while (n > 0 && (buf[n - 1] == '\n' || buf[n - 1] == '\r'))
        n--;
    if (n == 0 || n == (ssize_t)sizeof buf || memchr(buf, 0, (size_t)n))
        return err_set(err, -EINVAL, "--secret-file: \"%s\" should hold one line of text", path);
    buf[n] = 0;
    derive_secret(t, buf);
    explicit_bzero(buf, sizeof buf);
    return 0;
}

static int take_codec(struct wk_tier_opts *t, const struct opts *o, struct err *err)
{
    const bool q8 = strcmp(opt_str(o, "codec"), "q8") == 0;

    if (q8 && !t->nvme_path && !t->redis)
        return err_set(err, -EINVAL, "--codec: there is no --nvme and no --redis");
    t->nvme_q8 = q8 && t->nvme_path;
    t->redis_q8 = q8 && t->redis;
    return 0;
}

int wk_tier_opts_take(struct wk_opts *w, const struct opts *o, struct err *err)
{
    struct wk_tier_opts *t = &w->tiers;
    size_t n_quota, n_ttl;
    char **quota = opt_list(o, "quota", &n_quota), **ttl = opt_list(o, "ttl", &n_ttl);

    *t = (struct wk_tier_opts){.wait_ms = opt_duration_ms(o, "tier-wait"),
                               .nvme_write_bytes_per_day = opt_size(o, "nvme-write-budget"),
                               .access_log =
                                   *opt_str(o, "access-log") ? opt_str(o, "access-log") : NULL};
    arena_init(&t->arena);
    (void)evict_policy_parse(opt_str(o, "policy"), &t->policy);
    t->quota = arena_alloc(&t->arena, (n_quota + 1) * sizeof *t->quota);
    t->ttl = arena_alloc(&t->arena, (n_ttl + 1) * sizeof *t->ttl);
    int rc = t->quota && t->ttl ? 0 : -ENOMEM;
    if (rc >= 0) rc = take_kv_pages(w, o, err);
    if (rc >= 0 && *opt_str(o, "nvme")) rc = parse_nvme(t, opt_str(o, "nvme"), err);
    if (rc >= 0 && t->nvme_write_bytes_per_day && !t->nvme_path)
        rc = err_set(err, -EINVAL, "--nvme-write-budget: there is no --nvme");
    if (rc >= 0) rc = take_redis(t, o, err);
    if (rc >= 0) rc = take_codec(t, o, err);
    for (size_t i = 0; rc >= 0 && i < n_quota; i++)
        rc = take_quota(t, quota[i], err);
    for (size_t i = 0; rc >= 0 && i < n_ttl; i++)
        rc = take_ttl(t, ttl[i], err);
    if (rc >= 0) rc = take_secret(t, o, err);
    if (rc == -ENOMEM) (void)err_set(err, rc, "out of memory");
    if (rc < 0) wk_tier_opts_fini(t);
    return rc < 0 ? rc : 0;
}

void wk_tier_opts_fini(struct wk_tier_opts *t)
{
    if (t->redis) redis_url_fini(t->redis);
    mem_free(t->redis);
    arena_fini(&t->arena);
}
