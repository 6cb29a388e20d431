#include "base/buf.h"
#include "base/mem.h"
#include "segment/segment.h"
#include "tests/test.h"
#include "worker/reuse/heat.h"
#include "worker/reuse/prompt.h"

#include <stdio.h>
#include <string.h>

enum { LEVEL = 0x8a };

static const uint64_t second = 1000000000;

static struct tok *open_tok(void)
{
    struct tok *t;
    ASSERT_OK(tok_open_path("shape:smollm2", &t, NULL)); /* a token a byte */
    return t;
}

static void keep(struct wk_heat *h, const struct tok *t, const char *id, const char *ns)
{
    static const char text[] = "<b>\xc3\xa9"; /* the last character is two tokens */
    struct tok_ids ids = {0};
    const struct tok_piece piece = {.text = text, .len = strlen(text)};
    ASSERT_OK(tok_encode(t, &piece, 1, 0, &ids));
    const struct wk_prompt p = {
        .id = id, .alias = "reply", .tok = ids.id, .n_tok = (uint32_t)ids.n};
    uint8_t *heat = mem_alloc(ids.n);
    ASSERT_TRUE(heat != NULL);
    memset(heat, LEVEL, ids.n);
    wk_heat_keep(h, &p, ns, heat);
    tok_ids_fini(&ids);
}

static const char *told(struct wk_heat *h, const struct tok *t, const char *id)
{
    static struct buf b;
    buf_clear(&b);
    ASSERT_OK(wk_heat_put(h, t, id, &b));
    return buf_cstr(&b);
}

/* Of callers' own words none opens another namespace. */
TEST(texts_of_named_namespaces_alone_are_kept)
{
    char inner[] = {'a', SEG_SPACE_INNER, 't', 0}, stranger[] = {'b', SEG_SPACE_INNER, 'a', 0};
    char none[] = {SEG_SPACE_INNER, 'p', 0}, deeper[] = {SEG_SPACE_INNER, 'p', 'q', 0};
    const struct {
        const char *show, *ns;
        bool shown;
    } cases[] = {{NULL, "a", false},   {"a", "a", true},       {"a", inner, true},
                 {"a", "ab", false},   {"a", stranger, false}, {"a", "", false},
                 {"a/t", inner, true}, {"a/t", "a", false},    {"/", "", true},
                 {"/", "a", false},    {"/p", none, true},     {"/p", deeper, false},
                 {"/p", "p", false},   {"*", stranger, true},  {"a", NULL, false}};
    struct tok *t = open_tok();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *show[] = {(char *)(uintptr_t)cases[i].show};
        struct wk_heat *h;
        ASSERT_OK(wk_heat_create(show, cases[i].show != NULL, &h));
        keep(h, t, "r", cases[i].ns);
        const bool shown = strstr(told(h, t, "r"), "\"text\":[") != NULL;
        if (shown != cases[i].shown) printf("case %zu\n", i);
        ASSERT_EQ(cases[i].shown, shown);
        ASSERT_EQ(!shown, strstr(told(h, t, "r"), "\"text\":null") != NULL);
        wk_heat_destroy(h);
    }
    tok_close(t);
}

TEST(a_prompt_is_told_by_either_id_a_piece_a_token)
{
    char *show[] = {"a"};
    struct tok *t = open_tok();
    struct wk_heat *h;
    ASSERT_OK(wk_heat_create(show, 1, &h));
    keep(h, t, "r", "a");
    const char *s = told(h, t, "reply");
    ASSERT_TRUE(
        strstr(s, "{\"id\":\"r\",\"prompts\":[{\"prompt\":0,\"tokens\":5,\"heat\":\"8a8a8a8a8a\","
                  "\"text\":[\"<\",\"b\",\">\",\"\",\"\xc3\xa9\"]}]}") == s);
    ASSERT_STREQ("", told(h, t, "another"));
    wk_heat_destroy(h);
    tok_close(t);
}

TEST(a_few_are_kept_and_none_while_nobody_looks)
{
    struct tok *t = open_tok();
    struct wk_heat *h;
    ASSERT_OK(wk_heat_create(NULL, 0, &h));
    ASSERT_TRUE(!wk_heat_wanted(h, second));
    wk_heat_watch(h, second);
    ASSERT_TRUE(wk_heat_wanted(h, 2 * second));
    for (int i = 0; i < 20; i++) {
        char id[16];
        (void)snprintf(id, sizeof id, "r%d", i);
        keep(h, t, id, "");
    }
    ASSERT_STREQ("", told(h, t, "r3"));
    ASSERT_TRUE(strstr(told(h, t, "r4"), "\"heat\"") != NULL);
    ASSERT_TRUE(wk_heat_wanted(h, 10 * second));
    ASSERT_TRUE(strstr(told(h, t, "r19"), "\"heat\"") != NULL);
    ASSERT_TRUE(!wk_heat_wanted(h, 12 * second));
    ASSERT_STREQ("", told(h, t, "r19"));
    wk_heat_destroy(h);
    tok_close(t);
}
