/* shape: published configurations, the weights drawn for them, their tokenizer, and that a model of
 * them computes something. */
#include "base/mem.h"
#include "base/rng.h"
#include "fusor/core/prefill.h"
#include "fusor/model/shape.h"
#include "fusor/text/chat.h"
#include "fusor/text/tok.h"
#include "tests/test.h"

static struct model *open_shape(const char *path)
{
    struct model *m;
    struct err err = {0};
    if (model_open(path, &m, &err) < 0) test_fail(__FILE__, __LINE__, "%s", err.msg);
    return m;
}

TEST(parameters_are_as_many_as_published)
{
    static const struct {
        const char *name;
        double n; /* the model's page on huggingface.co, from its files */
    } known[] = {{"smollm2", 134515008},        {"llama-3.2-3b", 3212749824},
                 {"mistral-7b", 7241732096},    {"yi-34b", 34388917248},
                 {"llama-70b", 70553706496},    {"qwen3-8b", 8190735360},
                 {"mixtral-8x7b", 46702792704}, {"qwen3-30b-a3b", 30532122624}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        char path[64];
        (void)snprintf(path, sizeof path, SHAPE_PREFIX "%s", known[i].name);
        struct model *m = open_shape(path);
        const struct model_cfg *c = model_config(m);
        double n = 0;
        for (int w = 0; w < MODEL_W_COUNT; w++) {
            const bool once = w < MODEL_NORM_ATTN;
            if (!model_has(m, w, 0) || (w == MODEL_LM_HEAD && c->tied)) continue;
            n += (double)model_w_rows(m, w) * (double)model_w_cols(m, w) * (once ? 1 : c->L);
        }
        ASSERT_TRUE(n == known[i].n);
        model_close(m);
    }
    struct model_cfg c;
    struct err err = {0};
    ASSERT_ERR(shape_parse("none", &c, &err), -EINVAL);
    ASSERT_TRUE(strstr(err.msg,
                       "(known: smollm2, llama-3.2-3b, mistral-7b, yi-34b, llama-70b, qwen3-8b, "
                       "mixtral-8x7b, qwen3-30b-a3b;"));
}

TEST(names_and_settings_are_checked)
{
    struct model_cfg c, was;
    struct err err;
    static const char *const bad[] = {"",
                                      "mistral",
                                      "mistral-7b:",
                                      "mistral-7b:layers",
                                      "mistral-7b:layers=",
                                      "mistral-7b:layers=0",
                                      "mistral-7b:layers=-1",
                                      "mistral-7b:layers=4x",
                                      "mistral-7b:layers=100000",
                                      "mistral-7b:heads=4",
                                      "smollm2:layers=4:layers=5"};
    memset(&c, 7, sizeof c);
    was = c;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err = (struct err){0};
        ASSERT_ERR(shape_parse(bad[i], &c, &err), -EINVAL);
        ASSERT_TRUE(strstr(err.msg, "qwen3-8b") != NULL);
        ASSERT_MEMEQ(&c, &was, sizeof c);
    }
    ASSERT_OK(shape_parse("llama-70b:layers=12", &c, &err));
    ASSERT_EQ(c.L, 12);
    ASSERT_EQ(c.D, 8192);
    struct model *m;
    ASSERT_ERR(model_open(SHAPE_PREFIX "gpt", &m, &err), -EINVAL);
}

TEST(fingerprints_tell_shapes_apart)
{
    static const char *const path[] = {SHAPE_PREFIX "smollm2", SHAPE_PREFIX "smollm2:layers=29",
                                       SHAPE_PREFIX "yi-34b"};
    uint64_t print[3][2];
    for (size_t i = 0; i < 3; i++) {
        struct model *m = open_shape(path[i]);
        memcpy(print[i], model_config(m)->fingerprint, sizeof print[i]);
        model_close(m);
        for (size_t j = 0; j < i; j++)
            ASSERT_TRUE(memcmp(print[i], print[j], sizeof print[i]) != 0);
    }
}

TEST(rows_are_the_same_however_they_are_asked_for)
{
    struct model *m = open_shape(SHAPE_PREFIX "smollm2:layers=2");
    static const enum model_w kind[] = {MODEL_EMBED, MODEL_Q,  MODEL_K,   MODEL_V,
                                        MODEL_O,     MODEL_UP, MODEL_DOWN};
    struct rng_field f, last = {0};
    for (size_t i = 0; i < sizeof kind / sizeof *kind; i++) {
        const size_t k = model_w_cols(m, kind[i]), n = 64;
        float *all = mem_alloc(n * k * sizeof *all), *one = mem_alloc(k * sizeof *one);
        double sum = 0, square = 0;
        ASSERT_OK(model_rows(m, kind[i], 1, 0, n, all));
        ASSERT_OK(model_rows(m, kind[i], 1, 41, 1, one));
        ASSERT_MEMEQ(one, all + 41 * k, k * sizeof *one);
        ASSERT_TRUE(model_random(m, kind[i], 1, &f));
        ASSERT_TRUE(f.seed != last.seed);
        last = f;
        for (size_t j = 0; j < n * k; j++) {
            ASSERT_TRUE(all[j] == rng_field_at(&f, j));
            ASSERT_TRUE(fabsf(all[j]) <= f.scale);
            sum += (double)all[j];
            square += (double)all[j] * (double)all[j];
        }
        /* 37 000 values or more: the mean is off by 0.5 % of the spread, that by 0.3 %. */
        const double spread = (double)f.scale / sqrt(3), N = (double)(n * k);
        ASSERT_NEAR(sum / N, 0, 0.03 * spread);
        ASSERT_NEAR(sqrt(square / N), spread, 0.02 * spread);
        ASSERT_ERR(model_rows(m, kind[i], 2, 0, 1, one), kind[i] == MODEL_EMBED ? 0 : -ENOENT);
        ASSERT_ERR(model_rows(m, kind[i], 0, model_w_rows(m, kind[i]), 1, one), -EINVAL);
        mem_free(all);
        mem_free(one);
    }
    ASSERT_TRUE(!model_random(m, MODEL_NORM_ATTN, 0, &f));
    ASSERT_TRUE(!model_has(m, MODEL_Q_BIAS, 0));
    model_close(m);
}

static void run(struct fus_core *core, const int32_t *tok, uint32_t n, float *ret_logits)
{
    struct fus_session *s;
    struct fus_prefill *f;
    const struct fus_plan p = {.tok = tok, .n_tok = n, .strategy = POL_FULL, .logits_from = n - 1};
    size_t rows;
    int r;
    ASSERT_OK(fus_session_create(core, n, &s));
    ASSERT_OK(fus_prefill_begin(s, &p, &f));
    do {
        r = fus_prefill_step(f);
    } while (r > 0);
    ASSERT_OK(r);
    memcpy(ret_logits, fus_prefill_logits(f, &rows), fus_core_config(core)->V * sizeof *ret_logits);
    fus_prefill_end(f);
    fus_session_destroy(s);
}

/* Half the prompt is other tokens: what comes out must show it, or nobody attends to anything. */
TEST(activations_stay_finite_and_tokens_matter_to_each_other)
{
    enum { N = 96 };
    struct model *m = open_shape(SHAPE_PREFIX "smollm2:layers=12");
    struct fus_core *core;
    struct err err = {0};
    const struct fus_core_opts o = {
        .dev = {.n_threads = 2, .gemm = "own-f32", .arith = KN_ARITH_F32}, .ctx_max = 256};
    if (fus_core_create(m, &o, &core, &err) < 0) test_fail(__FILE__, __LINE__, "%s", err.msg);
    const size_t V = model_config(m)->V;
    float *a = mem_alloc(2 * V * sizeof *a), *b = a + V;
    int32_t tok[N];
    uint64_t seed = 5;
    double square = 0, apart = 0;
    for (int i = 0; i < N; i++)
        tok[i] = (int32_t)(test_rand(&seed) % V);
    run(core, tok, N, a);
    for (int i = 0; i < N / 2; i++)
        tok[i] = (int32_t)(test_rand(&seed) % V);
    run(core, tok, N, b);
    for (size_t i = 0; i < V; i++) {
        ASSERT_TRUE(isfinite(a[i]) && isfinite(b[i]));
        square += (double)a[i] * (double)a[i];
        apart += (double)(a[i] - b[i]) * (double)(a[i] - b[i]);
    }
    printf("  logits spread by %.2f, changed by %.3f\n", sqrt(square / (double)V),
           sqrt(apart / square));
    ASSERT_NEAR(sqrt(square / (double)V), 3, 0.5);
    ASSERT_TRUE(apart > 0.01 * square && apart < square);
    mem_free(a);
    fus_core_destroy(core);
    model_close(m);
}

TEST(text_becomes_ids_and_text_again)
{
    static const char text[] = "The lighthouse: \xC3\xA9 42\n";
    struct model *m = open_shape(SHAPE_PREFIX "mistral-7b");
    struct tok *t;
    struct tok_ids ids = {0};
    struct chat *chat;
    char back[64] = "";
    size_t at = 0;
    ASSERT_OK(tok_open(m, &t, NULL));
    ASSERT_EQ(tok_n_vocab(t), model_config(m)->V);
    const struct tok_piece piece = {text, sizeof text - 1, false};
    ASSERT_OK(tok_encode(t, &piece, 1, TOK_BOS, &ids));
    ASSERT_EQ(ids.id[0], tok_bos(t));
    ASSERT_TRUE(ids.n > 8 && ids.n < sizeof text - 4); /* pairs of letters are one */
    for (size_t i = 1; i < ids.n; i++) {
        const char *s;
        size_t n;
        ASSERT_OK(tok_bytes(t, ids.id[i], false, &s, &n));
        ASSERT_TRUE(at + n < sizeof back);
        memcpy(back + at, s, n);
        at += n;
    }
    ASSERT_STREQ(back, text);
    ASSERT_OK(chat_open(tok_chat_template(t), NULL, &chat, NULL));
    ASSERT_STREQ(chat_name(chat), "jinja");
    struct tok_ids end = {0};
    ASSERT_OK(tok_encode(t, &(struct tok_piece){"<|im_end|>", 10, true}, 1, 0, &end));
    ASSERT_TRUE(end.n == 1 && tok_is_eog(t, end.id[0]));
    tok_ids_fini(&end);
    chat_close(chat);
    tok_ids_fini(&ids);
    tok_close(t);
    model_close(m);
}
