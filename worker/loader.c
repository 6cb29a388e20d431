/* Loading the model, in a thread of its own while the server already answers /health.
 *
 * Everything it makes is published to the loop by one message; until then the loop touches none of
 * it. A chat template that is refused leaves the model usable for /v1/completions, and says so.
 */
#include "base/clock.h"
#include "base/hub/hub.h"
#include "base/keyfile.h"
#include "base/log.h"
#include "base/sandbox.h"
#include "worker/admin/metrics.h"
#include "worker/embed/embed.h"
#include "worker/kvlog.h"
#include "worker/quality/guard.h"
#include "worker/request/request.h"
#include "worker/request/rerank.h"
#include "worker/reuse/recuts.h"
#include "worker/reuse/reuse.h"
#include "worker/worker.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "tiers/mrc.h"
#include "tiers/store_admin.h"

/* chosen: six chunks of 512 and more */
enum { WARM_TOKENS = 4096 };
/* Of the miss-ratio curve. Measured on three traces (docs/benchmarks.md): within a point of the
 * exact one; 3 MB. It forgets in a million look-ups: a day, with a request of 12 a second. */
enum { MRC_SAMPLE = 32768, MRC_HALF_LIFE = 1000000 };

/* ---- progress ---- */
void wk_load_progress(void *ctx, double share)
{
    struct worker *w = ctx;
    unsigned now = (unsigned)(share * 1000 + 0.5);
    unsigned was = atomic_exchange(&w->loader.progress, now > 1000 ? 1000 : now);

    if (!isatty(STDERR_FILENO) || now / 10 == was / 10) return;
    char bar[41];
    for (unsigned i = 0; i < 40; i++)
        bar[i] = i < now / 25 ? '#' : '.';
    bar[40] = 0;
    (void)fprintf(stderr, "\rloading [%s] %3u %%%s", bar, now / 10, now >= 1000 ? "\n" : "");
    (void)fflush(stderr);
}

/* ---- names ---- */
static void set_base(struct worker *w)
{
    const char *base;
    char copy[4096];
    size_t n;

    (void)snprintf(copy, sizeof copy, "%s", w->o.model);
    n = strlen(copy);
    while (n > 1 && copy[n - 1] == '/')
        copy[--n] = 0;
    base = strrchr(copy, '/');
    base = base && base[1] ? base + 1 : copy;
    (void)snprintf(w->model_base, sizeof w->model_base, "%.*s", (int)sizeof w->model_base - 1,
                   base);
}

/* A model that the hub's name says has that name, and its repository's; else its file's. */
static void set_names(struct worker *w)
{
    struct hub_name hub;
    const bool is_hub = hub_name_of(w->o.model, &hub) == 1;
    const char *given = w->o.model + (is_hub && strncmp(w->o.model, "hf:", 3) == 0 ? 3 : 0);
    size_t n;

    if (is_hub)
        (void)snprintf(w->model_base, sizeof w->model_base, "%s", hub.repo);
    else
        set_base(w);
    (void)snprintf(w->model_name, sizeof w->model_name, "%.*s", (int)sizeof w->model_name - 1,
                   is_hub ? given : w->model_base);
    n = strlen(w->model_name);
    if (n > 5 && strcmp(w->model_name + n - 5, ".gguf") == 0) w->model_name[n - 5] = 0;
    if (w->o.served_name) {
        n = strcspn(w->o.served_name, ",");
        (void)snprintf(w->model_name, sizeof w->model_name, "%.*s", (int)(n < 255 ? n : 255),
                       w->o.served_name);
    }
}

bool wk_serves_model(const struct worker *w, const char *name)
{
    const char *s = w->o.served_name;

    if (!name || !*name || strcmp(name, w->model_name) == 0) return true;
    if (strcmp(name, "default") == 0) return true;
    if (!s) /* unless a name was given, whatever plainly means this file */
        return strcmp(name, w->model_base) == 0 || strcmp(name, w->o.model) == 0 ||
               (w->model && strcmp(name, model_config(w->model)->name) == 0);
    while (*s) {
        size_t n = strcspn(s, ",");
        if (strlen(name) == n && strncmp(s, name, n) == 0) return true;
        s += n + (s[n] == ',');
    }
    return false;
}

/* ---- steps ---- */
static enum kn_dtype kv_dtype(const struct worker *w, const struct model_cfg *c)
{
    if (w->o.kv_dtype >= 0) return (enum kn_dtype)w->o.kv_dtype;
    return c->file_f32 ? KN_F32 : KN_F16;
}

static int open_text(struct worker *w, struct err *err)
{
    struct err ce = {0};
    int rc = tok_open(w->model, &w->tok, err);

    if (rc < 0) return rc;
    rc = gram_vocab_of(w->tok, model_config(w->model)->V, &w->vocab);
    if (rc < 0) return err_set(err, rc, "the vocabulary does not fit into memory");
    rc = chat_open(tok_chat_template(w->tok), w->o.chat_template, &w->chat, &ce);
    if (rc < 0 && w->o.chat_template) {
        *err = ce;
        return rc;
    }
    if (rc < 0) {
        w->chat = NULL;
        (void)snprintf(w->chat_error, sizeof w->chat_error, "%s", ce.msg);
        log_event(LOG_WARN, "chat_template", "state=refused reason=\"%s\"", ce.msg);
    }
    wk_speech_of(w);
    return wk_reranker_open(w, err);
}

static int open_core(struct worker *w, struct err *err)
{
    const struct model_cfg *c = model_config(w->model);
    struct fus_core_opts o = {.dev = {.n_threads = w->o.threads,
                                      .device = w->o.device,
                                      .gemm = w->o.gemm,
                                      .arith = w->o.arith,
                                      .weights = w->o.weights,
                                      .allow_bf16 = c->file_bf16_or_less,
                                      .kv_q8 = w->o.kv_q8,
                                      .cache_dir = keyfile_dir("/kvblend", w->cache_dir)},
                              .ctx_max = w->o.ctx,
                              .kv_bytes =
                                  w->o.tiers.gpu_bytes ? w->o.tiers.gpu_bytes : w->o.kv_pages_bytes,
                              .progress = wk_load_progress,
                              .progress_ctx = w};
    struct err te = {0};
    int rc = fus_core_create(w->model, &o, &w->core, err);

    if (rc < 0) return rc;
    w->ctx_max = fus_core_ctx_max(w->core);
    rc = fus_core_self_test(w->core, &te);
    w->blend_ok = rc >= 0;
    if (rc < 0) {
        (void)snprintf(w->blend_error, sizeof w->blend_error, "%s", te.msg);
        log_event(LOG_ERROR, "self_test", "state=failed blending=off reason=\"%s\"", te.msg);
    }
    (void)fus_core_warm(w->core, WARM_TOKENS); /* without it the first prompt is slower */
    return 0;
}

/* Before anything has run: what the linear layers take at the measured rate; 0 = unknown. */
static double guess_ms_per_token(const struct worker *w)
{
    const struct kn_info *d = kn_info(fus_core_dev(w->core));
    const struct kn_gemm_rate *r = d->rate;

    for (size_t i = 0; i < d->n_rates; i++)
        if (r[i].chosen && r[i].gflops > 0)
            return 2 * fus_core_linear_params(w->core) / (r[i].gflops * 1e6);
    return 0;
}

/* Values, not the struct: what pads it differs from process to process. Factors are left out: they
 * are part of the model's fingerprint. */
static uint32_t rope_regime(const struct model_rope *r)
{
    const double v[] = {
        r->type,     r->base,      r->factor,    r->low_freq_factor, r->high_freq_factor,
        r->orig_ctx, r->beta_fast, r->beta_slow, r->attn_factor,     r->no_truncate};

    return XXH32(v, sizeof v, 0);
}

static int open_store(struct worker *w, struct err *err)
{
    const struct model_cfg *c = model_config(w->model);
    const struct model_rope rope = model_rope_for(&c->rope, w->ctx_max);
    const struct wk_tier_opts *t = &w->o.tiers;
    struct store_opts o = {.ram_bytes = w->o.ram_bytes,
                           .ram_policy = t->policy,
                           .ttl_ms = t->ttl_ms,
                           .convert = kn_convert,
                           .finite = kn_finite,
                           .auth_key = t->has_secret ? t->auth_key : NULL};
    int rc;

    w->sink_token = w->profile.sink_tokens ? chat_sink(w->chat, w->tok) : -1;
    w->ident =
        (struct tier_ident){.rope_regime = rope_regime(&rope),
                            .dtype = kv_dtype(w, c),
                            .sink_token = w->sink_token < 0 ? UINT32_MAX : (uint32_t)w->sink_token,
                            .L = c->L,
                            .G = c->G,
                            .K = c->K};
    memcpy(w->ident.model, c->fingerprint, sizeof w->ident.model);
    tok_fingerprint(w->tok, w->ident.tokenizer);
    memcpy(w->ident.secret, t->secret, sizeof w->ident.secret);
    atomic_store(&w->reuse.ms_per_token, guess_ms_per_token(w));
    o.ident = w->ident;
    o.side_layer = w->profile.side_layer;
    if ((rc = wk_tiers_open(w, &o, err)) < 0) return rc;
    if ((rc = store_create(&o, &w->store, err)) < 0) {
        while (o.n_tiers-- > 0)
            o.tier[o.n_tiers].tier->ops->destroy(o.tier[o.n_tiers].tier);
        return rc;
    }
    wk_tiers_limits(w);
    rc = mrc_create(MRC_SAMPLE, MRC_HALF_LIFE, &w->reuse.mrc);
    if (rc >= 0) rc = wk_recuts_create(&w->reuse.recuts);
    return rc < 0 ? err_set(err, rc, "out of memory") : 0;
}

const struct kn_dev *wk_device(const struct worker *w)
{
    return w->embedder ? enc_dev(wk_embedder_enc(w->embedder)) : fus_core_dev(w->core);
}

static void log_embedder(const struct worker *w)
{
    const struct enc_info *i = enc_info(wk_embedder_enc(w->embedder));
    const struct kn_info *d = kn_info(wk_device(w));

    log_event(LOG_NOTICE, "model_loaded",
              "name=%s arch=%s layers=%u ctx=%u width=%u pooling=%s normalized=%d scores=%d "
              "device=\"%s\" "
              "gemm=%s isa=%s threads=%u seconds=%.2f",
              w->model_name, i->arch, i->L, i->ctx_max, i->D, enc_pool_name(i->pool), i->normalize,
              i->scores, d->device, d->gemm, d->isa, d->n_threads, w->loader.seconds);
}

static void log_loaded(struct worker *w)
{
    const struct kn_info *d = kn_info(wk_device(w));
    const struct kn_gemm_rate *r = d->rate;

    for (size_t i = 0; i < d->n_rates; i++)
        if (r[i].gflops > 0)
            log_event(LOG_NOTICE, "gemm", "name=%s gflops=%.1f chosen=%d", r[i].name, r[i].gflops,
                      r[i].chosen);
    if (d->attn_warning)
        log_event(LOG_WARN, "attention", "why=\"%s, using our own\"", d->attn_warning);
    if (w->embedder) {
        log_embedder(w);
        return;
    }
    const struct model_cfg *c = model_config(w->model);
    if (c->n_packed)
        log_event(
            LOG_NOTICE, "packed_weights", "layers=%u decoded=%u%s", c->n_packed, c->n_packed_apart,
            c->n_packed_apart ? " reason=\"act-order, groups of no whole 32, or f32 scales\"" : "");
    log_event(LOG_NOTICE, "model_loaded",
              "name=%s arch=%s layers=%u ctx=%u device=\"%s\" gemm=%s isa=%s threads=%u "
              "attn=\"%s\" kv_dtype=%s kv_pages=%s chat=%s "
              "ram_bytes=%llu blend=%s seconds=%.2f",
              w->model_name, c->arch, c->L, w->ctx_max, d->device, d->gemm, d->isa, d->n_threads,
              d->attn, kn_dtype_name(w->ident.dtype), kn_dtype_name(d->kv),
              w->chat ? chat_name(w->chat) : "none", (unsigned long long)w->o.ram_bytes,
              w->blend_ok ? "on" : "off", w->loader.seconds);
}

static int find_model(struct worker *w, struct err *err)
{
    struct buf path = BUF_INIT;
    int rc = hub_find(w->o.model, &path, err);

    if (rc == 0 && path.len >= sizeof w->model_path)
        rc = err_set(err, -ENAMETOOLONG, "the model's path is too long");
    if (rc == 0) (void)snprintf(w->model_path, sizeof w->model_path, "%s", buf_cstr(&path));
    buf_fini(&path);
    return rc;
}

static int load_all(struct worker *w, struct err *err)
{
    struct fus_engine_opts eo = w->o.engine;
    int rc;

    const char *log = w->o.tiers.access_log;
    if (log && (rc = wk_kvlog_open(log, &w->kvlog, err)) < 0) return rc;
    if ((rc = seg_presets_load(w->o.presets, &w->segmenter.presets, err)) < 0) return rc;
    if ((rc = seg_learner_create(SEG_LEARNER_BYTES, &w->segmenter.learner)) < 0) return rc;
    if ((rc = find_model(w, err)) < 0) return rc;
    if (enc_fits(w->model_path, w->o.embed)) return wk_embedder_open(w, err);
    if ((rc = model_open(w->model_path, &w->model, err)) < 0) return rc;
    if ((rc = open_text(w, err)) < 0) return rc;
    if ((rc = open_core(w, err)) < 0) return rc;
    if ((rc = wk_profile_load(w, err)) < 0) return rc;
    if ((rc = open_store(w, err)) < 0) return rc;
    if ((rc = wk_decider_open(w, err)) < 0) return rc;
    wk_guard_loaded(w);
    eo.on_unit = wk_metrics_step;
    rc = fus_engine_create(w->core, &eo, &w->engine);
    return rc < 0 ? err_set(err, rc, "the engine could not start (%s)", err_name(rc)) : 0;
}

static void *loader_main(void *arg)
{
    struct worker *w = arg;
    uint64_t t0 = clock_ns();
    int rc = load_all(w, &w->loader.error);

    if (rc >= 0 && w->o.sandbox) rc = sandbox_enter(&w->loader.error);

    w->loader.seconds = clock_ms_since(t0) / 1e3;
    if (rc < 0 && w->loader.error.code == 0)
        (void)err_set(&w->loader.error, rc, "loading failed (%s)", err_name(rc));
    if (rc >= 0) {
        wk_load_progress(w, 1);
        log_loaded(w);
    }
    atomic_store(&w->loader.ended, true); /* first: whoever is told may join at once */
    wk_post(w, &w->loader.msg);
    return NULL;
}

static void loaded(struct wk_msg *m)
{
    struct worker *w = (struct worker *)((char *)m - offsetof(struct worker, loader.msg));

    if (w->loader.error.code < 0) {
        log_event(LOG_ERROR, "model_load", "path=%s error=\"%s\"", w->o.model, w->loader.error.msg);
        atomic_store(&w->state, WK_FAILED);
        w->process.exit_code = 1;
        http_loop_stop(w->loop);
        return;
    }
    int loading = WK_LOADING;
    if (atomic_compare_exchange_strong(&w->state, &loading, WK_READY)) (void)wk_announce_start(w);
}

bool wk_is_loading(const struct worker *w)
{
    return w->loader.started && !atomic_load(&w->loader.ended);
}

/* The loop's thread alone is told to end: another one would still be writing to the loop when that
 * goes. The loader's threads inherit what it blocks; faults of the mapped model (map.h) stay. */
int wk_loader_start(struct worker *w)
{
    sigset_t ending, old;
    set_names(w);
    w->loader.msg.fn = loaded;
    (void)sigemptyset(&ending);
    (void)sigaddset(&ending, SIGTERM);
    (void)sigaddset(&ending, SIGINT);
    (void)pthread_sigmask(SIG_BLOCK, &ending, &old);
    w->loader.started = pthread_create(&w->loader.thread, NULL, loader_main, w) == 0;
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    return w->loader.started ? 0 : -EAGAIN;
}
