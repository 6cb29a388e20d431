/* A request's way through its stages once its body is read: charged, queued, parked, closed.
 *
 * Two bounds hold a request back. Admission's is one for all loops (admit.h). A target's own limit
 * is the fleet's: a request that has its turn and finds every target of its model full (or suspect,
 * until a probe has told) gives the turn back and is parked, so that what waits for one target
 * takes no place from requests for another. Parked requests are tried again, oldest first, when the
 * fleet says that something changed; a newcomer does not overtake those of its model. */
#include "gateway/request/relay.h"

#include "base/assert.h"
#include "base/clock.h"
#include "gateway/fleet/view.h"
#include "gateway/front/reply.h"
#include "gateway/front/admission.h"
#include "gateway/process/config.h"
#include "gateway/process/server.h"
#include "gateway/request/request.h"

#include <string.h>

enum {
    OPEN_WAIT_MAX_MS = 2000, /* chosen: a breaker that opens later is told to clients */
    READ_WAIT_MAX_MS = 5000, /* chosen: as long as a health check may take */
};

/* ---- waiting for a target ---- */

void gw_relay_unpark(struct gw_req *q)
{
    struct gw_loop *loop = q->loop;
    ASSERT(q->stage == GW_PARKED && loop->n_parked[gw_req_group(q)] > 0);
    *(q->park.prev ? &q->park.prev->park.next : &loop->parked) = q->park.next;
    *(q->park.next ? &q->park.next->park.prev : &loop->parked_tail) = q->park.prev;
    q->park.prev = q->park.next = NULL;
    loop->n_parked[gw_req_group(q)]--;
    q->stage = GW_QUEUED;
    http_timer_fini(&q->park.timer);
}

/* Why no target can be had, to the client. */
static void answer_no_target(struct gw_req *q, enum gw_pick why, uint32_t wait_ms)
{
    char failures[GW_REASONS_BYTES];
    if (gw_fallback_unpicked(q, why)) {
        gw_answer_kept(q);
        return;
    }
    q->end = GW_END_UPSTREAM;
    switch (why) {
    case GW_PICK_OK:
    case GW_PICK_UNKNOWN_MODEL:
        q->end = GW_END_REFUSED;
        if (q->scan.has_model)
            gw_answer_error(q, GW_E_UNKNOWN_MODEL, "model", "The model `%s` does not exist.",
                            q->scan.model);
        else if (q->route->props & GW_R_WORKER)
            gw_answer_error(q, GW_E_UNKNOWN_URL, NULL,
                            "This gateway has no workers, and they alone serve %.200s.",
                            q->http->msg.path);
        else
            gw_answer_error(q, GW_E_UNKNOWN_URL, NULL, "Nothing here serves %.200s.",
                            q->http->msg.path);
        return;
    case GW_PICK_LOADING:
    case GW_PICK_RETURNING:
        q->end = GW_END_SHED;
        gw_answer_error(q, GW_E_LOADING, NULL, "The model is being loaded. Please try again soon.");
        return;
    case GW_PICK_FULL:
        gw_admission_refuse(q, GW_SHED_TIMEOUT,
                            "The server is busy; the request waited too long for its turn.");
        return;
    case GW_PICK_OPEN:
        gw_fleet_reasons(q->loop->server->fleet, gw_req_model(q), failures);
        gw_answer_error_after(q, GW_E_UNAVAILABLE, wait_ms,
                              "The model's backends have failed repeatedly and are being left "
                              "alone for a while%s.",
                              failures);
        return;
    case GW_PICK_UNSURE:
    case GW_PICK_DOWN:
        gw_answer_no_backend(q, GW_E_UPSTREAM, "can be reached");
        return;
    }
}

static void on_park_over(void *arg)
{
    struct gw_req *q = arg;
    if (q->park.news) {
        q->park.news(q, true);
        return;
    }
    gw_relay_unpark(q);
    bool returns = q->park.why == GW_PICK_LOADING || q->park.why == GW_PICK_RETURNING;
    if (returns && q->n_retries > 0) {
        q->end = GW_END_UPSTREAM;
        gw_answer_error(q, GW_E_UPSTREAM, NULL, "The %s was lost and did not come back in time.",
                        q->noun);
        return;
    }
    answer_no_target(q, q->park.why, q->park.wait_ms);
}

/* Is it worth waiting for? A restart is, but operators are told at once; a first load of the model,
 * which may take minutes, is not. */
static bool worth_waiting(const struct gw_req *q, enum gw_pick why, uint32_t wait_ms)
{
    if (why == GW_PICK_LOADING) return q->n_retries > 0;
    if (why == GW_PICK_RETURNING) return !(q->route->props & GW_R_ADMIN);
    if (why == GW_PICK_OPEN) return wait_ms <= OPEN_WAIT_MAX_MS;
    return why == GW_PICK_FULL || why == GW_PICK_UNSURE;
}

/* What it waits for may become another thing while it waits, and with it the end. */
static void wait_for(struct gw_req *q, enum gw_pick why, uint32_t wait_ms)
{
    bool restart = why == GW_PICK_RETURNING || (q->n_retries > 0 && why != GW_PICK_FULL);
    uint64_t now = clock_ns(), end = q->deadline_ns;
    if (restart) end = q->park.since_ns + gw_config_of(q)->retry_wait_ms * 1000000ull;
    q->park.why = why;
    q->park.wait_ms = wait_ms;
    http_timer_set(&q->park.timer, end > now ? (end - now) / 1000000 + 1 : 1);
}

static void line_up(struct gw_req *q, uint64_t now)
{
    struct gw_loop *loop = q->loop;
    http_timer_init(&q->park.timer, loop->http_loop, on_park_over, q);
    q->stage = GW_PARKED;
    q->park.was = true;
    q->park.since_ns = now;
    q->park.next = NULL;
    q->park.prev = loop->parked_tail;
    *(loop->parked_tail ? &loop->parked_tail->park.next : &loop->parked) = q;
    loop->parked_tail = q;
    loop->n_parked[gw_req_group(q)]++;
}

void gw_relay_park_read(struct gw_req *q, void (*news)(struct gw_req *q, bool over))
{
    q->park.news = news;
    line_up(q, clock_ns());
    http_timer_set(&q->park.timer, READ_WAIT_MAX_MS);
}

static void park(struct gw_req *q, enum gw_pick why, uint32_t wait_ms)
{
    struct gw_loop *loop = q->loop;
    uint64_t now = clock_ns();
    if (q->has_ticket && gw_admit_park(&loop->server->admit, &q->ticket) < 0) {
        gw_admission_refuse(q, GW_SHED_FULL, "The server is busy and its queue is full.");
        return;
    }
    if (q->has_ticket && !q->queue_begin_ns) q->queue_begin_ns = now; /* it may queue again */
    q->park.news = NULL;
    line_up(q, now);
    wait_for(q, why, wait_ms);
}

void gw_relay_no_target(struct gw_req *q, enum gw_pick why, uint32_t wait_ms)
{
    if (worth_waiting(q, why, wait_ms))
        park(q, why, wait_ms);
    else
        answer_no_target(q, why, wait_ms);
}

void gw_relay_call_parked(struct gw_loop *loop)
{
    struct gw_server *server = loop->server;
    struct gw_places full = {.n = 0}; /* the oldest request of a model goes first */
    gw_admit_share(&server->admit, gw_fleet_count(server->fleet) > 1);
    for (struct gw_req *q = loop->parked, *next; q; q = next) {
        uint32_t wait_ms = 0;
        next = q->park.next;
        if (q->park.news) {
            q->park.news(q, false);
            continue;
        }
        if (gw_places_has(&full, q->place)) continue;
        enum gw_pick why = gw_fleet_pick(server->fleet, &q->want, &q->send.lease, &wait_ms);
        if (why != GW_PICK_OK && worth_waiting(q, why, wait_ms)) {
            if (why != q->park.why) wait_for(q, why, wait_ms);
            gw_places_add(&full, q->place);
            continue;
        }
        gw_relay_unpark(q);
        if (why != GW_PICK_OK) {
            answer_no_target(q, why, wait_ms);
        } else if (q->has_ticket && gw_admit_unpark(&server->admit, &q->ticket) == 0) {
            gw_send_done(q, GW_DONE_CANCELLED); /* queued again, in its old place */
            gw_places_add(&full, q->place);
            gw_relay_arm_queue(loop);
        } else {
            gw_send_leased(q);
        }
    }
}

/* ---- taking turns ---- */

static void has_turn(struct gw_req *q)
{
    if (q->stage == GW_ANSWERED) return; /* cut while it waited; close follows */
    if (q->queue_begin_ns) q->queue_ns = clock_ns() - q->queue_begin_ns;
    if (!q->park.was && q->loop->n_parked[gw_req_group(q)] >
                            0) { /* those came first; they are tried within a tick */
        park(q, GW_PICK_FULL, 0);
        gw_loop_tell(q->loop, GW_TELL_FLEET);
        return;
    }
    gw_send(q);
}

void gw_relay_arm_queue(void *arg)
{
    struct gw_loop *loop = arg;
    struct gw_admit *a = &loop->server->admit;
    uint64_t next, now = clock_ns();
    for (struct gw_ticket *t; (t = gw_admit_expire(a, loop->index, now, &next));) {
        struct gw_req *q = t->user;
        q->queue_ns = now - q->queue_begin_ns;
        gw_admission_refuse(q, GW_SHED_TIMEOUT,
                            "The server is busy; the request waited too long for its turn.");
    }
    if (next) http_timer_set(&loop->queue_timer, (next - now) / 1000000 + 1);
}

void gw_relay_take_turns(struct gw_loop *loop)
{
    for (struct gw_ticket *t; (t = gw_admit_take(&loop->server->admit, loop->index));)
        has_turn(t->user);
    gw_admit_again(&loop->server->admit); /* what they take of a worker is known now */
}

void gw_relay_take_turn(struct gw_req *q)
{
    enum gw_admission a = gw_admission_enter(q);
    if (a == GW_ADMISSION_RUNS) has_turn(q);
    if (a != GW_ADMISSION_WAITS) return;
    q->queue_begin_ns = clock_ns();
    gw_relay_arm_queue(q->loop);
}

/* ---- ends ---- */

void gw_relay_cut(struct gw_req *q, enum gw_error e, const char *message)
{
    if (q->stage == GW_ANSWERED) return;
    if (q->stage == GW_PARKED) gw_relay_unpark(q);
    gw_send_cancel(q);
    q->end = e == GW_E_DRAINING ? GW_END_DRAIN : GW_END_UPSTREAM;
    gw_answer_error(q, e, NULL, "%s", message);
}

void gw_relay_close(struct gw_req *q)
{
    if (q->stage == GW_PARKED) gw_relay_unpark(q);
    gw_send_cancel(q);
    if (q->asking.loop_call) q->asking.loop_call->q = NULL;
    if (q->active) gw_stats_add(GW_M_ACTIVE, -1);
    buf_fini(&q->ans.headers);
    buf_fini(&q->ans.body);
    gw_send_fini(q);
    gw_fallback_fini(q);
    q->stage = GW_ANSWERED;
    gw_admission_leave(q);
}
