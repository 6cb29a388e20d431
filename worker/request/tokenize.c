/* /tokenize and /detokenize, on a helper thread. */
#include "worker/request/request.h"
#include "worker/worker.h"

#include <string.h>

static int put_ids(struct wk_task *t, const int32_t *id, size_t n)
{
    buf_adds(&t->out, "{\"tokens\":[");

    for (size_t i = 0; i < n; i++)
        buf_addf(&t->out, "%s%d", i ? "," : "", id[i]);
    buf_addf(&t->out, "],\"count\":%zu,\"max_model_len\":%u}", n, t->w->ctx_max);
    return buf_status(&t->out);
}

static int flag(const json_t *root, const char *a, const char *b, int dflt)
{
    const json_t *v = json_object_get(root, a);

    if (!json_is_boolean(v)) v = json_object_get(root, b);
    return json_is_boolean(v) ? json_is_true(v) : dflt;
}

static int tokenize_messages(struct wk_task *t, struct api_req *r)
{
    struct worker *w = t->w;
    struct chat_out out = {0};
    struct tok_ids ids = {0};
    int rc = api_parse_messages(r, &t->e);
    bool bos = flag(r->root, "add_special", "add_special_tokens", 0);

    if (rc < 0) return rc;
    r->add_generation_prompt = flag(r->root, "add_generation_prompt", "", 1);
    r->continue_final = flag(r->root, "continue_final_message", "", 0);
    rc = wk_render_chat(w, r, NULL, NULL, &out, &t->e);
    if (rc >= 0) rc = tok_encode(w->tok, out.pieces, out.n_pieces, bos ? TOK_BOS : 0, &ids);
    if (rc >= 0) rc = put_ids(t, ids.id, ids.n);
    tok_ids_fini(&ids);
    chat_out_fini(&out);
    return rc;
}

/* Defaults of add_special as in the servers the names come from: `content` (llama.cpp) without,
 * `prompt` (vLLM) with, `messages` (vLLM) without: on top of the template it would be a second. */
static int tokenize_text(struct wk_task *t, const json_t *root)
{
    const json_t *v = json_object_get(root, "content");
    bool is_content = json_is_string(v);
    struct tok_ids ids = {0};
    int rc;

    if (!is_content) v = json_object_get(root, "prompt");
    if (!json_is_string(v)) return api_missing(&t->e, "content", ", 'prompt' or 'messages'");
    struct tok_piece p = {json_string_value(v), json_string_length(v),
                          flag(root, "parse_special", "", 0)};
    rc = tok_encode(t->w->tok, &p, 1,
                    flag(root, "add_special", "add_special_tokens", !is_content) ? TOK_BOS : 0,
                    &ids);
    if (rc >= 0) rc = put_ids(t, ids.id, ids.n);
    tok_ids_fini(&ids);
    return rc;
}

int wk_tokenize(struct wk_task *t)
{
    struct api_req r = {0};
    int rc;

    arena_init(&r.arena);
    rc = api_load_object(t->body, t->body_len, &r.root, &t->e);
    if (rc >= 0)
        rc = json_object_get(r.root, "messages") ? tokenize_messages(t, &r)
                                                 : tokenize_text(t, r.root);
    api_req_fini(&r);
    return rc;
}

int wk_detokenize(struct wk_task *t)
{
    struct tok_stream ts = {0};
    struct buf text = BUF_INIT;
    const json_t *v;
    json_t *root = NULL;
    int rc = api_load_object(t->body, t->body_len, &root, &t->e);

    if (rc < 0) return rc;
    v = json_object_get(root, "tokens");
    if (!json_is_array(v)) rc = api_missing(&t->e, "tokens", ", an array of token ids");
    for (size_t i = 0; rc >= 0 && i < json_array_size(v); i++) {
        const json_t *x = json_array_get(v, i);
        json_int_t id = json_is_integer(x) ? json_integer_value(x) : -1;
        if (id < 0 || (size_t)id >= tok_n_vocab(t->w->tok))
            rc = api_err_set(&t->e, API_INVALID_VALUE, "tokens",
                             "Invalid 'tokens[%zu]': not a token id of this model (0 to %zu).", i,
                             tok_n_vocab(t->w->tok) - 1);
        else
            rc = tok_stream_push(t->w->tok, &ts, (int32_t)id, &text);
    }
    if (rc >= 0) rc = tok_stream_end(&ts, &text);
    if (rc >= 0) {
        buf_adds(&t->out, "{\"content\":");
        buf_add_json_str(&t->out, text.data, text.len);
        buf_adds(&t->out, ",\"prompt\":");
        buf_add_json_str(&t->out, text.data, text.len);
        buf_addc(&t->out, '}');
        rc = buf_status(&t->out);
    }
    buf_fini(&text);
    json_decref(root);
    return rc;
}
