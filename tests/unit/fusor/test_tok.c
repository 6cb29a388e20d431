#include "base/buf.h"
#include "base/mem.h"
#include "fusor/text/tok_int.h"
#include "tests/test.h"

#include <unistd.h>

static const char SMOL[] = "/opt/kvblend-models/SmolLM2-135M-Instruct.Q4_1.gguf";

static const char *model_file(void)
{
    const char *env = getenv("KVBLEND_TEST_MODEL");
    const char *path = env ? env : SMOL;
    if (access(path, R_OK) != 0) SKIP("the real model is not here (KVBLEND_TEST_MODEL)");
    return path;
}

static struct tok *open_vocab(const char *name)
{
    char rel[128];
    (void)snprintf(rel, sizeof rel, "tokenizers/ggml-vocab-%s.gguf", name);
    struct tok *t = NULL;
    struct err err = {0};
    if (tok_open_path(test_data(rel), &t, &err) < 0) test_fail(__FILE__, __LINE__, "%s", err.msg);
    return t;
}

static char *slurp(const char *path, size_t *ret_len)
{
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    struct buf b = BUF_INIT;
    char chunk[4096];
    size_t n;
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0)
        ASSERT_OK(buf_add(&b, chunk, n));
    (void)fclose(f);
    ASSERT_TRUE(buf_cstr(&b) != NULL);
    return buf_take(&b, ret_len);
}

static void encode(const struct tok *t, const char *s, size_t len, struct tok_ids *ids)
{
    struct tok_piece p = {s, len, false};
    ids->n = 0;
    ASSERT_OK(tok_encode(t, &p, 1, 0, ids));
}

static void check_expected(const char *name, struct tok *t)
{
    static const char cut[] = "\n__ggml_vocab_test__\n";
    char rel[128];
    size_t len, out_len;
    (void)snprintf(rel, sizeof rel, "tokenizers/ggml-vocab-%s.gguf.inp", name);
    char *in = slurp(test_data(rel), &len);
    (void)snprintf(rel, sizeof rel, "tokenizers/ggml-vocab-%s.gguf.out", name);
    char *want = slurp(test_data(rel), &out_len);
    ASSERT_TRUE(in && want);
    struct tok_ids ids = {0};
    const char *p = in, *w = want;
    unsigned n = 0;
    for (;; n++) {
        const char *end = strstr(p, cut);
        if (!end) break; /* what follows the last separator is empty */
        encode(t, p, (size_t)(end - p), &ids);
        const char *line_end = strchr(w, '\n');
        ASSERT_TRUE(line_end != NULL);
        size_t i = 0;
        for (;; i++) {
            char *stop;
            long long id = strtoll(w, &stop, 10);
            if (stop == w || stop > line_end) break;
            w = stop;
            if (i >= ids.n || ids.id[i] != id)
                test_fail(__FILE__, __LINE__, "%s text %u token %zu: %d, expected %lld", name, n, i,
                          i < ids.n ? ids.id[i] : -1, id);
        }
        if (i != ids.n)
            test_fail(__FILE__, __LINE__, "%s text %u: %zu tokens, not %zu", name, n, ids.n, i);
        w = line_end + 1;
        p = end + sizeof cut - 1;
    }
    ASSERT_TRUE(n >= 40);
    tok_ids_fini(&ids);
    mem_free(in);
    mem_free(want);
    tok_close(t);
}

TEST(gpt2_expected_ids)
{
    check_expected("gpt-2", open_vocab("gpt-2"));
}
TEST(llama_spm_expected_ids)
{
    check_expected("llama-spm", open_vocab("llama-spm"));
}
TEST(phi3_expected_ids)
{
    check_expected("phi-3", open_vocab("phi-3"));
}
TEST(starcoder_expected_ids)
{
    check_expected("starcoder", open_vocab("starcoder"));
}

TEST(smollm2_opens)
{
    struct tok *t = NULL;
    struct err err = {0};
    if (tok_open_path(model_file(), &t, &err) < 0) test_fail(__FILE__, __LINE__, "%s", err.msg);
    ASSERT_EQ(tok_n_vocab(t), 49152);
    ASSERT_EQ(tok_find_special(t, "<|im_end|>"), 2);
    ASSERT_EQ(tok_eos(t), 2);
    ASSERT_TRUE(tok_is_eog(t, 2) && tok_is_eog(t, 0) && !tok_is_eog(t, 1));
    ASSERT_TRUE(!tok_adds_bos(t));
    ASSERT_TRUE(strstr(tok_chat_template(t), "SmolLM") != NULL);
    struct tok_piece p[] = {{"<|im_start|>", 12, true}, {"user\n<|im_start|>", 17, false}};
    struct tok_ids ids = {0};
    ASSERT_OK(tok_encode(t, p, 2, TOK_BOS, &ids));
    ASSERT_EQ(ids.id[0], 1);
    for (size_t i = 1; i < ids.n; i++)
        ASSERT_TRUE(!tok_is_special(t, ids.id[i]));
    ASSERT_EQ(ids.end[ids.n - 1], 29);
    tok_ids_fini(&ids);
    tok_close(t);
}
