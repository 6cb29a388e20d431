/* http_loop_int: the inside of a loop: lists, its scratch, its deferred calls, cheap timers.
 *
 * Callbacks into user code are made from event handlers and deferred calls only, never from inside
 * a call of the user. Thread: the loop's. */
#ifndef BASE_NET_HTTP_LOOP_INT_H
#define BASE_NET_HTTP_LOOP_INT_H

#include "base/buf.h"
#include "base/mem.h"
#include "base/net/http_loop.h"
#include "base/ring.h"

#include <event2/event.h>
#include <event2/event_struct.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

enum { HTTP_SCRATCH_BYTES = 128 * 1024 }; /* chosen: a 32k-token prompt in one or two reads */

/* A list as a ring through its members, its head one of them. */
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

struct http_defer { /* a call to be made from the loop, embedded in its owner */
    void (*fn)(void *arg);
    void *arg;
    struct http_link among;
    bool queued;
};
struct http_loop {
    struct event_base *base;
    struct ring ring;
    int wake_fd;
    atomic_bool woken, stop;
    struct event ev_wake, ev_defer;
    struct http_timer lag;
    struct http_link defers;
    size_t n_defers;
    bool in_handler;
    uint64_t lag_due_ns;
    double lag_ms;
    char *scratch; /* HTTP_SCRATCH_BYTES: every read goes here first, so that idle connections hold
                      no buffer */
    char *tls_scratch;        /* as large: records before and after the cipher; NULL until used */
    struct buf tls_out, head; /* records on their way out; a reply's head: empty between uses */
    struct mem_stock reqs;    /* struct http_req */
    /* What http_loop_status_line() said last, and until when it is true. */
    uint64_t line_until_ns;
    int line_status;
    size_t line_len;
    char line[128];
};
enum { HTTP_STOCK_MAX = 64 }; /* chosen: more than are under way in one turn, as a rule */
/* "HTTP/1.1 200 OK" and the Date header: written anew when one of them changes. */
const char *http_loop_status_line(struct http_loop *l, int status, size_t *ret_len);

void http_defer(struct http_loop *l, struct http_defer *d); /* idempotent while queued */
void http_defer_cancel(struct http_loop *l, struct http_defer *d);
/* Around the handler of an event: what it defers is done when it ends, while its memory is warm. */
void http_handler_begin(struct http_loop *l);
void http_handler_end(struct http_loop *l);

/* What a socket is watched for: the event is in the loop only while it is on. */
struct http_watch {
    struct event ev;
    bool on;
};
static inline void http_watch_set(struct http_watch *w, bool on)
{
    if (on == w->on) return;
    w->on = on;
    (void)(on ? event_add(&w->ev, NULL) : event_del(&w->ev));
}

#endif
