/* http_loop: one thread's event loop (libevent), its timers and posts. Servers, clients and timers
 * belong to the loop's thread: everything is called there but http_loop_post() and
 * http_loop_stop(). */
#ifndef BASE_NET_HTTP_LOOP_H
#define BASE_NET_HTTP_LOOP_H

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
struct http_timer;
int http_timer_create(struct http_loop *l, void (*fn)(void *arg), void *arg,
                      struct http_timer **ret);
void http_timer_set(struct http_timer *t, uint64_t delay_ms); /* one shot; re-arms */
void http_timer_clear(struct http_timer *t);
void http_timer_destroy(struct http_timer *t);
double http_loop_lag_ms(const struct http_loop *l); /* last measured; histogram metric inside */

#endif
