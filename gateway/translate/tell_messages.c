/* Anthropic's Messages: a content block for each block. Nothing of a stream is kept: its events
 * hold what is new alone. */
#include "base/mem.h"
#include "gateway/translate/tell.h"

#include <errno.h>
#include <string.h>

/* ---- blocks ---- */

static void put_call_head(const struct gw_told *t, struct buf *out)
{
    (void)buf_adds(out, "{\"type\":\"tool_use\",\"id\":");
    (void)buf_add_buf(out, &t->block.id);
    (void)buf_adds(out, ",\"name\":");
    (void)buf_add_buf(out, &t->block.name);
    (void)buf_adds(out, ",\"input\":");
}

/* The arguments' text is JSON: an object, or nothing where the answer was cut within it. */
static int put_input(const struct gw_told *t, struct buf *out)
{
    struct buf quoted = BUF_INIT, text = BUF_INIT;
    tell_put_text(&t->block.text, &quoted);
    struct json_val v = {quoted.data, quoted.len, JSON_T_STRING};
    int r = buf_status(&quoted) < 0 ? -ENOMEM : json_str_read(&v, &text);
    bool object =
        r == 0 && text.len > 0 && json_scan_object(text.data, text.len, NULL, NULL, NULL) == 0;
    if (object)
        (void)buf_add_buf(out, &text);
    else if (r == 0 && (text.len == 0 || t->finish == TELL_LENGTH))
        (void)buf_adds(out, "{}");
    else if (r == 0)
        r = -EBADMSG;
    buf_fini(&quoted);
    buf_fini(&text);
    return r;
}

static int put_block(struct gw_told *t, struct buf *out)
{
    int r = 0;
    if (t->block.kind == TELL_CALL) {
        put_call_head(t, out);
        r = put_input(t, out);
    } else if (t->block.kind == TELL_TEXT) {
        (void)buf_adds(out, "{\"type\":\"text\",\"text\":");
        tell_put_text(&t->block.text, out);
    } else {
        (void)buf_adds(out, "{\"type\":\"thinking\",\"signature\":\"\",\"thinking\":");
        tell_put_text(&t->block.text, out);
    }
    (void)buf_addc(out, '}');
    return r;
}

/* ---- the message ---- */

static void put_head(const struct gw_told *t)
{
    (void)buf_addf(t->out, "{\"id\":\"msg_%s\",\"type\":\"message\",\"role\":\"assistant\",",
                   t->key);
    tell_put_model(t, t->out);
    (void)buf_adds(t->out, ",\"content\":[");
}

static void put_stop(const struct gw_told *t)
{
    static const char *const reasons[] = {[TELL_STOP] = "end_turn",
                                          [TELL_LENGTH] = "max_tokens",
                                          [TELL_CALLS] = "tool_use",
                                          [TELL_FILTER] = "refusal"};
    bool text = t->finish == TELL_STOP && t->stop_text.len > 0;
    (void)buf_addf(t->out, "\"stop_reason\":\"%s\",\"stop_sequence\":",
                   text ? "stop_sequence" : reasons[t->finish]);
    if (text)
        (void)buf_add_buf(t->out, &t->stop_text);
    else
        (void)buf_adds(t->out, "null");
}

/* What was read from a cache counts apart. */
static void put_usage(const struct gw_told *t)
{
    (void)buf_addf(t->out,
                   ",\"usage\":{\"input_tokens\":%llu,\"cache_creation_input_tokens\":0,"
                   "\"cache_read_input_tokens\":%llu,\"output_tokens\":%llu}",
                   (unsigned long long)(t->n_prompt - t->n_cached), (unsigned long long)t->n_cached,
                   (unsigned long long)t->n_completion);
}

static void messages_whole(struct gw_told *t)
{
    put_head(t);
    (void)buf_add_buf(t->out, &t->blocks);
    (void)buf_adds(t->out, "],");
    put_stop(t);
    put_usage(t);
    tell_put_kvblend(t, t->out);
    (void)buf_addc(t->out, '}');
}

/* ---- events ---- */

/* A stream's counts are known at its end, where they come again. */
static void messages_begin(struct gw_told *t)
{
    tell_event(t, "message_start");
    (void)buf_adds(t->out, ",\"message\":");
    put_head(t);
    (void)buf_adds(t->out, "],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":"
                           "{\"input_tokens\":0,\"output_tokens\":0}}");
    tell_event_end(t);
    tell_event(t, "ping");
    tell_event_end(t);
}

static void messages_open(struct gw_told *t)
{
    tell_event(t, "content_block_start");
    (void)buf_addf(t->out, ",\"index\":%u,\"content_block\":", t->n_blocks - 1);
    if (t->block.kind == TELL_CALL) {
        put_call_head(t, t->out);
        (void)buf_adds(t->out, "{}}");
    } else {
        (void)buf_adds(t->out,
                       t->block.kind == TELL_TEXT
                           ? "{\"type\":\"text\",\"text\":\"\"}"
                           : "{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}");
    }
    tell_event_end(t);
}

static void messages_feed(struct gw_told *t, const struct json_val *more)
{
    static const char *const deltas[] = {[TELL_THOUGHT] = "\"thinking_delta\",\"thinking\":",
                                         [TELL_TEXT] = "\"text_delta\",\"text\":",
                                         [TELL_CALL] = "\"input_json_delta\",\"partial_json\":"};
    tell_event(t, "content_block_delta");
    (void)buf_addf(t->out, ",\"index\":%u,\"delta\":{\"type\":%s", t->n_blocks - 1,
                   deltas[t->block.kind]);
    (void)buf_add(t->out, more->p, more->len);
    (void)buf_addc(t->out, '}');
    tell_event_end(t);
}

static void messages_close(struct gw_told *t)
{
    tell_event(t, "content_block_stop");
    (void)buf_addf(t->out, ",\"index\":%u", t->n_blocks - 1);
    tell_event_end(t);
}

static void messages_finish(struct gw_told *t)
{
    tell_event(t, "message_delta");
    (void)buf_adds(t->out, ",\"delta\":{");
    put_stop(t);
    (void)buf_addc(t->out, '}');
    put_usage(t);
    tell_put_kvblend(t, t->out);
    tell_event_end(t);
    tell_event(t, "message_stop");
    tell_event_end(t);
}

static void messages_fail(struct gw_told *t, enum gw_error e, const struct json_val *message)
{
    int status = gw_error_status(e);
    tell_event(t, "error");
    (void)buf_addf(t->out, ",\"error\":{\"type\":\"%s\",\"message\":",
                   status == 429   ? "rate_limit_error"
                   : status == 503 ? "overloaded_error"
                                   : "api_error");
    (void)buf_add(t->out, message->p, message->len);
    (void)buf_addc(t->out, '}');
    tell_event_end(t);
}

const struct tell_ops tell_messages = {
    .collects = false,
    .begin = messages_begin,
    .open = messages_open,
    .feed = messages_feed,
    .close = messages_close,
    .block = put_block,
    .finish = messages_finish,
    .whole = messages_whole,
    .fail = messages_fail,
};
