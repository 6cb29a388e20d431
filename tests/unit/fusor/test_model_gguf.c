/* model: GGUF files built here, which are refused by name, and one that is not. */
#include "base/mem.h"
#include "fusor/model/model.h"
#include "tests/unit/fusor/model_files.h"

/* ---- GGUF files built here: one layer of zeros ---- */
static void build(struct gguf_build *g, const char *arch, const char *skip)
{
    static const struct {
        const char *key;
        uint32_t v;
    } counts[] = {
        {"block_count", 1},          {"context_length", 512},     {"embedding_length", 32},
        {"feed_forward_length", 32}, {"attention.head_count", 2}, {"attention.head_count_kv", 2},
    };
    static const char *const mats[] = {"attn_q", "attn_k",   "attn_v",  "attn_output",
                                       "ffn_up", "ffn_gate", "ffn_down"};
    char key[96];
    gb_kv_str(g, "general.architecture", arch);
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        if (strcmp(counts[i].key, skip) == 0) continue;
        (void)snprintf(key, sizeof(key), "%s.%s", arch, counts[i].key);
        gb_kv_u32(g, key, counts[i].v);
    }
    (void)snprintf(key, sizeof(key), "%s.attention.layer_norm_rms_epsilon", arch);
    if (strcmp("attention.layer_norm_rms_epsilon", skip) != 0) gb_kv_f32(g, key, 1e-5f);
    gb_tensor(g, "token_embd.weight", 8, 16, 32, 16 * 34);
    gb_tensor(g, "output_norm.weight", 0, 0, 32, 128);
    gb_tensor(g, "blk.0.attn_norm.weight", 0, 0, 32, 128);
    if (strcmp("ffn_norm", skip) != 0) gb_tensor(g, "blk.0.ffn_norm.weight", 0, 0, 32, 128);
    for (size_t i = 0; i < sizeof(mats) / sizeof(mats[0]); i++) {
        (void)snprintf(key, sizeof(key), "blk.0.%s.weight", mats[i]);
        gb_tensor(g, key, 8, 32, 32, 32 * 34);
    }
}

static int open_built(struct gguf_build *g, struct model **ret, struct err *err)
{
    struct buf b = BUF_INIT;
    struct mem_file f;
    gb_finish(g, &b);
    mem_file_init(&f, b.data, b.len);
    int r = model_open(f.path, ret, err);
    mem_file_fini(&f);
    buf_fini(&b);
    return r;
}

static void gguf_refused(struct gguf_build *g, int code, const char *why)
{
    struct model *m = NULL;
    struct err err = {0};
    int r = open_built(g, &m, &err);
    if (r != code || m || !strstr(err.msg, why))
        test_fail(__FILE__, __LINE__, "%d \"%s\", wanted %d \"%s\"", r, err.msg, code, why);
}

TEST(gguf_refused_by_name)
{
    static const struct {
        const char *key;
        float v;
        int code;
        const char *why;
    } cases[] = {
        {"llama.embedding_scale", 12, -ENOTSUP, "embedding_scale"},
        {"llama.residual_scale", 0.5f, -ENOTSUP, "residual_scale"},
        {"llama.logit_scale", 0.5f, -ENOTSUP, "logit_scale"},
        {"llama.attn_logit_softcapping", 50, -ENOTSUP, "softcapping"},
        {"llama.rope.freq_base", -1, -EBADMSG, "rope base"},
        {"llama.rope.freq_base", NAN, -EBADMSG, "rope base"},
        {"llama.attention.scale", -1, -EBADMSG, "attention scale"},
    };
    static const struct {
        const char *key;
        uint32_t v;
        const char *why;
    } counts[] = {
        {"llama.rope.dimension_count", 8, "rotates 8 of 16"},
        {"llama.attention.value_length", 8, "another head size"},
        {"split.count", 3, "one of 3 parts"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct gguf_build g = {0};
        build(&g, "llama", "");
        gb_kv_f32(&g, cases[i].key, cases[i].v);
        gguf_refused(&g, cases[i].code, cases[i].why);
    }
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
        struct gguf_build g = {0};
        build(&g, "llama", "");
        gb_kv_u32(&g, counts[i].key, counts[i].v);
        gguf_refused(&g, -ENOTSUP, counts[i].why);
    }
    struct gguf_build g = {0};
    build(&g, "gemma", "");
    gguf_refused(&g, -ENOTSUP, "architecture \"gemma\"");
    g = (struct gguf_build){0};
    build(&g, "llama", "");
    gb_kv_str(&g, "llama.rope.scaling.type", "longrope");
    gguf_refused(&g, -EBADMSG, "longrope has not both sets");
    g = (struct gguf_build){0};
    build(&g, "llama", "block_count");
    gguf_refused(&g, -EBADMSG, "\"llama.block_count\" is missing");
    g = (struct gguf_build){0};
    build(&g, "llama", "attention.layer_norm_rms_epsilon");
    gguf_refused(&g, -EBADMSG, "norm epsilon");
    g = (struct gguf_build){0};
    build(&g, "llama", "");
    gb_tensor(&g, "blk.0.ffn_gate.bias", 0, 0, 32, 128);
    gguf_refused(&g, -ENOTSUP, "\"blk.0.ffn_gate.bias\" is not known");
    g = (struct gguf_build){0};
    build(&g, "stablelm", "ffn_norm");
    gguf_refused(&g, -ENOTSUP, "beside each other");
    g = (struct gguf_build){0};
    build(&g, "stablelm", "");
    gguf_refused(&g, -EBADMSG, "norm epsilon");
    g = (struct gguf_build){0};
    build(&g, "qwen3", "");
    gguf_refused(&g, -EBADMSG, "\"blk.0.attn_q_norm.weight\" is missing");
    g = (struct gguf_build){0};
    build(&g, "llama", "");
    gb_tensor(&g, "output.weight", 16, 16, 32, 0);
    gguf_refused(&g, -ENOTSUP, "\"output.weight\" has type ggml 16");
    g = (struct gguf_build){0};
    build(&g, "llama", "");
    gb_tensor(&g, "rope_freqs.weight", 0, 0, 8, 32); /* zeros would divide by zero */
    gguf_refused(&g, -EBADMSG, "rope_freqs.weight\" is damaged");
}

TEST(gguf_mixtures_are_checked)
{
    static const struct {
        const char *arch;
        int n, used, code; /* -1: no such key */
        const char *why;
    } cases[] = {
        {"qwen3", 4, 2, -ENOTSUP, "mixture of experts"},
        {"qwen3moe", -1, 2, -EBADMSG, "\"qwen3moe.expert_count\" is missing"},
        {"llama4", -1, 1, -EBADMSG, "\"llama4.expert_count\" is missing"},
        {"llama4", 0, 1, -ENOTSUP, "has no experts"},
        {"llama4", 4, 1, -EBADMSG, "\"llama4.interleave_moe_layer_step\" is missing"},
        {"llama", 4, -1, -EBADMSG, "\"llama.expert_used_count\" is missing"},
        {"llama", 4, 5, -EBADMSG, "5 experts of a token are outside 1…4"},
        {"llama", 4, 0, -EBADMSG, "0 experts of a token"},
        {"llama", 2000, 2, -EBADMSG, "2000 experts are outside"},
        {"llama", 4, 2, -EBADMSG, "\"blk.0.ffn_gate_inp.weight\" is missing"},
    };
    static const struct {
        const char *key;
        float v;
        const char *why;
    } more[] = {{"llama.expert_gating_func", 2, "another function than its architecture"},
                {"llama.expert_weights_scale", 2.5f, "scales what its experts give"},
                {"llama.leading_dense_block_count", 1, "layers without experts"}};
    static const struct {
        unsigned step, window, gating;
        int code;
        const char *why;
    } llama4s[] = {{0, 24, 2, -EBADMSG, "\"llama4.interleave_moe_layer_step\" is 0"},
                   {1, 0, 2, -ENOTSUP, "attends without chunks"},
                   {1, 24, 1, -ENOTSUP, "another function than its architecture"},
                   {1, 24, 2, -EBADMSG, "\"blk.0.ffn_gate_inp.weight\" is missing"}};
    char key[64];
    for (size_t i = 0; i < sizeof(llama4s) / sizeof(llama4s[0]); i++) {
        struct gguf_build g = {0};
        build(&g, "llama4", "");
        gb_kv_u32(&g, "llama4.expert_count", 4);
        gb_kv_u32(&g, "llama4.expert_used_count", 1);
        gb_kv_u32(&g, "llama4.interleave_moe_layer_step", llama4s[i].step);
        gb_kv_u32(&g, "llama4.attention.sliding_window", llama4s[i].window);
        gb_kv_u32(&g, "llama4.expert_gating_func", llama4s[i].gating);
        gguf_refused(&g, llama4s[i].code, llama4s[i].why);
    }
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct gguf_build g = {0};
        build(&g, cases[i].arch, "");
        (void)snprintf(key, sizeof(key), "%s.expert_count", cases[i].arch);
        if (cases[i].n >= 0) gb_kv_u32(&g, key, (uint32_t)cases[i].n);
        (void)snprintf(key, sizeof(key), "%s.expert_used_count", cases[i].arch);
        if (cases[i].used >= 0) gb_kv_u32(&g, key, (uint32_t)cases[i].used);
        gguf_refused(&g, cases[i].code, cases[i].why);
    }
    for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++) {
        struct gguf_build g = {0};
        build(&g, "llama", "");
        gb_kv_f32(&g, more[i].key, more[i].v);
        gguf_refused(&g, -ENOTSUP, more[i].why);
    }
}

TEST(gguf_built_here_opens)
{
    struct gguf_build g = {0};
    struct model *m;
    struct err err = {0};
    build(&g, "llama", "");
    gb_kv_u32(&g, "llama.attention.sliding_window", 512);
    if (open_built(&g, &m, &err) < 0) test_fail(__FILE__, __LINE__, "%s", err.msg);
    ASSERT_TRUE(model_config(m)->tied && model_config(m)->file_bf16_or_less);
    model_close(m);
}
