/* Fuzz target: any bytes as requests, as responses, as chunked bodies and as an event stream. The
 * first byte chooses; what was parsed must be consistent. */
#include "base/assert.h"
#include "base/buf.h"
#include "base/mem.h"
#include "base/net/http_message.h"
#include "base/net/http_server.h"
#include "base/net/sse.h"

#include <string.h>
#include <strings.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static const struct http_limits lim = {
    .head_bytes_max = 32768, .body_bytes_max = 1 << 20, .headers_max = 100};

static void chunked(const char *p, size_t len, size_t step)
{
    struct http_body c = {.chunked = true};
    const char *end = p + len, *piece;
    size_t n, total = 0;
    for (int r = 0; r == 0 && p < end;) {
        const char *stop = (size_t)(end - p) < step ? end : p + step;
        while ((r = http_body_next(&c, &p, stop, &piece, &n)) == 1)
            total += n;
    }
    ASSERT(total <= len);
}

static void head(const char *p, size_t len, bool response)
{
    struct http_scan scan = {0}, half = {0};
    long n = http_head_end(p, len, &scan);
    /* The same answer when the bytes come in two parts. */
    long early = http_head_end(p, len / 2, &half);
    if (early == 0) early = http_head_end(p, len, &half);
    ASSERT(early == n);
    ASSERT(n < 0 || half.n_lines == scan.n_lines);
    if (n <= 0) return;
    struct http_msg m = {0};
    const char *why = NULL;
    int r = response ? http_msg_parse_response(&m, p, (size_t)n, scan.n_lines, false)
                     : http_msg_parse_request(&m, p, (size_t)n, scan.n_lines, &lim, &why);
    if (r == 0) {
        for (size_t i = 0; i < m.head.n_headers; i++) {
            ASSERT(http_header_find(&m.head, m.headers[i].name));
            ASSERT(m.headers[i].name_len == strlen(m.headers[i].name));
            ASSERT(m.headers[i].value_len == strlen(m.headers[i].value));
        }
        ASSERT(response || (strlen(m.path) <= strlen(m.target) && m.length <= lim.body_bytes_max));
        ASSERT(response || *m.target == '/' || *m.target == '*');
        ASSERT(!m.authority || strcasecmp(m.authority, http_header_find(&m.head, "host")) == 0);
        if (m.framing == HTTP_BODY_CHUNKED) chunked(p + n, len - (size_t)n, 7);
    } else {
        ASSERT(response || why);
    }
    http_msg_fini(&m);
}

static int on_event(void *ctx, const char *data, size_t len)
{
    ASSERT(strlen(data) <= len);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    if (len == 0) return 0;
    const char *p = (const char *)data + 1;
    struct sse_parser sse = {0};
    len--;
    switch (data[0] % 4) {
    case 0:
        head(p, len, false);
        break;
    case 1:
        head(p, len, true);
        break;
    case 2:
        chunked(p, len, 1 + data[0] / 4);
        break;
    default:
        if (sse_parser_push(&sse, p, len / 3, on_event, NULL) == 0)
            (void)sse_parser_push(&sse, p + len / 3, len - len / 3, on_event, NULL);
        sse_parser_fini(&sse);
    }
    return 0;
}
