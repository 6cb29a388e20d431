/* call: one HTTP request: its id, its answer, its log line; and a body that a helper works on.
 *
 * wk_call_create() → a handler replies once, at once or later → wk_call_closed(). After a reply the
 * call may be closed and freed at any moment: a handler does not touch it again unless its on_close
 * has not been called. Thread: loop. */
#ifndef WORKER_CALL_H
#define WORKER_CALL_H

#include "base/buf.h"
#include "base/net/http.h"
#include "base/otlp/otlp.h"
#include "worker/api/api_error.h"
#include "worker/api/api_reply.h"
#include "worker/loop_queue.h"

#include <stdatomic.h>
#include <stdint.h>

enum { WK_ID_BYTES = 129 };
struct worker;
struct wk_route;
struct wk_call_trace { /* where traces are on */
    struct traceparent at;
    struct otlp_spans steps; /* below its own span */
    struct buf attributes;   /* of that */
};
struct wk_call {
    struct worker *w;
    struct http_req *r;
    char id[WK_ID_BYTES];         /* x-request-id */
    const struct wk_route *found; /* at the head; NULL: an admin route, by its path */
    const char *route, *rest;     /* for the log; what the path has behind the route's */
    int status;
    bool stream;
    /* The handler that works on the call hears of its end; then the call is gone. */
    void (*on_close)(void *owner, bool aborted);
    void *owner;
    /* access log */
    struct api_usage usage;
    unsigned n_chunks;
    double ttft_ms, queue_ms;
    struct wk_call_trace trace;
};
void wk_random(void *to, size_t n); /* for ids and seeds; never fails */
/* "KIND-" and 32 digits, of which no two are alike. */
enum { WK_REPLY_ID_BYTES = 48 };
void wk_reply_id(const char *kind, char ret[WK_REPLY_ID_BYTES]);
/* The client's x-request-id when it is printable ASCII of a sane length, else one of ours. */
void wk_call_id(const char *sent, char ret[WK_ID_BYTES]);
int wk_call_create(struct worker *w, struct http_req *r, struct wk_call **ret);
void wk_call_closed(struct wk_call *c, bool aborted); /* tells the owner, logs, frees */
bool wk_call_traced(const struct wk_call *c);         /* its spans are wanted */
/* A parameter of the query as it stands there, cut where it is too long; false and "": absent. */
bool wk_call_query(const struct wk_call *c, const char *name, char *ret, size_t cap);
/* A copy that ends with 0; NULL out of memory. */
char *wk_call_body(const struct wk_call *c, size_t *ret_len);
int wk_call_headers(const struct wk_call *c, const char *extra, struct buf *out);
/* With body, which is freed; 500 when it has failed. `extra`: more header lines or NULL. */
void wk_reply(struct wk_call *c, int status, const char *type, const char *extra, struct buf *body);
void wk_reply_buf(struct wk_call *c, int status, struct buf *b); /* JSON */
void wk_reply_error(struct wk_call *c, const struct api_err *e);
void wk_reply_oom(struct wk_call *c);
void wk_refuse(struct wk_call *c, enum api_fault f, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
int wk_not_ready(struct worker *w, struct api_err *e); /* 0 ready, else e = 503 */

struct wk_hints { /* from the gateway's headers; NULL = absent. Copied strings. */
    char *segments, *mode, *ns, *separator;
};
int wk_hints_read(const struct http_req *r, struct wk_hints *ret);
void wk_hints_fini(struct wk_hints *h);
void wk_percent_decode(char *s);

struct wk_task;
struct wk_work {
    size_t bytes;                    /* of what begins with the task; 0: the task alone */
    int (*run)(struct wk_task *t);   /* helper: fills out, or e */
    void (*then)(struct wk_task *t); /* loop, after run succeeded; NULL: reply 200 with out */
    void (*fini)(struct wk_task *t); /* of what it begins; NULL: nothing */
    const void *data;
};
/* A body that a helper works on; what outlives that begins with one. wk_task_create() →
 * wk_task_submit() → run → then, or the answer and the end. */
struct wk_task {
    struct wk_msg msg;
    LIST_ENTRY(wk_task) link; /* all of the worker's */
    struct worker *w;
    struct wk_call *call; /* NULL once closed */
    atomic_bool gone;     /* then, too; any thread */
    bool at_helper;
    char *body;
    size_t body_len;
    struct wk_hints hints;
    struct wk_work work;
    struct api_err e;
    struct buf out;
};
struct wk_task *wk_task_create(struct wk_call *c, const struct wk_work *work); /* NULL: answered */
void wk_task_submit(struct wk_task *t);
void wk_task_start(struct wk_call *c, const struct wk_work *work); /* both */
/* The first of that kind, behind t where it is one, that is not at a helper. */
struct wk_task *wk_task_next(struct worker *w, struct wk_task *t, void (*then)(struct wk_task *t));
void wk_task_free(struct wk_task *t);

#endif
