/* The tokenizer of a model with random weights: bytes, pairs of small letters so that words are not
 * all letters, and a name for every other id, so that whatever such a model says can be read. */
#include "base/mem.h"
#include "fusor/model/shape.h"
#include "fusor/text/tok_load.h"

#include <stdio.h>

enum { BOS, IM_START, IM_END, BYTES, PAIRS = BYTES + 256, NAMED = PAIRS + 26 * 26 };
static const char chatml[] =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\\n' }}{% endif %}";

static int set_tokens(struct tok *t)
{
    int r = tok_set(t, BOS, "<s>", 3, TOK_T_CONTROL);
    if (r == 0) r = tok_set(t, IM_START, "<|im_start|>", 12, TOK_T_CONTROL);
    if (r == 0) r = tok_set(t, IM_END, "<|im_end|>", 10, TOK_T_CONTROL);
    for (size_t i = BYTES; r == 0 && i < t->n_vocab; i++) {
        const size_t pair = i - PAIRS;
        char text[16] = {(char)(i - BYTES)};
        int len = 1;
        if (i >= NAMED)
            len = snprintf(text, sizeof text, "<%zu>", i);
        else if (i >= PAIRS)
            len =
                snprintf(text, sizeof text, "%c%c", (int)('a' + pair / 26), (int)('a' + pair % 26));
        r = tok_set(t, i, text, (size_t)len, TOK_T_NORMAL);
    }
    return r;
}

static int fill_vocabulary(struct tok *t)
{
    t->kind = TOK_BYTE_LEVEL;
    t->pre = TOK_PRE_GPT2;
    t->bos = BOS;
    t->add_bos = true;
    t->chat_template = mem_strdup(chatml);
    int r = t->chat_template ? set_tokens(t) : -ENOMEM;
    tok_mark_eog(t);
    if (r == 0) r = tok_index(t);
    for (int32_t i = 0; r == 0 && i < 26 * 26; i++)
        r = tok_merge_add(t, t->byte_id['a' + i / 26], t->byte_id['a' + i % 26], PAIRS + i,
                          (uint32_t)i);
    return r < 0 ? r : tok_finish(t);
}

int tok_open_shape(const char *shape, struct tok **ret, struct err *err)
{
    struct model_cfg c;
    struct tok *t;
    int r = shape_parse(shape, &c, err);
    if (r < 0) return r;
    if (c.V < NAMED) return err_set(err, -ENOTSUP, "a vocabulary of %u is too small", c.V);
    r = tok_new(c.V, &t);
    if (r == 0 && (r = fill_vocabulary(t)) < 0) tok_close(t);
    if (r < 0) return err_set(err, r, "cannot hold a vocabulary of %u tokens", c.V);
    *ret = t;
    return 0;
}
