/* Options of the tiers whose values have an inner form: PATH:SIZE, NS=tier:SIZE, URLs, secrets. */
#include "worker/worker.h"

#include "base/redis/registry.h"
#include "base/assert.h"
#include "base/opt.h"
#include "tiers/nvme/nvme.h"

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

/* One number for pages and records, where the device has memory of its own. */
static int take_gpu(struct wk_tier_opts *t, const struct opts *o, struct err *err)
{
    const char *size = opt_str(o, "gpu");
    const bool pages = opt_size(o, "kv-pages") > 0;

    if (strcmp(opt_str(o, "device"), "cpu") == 0) {
        if (!*size && !t->gpu_reserve_bytes) return 0;
        return err_set(err, -EINVAL, "--gpu: needs --device cuda");
    }
    t->gpu_bytes = *size || !pages ? FUS_KV_AUTO : opt_size(o, "kv-pages");
    if (*size && pages)
        return err_set(err, -EINVAL, "--gpu and --kv-pages say the same: leave one out");
    if (!*size || strcmp(size, "auto") == 0) return 0;
    if (opt_parse_size(size, &t->gpu_bytes) < 0 || t->gpu_bytes == 0)
        return err_set(err, -EINVAL, "--gpu: expected a size such as 40GiB or auto, found \"%s\"",
                       size);
    return 0;
}

static int bad_quota(const char *text, struct err *err)
{
    return err_set(err, -EINVAL, "--quota: expected NS=ram:SIZE,nvme:SIZE, found \"%s\"", text);
}

/* One "tier:SIZE" of a quota. */
static int parse_share(const char *p, size_t n, struct wk_quota *q)
{
    char size[32];
    const char *colon = memchr(p, ':', n);
    size_t name = colon ? (size_t)(colon - p) : n;
    uint64_t *to = name == 3 && memcmp(p, "ram", 3) == 0    ? &q->ram_bytes
                   : name == 4 && memcmp(p, "nvme", 4) == 0 ? &q->nvme_bytes
                                                            : NULL;

    if (!colon || !to || n - name - 1 == 0 || n - name - 1 >= sizeof size) return -EINVAL;
    memcpy(size, colon + 1, n - name - 1);
    size[n - name - 1] = 0;
    return opt_parse_size(size, to) < 0 || *to == 0 ? -EINVAL : 0;
}

static int parse_quota(struct wk_tier_opts *t, const char *text, struct wk_quota *q,
                       struct err *err)
{
    const char *eq = strchr(text, '='), *p = eq ? eq + 1 : NULL;

    if (!eq || eq == text || !*p) return bad_quota(text, err);
    int rc = ns_of(&t->arena, text, (size_t)(eq - text), &q->ns);
    if (rc < 0) return rc == -ENOMEM ? rc : bad_quota(text, err);
    while (*p) {
        size_t n = strcspn(p, ",");
        if (parse_share(p, n, q) < 0) return bad_quota(text, err);
        p += n + (p[n] == ',');
    }
    if (q->nvme_bytes && !t->nvme_path)
        return err_set(err, -EINVAL, "--quota: \"%s\" limits nvme, but there is no --nvme", text);
    return 0;
}

static int parse_ttl(struct wk_tier_opts *t, const char *text, struct wk_ttl *ret, struct err *err)
{
    const char *eq = strchr(text, '=');

    int rc = eq && eq != text ? opt_parse_duration_ms(eq + 1, &ret->ms) : -EINVAL;
    if (rc >= 0) rc = ns_of(&t->arena, text, (size_t)(eq - text), &ret->ns);
    if (rc < 0 && rc != -ENOMEM)
        return err_set(err, -EINVAL,
                       "--ttl-ns: expected NS=DURATION such as acme=12h, found "
                       "\"%s\"",
                       text);
    return rc;
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

/* "ram=3,nvme=0.1": what a GB costs; what is not named keeps its default. */
static int take_prices(struct wk_tier_opts *t, const char *text, struct err *err)
{
    static const struct {
        const char *name;
        double price;
    } known[] = {{"ram", 3}, {"nvme", 0.1}, {"redis", 3}}; /* chosen: $ per GB, late 2025 */
    enum { N = sizeof known / sizeof *known };
    const char *p = text;

    static_assert(N <= sizeof t->price / sizeof *t->price, "a price each");
    for (size_t i = 0; i < N; i++)
        t->price[i] = known[i].price;
    while (*p) {
        size_t i = 0, n = strcspn(p, "=");
        char *end = NULL;
        while (i < N && (strlen(known[i].name) != n || strncmp(p, known[i].name, n) != 0))
            i++;
        double x = i < N && p[n] == '=' ? strtod(p + n + 1, &end) : -1;
        if (!end || end == p + n + 1 || !(x >= 0) || x > 1e12 || (*end && *end != ','))
            return err_set(err, -EINVAL,
                           "--tier-price: expected ram=PRICE,nvme=PRICE,redis=PRICE, found \"%s\"",
                           text);
        t->price[i] = x;
        p = end + (*end == ',');
    }
    return 0;
}

int wk_tier_opts_take(struct wk_tier_opts *t, const struct opts *o, struct err *err)
{
    size_t nq = opt_n(o, "quota"), nt = opt_n(o, "ttl-ns");
    int rc;

    *t = (struct wk_tier_opts){.ttl_ms = opt_duration_ms(o, "ttl"),
                               .wait_ms = opt_duration_ms(o, "tier-wait"),
                               .side_share = opt_double(o, "side-share"),
                               .nvme_q8 = strcmp(opt_str(o, "nvme-codec"), "q8") == 0,
                               .redis_q8 = strcmp(opt_str(o, "redis-codec"), "q8") == 0,
                               .nvme_write_bytes_per_day = opt_size(o, "nvme-write-budget"),
                               .gpu_reserve_bytes = opt_size(o, "gpu-reserve"),
                               .access_log =
                                   *opt_str(o, "access-log") ? opt_str(o, "access-log") : NULL};
    arena_init(&t->arena);
    (void)evict_policy_parse(opt_str(o, "ram-policy"), &t->ram_policy);
    (void)evict_policy_parse(opt_str(o, "nvme-policy"), &t->nvme_policy);
    t->quota = arena_alloc(&t->arena, (nq + 1) * sizeof *t->quota);
    t->ttl = arena_alloc(&t->arena, (nt + 1) * sizeof *t->ttl);
    rc = t->quota && t->ttl ? 0 : -ENOMEM;
    if (rc >= 0) rc = take_gpu(t, o, err);
    if (rc >= 0 && *opt_str(o, "nvme")) rc = parse_nvme(t, opt_str(o, "nvme"), err);
    if (rc >= 0 && t->nvme_write_bytes_per_day && !t->nvme_path)
        rc = err_set(err, -EINVAL, "--nvme-write-budget: there is no --nvme");
    if (rc >= 0 && t->nvme_q8 && !t->nvme_path)
        rc = err_set(err, -EINVAL, "--nvme-codec: there is no --nvme");
    if (rc >= 0) rc = take_prices(t, opt_str(o, "tier-price"), err);
    if (rc >= 0) rc = take_redis(t, o, err);
    if (rc >= 0 && t->redis_q8 && !t->redis)
        rc = err_set(err, -EINVAL, "--redis-codec: there is no --redis");
    for (; rc >= 0 && t->n_quota < nq; t->n_quota++)
        rc = parse_quota(t, opt_str_at(o, "quota", t->n_quota), &t->quota[t->n_quota], err);
    for (; rc >= 0 && t->n_ttl < nt; t->n_ttl++)
        rc = parse_ttl(t, opt_str_at(o, "ttl-ns", t->n_ttl), &t->ttl[t->n_ttl], err);
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
