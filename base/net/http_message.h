/* http_message: heads and chunked bodies of requests and answers, read and written. What two
 * parsers could understand differently is refused. Thread: any. */
#ifndef BASE_NET_HTTP_MESSAGE_H
#define BASE_NET_HTTP_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>

struct buf;
struct http_limits;
struct http_header {
    const char *name, *value; /* NUL-terminated; name as sent */
    uint32_t name_len, value_len;
};
struct http_head {
    const struct http_header *headers;
    size_t n_headers;
};
struct http_name {
    const char *text;
    size_t len;
};
#define HTTP_NAME(text)                                                                            \
    {                                                                                              \
        text, sizeof text - 1                                                                      \
    }
/* Names are told apart regardless of their case, most by their length and first letter. */
static inline bool http_header_named(const struct http_header *h, const struct http_name *n)
{
    return h->name_len == n->len && ((h->name[0] ^ n->text[0]) & 0xDF) == 0 &&
           strcasecmp(h->name, n->text) == 0;
}
/* Characters that it begins with and a header's name or a method may have (RFC 9110, 5.6.2). */
size_t http_token_len(const char *s);
static inline bool http_header_is(const struct http_header *h, const char *name)
{
    return http_header_named(h, &(struct http_name){name, strlen(name)});
}
static inline bool http_header_begins(const struct http_header *h, const char *prefix)
{
    return ((h->name[0] ^ prefix[0]) & 0xDF) == 0 &&
           strncasecmp(h->name, prefix, strlen(prefix)) == 0;
}
static inline bool http_header_in(const struct http_header *h, const struct http_name *list,
                                  size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (http_header_named(h, &list[i])) return true;
    return false;
}
/* The first one's value; NULL: there is none. */
static inline const char *http_header_find(const struct http_head *h, const char *name)
{
    for (size_t i = 0; i < h->n_headers; i++)
        if (http_header_is(&h->headers[i], name)) return h->headers[i].value;
    return NULL;
}
/* A line with CRLF. -EINVAL: the value would end it. */
int http_header_add(struct buf *out, const char *name, const char *value);
int http_header_copy(struct buf *out, const struct http_header *h);

enum http_framing { HTTP_BODY_NONE, HTTP_BODY_LENGTH, HTTP_BODY_CHUNKED, HTTP_BODY_UNTIL_CLOSE };
struct http_msg {                /* init {0}; http_msg_fini() */
    struct http_header *headers; /* one block with the head's bytes, cut by NULs, and the path */
    char *text;
    struct http_head head;
    enum http_framing framing;
    uint64_t length; /* for HTTP_BODY_LENGTH */
    int minor;       /* HTTP/1.minor */
    bool keep_alive, expect_100, is_head;
    const char *method, *query;      /* requests */
    char *target, *path, *authority; /* authority: of an absolute target, else NULL */
    int status;                      /* responses */
};
struct http_scan { /* init {0} */
    size_t at;     /* where the next search goes on */
    size_t n_lines;
};
/* Length of the head that starts at p including its empty line, 0 = incomplete, -EBADMSG = a line
 * feed without a carriage return. */
long http_head_end(const char *p, size_t len, struct http_scan *scan);
/* Of the head that http_head_end() found, with its n_lines. 0, or the HTTP status to refuse with
 * and its reason; -ENOMEM. */
int http_msg_parse_request(struct http_msg *m, const char *p, size_t len, size_t n_lines,
                           const struct http_limits *lim, const char **ret_why);
/* 0, -EBADMSG or -ENOMEM. */
int http_msg_parse_response(struct http_msg *m, const char *p, size_t len, size_t n_lines,
                            bool to_head);
void http_msg_drop_text(struct http_msg *m); /* headers and texts; the rest stays known */
void http_msg_fini(struct http_msg *m);
const char *http_status_text(int status);

enum http_chunk_state {
    HTTP_CHUNK_SIZE,
    HTTP_CHUNK_EXT,
    HTTP_CHUNK_SIZE_LF,
    HTTP_CHUNK_DATA,
    HTTP_CHUNK_DATA_CR,
    HTTP_CHUNK_DATA_LF,
    HTTP_CHUNK_TRAILER,
    HTTP_CHUNK_TRAILER_LF,
    HTTP_CHUNK_DONE
};
struct http_body { /* where the reading of a body stands: http_body_begin() */
    enum http_chunk_state state;
    bool chunked;
    uint64_t left; /* of a chunk, or of a body that is not chunked */
    unsigned digits, line_bytes, extra_bytes;
};
void http_body_begin(struct http_body *b, const struct http_msg *m);
/* Take bytes from *p (moved on): 1 = a piece of the body in *ret_data, 0 = more input is needed,
 * 2 = the body is complete, -EBADMSG. */
int http_body_next(struct http_body *b, const char **p, const char *end, const char **ret_data,
                   size_t *ret_len);
void http_body_took(struct http_body *b, size_t n); /* n of the bytes that were left */

#endif
