/* Fuzz target: any bytes as a chat template and, behind the first NUL byte, a user's text, which is
 * a message, a tool's name and a variable. Whatever the template does ends within its limits; the
 * pieces are the whole text, spans show the message's own bytes, and no piece that control tokens
 * are looked for in has a byte of the user's. */
#include "base/assert.h"
#include "base/mem.h"
#include "fusor/text/chat.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

/* Not to be found by chance: what the template wrote of itself is none of the user's. */
static const char secret[] = "\x01zq8#Vw2!Kd\x02";

static void check(const struct chat_out *o, const struct chat_msg *m, bool told)
{
    size_t at = 0;
    for (size_t i = 0; i < o->n_pieces; i++) {
        const struct tok_piece *p = &o->pieces[i];
        ASSERT(p->text == o->text.data + at && p->len > 0);
        ASSERT(i == 0 || p->special != p[-1].special);
        ASSERT(told || !p->special || !memmem(p->text, p->len, secret, sizeof secret - 1));
        at += p->len;
    }
    ASSERT(at == o->text.len);
    at = 0;
    for (size_t i = 0; i < o->n_spans; i++) {
        const struct chat_span *s = &o->spans[i];
        ASSERT(s->msg == 1 && s->src + s->len <= m[1].len && s->dst >= at);
        ASSERT(s->dst + s->len <= o->text.len);
        ASSERT(memcmp(o->text.data + s->dst, m[1].text + s->src, s->len) == 0);
        at = s->dst + s->len;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    const uint8_t *behind = len ? memchr(data, 0, len) : NULL;
    const size_t n = behind ? (size_t)(behind - data) : len, rest = behind ? len - n - 1 : 0;
    char *source = mem_strndup((const char *)data, n);
    char *text = mem_alloc(sizeof secret + rest);
    struct chat *c = NULL;
    struct err err = {0};
    ASSERT(source && text);
    memcpy(text, secret, sizeof secret - 1);
    if (rest) memcpy(text + sizeof secret - 1, behind + 1, rest);
    json_t *more = json_pack("{s:[{s:s, s:{s:s, s:{s:[i, f, n, b]}}}]}", "tool_calls", "id", secret,
                             "function", "name", secret, "arguments", secret, 1, 0.5, 1);
    json_t *vars = json_pack("{s:s, s:{s:i}}", "x", secret, "y", "k", 3);
    const struct chat_msg m[] = {{"assistant", NULL, 0, more},
                                 {"user", text, sizeof secret - 1 + rest},
                                 {"tool", "", 0, vars}};
    const struct chat_thread thread = {m, 3, true, false, more, vars, 1};
    if (chat_open(source, NULL, &c, &err) == 0) {
        struct chat_out out = {0};
        if (chat_render(c, NULL, &thread, &out, &err) == 0)
            check(&out, m, memmem(source, n, "zq8", 3) != NULL);
        else
            ASSERT(*err.msg);
        chat_out_fini(&out);
        chat_close(c);
    } else {
        ASSERT(*err.msg && !c);
    }
    json_decref(more);
    json_decref(vars);
    mem_free(text);
    mem_free(source);
    return 0;
}
