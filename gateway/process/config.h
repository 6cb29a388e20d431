/* config: everything the gateway can be told.
 *
 * GW_CONF_TABLE gives the gateway's own options (base/opt.h) and the fields of struct gw_config, in
 * which they are read once; the section `worker:` is the worker's table (worker/opts_table.h) and
 * is handed to the own workers as it stands. A struct gw_config is immutable once loaded; a reload
 * makes a new one from the same arguments and the changed file. Life cycle: gw_config_load() →
 * reads → gw_config_free(). Thread: any; values are never changed. */
#ifndef GATEWAY_PROCESS_CONFIG_H
#define GATEWAY_PROCESS_CONFIG_H

#include "base/opt.h"

struct buf;
struct gw_strs {
    char **v;
    size_t n;
};
/* The kinds of options, as fields; texts are borrowed from `opts`. */
typedef const char *gw_conf_STR; /* NULL: unset */
typedef const char *gw_conf_ENUM;
typedef struct gw_strs gw_conf_LIST; /* the flag repeated, items in a variable, a YAML sequence */
typedef bool gw_conf_BOOL;
typedef uint32_t gw_conf_INT;
typedef double gw_conf_DOUBLE;
typedef uint64_t gw_conf_SIZE;
typedef uint32_t gw_conf_MS;

/* kind, field, flag, key in the file, default, min, max, properties, help, other members of struct
 * opt_def */
#define GW_CONF_TABLE(X)                                                                           \
    X(LIST, listen, "listen", "listen", "127.0.0.1:8010", 0, 0, 0,                                 \
      "HOST:PORT, https://HOST:PORT, unix:/path or systemd to serve on", .repeatable = true)       \
    X(STR, tls_cert, "tls-cert", "tls.cert", NULL, 0, 0, 0,                                        \
      "PEM file with the certificate chain of https listeners; read again on SIGHUP")              \
    X(STR, tls_key, "tls-key", "tls.key", NULL, 0, 0, 0,                                           \
      "PEM file with its private key (default: in the same file)")                                 \
    X(STR, tls_client_ca, "tls-client-ca", "tls.client_ca", NULL, 0, 0, 0,                         \
      "PEM file: only clients with a certificate of these authorities are served")                 \
    X(INT, loops, "loops", "loops", "1", 1, 64, 0,                                                 \
      "event loops, one thread each, that share the addresses")                                    \
    X(STR, model, "model", "model", NULL, 0, 0, 0,                                                 \
      "GGUF file or Hugging Face folder for the gateway's own worker, or a name on the hub, "      \
      "ORG/NAME[@REVISION][:FILE or QUANT] (kvblend pull NAME downloads it)")                      \
    X(LIST, models, "also-model", "models", NULL, 0, 0, 0,                                         \
      "a further model, served by a worker of its own, then load=on_demand, idle= and options of " \
      "that worker as in worker: (threads=, served_model_name=, …); what is not said has its "   \
      "default",                                                                                   \
      .split = ";", .head = "path", .repeatable = true)                                            \
    X(LIST, workers, "worker", "workers", NULL, 0, 0, OPT_SECRET,                                  \
      "http(s)://HOST:PORT or unix:/path of a worker that runs elsewhere, then api_key=, "         \
      "api_key_file=, ca_file=, cert_file=, key_file=, insecure=",                                 \
      .split = ",;", .head = "url", .repeatable = true)                                            \
    X(LIST, upstreams, "upstream", "upstreams", NULL, 0, 0, OPT_LIVE | OPT_SECRET,                 \
      "URL of an OpenAI-compatible backend, then name=, models=, api_key=, weight=, priority=, "   \
      "max_inflight=, health=, lmcache=, … (all fields: docs/api.md)",                             \
      .split = ";", .head = "url", .repeatable = true)                                             \
    X(STR, fallback_upstream, "fallback-upstream", "fallback.upstream", NULL, 0, 0, OPT_LIVE,      \
      "name of an entry of upstreams that gets requests the own workers cannot serve (none: they " \
      "are refused)")                                                                              \
    X(STR, fallback_model, "fallback-model", "fallback.model", NULL, 0, 0, OPT_LIVE,               \
      "model to ask it for (default: the request's)")                                              \
    X(ENUM, balance, "balance", "balance.upstreams", "least", 0, 0, OPT_LIVE,                      \
      "choice among upstreams: the least busy of two, or the same for the same beginning",         \
      .values = "least|affinity")                                                                  \
    X(INT, retry_attempts, "retries", "retry.attempts", "2", 0, 16, OPT_LIVE,                      \
      "times a request is sent again before its answer began")                                     \
    X(MS, health_interval_ms, "health-interval", "health.interval", "5s", 10, 3600000, OPT_LIVE,   \
      "time between health checks of an upstream, with jitter")                                    \
    X(INT, health_failures, "health-failures", "health.failures", "3", 1, 1000, OPT_LIVE,          \
      "failed health checks in a row that take an upstream out")                                   \
    X(INT, breaker_failures, "breaker-failures", "breaker.failures", "5", 1, 1000000, OPT_LIVE,    \
      "failed requests in a row that open the circuit breaker of a backend")                       \
    X(MS, breaker_open_ms, "breaker-open", "breaker.open", "10s", 10, 3600000, OPT_LIVE,           \
      "time before one request may try it again")                                                  \
    X(STR, worker_bin, "worker-bin", "worker.bin", NULL, 0, 0, 0,                                  \
      "worker program (default: kvblend-worker beside this program)")                              \
    X(INT, worker_count, "worker-count", "worker.count", "1", 1, 64, 0,                            \
      "own worker processes; each has its own --ram and --threads, and PATH.N of --nvme")          \
    X(STR, registry, "registry", "registry.url", NULL, 0, 0, OPT_SECRET,                           \
      "URL of the Redis that workers of other hosts register in (their --advertise); ?group=NAME " \
      "behind it: those of this group")                                                            \
    X(STR, registry_api_key, "registry-api-key", "registry.api_key", NULL, 0, 0, OPT_SECRET,       \
      "key that they ask for (their --api-key)")                                                   \
    X(LIST, api_keys, "api-key", "keys.list", NULL, 0, 0, OPT_LIVE | OPT_SECRET,                   \
      "accepted API key, plain or sha256:SALT:HEX, then id=, namespace=, models=, rpm=, tpm=, "    \
      "concurrency=, weight=, priority=, max_ttft=, fallback= (none: no key is asked for)",        \
      .head = "key|hash", .repeatable = true)                                                      \
    X(STR, api_key_file, "api-key-file", "keys.file", NULL, 0, 0, OPT_LIVE,                        \
      "file of accepted API keys, one a line, # comments")                                         \
    X(INT, key_rpm, "rpm", "limits.rpm", "0", 0, 100000000, OPT_LIVE,                              \
      "requests a minute of a key that states no rpm= (0: no limit)")                              \
    X(INT, key_tpm, "tpm", "limits.tpm", "0", 0, 100000000, OPT_LIVE,                              \
      "tokens a minute of a key that states no tpm= (0: no limit)")                                \
    X(INT, key_concurrency, "key-concurrency", "limits.key_concurrency", "0", 0, 65536, OPT_LIVE,  \
      "requests at once of a key that states no concurrency= (0: no limit)")                       \
    X(LIST, cors_origins, "cors-origin", "cors.origins", NULL, 0, 0, OPT_LIVE,                     \
      "origin that browsers may call from: https://app.example, https://*.example or * (none: "    \
      "CORS is off)",                                                                              \
      .repeatable = true)                                                                          \
    X(INT, max_inflight, "max-inflight", "limits.max_inflight", "0", 0, 65536, OPT_LIVE,           \
      "completions sent on at once (0: 64 to the workers; to upstreams what their entries say)")   \
    X(INT, queue_limit, "queue-limit", "limits.queue_limit", "256", 0, 65536, OPT_LIVE,            \
      "completions that may wait for their turn")                                                  \
    X(MS, queue_timeout_ms, "queue-timeout", "limits.queue_timeout", "60s", 1, 3600000, OPT_LIVE,  \
      "longest wait for a turn")                                                                   \
    X(MS, max_ttft_ms, "max-ttft", "limits.max_ttft", "0", 0, 3600000, OPT_LIVE,                   \
      "completions that would wait longer for their first token are sent away (0: none)")          \
    X(SIZE, max_body_bytes, "max-body", "limits.max_body", "32MiB", 1024, 1ull << 30, 0,           \
      "largest request body")                                                                      \
    X(SIZE, body_memory, "body-memory", "limits.body_memory", "0", 0, 1ull << 50, 0,               \
      "all request bodies in memory together; then 503 (0: an eighth of the RAM)")                 \
    X(SIZE, body_rate, "body-rate", "limits.body_rate", "4KiB", 1, 1ull << 30, 0,                  \
      "least bytes a second of a request body, by timeouts.client; else 408")                      \
    X(INT, connections_per_address, "connections-per-address", "limits.connections_per_address",   \
      "0", 0, 1000000, 0, "connections of one client address, IPv6: of one /64 (0: half of all)")  \
    X(MS, retry_wait_ms, "retry-wait", "limits.retry_wait", "30s", 0, 600000, OPT_LIVE,            \
      "how long a request waits for a restarted worker")                                           \
    X(MS, connect_timeout_ms, "connect-timeout", "timeouts.connect", "2s", 1, 600000, 0,           \
      "connecting to a worker")                                                                    \
    X(MS, first_byte_timeout_ms, "first-byte-timeout", "timeouts.first_byte", "600s", 1, 86400000, \
      0, "first byte of a worker's answer")                                                        \
    X(MS, idle_timeout_ms, "idle-timeout", "timeouts.idle", "180s", 1, 86400000, 0,                \
      "silence within a worker's answer")                                                          \
    X(MS, total_timeout_ms, "total-timeout", "timeouts.total", "0", 0, 604800000, 0,               \
      "whole answer of a backend (0: no limit)")                                                   \
    X(MS, sse_keepalive_ms, "sse-keepalive", "sse.keepalive", "10s", 0, 3600000, OPT_LIVE,         \
      "silence in a stream after which the client gets a comment (0: never)")                      \
    X(MS, client_timeout_ms, "client-timeout", "timeouts.client", "60s", 1, 3600000, 0,            \
      "client that sends nothing of its body, or takes nothing of its answer")                     \
    X(MS, drain_timeout_ms, "drain-timeout", "drain.timeout", "120s", 0, 86400000, OPT_LIVE,       \
      "time to finish requests after SIGTERM")                                                     \
    X(MS, drain_delay_ms, "drain-delay", "drain.delay", "0s", 0, 3600000, OPT_LIVE,                \
      "time between reporting not ready and refusing connections")                                 \
    X(LIST, admin, "admin", "admin.listen", NULL, 0, 0, 0,                                         \
      "address of the admin API (default: a unix socket in the run folder); HOST:PORT needs "      \
      "admin.keys",                                                                                \
      .repeatable = true)                                                                          \
    X(BOOL, admin_public, "admin-public", "admin.public", "false", 0, 0, 0,                        \
      "serve /admin on the public address, too; needs admin.keys")                                 \
    X(BOOL, metrics_public, "metrics-public", "metrics.public", "false", 0, 0, OPT_LIVE,           \
      "serve /metrics on the public address, too: it tells of all keys, models and backends")      \
    X(BOOL, ui_public, "ui-public", "ui.public", "false", 0, 0, 0,                                 \
      "serve /ui, the operator's page, on the public address, too; needs admin.public")            \
    X(LIST, admin_keys, "admin-key", "admin.keys", NULL, 0, 0, OPT_LIVE | OPT_SECRET,              \
      "key of the admin API where it is on TCP or public, plain or sha256:SALT:HEX",               \
      .head = "key|hash", .repeatable = true)                                                      \
    X(LIST, admin_hosts, "admin-host", "admin.hosts", NULL, 0, 0, OPT_LIVE,                        \
      "name that it goes by there, beside IP addresses and localhost", .repeatable = true)         \
    X(STR, segment_memory, "segment-memory", "segment.memory", NULL, 0, 0, 0,                      \
      "file that carries learned chunk boundaries over a restart, or off (default: "               \
      "segment.memory in $CACHE_DIRECTORY, else in the run folder)")                               \
    X(SIZE, responses_bytes, "responses-memory", "responses.memory", "16MiB", 0, 1ull << 40, 0,    \
      "conversations of /v1/responses that are kept for previous_response_id; the oldest of who "  \
      "has most goes first (0: none)")                                                             \
    X(INT, responses_max, "responses-max", "responses.max", "1024", 0, 100000, 0,                  \
      "how many of them (0: none)")                                                                \
    X(ENUM, log_level, "log-level", "log.level", "info", 0, 0, OPT_LIVE,                           \
      "error, warn, notice, info or debug", .values = "error|warn|notice|info|debug")              \
    X(ENUM, log_format, "log-format", "log.format", "text", 0, 0, 0,                               \
      "text, or json: one object a line, also of the own workers", .values = "text|json")          \
    X(STR, access_log, "access-log", "log.access", "stdout", 0, 0, 0,                              \
      "stdout (or -), off, or a file that SIGHUP and SIGUSR1 open anew: one JSON line per "        \
      "request")                                                                                   \
    X(STR, traces_endpoint, "traces-endpoint", "traces.endpoint", NULL, 0, 0, 0,                   \
      "collector that takes traces by OTLP over HTTP, also those of the own workers (none: no "    \
      "traces)",                                                                                   \
      .values = "http(s)://HOST[:PORT][/PATH]", .check = otlp_endpoint_ok)                         \
    X(LIST, traces_headers, "traces-headers", "traces.headers", NULL, 0, 0, OPT_SECRET,            \
      "header that it asks for", .values = "NAME=VALUE", .check = otlp_header_ok,                  \
      .repeatable = true)                                                                          \
    X(DOUBLE, traces_sample, "traces-sample", "traces.sample", "1", 0, 1, 0,                       \
      "share of the traces that begin here which are kept; of others whoever began them decides")  \
    X(STR, config, "config", NULL, NULL, 0, 0, OPT_NO_KEY, "YAML configuration file")              \
    X(BOOL, check, "check", NULL, "false", 0, 0, OPT_FLAG_ONLY,                                    \
      "check the configuration and stop")                                                          \
    X(BOOL, hash_key, "hash-key", NULL, "false", 0, 0, OPT_FLAG_ONLY,                              \
      "read an API key from standard input, print its hash for keys.list or keys.file")            \
    X(BOOL, version, "version", NULL, "false", 0, 0, OPT_FLAG_ONLY, "print the version")

struct gw_config {
#define X(kind, field, ...) gw_conf_##kind field;
    GW_CONF_TABLE(X)
#undef X
    bool help;
    struct opts *opts; /* all of them, with the section `worker:` */
};

/* `problems` receives one line per problem. 0 and *ret set, what is there are warnings; -EINVAL
 * with problems; -ENOMEM. envp: NULL-terminated "NAME=value" list. */
int gw_config_load(int argc, char *const *argv, char *const *envp, struct gw_config **ret,
                   struct buf *problems);
/* For opts_read(): a mapping of keys and of one level of sections, which a dot joins:
 * "limits: {rpm: 5}" is "limits.rpm". ${NAME} and os.environ/NAME as a value stand for a variable.
 */
void gw_config_read_yaml(struct opts *o, const char *path);
void gw_config_free(struct gw_config *c);
int gw_config_help(const struct gw_config *c, struct buf *out); /* as opts_help() */

#endif
