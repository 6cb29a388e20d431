/* The first step: base/jsonscan.h checks the whole body once and shows where the top-level values
 * are; nothing is copied but the model's name. */
#include "gateway/request/scan.h"

#include "gateway/request/fields.h"
#include "base/mem.h"
#include "policy/fair.h"
#include "segment/segment.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { AFFINITY_BYTES_MAX = 1024 }; /* chosen: a system prompt and the beginning of a question */

struct head {
    struct gw_scan *s;
    struct json_val model, stream, max_tokens, max_completion, cache_key, messages, prompt;
    struct json_val documents, kvblend, salt;
    unsigned n_models;
};

/* Empty where the value is not there. */
static struct gw_scan_range range_of(const struct head *h, const struct json_val *v)
{
    return (struct gw_scan_range){v->p ? (size_t)(v->p - h->s->body) : 0, v->len};
}

static int on_field(void *ctx, const struct json_field *f)
{
    static const struct {
        const char *name;
        size_t offset;
    } keys[] = {{"model", offsetof(struct head, model)},
                {"messages", offsetof(struct head, messages)},
                {"prompt", offsetof(struct head, prompt)},
                {"max_tokens", offsetof(struct head, max_tokens)},
                {"max_completion_tokens", offsetof(struct head, max_completion)},
                {"stream", offsetof(struct head, stream)},
                {"prompt_cache_key", offsetof(struct head, cache_key)},
                {"documents", offsetof(struct head, documents)},
                {"kvblend", offsetof(struct head, kvblend)},
                {"cache_salt", offsetof(struct head, salt)}};
    struct head *h = ctx;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (!json_str_is(&f->key, keys[i].name)) continue;
        *(struct json_val *)(void *)((char *)h + keys[i].offset) = f->val;
        h->n_models += i == 0;
        break;
    }
    return 0;
}

/* Which of the two counts is the route's to say: the larger never promises too little. */
static uint32_t token_limit(const struct head *h)
{
    int64_t n = 0, other = 0;
    (void)json_int_read(&h->max_completion, &n);
    (void)json_int_read(&h->max_tokens, &other);
    if (other > n) n = other;
    return n < 0 ? 0 : n > UINT32_MAX / 2 ? UINT32_MAX / 2 : (uint32_t)n;
}

static void refuse_body(struct gw_scan *s, enum gw_error e, const char *message)
{
    s->failed = true;
    s->error = e;
    (void)snprintf(s->message, sizeof s->message, "%s", message);
}

static void read_model(struct head *h)
{
    struct gw_scan *s = h->s;
    struct buf name = BUF_INIT;
    if (h->n_models > 1) { /* readers differ in which one counts: what is allowed must be sent */
        refuse_body(s, GW_E_INVALID_JSON, "The request body names its model more than once.");
    } else if (h->n_models == 0 || h->model.type != JSON_T_STRING) {
        return; /* the backend will say what is wrong */
    } else if (json_str_plain(&h->model) && h->model.len - 2 < sizeof s->model) {
        memcpy(s->model, h->model.p + 1, h->model.len - 2);
        s->model[h->model.len - 2] = '\0';
        s->has_model = true;
        s->model_value = range_of(h, &h->model);
    } else if (json_scan(h->model.p, h->model.len, NULL, NULL) < 0) {
        refuse_body(s, GW_E_INVALID_JSON, "The model's name is no valid text.");
    } else if (json_str_read(&h->model, &name) == 0 && name.len < sizeof s->model &&
               !memchr(name.data ? name.data : "", '\0', name.len)) {
        memcpy(s->model, name.data ? name.data : "", name.len);
        s->model[name.len] = '\0';
        s->has_model = true;
        s->model_value = range_of(h, &h->model);
    } else {
        refuse_body(s, GW_E_UNKNOWN_MODEL, "The model name is too long.");
    }
    buf_fini(&name);
}

/* Behind the first message of role user, as far as the bytes reach: later turns of a conversation
 * begin with the same ones. A guess by the bytes alone; any answer is a good one. */
static size_t beginning(const char *p, size_t len)
{
    size_t n = len < AFFINITY_BYTES_MAX ? len : AFFINITY_BYTES_MAX, from = 0;
    unsigned depth = 0;
    bool in_text = false;
    for (size_t i = 0; i < n; i++) {
        if (in_text) { /* to its quote, which no odd number of backslashes precedes */
            const char *quote = memchr(p + i, '"', n - i);
            if (!quote) break;
            i = (size_t)(quote - p);
            size_t slashes = 0;
            while (p[i - 1 - slashes] == '\\')
                slashes++;
            in_text = slashes % 2 == 1;
            continue;
        }
        in_text = p[i] == '"';
        if (p[i] == '{' && depth++ == 0) from = i;
        if (p[i] == '}' && depth > 0 && --depth == 0 && memmem(p + from, i - from, "\"user\"", 6))
            return i + 1;
    }
    return n;
}

static uint64_t affinity_of(const struct head *h)
{
    if (h->cache_key.type == JSON_T_STRING && h->cache_key.len > 2)
        return seg_text_id("key", h->cache_key.p, h->cache_key.len);
    const struct json_val *v = h->messages.p ? &h->messages : h->prompt.p ? &h->prompt : NULL;
    if (!v || v->len <= 2) return 0;
    if (v->type == JSON_T_ARRAY && v == &h->messages)
        return seg_text_id("chat", v->p, beginning(v->p, v->len));
    size_t n = v->len - 1; /* a longer prompt goes on where the quote stands */
    return seg_text_id("text", v->p, n < AFFINITY_BYTES_MAX ? n : AFFINITY_BYTES_MAX);
}

/* The kvblend object: what the queue goes by, what it says of chunks, and what is refused here (a
 * worker would take no notice of a wrong priority). */
static void read_wishes(struct head *h)
{
    struct json_val strategy = {0}, ms = {0}, priority = {0}, segments = {0}, separator = {0};
    struct json_val space = {0}, mode = {0};
    struct gw_field fields[] = {{"strategy", &strategy},   {"max_ttft_ms", &ms},
                                {"priority", &priority},   {"segments", &segments},
                                {"separator", &separator}, {"namespace", &space},
                                {"mode", &mode},           {0}};
    struct gw_scan *s = h->s;
    int64_t n;
    double v;
    if (h->kvblend.type != JSON_T_OBJECT || gw_fields(&h->kvblend, fields) < 0) return;
    s->asks_map = json_str_is(&strategy, "map_reduce") || json_str_is(&strategy, "map_rerank");
    s->full = json_str_is(&mode, "full");
    s->said_segments = range_of(h, &segments);
    s->said_separator = range_of(h, &separator);
    s->said_space = range_of(h, &space);
    if (ms.p && json_double_read(&ms, &v) == 0 && v > 0) s->max_ttft_ms = v;
    if (!priority.p || priority.type == JSON_T_NULL) return;
    if (json_int_read(&priority, &n) < 0 || n < 0 || n >= POL_FAIR_CLASSES)
        refuse_body(s, GW_E_BAD_REQUEST,
                    "Invalid 'kvblend.priority': expected a whole number from 0 (first) to 9.");
    else
        s->priority = (unsigned)n;
}

void gw_scan_init(struct gw_scan *s, const char *body, size_t len, bool skim)
{
    memset(s, 0, offsetof(struct gw_scan, message));
    s->message[0] = s->model[0] = s->detector[0] = s->space[0] = '\0';
    s->body = body;
    s->len = len;
    s->skim = skim;
}

void gw_scan_head(struct gw_scan *s)
{
    struct head h = {.s = s};
    struct json_fault fault = {0};
    int r = s->skim ? json_skim_object(s->body, s->len, on_field, &h, &fault)
                    : json_scan_object(s->body, s->len, on_field, &h, &fault);
    if (r < 0) {
        const char *why = fault.why ? fault.why : "malformed";
        s->failed = true;
        s->overflow = r == -EDOM;
        s->error = strstr(why, "UTF-8") ? GW_E_INVALID_UTF8 : GW_E_INVALID_JSON;
        (void)snprintf(s->message, sizeof s->message,
                       "The request body must be a JSON object: %s at byte %zu.", why, fault.at);
        return;
    }
    s->max_tokens = token_limit(&h);
    if (h.stream.p && json_bool_read(&h.stream, &s->stream) < 0) s->stream = false;
    read_model(&h);
    if (!s->failed) read_wishes(&h);
    s->is_chat = h.messages.p != NULL;
    s->texts = range_of(&h, s->is_chat ? &h.messages : &h.prompt);
    s->documents = range_of(&h, &h.documents);
    s->salt = range_of(&h, &h.salt);
    if (!s->lone) s->affinity = affinity_of(&h);
}

void gw_scan_run(struct gw_scan *s)
{
    gw_scan_head(s);
    if (!s->failed && s->presets) gw_scan_chunks(s);
}

void gw_scan_forget(struct gw_scan *s)
{
    buf_fini(&s->segments);
    mem_free(s->chunk);
    s->chunk = NULL;
    s->n_chunks = 0;
}

void gw_scan_fini(struct gw_scan *s)
{
    gw_scan_forget(s);
}
