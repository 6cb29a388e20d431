/* A sub-request finds its way like a request, but for its ends: what it cannot have now it waits
 * for by trying again, and its answer is collected whole. A refusal that another target may not
 * give (429, 502, 503, 504) goes to another one when there is one. */
#include "gateway/request/ask.h"

#include "base/clock.h"
#include "base/mem.h"
#include "gateway/gate.h"
#include "gateway/process/config.h"

#include <errno.h>
#include <string.h>

enum {
    ASK_BYTES_MAX = 8 << 20, /* chosen: longer answers are no summaries */
    ASK_POLL_MS = 20,        /* chosen: how soon room at a full target is noticed */
};

struct gw_ask {
    struct gw_req *q;
    gw_ask_fn done;
    void *ctx;
    char *path, *model;
    struct buf body, answer, name; /* name: the model's at the target, quoted */
    struct gw_scan_range model_value;
    struct gw_lease lease;
    uint64_t tried[GW_TARGETS_MAX / 64];
    struct http_call *call;
    struct http_timer *timer;
    uint64_t deadline_ns, start_ns, first_byte_ns;
    unsigned n_retries;
    int status;
    bool sent;   /* at least once: it counts */
    bool failed; /* the timer brings the bad news */
    struct iovec piece[3];
};

static void release(struct gw_ask *a, enum gw_outcome o)
{
    if (!a->lease.target) return;
    uint64_t ttfb = a->first_byte_ns ? a->first_byte_ns - a->start_ns : 0;
    gw_fleet_release(a->q->gate->house->fleet, &a->lease, o, ttfb);
}

static void ask_free(struct gw_ask *a)
{
    if (a->timer) http_timer_destroy(a->timer);
    mem_free(a->path);
    mem_free(a->model);
    buf_fini(&a->body);
    buf_fini(&a->answer);
    buf_fini(&a->name);
    mem_free(a);
}

/* The request may be gone when this returns. */
static void finish(struct gw_ask *a, int status)
{
    a->done(a->ctx, status, a->answer.data ? a->answer.data : "", a->answer.len);
    ask_free(a);
}

static void later(struct gw_ask *a, int status)
{
    a->status = status;
    a->failed = true;
    http_timer_set(a->timer, 0);
}

static void find_target(struct gw_ask *a);

static bool try_again(struct gw_ask *a)
{
    if (a->n_retries >= gw_config_of(a->q)->retry_attempts) return false;
    a->n_retries++;
    return true;
}

/* ---- the call ---- */

static void on_head(void *ctx, int status, const struct http_head *h)
{
    struct gw_ask *a = ctx;
    a->status = status;
    a->first_byte_ns = clock_ns();
}

static void on_body(void *ctx, const char *data, size_t len)
{
    struct gw_ask *a = ctx;
    if (a->answer.len + len <= ASK_BYTES_MAX && buf_add(&a->answer, data, len) == 0) return;
    http_call_cancel(a->call);
    a->call = NULL;
    release(a, GW_DONE_CANCELLED);
    buf_clear(&a->answer);
    later(a, -EMSGSIZE);
}

static enum gw_outcome outcome_of(int status)
{
    if (status == -ETIMEDOUT || status == -ETIME) return GW_DONE_TIMEOUT;
    if (status == 429 || status == 503) return GW_DONE_BUSY;
    return status < 0 || status >= 500 ? GW_DONE_FAILED : GW_DONE_OK;
}

static void on_end(void *ctx, int status)
{
    struct gw_ask *a = ctx;
    bool sent = http_call_sent(a->call);
    int what = status < 0 ? status : a->status;
    bool elsewhere = what == 429 || what == 502 || what == 503 || what == 504;
    a->call = NULL;
    a->tried[a->lease.index / 64] |= 1ull << a->lease.index % 64;
    release(a, outcome_of(what)); /* forgets whose it was */
    if ((elsewhere || (status < 0 && !sent)) && try_again(a)) {
        buf_clear(&a->answer);
        find_target(a);
        return;
    }
    if (status < 0) buf_clear(&a->answer);
    finish(a, what);
}

static const struct http_call_ops call_ops = {on_head, on_body, on_end};

static int make_pieces(struct gw_ask *a, size_t *ret_n)
{
    struct gw_edit e = {a->model_value.at, a->model_value.len, NULL, 0};
    size_t n = a->lease.model && a->model_value.len ? 1 : 0, sum;
    buf_clear(&a->name);
    if (n > 0 && buf_add_json_str(&a->name, a->lease.model, strlen(a->lease.model)) < 0)
        return -ENOMEM;
    e.text = a->name.data;
    e.len = a->name.len;
    return gw_splice(a->body.data, a->body.len, &e, n, a->piece, ret_n, &sum);
}

static int send_it(struct gw_ask *a)
{
    struct gw_gate *g = a->q->gate;
    struct buf headers = BUF_INIT, path = BUF_INIT;
    size_t n = 0;
    struct http_client *client =
        gw_fleet_client(g->house->fleet, a->lease.target, g->index, g->loop);
    int r = client ? make_pieces(a, &n) : -EHOSTUNREACH;
    if (r == 0) r = gw_send_headers(a->q, &a->lease, &headers);
    if (r == 0) r = gw_send_path(&a->lease, a->path, &path);
    if (r == 0 && (!buf_cstr(&headers) || !buf_cstr(&path))) r = -ENOMEM;
    a->start_ns = clock_ns();
    a->first_byte_ns = 0;
    a->status = 0;
    if (r == 0)
        r = http_call_start_v(client, "POST", buf_cstr(&path), buf_cstr(&headers), a->piece, (int)n,
                              &call_ops, a, &a->call);
    if (r == 0) http_call_may_repeat(a->call); /* a completion has no memory */
    buf_fini(&headers);
    buf_fini(&path);
    if (r < 0) a->call = NULL;
    return r;
}

static void find_target(struct gw_ask *a)
{
    struct gw_want want = {.model = a->model, .prompt_tokens = gw_usage_estimate(a->body.len)};
    memcpy(want.tried, a->tried, sizeof want.tried);
    uint32_t wait_ms = 0;
    enum gw_pick p = gw_fleet_pick(a->q->gate->house->fleet, &want, &a->lease, &wait_ms);
    if (p == GW_PICK_OK) {
        int r = send_it(a);
        if (r == 0) {
            if (!a->sent) a->q->limit.n_called++;
            a->sent = true;
            return;
        }
        release(a, GW_DONE_CANCELLED);
        later(a, r);
    } else if (p != GW_PICK_UNKNOWN_MODEL && p != GW_PICK_DOWN && clock_ns() < a->deadline_ns) {
        http_timer_set(a->timer, ASK_POLL_MS);
    } else {
        later(a, -EHOSTUNREACH);
    }
}

static void on_timer(void *arg)
{
    struct gw_ask *a = arg;
    if (a->failed)
        finish(a, a->status);
    else
        find_target(a);
}

int gw_ask_start(struct gw_req *q, const char *path, const char *model, struct buf *body,
                 gw_ask_fn done, void *ctx, struct gw_ask **ret)
{
    struct gw_ask *a = mem_zalloc(sizeof *a);
    if (!a) return -ENOMEM;
    struct gw_scan s = {.body = body->data, .len = body->len};
    gw_scan_head(&s);
    a->q = q;
    a->done = done;
    a->ctx = ctx;
    a->model_value = s.model_value;
    a->deadline_ns = clock_ns() + gw_config_of(q)->queue_timeout_ms * 1000000ull;
    a->path = mem_strdup(path);
    a->model = model ? mem_strdup(model) : NULL;
    int r = !a->path || (model && !a->model) ? -ENOMEM : 0;
    if (r == 0) r = http_timer_create(q->gate->loop, on_timer, a, &a->timer);
    if (r < 0) {
        ask_free(a);
        return r;
    }
    a->body = *body;
    *body = (struct buf)BUF_INIT;
    *ret = a;
    find_target(a);
    return 0;
}

void gw_ask_cancel(struct gw_ask *a)
{
    if (!a) return;
    if (a->call) http_call_cancel(a->call);
    release(a, GW_DONE_CANCELLED);
    ask_free(a);
}
