/* The worker's options: one table, read by base/opt. */
#include "worker/worker.h"

#include "base/log.h"
#include "base/opt.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const struct opt_def defs[] = {
    {"model", OPT_STR, NULL, 0, 0, NULL, "GGUF file or Hugging Face folder to serve."},
    {"listen", OPT_STR, "127.0.0.1:8012", 0, 0, NULL, "HOST:PORT or unix:/path to listen on."},
    {"ram", OPT_SIZE, "1GiB", 1 << 20, 1e15, NULL, "Hard budget of the KV records kept in RAM."},
    {"gpu", OPT_STR, NULL, 0, 0, NULL,
     "With --device cuda: memory of the GPU for running requests and for records together, a size "
     "or auto, most of what the weights leave. Default: --kv-pages if that is given, else auto."},
    {"gpu-reserve", OPT_SIZE, "0", 0, 0, NULL,
     "Of that, kept for records whatever running requests need."},
    {"nvme", OPT_STR, NULL, 0, 0, NULL,
     "PATH:SIZE of a file or device for records that RAM has no room for; hard budget."},
    {"redis", OPT_STR, NULL, 0, 0, NULL,
     "URL of a Redis shared by workers: redis://, rediss://, redis-cluster://, redis-sentinel://, "
     "unix://. Repeatable. Variable: KVBLEND_WORKER_REDIS_URLS, separated by spaces.",
     .repeatable = true},
    {"redis-urls", OPT_STR, NULL, 0, 0, NULL, NULL},
    {"advertise", OPT_STR, NULL, 0, 0, NULL,
     "http://HOST:PORT that gateways on other hosts reach this worker by: registers it."},
    {"registry", OPT_STR, NULL, 0, 0, NULL,
     "URL of the Redis to register in; default: --redis. Better given by the variable "
     "KVBLEND_WORKER_REGISTRY where it holds a password."},
    {"registry-group", OPT_STR, "default", 0, 0, NULL, "Gateways of the same group use it."},
    {"ram-policy", OPT_ENUM, "lru", 0, 0, "lru|arc", "Eviction from RAM."},
    {"nvme-policy", OPT_ENUM, "lru", 0, 0, "lru|arc", "Eviction from NVMe."},
    {"nvme-codec", OPT_ENUM, "none", 0, 0, "none|q8",
     "What sinks to NVMe: q8 = 8 bits, half of f16."},
    {"redis-codec", OPT_ENUM, "none", 0, 0, "none|q8",
     "The same of Redis; shared by workers that say the same."},
    {"side-share", OPT_DOUBLE, "0.05", 0.001, 0.5, NULL,
     "Share of --ram for K of one layer of records that have sunk to a slower tier."},
    {"quota", OPT_STR, NULL, 0, 0, NULL,
     "NS=ram:SIZE,nvme:SIZE: hard caps of a namespace's records. Repeatable.", .repeatable = true},
    {"ttl", OPT_DURATION, "0", 0, 0, NULL, "Life of a record; 0 = for ever."},
    {"ttl-ns", OPT_STR, NULL, 0, 0, NULL, "NS=DURATION: life of a namespace's records. Repeatable.",
     .repeatable = true},
    {"nvme-write-budget", OPT_SIZE, "0", 0, 0, NULL,
     "Bytes a day written to NVMe; 0 = the size of the drive."},
    {"tier-wait", OPT_DURATION, "0", 0, 60000, NULL,
     "Load from a slower tier even where computing is predicted to be faster, if it takes no "
     "longer "
     "than this."},
    {"secret", OPT_STR, NULL, 0, 0, NULL,
     "Text mixed into all keys of records: workers share records only when it agrees. Better given "
     "by the variable KVBLEND_WORKER_SECRET or --secret-file."},
    {"secret-file", OPT_STR, NULL, 0, 0, NULL, "File with that text."},
    {"access-log", OPT_STR, NULL, 0, 0, NULL,
     "File for one JSON line a request: which records it used, for kvblend-bench tiers hits."},
    {"kv-pages", OPT_SIZE, "0", 0, 0, NULL,
     "KV memory of running requests; 0 = eight full contexts, at most 2 GiB."},
    {"dtype", OPT_ENUM, "auto", 0, 0, "auto|f32|bf16",
     "Arithmetic; auto never goes below the file's own precision."},
    {"weights", OPT_ENUM, "auto", 0, 0, "auto|bf16|fp8|int8",
     "Weights of the layers; auto: as the arithmetic. fp8 and int8 halve their memory, on a GPU."},
    {"kv-dtype", OPT_ENUM, "auto", 0, 0, "auto|f32|f16|bf16|q8",
     "Stored KV; auto: f32 for F32 files, else f16; q8: 8 bits, half of f16."},
    {"threads", OPT_INT, "0", 0, 4096, NULL, "Compute threads; 0 = all cores."},
    {"device", OPT_STR, "cpu", 0, 0, NULL, "What computes: cpu, cuda, or cuda:N for GPU number N."},
    {"gemm", OPT_STR, "auto", 0, 0, NULL, "Force a GEMM candidate by name; auto measures."},
    {"ctx", OPT_INT, "0", 0, 1 << 24, NULL, "Context in tokens; 0 = the model's."},
    {"chat-template", OPT_STR, NULL, 0, 0, NULL, "Chat format by name instead of the file's."},
    {"served-model-name", OPT_STR, NULL, 0, 0, NULL,
     "Name in the API; several are split by commas; default: the file's name."},
    {"max-running", OPT_INT, "16", 1, 4096, NULL, "Choices decoded together."},
    {"max-queue", OPT_INT, "64", 1, 65536, NULL, "Requests waiting before 429."},
    {"order", OPT_ENUM, "sjf", 0, 0, "fifo|sjf|edf",
     "Who goes first of waiting requests: as they come, the shortest (one may be overtaken for "
     "three times as long as it will run), or the earliest deadline (kvblend.max_ttft_ms)."},
    {"api-key", OPT_STR, NULL, 0, 0, NULL,
     "Bearer key that clients must send. Better given by the variable KVBLEND_WORKER_API_KEY. "
     "Gateways send it by api_key= of their --worker, which also lets them read what is held "
     "here."},
    {"admin-tcp", OPT_BOOL, "false", 0, 0, NULL,
     "Serve /admin on TCP as on a unix socket; needs --api-key."},
    {"tls-cert", OPT_STR, NULL, 0, 0, NULL,
     "PEM file with the certificate chain: HTTPS instead of HTTP."},
    {"tls-key", OPT_STR, NULL, 0, 0, NULL,
     "PEM file with its private key; default: in --tls-cert."},
    {"profile", OPT_STR, NULL, 0, 0, NULL,
     "What kvblend-bench quality calibrate has written for the model; default: the one it left "
     "in the "
     "cache folder, else shares of the depth."},
    {"strategy", OPT_ENUM, NULL, 0, 0, "qs|query|side|hkvd|sink|reuse|prefix|full",
     "Strategy of mode auto and blend; default: the profile's."},
    {"ratio", OPT_DOUBLE, NULL, 0, 1, NULL,
     "Share of reused tokens to recompute; default: the profile's."},
    {"guard-sample", OPT_DOUBLE, "0.01", 0, 1, NULL,
     "Share of blended requests that the guard compares with a full prefill in idle time; 0: none, "
     "and no reaction."},
    {"guard-kl", OPT_DOUBLE, "0", 0, 100, NULL,
     "Mean KL(full || blend) in nats that the guard lets pass; 0: twice the profile's loss, as a "
     "share of what plain reuse loses on the same prompts."},
    {"controller", OPT_BOOL, "true", 0, 0, NULL,
     "For each request choose what is reused from where, strategy and ratio by predicted time; "
     "off: "
     "--strategy and --ratio for all."},
    {"quality-loss", OPT_DOUBLE, NULL, 0, 1, NULL,
     "What the controller may lose against an exact answer, as a share of what plain reuse loses; "
     "default: the profile's."},
    {"tier-price", OPT_STR, NULL, 0, 0, NULL,
     "TIER=PRICE,…: what a GB of a tier costs, in any unit: new records are written to the "
     "cheapest "
     "first whose load hides behind computing. Default: ram=3,nvme=0.1,redis=3."},
    {"decision-log", OPT_STR, NULL, 0, 0, NULL,
     "File for one JSON line a prompt: snapshot, choice and what came of it."},
    {"presets", OPT_STR, NULL, 0, 0, NULL, "Folder of segment presets; default: built in."},
    {"drain-timeout", OPT_DURATION, "120s", 0, 0, NULL, "How long SIGTERM waits for requests."},
    {"exit-on-stdin-eof", OPT_BOOL, "false", 0, 0, NULL,
     "End when the parent dies or closes standard input."},
    {"sandbox", OPT_BOOL, "false", 0, 0, NULL,
     "Once the model is loaded give up all system calls that serving does not need, starting "
     "programs first of all. Not with --device cuda."},
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
                          .kv_pages_bytes = opt_size(o, "kv-pages"),
                          .drain_timeout_ms = opt_duration_ms(o, "drain-timeout"),
                          .threads = (unsigned)opt_int(o, "threads"),
                          .ctx = (unsigned)opt_int(o, "ctx"),
                          .max_running = (unsigned)opt_int(o, "max-running"),
                          .max_queue = (unsigned)opt_int(o, "max-queue"),
                          .order = order_of(opt_str(o, "order")),
                          .ratio = opt_given(o, "ratio") ? opt_double(o, "ratio") : -1,
                          .guard_sample = opt_double(o, "guard-sample"),
                          .guard_kl = opt_double(o, "guard-kl"),
                          .strategy_given = *opt_str(o, "strategy") != 0,
                          .ratio_given = opt_given(o, "ratio"),
                          .controller = opt_bool(o, "controller"),
                          .quality_loss =
                              opt_given(o, "quality-loss") ? opt_double(o, "quality-loss") : -1,
                          .decision_log = or_null(opt_str(o, "decision-log")),
                          .exit_on_stdin_eof = opt_bool(o, "exit-on-stdin-eof"),
                          .sandbox = opt_bool(o, "sandbox"),
                          .store = o};
    r->arith = strcmp(dt, "f32") == 0    ? KN_ARITH_F32
               : strcmp(dt, "bf16") == 0 ? KN_ARITH_BF16
                                         : KN_ARITH_AUTO;
    r->weights = (enum kn_weights)kn_weights_parse(opt_str(o, "weights"), KN_WEIGHTS_AUTO);
    r->kv_dtype = kn_dtype_parse(kv, -1);
    if (log_parse_level(opt_str(o, "log-level"), &level)) log_set_level(level);
}

/* The gateway's own begin so, too, and are handed down. */
static void warn_of_variables(const struct opts *o)
{
    struct buf b = BUF_INIT;

    if (opts_unknown_env(o, "KVBLEND_WORKER", environ, &b) == 0 && buf_cstr(&b))
        for (char *p = b.data, *end; p && (end = strchr(p, '\n')); p = end + 1)
            if (strncmp(p, "KVBLEND_WORKER_BIN", 18) && strncmp(p, "KVBLEND_WORKER_COUNT", 20))
                log_event(LOG_WARN, "unknown_variable", "name=\"%.*s\"", (int)(end - p), p);
    buf_fini(&b);
}

int wk_opts_read(int argc, char **argv, struct wk_opts *ret, struct err *err)
{
    struct opts *o;
    int rc = opts_create(defs, &o);

    if (rc < 0) return err_set(err, rc, "out of memory");
    rc = opts_parse_argv(o, argc, argv, err);
    if (rc == 1) rc = print_help(o);
    if (rc == 0) rc = opts_parse_env(o, "KVBLEND_WORKER", err);
    if (rc == 0 && opt_bool(o, "version")) {
        (void)printf("kvblend-worker %s\n", KV_VERSION);
        rc = 1;
    }
    if (rc == 0 && opt_bool(o, "admin-tcp") && !*opt_str(o, "api-key"))
        rc = err_set(err, -EINVAL,
                     "--admin-tcp needs --api-key: whoever reaches it could else "
                     "do anything");
    if (rc == 0 && !*opt_str(o, "model"))
        rc = err_set(err, -EINVAL, "--model is missing: a GGUF file or a Hugging Face folder");
    if (rc == 0 && opt_bool(o, "sandbox") && strncmp(opt_str(o, "device"), "cuda", 4) == 0)
        rc = err_set(err, -EINVAL,
                     "--sandbox and --device cuda exclude each other: what the "
                     "driver calls is not known");
    if (rc != 0) {
        opts_destroy(o);
        return rc;
    }
    take_options(ret, o);
    warn_of_variables(o);
    rc = wk_tier_opts_take(&ret->tiers, o, err);
    if (rc >= 0) {
        rc = wk_registry_opts_take(ret, o, err);
        if (rc < 0) wk_tier_opts_fini(&ret->tiers);
    }
    if (rc < 0) opts_destroy(o);
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
