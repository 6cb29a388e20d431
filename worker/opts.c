/* The worker's options: opts_table.c and what is about this process. */
#include "worker/opts_table.h"
#include "worker/reuse/namespaces.h"
#include "worker/worker.h"

#include "base/log.h"
#include "base/redis/registry.h"
#include "base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct opt_def process_defs[] = {
    {"model", OPT_STR, NULL, 0, 0, NULL,
     "GGUF file or Hugging Face folder to serve, or a name on the hub, ORG/NAME[:FILE or QUANT]."},
    {"listen", OPT_STR, "127.0.0.1:8012", 0, 0, NULL, "HOST:PORT or unix:/path to listen on."},
    {"advertise", OPT_STR, NULL, 0, 0, NULL,
     "http://HOST:PORT that gateways on other hosts reach this worker by: registers it."},
    {"registry", OPT_STR, NULL, 0, 0, NULL,
     "URL of the Redis to register in, for the gateways of a group with ?group=NAME; default: "
     "--redis. Better given by the variable KVBLEND_WORKER_REGISTRY where it holds a password.",
     .props = OPT_SECRET},
    {"api-key", OPT_STR, NULL, 0, 0, NULL,
     "Bearer key that clients must send. Better given by the variable KVBLEND_WORKER_API_KEY. "
     "Gateways send it by api_key= of their --worker, which also lets them read what is held "
     "here.",
     .props = OPT_SECRET},
    {"admin-tcp", OPT_BOOL, "false", 0, 0, NULL,
     "Serve /admin on TCP as on a unix socket; needs --api-key."},
    {"tls-cert", OPT_STR, NULL, 0, 0, NULL,
     "PEM file with the certificate chain: HTTPS instead of HTTP."},
    {"tls-key", OPT_STR, NULL, 0, 0, NULL,
     "PEM file with its private key; default: in --tls-cert."},
    {"drain-timeout", OPT_DURATION, "120s", 0, 0, NULL, "How long SIGTERM waits for requests."},
    {"log-level", OPT_ENUM, "info", 0, 0, "error|warn|notice|info|debug", "Least level logged."},
    {"log-format", OPT_ENUM, "text", 0, 0, "text|json", "json: one object a line."},
    {"traces-endpoint", OPT_STR, NULL, 0, 0, "http(s)://HOST[:PORT][/PATH]",
     "Collector that takes traces by OTLP over HTTP; default: no traces.",
     .check = otlp_endpoint_ok},
    {"traces-headers", OPT_STR, NULL, 0, 0, "NAME=VALUE",
     "Header that it asks for. Better given by the variable KVBLEND_WORKER_TRACES_HEADERS.",
     .repeatable = true, .props = OPT_SECRET, .check = otlp_header_ok},
    {"traces-sample", OPT_DOUBLE, "1", 0, 1, NULL,
     "Share of the traces that begin here which are kept; of others whoever began them decides."},
    {"list-devices", OPT_BOOL, "false", 0, 0, NULL,
     "Print the GPUs of --device that can be opened, a line each, and end."},
    {"version", OPT_BOOL, "false", 0, 0, NULL, "Print the version and end."},
    {0}};

static int print_help(const struct opts *o)
{
    struct buf b = BUF_INIT;
    int rc =
        opts_help(o, "kvblend-worker",
                  "Serves one model over OpenAI's API, with KV of recurring chunks reused.", &b);

    if (rc >= 0) (void)fwrite(b.data, 1, b.len, stdout);
    buf_fini(&b);
    return rc < 0 ? rc : 1;
}

/* A kernel that this build has no code for on a GPU shows here, not with the first request. */
static int try_kernel(struct kn_dev *d)
{
    enum { SIDE = 64 };
    const struct rng_field values = {.seed = 1, .scale = 1};
    struct kn_mat *w = NULL;
    int rc = kn_mat_create(d, SIDE, SIDE, &w);

    if (rc == 0) rc = kn_mat_random(w, 0, SIDE, &values);
    if (rc == 0) rc = kn_mat_done(w);
    kn_mat_destroy(w);
    return rc;
}

/* "cuda:0 NVIDIA H200" … for a gateway, which links no kernels: of all GPUs, or of those named. Why
 * one that is wanted is not there stands on standard error; auto wants none. */
static int list_devices(const char *text)
{
    struct wk_devices asked;

    (void)wk_parse_devices(text, &asked);
    for (unsigned i = 0; i < (asked.n ? asked.n : WK_DEVICES_MAX); i++) {
        struct kn_dev *d = NULL;
        struct err e = {0};
        char name[64];
        const char *kind = asked.kind ? asked.kind : "cuda";
        if (asked.n)
            (void)snprintf(name, sizeof name, "%s:%.*s", kind, asked.name[i].len, asked.name[i].at);
        else
            (void)snprintf(name, sizeof name, "%s:%u", kind, i);
        int rc = kn_dev_create(&(struct kn_dev_opts){.device = name}, &d, &e);
        if (rc == 0 && (rc = try_kernel(d)) < 0)
            (void)err_set(&e, rc, "%s cannot run a kernel (%s)", name, err_name(rc));
        if (rc == 0)
            (void)printf("%s\n", kn_info(d)->device);
        else if (asked.n || (i == 0 && asked.kind))
            (void)fprintf(stderr, "kvblend-worker: %s\n", e.msg);
        kn_dev_destroy(d);
    }
    return 1;
}

static const char *or_null(const char *s)
{
    return s && *s ? s : NULL;
}

static enum pol_order order_of(const char *name)
{
    enum pol_order o = POL_ORDER_FIFO;

    (void)pol_order_parse(name, &o); /* the option's own list of values */
    return o;
}

static void take_options(struct wk_opts *r, struct opts *o)
{
    const char *dt = opt_str(o, "dtype"), *kv = opt_str(o, "kv-dtype");
    enum log_level level;

    *r = (struct wk_opts){.model = or_null(opt_str(o, "model")),
                          .listen = opt_str(o, "listen"),
                          .device = or_null(opt_str(o, "device")),
                          .gemm = or_null(getenv("KVBLEND_GEMM")),
                          .chat_template = or_null(opt_str(o, "chat-template")),
                          .rerank_order = opt_str(o, "rerank-order"),
                          .rerank_template = or_null(opt_str(o, "rerank-template")),
                          .rerank_answers = opt_str(o, "rerank-answers"),
                          .served_name = or_null(opt_str(o, "served-model-name")),
                          .api_key = or_null(opt_str(o, "api-key")),
                          .admin_tcp = opt_bool(o, "admin-tcp"),
                          .tls = {or_null(opt_str(o, "tls-cert")), or_null(opt_str(o, "tls-key"))},
                          .presets = or_null(opt_str(o, "presets")),
                          .profile = or_null(opt_str(o, "profile")),
                          .ram_bytes = opt_size(o, "ram"),
                          .drain_timeout_ms = opt_duration_ms(o, "drain-timeout"),
                          .threads = (unsigned)opt_int(o, "threads"),
                          .ctx = (unsigned)opt_int(o, "ctx"),
                          .engine = {.max_running = (unsigned)opt_int(o, "max-running"),
                                     .max_queue = (unsigned)opt_int(o, "max-queue"),
                                     .draft_rows = (unsigned)opt_int(o, "draft-rows")},
                          .order = order_of(opt_str(o, "order")),
                          .ratio = opt_given(o, "ratio") ? opt_double(o, "ratio") : -1,
                          .ratio_given = opt_given(o, "ratio"),
                          .sandbox = opt_bool(o, "sandbox"),
                          .store = o};
    r->traces = (struct otlp_opts){.endpoint = or_null(opt_str(o, "traces-endpoint")),
                                   .service = "kvblend-worker",
                                   .sample = opt_double(o, "traces-sample")};
    r->traces.header = opt_list(o, "traces-headers", &r->traces.n_headers);
    r->arith = strcmp(dt, "f32") == 0                               ? KN_ARITH_F32
               : strcmp(dt, "auto") == 0 || strcmp(dt, "file") == 0 ? KN_ARITH_AUTO
                                                                    : KN_ARITH_BF16;
    r->embed = (enum enc_pool)enc_pool_parse(opt_str(o, "embed"), ENC_POOL_AUTO);
    r->weights = (enum kn_weights)kn_weights_parse(dt, KN_WEIGHTS_AUTO);
    r->kv_q8 = strcmp(opt_str(o, "kv-pages-dtype"), "q8") == 0;
    r->kv_dtype = kn_dtype_parse(kv, -1);
    bool always = false;
    (void)wk_parse_strategy(opt_str(o, "strategy"), &always, &r->strategy);
    r->strategy_given = r->strategy != POL_AUTO;
    r->controller = !always;
    (void)wk_parse_guard(opt_str(o, "guard"), &r->guard_sample, &r->guard_kl);
    if (log_parse_level(opt_str(o, "log-level"), &level)) log_set_level(level);
    log_set_json(strcmp(opt_str(o, "log-format"), "json") == 0);
}

/* ---- texts with an inner form, which the table has checked ---- */

static int take_redis(struct arena *a, const struct opts *o, const char *name,
                      struct redis_url **ret, struct err *err)
{
    size_t n;
    char **url = opt_list(o, name, &n);
    struct redis_url *parsed = n ? arena_alloc(a, sizeof *parsed) : NULL;
    struct err e = {0};

    if (!parsed) return n ? -ENOMEM : 0;
    int rc = redis_url_parse((const char *const *)url, n, parsed, &e);
    if (rc < 0) return err_set(err, rc, "--%s: %s", name, e.msg);
    *ret = parsed;
    return 0;
}

static int take_registry(struct wk_opts *w, const struct opts *o, struct err *err)
{
    const char *advertise = opt_str(o, "advertise");

    if (!*advertise && opt_source(o, "registry") == OPT_FLAG)
        return err_set(err, -EINVAL, "--registry: there is no --advertise");
    if (!*advertise) return 0;
    char *address = arena_alloc(&w->arena, REGISTRY_ADDRESS_BYTES);
    if (!address) return -ENOMEM;
    if (registry_address(advertise, address) < 0)
        return err_set(err, -EINVAL,
                       "--advertise: expected http://HOST:PORT that others can reach, found \"%s\"",
                       advertise);
    w->advertise = address;
    int rc = take_redis(&w->arena, o, "registry", &w->registry, err);
    if (rc == 0 && !w->registry && !w->tiers.redis)
        rc = err_set(err, -EINVAL, "--advertise: needs --registry or --redis to register in");
    return rc;
}

static int take_kv_pages(struct wk_opts *w, const struct opts *o, struct err *err)
{
    uint64_t bytes = 0;

    (void)wk_parse_kv_pages(opt_str(o, "kv-pages"), &bytes, &w->tiers.gpu_reserve_bytes);
    if (w->tiers.gpu_reserve_bytes && strchr(opt_str(o, "device"), '+'))
        return err_set(err, -EINVAL, "--kv-pages: several GPUs as one keep no records, no reserve");
    if (strcmp(opt_str(o, "device"), "cpu") != 0)
        w->tiers.gpu_bytes = bytes ? bytes : FUS_KV_AUTO;
    else if (w->tiers.gpu_reserve_bytes)
        return err_set(err, -EINVAL, "--kv-pages: a reserve needs --device cuda");
    else
        w->kv_pages_bytes = bytes;
    return 0;
}

static int take_nvme(struct wk_opts *w, const char *text)
{
    struct wk_tier_opts *t = &w->tiers;
    struct wk_nvme nvme;

    if (wk_parse_nvme(text, &nvme) < 0) return 0; /* not given */
    t->nvme_bytes = nvme.bytes;
    t->nvme_write_bytes_per_day = nvme.write_bytes_per_day;
    t->nvme_path = arena_strndup(&w->arena, text, nvme.path_len);
    return t->nvme_path ? 0 : -ENOMEM;
}

static int take_limits(struct wk_opts *w, const char *text, struct err *err)
{
    struct wk_tier_opts *t = &w->tiers;
    struct wk_limits l;
    char ns[WK_NS_BYTES];

    (void)wk_parse_limits(text, &l);
    if (l.ns_len == 0) {
        if (l.has_ttl) t->ttl_ms = l.ttl_ms;
        t->contexts_off = t->contexts_off || l.contexts_off;
        return 0;
    }
    char *given = arena_strndup(&w->arena, text, l.ns_len);
    if (!given) return -ENOMEM;
    if (wk_ns_parse(given, ns, sizeof ns) < 0)
        return err_set(err, -ERANGE, "--namespace: \"%.60s…\" is too long", given);
    if (l.nvme_bytes && !t->nvme_path)
        return err_set(err, -EINVAL, "--namespace: \"%s\" limits nvme, but there is no --nvme",
                       text);
    l.ns = arena_strndup(&w->arena, ns, strlen(ns));
    t->limits[t->n_limits++] = l;
    return l.ns ? 0 : -ENOMEM;
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

/* A small model computes faster than any tier answers: tests make records worth waiting for. */
static int take_tier_wait(struct wk_tier_opts *t, struct err *err)
{
    const char *wait = or_null(getenv("KVBLEND_TIER_WAIT"));

    if (wait && opt_parse_duration_ms(wait, &t->wait_ms) < 0)
        return err_set(err, -EINVAL, "KVBLEND_TIER_WAIT: expected a duration, found \"%s\"", wait);
    return 0;
}

static int take_tiers(struct wk_opts *w, const struct opts *o, struct err *err)
{
    struct wk_tier_opts *t = &w->tiers;
    const char *secret = opt_str(o, "secret");
    size_t n;
    char **limits = opt_list(o, "namespace", &n);

    t->show_text = opt_list(o, "show-text", &t->n_show_text);
    t->access_log = or_null(opt_str(o, "access-log"));
    (void)evict_policy_parse(opt_str(o, "policy"), &t->policy);
    t->has_secret = *secret;
    if (*secret) {
        tier_secret(secret, t->secret);
        tier_secret_auth(secret, t->auth_key);
    }
    t->limits = arena_alloc(&w->arena, (n + 1) * sizeof *t->limits);
    int rc = t->limits ? take_kv_pages(w, o, err) : -ENOMEM;
    if (rc >= 0) rc = take_nvme(w, opt_str(o, "nvme"));
    if (rc >= 0) rc = take_redis(&w->arena, o, "redis", &t->redis, err);
    if (rc >= 0) rc = take_codec(t, o, err);
    if (rc >= 0) rc = take_tier_wait(t, err);
    for (size_t i = 0; rc >= 0 && i < n; i++)
        rc = take_limits(w, limits[i], err);
    return rc;
}

/* ---- all of them ---- */

static void fini_forms(struct wk_opts *o)
{
    redis_url_fini(o->registry);
    redis_url_fini(o->tiers.redis);
    arena_fini(&o->arena);
}

/* What a single value cannot show. */
static int check_together(const struct opts *o, struct err *err)
{
    struct wk_devices devices;

    (void)wk_parse_devices(opt_str(o, "device"), &devices);
    if (devices.several)
        return err_set(
            err, -EINVAL,
            "--device: a worker computes on one device; auto and several are a gateway's");
    if (opt_bool(o, "admin-tcp") && !*opt_str(o, "api-key"))
        return err_set(err, -EINVAL,
                       "--admin-tcp needs --api-key: whoever reaches it could else do anything");
    if (!*opt_str(o, "model"))
        return err_set(
            err, -EINVAL,
            "--model is missing: a GGUF file, a Hugging Face folder or a name on the hub");
    if (opt_bool(o, "sandbox") && strncmp(opt_str(o, "device"), "cuda", 4) == 0)
        return err_set(err, -EINVAL,
                       "--sandbox and --device cuda exclude each other: what the driver calls is "
                       "not known");
    return 0;
}

static int take_all(struct wk_opts *ret, struct opts *o, struct err *err)
{
    int rc = check_together(o, err);

    if (rc < 0) return rc;
    take_options(ret, o);
    arena_init(&ret->arena);
    rc = take_tiers(ret, o, err);
    if (rc >= 0) rc = take_registry(ret, o, err);
    if (rc == -ENOMEM) (void)err_set(err, rc, "out of memory");
    if (rc < 0) fini_forms(ret);
    return rc;
}

static void warn_of_lines(const char *event, const char *lines)
{
    for (const char *p = lines, *end; p && (end = strchr(p, '\n')); p = end + 1)
        log_event(LOG_WARN, event, "name=\"%.*s\"", (int)(end - p), p);
}

static void warn(struct opts *o, const struct opt_args *from)
{
    struct buf b = BUF_INIT;

    opts_unknown_env(o, from, &b);
    warn_of_lines("unknown_variable", buf_cstr(&b));
    warn_of_lines("exposed_secret", opts_exposed(o));
    buf_fini(&b);
}

int wk_opts_read(int argc, char **argv, struct wk_opts *ret, struct err *err)
{
    const struct opt_args from = {argc, argv, environ, "KVBLEND_WORKER"};
    struct buf problems = BUF_INIT;
    struct opts *o = NULL;
    int rc = opts_create(process_defs, &o);

    if (rc >= 0) rc = opts_add_section(o, NULL, wk_opts_table);
    if (rc >= 0) rc = opts_read(o, &from, &problems);
    if (rc == -EINVAL)
        (void)err_set(err, rc, "%.*s", (int)problems.len - 1, problems.data);
    else if (rc < 0)
        (void)err_set(err, rc, "out of memory");
    buf_fini(&problems);
    if (rc == 1) rc = print_help(o);
    if (rc == 0 && opt_bool(o, "version")) {
        (void)printf("kvblend-worker %s\n", KV_VERSION);
        rc = 1;
    }
    if (rc == 0 && opt_bool(o, "list-devices")) rc = list_devices(opt_str(o, "device"));
    if (rc == 0) rc = take_all(ret, o, err);
    if (rc == 0)
        warn(o, &from);
    else
        opts_destroy(o);
    return rc;
}

void wk_opts_fini(struct wk_opts *o)
{
    fini_forms(o);
    opts_destroy(o->store);
    o->store = NULL;
}
