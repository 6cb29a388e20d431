/* config: everything the gateway can be told, from one table.
 *
 * One table (GW_CONF_TABLE) gives the struct, the flags, the environment names, the YAML keys, the
 * defaults, the checks and --help. Precedence: flag > environment > file > default; a list given by
 * a stronger source replaces the weaker one's. A struct gw_config is immutable once loaded; a
 * reload makes a new one from the same arguments and the changed file. Problems are collected, not
 * only the first one reported: each names its place ("file:line", flag or variable), the key, what
 * was expected and what was found. Life cycle: gw_config_load() → reads → gw_config_free(). Thread:
 * any; values are never changed. */
#ifndef GATEWAY_PROCESS_CONFIG_H
#define GATEWAY_PROCESS_CONFIG_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gw_strs {
    char **v;
    size_t n;
};

enum gw_conf_kind {
    GW_STR,    /* text, checked against `choices` where these are given */
    GW_LIST,   /* several texts: the flag repeated, commas in a variable, a YAML sequence */
    GW_BOOL,   /* true/false, yes/no, on/off, 1/0; a flag without a value means true */
    GW_U32,    /* whole number within min…max */
    GW_SIZE,   /* bytes with K/M/G and KiB/MiB/GiB suffixes */
    GW_MS,     /* duration; bare numbers are seconds; kept in milliseconds */
    GW_NUMBER, /* text that must be a number within min…max, passed on as written */
};
typedef char *gw_t_GW_STR;
typedef struct gw_strs gw_t_GW_LIST;
typedef bool gw_t_GW_BOOL;
typedef uint32_t gw_t_GW_U32;
typedef uint64_t gw_t_GW_SIZE;
typedef uint32_t gw_t_GW_MS;
typedef char *gw_t_GW_NUMBER;

/* Properties of a key. */
enum {
    GW_LIVE = 1,     /* a reload applies it; others need a restart */
    GW_PASS = 2,     /* handed to the own worker under the same flag */
    GW_NOFILE = 4,   /* flag and variable only */
    GW_PASS_ENV = 8, /* handed to the own worker in its environment: may hold a password */
    GW_ENTRIES = 32, /* a list whose items may be mappings: "VALUE name=value …" in one text */
    GW_QUOTED = 64,  /* a list of entries with values in quotes; ';' separates them in a variable */
    GW_COMMAS = 128, /* ... or ',', since no value of an entry has one */
    GW_SPACES = 16,  /* a list whose values hold commas: spaces separate them in a variable */
};

/* kind, field, YAML key, flag, default (NULL = unset), min, max, properties, choices, help */
#define GW_CONF_TABLE(X)                                                                           \
    X(GW_LIST, listen, "listen", "listen", "127.0.0.1:8010", 0, 0, 0, NULL,                        \
      "HOST:PORT, https://HOST:PORT, unix:/path or systemd to serve on (repeatable)")              \
    X(GW_STR, tls_cert, "tls.cert", "tls-cert", NULL, 0, 0, 0, NULL,                               \
      "PEM file with the certificate chain of https listeners; read again on SIGHUP")              \
    X(GW_STR, tls_key, "tls.key", "tls-key", NULL, 0, 0, 0, NULL,                                  \
      "PEM file with its private key (default: in the same file)")                                 \
    X(GW_STR, tls_client_ca, "tls.client_ca", "tls-client-ca", NULL, 0, 0, 0, NULL,                \
      "PEM file: only clients with a certificate of these authorities are served")                 \
    X(GW_U32, loops, "loops", "loops", "1", 1, 64, 0, NULL,                                        \
      "event loops, one thread each, that share the addresses")                                    \
    X(GW_STR, model, "model", "model", NULL, 0, 0, 0, NULL,                                        \
      "GGUF file or Hugging Face folder for the gateway's own worker")                             \
    X(GW_LIST, workers, "workers", "worker", NULL, 0, 0, GW_ENTRIES | GW_QUOTED | GW_COMMAS, NULL, \
      "http(s)://HOST:PORT or unix:/path of a worker that runs elsewhere, then api_key=, "         \
      "api_key_file=, ca_file=, cert_file=, key_file=, insecure= (repeatable)")                    \
    X(GW_LIST, upstreams, "upstreams", "upstream", NULL, 0, 0, GW_LIVE | GW_ENTRIES | GW_QUOTED,   \
      NULL,                                                                                        \
      "URL of an OpenAI-compatible backend, then name=, models=, api_key=, weight=, priority=, "   \
      "max_inflight=, health=, lmcache=, … (repeatable; all fields: docs/api.md)")                 \
    X(GW_STR, balance, "balance.upstreams", "balance", "least", 0, 0, GW_LIVE, "least|affinity",   \
      "choice among upstreams: the least busy of two, or the same for the same beginning")         \
    X(GW_U32, retry_attempts, "retry.attempts", "retries", "2", 0, 16, GW_LIVE, NULL,              \
      "times a request is sent again before its answer began")                                     \
    X(GW_MS, health_interval_ms, "health.interval", "health-interval", "5s", 10, 3600000, GW_LIVE, \
      NULL, "time between health checks of an upstream, with jitter")                              \
    X(GW_U32, health_failures, "health.failures", "health-failures", "3", 1, 1000, GW_LIVE, NULL,  \
      "failed health checks in a row that take an upstream out")                                   \
    X(GW_U32, health_successes, "health.successes", "health-successes", "2", 1, 1000, GW_LIVE,     \
      NULL, "good health checks in a row that bring it back")                                      \
    X(GW_U32, breaker_failures, "breaker.failures", "breaker-failures", "5", 1, 1000000, GW_LIVE,  \
      NULL, "failed requests in a row that open the circuit breaker of a backend")                 \
    X(GW_MS, breaker_open_ms, "breaker.open", "breaker-open", "10s", 10, 3600000, GW_LIVE, NULL,   \
      "time before one request may try it again")                                                  \
    X(GW_STR, worker_bin, "worker.bin", "worker-bin", NULL, 0, 0, 0, NULL,                         \
      "worker program (default: kvblend-worker beside this program)")                              \
    X(GW_U32, worker_count, "worker.count", "worker-count", "1", 1, 64, 0, NULL,                   \
      "own worker processes; each has its own --ram and --threads, and PATH.N of --nvme")          \
    X(GW_STR, registry, "registry.url", "registry", NULL, 0, 0, 0, NULL,                           \
      "URL of the Redis that workers of other hosts register in (their --advertise)")              \
    X(GW_STR, registry_group, "registry.group", "registry-group", "default", 0, 0, 0, NULL,        \
      "use the workers of this group")                                                             \
    X(GW_STR, registry_api_key, "registry.api_key", "registry-api-key", NULL, 0, 0, 0, NULL,       \
      "key that they ask for (their --api-key)")                                                   \
    X(GW_STR, ram, "worker.ram", "ram", NULL, 0, 0, GW_PASS, "SIZE",                               \
      "RAM budget for chunk records, such as 512MiB or 4GiB")                                      \
    X(GW_STR, nvme, "worker.nvme", "nvme", NULL, 0, 0, GW_PASS, NULL,                              \
      "PATH:SIZE of a file or device for records that RAM has no room for")                        \
    X(GW_LIST, redis, "worker.redis", "redis", NULL, 0, 0, GW_PASS_ENV | GW_SPACES, NULL,          \
      "URL of a Redis shared by workers: redis://, rediss://, redis-cluster://, "                  \
      "redis-sentinel://, unix:// (repeatable)")                                                   \
    X(GW_STR, ram_policy, "worker.ram_policy", "ram-policy", NULL, 0, 0, GW_PASS, "lru|arc",       \
      "eviction from RAM: lru or arc")                                                             \
    X(GW_STR, nvme_policy, "worker.nvme_policy", "nvme-policy", NULL, 0, 0, GW_PASS, "lru|arc",    \
      "eviction from NVMe: lru or arc")                                                            \
    X(GW_STR, nvme_codec, "worker.nvme_codec", "nvme-codec", NULL, 0, 0, GW_PASS, "none|q8",       \
      "what sinks to NVMe: none, or q8 (8 bits, half of f16)")                                     \
    X(GW_STR, redis_codec, "worker.redis_codec", "redis-codec", NULL, 0, 0, GW_PASS, "none|q8",    \
      "the same of Redis; workers share what is in one form")                                      \
    X(GW_NUMBER, side_share, "worker.side_share", "side-share", NULL, 0.001, 0.5, GW_PASS, NULL,   \
      "share of ram for K of one layer of records that have sunk to a slower tier")                \
    X(GW_LIST, quota, "worker.quota", "quota", NULL, 0, 0, GW_PASS | GW_SPACES, NULL,              \
      "NS=ram:SIZE,nvme:SIZE, hard caps of a namespace's records (repeatable)")                    \
    X(GW_STR, ttl, "worker.ttl", "ttl", NULL, 0, 0, GW_PASS, "DURATION",                           \
      "life of a record, such as 12h (default: for ever)")                                         \
    X(GW_LIST, ttl_ns, "worker.ttl_ns", "ttl-ns", NULL, 0, 0, GW_PASS, NULL,                       \
      "NS=DURATION, life of a namespace's records (repeatable)")                                   \
    X(GW_STR, nvme_write_budget, "worker.nvme_write_budget", "nvme-write-budget", NULL, 0, 0,      \
      GW_PASS, "SIZE", "bytes a day written to NVMe (default: the size of the drive)")             \
    X(GW_STR, tier_wait, "worker.tier_wait", "tier-wait", NULL, 0, 0, GW_PASS, "DURATION",         \
      "a slower tier may take this long even where computing is predicted to be faster")           \
    X(GW_STR, secret, "worker.secret", "secret", NULL, 0, 0, GW_PASS_ENV, NULL,                    \
      "text mixed into all keys of records; workers share records only when it agrees")            \
    X(GW_STR, secret_file, "worker.secret_file", "secret-file", NULL, 0, 0, GW_PASS, NULL,         \
      "file with that text")                                                                       \
    X(GW_STR, worker_access_log, "worker.access_log", "worker-access-log", NULL, 0, 0, GW_PASS,    \
      NULL, "file for one JSON line a request: the records it used, for kvblend-bench tiers hits") \
    X(GW_STR, dtype, "worker.dtype", "dtype", NULL, 0, 0, GW_PASS, "auto|f32|bf16",                \
      "arithmetic of the model: auto, f32 or bf16")                                                \
    X(GW_STR, weights, "worker.weights", "weights", NULL, 0, 0, GW_PASS, "auto|bf16|fp8|int8",     \
      "weights of the layers: as the arithmetic, or in 8 bits (on a GPU)")                         \
    X(GW_STR, kv_dtype, "worker.kv_dtype", "kv-dtype", NULL, 0, 0, GW_PASS,                        \
      "auto|f32|f16|bf16|q8", "type that KV is kept in: auto, f32, f16, bf16 or q8 (8 bits)")      \
    X(GW_NUMBER, threads, "worker.threads", "threads", NULL, 0, 4096, GW_PASS, NULL,               \
      "compute threads of the worker (0: all cores)")                                              \
    X(GW_STR, gemm, "worker.gemm", "gemm", NULL, 0, 0, GW_PASS, NULL,                              \
      "matrix multiplication to use (default: measured at start)")                                 \
    X(GW_NUMBER, ctx, "worker.ctx", "ctx", NULL, 0, 16777216, GW_PASS, NULL,                       \
      "longest context in tokens (0: the model's)")                                                \
    X(GW_STR, profile, "worker.profile", "profile", NULL, 0, 0, GW_PASS, NULL,                     \
      "what kvblend-bench quality calibrate has written (default: in the cache folder)")           \
    X(GW_STR, controller, "worker.controller", "controller", NULL, 0, 0, GW_PASS, "on|off",        \
      "choose for each request what is reused from where, and how, by predicted time")             \
    X(GW_NUMBER, quality_loss, "worker.quality_loss", "quality-loss", NULL, 0, 1, GW_PASS, NULL,   \
      "what the controller may lose, as a share of what plain reuse loses (default: profile)")     \
    X(GW_STR, tier_price, "worker.tier_price", "tier-price", NULL, 0, 0, GW_PASS, NULL,            \
      "TIER=PRICE,…: what a GB costs; decides where new records are written first")                \
    X(GW_STR, decision_log, "worker.decision_log", "decision-log", NULL, 0, 0, GW_PASS, NULL,      \
      "file for one JSON line a prompt: what was decided, from what, and what came of it")         \
    X(GW_NUMBER, ratio, "worker.ratio", "ratio", NULL, 0, 1, GW_PASS, NULL,                        \
      "share of reused tokens to recompute, 0 to 1")                                               \
    X(GW_NUMBER, guard_sample, "worker.guard_sample", "guard-sample", NULL, 0, 1, GW_PASS, NULL,   \
      "share of blended requests compared with a full prefill in idle time (default 0.01)")        \
    X(GW_NUMBER, guard_kl, "worker.guard_kl", "guard-kl", NULL, 0, 100, GW_PASS, NULL,             \
      "mean KL in nats that the guard lets pass (default: by the profile)")                        \
    X(GW_STR, strategy, "worker.strategy", "strategy", NULL, 0, 0, GW_PASS,                        \
      "qs|query|side|hkvd|sink|reuse|prefix|full",                                                 \
      "how the recomputed tokens are chosen: qs, query, side, hkvd or sink; or reuse, prefix or "  \
      "full, which choose none (default: the profile's)")                                          \
    X(GW_STR, chat_template, "worker.chat_template", "chat-template", NULL, 0, 0, GW_PASS, NULL,   \
      "name of the chat template, where the model's own is not known")                             \
    X(GW_STR, served_model_name, "worker.served_model_name", "served-model-name", NULL, 0, 0,      \
      GW_PASS, NULL, "name the model is served under")                                             \
    X(GW_NUMBER, max_running, "worker.max_running", "max-running", NULL, 1, 4096, GW_PASS, NULL,   \
      "sequences the worker decodes together")                                                     \
    X(GW_NUMBER, max_queue, "worker.max_queue", "max-queue", NULL, 1, 65536, GW_PASS, NULL,        \
      "requests that may wait in the worker")                                                      \
    X(GW_STR, sandbox, "worker.sandbox", "sandbox", NULL, 0, 0, GW_PASS, "on|off",                 \
      "the worker gives up what it does not need once the model is loaded")                        \
    X(GW_STR, presets, "worker.presets", "presets", NULL, 0, 0, GW_PASS, NULL,                     \
      "folder of segment presets (default: the built-in ones)")                                    \
    X(GW_MS, hang_timeout_ms, "worker.hang_timeout", "hang-timeout", "60s", 1000, 3600000, 0,      \
      NULL, "own worker that answers no health check for this long is restarted")                  \
    X(GW_LIST, api_keys, "keys.list", "api-key", NULL, 0, 0, GW_LIVE | GW_ENTRIES, NULL,           \
      "accepted API key, plain or sha256:SALT:HEX, then id=, namespace=, models=, rpm=, tpm=, "    \
      "concurrency=, weight=, priority=, max_ttft= (repeatable; none: no key is asked for)")       \
    X(GW_STR, api_key_file, "keys.file", "api-key-file", NULL, 0, 0, GW_LIVE, NULL,                \
      "file of accepted API keys, one a line, # comments")                                         \
    X(GW_U32, key_rpm, "limits.rpm", "rpm", "0", 0, 100000000, GW_LIVE, NULL,                      \
      "requests a minute of a key that states no rpm= (0: no limit)")                              \
    X(GW_U32, key_tpm, "limits.tpm", "tpm", "0", 0, 100000000, GW_LIVE, NULL,                      \
      "tokens a minute of a key that states no tpm= (0: no limit)")                                \
    X(GW_U32, key_concurrency, "limits.key_concurrency", "key-concurrency", "0", 0, 65536,         \
      GW_LIVE, NULL, "requests at once of a key that states no concurrency= (0: no limit)")        \
    X(GW_LIST, cors_origins, "cors.origins", "cors-origin", NULL, 0, 0, GW_LIVE, NULL,             \
      "origin that browsers may call from: https://app.example, https://*.example or * "           \
      "(repeatable; none: CORS is off)")                                                           \
    X(GW_MS, cors_max_age_ms, "cors.max_age", "cors-max-age", "10m", 0, 86400000, GW_LIVE, NULL,   \
      "how long browsers may remember what is allowed")                                            \
    X(GW_U32, max_inflight, "limits.max_inflight", "max-inflight", "0", 0, 65536, GW_LIVE, NULL,   \
      "completions sent on at once (0: 64 to the workers; to upstreams what their entries say)")   \
    X(GW_U32, queue_limit, "limits.queue_limit", "queue-limit", "256", 0, 65536, GW_LIVE, NULL,    \
      "completions that may wait for their turn")                                                  \
    X(GW_MS, queue_timeout_ms, "limits.queue_timeout", "queue-timeout", "60s", 1, 3600000,         \
      GW_LIVE, NULL, "longest wait for a turn")                                                    \
    X(GW_MS, max_ttft_ms, "limits.max_ttft", "max-ttft", "0", 0, 3600000, GW_LIVE, NULL,           \
      "completions that would wait longer for their first token are sent away (0: none)")          \
    X(GW_SIZE, max_body_bytes, "limits.max_body", "max-body", "32MiB", 1024, 1ull << 30, 0, NULL,  \
      "largest request body")                                                                      \
    X(GW_SIZE, body_memory, "limits.body_memory", "body-memory", "0", 0, 1ull << 50, 0, NULL,      \
      "all request bodies in memory together; then 503 (0: an eighth of the RAM)")                 \
    X(GW_SIZE, body_rate, "limits.body_rate", "body-rate", "4KiB", 1, 1ull << 30, 0, NULL,         \
      "least bytes a second of a request body, by timeouts.client_body; else 408")                 \
    X(GW_U32, connections_per_address, "limits.connections_per_address",                           \
      "connections-per-address", "0", 0, 1000000, 0, NULL,                                         \
      "connections of one client address, IPv6: of one /64 (0: half of all there is room for)")    \
    X(GW_MS, retry_wait_ms, "limits.retry_wait", "retry-wait", "30s", 0, 600000, GW_LIVE, NULL,    \
      "how long a request waits for a restarted worker")                                           \
    X(GW_MS, connect_timeout_ms, "timeouts.connect", "connect-timeout", "2s", 1, 600000, 0, NULL,  \
      "connecting to a worker")                                                                    \
    X(GW_MS, first_byte_timeout_ms, "timeouts.first_byte", "first-byte-timeout", "600s", 1,        \
      86400000, 0, NULL, "first byte of a worker's answer")                                        \
    X(GW_MS, idle_timeout_ms, "timeouts.idle", "idle-timeout", "180s", 1, 86400000, 0, NULL,       \
      "silence within a worker's answer")                                                          \
    X(GW_MS, total_timeout_ms, "timeouts.total", "total-timeout", "0", 0, 604800000, 0, NULL,      \
      "whole answer of a backend (0: no limit)")                                                   \
    X(GW_MS, sse_keepalive_ms, "sse.keepalive", "sse-keepalive", "10s", 0, 3600000, GW_LIVE, NULL, \
      "silence in a stream after which the client gets a comment (0: never)")                      \
    X(GW_MS, head_timeout_ms, "timeouts.client_head", "head-timeout", "10s", 1, 3600000, 0, NULL,  \
      "client sending its request head")                                                           \
    X(GW_MS, body_timeout_ms, "timeouts.client_body", "body-timeout", "60s", 1, 3600000, 0, NULL,  \
      "client sending its request body")                                                           \
    X(GW_MS, write_timeout_ms, "timeouts.client_write", "write-timeout", "60s", 1, 3600000, 0,     \
      NULL, "client that takes no bytes of its answer")                                            \
    X(GW_MS, drain_timeout_ms, "drain.timeout", "drain-timeout", "120s", 0, 86400000, GW_LIVE,     \
      NULL, "time to finish requests after SIGTERM")                                               \
    X(GW_MS, drain_delay_ms, "drain.delay", "drain-delay", "0s", 0, 3600000, GW_LIVE, NULL,        \
      "time between reporting not ready and refusing connections")                                 \
    X(GW_LIST, admin, "admin.listen", "admin", NULL, 0, 0, 0, NULL,                                \
      "address of the admin API (default: a unix socket in the run folder); HOST:PORT needs "      \
      "admin.keys")                                                                                \
    X(GW_BOOL, admin_public, "admin.public", "admin-public", "false", 0, 0, 0, NULL,               \
      "serve /admin on the public address, too; needs admin.keys")                                 \
    X(GW_BOOL, metrics_public, "metrics.public", "metrics-public", "false", 0, 0, GW_LIVE, NULL,   \
      "serve /metrics on the public address, too: it tells of all keys, models and backends")      \
    X(GW_LIST, admin_keys, "admin.keys", "admin-key", NULL, 0, 0, GW_LIVE | GW_ENTRIES, NULL,      \
      "key of the admin API where it is on TCP or public, plain or sha256:SALT:HEX (repeatable)")  \
    X(GW_LIST, admin_hosts, "admin.hosts", "admin-host", NULL, 0, 0, GW_LIVE, NULL,                \
      "name that the admin API goes by there, beside IP addresses and localhost (repeatable)")     \
    X(GW_STR, segment_memory, "segment.memory", "segment-memory", NULL, 0, 0, 0, NULL,             \
      "file that carries learned chunk boundaries over a restart, or off (default: "               \
      "segment.memory in $CACHE_DIRECTORY, else in the run folder)")                               \
    X(GW_STR, log_level, "log.level", "log-level", "info", 0, 0, GW_LIVE | GW_PASS,                \
      "error|warn|notice|info|debug", "error, warn, notice, info or debug")                        \
    X(GW_STR, access_log, "log.access", "access-log", "stdout", 0, 0, 0, NULL,                     \
      "stdout (or -), off, or a file that SIGHUP and SIGUSR1 open anew: one JSON line per "        \
      "request")                                                                                   \
    X(GW_STR, config, "", "config", NULL, 0, 0, GW_NOFILE, NULL, "YAML configuration file")        \
    X(GW_BOOL, check, "", "check", "false", 0, 0, GW_NOFILE, NULL,                                 \
      "check the configuration and stop")                                                          \
    X(GW_BOOL, hash_key, "", "hash-key", "false", 0, 0, GW_NOFILE, NULL,                           \
      "read an API key from standard input, print its hash for keys.list or keys.file")            \
    X(GW_BOOL, version, "", "version", "false", 0, 0, GW_NOFILE, NULL, "print the version")        \
    X(GW_BOOL, help, "", "help", "false", 0, 0, GW_NOFILE, NULL, "print this text")

struct gw_config {
#define X(kind, field, ...) gw_t_##kind field;
    GW_CONF_TABLE(X)
#undef X
};

struct gw_conf_key { /* one row of the table, as data */
    enum gw_conf_kind kind;
    size_t offset;
    const char *yaml, *flag, *def;
    double min, max;
    unsigned props;
    const char *choices, *help;
};
extern const struct gw_conf_key gw_conf_keys[];
extern const size_t gw_conf_n_keys;

/* Defaults, file, environment, flags. `problems` (may be NULL) receives one line per problem.
 * 0 and *ret set, what is there are warnings; -EINVAL with problems; -ENOMEM. envp: NULL-terminated
 * "NAME=value" list. */
int gw_config_load(int argc, char *const *argv, char *const *envp, struct gw_config **ret,
                   struct buf *problems);
void gw_config_free(struct gw_config *c);
/* The flags of the own worker: "--ram", "4GiB", … appended to out (strings borrowed from c).
 * -ERANGE: too many. */
int gw_config_worker_args(const struct gw_config *c, const char **out, size_t cap, size_t *ret_n);
/* What the own worker gets in its environment instead: sets the variables of this process. */
int gw_config_worker_env(const struct gw_config *c);
/* Names of keys that differ between two configurations and need a restart, comma separated. */
int gw_config_restart_keys(const struct gw_config *a, const struct gw_config *b, struct buf *out);
int gw_config_help(struct buf *out);

/* Internal to config*.c: set one key from text. 0, or -EINVAL and a problem line. */
struct gw_conf_source {
    const char *name; /* "etc/kvblend.yaml", "environment", "flag" */
    unsigned line;    /* 0 = none */
    int rank;         /* 1 file, 2 environment, 3 flag */
};
struct gw_conf_build {
    struct gw_config *c;
    int *rank; /* per key: who set it last */
    struct buf *problems;
    unsigned n_problems;
    struct buf named; /* " NAME " of each variable that the file refers to */
};
const struct gw_conf_key *gw_conf_find_yaml(const char *path);
int gw_conf_set(struct gw_conf_build *b, const struct gw_conf_key *k, const char *text,
                const struct gw_conf_source *src);
void gw_conf_problem(struct gw_conf_build *b, const struct gw_conf_source *src, const char *fmt,
                     ...) __attribute__((format(printf, 3, 4)));
int gw_conf_read_yaml(struct gw_conf_build *b, const char *path);

#endif
