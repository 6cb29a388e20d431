/* http_link: a list as a ring through its members, its head one of them. Thread: its owner's. */
#ifndef BASE_NET_HTTP_LINK_H
#define BASE_NET_HTTP_LINK_H

#include <stdbool.h>
#include <stddef.h>

struct http_link {
    struct http_link *prev, *next;
};
/* The struct that the link is a field of. */
#define HTTP_LINK_OWNER(link, type, field) ((type *)(void *)((char *)(link)-offsetof(type, field)))

static inline void http_link_init(struct http_link *l)
{
    l->prev = l->next = l;
}
static inline bool http_link_empty(const struct http_link *list)
{
    return list->next == list;
}
static inline void http_link_add(struct http_link *list, struct http_link *l) /* at the end */
{
    l->prev = list->prev;
    l->next = list;
    l->prev->next = list->prev = l;
}
static inline void http_link_add_first(struct http_link *list, struct http_link *l)
{
    http_link_add(list->next, l);
}
static inline void http_link_remove(struct http_link *l) /* harmless when it is in none */
{
    l->prev->next = l->next;
    l->next->prev = l->prev;
    http_link_init(l);
}

#endif
