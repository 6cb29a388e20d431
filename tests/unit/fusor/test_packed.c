/* Folders with a quantization_config: every form that there is holds the values that its numbers
 * mean, and the same model in f32 gives the same logits; what is damaged or of another kind is
 * refused by name, and nothing that a file says leads astray. */
#include "fusor/core/core_int.h"
#include "fusor/core/prefill.h"
#include "tests/unit/fusor/packed_kit.h"

#include <fcntl.h>

static const struct kind {
    struct pk_kind of;
    unsigned group; /* of its form; 0: it has none */
} kinds[] = {
    {{PACKED_AWQ, 4, 128, "F16", 0, PK_LLAMA}, 128},
    {{PACKED_AWQ, 4, 64, "F16", PK_O_LEFT_OUT, PK_PHI3}, 32},
    {{PACKED_AWQ, 4, 32, "BF16", 0, PK_GLM4}, 32},
    {{PACKED_AWQ, 4, 128, "F16", 0, PK_QWEN3_MOE}, 128},
    {{PACKED_AWQ, 4, 16, "F16", 0, PK_LLAMA}, 0},
    {{PACKED_GPTQ, 4, 128, "F16", PK_IN_ORDER | PK_ZERO_BIASES, PK_LLAMA}, 128},
    {{PACKED_GPTQ, 4, 32, "F16", PK_V2 | PK_HEAD, PK_LLAMA}, 32},
    {{PACKED_GPTQ, 4, -1, "F16", PK_IN_ORDER, PK_GLM4}, 128},
    {{PACKED_GPTQ, 4, 64, "F16", PK_REORDERED, PK_PHI3}, 0},
    {{PACKED_GPTQ, 4, 32, "F16", PK_REORDERED, PK_QWEN3_MOE}, 0},
    {{PACKED_GPTQ, 8, 128, "F16", 0, PK_LLAMA}, 32},
    {{PACKED_GPTQ, 8, -1, "BF16", PK_V2, PK_PHI3}, 32},
    {{PACKED_GPTQ, 3, 128, "F16", 0, PK_LLAMA}, 128},
    {{PACKED_GPTQ, 3, 32, "F16", PK_V2 | PK_REORDERED, PK_LLAMA}, 0},
    {{PACKED_GPTQ, 2, 64, "F16", PK_V2, PK_LLAMA}, 32},
    {{PACKED_TENSORS, 4, 128, "BF16", PK_SYMMETRIC, PK_LLAMA}, 128},
    {{PACKED_TENSORS, 4, 32, "F16", 0, PK_PHI3}, 32},
    {{PACKED_TENSORS, 4, -1, "BF16", 0, PK_QWEN3_MOE}, 128},
    {{PACKED_TENSORS, 4, 64, "BF16", PK_REORDERED, PK_LLAMA}, 0},
    {{PACKED_TENSORS, 4, 128, "F32", 0, PK_LLAMA}, 0},
    {{PACKED_TENSORS, 8, -1, "BF16", PK_SYMMETRIC, PK_GLM4}, 32},
    {{PACKED_TENSORS, 8, 64, "F16", 0, PK_LLAMA}, 32},
};
enum {
    N_KINDS = sizeof kinds / sizeof *kinds,
    AWQ = 0,
    GPTQ = 5,
    GPTQ_REORDERED = 8,
    TENSORS = 16
};

static int try_open(const struct pk_kind *k, const struct pk_change *change, struct model **ret,
                    struct err *err)
{
    struct pk_folder f;
    pk_write(k, change, false, &f);
    const int r = model_open(f.dir, ret, err); /* mapped: the folder may go */
    pk_remove(&f);
    return r;
}

static struct model *open_model(const struct pk_kind *k, bool plain)
{
    struct pk_folder f;
    struct model *m = NULL;
    struct err err = {0};
    pk_write(k, NULL, plain, &f);
    const int r = model_open(f.dir, &m, &err);
    pk_remove(&f);
    if (r < 0) test_fail(__FILE__, __LINE__, "%s", err.msg);
    return m;
}

/* ---- values ---- */

static bool is_packed(const struct pk_kind *k, enum model_w w)
{
    return (w >= MODEL_Q && w <= MODEL_V) || (w == MODEL_O && !(k->flags & PK_O_LEFT_OUT)) ||
           (w >= MODEL_GATE && w <= MODEL_DOWN) || (w == MODEL_LM_HEAD && k->flags & PK_HEAD) ||
           (w >= MODEL_EXPERT_GATE && w <= MODEL_EXPERT_DOWN);
}

/* Rows of both in pieces that begin and end anywhere, and as codes where there are such. */
static void same_weight(const struct model *m, const struct model *plain, const struct kind *k,
                        enum model_w w, unsigned layer)
{
    const size_t rows = model_w_rows(m, w), cols = model_w_cols(m, w);
    const struct codes_form f = model_form(m, w, layer);
    const size_t bytes = rows * cols * sizeof(float);
    float *got = mem_alloc(bytes), *want = mem_alloc(bytes), *values = mem_alloc(cols * 4);
    void *room = mem_alloc(rows * model_codes_room(cols));
    struct codes_row *codes = mem_alloc(rows * sizeof *codes);
    uint64_t seed = w;
    ASSERT_TRUE(got && want && values && room && codes);
    model_codes_place(cols, rows, room, codes);
    ASSERT_OK(model_rows(plain, w, layer, 0, rows, want));
    for (size_t i = 0, n; i < rows; i += n) {
        n = 1 + test_rand(&seed) % 160; /* more than are read together */
        if (n > rows - i) n = rows - i;
        memset(got, 0xff, n * cols * sizeof *got);
        ASSERT_OK(model_rows(m, w, layer, i, n, got));
        ASSERT_MEMEQ(got, want + i * cols, n * cols * sizeof *got);
        if (!is_packed(&k->of, w) || !k->group) continue;
        ASSERT_OK(model_codes(m, w, layer, i, n, codes));
        for (size_t r = 0; r < n; r++) {
            codes_values(&f, &codes[r], cols, values);
            ASSERT_MEMEQ(values, want + (i + r) * cols, cols * sizeof *values);
        }
    }
    if (is_packed(&k->of, w)) {
        ASSERT_EQ(f.group, k->group);
        ASSERT_EQ(f.bits, !k->group ? 0 : k->of.bits == 8 ? 8 : 4);
        ASSERT_TRUE(!k->group || codes_form_fits(&f, cols));
        if (!k->group) ASSERT_ERR(model_codes(m, w, layer, 0, 1, codes), -EINVAL);
    }
    mem_free(got), mem_free(want), mem_free(values), mem_free(room), mem_free(codes);
}

TEST(every_form_holds_the_values_that_it_means)
{
    for (size_t i = 0; i < N_KINDS; i++) {
        const struct pk_kind *k = &kinds[i].of;
        struct model *m = open_model(k, false), *plain = open_model(k, true);
        const struct model_cfg *c = model_config(m);
        unsigned n = 0;
        for (unsigned l = 0; l < PK_L; l++)
            for (int w = 0; w < MODEL_W_COUNT; w++) {
                ASSERT_EQ(model_has(m, (enum model_w)w, l), model_has(plain, (enum model_w)w, l));
                if (!model_has(m, (enum model_w)w, l)) continue;
                same_weight(m, plain, &kinds[i], (enum model_w)w, l);
                const bool expert = w >= MODEL_EXPERT_GATE && w <= MODEL_EXPERT_DOWN;
                if (is_packed(k, (enum model_w)w) && (w != MODEL_LM_HEAD || l == 0))
                    n += expert ? PK_EXPERTS : 1;
            }
        ASSERT_EQ(c->n_packed, n);
        ASSERT_EQ(c->n_packed_apart, kinds[i].group ? 0 : n);
        ASSERT_EQ(model_config(plain)->n_packed, 0);
        model_read_ahead(m, 0);
        model_drop_pages(m);
        model_close(m), model_close(plain);
    }
}

/* What a value depends on is part of it; where the folder is and what is left out is not. */
TEST(fingerprints_tell_models_apart)
{
    uint64_t seen[N_KINDS][2];
    for (size_t i = 0; i < N_KINDS; i++) {
        struct model *m = open_model(&kinds[i].of, false), *again = open_model(&kinds[i].of, false);
        memcpy(seen[i], model_config(m)->fingerprint, sizeof seen[i]);
        ASSERT_MEMEQ(seen[i], model_config(again)->fingerprint, sizeof seen[i]);
        for (size_t j = 0; j < i; j++)
            ASSERT_TRUE(memcmp(seen[i], seen[j], sizeof seen[i]) != 0);
        model_close(m), model_close(again);
    }
    /* The same bytes, of another meaning: zeros as they are. */
    struct model *m = NULL;
    struct err err = {0};
    ASSERT_OK(try_open(&kinds[GPTQ].of,
                       &(struct pk_change){.config = "{\"checkpoint_format\":\"gptq_v2\"}"}, &m,
                       &err));
    ASSERT_TRUE(memcmp(seen[GPTQ], model_config(m)->fingerprint, sizeof seen[GPTQ]) != 0);
    model_close(m);
}

/* ---- logits ---- */

static const char *device(void)
{
    const char *name = getenv("KVBLEND_TEST_DEVICE");
    return name && *name ? name : NULL;
}

enum { PROMPT = 70, ROWS = PROMPT - 1, STEPS = 2, LOGITS = (ROWS + STEPS) * PK_V };

static struct fus_core *core_of(const struct model *m, enum kn_arith arith, enum kn_weights weights)
{
    struct fus_core_opts o = {
        .dev = {.device = device(), .n_threads = 2, .arith = arith, .weights = weights},
        .ctx_max = 128};
    struct fus_core *c = NULL;
    struct err err = {0};
    if (fus_core_create(m, &o, &c, &err) < 0) test_fail(__FILE__, __LINE__, "%s", err.msg);
    return c;
}

/* Of every token of a prompt but the first, and behind it. */
static void logits_of(struct fus_core *c, float *out)
{
    int32_t tok[PROMPT];
    uint64_t seed = 4;
    for (size_t i = 0; i < PROMPT; i++)
        tok[i] = (int32_t)(test_rand(&seed) % PK_V);
    const struct fus_plan plan = {
        .tok = tok, .n_tok = PROMPT, .strategy = POL_FULL, .logits_from = 1};
    struct fus_session *s;
    struct fus_prefill *f;
    size_t n;
    ASSERT_OK(fus_session_create(c, 128, &s));
    ASSERT_OK(fus_prefill_begin(s, &plan, &f));
    ASSERT_OK(fus_prefill_steps(f));
    const float *logits = fus_prefill_logits(f, &n);
    ASSERT_EQ(n, ROWS);
    memcpy(out, logits, n * PK_V * sizeof *out);
    fus_prefill_end(f);
    for (size_t i = 0; i < STEPS; i++)
        ASSERT_OK(fus_decode(c, &s, &tok[i], 1, NULL, out + (ROWS + i) * PK_V));
    fus_session_destroy(s);
}

/* Of the logits' length; 0: the same bits. */
static double apart(const struct kind *k, enum kn_arith arith, enum kn_weights weights)
{
    static float got[LOGITS], want[LOGITS];
    struct model *m = open_model(&k->of, false), *plain = open_model(&k->of, true);
    struct fus_core *c = core_of(m, arith, weights), *p = core_of(plain, arith, weights);
    const struct kn_mat *o = c->layer[1].o.w;
    const bool in_codes =
        k->group && !(k->of.flags & PK_O_LEFT_OUT) && (!device() || weights == KN_WEIGHTS_FILE);
    double d2 = 0, r2 = 0;
    if (in_codes) /* codes, and 4 bytes of a group */
        ASSERT_EQ(kn_mat_bytes(o) * 8,
                  PK_D * 128 * (k->of.bits == 8 ? 8 : 4) + PK_D * 128 / k->group * 32);
    else
        ASSERT_EQ(kn_mat_bytes(o), kn_mat_bytes(p->layer[1].o.w));
    logits_of(c, got);
    logits_of(p, want);
    for (size_t i = 0; i < LOGITS; i++) {
        ASSERT_TRUE(isfinite(want[i]));
        d2 += pow((double)got[i] - (double)want[i], 2);
        r2 += pow((double)want[i], 2);
    }
    const bool same = memcmp(got, want, sizeof got) == 0;
    fus_core_destroy(c), fus_core_destroy(p);
    model_close(m), model_close(plain);
    return same ? 0 : sqrt(d2 / r2) + 1e-30;
}

TEST(logits_are_those_of_the_values_in_f32)
{
    for (size_t i = 0; i < N_KINDS; i++)
        ASSERT_EQ(apart(&kinds[i], KN_ARITH_F32, KN_WEIGHTS_AUTO) > 0, 0);
}

TEST(logits_are_those_of_the_values_in_bf16)
{
    struct model *m = open_model(&kinds[0].of, true);
    struct fus_core_opts o = {.dev = {.device = device(), .arith = KN_ARITH_BF16}, .ctx_max = 128};
    struct fus_core *c = NULL;
    const int r = fus_core_create(m, &o, &c, NULL);
    fus_core_destroy(c);
    model_close(m);
    if (r < 0) SKIP("this machine has no products of bf16");
    for (size_t i = 0; i < N_KINDS; i++) {
        const double d = apart(&kinds[i], KN_ARITH_BF16, KN_WEIGHTS_AUTO);
        /* Steps of decoding multiply codes as f32 but on tiles. */
        ASSERT_TRUE(d == 0 || (!device() && kinds[i].group && d < 0.02));
    }
}

/* On a GPU, in the form of the file: up to 64 rows sum in another order. */
TEST(logits_in_the_form_of_the_file)
{
    if (!device()) SKIP("about a GPU's own option");
    for (size_t i = 0; i < N_KINDS; i++) {
        const double d = apart(&kinds[i], KN_ARITH_BF16, KN_WEIGHTS_FILE);
        if (!(d <= 0.01)) test_fail(__FILE__, __LINE__, "form %zu is off by %g", i, d);
    }
}

/* ---- refusals ---- */

static const struct {
    size_t kind;
    const char *config;
    int code;
    const char *why;
} configs[] = {
    {AWQ, "{\"quant_method\":\"bitsandbytes\"}", -ENOTSUP,
     "method \"bitsandbytes\" is not supported, only awq, gptq and compressed-tensors"},
    {AWQ, "{\"quant_method\":null}", -ENOTSUP, "method \"?\""},
    {AWQ, "{\"quant_method\":7}", -EBADMSG, "not a string"},
    {AWQ, "{\"version\":\"gemv\"}", -ENOTSUP, "AWQ version \"gemv\""},
    {AWQ, "{\"version\":\"GEMM\"}", 0, ""},
    {AWQ, "{\"bits\":8}", -ENOTSUP, "AWQ has 4 bits, not 8"},
    {AWQ, "{\"bits\":\"4\"}", -EBADMSG, "\"bits\" is not a count"},
    {AWQ, "{\"zero_point\":false}", -ENOTSUP, "zero_point"},
    {AWQ, "{\"group_size\":0}", -EBADMSG, "\"group_size\" is 0"},
    {AWQ, "{\"group_size\":-2}", -EBADMSG, "\"group_size\" is not a count"},
    {AWQ, "{\"group_size\":96}", -EBADMSG, "rows of 128, no whole groups of 96"},
    {AWQ, "{\"group_size\":256}", -EBADMSG, "rows of 128, no whole groups of 256"},
    {AWQ, "{\"group_size\":64}", -EBADMSG, "expected [2, 128]"},
    {GPTQ, "{\"bits\":5}", -ENOTSUP, "not 5"},
    {GPTQ, "{\"bits\":null}", -EBADMSG, "\"bits\" is missing"},
    {GPTQ, "{\"bits\":8}", -EBADMSG, "expected [32, 128]"},
    {GPTQ, "{\"group_size\":null}", -EBADMSG, "\"group_size\" is missing"},
    {GPTQ, "{\"checkpoint_format\":\"marlin\"}", -ENOTSUP, "GPTQ format \"marlin\""},
    {GPTQ, "{\"is_marlin_format\":true}", -ENOTSUP, "GPTQ format \"marlin\""},
    {GPTQ, "{\"dynamic\":{\"-:lm_head\":{}},\"bits\":8,\"group_size\":32}", 0, ""}, /* by shapes */
    {TENSORS, "{\"format\":\"float-quantized\"}", -ENOTSUP, "format \"float-quantized\""},
    {TENSORS, "{\"format\":null}", -ENOTSUP, "format \"?\""},
    {TENSORS, "{\"config_groups\":{}}", -EBADMSG, "\"config_groups\" is missing"},
    {TENSORS, "{\"config_groups\":{\"a\":{}}}", -EBADMSG, "no \"weights\""},
    {TENSORS, "{\"config_groups\":{\"a\":{\"weights\":{\"num_bits\":4,\"type\":\"float\"}}}}",
     -ENOTSUP, "type \"float\""},
    {TENSORS, "{\"config_groups\":{\"a\":{\"weights\":{\"num_bits\":2}}}}", -ENOTSUP, "2 bits"},
    {TENSORS, "{\"config_groups\":{\"a\":{\"weights\":{\"strategy\":\"block\"}}}}", -ENOTSUP,
     "strategy \"block\""},
    {TENSORS,
     "{\"config_groups\":{\"a\":{\"weights\":{\"num_bits\":4},\"input_activations\":{\"a\":1}}}}",
     -ENOTSUP, "activations"},
    {TENSORS, "{\"config_groups\":{\"a\":{\"weights\":{},\"format\":\"int-quantized\"}}}", -ENOTSUP,
     "format \"int-quantized\""},
    {TENSORS,
     "{\"config_groups\":{\"a\":{\"weights\":{\"num_bits\":8}},\"b\":{\"weights\":{"
     "\"num_bits\":4,\"symmetric\":false,\"group_size\":32}}}}",
     0, ""}, /* by shapes */
    {TENSORS, "{\"kv_cache_scheme\":{\"num_bits\":8}}", -ENOTSUP, "kv_cache_scheme"},
    {TENSORS, "{\"sparsity_config\":{\"format\":\"sparse-24-bitmask\"}}", -ENOTSUP, "sparsity"},
};

TEST(what_is_not_read_is_refused_by_name)
{
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        struct model *m = NULL;
        struct err err = {0};
        const struct pk_change change = {.config = configs[i].config};
        const int r = try_open(&kinds[configs[i].kind].of, &change, &m, &err);
        if (r != configs[i].code || (r < 0) != !m || !strstr(err.msg, configs[i].why))
            test_fail(__FILE__, __LINE__, "%s: %d \"%s\"", configs[i].config, r, err.msg);
        model_close(m);
    }
}

static const struct {
    size_t kind;
    struct pk_change change;
    const char *why;
} damages[] = {
    {AWQ, {.leave = "1.mlp.up_proj.scales"}, "1.mlp.up_proj.scales\" is missing"},
    {AWQ, {.leave = "q_proj.qzeros"}, "q_proj.qzeros\" is missing"},
    {AWQ, {.leave = "q_proj.qweight"}, "q_proj.weight\" is missing"},
    {AWQ, {.retype = "o_proj.qweight"}, "has type F32, expected I32"},
    {AWQ, {.retype = "o_proj.scales"}, "does not fit its size"},
    {AWQ, {.reshape = "o_proj.qweight"}, "has shape [256, 16], expected [128, 16]"},
    {AWQ, {.reshape = "o_proj.qzeros"}, "has shape [2, 16], expected [1, 16]"},
    {AWQ, {.reshape = "o_proj.scales"}, "has shape [2, 128], expected [1, 128]"},
    {GPTQ, {.reshape = "0.mlp.down_proj.qweight"}, "has shape [64, 128], expected [32, 128]"},
    {GPTQ, {.reshape = "g_idx"}, "has shape [1, 256], expected [1, 128]"},
    {GPTQ, {.retype = "g_idx"}, "has type F32, expected I32"},
    {GPTQ_REORDERED, {.g_idx = 4}, "is in group 4 of"},
    {GPTQ_REORDERED, {.g_idx = UINT32_MAX}, "is in group 4294967295 of"},
    {TENSORS, {.leave = "weight_zero_point"}, "weight_zero_point\" is missing"},
    {TENSORS, {.leave = "weight_shape"}, "weight_shape\" is missing"},
    {TENSORS, {.leave = "weight_scale"}, "weight_scale\" is missing"},
    {TENSORS, {.reshape = "weight_packed"}, "expected [256, 16]"},
    {TENSORS, {.reshape = "weight_zero_point"}, "has shape [64, 4], expected [32, 4]"},
};

TEST(damaged_layers_are_refused)
{
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        struct model *m = NULL;
        struct err err = {0};
        const int r = try_open(&kinds[damages[i].kind].of, &damages[i].change, &m, &err);
        if (r != -EBADMSG || m || !strstr(err.msg, damages[i].why))
            test_fail(__FILE__, __LINE__, "%zu: %d \"%s\"", i, r, err.msg);
    }
}

/* A bias that says something is arithmetic that the architecture has not. */
TEST(a_bias_that_is_not_0_is_refused)
{
    struct pk_kind k = kinds[GPTQ].of;
    struct model *m = NULL;
    struct err err = {0};
    k.flags |= PK_NONZERO_BIAS;
    ASSERT_ERR(try_open(&k, NULL, &m, &err), -ENOTSUP);
    ASSERT_TRUE(strstr(err.msg, "1.mlp.up_proj.bias\" is not known to architecture") != NULL);
    k.method = PACKED_AWQ, k.flags = PK_ZERO_BIASES; /* which AutoAWQ never wrote */
    ASSERT_ERR(try_open(&k, NULL, &m, &err), -ENOTSUP);
}

/* Files and configurations that are changed at random are refused, or read to their end. */
TEST(mutated_folders_are_refused_or_read)
{
    enum { TIMES = 300 };
    static const size_t of[] = {AWQ, GPTQ, GPTQ_REORDERED, TENSORS, 3};
    uint64_t seed = 5;
    size_t n_read = 0, n_refused = 0;
    for (size_t k = 0; k < sizeof of / sizeof *of; k++) {
        struct pk_folder f;
        size_t len, config_len;
        pk_write(&kinds[of[k]].of, NULL, false, &f);
        uint8_t *whole = read_whole(f.weights, &len), *config = read_whole(f.config, &config_len);
        uint8_t *other = mem_alloc(len + config_len);
        uint64_t head;
        ASSERT_TRUE(other != NULL);
        memcpy(&head, whole, sizeof head);
        for (int i = 0; i < TIMES; i++) {
            const bool in_config = i % 3 == 0;
            const size_t head_len = i % 3 == 1 ? len : (size_t)head + 8; /* all of it, too */
            const size_t n = in_config ? mutate(config, config_len, config_len, other, &seed)
                                       : mutate(whole, len, head_len, other, &seed);
            const int fd = open(in_config ? f.config : f.weights, O_WRONLY | O_TRUNC);
            struct model *m = NULL;
            struct err err = {0};
            ASSERT_TRUE(fd >= 0);
            ASSERT_EQ(write(fd, other, n), n);
            (void)close(fd);
            const int r = model_open(f.dir, &m, &err);
            ASSERT_TRUE((r < 0) == !m && (r == 0 || err.msg[0]));
            n_read += r == 0, n_refused += r < 0;
            for (int w = 0; m && w < MODEL_W_COUNT; w++) {
                if (!model_has(m, (enum model_w)w, 1)) continue;
                const size_t rows = model_w_rows(m, (enum model_w)w),
                             cols = model_w_cols(m, (enum model_w)w);
                float *x = mem_alloc(rows * cols * sizeof *x);
                ASSERT_TRUE(x != NULL);
                ASSERT_OK(model_rows(m, (enum model_w)w, 1, 0, rows, x));
                mem_free(x);
            }
            model_close(m);
            const int back = open(in_config ? f.config : f.weights, O_WRONLY | O_TRUNC);
            ASSERT_TRUE(back >= 0);
            ASSERT_EQ(write(back, in_config ? config : whole, in_config ? config_len : len),
                      in_config ? config_len : len);
            (void)close(back);
        }
        mem_free(whole), mem_free(config), mem_free(other);
        pk_remove(&f);
    }
    ASSERT_TRUE(n_read > 100 && n_refused > 100);
}
