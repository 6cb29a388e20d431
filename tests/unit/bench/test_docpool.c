/* The documents that a load asks about. */
#include "tests/test.h"

#include "tools/bench/docpool.h"

enum { N = 30, DRAWS = 60000 };

static void make(struct docpool *p, uint64_t seed)
{
    struct err err = {0};
    struct tok *tok = NULL;
    const struct docpool_opts o = {
        .folder = "etc/demo", .n = N, .n_tok = 200, .zipf = 1, .seed = seed};
    *p = (struct docpool){0};
    ASSERT_OK(tok_open_path(test_data("models/smollm2.F32.gguf"), &tok, &err));
    ASSERT_OK(docpool_make(p, &o, tok, &err));
    tok_close(tok);
}

TEST(documents_are_all_different_and_the_same_again)
{
    struct docpool p, again, other;
    make(&p, 1);
    make(&again, 1);
    make(&other, 2);
    ASSERT_EQ(p.n, N);
    for (size_t i = 0; i < N; i++) {
        ASSERT_STREQ(p.text[i], again.text[i]);
        ASSERT_TRUE(strcmp(p.text[i], other.text[i]) != 0);
        for (size_t k = 0; k < i; k++)
            ASSERT_TRUE(strcmp(p.text[i], p.text[k]) != 0);
    }
    docpool_fini(&p);
    docpool_fini(&again);
    docpool_fini(&other);
}

TEST(questions_have_words_of_documents)
{
    struct docpool p;
    struct rng r = {3};
    struct buf b = BUF_INIT;
    size_t n = 0;
    make(&p, 1);
    docpool_words(&p, &r, 1000, &b);
    ASSERT_TRUE(buf_cstr(&b) != NULL);
    for (char *save, *w = strtok_r(b.data, " ", &save); w; w = strtok_r(NULL, " ", &save), n++)
        ASSERT_TRUE(strpbrk(w, ".,") == NULL);
    ASSERT_EQ(n, 1000);
    buf_fini(&b);
    docpool_fini(&p);
}

TEST(popularity_is_zipfs)
{
    struct docpool p;
    struct rng r = {3};
    size_t n[N] = {0};
    double sum = 0;
    make(&p, 1);
    for (size_t i = 0; i < DRAWS; i++)
        n[zipf_draw(&p.popular, &r)]++;
    for (size_t i = 0; i < N; i++)
        sum += 1.0 / (double)(i + 1);
    for (size_t i = 0; i < N; i++) {
        const double want = DRAWS / sum / (double)(i + 1);
        ASSERT_NEAR((double)n[i], want, 5 * sqrt(want)); /* five standard deviations */
    }
    docpool_fini(&p);
}

TEST(a_folder_without_text_is_said_so)
{
    struct docpool p = {0};
    struct err err = {0};
    struct tok *tok = NULL;
    const struct docpool_opts o = {.folder = "etc/systemd", .n = N, .n_tok = 200, .seed = 1};
    ASSERT_OK(tok_open_path(test_data("models/smollm2.F32.gguf"), &tok, &err));
    ASSERT_TRUE(docpool_make(&p, &o, tok, &err) < 0);
    ASSERT_TRUE(err.code < 0);
    docpool_fini(&p);
    tok_close(tok);
}
