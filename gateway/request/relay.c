/* A request's way through its stages: read, charged, queued, parked, sent, closed.
 *
 * Two bounds hold a request back. Admission's is one for all loops (admit.h). A target's own limit
 * is the fleet's: a request that has its turn and finds every target of its model full (or suspect,
 * until a probe has told) gives the turn back and is parked, so that what waits for one target
 * takes no place from requests for another. Parked requests are tried again, oldest first, when the
 * fleet says that something changed; a newcomer does not overtake those of its model. */
#include "gateway/request/relay.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "gateway/fleet/view.h"
#include "gateway/front/front.h"
#include "gateway/front/shed.h"
#include "gateway/process/config.h"
#include "gateway/process/pool.h"
#include "gateway/process/server.h"
#include "gateway/request/request.h"

#include <ctype.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

enum {
    OPEN_WAIT_MAX_MS = 2000, /* chosen: a breaker that opens later is told to clients */
    BLOCKED_MAX = 32,        /* chosen: models that are full at once */
};

const char *gw_stage_name(enum gw_stage s)
{
    static const char *const names[] = {"reading", "scanning", "queued",  "waiting",
                                        "calling", "relaying", "answered"};
    return names[s];
}

/* ---- waiting for a target ---- */

static void unpark(struct gw_req *q)
{
    struct gw_loop *loop = q->loop;
    ASSERT(q->stage == GW_PARKED && loop->n_parked[q->group] > 0);
    *(q->park.prev ? &q->park.prev->park.next : &loop->parked) = q->park.next;
    *(q->park.next ? &q->park.next->park.prev : &loop->parked_tail) = q->park.prev;
    q->park.prev = q->park.next = NULL;
    loop->n_parked[q->group]--;
    q->stage = GW_QUEUED;
    http_timer_clear(q->park.timer);
}

static void answer_open(struct gw_req *q, uint32_t wait_ms)
{
    char text[400];
    struct buf why = BUF_INIT;
    (void)gw_fleet_reasons(q->loop->server->fleet, q->scan.has_model ? q->scan.model : NULL, &why);
    (void)snprintf(text, sizeof text,
                   "The model's backends have failed repeatedly and are being left alone for a "
                   "while%s%.200s.",
                   why.len ? ": " : "", why.len ? buf_cstr(&why) : "");
    gw_answer_error_after(q, GW_E_UNAVAILABLE, wait_ms, text);
    buf_fini(&why);
}

/* Why no target can be had, to the client. */
static void answer_no_target(struct gw_req *q, enum gw_pick why, uint32_t wait_ms)
{
    const char *model = q->scan.has_model ? q->scan.model : "";
    q->end = GW_END_UPSTREAM;
    switch (why) {
    case GW_PICK_OK:
    case GW_PICK_UNKNOWN_MODEL:
        q->end = GW_END_REFUSED;
        if (q->scan.has_model)
            gw_answer_error(q, GW_E_UNKNOWN_MODEL, "model", "The model `%s` does not exist.",
                            model);
        else if (q->route->props & GW_R_WORKER)
            gw_answer_error(q, GW_E_UNKNOWN_URL, NULL,
                            "This gateway has no workers, and they alone serve %.200s.",
                            http_req_path(q->http));
        else
            gw_answer_error(q, GW_E_UNKNOWN_URL, NULL, "Nothing here serves %.200s.",
                            http_req_path(q->http));
        return;
    case GW_PICK_LOADING:
    case GW_PICK_RETURNING:
        q->end = GW_END_SHED;
        gw_answer_error(q, GW_E_LOADING, NULL, "The model is being loaded. Please try again soon.");
        return;
    case GW_PICK_FULL:
        gw_shed_refuse(q, GW_SHED_TIMEOUT,
                       "The server is busy; the request waited too long for its turn.");
        return;
    case GW_PICK_OPEN:
        answer_open(q, wait_ms);
        return;
    case GW_PICK_UNSURE:
    case GW_PICK_DOWN:
        gw_answer_nobody(q, GW_E_UPSTREAM, "can be reached");
        return;
    }
}

static void on_park_over(void *arg)
{
    struct gw_req *q = arg;
    unpark(q);
    bool returns = q->park.why == GW_PICK_LOADING || q->park.why == GW_PICK_RETURNING;
    if (returns && q->n_retries > 0) {
        q->end = GW_END_UPSTREAM;
        gw_answer_error(q, GW_E_UPSTREAM, NULL, "The %s was lost and did not come back in time.",
                        q->noun);
        return;
    }
    answer_no_target(q, q->park.why, q->park.wait_ms);
}

/* Is it worth waiting for? A restart is, but operators are told at once; while the model is loaded
 * for the first time, which may take minutes, everybody is. */
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
    http_timer_set(q->park.timer, end > now ? (end - now) / 1000000 + 1 : 1);
}

static void park(struct gw_req *q, enum gw_pick why, uint32_t wait_ms)
{
    struct gw_loop *loop = q->loop;
    uint64_t now = clock_ns();
    if (!q->park.timer && http_timer_create(loop->http_loop, on_park_over, q, &q->park.timer) < 0) {
        gw_answer_error(q, GW_E_INTERNAL, NULL, "Out of memory.");
        return;
    }
    if (q->has_ticket && gw_admit_park(&loop->server->admit, &q->ticket) < 0) {
        gw_shed_refuse(q, GW_SHED_FULL, "The server is busy and its queue is full.");
        return;
    }
    if (q->has_ticket && !q->queue_begin_ns) q->queue_begin_ns = now; /* it may queue again */
    q->stage = GW_PARKED;
    q->park.was = true;
    q->park.since_ns = now;
    q->park.next = NULL;
    q->park.prev = loop->parked_tail;
    *(loop->parked_tail ? &loop->parked_tail->park.next : &loop->parked) = q;
    loop->parked_tail = q;
    loop->n_parked[q->group]++;
    wait_for(q, why, wait_ms);
}

void gw_relay_no_target(struct gw_req *q, enum gw_pick why, uint32_t wait_ms)
{
    if (worth_waiting(q, why, wait_ms))
        park(q, why, wait_ms);
    else
        answer_no_target(q, why, wait_ms);
}

/* Models whose oldest request cannot go yet. Groups alone do not tell: several models may share
 * one, and what waits for one holds up no other's. */
struct blocked {
    const struct gw_req *q[BLOCKED_MAX];
    size_t n;
    uint64_t groups; /* where there are more of them */
};

static bool is_blocked(const struct blocked *b, const struct gw_req *q)
{
    for (size_t i = 0; i < b->n; i++)
        if (b->q[i]->group == q->group && strcmp(b->q[i]->scan.model, q->scan.model) == 0)
            return true;
    return b->groups >> q->group & 1;
}

static void block(struct blocked *b, const struct gw_req *q)
{
    if (b->n < BLOCKED_MAX)
        b->q[b->n++] = q;
    else
        b->groups |= 1ull << q->group;
}

void gw_relay_call_parked(struct gw_loop *loop)
{
    struct gw_server *server = loop->server;
    struct blocked blocked = {.n = 0};
    gw_admit_share(&server->admit, gw_fleet_count(server->fleet) > 1);
    for (struct gw_req *q = loop->parked, *next; q; q = next) {
        struct gw_want want;
        uint32_t wait_ms = 0;
        next = q->park.next;
        if (is_blocked(&blocked, q)) continue;
        gw_send_want(q, &want);
        enum gw_pick why = gw_fleet_pick(server->fleet, &want, &q->send.lease, &wait_ms);
        if (why != GW_PICK_OK && worth_waiting(q, why, wait_ms)) {
            if (why != q->park.why) wait_for(q, why, wait_ms);
            block(&blocked, q);
            continue;
        }
        unpark(q);
        if (why != GW_PICK_OK) {
            answer_no_target(q, why, wait_ms);
        } else if (q->has_ticket && gw_admit_unpark(&server->admit, &q->ticket) == 0) {
            gw_send_done(q, GW_DONE_CANCELLED); /* queued again, in its old place */
            blocked.groups |= 1ull << q->group; /* which admission counts by */
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
    if (!q->park.was &&
        q->loop->n_parked[q->group] > 0) { /* those came first; they are tried within a tick */
        park(q, GW_PICK_FULL, 0);
        gw_loop_tell(q->loop, GW_TELL_FLEET);
        return;
    }
    gw_send(q);
}

static void show_waiting(struct gw_server *server)
{
    gw_stats_waiting(gw_admit_view(&server->admit).n_waiting);
}

void gw_relay_arm_queue(struct gw_loop *loop)
{
    struct gw_admit *a = &loop->server->admit;
    uint64_t next, now = clock_ns();
    for (struct gw_ticket *t; (t = gw_admit_expire(a, loop->index, now, &next));) {
        struct gw_req *q = t->user;
        q->queue_ns = now - q->queue_begin_ns;
        gw_shed_refuse(q, GW_SHED_TIMEOUT,
                       "The server is busy; the request waited too long for its turn.");
    }
    show_waiting(loop->server);
    if (next) http_timer_set(loop->queue_timer, (next - now) / 1000000 + 1);
}

void gw_relay_take_turns(struct gw_loop *loop)
{
    for (struct gw_ticket *t; (t = gw_admit_take(&loop->server->admit, loop->index));)
        has_turn(t->user);
    gw_admit_again(&loop->server->admit); /* what they take of a worker is known now */
    show_waiting(loop->server);
}

static unsigned group_of(const struct gw_req *q)
{
    uint32_t hash = 2166136261u;
    for (const char *p = q->scan.has_model ? q->scan.model : ""; *p; p++)
        hash = (hash ^ (unsigned char)*p) * 16777619u;
    return (hash ^ hash >> 16) % GW_ADMIT_GROUPS;
}

static void wait_in_queue(struct gw_req *q)
{
    q->queue_begin_ns = clock_ns();
    gw_relay_arm_queue(q->loop);
}

static void take_turn(struct gw_req *q)
{
    struct gw_loop *loop = q->loop;
    if (!gw_charge_enter(q)) return;
    q->deadline_ns = clock_coarse_ns() + gw_config_of(q)->queue_timeout_ms * 1000000ull;
    q->group = group_of(q);
    q->stage = GW_QUEUED;
    bool post = strcmp(http_req_method(q->http), "POST") == 0;
    if (!post || !(q->route->props & GW_R_ADMIT) || q->unbounded) {
        has_turn(q);
        return;
    }
    struct gw_claim claim;
    if (!gw_shed_admit(q, &claim)) return;
    q->ticket.user = q;
    int r = gw_admit_enter(&loop->server->admit, &q->ticket, loop->index, q->group, q->deadline_ns,
                           &claim);
    q->has_ticket = r >= 0;
    if (r < 0)
        gw_shed_refuse(q, GW_SHED_FULL, "The server is busy and its queue is full.");
    else if (r == 1)
        has_turn(q);
    else
        wait_in_queue(q);
}

/* ---- reading the request ---- */

struct gw_scan_job { /* outlives its request when the client leaves: q is NULL then */
    struct gw_loop *loop;
    struct gw_scan_job *prev, *next;
    struct gw_req *q;
    char *body, *separator, *given; /* copies */
    struct gw_scan scan;
    void (*step)(struct gw_scan *s);
    void (*then)(struct gw_req *q);
};

static void job_free(struct gw_scan_job *j)
{
    *(j->prev ? &j->prev->next : &j->loop->jobs) = j->next;
    if (j->next) j->next->prev = j->prev;
    gw_scan_fini(&j->scan);
    mem_free(j->body);
    mem_free(j->separator);
    mem_free(j->given);
    mem_free(j);
}

void gw_relay_free_jobs(struct gw_loop *loop)
{
    while (loop->jobs)
        job_free(loop->jobs);
}

static void job_done(void *arg) /* the loop's thread */
{
    struct gw_scan_job *j = arg;
    struct gw_req *q = j->q;
    void (*then)(struct gw_req *) = j->then;
    if (q) {
        q->job = NULL;
        q->scan = j->scan;
        q->scan.body = http_req_body(q->http, &q->scan.len);
        q->scan.separator = q->scan.given = NULL; /* they have done their part */
        memset(&j->scan, 0, sizeof j->scan);
    }
    job_free(j);
    if (q && q->stage != GW_ANSWERED) then(q); /* cut meanwhile: close follows */
}

static void job_run(void *arg) /* helper thread */
{
    struct gw_scan_job *j = arg;
    struct http_loop *http_loop = j->loop->http_loop;
    j->step(&j->scan);
    while (http_loop_post(http_loop, job_done, j) == -EAGAIN)
        (void)sched_yield();
}

static int scan_elsewhere(struct gw_req *q, void (*step)(struct gw_scan *s),
                          void (*then)(struct gw_req *q))
{
    struct gw_loop *loop = q->loop;
    const struct gw_scan *s = &q->scan;
    struct gw_scan_job *j = mem_zalloc(sizeof *j);
    if (!j) return -ENOMEM;
    *j = (struct gw_scan_job){.loop = loop, .q = q, .step = step, .then = then, .next = loop->jobs};
    if (loop->jobs) loop->jobs->prev = j;
    loop->jobs = j;
    j->body = mem_strndup(s->body, s->len);
    if (s->separator) j->separator = mem_strdup(s->separator);
    if (s->given) j->given = mem_strdup(s->given);
    bool ok = j->body && !j->separator == !s->separator && !j->given == !s->given;
    j->scan = *s;
    j->scan.body = j->body;
    j->scan.separator = j->separator;
    j->scan.given = j->given;
    q->job = j;
    int r = ok ? gw_pool_submit(loop->server->pool, job_run, j) : -ENOMEM;
    if (r == 0) {
        memset(&q->scan, 0, sizeof q->scan);
        return 0;
    }
    q->job = NULL;
    memset(&j->scan, 0, sizeof j->scan);
    job_free(j);
    return r;
}

static void scan(struct gw_req *q, void (*step)(struct gw_scan *s), size_t inline_max,
                 void (*then)(struct gw_req *q))
{
    if (q->scan.len <= inline_max) {
        step(&q->scan);
        then(q);
    } else if (scan_elsewhere(q, step, then) < 0) {
        gw_shed_refuse(q, GW_SHED_FULL, "The server is busy.");
    }
}

/* The texts' identities, for routing to the worker that holds them. */
static void chunks_found(struct gw_req *q)
{
    const struct gw_scan *s = &q->scan;
    if (s->n_segments) gw_stats_detected(s->detector, s->n_segments);
    q->text_id = s->n_chunks ? mem_alloc(s->n_chunks * sizeof *q->text_id) : NULL;
    if (q->text_id) q->n_texts = s->n_chunks;
    for (size_t i = 0; i < q->n_texts; i++)
        q->text_id[i] = s->chunk[i].text_id;
    mem_free(q->separator);
    q->separator = NULL;
    take_turn(q);
}

/* Will anybody want to know the request's chunks? */
static bool wants_chunks(const struct gw_req *q, unsigned who)
{
    if (!(q->route->props & GW_R_DETECT)) return false;
    if (q->route->props & GW_R_ADMIN) return true;
    return who & (GW_SERVES_WORKER | GW_SERVES_LMCACHE);
}

/* "%0A%0A" of a header as the text it stands for. */
static char *decoded(const char *p)
{
    static const char digits[] = "0123456789abcdef";
    char *text = p ? mem_strdup(p) : NULL, *to = text;
    for (; text && *p; p++) {
        const char *a = p[0] == '%' && p[1] ? strchr(digits, p[1] | 0x20) : NULL;
        const char *b = a && p[2] ? strchr(digits, p[2] | 0x20) : NULL;
        *to++ = b ? (char)((a - digits) << 4 | (b - digits)) : *p;
        if (b) p += 2;
    }
    if (text) *to = '\0';
    return text;
}

static void find_chunks(struct gw_req *q)
{
    struct gw_server *server = q->loop->server;
    struct gw_scan *s = &q->scan;
    const struct http_head *head = http_req_head(q->http);
    s->presets = server->presets;
    s->dry = (q->route->props & GW_R_ADMIN) != 0;
    s->given = http_header_find(head, "x-kvblend-segments");
    s->separator = q->separator = decoded(http_header_find(head, "x-kvblend-separator"));
    if (gw_space_of(q, s->space)) s->learner = server->learner;
    scan(q, gw_scan_chunks, GW_SCAN_INLINE_MAX, chunks_found);
}

/* The whole body has been checked: what reads its texts may rely on it. */
static void head_checked(struct gw_req *q)
{
    if (q->scan.failed) {
        q->end = GW_END_REFUSED;
        gw_answer_error(q, q->scan.error, NULL, "%s", q->scan.message);
        return;
    }
    find_chunks(q);
}

/* The gateway answered by MapReduce and MapRerank once. Requests for them are refused, because an
 * upstream would ignore the key in silence. */
static bool asks_for_map(const struct gw_req *q)
{
    const char *h = http_header_find(http_req_head(q->http), "x-kvblend-strategy");
    if (!(q->route->props & GW_R_ADMIT) || !(q->route->props & GW_R_DETECT)) return false;
    return q->scan.asks_map || (h && (!strcmp(h, "map_reduce") || !strcmp(h, "map_rerank")));
}

static void head_read(struct gw_req *q)
{
    struct gw_scan *s = &q->scan;
    unsigned who =
        s->failed ? 0 : gw_fleet_serves(q->loop->server->fleet, s->has_model ? s->model : NULL);
    q->unbounded = gw_config_of(q)->max_inflight == 0 && who &&
                   !(who & (GW_SERVES_WORKER | GW_SERVES_UNKNOWN | GW_SERVES_BOUNDED));
    if (s->failed && (s->overflow || !(q->route->props & GW_R_OPAQUE))) {
        q->end = GW_END_REFUSED;
        gw_answer_error(q, s->error, NULL, "%s", s->message);
    } else if (asks_for_map(q)) {
        q->end = GW_END_REFUSED;
        gw_answer_error(q, GW_E_BAD_REQUEST, "kvblend.strategy",
                        "map_reduce and map_rerank were removed from the gateway; kvblend-bench "
                        "quality and kvblend-bench throughput measure them.");
    } else if (s->has_model && who == 0 && !s->failed &&
               (!q->key || gw_key_allows(q->key, s->model))) { /* else it may not know */
        answer_no_target(q, GW_PICK_UNKNOWN_MODEL, 0);
    } else if (!s->failed && wants_chunks(q, who)) {
        gw_scan_init(s, s->body, s->len, false);
        scan(q, gw_scan_head, GW_SCAN_HEAD_INLINE_MAX, head_checked);
    } else {
        take_turn(q);
    }
}

/* A form's field "model" (audio and image routes): enough to choose a target. */
struct form {
    struct gw_scan_range model; /* the first one */
    unsigned n_models;
    bool odd; /* other readers may find other names */
};

/* The headers of one part of a form: is it the field? */
static bool is_model_part(const char *p, size_t len, bool *odd)
{
    unsigned n = 0;
    bool is = false;
    for (size_t i = 0; i + 4 <= len; i++) {
        if (strncasecmp(p + i, "name", 4) != 0 || (i > 0 && isalnum((unsigned char)p[i - 1])))
            continue;
        const char *v = p + i + 6, *quote = NULL; /* behind name=" */
        if (i + 6 < len && v[-2] == '=' && v[-1] == '"') quote = memchr(v, '"', len - i - 6);
        size_t size = quote ? (size_t)(quote - v) : 0;
        if (!quote || memchr(v, '\\', size) || memchr(v, '%', size)) *odd = true;
        is |= size == 5 && memcmp(v, "model", 5) == 0;
        n++;
    }
    *odd |= n != 1;
    return is;
}

static void read_parts(struct form *f, const char *delimiter, const char *body, size_t len)
{
    const char *end = body + len;
    size_t n = strlen(delimiter);
    for (const char *p = body; (p = memmem(p, (size_t)(end - p), delimiter, n));) {
        bool begins = p == body || p[-1] == '\n';
        p += n;
        if (!begins || (end - p >= 2 && memcmp(p, "--", 2) == 0)) continue;
        const char *blank = memmem(p, (size_t)(end - p), "\r\n\r\n", 4);
        if (!blank) return;
        f->odd |= memmem(p, (size_t)(blank - p), "\n\n", 2) != NULL;
        bool is_model = is_model_part(p, (size_t)(blank - p), &f->odd);
        p = blank + 4;
        const char *stop = is_model ? memchr(p, '\r', (size_t)(end - p)) : NULL;
        if (stop && f->n_models++ == 0)
            f->model = (struct gw_scan_range){(size_t)(p - body), (size_t)(stop - p)};
    }
}

/* Readers of forms differ, above all in what they take for a name and which one of two counts: a
 * key that is for some models only may send what they all read alike. */
static void read_form_model(struct gw_req *q, const char *type, const char *body, size_t len)
{
    struct form f = {0};
    char delimiter[2 + 70 + 1] = "--"; /* a boundary has at most 70 characters: RFC 2046 */
    const char *b = strcasestr(type, "boundary=");
    if (!b) return;
    f.odd = strcasestr(b + 9, "boundary") != NULL;
    b += 9 + (b[9] == '"');
    size_t n = strcspn(b, b[-1] == '"' ? "\"" : "; \t,");
    if (n == 0 || n > 70) return;
    memcpy(delimiter + 2, b, n);
    read_parts(&f, delimiter, body, len);
    bool narrow = q->key && q->key->models;
    if (f.n_models == 0 || f.model.len == 0 || f.model.len >= sizeof q->scan.model ||
        memchr(body + f.model.at, '\0', f.model.len) || (narrow && (f.odd || f.n_models > 1)))
        return;
    memcpy(q->scan.model, body + f.model.at, f.model.len);
    q->scan.model[f.model.len] = '\0';
    q->scan.has_model = q->scan_form = true;
    q->scan.model_value = f.model;
}

void gw_relay_begin(struct gw_req *q)
{
    size_t len;
    const char *body = http_req_body(q->http, &len);
    const char *type = http_header_find(http_req_head(q->http), "content-type");
    bool post = strcmp(http_req_method(q->http), "POST") == 0;
    q->stage = GW_SCANNING;
    q->active = (q->route->props & GW_R_ADMIN) == 0;
    if (q->active) gw_stats_active(1);
    if (q->route->props & GW_R_OPAQUE) {
        bool form = type && strncasecmp(type, "multipart/", 10) == 0;
        if (form) read_form_model(q, type, body, len);
        if (form || len == 0 || (*body != '{' && !(type && strcasestr(type, "json")))) {
            head_read(q);
            return;
        }
    } else if (!(q->route->props & GW_R_JSON) || !post) {
        take_turn(q);
        return;
    }
    gw_scan_init(&q->scan, body, len, true);
    q->scan.lone = !gw_fleet_has_choice(q->loop->server->fleet);
    scan(q, gw_scan_head, GW_SCAN_HEAD_INLINE_MAX, head_read);
}

/* ---- ends ---- */

void gw_relay_cut(struct gw_req *q, enum gw_error e, const char *message)
{
    if (q->stage == GW_ANSWERED) return;
    if (q->stage == GW_PARKED) unpark(q);
    gw_send_cancel(q);
    q->end = e == GW_E_DRAINING ? GW_END_DRAIN : GW_END_UPSTREAM;
    gw_answer_error(q, e, NULL, "%s", message);
}

void gw_relay_close(struct gw_req *q)
{
    if (q->stage == GW_PARKED) unpark(q);
    gw_send_cancel(q);
    if (q->job) q->job->q = NULL;
    if (q->loop_call) q->loop_call->q = NULL;
    if (q->park.timer) http_timer_destroy(q->park.timer);
    if (q->active) gw_stats_active(-1);
    gw_charge_leave(q);
    gw_answer_fini(q);
    gw_send_fini(q);
    gw_scan_fini(&q->scan);
    mem_free(q->text_id);
    mem_free(q->separator);
    q->stage = GW_ANSWERED;
    gw_admit_leave(&q->loop->server->admit, &q->ticket);
}
