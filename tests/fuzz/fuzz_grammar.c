/* Fuzz target: the form of an answer, as strangers send it. The first byte chooses what the rest
 * is: a JSON schema, a regular expression (of texts, or within a JSON string), a grammar. What
 * compiles is used: a text is made of tokens that the input's bytes choose, each that is allowed
 * can be taken, others cannot, and always one is allowed or the text has ended. */
#include "base/assert.h"
#include "base/jsonscan.h"
#include "fusor/grammar/gbnf.h"
#include "fusor/grammar/grammar.h"
#include "fusor/grammar/regex.h"
#include "fusor/grammar/run.h"
#include "fusor/grammar/schema.h"
#include "fusor/grammar/vocab.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static const char *const pieces[] = {
    "{\"", "\": ",     "\"}",      "\",\"", "true", "null", "the ", "12",    "[[",
    "\\n", "\xC3\xA9", "\xE2\x82", "name",  "a\",", "\n  ", "  ",   "-1.5e", "\xF0\x9F\x98\x80"};
enum { END = 256, N = 257 + sizeof pieces / sizeof *pieces, TOKENS = 60 };

static void token(const void *ctx, size_t id, struct vocab_token *ret)
{
    static char byte[256];

    *ret = (struct vocab_token){.ends = id == END};
    if (id < END) {
        byte[id] = (char)id;
        ret->bytes = &byte[id];
        ret->len = 1;
    } else if (id > END) {
        ret->bytes = pieces[id - END - 1];
        ret->len = strlen(ret->bytes);
    }
}

static int read_form(struct gram_builder *b, uint8_t kind, const char *text, size_t len,
                     gram_node *ret, struct err *err)
{
    json_t *schema;
    int rc;

    switch (kind % 4) {
    case 0:
        break;
    case 1:
        return gram_regex(b, &(struct gram_regex){text, len, GRAM_PLAIN, false}, ret, err);
    case 2:
        return gram_regex(b, &(struct gram_regex){text, len, GRAM_JSON, true}, ret, err);
    case 3:
        return gram_gbnf(b, text, len, ret, err);
    }
    if (json_depth(text, len) > JSON_DEPTH_MAX) return -ERANGE; /* as the worker does */
    schema = json_loadb(text, len, JSON_DECODE_ANY, NULL);
    rc = json_is_object(schema) || json_is_boolean(schema) ? gram_schema(b, schema, ret, err) : -1;
    json_decref(schema);
    return rc;
}

/* A token that is allowed, by chance; -1: none is. */
static int32_t choose(const uint64_t *set, uint32_t chance)
{
    for (uint32_t i = 0; i < N; i++) {
        const uint32_t id = (chance + i) % N;
        if (set[id / 64] >> (id % 64) & 1) return (int32_t)id;
    }
    return -1;
}

static void use(const struct gram *g, const uint8_t *data, size_t len)
{
    struct gram_run *r = NULL;
    uint32_t chance = 1;
    int rc = gram_run_create(g, 2, &r);

    for (size_t i = 0; rc == 0 && i < TOKENS; i++) {
        const uint64_t *set;
        chance = chance * 1664525 + 1013904223 + data[i % len];
        rc = gram_run_allowed(r, i % 2, &set);
        if (rc < 0) break;
        const int32_t id = choose(set, chance >> 8), other = (int32_t)(chance >> 16) % (int32_t)N;
        const bool may = set[other / 64] >> (other % 64) & 1;
        ASSERT(id >= 0);
        if (!may) {
            const int no = gram_run_take(r, i % 2, other);
            ASSERT(no == -EINVAL || no == -E2BIG);
        }
        rc = gram_run_take(r, i % 2, id);
        ASSERT(rc >= 0 || rc == -E2BIG);
    }
    ASSERT(rc >= 0 || rc == -E2BIG);
    gram_run_destroy(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    static struct gram_vocab *v;
    struct gram_builder *b = NULL;
    struct gram *g = NULL;
    struct err err = {0};
    gram_node n = GRAM_NONE;

    if (len < 2) return 0;
    if (!v) ASSERT(gram_vocab_create(&(struct vocab_source){.n = N, .token = token}, &v) == 0);
    ASSERT(gram_builder_create(&b) == 0);
    int rc = read_form(b, data[0], (const char *)data + 1, len - 1, &n, &err);
    if (rc == 0) rc = gram_compile(b, n, v, &g, &err);
    gram_builder_destroy(b);
    ASSERT(rc == 0 || !g);
    if (g) use(g, data, len);
    gram_destroy(g);
    return 0;
}
