/* Fuzz target: one body before the gateway's scan and the worker's parse. What both accept they
 * must read alike, or a key's limits, its models and its chunks would be judged by another request
 * than the one that runs: model, stream, max_tokens, objective, and the texts of explicit chunks.
 * The first byte chooses the route. */
#include "base/assert.h"
#include "base/buf.h"
#include "base/jsonscan.h"
#include "gateway/request/scan.h"
#include "tests/unit/gateway/scan_text.h"
#include "worker/api/api.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void heads(const struct gw_scan *s, const struct api_req *r)
{
    int64_t most = r->max_tokens < 0 ? 0 : r->max_tokens;
    ASSERT(s->stream == r->stream);
    ASSERT(s->has_model == (r->model != NULL));
    ASSERT(!s->has_model || strlen(r->model) >= sizeof s->model || strcmp(s->model, r->model) == 0);
    ASSERT(s->max_tokens >= most); /* which of two fields counts depends on the route */
    ASSERT(s->max_ttft_ms == (r->kv.max_ttft_ms < 0 ? 0 : r->kv.max_ttft_ms));
}

/* The gateway's chunk of a message is bytes of the text that the worker has joined. */
static void chunks(const struct gw_scan *s, const struct api_req *r)
{
    struct buf text = BUF_INIT;
    for (size_t i = 0; i < s->n_chunks; i++) {
        const struct gw_scan_chunk *c = &s->chunk[i];
        if (c->msg == GW_SCAN_DOCUMENT) continue;
        ASSERT(c->msg < r->n_msg);
        const char *joined = r->msg[c->msg].text;
        const size_t len = r->msg[c->msg].len;
        ASSERT(joined && c->begin < c->end && c->end <= len);
        buf_clear(&text);
        ASSERT(chunk_text(s, c, &text) == 0);
        ASSERT(text.len == c->end - c->begin &&
               memcmp(text.data, joined + c->begin, text.len) == 0);
    }
    buf_fini(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    static const struct api_limits lim = {.n_vocab = 50000, .n_max = 8};
    if (len == 0) return 0;
    const char *body = (const char *)data + 1;
    bool chat = data[0] % 2 == 0;
    struct gw_scan s;
    struct api_req r;
    struct api_err e = {0};
    len--;
    gw_scan_init(&s, body, len, false);
    gw_scan_head(&s);
    if (!s.failed) gw_scan_chunks(&s);
    if (api_parse(body, len, chat, &lim, &r, &e) == 0 && !s.failed) {
        heads(&s, &r);
        if (s.is_chat == chat) chunks(&s, &r);
    }
    api_req_fini(&r);
    gw_scan_fini(&s);
    return 0;
}
