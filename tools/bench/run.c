/* Running one prompt by one strategy: chunks come from the record store exactly as in the worker,
 * through pins (kv_source) and writers (kv_sink). */
#include "tools/bench/bench.h"

#include "base/clock.h"
#include "base/mem.h"
#include "tiers/store_write.h"
#include "worker/reuse/records.h"

#include <string.h>

struct tier_ident bench_ident(const struct bench *b)
{
    struct tier_ident id = {.dtype = b->kv_dtype,
                            .sink_token = (uint32_t)b->build_sink,
                            .L = b->cfg->L,
                            .G = b->cfg->G,
                            .K = b->cfg->K};
    memcpy(id.model, b->cfg->fingerprint, sizeof id.model);
    tok_fingerprint(b->tok, id.tokenizer);
    return id;
}

int bench_store_create(const struct bench *b, uint64_t ram_bytes,
                       const struct store_tier_opts *tier, size_t n_tiers, struct store **ret,
                       struct err *err)
{
    struct store_opts o = {.ram_bytes = ram_bytes,
                           .ident = bench_ident(b),
                           .n_tiers = n_tiers,
                           .reader = b->gpu,
                           .side_layer = n_tiers ? b->profile.side_layer : 0}; /* as a worker */
    for (size_t i = 0; i < n_tiers; i++)
        o.tier[i] = tier[i];
    return store_create(&o, ret, err);
}

static int run_steps(struct fus_prefill *f)
{
    int r;
    do {
        r = fus_prefill_step(f);
    } while (r > 0);
    return r;
}

/* Chunks are keyed by content, the prefix by its chain (here one link: the whole first part). */
static struct tier_key key_of(const struct bench *b, enum tier_kind kind, const int32_t *tok,
                              uint32_t n)
{
    struct tier_ident id = bench_ident(b);
    return kind == TIER_CHUNK ? tier_key_chunk(&id, "", tok, n)
                              : tier_key_prefix(&id, "", NULL, tok, n);
}

/* Compute the KV of tok[0, n) and store it: isolated behind the sink, or as it stands (a prefix).
 */
static int build(struct bench *b, enum tier_kind kind, const int32_t *tok, uint32_t n)
{
    struct tier_key key = key_of(b, kind, tok, n);
    struct tier_ident id = bench_ident(b);
    struct store_writer *writer;
    struct kv_sink sink;
    int committed = 0;
    int r = store_claim(b->store, &(struct store_new){kind, key, "", tok, n}, &writer);
    if (r > 0) r = rec_sink_make(writer, &id, n, &committed, &sink) < 0 ? -ENOMEM : 1;
    if (r <= 0) return r;
    struct fus_capture capture = {.tok0 = 0, .n = n, .sink = sink};
    struct fus_plan plan = {.tok = tok, .n_tok = n, .capture = &capture, .n_capture = 1};
    const struct fus_chunk chunk = {b->build_sink, tok, n};
    struct fus_session *s = NULL;
    struct fus_prefill *f = NULL;
    r = fus_session_create(b->core, n + 1, &s);
    if (r == 0)
        r = kind == TIER_CHUNK ? fus_build_begin(s, &chunk, &sink, NULL, &f)
                               : fus_prefill_begin(s, &plan, &f);
    if (r < 0) {
        sink.ops->done(sink.ctx, r);
    } else {
        r = run_steps(f);
        fus_prefill_end(f);
        if (r == 0) r = committed;
    }
    fus_session_destroy(s);
    return r;
}

static uint32_t prefix_tokens(const struct bench_prompt *p)
{
    return p->n_chunks ? p->chunk[0].tok0 + p->chunk[0].n : 0;
}

struct tier_key bench_chunk_key(const struct bench *b, const int32_t *tok, uint32_t n)
{
    return key_of(b, TIER_CHUNK, tok, n);
}

static int sense_behind(struct bench *b, struct store_pin *pin, const int32_t *tok, uint32_t n,
                        const struct bench_text *before, float *score)
{
    struct fus_session *s = NULL;
    struct fus_prefill *f = NULL;
    struct fus_sensitivity p = {.sink_token = b->build_sink,
                                .before = before->tok,
                                .n_before = before->n,
                                .tok = tok,
                                .n = n,
                                .ret_score = score};
    int r = rec_source_make(pin, &p.src);
    if (r < 0) return r;
    r = fus_session_create(b->core, n + before->n + 1, &s);
    if (r == 0) r = fus_sensitivity_begin(s, &p, &f);
    if (r < 0) {
        p.src.ops->release(p.src.ctx);
    } else {
        r = run_steps(f);
        fus_prefill_end(f);
    }
    fus_session_destroy(s);
    return r;
}

int bench_sense_chunk(struct bench *b, const int32_t *tok, uint32_t n,
                      const struct bench_text *before, size_t n_before)
{
    struct tier_key key = key_of(b, TIER_CHUNK, tok, n);
    float *score = mem_zalloc(n * sizeof *score);
    int r = score ? 0 : -ENOMEM;
    for (size_t i = 0; r == 0 && i < n_before; i++) {
        struct store_pin *pin;
        enum store_miss why;
        r = store_lookup(b->store, &key, tok, n, &pin, &why);
        if (r <= 0) break;
        if (i == 0 && store_pin_scores(pin, RECORD_SCORE_SENSITIVITY, score) == 1) {
            store_pin_release(pin);
            mem_free(score);
            return 0;
        }
        r = sense_behind(b, pin, tok, n, &before[i], score);
    }
    if (r == 0 && n_before > 0)
        r = store_set_scores(b->store, &key, RECORD_SCORE_SENSITIVITY, score, n);
    mem_free(score);
    return r < 0 ? r : 0;
}

int bench_build_chunks(struct bench *b, const struct bench_prompt *p)
{
    int r = p->n_chunks ? build(b, TIER_PREFIX, p->tok, prefix_tokens(p)) : 0;
    for (size_t i = 0; r >= 0 && i < p->n_chunks; i++)
        r = build(b, TIER_CHUNK, p->tok + p->chunk[i].tok0, p->chunk[i].n);
    return r < 0 ? r : 0;
}

void bench_prompt_fini(struct bench_prompt *p)
{
    mem_free(p->tok);
    *p = (struct bench_prompt){0};
}

void bench_result_fini(struct bench_result *r)
{
    fus_session_destroy(r->session);
    mem_free(r->logits);
    *r = (struct bench_result){0};
}

int32_t bench_argmax(const float *logits, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return (int32_t)best;
}

/* ---- what comes from the store, asked for as the worker does: all at once, then settled ---- */

struct look {
    struct store_pin *pin; /* NULL: a miss */
    bool asking;
    uint32_t tok0, n;
};

/* Reusing a chunk saves what is not recomputed; a tier slower than that is not asked. */
static int ask(struct bench *b, enum tier_kind kind, const struct bench_prompt *p, double ratio,
               uint64_t batch, struct look *l)
{
    const int32_t *tok = p->tok + l->tok0;
    struct store_ask a = {.key = key_of(b, kind, tok, l->n),
                          .tok = tok,
                          .n = l->n,
                          .batch = batch,
                          .worth_ms = l->n * b->ms_per_token * (ratio < 0.9 ? 1 - ratio : 0.1)};
    enum store_miss why;
    int r = store_ask(b->store, &a, &l->pin, &why);
    if (r <= 0) l->pin = NULL;
    l->asking = r == STORE_ASKING;
    return r == -ENOMEM ? r : 0;
}

/* Takes the pin. A miss leaves the range without a source. */
static int settle(struct bench *b, enum tier_kind kind, struct look *l, struct fus_range *ret,
                  const char **ret_tier)
{
    enum store_miss why;
    struct store_pin *pin = l->pin;
    struct fus_range range = {.tok0 = l->tok0, .n = l->n, .exact = kind == TIER_PREFIX};
    l->pin = NULL;
    if (pin && l->asking && store_pin_settle(pin, 0, &why) <= 0) pin = NULL;
    *ret_tier = pin ? store_pin_tier(pin) : NULL;
    int r = pin ? rec_source_make(pin, &range.src) : 0;
    if (r == 0) *ret = range;
    return r;
}

/* What of the prompt may come from the store. prefix: what prefix caching keeps when chunks come in
 * a new order behind the same first one. */
static size_t collect_ranges(struct bench *b, const struct bench_prompt *p,
                             const struct bench_run *run, struct fus_range *range,
                             const char **ret_tier, int *ret_status)
{
    struct look look[BENCH_CHUNKS_MAX];
    enum tier_kind kind = run->strategy == POL_PREFIX ? TIER_PREFIX : TIER_CHUNK;
    const uint64_t batch = clock_ns(); /* a number of its own */
    size_t n = 0, n_looks = kind == TIER_PREFIX ? 1 : p->n_chunks;
    int r = 0;
    *ret_status = 0;
    if (run->strategy == POL_FULL || p->n_chunks == 0) return 0;
    for (size_t i = 0; i < n_looks; i++) {
        look[i] = (struct look){.tok0 = p->chunk[i].tok0, .n = p->chunk[i].n};
        if (kind == TIER_PREFIX) look[i] = (struct look){.n = prefix_tokens(p)};
        if (r == 0 && !(run->skip && run->skip[i]))
            r = ask(b, kind, p, (double)run->ratio, batch, &look[i]);
    }
    for (size_t i = 0; i < n_looks; i++) {
        const char *tier;
        struct fus_range got;
        int rc = settle(b, kind, &look[i], &got, &tier);
        if (rc == 0) {
            got.at_built = kind == TIER_CHUNK && !b->in_context &&
                           fus_at_built_position(b->sink, p->tok, got.tok0);
            ret_tier[n] = tier;
            range[n++] = got;
        }
        if (r == 0) r = rc;
    }
    *ret_status = r;
    return n;
}

int bench_prefill(struct bench *b, const struct bench_prompt *p, const struct bench_run *run,
                  uint32_t extra_tokens, struct bench_result *ret)
{
    uint64_t t0 = clock_ns();
    struct fus_range range[BENCH_CHUNKS_MAX];
    struct bench_result res = {0};
    struct fus_prefill *f = NULL;
    int r;
    size_t n = collect_ranges(b, p, run, range, res.tier, &r);
    if (r == 0) r = fus_session_create(b->core, p->n_tok + extra_tokens, &res.session);
    if (r == 0) {
        struct fus_plan plan = run->with;
        plan.tok = p->tok;
        plan.n_tok = p->n_tok;
        plan.range = range;
        plan.n_range = n;
        plan.strategy = run->strategy;
        plan.ratio = run->ratio;
        plan.suffix = p->n_tok - p->suffix0;
        plan.logits_from = run->logits_from;
        fus_profile_apply(&b->profile, &plan);
        r = fus_prefill_begin(res.session, &plan, &f);
    }
    if (r < 0) {
        for (size_t i = 0; i < n; i++)
            if (range[i].src.ops) range[i].src.ops->release(range[i].src.ctx);
        bench_result_fini(&res);
        return r;
    }
    r = run_steps(f);
    const float *logits = r == 0 ? fus_prefill_logits(f, &res.n_rows) : NULL;
    if (r == 0) {
        size_t V = b->cfg->V;
        (void)bench_argmax(logits + (res.n_rows - 1) * V, V); /* the first token is out here */
        res.ttft_ms = clock_ms_since(t0);
        fus_prefill_report(f, &res.report);
        res.logits = mem_alloc(res.n_rows * V * sizeof *res.logits);
        if (res.logits)
            memcpy(res.logits, logits, res.n_rows * V * sizeof *res.logits);
        else
            r = -ENOMEM;
    }
    fus_prefill_end(f);
    if (r < 0)
        bench_result_fini(&res);
    else
        *ret = res;
    return r;
}
