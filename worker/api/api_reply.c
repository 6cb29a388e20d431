/* Reply shapes. Written by hand into a buffer rather than through a JSON tree: a stream sends one
 * of these per token, and the order of keys is OpenAI's own. */
#include "worker/api/api_reply.h"

#include <math.h>
#include <string.h>

static void put_usage(struct buf *out, const struct api_usage *u)
{
    buf_addf(out,
             "{\"prompt_tokens\":%llu,\"completion_tokens\":%llu,\"total_tokens\":%llu,"
             "\"prompt_tokens_details\":{\"cached_tokens\":%llu,\"prefix_tokens\":%llu,"
             "\"reused_tokens\":%llu,\"recomputed_tokens\":%llu,\"cache_write_tokens\":%llu},"
             "\"completion_tokens_details\":{\"reasoning_tokens\":%llu}}",
             (unsigned long long)u->prompt, (unsigned long long)u->completion,
             (unsigned long long)(u->prompt + u->completion),
             (unsigned long long)(u->prefix + u->reused), (unsigned long long)u->prefix,
             (unsigned long long)u->reused, (unsigned long long)u->recomputed,
             (unsigned long long)u->written, (unsigned long long)u->reasoning);
}

/* A log probability of minus infinity is not JSON; -9999 is what OpenAI's own API sends. */
static void put_logprob(struct buf *out, float lp)
{
    buf_addf(out, "%.6g", isfinite(lp) ? (double)lp : -9999.0);
}

static void put_chances(struct buf *out, float logprob, const char *bytes, size_t n)
{
    buf_adds(out, ",\"logprob\":");
    put_logprob(out, logprob);
    buf_adds(out, ",\"bytes\":[");
    for (size_t i = 0; i < n; i++)
        buf_addf(out, "%s%u", i ? "," : "", (unsigned)(unsigned char)bytes[i]);
    buf_addc(out, ']');
}

static void token_bytes(const struct api_head *h, int32_t id, const char **ret, size_t *ret_len)
{
    *ret = "";
    *ret_len = 0;
    if (h->bytes) (void)h->bytes(h->bytes_ctx, id, ret, ret_len);
}

/* The string of a token is the text it released, so that all of them together are the text even
 * where a character spans tokens. */
static void put_token_text(struct buf *out, const struct api_span *s, const struct api_token *t)
{
    size_t end = t->end < s->end ? t->end : s->end;

    buf_add_json_str(out, s->text + t->begin, end > t->begin ? end - t->begin : 0);
}

/* Chat: of a token that was looked at only, the string is its bytes; these are always its own. */
static void put_chat_logprobs(struct buf *out, const struct api_head *h, const struct api_span *s)
{
    const char *b;
    size_t n;
    buf_adds(out, "{\"content\":[");

    for (size_t i = 0; i < s->n_tok; i++) {
        const struct fus_picked *p = &s->tok[i].picked;
        buf_adds(out, i ? ",{\"token\":" : "{\"token\":");
        put_token_text(out, s, &s->tok[i]);
        token_bytes(h, p->id, &b, &n);
        put_chances(out, p->logprob, b, n);
        buf_adds(out, ",\"top_logprobs\":[");
        for (int k = 0; k < p->n_top; k++) {
            token_bytes(h, p->top_id[k], &b, &n);
            buf_adds(out, k ? ",{\"token\":" : "{\"token\":");
            buf_add_json_str(out, b, n);
            put_chances(out, p->top_logprob[k], b, n);
            buf_addc(out, '}');
        }
        buf_adds(out, "]}");
    }
    buf_adds(out, "],\"refusal\":null}");
}

static void put_top_map(struct buf *out, const struct api_head *h, const struct fus_picked *p)
{
    buf_addc(out, '{');
    const char *b;
    size_t n;

    for (int k = 0; k < p->n_top; k++) {
        token_bytes(h, p->top_id[k], &b, &n);
        if (k) buf_addc(out, ',');
        buf_add_json_str(out, b, n);
        buf_addc(out, ':');
        put_logprob(out, p->top_logprob[k]);
    }
    buf_addc(out, '}');
}

size_t api_chars(const char *text, size_t len)
{
    size_t n = 0;

    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)text[i] & 0xC0) != 0x80;
    return n;
}

/* Clients index the text by text_offset, and their strings are made of characters. */
static void put_legacy_logprobs(struct buf *out, const struct api_head *h, const struct api_span *s)
{
    size_t at = s->begin, chars = s->chars;
    buf_adds(out, "{\"tokens\":[");

    for (size_t i = 0; i < s->n_tok; i++) {
        if (i) buf_addc(out, ',');
        put_token_text(out, s, &s->tok[i]);
    }
    buf_adds(out, "],\"token_logprobs\":[");
    for (size_t i = 0; i < s->n_tok; i++) {
        if (i) buf_addc(out, ',');
        put_logprob(out, s->tok[i].picked.logprob);
    }
    buf_adds(out, "],\"top_logprobs\":[");
    for (size_t i = 0; i < s->n_tok; i++) {
        if (i) buf_addc(out, ',');
        put_top_map(out, h, &s->tok[i].picked);
    }
    buf_adds(out, "],\"text_offset\":[");
    for (size_t i = 0; i < s->n_tok; at = s->tok[i++].begin) {
        chars += api_chars(s->text + at, s->tok[i].begin - at);
        buf_addf(out, "%s%zu", i ? "," : "", chars);
    }
    buf_adds(out, "]}");
}

/* ---- frames and replies ---- */
static void put_head(struct buf *out, const struct api_head *h, const char *object)
{
    buf_addf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", h->id,
             h->chat ? object : "text_completion", (long long)h->created);

    buf_add_json_str(out, h->model, strlen(h->model));
    buf_adds(out, ",\"system_fingerprint\":\"fp_kvblend_" KV_VERSION "\",\"choices\":[");
}

static void put_calls(struct buf *out, const struct api_said *m, bool index)
{
    buf_adds(out, "\"tool_calls\":[");
    for (size_t i = 0; i < m->n_call; i++) {
        const struct api_call *c = &m->call[i];
        buf_adds(out, i ? ",{" : "{");
        if (index) buf_addf(out, "\"index\":%u,", c->index);
        if (c->name) buf_addf(out, "\"id\":\"%s\",\"type\":\"function\",", c->id);
        buf_adds(out, "\"function\":{");
        if (c->name) {
            buf_adds(out, "\"name\":");
            buf_add_json_str(out, c->name, c->name_len);
            buf_addc(out, ',');
        }
        buf_adds(out, "\"arguments\":");
        buf_add_json_str(out, c->args, c->args_len);
        buf_adds(out, "}}");
    }
    buf_addc(out, ']');
}

/* Members of a message, or of a delta, which names what it has only. */
static void put_said(struct buf *out, const struct api_said *m)
{
    const size_t at = out->len;
    const bool delta = m->delta;

    if (m->content || !delta) buf_adds(out, "\"content\":");
    if (m->content)
        buf_add_json_str(out, m->content, m->content_len);
    else if (!delta)
        buf_adds(out, "null");
    if (m->reasoning) {
        buf_adds(out, out->len > at ? ",\"reasoning_content\":" : "\"reasoning_content\":");
        buf_add_json_str(out, m->reasoning, m->reasoning_len);
    }
    if (m->n_call > 0 && out->len > at) buf_addc(out, ',');
    if (m->n_call > 0) put_calls(out, m, delta);
}

/* The text, if any, stands between open and close. */
static void put_choice(struct buf *out, const struct api_head *h, const struct api_span *s,
                       const char *open, const char *close)
{
    buf_addf(out, "{\"index\":%u,%s", s->index, open);

    if (s->said)
        put_said(out, s->said);
    else if (s->text)
        buf_add_json_str(out, s->text + s->begin, s->end - s->begin);
    buf_adds(out, close);
    buf_adds(out, ",\"logprobs\":");
    if (!h->logprobs || !s->text)
        buf_adds(out, "null");
    else if (h->chat)
        put_chat_logprobs(out, h, s);
    else
        put_legacy_logprobs(out, h, s);
    if (s->finish)
        buf_addf(out, ",\"finish_reason\":\"%s\"}", s->finish);
    else
        buf_adds(out, ",\"finish_reason\":null}");
}

void api_put_end(struct buf *out, const struct api_usage *u, const struct buf *extra)
{
    buf_adds(out, "],\"usage\":");
    put_usage(out, u);
    if (extra) buf_add_buf(out, extra);
    buf_addc(out, '}');
}

static void put_frame(struct buf *out, const struct api_head *h, const struct api_span *s,
                      const char *open, const char *close)
{
    buf_adds(out, "data: ");
    put_head(out, h, "chat.completion.chunk");
    put_choice(out, h, s, open, close);
    buf_adds(out, h->usage_null ? "],\"usage\":null" : "]");
}

void api_put_frame_role(struct buf *out, const struct api_head *h, unsigned index)
{
    put_frame(out, h, &(struct api_span){.index = index},
              "\"delta\":{\"role\":\"assistant\",\"content\":\"\",\"refusal\":null", "}");
    buf_adds(out, "}\n\n");
}

void api_put_frame_text(struct buf *out, const struct api_head *h, const struct api_span *s)
{
    put_frame(out, h, s, h->chat ? "\"delta\":{\"content\":" : "\"text\":", h->chat ? "}" : "");
    buf_adds(out, "}\n\n");
}

void api_put_frame_said(struct buf *out, const struct api_head *h, const struct api_span *s)
{
    put_frame(out, h, s, "\"delta\":{", "}");
    buf_adds(out, "}\n\n");
}

void api_put_frame_finish(struct buf *out, const struct api_head *h, const struct api_span *s,
                          const struct buf *extra)
{
    put_frame(out, h, s, h->chat ? "\"delta\":{}" : "\"text\":\"\"", "");
    if (extra) buf_add_buf(out, extra);
    buf_adds(out, "}\n\n");
}

void api_put_frame_progress(struct buf *out, const struct api_head *h, unsigned index,
                            const struct api_progress *p)
{
    put_frame(out, h, &(struct api_span){.index = index},
              h->chat ? "\"delta\":{}" : "\"text\":\"\"", "");
    buf_addf(out,
             ",\"prompt_progress\":{\"total\":%u,\"cache\":%u,\"processed\":%u,\"time_ms\":%.0f",
             p->total, p->cache, p->processed, p->ms);
    if (p->predicted_ms > 0) buf_addf(out, ",\"predicted_ms\":%.0f", p->predicted_ms);
    buf_adds(out, "}}\n\n");
}

void api_put_frame_usage(struct buf *out, const struct api_head *h, const struct api_usage *u,
                         const struct buf *extra)
{
    buf_adds(out, "data: ");
    put_head(out, h, "chat.completion.chunk");
    api_put_end(out, u, extra);
    buf_adds(out, "\n\n");
}

void api_put_reply(struct buf *out, const struct api_head *h, const struct api_span *s, size_t n,
                   const struct api_usage *u, const struct buf *extra)
{
    put_head(out, h, "chat.completion");

    for (size_t i = 0; i < n; i++) {
        if (i) buf_addc(out, ',');
        if (s[i].said)
            put_choice(out, h, &s[i], "\"message\":{\"role\":\"assistant\",", ",\"refusal\":null}");
        else
            put_choice(out, h, &s[i],
                       h->chat ? "\"message\":{\"role\":\"assistant\",\"content\":" : "\"text\":",
                       h->chat ? ",\"refusal\":null}" : "");
    }
    api_put_end(out, u, extra);
}

/* ---- stop strings ---- */
/* Find the earliest one, and how much may be shown before the next token decides. The text searched
 * again per token is bounded by the longest stop string. */
size_t api_stop_begun(const struct api_stops *s, const char *text, size_t len)
{
    size_t most = 0;

    for (size_t i = 0; i < s->n; i++) {
        size_t k = s->len[i] - 1 < len ? s->len[i] - 1 : len;
        while (k > most && memcmp(text + len - k, s->s[i], k) != 0)
            k--;
        if (k > most) most = k;
    }
    return most;
}

int api_stop_scan(const struct api_stops *s, const char *text, size_t len, size_t from,
                  size_t *ret_safe)
{
    size_t best = SIZE_MAX;

    for (size_t i = 0; i < s->n; i++) {
        size_t n = s->len[i];
        size_t start = from >= n ? from - n + 1 : 0;
        const char *hit = start < len ? memmem(text + start, len - start, s->s[i], n) : NULL;
        if (hit && (size_t)(hit - text) < best) best = (size_t)(hit - text);
    }
    if (best != SIZE_MAX) {
        *ret_safe = best;
        return 1;
    }
    *ret_safe = len - api_stop_begun(s, text, len);
    return 0;
}
