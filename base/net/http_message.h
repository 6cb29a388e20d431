/* http_message: heads of requests and answers: header lines, read and written. Thread: any. */
#ifndef BASE_NET_HTTP_MESSAGE_H
#define BASE_NET_HTTP_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <strings.h>

struct buf;
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

#endif
