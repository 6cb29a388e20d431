/* The wire shapes of /v1/embeddings; what clients see is in tests/e2e/test_embeddings.py. */
#include "worker/api/api_embed.h"

#include "tests/test.h"

#include <string.h>

enum { VOCAB = 100, D = 4 };

static int parse(const char *body, struct api_embed *r, struct api_err *e)
{
    memset(e, 0, sizeof *e);
    return api_embed_parse(body, strlen(body), VOCAB, D, r, e);
}

TEST(inputs_of_each_form)
{
    static const struct {
        const char *body;
        size_t n;
    } forms[] = {{"{\"input\":\"ab\"}", 1},
                 {"{\"input\":[\"ab\",\"c\"]}", 2},
                 {"{\"input\":[1,99]}", 1},
                 {"{\"input\":[[1,99],[0]]}", 2},
                 {"{\"input\":[\"ab\",[7]]}", 2}};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        struct api_embed r;
        struct api_err e;
        ASSERT_OK(parse(forms[i].body, &r, &e));
        ASSERT_EQ(r.n, forms[i].n);
        const struct api_input *in = &r.input[0];
        ASSERT_TRUE(i == 2 || i == 3 ? !in->text && in->n_ids == 2 && in->id[1] == 99
                                     : in->len == 2 && memcmp(in->text, "ab", 2) == 0);
        ASSERT_TRUE(!r.base64 && !r.cut && r.dimensions == 0 && !r.model);
        api_embed_fini(&r);
    }
}

TEST(options)
{
    struct api_embed r;
    struct api_err e;
    ASSERT_OK(parse("{\"input\":\"a\",\"model\":\"m\",\"encoding_format\":\"base64\","
                    "\"dimensions\":3,\"truncate\":true,\"user\":\"u\",\"other\":1}",
                    &r, &e));
    ASSERT_TRUE(r.base64 && r.cut && r.dimensions == 3 && strcmp(r.model, "m") == 0);
    api_embed_fini(&r);
    ASSERT_OK(parse("{\"input\":\"a\",\"dimensions\":null,\"truncate_prompt_tokens\":-1}", &r, &e));
    ASSERT_TRUE(!r.base64 && r.cut && r.dimensions == 0);
    api_embed_fini(&r);
}

TEST(bad_bodies_are_refused_at_once)
{
    static const char *const bodies[] = {"",
                                         "[]",
                                         "{}",
                                         "{\"input\":null}",
                                         "{\"input\":[[[1]]]}",
                                         "{\"input\":[1e3]}",
                                         "{\"input\":[100]}",
                                         "{\"input\":\"a\",\"dimensions\":5}"};
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        struct api_embed r;
        struct api_err e;
        ASSERT_ERR(parse(bodies[i], &r, &e), -EINVAL);
        ASSERT_TRUE(e.status == 400 && *e.msg);
        api_embed_fini(&r);
    }
}

TEST(no_memory_is_said)
{
    const char body[] = "{\"input\":[[1,2,3],\"a\"]}";
    unsigned n_failed = 0;
    for (unsigned nth = 1;; nth++) {
        struct api_embed r;
        struct api_err e;
        mem_fail_nth(nth);
        const int rc = parse(body, &r, &e);
        const bool fired = mem_fail_fired();
        mem_fail_nth(0);
        api_embed_fini(&r);
        n_failed += rc < 0;
        if (!fired) break;
        ASSERT_TRUE(rc < 0);
    }
    ASSERT_TRUE(n_failed > 0);
}

/* The base64 of RFC 4648, whatever is left over, and numbers that give every f32 back. */
TEST(vectors_on_the_wire)
{
    const float vec[] = {1.0f, -0.5f, 0.1f, 3.0f, 0, 0};
    struct buf b = BUF_INIT;
    struct api_vectors v = {
        .vec = vec, .n = 2, .stride = 3, .dimensions = 2, .model = "m", .n_tokens = 7};
    api_put_vectors(&b, &v);
    ASSERT_STREQ(buf_cstr(&b),
                 "{\"object\":\"list\",\"data\":["
                 "{\"object\":\"embedding\",\"index\":0,\"embedding\":[1,-0.5]},"
                 "{\"object\":\"embedding\",\"index\":1,\"embedding\":[3,0]}],"
                 "\"model\":\"m\",\"usage\":{\"prompt_tokens\":7,\"total_tokens\":7}}");
    static const char *const coded[] = {"AACAPw==", "AACAPwAAAL8=", "AACAPwAAAL/NzMw9"};
    for (size_t n = 1; n <= 3; n++) {
        v.n = 1;
        v.dimensions = n;
        v.base64 = true;
        buf_clear(&b);
        api_put_vectors(&b, &v);
        ASSERT_TRUE(strstr(buf_cstr(&b), coded[n - 1]) != NULL);
        ASSERT_TRUE(n < 2 || !strstr(buf_cstr(&b), coded[n - 2]));
    }
    buf_fini(&b);
}
