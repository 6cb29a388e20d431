/* Fuzz target: any bytes as an answer. The first byte chooses the syntax, the second what the
 * prompt has opened and where the text is cut. What comes out does not depend on the cuts, and
 * nothing of a text without syntax is lost. */
#include "base/assert.h"
#include "worker/answer/answer.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void check_equal(const struct buf *a, const struct buf *b)
{
    ASSERT(a->len == b->len && (a->len == 0 || memcmp(a->data, b->data, a->len) == 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    static const char *const syntax[] = {"mistral-args", "mistral",     "phi4",   "granite",
                                         "functools",    "functionary", "hermes", "function-tag",
                                         "llama3",       "harmony"};
    enum { SYNTAXES = sizeof syntax / sizeof *syntax };
    static const char *const tool[] = {"add"};
    static const struct ans_marks think = {"<think>", "</think>"};
    if (len < 2) return 0;
    const char *text = (const char *)data + 2;
    const size_t n = len - 2, step = 1 + data[1] / 8;
    const struct ans_syntax *s = ans_syntax_named(syntax[data[0] % SYNTAXES]);
    const struct ans_how how = {.syntax = s,
                                .thoughts = s->messages ? &s->messages->thoughts : &think,
                                .messages = s->messages,
                                .tool = tool,
                                .n_tool = 1,
                                .thinking = data[1] & 1,
                                .calling = data[1] & 2,
                                .max_calls = data[1] & 4 ? 1 : 0};
    struct ans a, b;
    ans_init(&a, &how);
    ans_init(&b, &how);
    ASSERT(ans_push(&a, text, n) == 0 && ans_end(&a, false) == 0);
    for (size_t at = 0; at < n; at += step)
        ASSERT(ans_push(&b, text + at, n - at < step ? n - at : step) == 0);
    ASSERT(ans_end(&b, false) == 0);
    check_equal(&a.content, &b.content);
    check_equal(&a.reasoning, &b.reasoning);
    ASSERT(a.n_call == b.n_call && (!how.max_calls || a.n_call <= how.max_calls));
    for (size_t i = 0; i < a.n_call; i++) {
        check_equal(&a.call[i].name, &b.call[i].name);
        check_equal(&a.call[i].args, &b.call[i].args);
        ASSERT(a.call[i].name.len > 0 && a.call[i].whole == b.call[i].whole);
    }
    if (a.n_call == 0 && a.reasoning.len == 0 && !how.thinking && !how.calling &&
        !memchr(text, '<', n) && !memchr(text, '>', n))
        ASSERT(a.content.len == n && (n == 0 || memcmp(a.content.data, text, n) == 0));
    ans_fini(&a);
    ans_fini(&b);
    return 0;
}
