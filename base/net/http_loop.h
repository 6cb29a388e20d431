/* http_loop: one thread's event loop (libevent), its timers and posts. Servers, clients and timers
 * belong to the loop's thread: everything is called there but http_loop_post() and
 * http_loop_stop(). */
#ifndef BASE_NET_HTTP_LOOP_H
#define BASE_NET_HTTP_LOOP_H

#include <event2/event_struct.h>
#include <stdint.h>

struct event_base;
struct http_loop;
int http_loop_create(struct http_loop **ret);
void http_loop_destroy(struct http_loop *l);
struct event_base *http_loop_base(struct http_loop *l);
int http_loop_run(struct http_loop *l); /* until http_loop_stop() */
/* From any thread or a signal handler. Posts that have not run by then wait for the next run; after
 * http_loop_destroy() they are dropped. */
void http_loop_stop(struct http_loop *l);
/* Run fn(arg) on the loop thread soon; the way other threads speak to it (eventfd inside). 0, or
 * -EAGAIN when the ring (fixed size) is full. Order of one poster's messages is kept. */
int http_loop_post(struct http_loop *l, void (*fn)(void *arg), void *arg);
/* One shot, embedded in its owner; all zeros: off. Most are moved at every step of a connection and
 * hardly ever fire: moving one on costs a store, the event is armed anew only when it fires too
 * early. Such a one goes by the kernel's last tick: some milliseconds early or late. */
struct http_timer {
    struct event ev;
    struct http_loop *loop;
    uint64_t due_ns, armed_ns; /* 0 = off; when the event will fire, 0 = never */
    void (*fn)(void *arg);
    void *arg;
};
void http_timer_init(struct http_timer *t, struct http_loop *l, void (*fn)(void *arg), void *arg);
void http_timer_set(struct http_timer *t, uint64_t delay_ms); /* re-arms */
void http_timer_clear(struct http_timer *t);
void http_timer_fini(struct http_timer *t);         /* of zeros, too, and more than once */
double http_loop_lag_ms(const struct http_loop *l); /* last measured; histogram metric inside */

#endif
