/* chunk_text: what the ranges of chunks are held against. */
#ifndef TESTS_UNIT_GATEWAY_SCAN_TEXT_H
#define TESTS_UNIT_GATEWAY_SCAN_TEXT_H

#include "base/jsonscan.h"
#include "gateway/request/scan.h"

/* The text of a chunk appended, as the model would read it: a document with its title. */
static inline int chunk_text(const struct gw_scan *s, const struct gw_scan_chunk *c,
                             struct buf *out)
{
    static const char *const keys[] = {"text", "contents", "content"};
    /* As if quotes stood at both ends: what lies between is read, and it is whole. */
    struct json_val v = {s->body + c->body_begin - 1, c->body_end - c->body_begin + 2,
                         JSON_T_STRING};
    struct json_val title;
    if (c->msg != GW_SCAN_DOCUMENT) return json_str_read(&v, out);
    v = (struct json_val){s->body + c->body_begin, c->body_end - c->body_begin, JSON_T_STRING};
    if (*v.p == '"') return json_str_read(&v, out);
    int r = 0;
    if (json_find(v.p, v.len, "title", &title) == 1 && title.type == JSON_T_STRING) {
        size_t before = out->len;
        r = json_str_read(&title, out);
        if (r == 0 && out->len > before) r = buf_addc(out, '\n');
    }
    for (size_t i = 0; r == 0 && i < 3; i++) {
        struct json_val text;
        if (json_find(v.p, v.len, keys[i], &text) == 1) return json_str_read(&text, out);
    }
    return r < 0 ? r : -1;
}

#endif
