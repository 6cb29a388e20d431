/* Reply shapes. Written by hand into a buffer rather than through a JSON tree: a stream sends one
 * of these per token, and the order of keys is OpenAI's own. */
#include "worker/api/api_reply.h"

#include <math.h>
#include <string.h>

static const char *fingerprint(void)
{
    return "fp_kvblend_" KV_VERSION;
}

static void put_usage(struct buf *out, const struct api_usage *u)
{
    buf_addf(out,
             "{\"prompt_tokens\":%llu,\"completion_tokens\":%llu,\"total_tokens\":%llu,"
             "\"prompt_tokens_details\":{\"cached_tokens\":%llu,\"prefix_tokens\":%llu,"
             "\"reused_tokens\":%llu,\"recomputed_tokens\":%llu,\"cache_write_tokens\":%llu},"
             "\"completion_tokens_details\":{\"reasoning_tokens\":0}}",
             (unsigned long long)u->prompt, (unsigned long long)u->completion,
             (unsigned long long)(u->prompt + u->completion),
             (unsigned long long)(u->prefix + u->reused), (unsigned long long)u->prefix,
             (unsigned long long)u->reused, (unsigned long long)u->recomputed,
             (unsigned long long)u->written);
}

/* A log probability of minus infinity is not JSON; -9999 is what OpenAI's own API sends. */
static void put_logprob(struct buf *out, float lp)
{
    buf_addf(out, "%.6g", isfinite(lp) ? (double)lp : -9999.0);
}

static void put_bytes(struct buf *out, const char *s, size_t n)
{
    buf_addc(out, '[');

    for (size_t i = 0; i < n; i++)
        buf_addf(out, "%s%u", i ? "," : "", (unsigned)(unsigned char)s[i]);
    buf_addc(out, ']');
}

static void token_bytes(const struct api_head *h, int32_t id, const char **ret, size_t *ret_len)
{
    *ret = "";
    *ret_len = 0;
    if (h->bytes) (void)h->bytes(h->bytes_ctx, id, ret, ret_len);
}

/* Chat: the string of a token is the text it released, so that all of them together are the text
 * even where a character spans tokens; the bytes are the token's own. */
static void put_chat_logprobs(struct buf *out, const struct api_head *h, const struct api_span *s)
{
    buf_adds(out, "{\"content\":[");
    const char *b;
    size_t n;

    for (size_t i = 0; i < s->n_tok; i++) {
        const struct api_token *t = &s->tok[i];
        size_t end = t->end < s->end ? t->end : s->end;
        buf_adds(out, i ? ",{\"token\":" : "{\"token\":");
        buf_add_json_str(out, s->text + t->begin, end > t->begin ? end - t->begin : 0);
        buf_adds(out, ",\"logprob\":");
        put_logprob(out, t->picked.logprob);
        token_bytes(h, t->picked.id, &b, &n);
        buf_adds(out, ",\"bytes\":");
        put_bytes(out, b, n);
        buf_adds(out, ",\"top_logprobs\":[");
        for (int k = 0; k < t->picked.n_top; k++) {
            token_bytes(h, t->picked.top_id[k], &b, &n);
            buf_adds(out, k ? ",{\"token\":" : "{\"token\":");
            buf_add_json_str(out, b, n);
            buf_adds(out, ",\"logprob\":");
            put_logprob(out, t->picked.top_logprob[k]);
            buf_adds(out, ",\"bytes\":");
            put_bytes(out, b, n);
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
        const struct api_token *t = &s->tok[i];
        size_t end = t->end < s->end ? t->end : s->end;
        if (i) buf_addc(out, ',');
        buf_add_json_str(out, s->text + t->begin, end > t->begin ? end - t->begin : 0);
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

static void put_logprobs(struct buf *out, const struct api_head *h, const struct api_span *s)
{
    if (!h->logprobs)
        buf_adds(out, "null");
    else if (h->chat)
        put_chat_logprobs(out, h, s);
    else
        put_legacy_logprobs(out, h, s);
}

static void put_finish(struct buf *out, const char *finish)
{
    if (finish)
        buf_addf(out, ",\"finish_reason\":\"%s\"", finish);
    else
        buf_adds(out, ",\"finish_reason\":null");
}

static void put_head(struct buf *out, const struct api_head *h, const char *object)
{
    buf_addf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", h->id, object,
             (long long)h->created);

    buf_add_json_str(out, h->model, strlen(h->model));
    buf_addf(out, ",\"system_fingerprint\":\"%s\",\"choices\":[", fingerprint());
}

static void put_frame_head(struct buf *out, const struct api_head *h)
{
    buf_adds(out, "data: ");
    put_head(out, h, h->chat ? "chat.completion.chunk" : "text_completion");
}

static void put_frame_end(struct buf *out, const struct api_head *h, const struct buf *extra)
{
    buf_addc(out, ']');

    if (h->usage_null) buf_adds(out, ",\"usage\":null");
    if (extra) buf_add_buf(out, extra);
    buf_adds(out, "}\n\n");
}

void api_put_frame_role(struct buf *out, const struct api_head *h, unsigned index)
{
    put_frame_head(out, h);

    buf_addf(out,
             "{\"index\":%u,\"delta\":{\"role\":\"assistant\",\"content\":\"\","
             "\"refusal\":null},\"logprobs\":null,\"finish_reason\":null}",
             index);
    put_frame_end(out, h, NULL);
}

void api_put_frame_text(struct buf *out, const struct api_head *h, const struct api_span *s)
{
    put_frame_head(out, h);

    buf_addf(out, "{\"index\":%u,%s", s->index, h->chat ? "\"delta\":{\"content\":" : "\"text\":");
    buf_add_json_str(out, s->text + s->begin, s->end - s->begin);
    buf_adds(out, h->chat ? "},\"logprobs\":" : ",\"logprobs\":");
    put_logprobs(out, h, s);
    buf_adds(out, ",\"finish_reason\":null}");
    put_frame_end(out, h, NULL);
}

void api_put_frame_finish(struct buf *out, const struct api_head *h, const struct api_span *s,
                          const struct buf *extra)
{
    put_frame_head(out, h);

    buf_addf(out, "{\"index\":%u,%s,\"logprobs\":null", s->index,
             h->chat ? "\"delta\":{}" : "\"text\":\"\"");
    put_finish(out, s->finish);
    buf_addc(out, '}');
    put_frame_end(out, h, extra);
}

void api_put_frame_usage(struct buf *out, const struct api_head *h, const struct api_usage *u,
                         const struct buf *extra)
{
    put_frame_head(out, h);

    buf_adds(out, "],\"usage\":");
    put_usage(out, u);
    if (extra) buf_add_buf(out, extra);
    buf_adds(out, "}\n\n");
}

void api_put_reply(struct buf *out, const struct api_head *h, const struct api_span *s, size_t n,
                   const struct api_usage *u, const struct buf *extra)
{
    put_head(out, h, h->chat ? "chat.completion" : "text_completion");

    for (size_t i = 0; i < n; i++) {
        buf_addf(out, "%s{\"index\":%u,", i ? "," : "", s[i].index);
        buf_adds(out, h->chat ? "\"message\":{\"role\":\"assistant\",\"content\":" : "\"text\":");
        buf_add_json_str(out, s[i].text + s[i].begin, s[i].end - s[i].begin);
        buf_adds(out, h->chat ? ",\"refusal\":null},\"logprobs\":" : ",\"logprobs\":");
        put_logprobs(out, h, &s[i]);
        put_finish(out, s[i].finish);
        buf_addc(out, '}');
    }
    buf_adds(out, "],\"usage\":");
    put_usage(out, u);
    if (extra) buf_add_buf(out, extra);
    buf_addc(out, '}');
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
