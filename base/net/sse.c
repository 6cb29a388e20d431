#include "base/net/sse.h"

#include "base/buf.h"
#include "base/err.h"

#include "base/assert.h"
#include "base/mem.h"

#include <stdio.h>
#include <string.h>

/* ---- writer ---- */

int http_sse_start(struct http_req *r, const char *extra_headers)
{
    struct buf h = BUF_INIT;
    int e = buf_adds(&h, "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n");
    if (e == 0 && extra_headers) e = buf_adds(&h, extra_headers);
    const char *text = e == 0 ? buf_cstr(&h) : NULL;
    e = text ? http_reply_start(r, 200, "text/event-stream; charset=utf-8", text, -1) : -ENOMEM;
    buf_fini(&h);
    return e;
}

int http_sse_comment(struct http_req *r, const char *text)
{
    char line[128];
    int n = snprintf(line, sizeof line, ": %s\n\n", text);
    ASSERT(n > 0 && (size_t)n < sizeof line && !strpbrk(text, "\r\n"));
    return http_reply_write(r, line, (size_t)n);
}

/* ---- reader ---- */

enum { SSE_EVENT_BYTES_MAX = 64 * 1024 * 1024 }; /* chosen: far above any completion chunk */

static int add_bytes(struct buf *to, const char *p, size_t n)
{
    return to->len + n > SSE_EVENT_BYTES_MAX ? -ERANGE : buf_add(to, p, n);
}

static int sse_line(struct sse_parser *p, const char *s, size_t len,
                    int (*on_event)(void *ctx, const char *data, size_t len), void *ctx)
{
    int r = 0;
    if (len == 0) {
        if (!p->has_data) return 0;
        p->has_data = false;
        r = add_bytes(&p->event, "", 1); /* a NUL for the reader's comfort, not counted */
        if (r == 0) r = on_event(ctx, p->event.data, p->event.len - 1);
        p->event.len = 0;
        return r;
    }
    if (len < 4 || memcmp(s, "data", 4) != 0 || (len > 4 && s[4] != ':')) return 0;
    s += len > 4 ? 5 : 4;
    len -= len > 4 ? 5 : 4;
    if (len > 0 && *s == ' ') {
        s++;
        len--;
    }
    if (p->has_data) r = add_bytes(&p->event, "\n", 1);
    p->has_data = true;
    if (r == 0) r = add_bytes(&p->event, s, len);
    return r;
}

int sse_parser_push(struct sse_parser *p, const char *data, size_t len,
                    int (*on_event)(void *ctx, const char *data, size_t len), void *ctx)
{
    int r = 0;
    size_t start = 0;
    for (size_t i = 0; r >= 0 && i < len; i++) {
        char ch = data[i];
        if (p->saw_cr && ch == '\n' && i == start) { /* the second half of CR LF */
            p->saw_cr = false;
            start = i + 1;
            continue;
        }
        if (ch != '\n' && ch != '\r') {
            p->saw_cr = false;
            continue;
        }
        p->saw_cr = ch == '\r';
        if (p->line.len > 0) {
            r = add_bytes(&p->line, data + start, i - start);
            size_t n = p->line.len;
            p->line.len = 0;
            if (r == 0) r = sse_line(p, p->line.data, n, on_event, ctx);
        } else {
            r = sse_line(p, data + start, i - start, on_event, ctx);
        }
        start = i + 1;
    }
    if (r >= 0 && start < len) r = add_bytes(&p->line, data + start, len - start);
    return r < 0 ? r : 0;
}

void sse_parser_fini(struct sse_parser *p)
{
    buf_fini(&p->line);
    buf_fini(&p->event);
    memset(p, 0, sizeof *p);
}
