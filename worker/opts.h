/* opts: the worker's options as values.
 *
 * wk_opts_read() → the fields are read, strategy and ratio are filled in from the profile →
 * wk_opts_fini(). Strings live in `store` and `arena`.
 * Thread: main; read-only once the model is loaded. */
#ifndef WORKER_OPTS_H
#define WORKER_OPTS_H

#include "base/err.h"
#include "base/mem.h"
#include "base/otlp/otlp.h"
#include "base/redis/redis_url.h"
#include "fusor/core/engine.h"
#include "fusor/encode/encode.h"
#include "kernels/kn.h"
#include "policy/order.h"
#include "policy/strategy.h"
#include "tiers/store.h"

#include <stdbool.h>
#include <stdint.h>

struct opts;
struct wk_limits;
struct wk_tier_opts {
    enum evict_policy policy;
    bool nvme_q8, redis_q8; /* kept there in 8 bits */
    uint64_t gpu_bytes;     /* 0: no such tier; FUS_KV_AUTO */
    uint64_t gpu_reserve_bytes;
    const char *nvme_path; /* NULL: no such tier */
    uint64_t nvme_bytes, nvme_write_bytes_per_day, ttl_ms, wait_ms;
    struct redis_url *redis;  /* NULL: no such tier */
    struct wk_limits *limits; /* of namespaces */
    size_t n_limits;
    char **show_text; /* namespaces whose prompts the operator's page may show */
    size_t n_show_text;
    uint64_t secret[2];               /* tier_secret(): the text is not kept */
    uint8_t auth_key[AUTH_KEY_BYTES]; /* tier_secret_auth() */
    bool has_secret;
    bool contexts_off;      /* of all namespaces */
    const char *access_log; /* NULL: none */
};
struct wk_tls_opts {
    const char *cert, *key; /* NULL: plain HTTP; in cert */
};
struct wk_opts {
    const char *model, *listen, *device, *gemm, *chat_template, *served_name, *api_key, *presets;
    struct wk_tls_opts tls;
    const char *rerank_order, *rerank_template, *rerank_answers; /* template NULL: by the model */
    bool admin_tcp;             /* /admin not on unix sockets alone */
    enum pol_strategy strategy; /* POL_AUTO: the profile's */
    const char *profile;        /* NULL: the cached one, else the default */
    uint64_t ram_bytes, kv_pages_bytes, drain_timeout_ms;
    enum enc_pool embed; /* AUTO: an encoder, or what its files say */
    enum kn_arith arith;
    enum kn_weights weights;
    bool kv_q8;   /* KV of running requests in 8 bits */
    int kv_dtype; /* of stored KV: enum kn_dtype, -1 = auto */
    unsigned threads, ctx;
    struct fus_engine_opts engine;    /* less what it calls */
    enum pol_order order;             /* of the queue */
    double ratio;                     /* < 0: the profile's */
    double guard_sample, guard_kl;    /* guard_kl 0: by the profile */
    bool strategy_given, ratio_given; /* by the operator: the controller keeps to them */
    bool controller, sandbox;
    const char *advertise;      /* HOST:PORT that gateways reach us by; NULL: not registered */
    struct redis_url *registry; /* where; NULL: the tier's */
    struct otlp_opts traces;    /* endpoint NULL: none */
    struct wk_tier_opts tiers;
    struct opts *store; /* owns the strings, with */
    struct arena arena;
};
/* 0; 1 when help or version was printed; <0 with a sentence. */
int wk_opts_read(int argc, char **argv, struct wk_opts *ret, struct err *err);
void wk_opts_fini(struct wk_opts *o);

#endif
