/* Whole models with weights of 8 bits, or of a file's 4, on the emulation of a GPU: blends stay
 * exact where they must be, answers stay close; how many launches and waits a layer costs, and
 * decode steps that are played from a recording. */
#include "base/mem.h"
#include "fusor/core/core_int.h"
#include "tests/test.h"
#include "tests/unit/fusor/blend_kit.h"

#include <dlfcn.h>

enum { V = 96, CHUNK = 40, PARTS = 3, PROMPT = 1 + CHUNK + 9 };
static const char *const kinds[] = {"fp8", "int8", "file"};
enum { KINDS = 3, FILE_KIND = 2 };
static const struct model_experts mixture = {8, 3, 32, 16, true}; /* with a shared one */

static void open_with(struct kit *k, const char *weights, const struct tiny_opts *o)
{
    ASSERT_OK(setenv("KVBLEND_TEST_WEIGHTS", weights, 1));
    kit_open(k, o, 64 * 16);
    ASSERT_OK(unsetenv("KVBLEND_TEST_WEIGHTS"));
}

struct prompt {
    int32_t tok[PROMPT];
    struct kit_chunk chunk;
};

static void prompt_init(struct kit *k, struct prompt *p)
{
    kit_tokens(k, 5, p->tok, PROMPT);
    kit_chunk_init(&p->chunk, k->cfg, CHUNK);
    kit_build(k, p->tok[0], p->tok + 1, &p->chunk);
}

static void run(struct kit *k, struct prompt *p, enum pol_strategy s, float ratio, float logits[V])
{
    struct fus_range range[PARTS]; /* the chunk's start again and again */
    for (uint32_t i = 0; i < PARTS; i++)
        range[i] = (struct fus_range){
            .tok0 = 1 + i * (CHUNK / PARTS), .n = CHUNK / PARTS, .src = kit_source(&p->chunk)};
    const struct fus_plan plan = {.tok = p->tok,
                                  .n_tok = PROMPT,
                                  .range = range,
                                  .n_range = PARTS,
                                  .strategy = s,
                                  .ratio = ratio};
    struct fus_session *session = NULL;
    struct fus_prefill *f = NULL;
    size_t rows = 0;
    ASSERT_OK(fus_session_create(k->c, PROMPT + 4, &session));
    ASSERT_OK(fus_prefill_begin(session, &plan, &f));
    ASSERT_OK(fus_prefill_steps(f));
    memcpy(logits, fus_prefill_logits(f, &rows), V * sizeof *logits);
    ASSERT_EQ(rows, 1);
    fus_prefill_end(f);
    const int32_t next = 7;
    float after[V];
    ASSERT_OK(fus_decode(k->c, &session, &next, 1, NULL, after));
    for (unsigned i = 0; i < V; i++)
        ASSERT_TRUE(isfinite(after[i]));
    fus_session_destroy(session);
}

TEST(ratio_one_equals_full_bit_for_bit)
{
    static const enum pol_strategy blends[] = {POL_HKVD, POL_QUERY};
    for (size_t i = 0; i < 2 * KINDS; i++) {
        struct tiny_opts o = {.L = 4, .qkv_bias = true, .q4 = i % KINDS == FILE_KIND};
        struct kit k;
        struct prompt p;
        float full[V], got[V];
        if (i >= KINDS) o.experts = mixture;
        open_with(&k, kinds[i % KINDS], &o);
        prompt_init(&k, &p);
        run(&k, &p, POL_FULL, 0, full);
        for (size_t b = 0; b < 2; b++) {
            run(&k, &p, blends[b], 1, got);
            ASSERT_MEMEQ(got, full, sizeof full);
        }
        kit_chunk_fini(&p.chunk);
        kit_close(&k);
    }
}

/* Logits behind the tokens, by a full prefill. */
static void full(struct kit *k, const int32_t *tok, float logits[V])
{
    const struct fus_plan plan = {.tok = tok, .n_tok = PROMPT};
    struct fus_session *s = NULL;
    struct fus_prefill *f = NULL;
    size_t rows = 0;
    ASSERT_OK(fus_session_create(k->c, PROMPT, &s));
    ASSERT_OK(fus_prefill_begin(s, &plan, &f));
    ASSERT_OK(fus_prefill_steps(f));
    memcpy(logits, fus_prefill_logits(f, &rows), V * sizeof *logits);
    fus_prefill_end(f);
    fus_session_destroy(s);
}

/* One layer of these random weights, whose attention is peaked, makes of a product's error (0.037
 * of its length in fp8, 0.0055 in int8: test_quant) about 0.10 and 0.022 of the logits' by a
 * simulation in double precision; twice that passes. Codes are multiplied as they are (2^-4 times
 * 4 bits are exact in bf16), so of 16 bits' error the activations' alone is left. */
TEST(answers_stay_close)
{
    static const double within[] = {0.2, 0.044, 0.02};
    enum { PROMPTS = 6 };
    for (size_t i = 0; i < KINDS; i++) {
        const struct tiny_opts o = {.L = 1, .D = 64, .F = 160, .q4 = i == FILE_KIND};
        struct kit k;
        double off = 0;
        open_with(&k, kinds[i], &o);
        for (uint64_t seed = 1; seed <= PROMPTS; seed++) {
            int32_t tok[PROMPT];
            float got[V];
            double ref[V], d2 = 0, r2 = 0;
            kit_tokens(&k, seed, tok, PROMPT);
            full(&k, tok, got);
            ref_forward(k.m, tok, PROMPT, NULL, ref);
            for (unsigned v = 0; v < V; v++) {
                d2 += ((double)got[v] - ref[v]) * ((double)got[v] - ref[v]);
                r2 += ref[v] * ref[v];
            }
            off += sqrt(d2 / r2) / PROMPTS;
        }
        kit_close(&k);
        if (!(off < within[i])) test_fail(__FILE__, __LINE__, "%s: off by %g", kinds[i], off);
    }
}

/* What the file has in codes of 4 bits takes those, experts too, whatever the prompt's rows; head
 * and embeddings do not. Logits are those of 16 bits, but for the order of sums. */
TEST(a_file_of_codes_stays_in_them)
{
    for (size_t mixed = 0; mixed < 2; mixed++) {
        struct tiny_opts o = {.L = 2, .D = 64, .F = 160, .q4 = true};
        struct kit k, plain;
        int32_t tok[PROMPT];
        float got[V], want[V];
        double d2 = 0, r2 = 0;
        if (mixed) o.experts = (struct model_experts){4, 2, 64, 32, true};
        open_with(&k, "file", &o);
        open_with(&plain, "bf16", &o);
        const struct fus_layer *l = &k.c->layer[1], *of_16 = &plain.c->layer[1];
        ASSERT_EQ(kn_mat_bytes(of_16->o.w), 64 * 64 * 2);
        ASSERT_EQ(kn_mat_bytes(l->o.w), 64 * 128 * 9 / 16); /* columns are filled up to 128 */
        ASSERT_TRUE(kn_mat_bytes(l->qkv.w) < kn_mat_bytes(of_16->qkv.w));
        ASSERT_EQ(kn_mat_bytes(k.c->lm_head.w), kn_mat_bytes(plain.c->lm_head.w));
        if (mixed) ASSERT_EQ(kn_mat_bytes(l->moe.down[3]), 64 * 128 * 9 / 16);
        kit_tokens(&k, 9, tok, PROMPT);
        full(&k, tok, got);
        full(&plain, tok, want);
        for (unsigned v = 0; v < V; v++) {
            d2 += pow((double)got[v] - (double)want[v], 2);
            r2 += pow((double)want[v], 2);
        }
        ASSERT_TRUE(d2 <= 1e-4 * r2); /* within a bf16's rounding, here and there another one */
        kit_close(&k);
        kit_close(&plain);
    }
}

/* ---- launches and waits ---- */

struct counts {
    unsigned long launches, waits;
};

/* A function of the emulation's own. */
static void *hook(const char *name)
{
    char path[4096];
    if (strcmp(getenv("KVBLEND_TEST_DEVICE"), "hostcuda") != 0)
        SKIP("about the emulation of a GPU");
    snprintf(path, sizeof path, "%s/libkn_hostcuda.so", getenv("KVBLEND_KERNELS_DIR"));
    void *lib = dlopen(path, RTLD_NOW), *fn = lib ? dlsym(lib, name) : NULL;
    ASSERT_TRUE(fn != NULL);
    return fn;
}

static struct counts now(void)
{
    struct counts c;
    void (*fn)(unsigned long *, unsigned long *) = NULL;
    *(void **)&fn = hook("hostcuda_counts");
    fn(&c.launches, &c.waits);
    return c;
}

/* Of a full prefill and of one decode step by a model of L layers. */
static void count(const char *weights, unsigned L, bool mixed, struct counts *ret_prefill,
                  struct counts *ret_decode)
{
    struct tiny_opts o = {.L = L, .q4 = strcmp(weights, "file") == 0};
    if (mixed) o.experts = (struct model_experts){8, 3, 32, 0, true};
    struct kit k;
    int32_t tok[PROMPT];
    struct fus_session *s = NULL;
    struct fus_prefill *f = NULL;
    float logits[V];
    open_with(&k, weights, &o);
    kit_tokens(&k, 5, tok, PROMPT);
    const struct fus_plan plan = {.tok = tok, .n_tok = PROMPT};
    ASSERT_OK(fus_session_create(k.c, PROMPT + 4, &s));
    ASSERT_OK(fus_prefill_begin(s, &plan, &f));
    const struct counts c0 = now();
    ASSERT_OK(fus_prefill_steps(f));
    const struct counts c1 = now();
    fus_prefill_end(f);
    const struct counts c2 = now();
    ASSERT_OK(fus_decode(k.c, &s, tok, 1, NULL, logits));
    const struct counts c3 = now();
    *ret_prefill = (struct counts){c1.launches - c0.launches, c1.waits - c0.waits};
    *ret_decode = (struct counts){c3.launches - c2.launches, c3.waits - c2.waits};
    fus_session_destroy(s);
    kit_close(&k);
}

/* kernels/README.md says these numbers; a layer more is what is counted. */
static void check_layer(const char *weights, bool mixed, unsigned long prefill,
                        unsigned long decode)
{
    struct counts p3, p5, d3, d5;
    count(weights, 3, mixed, &p3, &d3);
    count(weights, 5, mixed, &p5, &d5);
    ASSERT_EQ(p5.launches - p3.launches, 2 * prefill);
    ASSERT_EQ(p5.waits - p3.waits, 2);
    ASSERT_EQ(d5.launches - d3.launches, 2 * decode);
    ASSERT_EQ(d5.waits - d3.waits, 0);
}

TEST(a_layer_takes_so_many_launches_and_one_wait)
{
    check_layer("bf16", false, 9, 9);
    check_layer("fp8", false, 10, 10);
    check_layer("int8", false, 14, 14); /* one more for each product: it is scaled behind it */
    check_layer("file", false, 9, 9);   /* of few rows, and of one form */
}

TEST(a_layer_of_experts_takes_so_many_launches_and_one_wait)
{
    check_layer("bf16", true, 13, 13);
    check_layer("fp8", true, 14, 14);
    check_layer("int8", true, 16, 16);
}

/* Of a blend that recomputes nothing, so each layer's KV is brought. */
static struct counts count_reuse(unsigned L)
{
    const struct tiny_opts o = {.L = L};
    struct kit k;
    struct prompt p;
    float logits[V];
    open_with(&k, "bf16", &o);
    prompt_init(&k, &p);
    const struct counts a = now();
    run(&k, &p, POL_REUSE, 0, logits);
    const struct counts b = now();
    kit_chunk_fini(&p.chunk);
    kit_close(&k);
    return (struct counts){b.launches - a.launches, b.waits - a.waits};
}

TEST(a_layer_of_stored_kv_is_waited_for_with_the_layer)
{
    const struct counts c3 = count_reuse(3), c5 = count_reuse(5);
    ASSERT_EQ(c5.waits - c3.waits, 2);
    ASSERT_EQ(c5.launches - c3.launches, 2 * (9 + 1 + 9)); /* one load; a decode step behind it */
}

/* Of a chunk's build into pinned memory, which is the same KV as in pageable memory. */
static struct counts count_build(unsigned L)
{
    const struct tiny_opts o = {.L = L};
    struct kit k;
    struct prompt p;
    struct kit_chunk pinned;
    open_with(&k, "bf16", &o);
    prompt_init(&k, &p);
    kit_chunk_init(&pinned, k.cfg, CHUNK);
    const size_t layer = (size_t)CHUNK * k.cfg->G * k.cfg->K, bytes = L * layer * sizeof(float);
    float *const own[2] = {pinned.k, pinned.v};
    pinned.k = kn_mem_alloc(k.c->dev, KN_MEM_HOST, bytes);
    pinned.v = kn_mem_alloc(k.c->dev, KN_MEM_HOST, bytes);
    ASSERT_TRUE(pinned.k && pinned.v);
    const struct counts a = now();
    kit_build(&k, p.tok[0], p.tok + 1, &pinned);
    const struct counts b = now();
    ASSERT_MEMEQ(pinned.k + layer, p.chunk.k + layer, bytes - layer * sizeof(float));
    ASSERT_MEMEQ(pinned.v + layer, p.chunk.v + layer, bytes - layer * sizeof(float));
    kn_mem_free(k.c->dev, pinned.k);
    kn_mem_free(k.c->dev, pinned.v);
    pinned.k = own[0], pinned.v = own[1];
    kit_chunk_fini(&pinned);
    kit_chunk_fini(&p.chunk);
    kit_close(&k);
    return (struct counts){b.launches - a.launches, b.waits - a.waits};
}

TEST(kv_that_leaves_is_not_waited_for)
{
    const struct counts c3 = count_build(3), c5 = count_build(5);
    ASSERT_EQ(c5.waits - c3.waits, 2);
    ASSERT_EQ(c5.launches - c3.launches, 2 * 13); /* both halves apart, and K and V encoded */
}

struct traffic {
    unsigned long copies, blocks;
};

static struct traffic traffic(void)
{
    struct traffic t;
    void (*fn)(unsigned long *, unsigned long *) = NULL;
    *(void **)&fn = hook("hostcuda_traffic");
    fn(&t.copies, &t.blocks);
    return t;
}

/* Memory that both sides touch moves to and fro, or is read over the bus: a prefill's kernels have
 * none but the word by which they say that a position is wrong, whatever is chosen by what. The
 * copies that they have instead are made when rows change, not in each layer. */
TEST(kernels_read_copies_of_what_the_host_decides)
{
    static const enum pol_strategy all[] = {POL_FULL,  POL_REUSE, POL_SINK, POL_HKVD,
                                            POL_QUERY, POL_QS,    POL_SIDE};
    unsigned long copies[2];
    for (unsigned i = 0; i < 2; i++) {
        const struct tiny_opts o = {.L = 8 + 4 * i};
        struct kit k;
        struct prompt p;
        float logits[V];
        open_with(&k, "bf16", &o);
        prompt_init(&k, &p);
        for (size_t j = 0; j < sizeof all / sizeof *all; j++) {
            (void)traffic();
            run(&k, &p, all[j], 0.3f, logits);
            const struct traffic t = traffic();
            ASSERT_EQ(t.blocks, 1);
            if (all[j] == POL_FULL) copies[i] = t.copies;
        }
        kit_chunk_fini(&p.chunk);
        kit_close(&k);
    }
    ASSERT_EQ(copies[0], copies[1]);
}

/* Logits of many rows are the host's: they come in slices, through no more of the device's memory
 * than one takes. */
TEST(logits_of_a_whole_prompt_come_in_slices)
{
    enum { MANY = 32768, TOKENS = 1100, FEW = 40 };
    const struct tiny_opts o = {
        .L = 1, .D = 16, .H = 1, .G = 1, .K = 16, .F = 16, .V = MANY, .ctx_max = TOKENS};
    struct fus_prefill *f[2];
    struct fus_session *s[2];
    const float *logits[2];
    struct kn_memory before, after;
    struct kit k;
    size_t rows;
    kit_open(&k, &o, 4 * TOKENS);
    int32_t *tok = mem_alloc(TOKENS * sizeof *tok);
    kit_tokens(&k, 3, tok, TOKENS);
    before = kn_dev_memory(k.c->dev);
    for (int i = 0; i < 2; i++) {
        const struct fus_plan plan = {
            .tok = tok, .n_tok = TOKENS, .logits_from = i ? 1 : TOKENS - FEW};
        ASSERT_OK(fus_session_create(k.c, TOKENS, &s[i]));
        ASSERT_OK(fus_prefill_begin(s[i], &plan, &f[i]));
        ASSERT_OK(fus_prefill_steps(f[i]));
        logits[i] = fus_prefill_logits(f[i], &rows);
        ASSERT_EQ(rows, i ? TOKENS - 1 : FEW);
    }
    after = kn_dev_memory(k.c->dev);
    ASSERT_TRUE(after.device_bytes - before.device_bytes < rows * MANY * sizeof *logits[0]);
    for (size_t i = 0; i < (size_t)FEW * MANY; i++)
        ASSERT_NEAR(logits[1][(rows - FEW) * MANY + i], logits[0][i], 1e-3);
    for (int i = 0; i < 2; i++) {
        fus_prefill_end(f[i]);
        fus_session_destroy(s[i]);
    }
    mem_free(tok);
    kit_close(&k);
}

/* What a GPU is given at once, for models that do not fit here. */
TEST(a_layer_of_a_large_model_is_one_step)
{
    static const struct model_cfg large[] = {
        {.L = 32, .D = 4096, .H = 32, .G = 8, .K = 128, .F = 14336},
        {.L = 60, .D = 7168, .H = 56, .G = 8, .K = 128, .F = 20480},
        {.L = 80, .D = 8192, .H = 64, .G = 8, .K = 128, .F = 28672},
        {.L = 48, .D = 2048, .H = 32, .G = 4, .K = 128, .F = 6144, .experts = {128, 8, 768}},
        {.L = 36, .D = 2880, .H = 64, .G = 8, .K = 64, .F = 512, .experts = {128, 16, 32}}};
    enum { TOKENS = 3105 };
    const struct tiny_opts o = {.L = 1};
    struct kit k;
    open_with(&k, "bf16", &o);
    const struct model_cfg small = k.c->cfg;
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        k.c->cfg = large[i];
        const size_t rows = fus_slice_rows(k.c, TOKENS);
        ASSERT_TRUE(rows + rows / 2 >= TOKENS);
        ASSERT_TRUE(rows * 2 * large[i].F * sizeof(float) <= 512u << 20);
        ASSERT_TRUE(rows * large[i].experts.used * large[i].D * sizeof(float) <= 512u << 20);
        ASSERT_TRUE(fus_slice_rows(k.c, 1 << 20) >= 1024);
    }
    k.c->cfg = small;
    kit_close(&k);
}

/* ---- decode steps from a recording ---- */

enum { BATCH = 18, STEPS_MAX = 64 };

struct stepper {
    struct kit k;
    struct fus_session *s[BATCH];
    uint32_t next; /* token */
    float logits[BATCH * V];
    float *log; /* all logits of all steps */
    size_t n_log;
};

/* Sessions of other lengths; every fourth has room for so much that its keys are cut into parts. */
static void stepper_init(struct stepper *t, const char *weights, bool mixed)
{
    struct tiny_opts o = {.L = 2, .qkv_bias = true, .ctx_max = 1600};
    if (mixed) o.experts = mixture;
    memset(t, 0, sizeof *t);
    ASSERT_OK(setenv("KVBLEND_TEST_WEIGHTS", weights, 1));
    kit_open(&t->k, &o, 64 * 200);
    ASSERT_OK(unsetenv("KVBLEND_TEST_WEIGHTS"));
    t->log = mem_zalloc((size_t)STEPS_MAX * BATCH * V * sizeof *t->log);
    ASSERT_TRUE(t->log != NULL);
}

static void join(struct stepper *t, unsigned i)
{
    int32_t tok[PROMPT];
    struct fus_prefill *f = NULL;
    kit_tokens(&t->k, 5 + i, tok, PROMPT);
    const struct fus_plan plan = {.tok = tok, .n_tok = 3 + i * 2 % (PROMPT - 3)};
    ASSERT_OK(fus_session_create(t->k.c, i % 4 == 3 ? 1500 : PROMPT + 40, &t->s[i]));
    ASSERT_OK(fus_prefill_begin(t->s[i], &plan, &f));
    ASSERT_OK(fus_prefill_steps(f));
    fus_prefill_end(f);
}

static void leave(struct stepper *t, unsigned i)
{
    fus_session_destroy(t->s[i]);
    t->s[i] = NULL;
}

static void stepper_fini(struct stepper *t)
{
    for (unsigned i = 0; i < BATCH; i++)
        fus_session_destroy(t->s[i]);
    mem_free(t->log);
    kit_close(&t->k);
}

/* Of every kind that a sampler asks for, in turns. */
static struct kn_draw draw_of(uint32_t i)
{
    const uint64_t random = i * 0x9e3779b97f4a7c15ull;
    return i % 4 == 0   ? (struct kn_draw){0}
           : i % 4 == 1 ? kn_draw_of(1, 0, 1, 0, random)
           : i % 4 == 2 ? kn_draw_of(0.8f, 12, 0.9f, 0, random)
                        : kn_draw_of(2, 0, 0.7f, 0.05f, random);
}

/* One step of all sessions that there are; what it cost. */
static struct counts step(struct stepper *t, const bool *wants)
{
    struct fus_decode_row row[BATCH];
    struct kn_edit list[3];
    uint32_t room[V];
    size_t n = 0;
    for (unsigned i = 0; i < BATCH; i++)
        if (t->s[i]) {
            row[n] = (struct fus_decode_row){.s = t->s[i],
                                             .wants = !wants || wants[n],
                                             .draw = draw_of(t->next),
                                             .edit = list,
                                             .n_edit = n % 4};
            row[n++].tok = (int32_t)(t->next++ * 7 % V);
        }
    for (size_t i = 0; i < n * V; i++)
        t->logits[i] = NAN;
    for (int32_t i = 0; i < 3; i++) /* so that the second and third are never drawn */
        list[i] = (struct kn_edit){i * 7 + 1, 0.5f, 2, i ? INFINITY : 1};
    const struct counts a = now();
    ASSERT_OK(fus_decode_rows(t->k.c, row, n, NULL, t->logits));
    const struct counts b = now();
    for (size_t i = 0; i < n; i++) {
        const float *l = t->logits + i * V;
        if (wants && !wants[i]) {
            for (unsigned v = 0; v < V; v++)
                ASSERT_TRUE(isnan(l[v]));
            continue;
        }
        ASSERT_EQ(row[i].next, kn_draw_row(l, V, &row[i].draw, room));
        for (int32_t j = 1; j < 3; j++)
            ASSERT_EQ(isinf(l[j * 7 + 1]) != 0, (size_t)j < row[i].n_edit);
    }
    ASSERT_TRUE(t->n_log + n * V <= (size_t)STEPS_MAX * BATCH * V);
    if (!wants) memcpy(t->log + t->n_log, t->logits, n * V * sizeof(float));
    if (!wants) t->n_log += n * V;
    return (struct counts){b.launches - a.launches, b.waits - a.waits};
}

static void check_played(struct counts c)
{
    ASSERT_EQ(c.launches, 1);
    ASSERT_EQ(c.waits, 1);
}

static void check_steps(const char *weights, bool mixed)
{
    static const bool none[BATCH] = {false}, some[BATCH] = {false, true, true, false, true};
    struct stepper *t = mem_alloc(sizeof *t);
    stepper_init(t, weights, mixed);
    struct kn_dev *d = fus_core_dev(t->k.c);
    for (unsigned i = 3; i < 5; i++) { /* so that no later prefill needs more scratch */
        join(t, i);
        leave(t, i);
    }
    for (unsigned i = 0; i < 3; i++)
        join(t, i);
    struct counts c = step(t, NULL);
    ASSERT_TRUE(c.launches > 2 * 11);
    ASSERT_EQ(c.waits, 1);
    const uint64_t n_allocs = kn_dev_memory(d).n_allocs;
    for (int i = 0; i < 4; i++)
        check_played(step(t, i == 1 ? none : i == 2 ? some : NULL));
    ASSERT_EQ(kn_dev_memory(d).n_allocs, n_allocs);
    ASSERT_EQ(kn_replays(d).n_recorded, 1);

    leave(t, 1); /* two rows: another recording, to which the rest goes on */
    ASSERT_TRUE(step(t, none).launches > 1);
    check_played(step(t, none));
    check_played(step(t, none));
    ASSERT_EQ(kn_replays(d).n_recorded, 2);
    leave(t, 0);
    join(t, 1); /* other sequences in the same rows */
    check_played(step(t, none));
    join(t, 0), join(t, 4);
    check_played(step(t, none)); /* four rows, where three were recorded */
    ASSERT_EQ(kn_replays(d).n_recorded, 2);

    leave(t, 4);
    join(t, 3); /* room for more keys */
    ASSERT_TRUE(step(t, none).launches > 1);
    check_played(step(t, none));
    ASSERT_EQ(kn_replays(d).n_recorded, 3);
    ASSERT_EQ(kn_replays(d).n_played, 9);
    ASSERT_TRUE(!kn_replays(d).refused);
    stepper_fini(t);
    mem_free(t);
}

TEST(the_second_step_of_a_batch_is_one_launch_and_one_wait)
{
    check_steps("bf16", false);
    check_steps("fp8", false);
    check_steps("int8", false);
    check_steps("bf16", true);
    check_steps("fp8", true);
}

/* The same steps: batches that grow, beyond the room for rows as well, and shrink; and prefills in
 * between, of more rows than before. */
static void run_steps(struct stepper *t)
{
    for (unsigned i = 0; i < BATCH; i++) {
        join(t, i);
        if (i % 3 != 1 && i != BATCH - 1) continue;
        (void)step(t, NULL);
        (void)step(t, NULL);
        (void)step(t, NULL);
    }
    for (unsigned i = 1; i < BATCH; i += 2)
        leave(t, i);
    for (int i = 0; i < 3; i++)
        (void)step(t, NULL);
    join(t, 17);
    for (int i = 0; i < 3; i++)
        (void)step(t, NULL);
}

TEST(recorded_steps_give_the_same_bits)
{
    static const char *const weights[] = {"bf16", "int8", "bf16"};
    void (*records)(bool) = NULL;
    for (size_t w = 0; w < 3; w++) {
        struct stepper *t[2];
        for (int i = 0; i < 2; i++) {
            t[i] = mem_alloc(sizeof *t[i]);
            stepper_init(t[i], weights[w], w == 2);
            *(void **)&records = hook("hostcuda_records");
            records(i == 0);
            run_steps(t[i]);
            const struct kn_replays seen = kn_replays(fus_core_dev(t[i]->k.c));
            ASSERT_EQ(seen.refused, i == 1);
            ASSERT_TRUE(i == 1 || (seen.n_recorded >= 4 && seen.n_played > seen.n_recorded));
        }
        records(true);
        ASSERT_TRUE(t[0]->n_log > 20 * V);
        ASSERT_EQ(t[0]->n_log, t[1]->n_log);
        ASSERT_MEMEQ(t[0]->log, t[1]->log, t[0]->n_log * sizeof(float));
        for (int i = 0; i < 2; i++) {
            stepper_fini(t[i]);
            mem_free(t[i]);
        }
    }
}

/* By name, before a weight is loaded. */
TEST(what_a_gpu_does_not_do_is_refused)
{
    static const struct {
        struct tiny_opts o;
        const char *why;
    } cases[] = {
        {{.chunk = 24}, "attention in chunks or with a temperature"},
        {{.nope_every = 2, .temp_floor = 16, .temp_scale = 1}, "do not run on "},
    };
    const struct fus_core_opts co = {.dev = {.device = getenv("KVBLEND_TEST_DEVICE")}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model *m = NULL;
        struct fus_core *c = NULL;
        struct err err = {0};
        ASSERT_OK(tiny_model_create(&cases[i].o, &m));
        ASSERT_ERR(fus_core_create(m, &co, &c, &err), -ENOTSUP);
        ASSERT_TRUE(strstr(err.msg, cases[i].why) != NULL);
        model_close(m);
    }
}
