/* model: configurations of every architecture, the same weights from folder and GGUF, rope
 * frequencies against transformers, refusal by name of what the engine cannot honour. */
#include "fusor/model/arch.h"

#include "base/mem.h"
#include "tests/unit/fusor/model_files.h"

#include <jansson.h>

static struct model *open_model(const char *name)
{
    char rel[96];
    struct model *m;
    struct err err = {0};
    (void)snprintf(rel, sizeof(rel), "models/%s", name);
    if (model_open(test_data(rel), &m, &err) < 0) test_fail(__FILE__, __LINE__, "%s", err.msg);
    return m;
}

static const struct {
    const char *name, *arch;
    unsigned D, H, G, K, F, V;
    enum model_rope_type rope;
    bool f32, qkv_bias, o_bias, qk_norm, tied;
    unsigned L;             /* 0: 3 */
    double scale;           /* of scores; 0: 1/sqrt(K) */
    unsigned window, n_rot; /* n_rot 0: K */
    const char *layers;     /* of each: '.', 'l'ocal, 'n'ot rotated; NULL: '.' */
} all[] = {
    {"llama2", "llama", 48, 3, 3, 16, 64, 128, ROPE_NONE, true, false, false, false, false},
    {"llama3", "llama", 64, 4, 2, 16, 64, 128, ROPE_LLAMA3, true, false, false, false, false},
    {"llama3.Q8_0.gguf", "llama", 64, 4, 2, 16, 64, 128, ROPE_NONE, false, false, false, false,
     false},
    {"llama-linear", "llama", 32, 2, 2, 16, 48, 128, ROPE_LINEAR, true, true, true, false, false},
    {"llama-linear.F32.gguf", "llama", 32, 2, 2, 16, 48, 128, ROPE_LINEAR, true, true, true, false,
     false},
    {"mistral", "mistral", 48, 4, 2, 16, 64, 128, ROPE_YARN, true, false, false, false, false},
    {"yi", "llama", 64, 4, 1, 16, 64, 128, ROPE_NONE, false, false, false, false, false},
    {"smollm2", "llama", 64, 4, 2, 16, 64, 272, ROPE_NONE, true, false, false, false, true},
    {"smollm2.F32.gguf", "llama", 64, 4, 2, 16, 64, 272, ROPE_NONE, true, false, false, false,
     true},
    {"qwen2", "qwen2", 32, 2, 1, 16, 64, 128, ROPE_YARN, true, true, false, false, false},
    {"qwen2.F32.gguf", "qwen2", 32, 2, 1, 16, 64, 128, ROPE_YARN, true, true, false, false, false},
    {"qwen3", "qwen3", 48, 3, 1, 32, 64, 128, ROPE_NONE, true, false, false, true, true},
    {"qwen3.F32.gguf", "qwen3", 48, 3, 1, 32, 64, 128, ROPE_NONE, true, false, false, true, true},
    {"mistral-window", "mistral", 32, 4, 2, 8, 48, 128, ROPE_NONE, true, false, false, false, false,
     .window = 17, .layers = "lll"},
    {"gemma2", "gemma2", 48, 3, 1, 32, 64, 128, ROPE_NONE, true, false, false, false, true, 4,
     0.20412414523193154, 12, 0, "l.l."},
    {"gemma2.F32.gguf", "gemma2", 48, 3, 1, 32, 64, 128, ROPE_NONE, true, false, false, false, true,
     4, 0.20412414523193154, 12, 0, "l.l."},
    {"gemma3", "gemma3", 48, 4, 2, 16, 64, 128, ROPE_LINEAR, true, false, false, true, true, 7, 0,
     12, 0, "lllll.l"},
    {"gemma3.F32.gguf", "gemma3", 48, 4, 2, 16, 64, 128, ROPE_LINEAR, true, false, false, true,
     true, 7, 0, 12, 0, "lllll.l"},
    {"phi3", "phi3", 48, 3, 1, 16, 64, 128, ROPE_LONG, true, false, false, false, false,
     .window = 14, .layers = "lll"},
    {"phi3.F32.gguf", "phi3", 48, 3, 1, 16, 64, 128, ROPE_LONG, true, false, false, false, false,
     .window = 14, .layers = "lll"},
    {"phi3-long", "phi3", 32, 2, 1, 16, 48, 128, ROPE_LONG, true, false, false, false, true,
     .n_rot = 12},
    {"phi3-long.F32.gguf", "phi3", 32, 2, 1, 16, 48, 128, ROPE_LONG, true, false, false, false,
     true, .n_rot = 12},
    {"granite", "granite", 48, 3, 1, 16, 64, 128, ROPE_NONE, true, false, false, false, true,
     .scale = 0.2},
    {"granite.F32.gguf", "granite", 48, 3, 1, 16, 64, 128, ROPE_NONE, true, false, false, false,
     true, .scale = 0.2},
    {"smollm3", "smollm3", 48, 4, 2, 12, 64, 128, ROPE_NONE, false, false, false, false, false, 5,
     .layers = "...n."},
    {"smollm3.F32.gguf", "smollm3", 48, 4, 2, 12, 64, 128, ROPE_NONE, true, false, false, false,
     false, 5, .layers = "...n."},
    {"olmo2", "olmo2", 48, 3, 1, 16, 64, 128, ROPE_NONE, true, false, false, true, false},
    {"olmo2.F32.gguf", "olmo2", 48, 3, 1, 16, 64, 128, ROPE_NONE, true, false, false, true, false},
    {"glm4", "glm4", 48, 3, 1, 16, 64, 128, ROPE_NONE, true, true, false, false, false, .n_rot = 8},
    {"glm4.F32.gguf", "glm4", 48, 3, 1, 16, 64, 128, ROPE_NONE, true, true, false, false, false,
     .n_rot = 8},
    {"stablelm", "stablelm", 64, 4, 2, 16, 64, 128, ROPE_NONE, true, true, false, false, false,
     .n_rot = 4},
    {"stablelm.F32.gguf", "stablelm", 64, 4, 2, 16, 64, 128, ROPE_NONE, true, true, false, false,
     false, .n_rot = 4},
    {"stablelm-3b", "stablelm", 32, 2, 2, 16, 48, 128, ROPE_NONE, true, false, false, false, false,
     .n_rot = 8},
};

TEST(architectures_by_either_name)
{
    ASSERT_TRUE(model_arch_by_hf("LlamaForCausalLM") == model_arch_by_gguf("llama"));
    ASSERT_TRUE(model_arch_by_hf("Gemma3ForCausalLM") == model_arch_by_gguf("gemma3"));
    ASSERT_STREQ(model_arch_by_hf("MistralForCausalLM")->name, "mistral");
    ASSERT_TRUE(model_arch_by_hf("Llama4ForConditionalGeneration") == model_arch_by_gguf("llama4"));
    ASSERT_TRUE(!model_arch_by_gguf("mistral")); /* there it is "llama" */
    ASSERT_TRUE(!model_arch_by_hf("llama") && !model_arch_by_gguf("") && !model_arch_by_hf(""));
}

TEST(configurations)
{
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        struct model *m = open_model(all[i].name);
        const struct model_cfg *c = model_config(m);
        ASSERT_STREQ(c->arch, all[i].arch);
        ASSERT_EQ(c->L, all[i].L ? all[i].L : 3);
        ASSERT_EQ(c->D, all[i].D);
        ASSERT_EQ(c->H, all[i].H);
        ASSERT_EQ(c->G, all[i].G);
        ASSERT_EQ(c->K, all[i].K);
        ASSERT_EQ(c->F, all[i].F);
        ASSERT_EQ(c->V, all[i].V);
        ASSERT_EQ(c->ctx_max, c->V == 272 ? 8192 : 2048);
        ASSERT_EQ(c->rope.type, all[i].rope);
        ASSERT_EQ(c->file_f32, all[i].f32);
        ASSERT_EQ(c->file_bf16_or_less, !all[i].f32);
        ASSERT_EQ(c->tied, all[i].tied);
        ASSERT_NEAR(c->rms_eps, strcmp(c->arch, "granite") == 0 ? 1e-5 / 0.49 : 1e-5, 1e-10);
        ASSERT_NEAR(c->attn_scale, all[i].scale > 0 ? all[i].scale : 1 / sqrt(c->K), 1e-7);
        ASSERT_EQ(c->window, all[i].window);
        ASSERT_EQ(c->n_rot, all[i].n_rot ? all[i].n_rot : c->K);
        for (unsigned l = 0; l < c->L; l++) {
            const char kind = all[i].layers ? all[i].layers[l] : '.';
            ASSERT_EQ(model_layer_is(c, l, MODEL_LAYER_LOCAL), kind == 'l');
            ASSERT_EQ(model_layer_is(c, l, MODEL_LAYER_NOPE), kind == 'n');
        }
        ASSERT_EQ(model_has(m, MODEL_Q_BIAS, 0), all[i].qkv_bias);
        ASSERT_EQ(model_has(m, MODEL_V_BIAS, 2), all[i].qkv_bias);
        ASSERT_EQ(model_has(m, MODEL_O_BIAS, 1), all[i].o_bias);
        ASSERT_EQ(model_has(m, MODEL_K_NORM, 1), all[i].qk_norm);
        ASSERT_TRUE(model_has(m, MODEL_LM_HEAD, 0) && model_has(m, MODEL_DOWN, 2));
        ASSERT_TRUE(!model_has(m, MODEL_Q, c->L));
        ASSERT_EQ(model_gguf(m) != NULL, strstr(all[i].name, ".gguf") != NULL);
        ASSERT_TRUE(strstr(model_path(m), all[i].name) != NULL);
        ASSERT_TRUE(c->name[0] != 0);
        model_close(m);
    }
}

static float *rows_of(const struct model *m, enum model_w w, unsigned l, size_t *ret_n)
{
    size_t rows = model_w_rows(m, w), cols = model_w_cols(m, w);
    float *out = mem_alloc(rows * cols * sizeof(float));
    ASSERT_TRUE(out != NULL);
    ASSERT_OK(model_rows(m, w, l, 0, rows, out));
    *ret_n = rows * cols;
    return out;
}

static void same_weights(const char *a, const char *b)
{
    struct model *x = open_model(a), *y = open_model(b);
    for (unsigned l = 0; l < model_config(x)->L; l++) {
        for (int w = 0; w < MODEL_W_COUNT; w++) {
            size_t n, k;
            ASSERT_EQ(model_has(x, (enum model_w)w, l), model_has(y, (enum model_w)w, l));
            if (!model_has(x, (enum model_w)w, l)) continue;
            float *p = rows_of(x, (enum model_w)w, l, &n), *q = rows_of(y, (enum model_w)w, l, &k);
            ASSERT_EQ(n, k);
            if (memcmp(p, q, n * sizeof(float)) != 0)
                test_fail(__FILE__, __LINE__, "weight %d of layer %u differs", w, l);
            mem_free(p);
            mem_free(q);
        }
    }
    model_close(x);
    model_close(y);
}

/* "qwen3.F32.gguf" in parts, as tests/data/make/make_tiny_models.py cuts it. */
static const char split_first[] = "models/split/qwen3-00001-of-00003.gguf";

TEST(a_split_file_is_the_whole)
{
    struct model *a = open_model("qwen3.F32.gguf"), *b;
    ASSERT_OK(model_open(test_data(split_first), &b, NULL));
    ASSERT_MEMEQ(model_config(a)->fingerprint, model_config(b)->fingerprint, 16);
    model_close(a);
    model_close(b);
    same_weights("qwen3", "split/qwen3-00001-of-00003.gguf");
}

TEST(parts_that_do_not_fit_are_refused)
{
    static const struct {
        const char *from[3]; /* what stands where parts 1 to 3 should */
        int code;
        const char *why;
    } cases[] = {
        {{"1-of-00003", "2-of-00003", NULL}, -ENOENT, "cannot be opened"},
        {{"1-of-00003", "3-of-00003", "2-of-00003"}, -EBADMSG, "is not part 2 of 3"},
        {{"1-of-00003", "1-of-00003", "3-of-00003"}, -EBADMSG, "is not part 2 of 3"},
        {{"2-of-00003", "2-of-00003", "3-of-00003"}, -ENOTSUP, "is one of 3 parts: name the first"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char dir[] = "/tmp/test-model-XXXXXX", path[3][96], rel[96];
        struct model *m = NULL;
        struct err err = {0};
        ASSERT_TRUE(mkdtemp(dir) != NULL);
        for (size_t p = 0; p < 3; p++) {
            (void)snprintf(path[p], sizeof(path[p]), "%s/x-0000%zu-of-00003.gguf", dir, p + 1);
            if (!cases[i].from[p]) continue;
            (void)snprintf(rel, sizeof(rel), "models/split/qwen3-0000%s.gguf", cases[i].from[p]);
            ASSERT_EQ(symlink(test_data(rel), path[p]), 0);
        }
        const int r = model_open(path[0], &m, &err);
        if (r != cases[i].code || m || !strstr(err.msg, cases[i].why))
            test_fail(__FILE__, __LINE__, "%d \"%s\"", r, err.msg);
        for (size_t p = 0; p < 3; p++)
            (void)unlink(path[p]);
        ASSERT_EQ(rmdir(dir), 0);
    }
}

TEST(gguf_twins_hold_the_same_weights)
{
    same_weights("llama-linear", "llama-linear.F32.gguf"); /* permuted biases, too */
    same_weights("qwen3", "qwen3.F32.gguf");
    same_weights("smollm2", "smollm2.F32.gguf");
    same_weights("qwen2", "qwen2.F32.gguf");
    same_weights("gemma2", "gemma2.F32.gguf"); /* norms of a folder are less 1 */
    same_weights("gemma3", "gemma3.F32.gguf");
    same_weights("phi3", "phi3.F32.gguf"); /* packed */
    same_weights("granite", "granite.F32.gguf");
    same_weights("smollm3", "smollm3.F32.gguf");
    same_weights("olmo2", "olmo2.F32.gguf");
    same_weights("stablelm", "stablelm.F32.gguf"); /* with biases of norms */
    same_weights("glm4", "glm4.F32.gguf");         /* interleaved in both, in a part of each head */
    same_weights("qwen3moe", "qwen3moe.F32.gguf"); /* a tensor for each expert */
    same_weights("qwen2moe", "qwen2moe.F32.gguf"); /* one for all of them */
    same_weights("olmoe", "olmoe.F32.gguf");
    same_weights("gpt-oss", "gpt-oss.F32.gguf"); /* columns of gate and up in turns */
    same_weights("gpt-oss-mxfp4", "gpt-oss-mxfp4.MXFP4.gguf");
    same_weights("llama4-dense", "llama4-dense.F32.gguf");
    same_weights("llama4", "llama4.F32.gguf"); /* columns, gates before ups, in another model */
}

TEST(mixtures)
{
    static const struct {
        const char *name, *arch;
        struct model_experts e;
        unsigned F;
        bool f32;
    } mixed[] = {
        {"mixtral", "mixtral", {4, 2, 32, 0, true}, 64, true},
        {"mixtral-window", "mixtral", {3, 2, 16, 0, true}, 32, true},
        {"mixtral.MXFP4.gguf", "llama", {4, 2, 32, 0, true}, 64, false},
        {"qwen3moe", "qwen3moe", {8, 3, 16, 0, true}, 48, true},
        {"qwen3moe.F32.gguf", "qwen3moe", {8, 3, 16, 0, true}, 48, true},
        {"qwen2moe", "qwen2moe", {5, 2, 24, 40, false}, 88, true},
        {"qwen2moe.F32.gguf", "qwen2moe", {5, 2, 24, 40, false}, 88, true},
        {"olmoe", "olmoe", {6, 2, 16, 0, false}, 32, true},
        {"olmoe.F32.gguf", "olmoe", {6, 2, 16, 0, false}, 32, true},
        {"gpt-oss", "gpt-oss", {4, 2, 32, 0, true, true}, 64, false},
        {"gpt-oss.F32.gguf", "gpt-oss", {4, 2, 32, 0, true, true}, 64, true},
        {"gpt-oss-mxfp4", "gpt-oss", {4, 2, 32, 0, true, true}, 64, false},
        {"gpt-oss-mxfp4.MXFP4.gguf", "gpt-oss", {4, 2, 32, 0, true, true}, 64, false},
        {"llama4", "llama4", {4, 1, 24, 24}, 48, true},
        {"llama4.F32.gguf", "llama4", {4, 1, 24, 24}, 48, true},
    };
    for (size_t i = 0; i < sizeof(mixed) / sizeof(mixed[0]); i++) {
        struct model *m = open_model(mixed[i].name);
        const struct model_cfg *c = model_config(m);
        ASSERT_STREQ(c->arch, mixed[i].arch);
        ASSERT_EQ(c->experts.n, mixed[i].e.n);
        ASSERT_EQ(c->experts.used, mixed[i].e.used);
        ASSERT_EQ(c->experts.F, mixed[i].e.F);
        ASSERT_EQ(c->experts.shared_F, mixed[i].e.shared_F);
        ASSERT_EQ(c->experts.renorm, mixed[i].e.renorm);
        ASSERT_EQ(c->experts.biases, mixed[i].e.biases);
        ASSERT_EQ(model_has(m, MODEL_EXPERT_DOWN_BIAS, 1), mixed[i].e.biases);
        ASSERT_EQ(c->F, mixed[i].F);
        ASSERT_EQ(c->file_f32, mixed[i].f32); /* whatever the router is */
        ASSERT_EQ(c->file_bf16_or_less, !mixed[i].f32);
        ASSERT_TRUE(!model_has(m, MODEL_GATE, 0) && model_has(m, MODEL_EXPERT_GATE, 1));
        ASSERT_EQ(model_has(m, MODEL_SHARED_UP, 0), mixed[i].e.shared_F > 0);
        ASSERT_EQ(model_w_rows(m, MODEL_EXPERT_DOWN), c->experts.n * c->D);
        model_close(m);
    }
}

/* From one expert's rows on into the next one's. */
TEST(rows_of_experts_in_pieces)
{
    static const char *const names[] = {"qwen3moe",      "qwen2moe", "qwen2moe.F32.gguf", "gpt-oss",
                                        "gpt-oss-mxfp4", "llama4",   "llama4-dense"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct model *m = open_model(names[i]);
        const size_t rows = model_w_rows(m, MODEL_EXPERT_UP), D = model_config(m)->D;
        float out[7 * 48];
        size_t n;
        float *whole = rows_of(m, MODEL_EXPERT_UP, 1, &n);
        ASSERT_EQ(n, rows * D);
        for (size_t r = 0; r + 7 <= rows; r += 5) {
            ASSERT_OK(model_rows(m, MODEL_EXPERT_UP, 1, r, 7, out));
            ASSERT_MEMEQ(out, whole + r * D, 7 * D * sizeof(float));
        }
        ASSERT_ERR(model_rows(m, MODEL_EXPERT_UP, 1, rows - 6, 7, out), -EINVAL);
        mem_free(whole);
        model_close(m);
    }
}

/* Taken apart and put together again, every row of these is what it is; GGUF's permuted ones, too.
 */
static void same_in_codes_of(const char *name, unsigned bits, int from, int to)
{
    struct model *m = open_model(name);
    for (int w = from; w < to; w++) {
        const size_t rows = model_w_rows(m, (enum model_w)w), k = model_w_cols(m, (enum model_w)w);
        const struct codes_form f = model_form(m, (enum model_w)w, 1);
        enum { TOGETHER = 3 };
        struct codes_row c[TOGETHER];
        size_t n;
        if (rows == 1 || w == MODEL_ROUTER || !model_has(m, (enum model_w)w, 1)) continue;
        ASSERT_EQ(f.bits, bits);
        ASSERT_TRUE(codes_form_fits(&f, k));
        float *want = rows_of(m, (enum model_w)w, 1, &n), *got = mem_alloc(k * sizeof(*got));
        void *room = mem_alloc(TOGETHER * model_codes_room(k));
        ASSERT_TRUE(got && room);
        model_codes_place(k, TOGETHER, room, c);
        for (size_t i = 0, now; i < rows; i += now) {
            now = rows - i < TOGETHER ? rows - i : TOGETHER;
            ASSERT_OK(model_codes(m, (enum model_w)w, 1, i, now, c));
            for (size_t r = 0; r < now; r++) {
                codes_values(&f, &c[r], k, got);
                ASSERT_MEMEQ(got, want + (i + r) * k, k * sizeof(*got));
            }
        }
        ASSERT_ERR(model_codes(m, (enum model_w)w, 1, rows, 1, c), -EINVAL);
        ASSERT_ERR(model_codes(m, (enum model_w)w, 1, 1, SIZE_MAX, c), -EINVAL);
        mem_free(want);
        mem_free(got);
        mem_free(room);
    }
    model_close(m);
}

static void same_in_codes(const char *name, unsigned bits)
{
    same_in_codes_of(name, bits, 0, MODEL_W_COUNT);
}

TEST(rows_in_codes_are_the_same_rows)
{
    same_in_codes("llama3.Q8_0.gguf", 8);
    same_in_codes("yi", 16);
    same_in_codes("mixtral.MXFP4.gguf", 4);
    same_in_codes_of("gpt-oss", 16, 0, MODEL_SINKS); /* biases have a column each */
    same_in_codes_of("gpt-oss-mxfp4", 4, MODEL_EXPERT_GATE, MODEL_SHARED_GATE);
}

TEST(what_is_f32_has_no_codes)
{
    struct model *m = open_model("qwen3.F32.gguf");
    struct codes_row c;
    ASSERT_EQ(model_form(m, MODEL_Q, 0).bits, 0);
    ASSERT_ERR(model_codes(m, MODEL_Q, 0, 0, 1, &c), -EINVAL);
    ASSERT_ERR(model_codes(m, MODEL_Q_BIAS, 0, 0, 1, &c), -ENOENT);
    model_close(m);
}

TEST(rows_in_pieces)
{
    struct model *m = open_model("llama3.Q8_0.gguf");
    float out[64 * 5];
    size_t n;
    float *whole = rows_of(m, MODEL_Q, 1, &n);
    for (size_t r = 0; r + 5 <= 64; r += 3) {
        ASSERT_OK(model_rows(m, MODEL_Q, 1, r, 5, out));
        ASSERT_MEMEQ(out, whole + r * 64, sizeof(out));
    }
    ASSERT_OK(model_rows(m, MODEL_Q, 1, 64, 0, out));
    ASSERT_ERR(model_rows(m, MODEL_Q, 1, 64, 1, out), -EINVAL);
    ASSERT_ERR(model_rows(m, MODEL_Q, 1, 0, SIZE_MAX, out), -EINVAL);
    ASSERT_ERR(model_rows(m, MODEL_Q, 3, 0, 1, out), -ENOENT);
    ASSERT_ERR(model_rows(m, MODEL_Q_BIAS, 0, 0, 1, out), -ENOENT);
    mem_free(whole);
    model_close(m);
}

static void check_rope(const struct model_cfg *c, const struct model_rope *rope, json_t *inv_freq,
                       json_t *want_mscale)
{
    enum { CTX = 256 }; /* as test_golden.c has it */
    const struct model_rope r = model_rope_for(rope, CTX);
    float got[64], mscale;
    ASSERT_TRUE(c->n_rot / 2 <= 64);
    ASSERT_EQ(json_array_size(inv_freq), c->n_rot / 2);
    model_rope_freqs(c, &r, got, &mscale);
    for (size_t k = 0; k < c->n_rot / 2; k++) {
        const double w = json_number_value(json_array_get(inv_freq, k));
        /* The reference's vector power is good to one unit in the last place; scaling by factors
         * from the file adds another rounding. */
        ASSERT_NEAR(got[k] / w, 1, 4e-7);
    }
    ASSERT_NEAR(mscale, json_number_value(want_mscale), 1e-6);
}

/* One set of factors holds for a core, whatever the length of a prompt. */
TEST(factors_follow_the_context)
{
    struct model *m = open_model("phi3");
    const struct model_cfg *c = model_config(m);
    for (unsigned ctx = 511; ctx <= 513; ctx++) {
        const struct model_rope r = model_rope_for(&c->rope, ctx);
        ASSERT_TRUE(r.freq_factors == (ctx > 512 ? c->rope.long_factors : c->rope.freq_factors));
        ASSERT_TRUE(!r.long_factors);
        ASSERT_EQ(r.factor, ctx > 512);
    }
    model_close(m);
    m = open_model("llama3");
    const struct model_rope r = model_rope_for(&model_config(m)->rope, 8);
    ASSERT_EQ(r.type, ROPE_LLAMA3);
    ASSERT_EQ(r.factor, 8);
    model_close(m);
}

TEST(gpt_oss)
{
    static const char *const names[] = {"gpt-oss", "gpt-oss.F32.gguf", "gpt-oss-mxfp4",
                                        "gpt-oss-mxfp4.MXFP4.gguf"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        struct model *m = open_model(names[i]);
        const struct model_cfg *c = model_config(m);
        json_error_t je;
        json_t *j = json_load_file(
            test_data(i < 2 ? "golden/gpt-oss.json" : "golden/gpt-oss-mxfp4.json"), 0, &je);
        ASSERT_TRUE(j != NULL);
        ASSERT_TRUE(c->sinks && c->qkv_bias && c->o_bias && !c->tied && !c->qk_norm);
        ASSERT_EQ(c->act, KN_SILU_CLAMPED);
        ASSERT_EQ(c->window, 12);
        ASSERT_EQ(c->K, 16);
        for (unsigned l = 0; l < 3; l++)
            ASSERT_EQ(model_layer_is(c, l, MODEL_LAYER_LOCAL), l != 1);
        ASSERT_TRUE(model_has(m, MODEL_SINKS, 2) && model_has(m, MODEL_ROUTER_BIAS, 0));
        ASSERT_EQ(model_w_cols(m, MODEL_SINKS), c->H);
        ASSERT_EQ(c->rope.type, ROPE_YARN);
        check_rope(c, &c->rope, json_object_get(j, "inv_freq"), json_object_get(j, "rope_mscale"));
        check_rope(c, &c->rope_local, json_object_get(j, "inv_freq"),
                   json_object_get(j, "rope_mscale"));
        json_decref(j);
        model_close(m);
    }
}

TEST(llama4)
{
    static const struct {
        const char *name, *golden, *layers; /* as of all[]; then which have no experts */
        const char *dense;
        bool unit;
    } cases[] = {{"llama4", "golden/llama4.json", "lllnl", ".....", true},
                 {"llama4.F32.gguf", "golden/llama4.json", "lllnl", ".....", true},
                 {"llama4-dense", "golden/llama4-dense.json", "lllnl", "d.d.d", false},
                 {"llama4-dense.F32.gguf", "golden/llama4-dense.json", "lllnl", "d.d.d", false}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct model *m = open_model(cases[i].name);
        const struct model_cfg *c = model_config(m);
        json_error_t je;
        json_t *j = json_load_file(test_data(cases[i].golden), 0, &je);
        ASSERT_TRUE(j != NULL);
        ASSERT_EQ(c->L, 5);
        ASSERT_EQ(c->chunk, 24);
        ASSERT_EQ(c->window, 0);
        ASSERT_EQ(c->temp_floor, 16);
        ASSERT_NEAR(c->temp_scale, 0.6, 1e-7);
        ASSERT_EQ(c->qk_unit, cases[i].unit);
        ASSERT_TRUE(c->experts.scales_input && !c->qk_norm && !c->tied && !c->qkv_bias);
        ASSERT_EQ(c->experts.dense_F, strchr(cases[i].dense, 'd') ? 40 : 0);
        ASSERT_EQ(c->F, i < 2 ? 48 : 40); /* one expert and the shared one, or a dense layer's */
        for (unsigned l = 0; l < c->L; l++) {
            const bool dense = cases[i].dense[l] == 'd';
            ASSERT_EQ(model_layer_is(c, l, MODEL_LAYER_LOCAL), cases[i].layers[l] == 'l');
            ASSERT_EQ(model_layer_is(c, l, MODEL_LAYER_NOPE), cases[i].layers[l] == 'n');
            ASSERT_EQ(model_layer_is(c, l, MODEL_LAYER_DENSE), dense);
            ASSERT_EQ(model_has(m, MODEL_DOWN, l), dense);
            ASSERT_EQ(model_has(m, MODEL_ROUTER, l), !dense);
            ASSERT_EQ(model_has(m, MODEL_EXPERT_UP, l), !dense);
            ASSERT_EQ(model_has(m, MODEL_SHARED_DOWN, l), !dense);
            ASSERT_TRUE(!model_has(m, MODEL_SHARED_ROUTER, l));
        }
        check_rope(c, &c->rope, json_object_get(j, "inv_freq"), json_object_get(j, "rope_mscale"));
        json_decref(j);
        model_close(m);
    }
}

TEST(rope_frequencies_equal_transformers)
{
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        char rel[96];
        json_error_t je;
        bool twin = strstr(all[i].name, ".F32.gguf") != NULL;
        int len = (int)(twin ? strcspn(all[i].name, ".") : strlen(all[i].name));
        (void)snprintf(rel, sizeof(rel), "golden/%.*s.json", len, all[i].name);
        json_t *j = json_load_file(test_data(rel), 0, &je);
        ASSERT_TRUE(j != NULL);
        struct model *m = open_model(all[i].name);
        const struct model_cfg *c = model_config(m);
        json_t *local = json_object_get(j, "local_inv_freq");
        check_rope(c, &c->rope, json_object_get(j, "inv_freq"), json_object_get(j, "rope_mscale"));
        check_rope(c, &c->rope_local, local ? local : json_object_get(j, "inv_freq"),
                   json_object_get(j, local ? "local_mscale" : "rope_mscale"));
        model_close(m);
        json_decref(j);
    }
}

/* ---- folders with a changed config.json ---- */
struct folder {
    char dir[40], config[64], weights[64];
};

static void folder_init(struct folder *f, const char *model)
{
    char rel[96];
    (void)snprintf(f->dir, sizeof(f->dir), "/tmp/test-model-XXXXXX");
    ASSERT_TRUE(mkdtemp(f->dir) != NULL);
    (void)snprintf(f->config, sizeof(f->config), "%s/config.json", f->dir);
    (void)snprintf(f->weights, sizeof(f->weights), "%s/model.safetensors", f->dir);
    (void)snprintf(rel, sizeof(rel), "models/%s/model.safetensors", model);
    char *target = realpath(test_data(rel), NULL);
    ASSERT_TRUE(target != NULL);
    ASSERT_EQ(symlink(target, f->weights), 0);
    free(target);
}

static void folder_fini(struct folder *f)
{
    (void)unlink(f->config);
    (void)unlink(f->weights);
    (void)rmdir(f->dir);
}

/* Open `model` with `patch` (a JSON object) laid over its configuration. */
static int open_patched(const char *model, const char *patch, struct model **ret, struct err *err)
{
    struct folder f;
    char rel[96];
    json_error_t je;
    folder_init(&f, model);
    (void)snprintf(rel, sizeof(rel), "models/%s/config.json", model);
    json_t *j = json_load_file(test_data(rel), 0, &je), *p = json_loads(patch, 0, &je);
    ASSERT_TRUE(j && p);
    ASSERT_EQ(json_object_update(j, p), 0);
    ASSERT_EQ(json_dump_file(j, f.config, 0), 0);
    json_decref(j);
    json_decref(p);
    int r = model_open(f.dir, ret, err);
    folder_fini(&f);
    return r;
}

/* Without their types, layers have chunks where they rotate. */
TEST(llama4_layers_by_their_rotation)
{
    struct model *m;
    ASSERT_OK(open_patched("llama4-dense", "{\"layer_types\":null,\"no_rope_layers\":[1,0,1,1,0]}",
                           &m, NULL));
    for (unsigned l = 0; l < 5; l++) {
        const bool still = l == 1 || l == 4;
        ASSERT_EQ(model_layer_is(model_config(m), l, MODEL_LAYER_NOPE), still);
        ASSERT_EQ(model_layer_is(model_config(m), l, MODEL_LAYER_LOCAL), !still);
    }
    model_close(m);
}

static const struct {
    const char *model, *patch;
    int code;
    const char *why;
} refusals[] = {
    {"llama2", "{\"architectures\":[\"GemmaForCausalLM\"]}", -ENOTSUP,
     "architecture \"GemmaForCausalLM\""},
    {"llama2", "{\"architectures\":[\"Llama4ForCausalLM\"]}", -EBADMSG,
     "\"num_experts\" is missing"},
    {"llama2", "{\"layer_types\":[\"chunked_attention\",\"full_attention\",\"full_attention\"]}",
     -ENOTSUP, "layer type \"chunked_attention\""},
    {"llama2", "{\"architectures\":null}", -EBADMSG, "\"architectures\" is missing"},
    {"llama2", "{\"hidden_act\":\"gelu\"}", -ENOTSUP, "activation \"gelu\""},
    {"llama2", "{\"mlp_bias\":true}", -ENOTSUP, "mlp_bias"},
    {"llama2", "{\"quantization_config\":{\"bits\":4}}", -ENOTSUP, "quantization_config"},
    {"llama2", "{\"embedding_multiplier\":12}", -ENOTSUP, "embedding_multiplier"},
    {"llama2", "{\"num_local_experts\":8}", -ENOTSUP, "mixture of experts"},
    {"llama2", "{\"partial_rotary_factor\":0.5}", -ENOTSUP, "rotates only 0.5"},
    {"llama2", "{\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}}", -ENOTSUP,
     "rope type \"dynamic\""},
    {"llama2", "{\"rope_scaling\":{\"rope_type\":\"longrope\"}}", -EBADMSG, "\"short_factor\""},
    {"llama2", "{\"rope_scaling\":{\"type\":\"mrope\"}}", -ENOTSUP, "rope type \"mrope\""},
    {"llama2", "{\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}}", -ENOTSUP,
     "per kind of layer"},
    {"llama2", "{\"rope_scaling\":{\"type\":\"linear\"}}", -EBADMSG, "factor is damaged"},
    {"llama2", "{\"rope_scaling\":{\"type\":\"linear\",\"factor\":\"2\"}}", -EBADMSG,
     "\"factor\" is not a number"},
    {"llama2", "{\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8}}", -EBADMSG, "llama3"},
    {"llama4-dense",
     "{\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":2,"
     "\"high_freq_factor\":1}}",
     -EBADMSG, "damaged frequency factors"},
    {"llama2", "{\"rope_theta\":-1}", -EBADMSG, "rope base"},
    {"llama2", "{\"rms_norm_eps\":\"x\"}", -EBADMSG, "\"rms_norm_eps\" is not a number"},
    {"llama2", "{\"num_hidden_layers\":null}", -EBADMSG, "\"num_hidden_layers\" is missing"},
    {"llama2", "{\"num_hidden_layers\":-1}", -EBADMSG, "not a count"},
    {"llama2", "{\"num_hidden_layers\":1000000}", -EBADMSG, "layers of 1000000"},
    {"llama2", "{\"num_hidden_layers\":4}", -EBADMSG, "\"model.layers.3."},
    {"llama2", "{\"num_hidden_layers\":2}", -ENOTSUP, "is not known"},
    {"llama2", "{\"hidden_size\":4294967295}", -EBADMSG, "hidden size"},
    {"llama2", "{\"hidden_size\":64}", -EBADMSG, "has shape"},
    {"llama2", "{\"num_attention_heads\":0}", -EBADMSG, "0 attention heads"},
    {"llama2", "{\"num_key_value_heads\":2}", -EBADMSG, "cannot share"},
    {"llama2", "{\"head_dim\":15}", -EBADMSG, "is odd"},
    {"llama2", "{\"attention_bias\":true}", -EBADMSG, "bias\" is missing"},
    {"llama-linear", "{\"attention_bias\":false}", -ENOTSUP, "is not known"},
    {"qwen2", "{\"architectures\":[\"LlamaForCausalLM\"]}", -ENOTSUP, "is not known"},
    {"qwen2", "{\"layer_types\":[\"linear_attention\",1,2]}", -ENOTSUP, "\"linear_attention\""},
    {"qwen2", "{\"layer_types\":[\"full_attention\"]}", -EBADMSG, "list of 3"},
    {"qwen2", "{\"layer_types\":7}", -EBADMSG, "list of 3"},
    {"qwen2", "{\"max_window_layers\":-1}", -EBADMSG, "not a count"},
    {"mistral", "{\"sliding_window\":-1}", -EBADMSG, "not a count"},
    {"gemma3", "{\"sliding_window_pattern\":0,\"layer_types\":null}", -EBADMSG, "pattern"},
    {"gemma3", "{\"hidden_activation\":\"gelu\"}", -ENOTSUP, "activation \"gelu\""},
    {"gemma3", "{\"use_bidirectional_attention\":true}", -ENOTSUP, "both directions"},
    {"gemma3", "{\"query_pre_attn_scalar\":0}", -EBADMSG, "attention scale"},
    {"gemma3", "{\"query_pre_attn_scalar\":-4}", -EBADMSG, "attention scale"},
    {"gemma3", "{\"rope_local_base_freq\":0}", -EBADMSG, "rope base"},
    {"gemma3", "{\"rope_parameters\":{\"full_attention\":7}}", -EBADMSG, "no object"},
    {"gemma3", "{\"rope_scaling\":{\"rope_type\":\"dynamic\"}}", -ENOTSUP, "\"dynamic\""},
    {"phi3",
     "{\"rope_parameters\":{\"rope_type\":\"longrope\",\"rope_theta\":1e4,"
     "\"short_factor\":[1,1,1,1,1,1,1,0],\"long_factor\":[1,1,1,1,1,1,1,1]}}",
     -EBADMSG, "\"short_factor\" is damaged"},
    {"phi3",
     "{\"rope_parameters\":{\"rope_type\":\"su\",\"rope_theta\":1e4,"
     "\"short_factor\":[1,1,1,1,1,1,1,1],\"long_factor\":[1,1,1,1,1,1,1]}}",
     -EBADMSG, "\"long_factor\" is no list of 8"},
    {"phi3", "{\"partial_rotary_factor\":0.2,\"rope_parameters\":null}", -EBADMSG,
     "3 rotated dimensions"},
    {"phi3", "{\"num_key_value_heads\":3}", -EBADMSG, "qkv_proj.weight\" has shape"},
    {"granite", "{\"residual_multiplier\":0}", -EBADMSG, "norm epsilon"},
    {"granite", "{\"logits_scaling\":0}", -EBADMSG, "scale of embeddings or logits"},
    {"granite", "{\"embedding_multiplier\":-1}", -EBADMSG, "scale of embeddings or logits"},
    {"granite", "{\"attention_multiplier\":\"x\"}", -EBADMSG, "is not a number"},
    {"smollm3", "{\"no_rope_layers\":[1,1]}", -EBADMSG, "list of 5"},
    {"smollm3", "{\"use_sliding_window\":true,\"sliding_window\":64,\"layer_types\":null}",
     -ENOTSUP, "without types of layers"},
    {"glm4", "{\"attention_bias\":false}", -ENOTSUP, "is not known"},
    {"stablelm", "{\"use_qkv_bias\":false}", -ENOTSUP, "is not known"},
    {"stablelm", "{\"use_parallel_residual\":true}", -ENOTSUP, "use_parallel_residual"},
    {"stablelm", "{\"qk_layernorm\":true}", -ENOTSUP, "qk_layernorm"},
    {"stablelm", "{\"layer_norm_eps\":-1}", -EBADMSG, "norm epsilon"},
    {"stablelm", "{\"architectures\":[\"LlamaForCausalLM\"],\"rope_parameters\":null}", -ENOTSUP,
     "is not known"},
    {"gemma2", "{\"attn_logit_softcapping\":-1}", -EBADMSG, "bound of scores"},
    {"gemma2", "{\"final_logit_softcapping\":1e300}", -EBADMSG, "bound of scores"},
    {"gemma2", "{\"architectures\":[\"LlamaForCausalLM\"]}", -ENOTSUP, "activation"},
    {"mixtral", "{\"num_local_experts\":\"4\"}", -EBADMSG, "\"num_local_experts\" is not a count"},
    {"mixtral", "{\"num_local_experts\":5}", -EBADMSG, "has shape [4, 64], expected [5, 64]"},
    {"mixtral", "{\"intermediate_size\":31}", -EBADMSG, "experts.0.w1.weight\" has shape [32, 64]"},
    {"mixtral", "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"moe_intermediate_size\":32}",
     -EBADMSG, "q_norm.weight\" is missing"},
    {"qwen3moe", "{\"num_local_experts\":0}", -EBADMSG, "\"num_experts\" is missing"},
    {"qwen3moe", "{\"num_local_experts\":1025}", -EBADMSG, "1025 experts are outside 1…1024"},
    {"qwen3moe", "{\"num_experts_per_tok\":9}", -EBADMSG, "9 experts of a token are outside 1…8"},
    {"qwen3moe", "{\"num_experts_per_tok\":0}", -EBADMSG, "0 experts of a token"},
    {"qwen3moe", "{\"num_experts_per_tok\":null}", -EBADMSG, "\"num_experts_per_tok\" is missing"},
    {"qwen3moe", "{\"moe_intermediate_size\":4294967295}", -EBADMSG, "width of an expert"},
    {"qwen3moe", "{\"moe_intermediate_size\":1048576}", -EBADMSG, "feed-forward size of 3145728"},
    {"qwen3moe", "{\"decoder_sparse_step\":2}", -ENOTSUP, "layers without experts"},
    {"qwen3moe", "{\"mlp_only_layers\":[1]}", -ENOTSUP, "layers without experts"},
    {"qwen2moe", "{\"num_experts\":4}", -EBADMSG, "has shape [5, 32], expected [4, 32]"},
    {"qwen2moe", "{\"moe_intermediate_size\":12}", -EBADMSG,
     "has shape [5, 48, 32], expected [5, 24, 32]"},
    {"qwen2moe", "{\"shared_expert_intermediate_size\":0}", -ENOTSUP, "is not known"},
    {"qwen2moe", "{\"shared_expert_intermediate_size\":4294967295}", -EBADMSG, "shared expert"},
    {"qwen2moe", "{\"use_sliding_window\":true,\"sliding_window\":64,\"layer_types\":null}",
     -ENOTSUP, "without types of layers"},
    {"qwen2moe", "{\"qkv_bias\":false}", -ENOTSUP, "is not known"},
    {"olmoe", "{\"clip_qkv\":8.0}", -ENOTSUP, "clip_qkv"},
    {"gpt-oss", "{\"swiglu_limit\":8}", -ENOTSUP, "swiglu_limit 8"},
    {"gpt-oss", "{\"swiglu_alpha\":1.7}", -ENOTSUP, "swiglu_alpha 1.7"},
    {"gpt-oss", "{\"swiglu_limit\":\"x\"}", -EBADMSG, "is not a number"},
    {"gpt-oss", "{\"hidden_act\":\"gelu\"}", -ENOTSUP, "activation \"gelu\""},
    {"gpt-oss", "{\"rope_parameters\":null}", -EBADMSG, "rope settings are no object"},
    {"gpt-oss", "{\"attention_bias\":false}", -ENOTSUP, "is not known"},
    {"gpt-oss", "{\"intermediate_size\":16}", -EBADMSG,
     "gate_up_proj\" has shape [4, 32, 64], expected [4, 32, 32]"},
    {"gpt-oss", "{\"quantization_config\":{\"quant_method\":\"fp8\"}}", -ENOTSUP,
     "quantization_config"},
    {"gpt-oss-mxfp4", "{\"quantization_config\":{\"quant_method\":4}}", -EBADMSG,
     "quantization_config"},
    {"gpt-oss-mxfp4", "{\"num_local_experts\":5}", -EBADMSG, "expected [5, 32]"},
    {"gpt-oss-mxfp4", "{\"intermediate_size\":64}", -EBADMSG,
     "gate_up_proj_blocks\" has shape [4, 64, 16], expected [4, 128, 16]"},
    {"gpt-oss-mxfp4", "{\"layer_types\":[\"full_attention\",\"x\",1]}", -ENOTSUP,
     "layer type \"x\""},
    {"llama2", "{\"quantization_config\":{\"quant_method\":\"mxfp4\"}}", -ENOTSUP,
     "quantization_config"},
    {"olmoe", "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"moe_intermediate_size\":16}",
     -EBADMSG, "q_norm.weight\" has shape [1, 32], expected [1, 16]"},
    {"llama4-dense", "{\"attention_chunk_size\":0}", -EBADMSG, "\"attention_chunk_size\" is 0"},
    {"llama4-dense", "{\"attention_chunk_size\":-24}", -EBADMSG, "is not a count"},
    {"llama4-dense", "{\"attention_chunk_size\":24.5}", -EBADMSG, "is not a count"},
    {"llama4-dense", "{\"sliding_window\":64}", -ENOTSUP, "where it has chunks"},
    {"llama4-dense", "{\"interleave_moe_layer_step\":0,\"moe_layers\":null}", -EBADMSG,
     "\"interleave_moe_layer_step\" is 0"},
    {"llama4-dense", "{\"interleave_moe_layer_step\":-1}", -EBADMSG, "is not a count"},
    {"llama4-dense", "{\"interleave_moe_layer_step\":1,\"moe_layers\":null}", -EBADMSG,
     "layers.0.feed_forward.router.weight\" is missing"},
    {"llama4-dense", "{\"moe_layers\":[1,5]}", -EBADMSG, "names no layer of 5"},
    {"llama4-dense", "{\"moe_layers\":[1,-1]}", -EBADMSG, "names no layer of 5"},
    {"llama4-dense", "{\"moe_layers\":3}", -EBADMSG, "\"moe_layers\" is no list"},
    {"llama4-dense", "{\"moe_layers\":[1]}", -EBADMSG,
     "3.feed_forward.gate_proj.weight\" is missing"},
    {"llama4-dense", "{\"no_rope_layers\":[1,0]}", -EBADMSG, "no list of 5 entries"},
    {"llama4-dense", "{\"no_rope_layers\":0}", -EBADMSG, "no list of 5 entries"},
    {"llama4-dense", "{\"num_local_experts\":0}", -ENOTSUP, "has no experts"},
    {"llama4-dense", "{\"num_local_experts\":5}", -EBADMSG,
     "has shape [128, 32], expected [5, 32]"},
    {"llama4-dense", "{\"num_experts_per_tok\":129}", -EBADMSG,
     "129 experts of a token are outside 1…128"},
    {"llama4-dense", "{\"intermediate_size\":12}", -EBADMSG, "expected [12, 32]"},
    {"llama4-dense", "{\"intermediate_size_mlp\":null}", -EBADMSG, "is missing"},
    {"llama4-dense", "{\"intermediate_size_mlp\":0}", -EBADMSG, "feed-forward size of 0"},
    {"llama4-dense", "{\"floor_scale\":0}", -EBADMSG, "\"floor_scale\" is not above 0"},
    {"llama4-dense", "{\"floor_scale\":-16}", -EBADMSG, "\"floor_scale\" is not above 0"},
    {"llama4-dense", "{\"floor_scale\":1e300}", -EBADMSG, "temperature is damaged"},
    {"llama4-dense", "{\"attn_scale\":-0.1}", -EBADMSG, "temperature is damaged"},
    {"llama4-dense", "{\"attn_temperature_tuning\":\"yes\"}", -EBADMSG, "is not true or false"},
    {"llama4-dense",
     "{\"use_qk_norm\":true,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":2}}", -ENOTSUP,
     "scales what its rotation gives"},
    {"llama4-dense",
     "{\"layer_types\":[\"sliding_attention\",\"full_attention\",\"x\",\"x\",\"x\"]}", -ENOTSUP,
     "layer type \"sliding_attention\""},
    {"llama4", "{\"text_config\":null}", -EBADMSG, "\"text_config\" is no object"},
    {"llama4", "{\"text_config\":{}}", -EBADMSG, "\"num_hidden_layers\" is missing"},
    {"llama4", "{\"quantization_config\":{\"quant_method\":\"fp8\"}}", -ENOTSUP,
     "quantization_config"},
};

TEST(refused_by_name)
{
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        struct model *m = NULL;
        struct err err = {0};
        int r = open_patched(refusals[i].model, refusals[i].patch, &m, &err);
        if (r != refusals[i].code || m || !strstr(err.msg, refusals[i].why))
            test_fail(__FILE__, __LINE__, "%s: %d \"%s\"", refusals[i].patch, r, err.msg);
    }
}

/* A folder whose tensors' header says `is` where it said `was`, which is as long. */
static int open_retold(const char *model, const char *was, const char *is, struct err *err)
{
    struct folder f;
    char rel[96];
    size_t len;
    struct model *m = NULL;
    ASSERT_EQ(strlen(was), strlen(is));
    folder_init(&f, model);
    (void)snprintf(rel, sizeof(rel), "models/%s/model.safetensors", model);
    uint8_t *p = read_whole(test_data(rel), &len), *at = memmem(p, len, was, strlen(was));
    ASSERT_TRUE(at != NULL);
    memcpy(at, is, strlen(is));
    ASSERT_OK(unlink(f.weights));
    FILE *out = fopen(f.weights, "wb");
    ASSERT_TRUE(out != NULL);
    ASSERT_EQ(fwrite(p, 1, len, out), len);
    ASSERT_EQ(fclose(out), 0);
    (void)snprintf(rel, sizeof(rel), "models/%s/config.json", model);
    char *config = realpath(test_data(rel), NULL);
    ASSERT_EQ(symlink(config, f.config), 0);
    const int r = model_open(f.dir, &m, err);
    model_close(m);
    free(config);
    mem_free(p);
    folder_fini(&f);
    return r;
}

TEST(mxfp4_that_does_not_fit_is_refused)
{
    static const struct {
        const char *was, *is;
        int code;
        const char *why;
    } cases[] = {
        {"[4,64,1,16]", "[4,64,2, 8]", 0, ""}, /* the same bytes */
        {"[4,64,1,16]", "[4,16,4,16]", -EBADMSG,
         "_blocks\" has shape [4, 16, 64], expected [4, 64"},
        {"[4,64,1,16]", "[4,64,  16]", -EBADMSG, "has 3 dimensions of U8, expected 4 of U8"},
        {"\"U8\",\"shape\":[4,64,1,16]", "\"I8\",\"shape\":[4,64,1,16]", -EBADMSG,
         "has 4 dimensions of I8"},
        {"[4,64,1]", "[4,1,64]", -EBADMSG, "_scales\" has shape [4, 1, 64], expected [4, 64, 1]"},
        {"[4,64,1]", "[4,8,8 ]", -EBADMSG, "_scales\" has shape"},
        {"gate_up_proj_scales", "gate_up_proj_scalez", -EBADMSG, "_scales\" is missing"},
        {"gate_up_proj_bias", "gate_up_proj_biaz", -EBADMSG, "_bias\" is missing"},
        {"down_proj_blocks", "down_proj_blockz", -EBADMSG, "down_proj\" is missing"},
        {"self_attn.sinks", "self_attn.sinkz", -EBADMSG, "self_attn.sinks\" is missing"},
        {"[4,64,1,16]", "[0,64,1,16]", -EBADMSG, "does not fit its size"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct err err = {0};
        const int r = open_retold("gpt-oss-mxfp4", cases[i].was, cases[i].is, &err);
        if (r != cases[i].code || !strstr(err.msg, cases[i].why))
            test_fail(__FILE__, __LINE__, "%s: %d \"%s\"", cases[i].is, r, err.msg);
    }
}

TEST(quantised_biases_are_refused)
{
    static const char name[] = "blk.0.ffn_gate_exps.bias";
    const uint32_t q8_0 = 8;
    size_t len;
    uint8_t *p = read_whole(test_data("models/gpt-oss.F32.gguf"), &len);
    uint8_t *at = memmem(p, len, name, sizeof(name) - 1);
    struct model *m = NULL;
    struct err err = {0};
    struct mem_file f;
    ASSERT_TRUE(at != NULL);
    /* Behind its name stand the number of its dimensions, these two, and the type. */
    memcpy(at + sizeof(name) - 1 + 4 + 2 * 8, &q8_0, sizeof(q8_0));
    mem_file_init(&f, p, len);
    ASSERT_ERR(model_open(f.path, &m, &err), -ENOTSUP);
    if (!strstr(err.msg, "are quantised (Q8_0)")) test_fail(__FILE__, __LINE__, "%s", err.msg);
    mem_file_fini(&f);
    mem_free(p);
}

/* One bit of a scale is one of the model. */
TEST(fingerprint_covers_scales)
{
    struct folder f;
    size_t len;
    struct model *a = open_model("gpt-oss-mxfp4"), *b;
    folder_init(&f, "gpt-oss-mxfp4");
    uint8_t *p = read_whole(test_data("models/gpt-oss-mxfp4/model.safetensors"), &len);
    static const char name[] = "layers.1.mlp.experts.down_proj_scales\"";
    const char *at = memmem(p, len, name, sizeof(name) - 1);
    ASSERT_TRUE(at != NULL);
    at = strstr(at, "data_offsets\":[") + sizeof("data_offsets\":[") - 1;
    uint64_t header;
    memcpy(&header, p, sizeof(header));
    p[sizeof(header) + header + strtoul(at, NULL, 10) + 100] ^= 1;
    ASSERT_OK(unlink(f.weights));
    FILE *out = fopen(f.weights, "wb");
    ASSERT_TRUE(out && fwrite(p, 1, len, out) == len && fclose(out) == 0);
    char *whole = realpath(test_data("models/gpt-oss-mxfp4/config.json"), NULL);
    ASSERT_OK(symlink(whole, f.config));
    ASSERT_OK(model_open(f.dir, &b, NULL));
    ASSERT_TRUE(memcmp(model_config(a)->fingerprint, model_config(b)->fingerprint, 16) != 0);
    model_close(a), model_close(b);
    free(whole);
    mem_free(p);
    folder_fini(&f);
}

/* What looks similar and is harmless. */
TEST(accepted_variants)
{
    static const struct {
        const char *model, *patch;
    } fine[] = {
        {"mistral", "{\"sliding_window\":4096}"},
        {"mistral", "{\"sliding_window\":1024}"},
        {"qwen2", "{\"use_sliding_window\":true,\"sliding_window\":512}"},
        {"qwen2", "{\"use_sliding_window\":false,\"sliding_window\":512}"},
        {"llama2", "{\"embedding_multiplier\":1.0,\"partial_rotary_factor\":1}"},
        {"llama2", "{\"rope_scaling\":{\"type\":\"default\"}}"},
        {"llama2", "{\"head_dim\":null,\"num_key_value_heads\":null}"},
        {"llama4-dense", "{\"attn_temperature_tuning\":4}"}, /* as in files before it was a flag */
        {"llama4-dense", "{\"no_rope_layers\":[],\"layer_types\":null,\"moe_layers\":null}"},
        {"llama4-dense", "{\"attention_chunk_size\":null}"},
    };
    for (size_t i = 0; i < sizeof(fine) / sizeof(fine[0]); i++) {
        struct model *m;
        struct err err = {0};
        if (open_patched(fine[i].model, fine[i].patch, &m, &err) < 0)
            test_fail(__FILE__, __LINE__, "%s", err.msg);
        model_close(m);
    }
}

TEST(fingerprint_covers_configuration_and_weights)
{
    struct model *a = open_model("llama2"), *b;
    const uint64_t *fa = model_config(a)->fingerprint;
    ASSERT_OK(open_patched("llama2", "{}", &b, NULL)); /* another folder, the same model */
    ASSERT_MEMEQ(fa, model_config(b)->fingerprint, 16);
    model_close(b);
    ASSERT_OK(open_patched("llama2", "{\"rope_theta\":10001}", &b, NULL));
    ASSERT_TRUE(memcmp(fa, model_config(b)->fingerprint, 16) != 0);
    model_close(b);
    model_close(a);
    a = open_model("qwen3moe");
    ASSERT_OK(open_patched("qwen3moe", "{\"norm_topk_prob\":false}", &b, NULL));
    ASSERT_TRUE(memcmp(model_config(a)->fingerprint, model_config(b)->fingerprint, 16) != 0);
    model_close(b);
    ASSERT_OK(open_patched("qwen3moe", "{\"num_experts_per_tok\":2}", &b, NULL));
    ASSERT_TRUE(memcmp(model_config(a)->fingerprint, model_config(b)->fingerprint, 16) != 0);
    model_close(b);
    model_close(a);
    static const char *const others[] = {"{\"attention_chunk_size\":25}",
                                         "{\"attention_chunk_size\":null}",
                                         "{\"floor_scale\":17}",
                                         "{\"attn_scale\":0.5}",
                                         "{\"attn_temperature_tuning\":0}",
                                         "{\"use_qk_norm\":true}"};
    a = open_model("llama4-dense");
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        ASSERT_OK(open_patched("llama4-dense", others[i], &b, NULL));
        ASSERT_TRUE(memcmp(model_config(a)->fingerprint, model_config(b)->fingerprint, 16) != 0);
        model_close(b);
    }
    model_close(a);

    size_t len;
    uint8_t *p = read_whole(test_data("models/llama3.Q8_0.gguf"), &len);
    uint64_t first[2];
    for (int i = 0; i < 2; i++) {
        struct mem_file f;
        p[len - 100] ^= (uint8_t)i; /* one bit of one weight */
        mem_file_init(&f, p, len);
        ASSERT_OK(model_open(f.path, &b, NULL));
        if (i == 0)
            memcpy(first, model_config(b)->fingerprint, sizeof(first));
        else
            ASSERT_TRUE(memcmp(first, model_config(b)->fingerprint, 16) != 0);
        model_close(b);
        mem_file_fini(&f);
    }
    mem_free(p);
}

/* One bit of one expert, in a file that has all of them in one tensor. */
TEST(fingerprint_covers_experts)
{
    size_t len;
    uint8_t *p = read_whole(test_data("models/qwen2moe.F32.gguf"), &len);
    struct model *m = open_model("qwen2moe.F32.gguf");
    const size_t expert = (size_t)24 * 32;
    float *want = mem_alloc(5 * expert * sizeof(*want));
    ASSERT_OK(model_rows(m, MODEL_EXPERT_UP, 1, 0, (size_t)5 * 24, want));
    uint8_t *at = memmem(p, len, want + 3 * expert, 256);
    struct mem_file f;
    struct model *b;
    ASSERT_TRUE(at != NULL);
    *at ^= 1;
    mem_file_init(&f, p, len);
    ASSERT_OK(model_open(f.path, &b, NULL));
    ASSERT_TRUE(memcmp(model_config(m)->fingerprint, model_config(b)->fingerprint, 16) != 0);
    mem_file_fini(&f);
    model_close(b);
    model_close(m);
    mem_free(want);
    mem_free(p);
}

TEST(no_model_at_the_path)
{
    struct model *m = NULL;
    struct err err = {0};
    ASSERT_ERR(model_open("/nonexistent/x", &m, &err), -ENOENT);
    ASSERT_TRUE(strstr(err.msg, "/nonexistent/x") != NULL);
    ASSERT_ERR(model_open(test_data("quant"), &m, &err), -ENOENT);
    ASSERT_TRUE(strstr(err.msg, "config.json") != NULL);
    ASSERT_ERR(model_open(test_data("models/llama2/config.json"), &m, &err), -EBADMSG);
    ASSERT_TRUE(strstr(err.msg, "is not a GGUF file") != NULL);
    ASSERT_TRUE(m == NULL);
}

static void fail_allocations(const char *rel)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s", test_data(rel));
    for (unsigned n = 1;; n++) {
        struct model *m = NULL;
        struct err err = {0};
        mem_fail_nth(n);
        int r = model_open(path, &m, &err);
        bool fired = mem_fail_fired();
        mem_fail_nth(0);
        if (!fired) {
            ASSERT_OK(r);
            model_close(m);
            return;
        }
        if (r != -ENOMEM || m || !err.msg[0])
            test_fail(__FILE__, __LINE__, "allocation %u: %d \"%s\"", n, r, err.msg);
    }
}

TEST(every_failed_allocation_is_reported)
{
    fail_allocations("models/llama3");
    fail_allocations("models/llama3.Q8_0.gguf");
    fail_allocations("models/qwen3moe");
    fail_allocations("models/gpt-oss-mxfp4");
    fail_allocations("models/llama4");
}

TEST(seeded_damage_of_a_configuration)
{
    static const char *const names[] = {"mistral", "qwen2",         "llama-linear", "gemma3",
                                        "phi3",    "granite",       "qwen3moe",     "qwen2moe",
                                        "gpt-oss", "gpt-oss-mxfp4", "llama4",       "llama4-dense"};
    enum { N = sizeof(names) / sizeof(names[0]) };
    size_t n_ok = 0;
    uint64_t seed = 3;
    for (int i = 0; i < 1500; i++) {
        const char *name = names[i % N];
        struct folder f;
        struct model *m = NULL;
        struct err err = {0};
        char rel[96];
        size_t len;
        (void)snprintf(rel, sizeof(rel), "models/%s/config.json", name);
        uint8_t *p = read_whole(test_data(rel), &len), *q = mem_alloc(len);
        ASSERT_TRUE(q != NULL);
        memcpy(q, p, len);
        /* Digits and letters change more often than the grammar breaks. */
        for (uint64_t k = 1 + test_rand(&seed) % 3; k > 0; k--) {
            size_t at = test_rand(&seed) % len;
            if (q[at] >= '0' && q[at] <= '9')
                q[at] = (uint8_t)('0' + test_rand(&seed) % 10);
            else if (test_rand(&seed) % 4 == 0)
                q[at] = (uint8_t)test_rand(&seed);
        }
        folder_init(&f, name);
        FILE *out = fopen(f.config, "wb");
        ASSERT_TRUE(out != NULL);
        ASSERT_EQ(fwrite(q, 1, len, out), len);
        ASSERT_EQ(fclose(out), 0);
        int r = model_open(f.dir, &m, &err);
        folder_fini(&f);
        if (r == 0) {
            float freqs[MODEL_W_COUNT * 64], mscale;
            ASSERT_TRUE(model_config(m)->K / 2 <= sizeof(freqs) / sizeof(freqs[0]));
            model_rope_freqs(model_config(m), &model_config(m)->rope, freqs, &mscale);
            ASSERT_TRUE(isfinite(mscale) && isfinite(freqs[0]));
            model_close(m);
            n_ok++;
        } else {
            ASSERT_TRUE(r < 0 && !m && err.code == r && err.msg[0]);
        }
        mem_free(p);
        mem_free(q);
    }
    ASSERT_TRUE(n_ok > 20 && n_ok < 1490);
}
