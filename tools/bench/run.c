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

int bench_store_create(const struct bench *b, uint64_t ram_bytes, struct tier *behind,
                       struct store **ret, struct err *err)
{
    const struct store_opts o = {.ram_bytes = ram_bytes,
                                 .ident = bench_ident(b),
                                 .n_tiers = behind != NULL,
                                 .tier = {{.tier = behind}},
                                 .reader = b->gpu,
                                 .check_ahead = b->gpu != NULL,
                                 .side_layer =
                                     behind ? b->profile.side_layer : 0}; /* as a worker */
    const int r = store_create(&o, ret, err);
    if (r < 0 && behind) behind->ops->destroy(behind);
    return r;
}

struct bench_text bench_chunk(const struct bench_prompt *p, size_t i)
{
    return (struct bench_text){p->tok + p->chunk[i].tok0, p->chunk[i].n};
}

/* What prefix caching keeps when chunks come in a new order behind the same first one. */
static struct bench_text prefix_of(const struct bench_prompt *p)
{
    return (struct bench_text){p->tok, p->n_chunks ? p->chunk[0].tok0 + p->chunk[0].n : 0};
}

struct tier_key bench_key(const struct bench *b, enum tier_kind kind, struct bench_text text)
{
    const struct tier_ident id = bench_ident(b);
    return kind == TIER_CHUNK ? tier_key_chunk(&id, "", text.tok, text.n)
                              : tier_key_prefix(&id, "", NULL, text.tok, text.n);
}

/* What stands before a text, if bench_keep_context() has kept it. */
static int find_context(struct bench *b, const int32_t *tok, struct fus_range *range)
{
    const struct tier_key key = bench_key(b, TIER_PREFIX, (struct bench_text){tok, range->n});
    struct store_pin *pin;
    enum store_miss why;
    const int r = store_lookup(b->store, &key, tok, range->n, &pin, &why);
    return r > 0 ? rec_source_make(pin, &range->src) : r;
}

/* The text behind `before` and the build's sink token, or on its own (NULL); to the end of a plan
 * that has what becomes of [tok0, n_tok). */
static int run_behind(struct bench *b, const struct bench_text *before, struct bench_text text,
                      struct fus_plan plan)
{
    const uint32_t tok0 = plan.n_tok - text.n, head = before ? tok0 - before->n : 0;
    struct fus_range range = {.n = tok0, .exact = true};
    struct fus_session *s = NULL;
    struct fus_prefill *f = NULL;
    int32_t *tok = mem_alloc((plan.n_tok + 1) * sizeof *tok);
    int r = tok ? fus_session_create(b->core, plan.n_tok + 1, &s) : -ENOMEM;
    if (r == 0) {
        tok[0] = b->build_sink;
        if (tok0 > head) memcpy(tok + head, before->tok, before->n * sizeof *tok);
        memcpy(tok + tok0, text.tok, text.n * sizeof *tok);
        plan.tok = tok;
        plan.strategy = POL_PREFIX;
        plan.range = &range;
        plan.n_range = tok0 > head;
        if (tok0 > head) r = find_context(b, tok, &range);
        if (r == 0) r = fus_prefill_begin(s, &plan, &f);
    }
    if (r < 0) {
        if (range.src.ops) range.src.ops->release(range.src.ctx);
        if (plan.n_capture) plan.capture->sink.ops->done(plan.capture->sink.ctx, r);
    } else {
        r = fus_prefill_steps(f);
        fus_prefill_end(f);
    }
    fus_session_destroy(s);
    mem_free(tok);
    return r;
}

static uint32_t start_behind(const struct bench *b, const struct bench_text *before)
{
    return before ? (b->build_sink >= 0) + before->n : 0;
}

int bench_encode(struct bench *b, const struct bench_text *before, struct bench_text text,
                 const struct kv_sink *sink)
{
    const uint32_t tok0 = start_behind(b, before), n_tok = tok0 + text.n;
    const struct fus_capture capture = {.tok0 = tok0, .n = text.n, .sink = *sink};
    const struct fus_plan plan = {
        .n_tok = n_tok, .capture = &capture, .n_capture = 1, .logits_from = n_tok};
    return run_behind(b, before, text, plan);
}

static int build(struct bench *b, enum tier_kind kind, struct bench_text text)
{
    const struct bench_text nothing = {0};
    const struct tier_ident id = bench_ident(b);
    const struct store_new new = {kind, bench_key(b, kind, text), "", text.tok, text.n};
    struct store_writer *writer;
    struct kv_sink sink;
    int committed = 0;
    int r = store_claim(b->store, &new, &writer);
    if (r <= 0) return r;
    r = rec_sink_make(writer, &id, text.n, &committed, &sink);
    if (r == 0) r = bench_encode(b, kind == TIER_CHUNK ? &nothing : NULL, text, &sink);
    return r == 0 ? committed : r;
}

int bench_build_chunks(struct bench *b, const struct bench_prompt *p)
{
    int r = p->n_chunks ? build(b, TIER_PREFIX, prefix_of(p)) : 0;
    for (size_t i = 0; r >= 0 && i < p->n_chunks; i++)
        r = build(b, TIER_CHUNK, bench_chunk(p, i));
    return r < 0 ? r : 0;
}

int bench_keep_context(struct bench *b, struct bench_text context)
{
    const uint32_t head = b->build_sink >= 0;
    int32_t *tok = mem_alloc((head + context.n) * sizeof *tok);
    if (!tok) return -ENOMEM;
    tok[0] = b->build_sink;
    memcpy(tok + head, context.tok, context.n * sizeof *tok);
    const int r = build(b, TIER_PREFIX, (struct bench_text){tok, head + context.n});
    mem_free(tok);
    return r < 0 && r != -ENOSPC ? r : 0;
}

void bench_prompt_fini(struct bench_prompt *p)
{
    mem_free(p->tok);
    mem_free(p->anchor);
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

/* ---- anchors: the tokens of each chunk that QCFuse's question runs over (arXiv 2606.05875) ----
 * As in its code a chunk is asked to be repeated, over its stored KV, and what the repetition
 * attends to most is kept, with the first tokens. That code ranks by layer, by the largest weight
 * of any head and row; here one set serves all layers, by the mean, which is what a pass gives. */

#define ANCHORS 0.15F       /* cited: the code's DIGEST_RATIO */
enum { ANCHORS_FIRST = 4 }; /* cited: its DEFAULT_CONTEXT_N_SINK, here besides the share */

/* ret: the prompt in which the chunk, behind the sink token, is asked for again. */
static int repeat(const struct bench *b, struct bench_text chunk, struct bench_prompt *ret)
{
    static const char ask[] = "\n\nRepeat the previous context exactly.\n\n";
    const struct tok_piece piece = {ask, sizeof ask - 1, false};
    const uint32_t head = b->sink >= 0;
    struct tok_ids ids = {0};
    struct bench_prompt p = {.n_chunks = 1};
    int r = tok_encode(b->tok, &piece, 1, 0, &ids);
    p.chunk[0].tok0 = head;
    p.chunk[0].n = chunk.n;
    p.suffix0 = head + chunk.n;
    p.n_tok = p.suffix0 + (uint32_t)ids.n + chunk.n;
    if (r == 0 && !(p.tok = mem_alloc(p.n_tok * sizeof *p.tok))) r = -ENOMEM;
    if (r == 0) {
        if (head) p.tok[0] = b->sink;
        memcpy(p.tok + head, chunk.tok, chunk.n * sizeof *p.tok);
        memcpy(p.tok + p.suffix0, ids.id, ids.n * sizeof *p.tok);
        memcpy(p.tok + p.n_tok - chunk.n, chunk.tok, chunk.n * sizeof *p.tok);
        *ret = p;
    }
    tok_ids_fini(&ids);
    return r;
}

static int make_anchors(struct bench *b, struct bench_prompt *p)
{
    int r = (p->anchor = mem_zalloc(p->n_tok)) ? 0 : -ENOMEM;
    for (size_t i = 0; r == 0 && i < p->n_chunks; i++) {
        const struct bench_text chunk = bench_chunk(p, i);
        struct bench_prompt again = {0};
        struct bench_result res = {0};
        r = repeat(b, chunk, &again);
        uint8_t *mark = r == 0 ? mem_zalloc(again.n_tok) : NULL;
        const struct bench_run run = {
            .strategy = POL_QUERY, .ratio = ANCHORS, .with = {.score_hi = b->cfg->L}, .mark = mark};
        if (r == 0) r = mark ? bench_prefill(b, &again, &run, 0, &res) : -ENOMEM;
        if (r == 0) {
            memcpy(p->anchor + p->chunk[i].tok0, mark + again.chunk[0].tok0, chunk.n);
            memset(p->anchor + p->chunk[i].tok0, 1,
                   chunk.n < ANCHORS_FIRST ? chunk.n : ANCHORS_FIRST);
        }
        bench_result_fini(&res);
        bench_prompt_fini(&again);
        mem_free(mark);
    }
    return r;
}

/* ---- running ---- */

/* What of the prompt may come from the store, asked for as the worker does: all at once, then
 * settled. Reusing a chunk saves what is not recomputed; a tier slower than that is not asked. A
 * miss leaves its range without a source. */
static int find_ranges(struct bench *b, const struct bench_prompt *p, const struct bench_run *run,
                       struct fus_range *range, size_t n, const char **ret_tier)
{
    const bool prefix = run->strategy == POL_PREFIX;
    const double saved = (double)run->ratio < 0.9 ? 1 - (double)run->ratio : 0.1;
    const uint64_t batch = clock_ns(); /* a number of its own */
    struct store_pin *pin[BENCH_CHUNKS_MAX];
    int got[BENCH_CHUNKS_MAX], r = 0;
    enum store_miss why;
    for (size_t i = 0; i < n; i++) {
        const struct bench_text text = prefix ? prefix_of(p) : bench_chunk(p, i);
        const struct store_ask ask = {.key = bench_key(b, prefix ? TIER_PREFIX : TIER_CHUNK, text),
                                      .tok = text.tok,
                                      .n = text.n,
                                      .batch = batch,
                                      .worth_ms = text.n * b->ms_per_token * saved};
        const uint32_t tok0 = (uint32_t)(text.tok - p->tok);
        range[i] = (struct fus_range){.tok0 = tok0, .n = text.n, .exact = prefix};
        got[i] = store_ask(b->store, &ask, &pin[i], &why);
    }
    for (size_t i = 0; i < n; i++) {
        if (got[i] == STORE_ASKING) got[i] = store_pin_settle(pin[i], 0, &why);
        if (got[i] > 0) {
            range[i].at_built = !prefix && !run->mark && store_pin_contexts(pin[i], NULL) == 0 &&
                                fus_at_built_position(b->sink, p->tok, range[i].tok0);
            ret_tier[i] = store_pin_tier(pin[i]);
            got[i] = rec_source_make(pin[i], &range[i].src);
        }
        if (got[i] == -ENOMEM) r = -ENOMEM;
    }
    return r;
}

static void mark_selected(const struct fus_prefill *f, uint8_t *mark)
{
    size_t n;
    const int32_t *at = fus_prefill_selected(f, &n);
    while (n-- > 0)
        mark[at[n]] = 1;
}

int bench_prefill(struct bench *b, struct bench_prompt *p, const struct bench_run *run,
                  uint32_t extra_tokens, struct bench_result *ret)
{
    int r = run->anchors && !p->anchor ? make_anchors(b, p) : 0;
    if (r < 0) return r;
    const uint64_t t0 = clock_ns();
    struct fus_range range[BENCH_CHUNKS_MAX];
    struct bench_result res = {0};
    struct fus_prefill *f = NULL;
    size_t n = run->strategy == POL_FULL ? 0 : p->n_chunks;
    if (run->strategy == POL_PREFIX && n > 1) n = 1;
    r = find_ranges(b, p, run, range, n, res.tier);
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
        plan.anchor = run->anchors ? p->anchor : NULL;
        fus_profile_apply(&b->profile, &plan);
        r = fus_prefill_begin(res.session, &plan, &f);
    }
    if (r < 0) {
        for (size_t i = 0; i < n; i++)
            if (range[i].src.ops) range[i].src.ops->release(range[i].src.ctx);
        bench_result_fini(&res);
        return r;
    }
    r = fus_prefill_steps(f);
    const float *logits = r == 0 ? fus_prefill_logits(f, &res.n_rows) : NULL;
    if (r == 0) {
        size_t V = b->cfg->V;
        (void)bench_argmax(logits + (res.n_rows - 1) * V, V); /* the first token is out here */
        res.ttft_ms = clock_ms_since(t0);
        res.report = *fus_prefill_report(f);
        if (run->mark) mark_selected(f, run->mark);
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
