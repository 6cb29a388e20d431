/* Makes and judges texts of grammars for scripts: a JSON object a line on standard input,
 * {"schema": …} or {"regex"|"grammar": "…"}, "seed", "make": how many texts, "judge": [texts]; a
 * line of answer each: {"error": …} or {"made": [texts that ended], "cut": how many did not,
 * "judged": [-1 no beginning, 0 a beginning, 1 complete], "size": instructions, "compile_us"}.
 * Texts are made of a small vocabulary, at random, and in a hurry towards their end after a while.
 */
#include "base/assert.h"
#include "base/buf.h"
#include "base/clock.h"
#include "fusor/grammar/gbnf.h"
#include "fusor/grammar/grammar.h"
#include "fusor/grammar/regex.h"
#include "fusor/grammar/schema.h"
#include "tests/test.h"
#include "tests/unit/fusor/grammar_kit.h"

enum { TOKENS_SLOW = 40, TOKENS_MAX = 3000 };

static bool has(const uint64_t *set, int32_t id)
{
    return set[id / 64] >> (id % 64) & 1;
}

static int32_t choose(const uint64_t *set, bool hurry, uint64_t *seed)
{
    static const char ends[] = "\"}]0129.eE+\\ntfa";
    const int32_t n = (int32_t)kit_vocab_size();
    int32_t id = (int32_t)(test_rand(seed) % (uint64_t)n);

    if (has(set, KIT_END) && (hurry || test_rand(seed) % 4 == 0)) return KIT_END;
    if (hurry || test_rand(seed) % 8 == 0)
        for (const char *p = ends; *p; p++)
            if (has(set, (uint8_t)*p)) return (uint8_t)*p;
    for (int32_t i = 0; i < n; i++, id = (id + 1) % n)
        if (has(set, id)) return id;
    ASSERT(!"nothing is allowed");
    return -1;
}

/* 1: it ended. */
static int make(const struct gram *g, uint64_t *seed, struct buf *out)
{
    struct gram_run *r = NULL;
    int rc = gram_run_create(g, 1, &r);

    ASSERT(rc == 0);
    for (int i = 0; rc == 0 && i < TOKENS_MAX; i++) {
        const uint64_t *set;
        size_t len;
        rc = gram_run_allowed(r, 0, &set);
        if (rc < 0) break;
        const int32_t id = choose(set, i > TOKENS_SLOW, seed);
        rc = gram_run_take(r, 0, id);
        ASSERT(rc >= 0);
        if (id == KIT_END) break;
        const char *p = kit_piece(id, &len);
        buf_add(out, p, len);
    }
    gram_run_destroy(r);
    return rc;
}

static json_t *made_of(const struct gram *g, const json_t *q, json_t *answer)
{
    uint64_t seed = (uint64_t)json_integer_value(json_object_get(q, "seed"));
    const json_int_t n = json_integer_value(json_object_get(q, "make"));
    json_t *made = json_array(), *judged = json_array(), *judge = json_object_get(q, "judge");
    int cut = 0;

    for (json_int_t i = 0; i < n; i++) {
        struct buf text = BUF_INIT;
        const int rc = make(g, &seed, &text);
        if (rc < 0) json_object_set_new(answer, "failed", json_integer(rc));
        if (rc == 1)
            json_array_append_new(made, json_stringn(text.data ? text.data : "", text.len));
        cut += rc == 0;
        buf_fini(&text);
    }
    for (size_t i = 0; i < json_array_size(judge); i++) {
        const json_t *t = json_array_get(judge, i);
        const int v = kit_judge(g, json_string_value(t), json_string_length(t));
        json_array_append_new(judged, json_integer(v));
    }
    json_object_set_new(answer, "made", made);
    json_object_set_new(answer, "judged", judged);
    json_object_set_new(answer, "cut", json_integer(cut));
    return answer;
}

static int compile(const json_t *q, struct gram_vocab *v, struct gram **ret, struct err *err)
{
    const json_t *schema = json_object_get(q, "schema"), *re = json_object_get(q, "regex");
    const json_t *gbnf = json_object_get(q, "grammar");
    struct gram_builder *b = NULL;
    gram_node n = GRAM_NONE;
    int rc = gram_builder_create(&b);

    if (rc == 0 && schema) rc = gram_schema(b, schema, &n, err);
    if (rc == 0 && re)
        rc = gram_regex(
            b,
            &(struct gram_regex){json_string_value(re), json_string_length(re), GRAM_PLAIN, false},
            &n, err);
    if (rc == 0 && gbnf)
        rc = gram_gbnf(b, json_string_value(gbnf), json_string_length(gbnf), &n, err);
    if (rc == 0) rc = gram_compile(b, n, v, ret, err);
    gram_builder_destroy(b);
    return rc;
}

static void answer(const char *line, struct gram_vocab *v)
{
    json_t *q = json_loads(line, JSON_ALLOW_NUL, NULL), *a = json_object();
    struct gram *g = NULL;
    struct err err = {0};
    const uint64_t t0 = clock_ns();
    const int rc = compile(q, v, &g, &err);

    json_object_set_new(a, "compile_us", json_integer((json_int_t)((clock_ns() - t0) / 1000)));
    if (rc < 0) {
        json_object_set_new(a, "error", json_string(err.msg));
        json_object_set_new(a, "code", json_integer(rc));
    } else {
        json_object_set_new(a, "size", json_integer((json_int_t)gram_size(g)));
        (void)made_of(g, q, a);
    }
    (void)json_dumpf(a, stdout, JSON_COMPACT);
    (void)fputc('\n', stdout);
    (void)fflush(stdout);
    gram_destroy(g);
    json_decref(a);
    json_decref(q);
}

/* The harness brings main(): this is its one test. */
TEST(lines)
{
    struct gram_vocab *v = kit_vocab(NULL);
    char *line = NULL;
    size_t cap = 0;

    while (getline(&line, &cap, stdin) > 0)
        answer(line, v);
    free(line);
    gram_vocab_destroy(v);
}
