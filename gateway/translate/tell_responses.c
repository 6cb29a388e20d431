/* OpenAI's Responses: an item for each block, with sequence numbers over all events. A stream's
 * last event repeats the whole answer, so blocks are kept until then. */
#include "gateway/translate/store.h"
#include "gateway/translate/tell.h"

#include <string.h>

static const char *const id_of[] = {
    [TELL_THOUGHT] = "rs_", [TELL_TEXT] = "msg_", [TELL_CALL] = "fc_"};

/* {"type":TYPE,"sequence_number":N, … }: its members follow, then tell_event_end(). */
static void event(struct gw_told *t, const char *type)
{
    tell_event(t, type);
    (void)buf_addf(t->out, ",\"sequence_number\":%llu", (unsigned long long)t->n_events++);
}

/* The same of the open block. */
static void block_event(struct gw_told *t, const char *type)
{
    event(t, type);
    (void)buf_addf(t->out, ",\"item_id\":\"%s%s_%u\",\"output_index\":%u", id_of[t->block.kind],
                   t->key, t->n_blocks - 1, t->n_blocks - 1);
    if (t->block.kind != TELL_CALL) (void)buf_adds(t->out, ",\"content_index\":0");
}

/* ---- items ---- */

static void put_part(const struct gw_told *t, struct buf *out)
{
    bool text = t->block.kind == TELL_TEXT;
    (void)buf_addf(out, "{\"type\":\"%s\",\"text\":", text ? "output_text" : "reasoning_text");
    tell_put_text(&t->block.text, out);
    (void)buf_adds(out, text ? ",\"annotations\":[],\"logprobs\":[]}" : "}");
}

static bool is_cut(const struct gw_told *t)
{
    return t->finish == TELL_LENGTH || t->finish == TELL_FILTER;
}

/* Whatever the answer ends with is cut where the answer is: what stood before it was done before
 * the reason to end came. */
static void put_item(const struct gw_told *t, bool done, struct buf *out)
{
    static const char *const types[] = {
        [TELL_THOUGHT] = "reasoning", [TELL_TEXT] = "message", [TELL_CALL] = "function_call"};
    const struct tell_block *b = &t->block;
    (void)buf_addf(out, "{\"type\":\"%s\",\"id\":\"%s%s_%u\",\"status\":\"%s\"", types[b->kind],
                   id_of[b->kind], t->key, t->n_blocks - 1,
                   !done       ? "in_progress"
                   : is_cut(t) ? "incomplete"
                               : "completed");
    if (b->kind == TELL_CALL) {
        (void)buf_adds(out, ",\"call_id\":");
        (void)buf_add_buf(out, &b->id);
        (void)buf_adds(out, ",\"name\":");
        (void)buf_add_buf(out, &b->name);
        (void)buf_adds(out, ",\"arguments\":");
        tell_put_text(&b->text, out);
        (void)buf_addc(out, '}');
        return;
    }
    (void)buf_adds(out, b->kind == TELL_TEXT ? ",\"role\":\"assistant\",\"content\":["
                                             : ",\"summary\":[],\"content\":[");
    if (done) put_part(t, out);
    (void)buf_adds(out, "]}");
}

static int put_block(struct gw_told *t, struct buf *out)
{
    put_item(t, true, out);
    return buf_status(out);
}

/* ---- the response ---- */

static void put_usage(const struct gw_told *t, struct buf *out)
{
    (void)buf_addf(out,
                   ",\"usage\":{\"input_tokens\":%llu,\"input_tokens_details\":{\"cached_tokens\":"
                   "%llu},\"output_tokens\":%llu,\"output_tokens_details\":{\"reasoning_tokens\":"
                   "%llu},\"total_tokens\":%llu}",
                   (unsigned long long)t->n_prompt, (unsigned long long)t->n_cached,
                   (unsigned long long)t->n_completion, (unsigned long long)t->n_reasoning,
                   (unsigned long long)(t->n_prompt + t->n_completion));
}

static const char *status_of(const struct gw_told *t)
{
    if (!t->ended) return "in_progress";
    return is_cut(t) ? "incomplete" : "completed";
}

/* failure: the members of an error, or NULL. */
static void put_response(const struct gw_told *t, const char *status, const struct buf *failure,
                         struct buf *out)
{
    bool incomplete = strcmp(status, "incomplete") == 0;
    (void)buf_addf(out,
                   "{\"id\":\"" GW_STORE_PREFIX "%s\",\"object\":\"response\",\"created_at\":%lld,"
                   "\"status\":\"%s\",\"background\":false,\"error\":",
                   t->key, (long long)t->created_s, status);
    if (failure)
        (void)buf_add_buf(out, failure);
    else
        (void)buf_adds(out, "null");
    (void)buf_addf(out, ",\"incomplete_details\":%s,",
                   !incomplete                ? "null"
                   : t->finish == TELL_LENGTH ? "{\"reason\":\"max_output_tokens\"}"
                                              : "{\"reason\":\"content_filter\"}");
    tell_put_model(t, out);
    (void)buf_adds(out, ",\"output\":[");
    (void)buf_add_buf(out, &t->blocks);
    (void)buf_addc(out, ']');
    (void)buf_add_buf(out, &t->a->echo);
    (void)buf_addf(out, ",\"store\":%s", t->keeps ? "true" : "false");
    if (t->ended && !failure)
        put_usage(t, out);
    else
        (void)buf_adds(out, ",\"usage\":null");
    tell_put_kvblend(t, out);
    (void)buf_addc(out, '}');
}

static void response_event(struct gw_told *t, const char *type, const char *status,
                           const struct buf *failure)
{
    event(t, type);
    (void)buf_adds(t->out, ",\"response\":");
    put_response(t, status, failure, t->out);
    tell_event_end(t);
}

/* ---- events ---- */

static void responses_begin(struct gw_told *t)
{
    response_event(t, "response.created", "in_progress", NULL);
    response_event(t, "response.in_progress", "in_progress", NULL);
}

static void item_event(struct gw_told *t, const char *type, bool done)
{
    event(t, type);
    (void)buf_addf(t->out, ",\"output_index\":%u,\"item\":", t->n_blocks - 1);
    put_item(t, done, t->out);
    tell_event_end(t);
}

static void part_event(struct gw_told *t, const char *type)
{
    block_event(t, type);
    (void)buf_adds(t->out, ",\"part\":");
    put_part(t, t->out);
    tell_event_end(t);
}

static void responses_open(struct gw_told *t)
{
    item_event(t, "response.output_item.added", false);
    if (t->block.kind != TELL_CALL) part_event(t, "response.content_part.added");
}

static void responses_feed(struct gw_told *t, const struct json_val *more)
{
    static const char *const types[] = {[TELL_THOUGHT] = "response.reasoning_text.delta",
                                        [TELL_TEXT] = "response.output_text.delta",
                                        [TELL_CALL] = "response.function_call_arguments.delta"};
    block_event(t, types[t->block.kind]);
    (void)buf_adds(t->out, ",\"delta\":");
    (void)buf_add(t->out, more->p, more->len);
    if (t->block.kind == TELL_TEXT) (void)buf_adds(t->out, ",\"logprobs\":[]");
    tell_event_end(t);
}

static void responses_close(struct gw_told *t)
{
    static const char *const types[] = {[TELL_THOUGHT] = "response.reasoning_text.done",
                                        [TELL_TEXT] = "response.output_text.done",
                                        [TELL_CALL] = "response.function_call_arguments.done"};
    enum tell_kind kind = t->block.kind;
    block_event(t, types[kind]);
    if (kind == TELL_CALL) {
        (void)buf_adds(t->out, ",\"name\":");
        (void)buf_add_buf(t->out, &t->block.name);
    }
    (void)buf_adds(t->out, kind == TELL_CALL ? ",\"arguments\":" : ",\"text\":");
    tell_put_text(&t->block.text, t->out);
    if (kind == TELL_TEXT) (void)buf_adds(t->out, ",\"logprobs\":[]");
    tell_event_end(t);
    if (kind != TELL_CALL) part_event(t, "response.content_part.done");
    item_event(t, "response.output_item.done", true);
}

static void responses_finish(struct gw_told *t)
{
    const char *status = status_of(t);
    bool completed = strcmp(status, "completed") == 0;
    response_event(t, completed ? "response.completed" : "response.incomplete", status, NULL);
}

static void responses_whole(struct gw_told *t)
{
    put_response(t, status_of(t), NULL, t->out);
}

static void responses_fail(struct gw_told *t, enum gw_error e, const struct json_val *message)
{
    struct buf failure = BUF_INIT;
    (void)buf_addf(&failure, "{\"code\":\"%s\",\"message\":",
                   gw_error_status(e) == 429 ? "rate_limit_exceeded" : "server_error");
    (void)buf_add(&failure, message->p, message->len);
    (void)buf_addc(&failure, '}');
    t->keeps = false;
    response_event(t, "response.failed", "failed", &failure);
    buf_fini(&failure);
}

const struct tell_ops tell_responses = {
    .collects = true,
    .begin = responses_begin,
    .open = responses_open,
    .feed = responses_feed,
    .close = responses_close,
    .block = put_block,
    .finish = responses_finish,
    .whole = responses_whole,
    .fail = responses_fail,
};
