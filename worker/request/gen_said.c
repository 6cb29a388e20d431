/* What was read of an answer, as it is sent: content, reasoning, calls with their ids. */
#include "base/fnv.h"
#include "worker/request/gen.h"

#include <stdio.h>
#include <string.h>

/* The same whenever it is asked for. Mistral's templates take ids of nine characters only. */
static void name_call(const struct gen *g, unsigned index, size_t i, char ret[32])
{
    const uint32_t place[] = {index, (uint32_t)i};
    const uint64_t h = fnv_add(fnv_add(FNV_START, g->id, strlen(g->id)), place, sizeof place);

    if (g->how.syntax->short_ids)
        (void)snprintf(ret, 32, "%09llx", (unsigned long long)(h & 0xfffffffff));
    else
        (void)snprintf(ret, 32, "call_%016llx", (unsigned long long)h);
}

static struct api_call whole_call(const struct gen *g, const struct gen_choice *c, unsigned index,
                                  size_t i)
{
    const struct ans_call *from = &c->said.call[i];
    struct api_call r = {.index = (unsigned)i,
                         .name = from->name.data,
                         .name_len = from->name.len,
                         .args = from->args.data ? from->args.data : "",
                         .args_len = from->args.len};

    name_call(g, index, i, r.id);
    return r;
}

/* Of the text from *sent on; NULL: none. */
static const char *rest(const struct buf *b, size_t *sent, size_t *ret_len)
{
    const char *p = b->len > *sent ? b->data + *sent : NULL;

    *ret_len = b->len - *sent;
    *sent = b->len;
    return p;
}

bool gen_said_new(const struct gen *g, struct gen_choice *c, unsigned index, struct api_call *call,
                  struct api_said *ret)
{
    const struct ans *a = &c->said;
    const size_t last = c->sent_calls - 1;

    *ret = (struct api_said){.delta = true, .call = call};
    ret->content = rest(&a->content, &c->sent_content, &ret->content_len);
    ret->reasoning = rest(&a->reasoning, &c->sent_reasoning, &ret->reasoning_len);
    if (c->sent_calls > 0 && a->call[last].args.len > c->sent_args) {
        *call = (struct api_call){.index = (unsigned)last};
        call->args = rest(&a->call[last].args, &c->sent_args, &call->args_len);
        ret->n_call = 1;
    } else if (a->n_call > c->sent_calls) {
        *call = whole_call(g, c, index, c->sent_calls++);
        call->args_len = c->sent_args = 0;
        ret->n_call = 1;
    }
    return ret->content || ret->reasoning || ret->n_call > 0;
}

int gen_said_all(const struct gen *g, const struct gen_choice *c, unsigned index,
                 struct api_said *ret)
{
    const struct ans *a = &c->said;
    struct api_call *calls = mem_alloc((a->n_call + 1) * sizeof *calls);

    if (!calls) return -ENOMEM;
    for (size_t i = 0; i < a->n_call; i++)
        calls[i] = whole_call(g, c, index, i);
    *ret = (struct api_said){.content = a->content.data,
                             .content_len = a->content.len,
                             .reasoning = a->reasoning.data,
                             .reasoning_len = a->reasoning.len,
                             .call = calls,
                             .n_call = a->n_call};
    if (a->content.len == 0) ret->content = a->n_call > 0 ? NULL : "";
    if (a->reasoning.len == 0) ret->reasoning = NULL;
    return 0;
}
