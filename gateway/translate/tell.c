#include "gateway/translate/tell.h"

#include "base/clock.h"
#include "base/mem.h"
#include "gateway/request/fields.h"
#include "gateway/translate/store.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

enum { CALLS_MAX = 1024, COUNT_MAX = 1000000000 };

/* ---- blocks ---- */

void tell_put_text(const struct buf *inside, struct buf *out)
{
    (void)buf_addc(out, '"');
    (void)buf_add_buf(out, inside);
    (void)buf_addc(out, '"');
}

void tell_put_model(const struct gw_told *t, struct buf *out)
{
    const struct buf *m = t->model.len ? &t->model : &t->a->model;
    (void)buf_adds(out, "\"model\":");
    if (m->len)
        (void)buf_add_buf(out, m);
    else
        (void)buf_adds(out, "\"\"");
}

void tell_event(struct gw_told *t, const char *type)
{
    (void)buf_addf(t->out, "event: %s\ndata: ", type);
    t->event_at = t->out->len;
    (void)buf_addf(t->out, "{\"type\":\"%s\"", type);
}

void tell_event_end(struct gw_told *t)
{
    for (size_t i = t->event_at; i < t->out->len; i++)
        if (t->out->data[i] == '\n' || t->out->data[i] == '\r') t->out->data[i] = ' ';
    (void)buf_adds(t->out, "}\n\n");
}

void tell_put_kvblend(const struct gw_told *t, struct buf *out)
{
    if (!t->kvblend.len) return;
    (void)buf_adds(out, ",\"kvblend\":");
    (void)buf_add_buf(out, &t->kvblend);
}

static void begin_stream(struct gw_told *t)
{
    if (!t->stream || t->began) return;
    t->began = true;
    t->ops->begin(t);
}

/* What the store's conversation goes on with. */
static void keep_said(struct gw_told *t)
{
    const struct tell_block *b = &t->block;
    if (!t->keeps) return;
    if (b->kind == TELL_TEXT) (void)buf_add_buf(&t->said, &b->text);
    if (b->kind != TELL_CALL) return;
    (void)buf_adds(&t->calls, t->calls.len ? ",{\"type\":\"function\",\"id\":"
                                           : "{\"type\":\"function\",\"id\":");
    (void)buf_add_buf(&t->calls, &b->id);
    (void)buf_adds(&t->calls, ",\"function\":{\"name\":");
    (void)buf_add_buf(&t->calls, &b->name);
    (void)buf_adds(&t->calls, ",\"arguments\":");
    tell_put_text(&b->text, &t->calls);
    (void)buf_adds(&t->calls, "}}");
}

static int close_block(struct gw_told *t)
{
    struct tell_block *b = &t->block;
    int r = 0;
    if (b->kind == TELL_NONE) return 0;
    if (t->stream) t->ops->close(t);
    if (!t->stream || t->ops->collects) {
        if (t->blocks.len) (void)buf_addc(&t->blocks, ',');
        r = t->ops->block(t, &t->blocks);
    }
    keep_said(t);
    b->kind = TELL_NONE;
    buf_clear(&b->text);
    return r;
}

static int open_block(struct gw_told *t, enum tell_kind kind)
{
    int r = close_block(t);
    if (r < 0) return r;
    t->block.kind = kind;
    t->n_blocks++;
    if (t->stream) t->ops->open(t);
    return 0;
}

static int feed_block(struct gw_told *t, const struct json_val *v)
{
    if (v->type != JSON_T_STRING || v->len <= 2) return 0;
    t->bytes += v->len;
    if (t->bytes > GW_TOLD_BYTES_MAX) return -EMSGSIZE;
    if (!t->stream || t->ops->collects) (void)buf_add(&t->block.text, v->p + 1, v->len - 2);
    if (t->stream) t->ops->feed(t, v);
    return 0;
}

static int feed_text(struct gw_told *t, enum tell_kind kind, const struct json_val *v)
{
    if (v->type != JSON_T_STRING || v->len <= 2) return 0;
    int r = t->block.kind == kind ? 0 : open_block(t, kind);
    return r < 0 ? r : feed_block(t, v);
}

/* ---- calls ---- */

struct calls {
    struct gw_told *t;
    int64_t n;
};

static int begin_call(struct gw_told *t, int64_t index, const struct json_val *id,
                      const struct json_val *name)
{
    struct tell_block *b = &t->block;
    if (name->type != JSON_T_STRING || name->len <= 2 || index >= CALLS_MAX) return -EBADMSG;
    int r = close_block(t);
    if (r < 0) return r;
    buf_clear(&b->name);
    buf_clear(&b->id);
    (void)buf_add(&b->name, name->p, name->len);
    if (id->type == JSON_T_STRING && id->len > 2)
        (void)buf_add(&b->id, id->p, id->len);
    else
        (void)buf_addf(&b->id, "\"call_%s_%u\"", t->key, t->n_blocks);
    b->index = index;
    return open_block(t, TELL_CALL);
}

static int on_call(void *ctx, const struct json_val *v)
{
    struct calls *c = ctx;
    struct gw_told *t = c->t;
    struct json_val at = {0}, id = {0}, function = {0}, name = {0}, arguments = {0};
    int64_t index = c->n++;
    int r = gw_fields(
        v, (struct gw_field[]){{"index", &at}, {"id", &id}, {"function", &function}, {0}});
    if (r == 0)
        r = gw_fields(&function,
                      (struct gw_field[]){{"name", &name}, {"arguments", &arguments}, {0}});
    if (r < 0 || v->type != JSON_T_OBJECT) return -EBADMSG;
    if (at.p && (json_int_read(&at, &index) < 0 || index < 0)) return -EBADMSG;
    if (t->block.kind != TELL_CALL || t->block.index != index) {
        /* Both dialects write one call after the other. */
        if (t->calls.len + t->block.id.len > 0 && index < t->block.index) return -EBADMSG;
        r = begin_call(t, index, &id, &name);
    }
    return r < 0 ? r : feed_block(t, &arguments);
}

/* ---- a chat answer's parts ---- */

static int read_message(struct gw_told *t, const struct json_val *v)
{
    struct json_val content = {0}, thought = {0}, other = {0}, refusal = {0}, calls = {0};
    struct gw_field table[] = {{"content", &content},  {"reasoning_content", &thought},
                               {"reasoning", &other},  {"refusal", &refusal},
                               {"tool_calls", &calls}, {0}};
    struct calls c = {.t = t};
    int r = gw_fields(v, table);
    if (r == 0) r = feed_text(t, TELL_THOUGHT, thought.len > 2 ? &thought : &other);
    if (r == 0) r = feed_text(t, TELL_TEXT, &content);
    if (r == 0) r = feed_text(t, TELL_TEXT, &refusal);
    if (r == 0 && calls.type == JSON_T_ARRAY && calls.p) r = json_each(&calls, on_call, &c);
    return r;
}

static void keep_value(struct buf *to, const struct json_val *v)
{
    buf_clear(to);
    (void)buf_add(to, v->p, v->len);
}

static int on_choice(void *ctx, const struct json_val *v)
{
    static const struct {
        const char *name;
        enum tell_finish finish;
    } known[] = {{"stop", TELL_STOP},
                 {"length", TELL_LENGTH},
                 {"tool_calls", TELL_CALLS},
                 {"function_call", TELL_CALLS},
                 {"content_filter", TELL_FILTER}};
    struct gw_told *t = ctx;
    struct json_val at = {0}, delta = {0}, message = {0}, finish = {0}, stop = {0};
    struct gw_field table[] = {{"index", &at},         {"delta", &delta},
                               {"message", &message},  {"finish_reason", &finish},
                               {"stop_reason", &stop}, {0}};
    int64_t index = 0;
    if (v->type != JSON_T_OBJECT || gw_fields(v, table) < 0) return -EBADMSG;
    if (at.p && (json_int_read(&at, &index) < 0 || index != 0)) return index != 0 ? 0 : -EBADMSG;
    int r = read_message(t, t->stream ? &delta : &message);
    if (finish.type == JSON_T_STRING) {
        t->finish = TELL_STOP;
        for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
            if (json_str_is(&finish, known[i].name)) t->finish = known[i].finish;
        if (stop.type == JSON_T_STRING) keep_value(&t->stop_text, &stop);
    }
    return r;
}

static void read_tokens(const struct json_val *v, uint64_t *ret)
{
    int64_t n;
    if (v->type != JSON_T_NUMBER || json_int_read(v, &n) < 0 || n < 0) return;
    *ret = n > COUNT_MAX ? COUNT_MAX : (uint64_t)n;
}

static void read_usage(struct gw_told *t, const struct json_val *v)
{
    struct json_val prompt = {0}, completion = {0}, in = {0}, out = {0}, cached = {0},
                    thought = {0};
    struct gw_field table[] = {{"prompt_tokens", &prompt},
                               {"completion_tokens", &completion},
                               {"prompt_tokens_details", &in},
                               {"completion_tokens_details", &out},
                               {0}};
    if (gw_fields(v, table) < 0) return;
    (void)gw_fields(&in, (struct gw_field[]){{"cached_tokens", &cached}, {0}});
    (void)gw_fields(&out, (struct gw_field[]){{"reasoning_tokens", &thought}, {0}});
    read_tokens(&prompt, &t->n_prompt);
    read_tokens(&completion, &t->n_completion);
    read_tokens(&cached, &t->n_cached);
    read_tokens(&thought, &t->n_reasoning);
    if (t->n_cached > t->n_prompt) t->n_cached = t->n_prompt;
}

static int told_error(struct gw_told *t, const struct json_val *error)
{
    static const struct json_val dflt = {"\"The upstream failed.\"", 22, JSON_T_STRING};
    struct json_val message = {0};
    (void)gw_fields(error, (struct gw_field[]){{"message", &message}, {0}});
    begin_stream(t);
    t->ops->fail(t, GW_E_UPSTREAM, message.type == JSON_T_STRING ? &message : &dflt);
    t->ended = true;
    return 0;
}

/* A chunk of a stream, or a whole completion. */
static int read_chat(struct gw_told *t, const char *json, size_t len)
{
    struct json_val choices = {0}, usage = {0}, model = {0}, kvblend = {0}, error = {0};
    struct gw_field table[] = {{"choices", &choices}, {"usage", &usage}, {"model", &model},
                               {"kvblend", &kvblend}, {"error", &error}, {0}};
    if (json_scan_object(json, len, gw_on_field, table, NULL) < 0) return -EBADMSG;
    if (t->stream && error.type == JSON_T_OBJECT) return told_error(t, &error);
    if (choices.type != JSON_T_ARRAY || (!t->stream && choices.len <= 2)) return -EBADMSG;
    if (model.type == JSON_T_STRING) keep_value(&t->model, &model);
    if (kvblend.type == JSON_T_OBJECT) keep_value(&t->kvblend, &kvblend);
    read_usage(t, &usage);
    begin_stream(t);
    int r = json_each(&choices, on_choice, t);
    return r == -ENOMEM || r == -EMSGSIZE || r == 0 ? r : -EBADMSG;
}

/* ---- the end ---- */

/* Before the last words are written: they say whether it is kept. */
static void judge_keeping(struct gw_told *t)
{
    enum { SLACK_BYTES = 4096 }; /* of an entry: its head, ids and counts */
    size_t size = t->a->messages.len + t->said.len + t->calls.len + t->blocks.len + t->a->echo.len +
                  t->kvblend.len + t->model.len + SLACK_BYTES;
    t->keeps = t->keeps && size <= gw_store_entry_max(t->a->store);
}

/* response: as it stands in what the client gets. */
static int keep_response(struct gw_told *t)
{
    struct buf messages = BUF_INIT, response = BUF_INIT, *out = t->out;
    char id[GW_STORE_ID_BYTES];
    if (!t->keeps) return 0;
    (void)buf_add_buf(&messages, &t->a->messages);
    (void)buf_adds(&messages, messages.len ? ",{\"role\":\"assistant\",\"content\":"
                                           : "{\"role\":\"assistant\",\"content\":");
    if (t->said.len || !t->calls.len)
        tell_put_text(&t->said, &messages);
    else
        (void)buf_adds(&messages, "null");
    if (t->calls.len) {
        (void)buf_adds(&messages, ",\"tool_calls\":[");
        (void)buf_add_buf(&messages, &t->calls);
        (void)buf_addc(&messages, ']');
    }
    (void)buf_addc(&messages, '}');
    t->out = &response;
    t->ops->whole(t);
    t->out = out;
    (void)snprintf(id, sizeof id, GW_STORE_PREFIX "%s", t->key);
    int r = buf_status(&messages) < 0 || buf_status(&response) < 0
                ? -ENOMEM
                : gw_store_put(t->a->store, t->a->owner, id, &messages, &response);
    buf_fini(&messages);
    buf_fini(&response);
    return r;
}

static int finish_told(struct gw_told *t)
{
    begin_stream(t);
    int r = close_block(t);
    if (r < 0) return r;
    t->ended = true;
    if (t->finish == TELL_UNFINISHED) t->finish = TELL_STOP;
    judge_keeping(t);
    r = keep_response(t);
    if (r < 0) return r;
    if (t->stream)
        t->ops->finish(t);
    else
        t->ops->whole(t);
    return 0;
}

static int on_event(void *ctx, const char *data, size_t len)
{
    struct gw_told *t = ctx;
    if (t->ended) return 0;
    if (len == 6 && memcmp(data, "[DONE]", 6) == 0) return finish_told(t);
    return read_chat(t, data, len);
}

static int appended(struct gw_told *t, int r)
{
    const struct buf *all[] = {t->out,      &t->block.text, &t->block.name, &t->block.id,
                               &t->blocks,  &t->said,       &t->calls,      &t->model,
                               &t->kvblend, &t->stop_text};
    for (size_t i = 0; r == 0 && i < sizeof all / sizeof all[0]; i++)
        r = buf_status(all[i]);
    t->out = NULL;
    return r;
}

int gw_told_events(struct gw_told *t, const char *data, size_t len, struct buf *out)
{
    t->out = out;
    t->stream = true;
    return appended(t, sse_parser_push(&t->sse, data, len, on_event, t));
}

int gw_told_end(struct gw_told *t, struct buf *out)
{
    t->out = out;
    t->stream = true;
    return appended(t, t->ended ? 0 : t->finish == TELL_UNFINISHED ? -EBADMSG : finish_told(t));
}

int gw_told_fail(struct gw_told *t, enum gw_error e, const char *message, struct buf *out)
{
    struct buf text = BUF_INIT;
    t->out = out;
    t->stream = true;
    int r = buf_add_json_str(&text, message, strlen(message));
    if (r == 0 && !t->ended) {
        begin_stream(t);
        t->ops->fail(t, e, &(struct json_val){text.data, text.len, JSON_T_STRING});
        t->ended = true;
    }
    t->out = NULL;
    buf_fini(&text);
    return r < 0 ? r : buf_status(out);
}

static int answer_count(const char *json, size_t len, struct buf *out)
{
    struct json_val v;
    int64_t n;
    if (json_find(json, len, "count", &v) != 1 || json_int_read(&v, &n) < 0 || n < 0)
        return -EBADMSG;
    return buf_addf(out, "{\"input_tokens\":%lld}", (long long)n);
}

int gw_told_answer(struct gw_told *t, const char *json, size_t len, struct buf *out)
{
    if (t->a->counts) return answer_count(json, len, out);
    t->out = out;
    int r = read_chat(t, json, len);
    return appended(t, r < 0 ? r : finish_told(t));
}

/* ---- life ---- */

int gw_told_create(const struct gw_asked *a, struct gw_told **ret)
{
    static const char digit[] = "0123456789abcdef";
    unsigned char key[(TELL_KEY_BYTES - 1) / 2];
    struct gw_told *t = mem_zalloc(sizeof *t);
    if (!t) return -ENOMEM;
    t->a = a;
    t->ops = a->dialect == GW_RESPONSES ? &tell_responses : &tell_messages;
    t->keeps = a->keeps;
    t->created_s = (int64_t)clock_wall_s();
    if (getrandom(key, sizeof key, 0) != (ssize_t)sizeof key) { /* never, for so few bytes */
        mem_free(t);
        return -EIO;
    }
    for (size_t i = 0; i < sizeof key; i++) {
        t->key[2 * i] = digit[key[i] >> 4];
        t->key[2 * i + 1] = digit[key[i] & 15];
    }
    *ret = t;
    return 0;
}

void gw_told_free(struct gw_told *t)
{
    if (!t) return;
    sse_parser_fini(&t->sse);
    buf_fini(&t->block.text);
    buf_fini(&t->block.name);
    buf_fini(&t->block.id);
    buf_fini(&t->blocks);
    buf_fini(&t->said);
    buf_fini(&t->calls);
    buf_fini(&t->model);
    buf_fini(&t->kvblend);
    buf_fini(&t->stop_text);
    mem_free(t);
}

/* ---- refusals ---- */

static int messages_error(int status, const struct json_val *message, struct buf *out)
{
    static const struct {
        int status;
        const char *type;
    } types[] = {{401, "authentication_error"}, {403, "permission_error"},
                 {404, "not_found_error"},      {413, "request_too_large"},
                 {429, "rate_limit_error"},     {503, "overloaded_error"},
                 {504, "timeout_error"}};
    const char *type = status < 500 ? "invalid_request_error" : "api_error";
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (types[i].status == status) type = types[i].type;
    (void)buf_addf(out, "{\"type\":\"error\",\"error\":{\"type\":\"%s\",\"message\":", type);
    (void)buf_add(out, message->p, message->len);
    return buf_adds(out, "}}");
}

int gw_dialect_error(enum gw_dialect d, enum gw_error e, const char *message, const char *param,
                     struct buf *out)
{
    struct buf text = BUF_INIT;
    if (d != GW_MESSAGES) return gw_error_body(e, message, param, out);
    int r = buf_add_json_str(&text, message, strlen(message));
    const struct json_val v = {text.data, text.len, JSON_T_STRING};
    if (r == 0) r = messages_error(gw_error_status(e), &v, out);
    buf_fini(&text);
    return r;
}

int gw_dialect_refusal(enum gw_dialect d, int status, const char *body, size_t len, struct buf *out)
{
    static const struct json_val dflt = {"\"The upstream refused the request.\"", 35,
                                         JSON_T_STRING};
    struct json_val error = {0}, message = {0};
    bool known = json_find(body, len, "error", &error) == 1;
    if (d != GW_MESSAGES && known) return buf_add(out, body, len);
    if (known && error.type == JSON_T_STRING) message = error;
    if (known) (void)gw_fields(&error, (struct gw_field[]){{"message", &message}, {0}});
    if (message.type != JSON_T_STRING) message = dflt;
    if (d == GW_MESSAGES) return messages_error(status, &message, out);
    return gw_error_body(GW_E_UPSTREAM, "The upstream refused the request.", NULL, out);
}
