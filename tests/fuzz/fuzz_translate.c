/* Fuzz target: any bytes as a request of a dialect, as a chat stream, and as a chat answer on its
 * way back. The first byte chooses. JSON comes out as JSON, or is refused with a reason. */
#include "base/assert.h"
#include "gateway/translate/translate.h"

#include <jansson.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static bool is_json(const char *text, size_t len)
{
    json_t *v = len > 0 ? json_loadb(text, len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL) : NULL;
    json_decref(v);
    return v != NULL;
}

static void check_request(struct gw_asked *a, const char *body, size_t len)
{
    gw_asked_translate(a, body, len);
    if (a->failed)
        ASSERT(a->message[0]);
    else if (is_json(body, len))
        ASSERT(is_json(a->chat.data, a->chat.len));
}

/* Each event's data is JSON; its type stands in front. */
static void check_events(const struct buf *out)
{
    size_t at = 0;
    while (at < out->len) {
        const char *p = out->data + at, *end = memmem(p, out->len - at, "\n\n", 2);
        ASSERT(end && memcmp(p, "event: ", 7) == 0);
        const char *d = memmem(p, (size_t)(end - p), "\ndata: ", 7);
        ASSERT(d && is_json(d + 7, (size_t)(end - d) - 7));
        at += (size_t)(end - p) + 2;
    }
}

static void check_stream(struct gw_told *t, const char *events, size_t len)
{
    struct buf in = BUF_INIT, out = BUF_INIT;
    ASSERT(buf_add(&in, events, len) == 0 && buf_adds(&in, "\n\n") == 0);
    int r = gw_told_events(t, in.data, in.len, &out);
    if (r == 0) r = gw_told_end(t, &out);
    if (r < 0) ASSERT(gw_told_fail(t, GW_E_UPSTREAM, "It is none.", &out) == 0);
    check_events(&out);
    buf_fini(&in);
    buf_fini(&out);
}

static void check_answer(struct gw_told *t, const char *json, size_t len)
{
    struct buf out = BUF_INIT;
    const int r = gw_told_answer(t, json, len, &out);
    if (r == 0 && is_json(json, len)) ASSERT(is_json(out.data, out.len));
    buf_fini(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    struct gw_asked *a;
    struct gw_told *t;
    if (len < 1) return 0;
    const char *text = (const char *)data + 1;
    len--;
    ASSERT(gw_asked_create(data[0] & 1 ? GW_RESPONSES : GW_MESSAGES, &a) == 0);
    a->counts = !(data[0] & 1) && data[0] & 2;
    if (data[0] & 4) {
        a->stream = data[0] & 8;
        ASSERT(buf_adds(&a->echo, ",\"tools\":[\n\n1]") == 0);
        ASSERT(gw_told_create(a, &t) == 0);
        if (a->stream)
            check_stream(t, text, len);
        else
            check_answer(t, text, len);
        gw_told_free(t);
    } else {
        check_request(a, text, len);
    }
    gw_asked_free(a);
    return 0;
}
