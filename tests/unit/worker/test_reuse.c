/* Segments to tokens, and the glue between a real store and the fusor's sources and sinks. */
#include "base/clock.h"
#include "tests/test.h"
#include "tiers/store_write.h"
#include "worker/request/request.h"
#include "worker/reuse/builds.h"
#include "worker/reuse/merge.h"
#include "worker/reuse/namespaces.h"
#include "worker/reuse/records.h"
#include "worker/reuse/reuse.h"
#include "worker/worker.h"

/* ---- bytes to tokens ---- */
TEST(cuts_move_inwards_to_whole_tokens)
{
    /* BOS | [0,3) [3,7) [7,8) [8,12) */
    uint32_t b[] = {0, 0, 3, 7, 8}, e[] = {0, 3, 7, 8, 12};
    int32_t id[] = {1, 2, 3, 4, 5};
    struct tok_ids ids = {id, b, e, 5, 5};
    static const struct {
        size_t begin, end;
        uint32_t tok0, n;
    } t[] = {{0, 12, 1, 4}, {0, 3, 1, 1}, {1, 12, 2, 3},  {3, 11, 2, 2}, {3, 8, 2, 2},
             {4, 6, 3, 0},  {7, 7, 3, 0}, {12, 12, 5, 0}, {0, 2, 1, 0}};

    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        uint32_t tok0 = 99;
        ASSERT_EQ(wk_map_range(&ids, t[i].begin, t[i].end, &tok0), t[i].n);
        ASSERT_EQ(tok0, t[i].tok0);
    }
}

/* Whatever the tokens and the ranges: the tokens found lie within the bytes, and one more on either
 * side would not. */
TEST(cuts_property)
{
    uint64_t seed = 3;

    for (int round = 0; round < 2000; round++) {
        uint32_t b[40], e[40], at = 0, tok0, n;
        int32_t id[40] = {0};
        size_t n_tok = 1 + test_rand(&seed) % 40;
        for (size_t i = 0; i < n_tok; i++) {
            b[i] = at;
            at += (uint32_t)(1 + test_rand(&seed) % 5);
            e[i] = at;
        }
        struct tok_ids ids = {id, b, e, n_tok, 40};
        size_t lo = test_rand(&seed) % (at + 1), hi = lo + test_rand(&seed) % (at + 1 - lo);
        n = wk_map_range(&ids, lo, hi, &tok0);
        ASSERT_TRUE(tok0 + n <= n_tok);
        if (n) ASSERT_TRUE(b[tok0] >= lo && e[tok0 + n - 1] <= hi);
        if (tok0 > 0) ASSERT_TRUE(b[tok0 - 1] < lo);
        if (tok0 + n < n_tok) ASSERT_TRUE(e[tok0 + n] > hi);
    }
}

TEST(a_body_stays_within_its_gateways_namespace)
{
    char a[64], b[64];

    ASSERT_OK(wk_ns_join(a, sizeof a, "tenant", NULL));
    ASSERT_STREQ(a, "tenant");
    ASSERT_OK(wk_ns_join(a, sizeof a, "tenant", "x"));
    ASSERT_OK(wk_ns_join(b, sizeof b, "tenantx", NULL));
    ASSERT_TRUE(strcmp(a, b) != 0);
    ASSERT_OK(wk_ns_join(a, sizeof a, NULL, NULL));
    ASSERT_STREQ(a, "");
    ASSERT_ERR(wk_ns_join(a, 8, "tenant", "x2"), -ERANGE);
}

/* ---- store glue ---- */
enum { L = 3, G = 2, K = 4, N = 100, ROW = G * K };

struct kit {
    struct worker w;
    struct kn_dev *dev;
};

static void kit_open(struct kit *k, enum kn_dtype dtype)
{
    struct err err = {0};
    struct kn_dev_opts d = {.n_threads = 2, .gemm = "own-f32"};
    struct store_opts o = {.ram_bytes = 4 << 20};

    memset(k, 0, sizeof *k);
    ASSERT_OK(kn_dev_create(&d, &k->dev, &err));
    k->w.ident = (struct tier_ident){.model = {1, 2}, .dtype = dtype, .L = L, .G = G, .K = K};
    o.ident = k->w.ident;
    ASSERT_OK(store_create(&o, &k->w.store, &err));
    ASSERT_OK(wk_builds_create(&k->w, NULL));
    k->w.blend_ok = true;
    k->w.o.strategy = POL_QUERY;
    k->w.o.ratio = 0.1;
}

static void kit_close(struct kit *k)
{
    store_destroy(k->w.store);
    kn_dev_destroy(k->dev);
    wk_builds_destroy(&k->w);
}

static float value(unsigned layer, size_t row, size_t i, bool v)
{
    return (float)layer + (float)row / 64 + (float)i / 4 + (v ? 0.5f : 0);
}

struct feed {
    struct kv_sink *sink;
    unsigned layer;
    size_t ld;
    float add; /* to the values of odd rows */
};

/* Rows come from pool threads in blocks, with a stride wider than the row. */
static int feed_rows(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    const struct feed *f = arg;
    float k[N * (ROW + 3)], v[N * (ROW + 3)];

    for (size_t r = 0; r < n; r++)
        for (size_t i = 0; i < ROW; i++) {
            const float add = (row0 + r) % 2 ? f->add : 0;
            k[r * f->ld + i] = value(f->layer, row0 + r, i, false) + add;
            v[r * f->ld + i] = value(f->layer, row0 + r, i, true) + add;
        }
    const struct kv_rows rows = {st, f->layer, row0, n, k, v, f->ld};
    return f->sink->ops->rows(f->sink->ctx, &rows);
}

static void build(struct kit *k, enum tier_kind kind, const struct tier_key *key,
                  const int32_t *tok, uint32_t n, size_t ld, int status)
{
    struct store_writer *w;
    struct kv_sink sink;
    int got = 1;

    ASSERT_EQ(store_claim(k->w.store, &(struct store_new){kind, *key, "", tok, n}, &w), 1);
    ASSERT_OK(rec_sink_make(w, &k->w.ident, n, &got, &sink));
    for (unsigned l = 1; l < L; l++) {
        struct feed f = {&sink, l, ld, 0};
        ASSERT_OK(kn_rows(k->dev, n, NULL, feed_rows, &f));
    }
    sink.ops->done(sink.ctx, status);
    ASSERT_EQ(got, status);
}

static void check_source(struct kit *k, const struct kv_source *src, uint32_t n)
{
    for (unsigned l = 1; l < L; l++) {
        struct kv_layer y;
        ASSERT_OK(src->ops->layer(src->ctx, l, &y));
        ASSERT_EQ(y.dtype, k->w.ident.dtype);
        for (size_t r = 0; r < n; r++)
            for (size_t i = 0; i < ROW; i++) {
                /* Every value is a small multiple of 1/64: exact in f16 as well. */
                float fk, fv;
                if (y.dtype == KN_F32) {
                    fk = ((const float *)y.k)[r * ROW + i];
                    fv = ((const float *)y.v)[r * ROW + i];
                } else {
                    fk = (float)((const _Float16 *)y.k)[r * ROW + i];
                    fv = (float)((const _Float16 *)y.v)[r * ROW + i];
                }
                ASSERT_EQ(fk * 64, value(l, r, i, false) * 64);
                ASSERT_EQ(fv * 64, value(l, r, i, true) * 64);
            }
    }
}

static void tokens(int32_t *tok, size_t n, int32_t first)
{
    for (size_t i = 0; i < n; i++)
        tok[i] = first + (int32_t)i;
}

TEST(what_goes_into_a_sink_comes_out_of_a_source)
{
    static const enum kn_dtype types[] = {KN_F32, KN_F16};

    for (size_t t = 0; t < 2; t++)
        for (size_t ld = ROW; ld <= ROW + 3; ld += 3) {
            struct kit k;
            int32_t tok[N];
            struct store_pin *pin;
            struct kv_source src;
            enum store_miss why;
            kit_open(&k, types[t]);
            tokens(tok, N, 5);
            struct tier_key key = tier_key_chunk(&k.w.ident, "", tok, N);
            build(&k, TIER_CHUNK, &key, tok, N, ld, 0);
            ASSERT_EQ(store_lookup(k.w.store, &key, tok, N, &pin, &why), 1);
            ASSERT_OK(rec_source_make(pin, &src));
            check_source(&k, &src, N);
            src.ops->release(src.ctx);
            kit_close(&k);
        }
}

TEST(an_aborted_sink_leaves_nothing)
{
    struct kit k;
    int32_t tok[N];

    kit_open(&k, KN_F16);
    tokens(tok, N, 5);
    struct tier_key key = tier_key_chunk(&k.w.ident, "", tok, N);
    build(&k, TIER_CHUNK, &key, tok, N, ROW, -ECANCELED);
    ASSERT_TRUE(!store_probe(k.w.store, &key));
    kit_close(&k);
}

/* ---- merging ---- */
enum { SIDE = 2 }; /* the layer whose K no merge changes */

static void encode(struct kit *k, struct rec_merge *m, float add, bool last, int status, int *ret)
{
    struct kv_sink sink = rec_merge_sink(m, 1000, last, ret);

    for (unsigned l = 0; l < L; l++) {
        struct feed f = {&sink, l, ROW + 3, add};
        (void)kn_rows(k->dev, N, NULL, feed_rows, &f); /* refused where one before has failed */
    }
    sink.ops->done(sink.ctx, status);
}

/* The record of the key: odd rows are `add` above the values, and that is how the scores are. */
static void check_merged(struct kit *k, const struct tier_key *key, const int32_t *tok, float add,
                         const float *score, uint32_t n_contexts)
{
    struct store_pin *pin;
    enum store_miss why;
    float got[N];

    ASSERT_EQ(store_lookup(k->w.store, key, tok, N, &pin, &why), 1);
    for (unsigned l = 1; l < L; l++) {
        const void *kk, *vv;
        ASSERT_OK(store_pin_layer(pin, l, &kk, &vv));
        for (size_t r = 0; r < N; r++)
            for (size_t i = 0; i < ROW; i++) {
                const float more = r % 2 ? add : 0, k_more = l == SIDE ? 0 : more;
                ASSERT_NEAR(((const float *)kk)[r * ROW + i], value(l, r, i, false) + k_more, 1e-5);
                ASSERT_NEAR(((const float *)vv)[r * ROW + i], value(l, r, i, true) + more, 1e-5);
            }
    }
    ASSERT_EQ(store_pin_scores(pin, got), n_contexts > 0);
    uint32_t behind;
    ASSERT_EQ(store_pin_contexts(pin, &behind), n_contexts);
    ASSERT_EQ(behind, 1000 * n_contexts);
    for (size_t r = 0; r < N && n_contexts > 0; r++)
        ASSERT_NEAR(got[r], score[r], 1e-5 * (1 + score[r]));
    store_pin_release(pin);
}

/* How far an encoding is from a mean that lies `apart` from it: of the first layer alone, as L/2
 * has it. */
static float distance(size_t r, float add, float apart)
{
    double sum = 0;

    for (int v = 0; v < 2 && r % 2; v++) {
        double length = 0;
        for (size_t i = 0; i < ROW; i++)
            length += pow(value(1, r, i, v) + add, 2);
        sum += sqrt(ROW * pow(apart, 2) / length);
    }
    return (float)sum;
}

TEST(a_merged_record_is_the_mean_and_knows_what_differed)
{
    struct kit k;
    struct rec_merge *m;
    int32_t tok[N];
    float score[N];
    int got = 1;

    kit_open(&k, KN_F32);
    tokens(tok, N, 5);
    struct tier_key key = tier_key_chunk(&k.w.ident, "", tok, N);
    ASSERT_EQ(rec_merge_begin(k.w.store, &key, SIDE, &m), 0); /* there is no record */
    build(&k, TIER_CHUNK, &key, tok, N, ROW, 0);
    ASSERT_EQ(rec_merge_begin(k.w.store, &key, SIDE, &m), 1);
    encode(&k, m, 3, false, 0, NULL);
    check_merged(&k, &key, tok, 0, NULL, 0); /* the old version until the new one is whole */
    encode(&k, m, 6, true, 0, &got);
    ASSERT_EQ(got, 0);
    for (size_t r = 0; r < N; r++) /* 3 in a mean of 1.5, then 6 in one of 3 */
        score[r] = fmaxf(distance(r, 3, 1.5f), distance(r, 6, 3));
    check_merged(&k, &key, tok, 3, score, 2);

    ASSERT_EQ(rec_merge_begin(k.w.store, &key, SIDE, &m), 1); /* a third context, another time */
    encode(&k, m, 7, true, 0, &got);
    for (size_t r = 0; r < N; r++)
        score[r] = fmaxf(score[r], distance(r, 7, 3));
    check_merged(&k, &key, tok, 4, score, 3);
    kit_close(&k);
}

TEST(a_merge_that_fails_leaves_the_record)
{
    struct kit k;
    struct rec_merge *m;
    int32_t tok[N];
    int got;

    kit_open(&k, KN_F32);
    tokens(tok, N, 5);
    struct tier_key key = tier_key_chunk(&k.w.ident, "", tok, N);
    build(&k, TIER_CHUNK, &key, tok, N, ROW, 0);
    for (int bad = 0; bad < 3;
         bad++) { /* the first encoding, the last one, given up between them */
        ASSERT_EQ(rec_merge_begin(k.w.store, &key, SIDE, &m), 1);
        encode(&k, m, 3, false, bad == 0 ? -EIO : 0, NULL);
        got = 1;
        if (bad == 2)
            rec_merge_abort(m);
        else
            encode(&k, m, 6, true, bad == 1 ? -ECANCELED : 0, &got);
        ASSERT_EQ(got, bad == 0 ? -EIO : bad == 1 ? -ECANCELED : 1);
        check_merged(&k, &key, tok, 0, NULL, 0);
    }
    kit_close(&k);
}

/* ---- the plan ---- */
/* 200 tokens: preamble 70, chunks of 50 at 70 and 120, suffix 30. */
static void prompt_make(struct kit *k, struct wk_prompt *p, int32_t *tok, bool whole)
{
    memset(p, 0, sizeof *p);
    tokens(tok, 200, 1000);
    p->tok = tok;
    p->n_tok = 200;
    p->n_cut = 2;
    p->cut = mem_zalloc(2 * sizeof *p->cut);
    p->block = mem_zalloc(3 * sizeof *p->block);
    ASSERT_TRUE(p->cut && p->block);
    for (uint32_t i = 0; i < 2; i++) {
        p->cut[i] = (struct wk_cut){.tok0 = 70 + 50 * i, .n = 50, .detector = "parts"};
        p->cut[i].key = tier_key_chunk(&k->w.ident, "", tok + p->cut[i].tok0, 50);
    }
    for (uint32_t i = 1; i <= (whole ? 3u : 1u); i++)
        wk_block_add(p, &k->w.ident, "", 64 * i);
}

static void plan_end(struct fus_plan *f, void *arrays, int status)
{
    for (size_t i = 0; i < f->n_range; i++)
        if (f->range[i].src.ops) f->range[i].src.ops->release(f->range[i].src.ctx);
    for (size_t i = 0; i < f->n_capture; i++)
        f->capture[i].sink.ops->done(f->capture[i].sink.ctx, status);
    mem_free(arrays);
}

TEST(a_cold_plan_computes_and_captures_the_preamble)
{
    struct kit k;
    struct wk_prompt p;
    struct api_settings m = {.ns = "", .strategy = POL_AUTO, .ratio = 0.1, .store = true};
    struct fus_plan f = {0};
    int32_t tok[200];
    uint32_t captured;
    void *arrays;

    kit_open(&k, KN_F16);
    prompt_make(&k, &p, tok, false);
    ASSERT_OK(wk_plan(&k.w, &p, &m, &f, &arrays, &captured));
    ASSERT_EQ(f.strategy, POL_FULL);
    ASSERT_EQ(f.n_range, 0);
    ASSERT_EQ(f.n_capture, 1);
    ASSERT_EQ(captured, 64);
    ASSERT_TRUE(p.cut[0].missed && p.cut[0].lookup.why == STORE_MISS_NEVER);
    ASSERT_EQ(p.cut[1].source, WK_COMPUTED);
    plan_end(&f, arrays, -ECANCELED);
    m.store = false;
    f = (struct fus_plan){0};
    ASSERT_OK(wk_plan(&k.w, &p, &m, &f, &arrays, &captured));
    ASSERT_EQ(f.n_capture, 0);
    plan_end(&f, arrays, 0);
    wk_prompt_fini(&p);
    kit_close(&k);
}

TEST(hits_and_misses_of_a_warm_plan)
{
    struct kit k;
    struct wk_prompt p;
    struct fus_plan f = {0};
    int32_t tok[200];
    uint32_t captured;
    void *arrays;
    static const struct {
        enum pol_strategy mode;
        enum pol_strategy want;
        size_t n_range;
    } t[] = {{POL_AUTO, POL_PREFIX, 1},
             {POL_BLEND, POL_QUERY, 3},
             {POL_REUSE, POL_REUSE, 3},
             {POL_PREFIX, POL_PREFIX, 1},
             {POL_FULL, POL_FULL, 0}};

    kit_open(&k, KN_F16);
    prompt_make(&k, &p, tok, false);
    build(&k, TIER_PREFIX, &p.block[0].key, tok, 64, ROW, 0);
    build(&k, TIER_CHUNK, &p.cut[1].key, tok + 120, 50, ROW, 0);
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct api_settings m = {.ns = "", .strategy = t[i].mode, .ratio = 0.25, .store = true};
        f = (struct fus_plan){0};
        ASSERT_OK(wk_plan(&k.w, &p, &m, &f, &arrays, &captured));
        ASSERT_EQ(f.strategy, t[i].want);
        ASSERT_EQ(f.n_range, t[i].n_range);
        ASSERT_EQ(captured, 0);
        if (t[i].n_range == 3) {
            ASSERT_TRUE(f.range[0].exact && f.range[0].src.ops && f.range[0].n == 64);
            ASSERT_TRUE(!f.range[1].src.ops && f.range[1].tok0 == 70);
            ASSERT_TRUE(f.range[2].src.ops && !f.range[2].exact && f.range[2].tok0 == 120);
            ASSERT_EQ(p.cut[1].source, WK_STORED);
            ASSERT_TRUE(p.cut[0].missed);
            ASSERT_EQ(f.suffix, 30);
            ASSERT_NEAR(f.ratio, t[i].want == POL_QUERY ? 0.25 : 0, 1e-6);
        } else {
            ASSERT_EQ(p.cut[1].source, WK_COMPUTED);
        }
        plan_end(&f, arrays, 0);
    }
    wk_prompt_fini(&p);
    kit_close(&k);
}

TEST(prefix_mode_reuses_the_whole_chain)
{
    struct kit k;
    struct wk_prompt p;
    struct api_settings m = {.ns = "", .strategy = POL_PREFIX, .store = true};
    struct fus_plan f = {0};
    int32_t tok[200];
    uint32_t captured;
    void *arrays;

    kit_open(&k, KN_F32);
    prompt_make(&k, &p, tok, true);
    build(&k, TIER_PREFIX, &p.block[0].key, tok, 64, ROW, 0);
    build(&k, TIER_PREFIX, &p.block[1].key, tok + 64, 64, ROW, 0);
    ASSERT_OK(wk_plan(&k.w, &p, &m, &f, &arrays, &captured));
    ASSERT_EQ(f.strategy, POL_PREFIX);
    ASSERT_EQ(f.n_range, 2);
    ASSERT_EQ(f.n_capture, 1); /* the third block */
    ASSERT_EQ(f.capture[0].tok0, 128);
    ASSERT_EQ(p.cut[0].source, WK_PREFIX);
    ASSERT_EQ(p.cut[1].source, WK_COMPUTED);
    plan_end(&f, arrays, -ECANCELED);
    wk_prompt_fini(&p);
    kit_close(&k);
}

/* Blocks of whatever lengths stand end to end; what is not here is taken out of the prefill. */
TEST(blocks_have_lengths_of_their_own)
{
    static const uint32_t ends[] = {45, 150, 170};
    struct kit k;
    struct wk_prompt p = {.n_tok = 200};
    struct api_settings m = {.ns = "", .strategy = POL_PREFIX, .store = true};
    struct fus_plan f = {0};
    int32_t tok[200];
    uint32_t captured;
    void *arrays;

    kit_open(&k, KN_F32);
    tokens(tok, 200, 1000);
    p.tok = tok;
    p.block = mem_zalloc(3 * sizeof *p.block);
    ASSERT_TRUE(p.block != NULL);
    for (size_t i = 0; i < 3; i++)
        wk_block_add(&p, &k.w.ident, "", ends[i]);
    build(&k, TIER_PREFIX, &p.block[0].key, tok, 45, ROW, 0);
    ASSERT_OK(wk_plan(&k.w, &p, &m, &f, &arrays, &captured));
    ASSERT_TRUE(f.n_range == 1 && f.range[0].exact);
    ASSERT_TRUE(f.range[0].tok0 == 0 && f.range[0].n == 45);
    ASSERT_EQ(f.n_capture, 2);
    ASSERT_TRUE(f.capture[0].tok0 == 45 && f.capture[0].n == 105);
    ASSERT_TRUE(f.capture[1].tok0 == 150 && f.capture[1].n == 20);
    ASSERT_EQ(captured, 125);
    plan_end(&f, arrays, -ECANCELED);
    wk_prompt_fini(&p);
    kit_close(&k);
}

TEST(a_failed_self_test_means_exact)
{
    struct kit k;
    struct wk_prompt p;
    struct fus_plan f = {0};
    int32_t tok[200];
    uint32_t captured;
    void *arrays;

    kit_open(&k, KN_F16);
    prompt_make(&k, &p, tok, false);
    build(&k, TIER_CHUNK, &p.cut[0].key, tok + 70, 50, ROW, 0);
    build(&k, TIER_CHUNK, &p.cut[1].key, tok + 120, 50, ROW, 0);
    k.w.blend_ok = false;
    for (int wish = POL_FULL; wish <= POL_BLEND; wish++) {
        struct api_settings m = {.ns = "", .strategy = (enum pol_strategy)wish, .ratio = 0.1};
        f = (struct fus_plan){0};
        ASSERT_OK(wk_plan(&k.w, &p, &m, &f, &arrays, &captured));
        ASSERT_EQ(f.strategy, POL_FULL);
        ASSERT_EQ(f.n_range, 0);
        plan_end(&f, arrays, 0);
    }
    wk_prompt_fini(&p);
    kit_close(&k);
}

struct held {
    uint32_t n_tok, n_prefix, n_hit, n_suffix;
};

static enum pol_strategy decide(struct kit *k, const struct api_settings *m, const struct held *h,
                                double *ret_ratio)
{
    struct wk_cut cut = {.tok0 = h->n_tok - h->n_suffix - h->n_hit, .n = h->n_hit};
    struct wk_prompt p = {.n_tok = h->n_tok, .cut = &cut, .n_cut = 1};
    struct ctl_decision *d = wk_decision_create(&k->w, &p);

    ASSERT_TRUE(d);
    d->chunk[0].tier = 0;
    d->in.n_prefix = h->n_prefix;
    wk_decide(&k->w, m, NULL, d);
    enum pol_strategy s = d->out.strategy;
    *ret_ratio = d->out.ratio;
    ASSERT_EQ(d->by, CTL_BY_RULES); /* there is no controller here */
    ASSERT_EQ(d->reuse[0], s != POL_FULL && s != POL_PREFIX);
    ctl_decision_free(d);
    return s;
}

/* The worker's settings and names reach the decider and come back. */
TEST(decisions)
{
    struct kit k;
    double ratio;
    struct held held = {1000, 0, 100, 10};
    struct api_settings m = {.ns = "", .strategy = POL_AUTO, .ratio = -1};

    kit_open(&k, KN_F16);
    k.w.o.ratio = 0.2;
    ASSERT_EQ(decide(&k, &m, &held, &ratio), POL_FULL); /* too little to gain */
    held.n_prefix = 64;
    ASSERT_EQ(decide(&k, &m, &held, &ratio), POL_PREFIX);
    held.n_hit = 800;
    ASSERT_EQ(decide(&k, &m, &held, &ratio), POL_QUERY);
    ASSERT_NEAR(ratio, 0.2, 1e-9);
    m.ratio = 0.3;
    held.n_suffix = 0;
    ASSERT_EQ(decide(&k, &m, &held, &ratio), POL_HKVD);
    ASSERT_NEAR(ratio, 0.3, 1e-9);
    m.strategy = POL_BLEND;
    held = (struct held){1000, 0, 20, 10};
    m.ratio = 1;
    for (int s = POL_REUSE; s < POL_STRATEGY_COUNT; s++) {
        m.strategy = (enum pol_strategy)s;
        ASSERT_EQ(decide(&k, &m, &held, &ratio), (enum pol_strategy)s);
        ASSERT_NEAR(ratio, s == POL_REUSE ? 0 : 1, 1e-9);
    }
    m.strategy = POL_BLEND;
    k.w.o.strategy = POL_SINK;
    ASSERT_EQ(decide(&k, &m, &held, &ratio), POL_SINK);
    kit_close(&k);
}

/* A mode that leaves nothing to choose goes before a strategy. */
TEST(mode_and_strategy_are_one_setting)
{
    static const struct {
        enum pol_strategy mode, want, strategy;
    } t[] = {{POL_AUTO, POL_FULL, POL_FULL},      {POL_AUTO, POL_PREFIX, POL_PREFIX},
             {POL_AUTO, POL_REUSE, POL_REUSE},    {POL_BLEND, POL_PREFIX, POL_PREFIX},
             {POL_AUTO, POL_HKVD, POL_HKVD},      {POL_BLEND, POL_QUERY, POL_QUERY},
             {POL_PREFIX, POL_PREFIX, POL_REUSE}, {POL_FULL, POL_FULL, POL_QUERY},
             {POL_AUTO, POL_AUTO, POL_AUTO},      {POL_BLEND, POL_BLEND, POL_AUTO}};
    static const struct wk_hints none = {0};
    struct worker w = {0};

    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        struct api_req r = {.kv = {.mode = t[i].mode, .strategy = t[i].strategy, .ratio = -1}};
        struct api_err e;
        arena_init(&r.arena);
        ASSERT_OK(wk_settings(&w, &r, &none, &e));
        ASSERT_EQ(r.kv.strategy, t[i].want);
        ASSERT_EQ(r.kv.mode, t[i].mode);
        ASSERT_NEAR(r.kv.ratio, -1, 0);
        ASSERT_STREQ(r.kv.ns, "");
        arena_fini(&r.arena);
    }
}
