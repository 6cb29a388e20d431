/* The worker's options: opts_table.c and what is about this process. */
#include "worker/worker.h"

#include "base/log.h"
#include "base/opt.h"
#include "worker/opts_table.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const struct opt_def process_defs[] = {
    {"model", OPT_STR, NULL, 0, 0, NULL, "GGUF file or Hugging Face folder to serve."},
    {"listen", OPT_STR, "127.0.0.1:8012", 0, 0, NULL, "HOST:PORT or unix:/path to listen on."},
    {"advertise", OPT_STR, NULL, 0, 0, NULL,
     "http://HOST:PORT that gateways on other hosts reach this worker by: registers it."},
    {"registry", OPT_STR, NULL, 0, 0, NULL,
     "URL of the Redis to register in; default: --redis. Better given by the variable "
     "KVBLEND_WORKER_REGISTRY where it holds a password.",
     .props = OPT_SECRET},
    {"registry-group", OPT_STR, "default", 0, 0, NULL, "Gateways of the same group use it."},
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
    {"exit-on-stdin-eof", OPT_BOOL, "false", 0, 0, NULL,
     "End when the parent dies or closes standard input."},
    {"log-level", OPT_ENUM, "info", 0, 0, "error|warn|notice|info|debug", "Least level logged."},
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

static const char *or_null(const char *s)
{
    return *s ? s : NULL;
}

static enum pol_order order_of(const char *name)
{
    enum pol_order o = POL_ORDER_FIFO;

    (void)pol_order_parse(name, &o); /* the option's own list of values */
    return o;
}

static enum pol_strategy strategy_of(const char *name)
{
    enum pol_strategy s = POL_AUTO;

    (void)pol_strategy_parse(name, &s); /* as above; "" when it was not given */
    return s;
}

static void take_options(struct wk_opts *r, struct opts *o)
{
    const char *dt = opt_str(o, "dtype"), *kv = opt_str(o, "kv-dtype");
    enum log_level level;

    *r = (struct wk_opts){.model = or_null(opt_str(o, "model")),
                          .listen = opt_str(o, "listen"),
                          .device = or_null(opt_str(o, "device")),
                          .gemm = or_null(opt_str(o, "gemm")),
                          .chat_template = or_null(opt_str(o, "chat-template")),
                          .served_name = or_null(opt_str(o, "served-model-name")),
                          .api_key = or_null(opt_str(o, "api-key")),
                          .admin_tcp = opt_bool(o, "admin-tcp"),
                          .tls_cert = or_null(opt_str(o, "tls-cert")),
                          .tls_key = or_null(opt_str(o, "tls-key")),
                          .presets = or_null(opt_str(o, "presets")),
                          .strategy = strategy_of(opt_str(o, "strategy")),
                          .profile = or_null(opt_str(o, "profile")),
                          .ram_bytes = opt_size(o, "ram"),
                          .drain_timeout_ms = opt_duration_ms(o, "drain-timeout"),
                          .threads = (unsigned)opt_int(o, "threads"),
                          .ctx = (unsigned)opt_int(o, "ctx"),
                          .max_running = (unsigned)opt_int(o, "max-running"),
                          .max_queue = (unsigned)opt_int(o, "max-queue"),
                          .order = order_of(opt_str(o, "order")),
                          .ratio = opt_given(o, "ratio") ? opt_double(o, "ratio") : -1,
                          .strategy_given = *opt_str(o, "strategy") != 0,
                          .ratio_given = opt_given(o, "ratio"),
                          .controller = opt_bool(o, "controller"),
                          .decision_log = or_null(opt_str(o, "decision-log")),
                          .exit_on_stdin_eof = opt_bool(o, "exit-on-stdin-eof"),
                          .sandbox = opt_bool(o, "sandbox"),
                          .store = o};
    r->arith = strcmp(dt, "f32") == 0    ? KN_ARITH_F32
               : strcmp(dt, "bf16") == 0 ? KN_ARITH_BF16
                                         : KN_ARITH_AUTO;
    r->weights = (enum kn_weights)kn_weights_parse(opt_str(o, "weights"), KN_WEIGHTS_AUTO);
    r->kv_dtype = kn_dtype_parse(kv, -1);
    (void)wk_parse_guard(opt_str(o, "guard"), &r->guard_sample, &r->guard_kl);
    if (log_parse_level(opt_str(o, "log-level"), &level)) log_set_level(level);
}

static void warn_of_variables(const struct opts *o, const struct opt_args *from)
{
    struct buf b = BUF_INIT;

    opts_unknown_env(o, from, &b);
    for (char *p = b.data, *end; p && (end = memchr(p, '\n', b.len - (size_t)(p - b.data)));
         p = end + 1)
        log_event(LOG_WARN, "unknown_variable", "name=\"%.*s\"", (int)(end - p), p);
    buf_fini(&b);
}

/* What a single value cannot show. */
static int check_together(const struct opts *o, struct err *err)
{
    if (opt_bool(o, "admin-tcp") && !*opt_str(o, "api-key"))
        return err_set(err, -EINVAL,
                       "--admin-tcp needs --api-key: whoever reaches it could else do anything");
    if (!*opt_str(o, "model"))
        return err_set(err, -EINVAL, "--model is missing: a GGUF file or a Hugging Face folder");
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
    rc = wk_tier_opts_take(ret, o, err);
    if (rc < 0) return rc;
    rc = wk_registry_opts_take(ret, o, err);
    if (rc < 0) wk_tier_opts_fini(&ret->tiers);
    return rc;
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
    if (rc == 0) rc = take_all(ret, o, err);
    if (rc == 0)
        warn_of_variables(o, &from);
    else
        opts_destroy(o);
    return rc;
}

void wk_opts_fini(struct wk_opts *o)
{
    if (o->registry) redis_url_fini(o->registry);
    mem_free(o->registry);
    o->registry = NULL;
    wk_tier_opts_fini(&o->tiers);
    opts_destroy(o->store);
    o->store = NULL;
}
