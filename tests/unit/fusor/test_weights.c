/* Whole models with weights of 8 bits on the emulation of a GPU: blends stay exact where they must
 * be, answers stay close; and how many launches and waits a layer costs. */
#include "tests/test.h"
#include "tests/unit/fusor/blend_kit.h"

#include <dlfcn.h>

enum { V = 96, CHUNK = 40, PROMPT = 1 + CHUNK + 9 };
static const char *const eights[] = {"fp8", "int8"};

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

static void run(struct kit *k, struct prompt *p, enum fus_strategy s, float ratio, float logits[V])
{
    const struct fus_range range = {.tok0 = 1, .n = CHUNK, .src = kit_source(&p->chunk)};
    const struct fus_plan plan = {.tok = p->tok,
                                  .n_tok = PROMPT,
                                  .range = &range,
                                  .n_range = 1,
                                  .strategy = s,
                                  .ratio = ratio};
    struct fus_session *session = NULL;
    struct fus_prefill *f = NULL;
    size_t rows = 0;
    ASSERT_OK(fus_session_create(k->c, PROMPT + 4, &session));
    ASSERT_OK(fus_prefill_begin(session, &plan, &f));
    ASSERT_OK(kit_steps(f));
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
    static const enum fus_strategy blends[] = {FUS_HKVD, FUS_QUERY};
    for (size_t i = 0; i < 2; i++) {
        const struct tiny_opts o = {.L = 4, .qkv_bias = true};
        struct kit k;
        struct prompt p;
        float full[V], got[V];
        open_with(&k, eights[i], &o);
        prompt_init(&k, &p);
        run(&k, &p, FUS_FULL, 0, full);
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
    ASSERT_OK(kit_steps(f));
    memcpy(logits, fus_prefill_logits(f, &rows), V * sizeof *logits);
    fus_prefill_end(f);
    fus_session_destroy(s);
}

/* One layer of these random weights, whose attention is peaked, makes of a product's error (0.037
 * of its length in fp8, 0.0055 in int8: test_quant) about 0.10 and 0.022 of the logits' by a
 * simulation in double precision; twice that passes. */
TEST(answers_stay_close)
{
    static const double within[] = {0.2, 0.044};
    enum { PROMPTS = 6 };
    for (size_t i = 0; i < 2; i++) {
        const struct tiny_opts o = {.L = 1, .D = 64, .F = 160};
        struct kit k;
        double off = 0;
        open_with(&k, eights[i], &o);
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
        if (!(off < within[i])) test_fail(__FILE__, __LINE__, "%s: off by %g", eights[i], off);
    }
}

/* ---- launches and waits ---- */

struct counts {
    unsigned long launches, waits;
};

static struct counts now(void)
{
    struct counts c;
    char path[4096];
    void (*fn)(unsigned long *, unsigned long *) = NULL;
    snprintf(path, sizeof path, "%s/libkn_hostcuda.so", getenv("KVBLEND_KERNELS_DIR"));
    void *lib = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    if (lib) *(void **)&fn = dlsym(lib, "hostcuda_counts");
    ASSERT_TRUE(fn != NULL);
    fn(&c.launches, &c.waits);
    return c;
}

/* Of a full prefill and of one decode step by a model of L layers. */
static void count(const char *weights, unsigned L, struct counts *ret_prefill,
                  struct counts *ret_decode)
{
    const struct tiny_opts o = {.L = L};
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
    ASSERT_OK(kit_steps(f));
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
static void check_layer(const char *weights, unsigned long prefill, unsigned long decode)
{
    struct counts p3, p5, d3, d5;
    count(weights, 3, &p3, &d3);
    count(weights, 5, &p5, &d5);
    ASSERT_EQ(p5.launches - p3.launches, 2 * prefill);
    ASSERT_EQ(p5.waits - p3.waits, 2);
    ASSERT_EQ(d5.launches - d3.launches, 2 * decode);
    ASSERT_EQ(d5.waits - d3.waits, 0);
}

TEST(a_layer_takes_so_many_launches_and_one_wait)
{
    check_layer("bf16", 14, 13);
    check_layer("fp8", 14, 13);
    check_layer("int8", 19, 18); /* one more for each product: it is scaled behind it */
}
