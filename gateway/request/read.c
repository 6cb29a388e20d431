/* From a complete body to a request that can take its turn: its head, its chunks, the model that a
 * form names. Long bodies are scanned on helper threads, as copies. */
#include "gateway/request/relay.h"

#include "base/jobs.h"
#include "base/mem.h"
#include "gateway/fleet/view.h"
#include "gateway/front/reply.h"
#include "gateway/front/admission.h"
#include "gateway/process/config.h"
#include "gateway/process/server.h"
#include "gateway/request/request.h"

#include <ctype.h>
#include <errno.h>
#include <sched.h>
#include <string.h>

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

void gw_read_free_jobs(struct gw_loop *loop)
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
    int r = ok ? jobs_submit(loop->server->pool, job_run, j) : -ENOMEM;
    if (r == 0) {
        memset(&q->scan, 0, sizeof q->scan);
        return 0;
    }
    q->job = NULL;
    memset(&j->scan, 0, sizeof j->scan);
    job_free(j);
    return r;
}

static void scan_body(struct gw_req *q, void (*step)(struct gw_scan *s), size_t inline_max,
                      void (*then)(struct gw_req *q))
{
    if (q->scan.len <= inline_max) {
        step(&q->scan);
        then(q);
    } else if (scan_elsewhere(q, step, then) < 0) {
        gw_admission_refuse(q, GW_SHED_FULL, "The server is busy.");
    }
}

/* The texts' identities, for routing to the worker that holds them. */
static void chunks_found(struct gw_req *q)
{
    const struct gw_scan *s = &q->scan;
    if (s->n_segments) gw_stats_detected(s->detector, s->n_segments);
    uint64_t *ids = s->n_chunks ? mem_alloc(s->n_chunks * sizeof *ids) : NULL;
    for (size_t i = 0; ids && i < s->n_chunks; i++)
        ids[i] = s->chunk[i].text_id;
    q->want.text_id = ids;
    q->want.n_texts = ids ? s->n_chunks : 0;
    mem_free(q->separator);
    q->separator = NULL;
    gw_relay_take_turn(q);
}

/* Does a target that serves the request, or an operator, ask for its chunks? */
static bool wants_chunks(const struct gw_req *q, unsigned serves)
{
    if (!(q->route->props & GW_R_DETECT) || !q->scan.body) return false; /* a form has none */
    if (q->route->props & GW_R_ADMIN) return true;
    return serves & (GW_SERVES_WORKER | GW_SERVES_LMCACHE);
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
    const struct http_head *head = &q->http->msg.head;
    s->presets = server->presets;
    s->dry = (q->route->props & GW_R_ADMIN) != 0;
    s->given = http_header_find(head, "x-kvblend-segments");
    s->separator = q->separator = decoded(http_header_find(head, "x-kvblend-separator"));
    if (gw_req_space(q, s->space)) s->learner = server->learner;
    scan_body(q, gw_scan_chunks, GW_SCAN_INLINE_MAX, chunks_found);
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
    const char *h = http_header_find(&q->http->msg.head, "x-kvblend-strategy");
    if (!(q->route->props & GW_R_ADMIT) || !(q->route->props & GW_R_DETECT)) return false;
    return q->scan.asks_map || (h && (!strcmp(h, "map_reduce") || !strcmp(h, "map_rerank")));
}

/* ---- dialects of chat ---- */

static void head_read(struct gw_req *q);

static void scan_begin(struct gw_req *q)
{
    size_t len;
    const char *body = http_req_body(q->http, &len);
    gw_scan_init(&q->scan, body, len, true);
    q->scan.ranks = q->route->props & GW_R_RANKS;
    q->scan.lone = !gw_fleet_count_kinds(q->loop->server->fleet).choice;
    scan_body(q, gw_scan_head, GW_SCAN_HEAD_INLINE_MAX, head_read);
}

/* The chat and a conversation that is kept are about as long as the body, and stand beside it. */
enum { TRANSLATED_SHARE = 2 };

static void refuse_memory(struct gw_req *q)
{
    gw_stats_add(GW_M_BODY_REFUSED, 1);
    q->end = GW_END_SHED;
    gw_answer_error(q, GW_E_SHED, NULL, "The server has no memory for the request now.");
}

static void translate(struct gw_scan *s)
{
    gw_asked_translate(s->asked, s->body, s->len);
}

/* What the client sent is chat from here on. */
static void translated(struct gw_req *q)
{
    struct gw_asked *a = q->ans.asked = q->scan.asked;
    q->scan.asked = NULL;
    if (a->failed) {
        q->end = GW_END_REFUSED;
        gw_answer_error(q, a->error, a->param[0] ? a->param : NULL, "%s", a->message);
    } else if (gw_told_create(a, &q->ans.told) < 0) {
        gw_answer_no_memory(q);
    } else if (http_req_charge(q->http, gw_asked_bytes(a)) < 0 ||
               http_req_replace_body(q->http, &a->chat) < 0) {
        refuse_memory(q);
    } else {
        scan_begin(q);
    }
}

static enum gw_speaks who_speaks(const struct gw_req *q)
{
    const char *path = q->route->spoken->target + strlen("/v1/");
    return gw_fleet_speaks(q->loop->server->fleet, gw_req_model(q), path);
}

static void fleet_changed(struct gw_req *q, bool over)
{
    if (!over && who_speaks(q) == GW_SPEAKS_UNSURE) return;
    gw_relay_unpark(q);
    q->stage = GW_SCANNING;
    head_read(q);
}

/* True: the request is on its way to become chat, or waits to know who serves its model. */
static bool translates(struct gw_req *q)
{
    const struct gw_route *route = q->route;
    struct gw_server *server = q->loop->server;
    if (!route->spoken || q->ans.asked) return false;
    enum gw_speaks speaks = who_speaks(q);
    if (speaks == GW_SPEAKS_UNSURE && !q->park.was) {
        gw_relay_park_read(q, fleet_changed);
        return true;
    }
    q->park.was = false; /* what it waits for later is another thing */
    if (speaks == GW_SPEAKS_YES) {
        q->route = route->spoken;
        return false;
    }
    if (q->scan.failed) return false;
    struct gw_asked *a;
    if (http_req_charge(q->http, TRANSLATED_SHARE * q->scan.len) < 0) {
        refuse_memory(q);
        return true;
    }
    if (gw_asked_create(route->dialect, &a) < 0) {
        gw_answer_no_memory(q);
        return true;
    }
    a->counts = route->props & GW_R_COUNT;
    if (gw_req_owner(q, a->owner)) a->store = server->store;
    q->scan.asked = a;
    scan_body(q, translate, GW_SCAN_INLINE_MAX, translated);
    return true;
}

static void head_read(struct gw_req *q)
{
    struct gw_scan *s = &q->scan;
    if (translates(q)) return;
    unsigned serves = s->failed ? 0 : gw_fleet_serves(q->loop->server->fleet, gw_req_model(q));
    q->unbounded = gw_config_of(q)->max_inflight == 0 && serves &&
                   !(serves & (GW_SERVES_WORKER | GW_SERVES_UNKNOWN | GW_SERVES_BOUNDED));
    if (s->failed && (s->overflow || !(q->route->props & GW_R_OPAQUE))) {
        q->end = GW_END_REFUSED;
        gw_answer_error(q, s->error, NULL, "%s", s->message);
    } else if (asks_for_map(q)) {
        q->end = GW_END_REFUSED;
        gw_answer_error(q, GW_E_BAD_REQUEST, "kvblend.strategy",
                        "map_reduce and map_rerank were removed from the gateway; kvblend-bench "
                        "quality and kvblend-bench throughput measure them.");
    } else if (s->has_model && serves == 0 && !s->failed &&
               (!q->key || gw_key_allows(q->key, s->model))) { /* else it may not know */
        gw_relay_no_target(q, GW_PICK_UNKNOWN_MODEL, 0);
    } else if (!s->failed && wants_chunks(q, serves)) {
        gw_scan_init(s, s->body, s->len, false);
        s->ranks = q->route->props & GW_R_RANKS;
        scan_body(q, gw_scan_head, GW_SCAN_HEAD_INLINE_MAX, head_checked);
    } else {
        gw_relay_take_turn(q);
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

void gw_read_begin(struct gw_req *q)
{
    size_t len;
    const char *body = http_req_body(q->http, &len);
    const char *type = http_header_find(&q->http->msg.head, "content-type");
    bool post = strcmp(q->http->msg.method, "POST") == 0;
    q->stage = GW_SCANNING;
    q->active = (q->route->props & GW_R_ADMIN) == 0;
    if (q->active) gw_stats_add(GW_M_ACTIVE, 1);
    if (q->route->props & GW_R_OPAQUE) {
        bool form = type && strncasecmp(type, "multipart/", 10) == 0;
        if (form) read_form_model(q, type, body, len);
        if (form || len == 0 || (*body != '{' && !(type && strcasestr(type, "json")))) {
            head_read(q);
            return;
        }
    } else if (!(q->route->props & GW_R_JSON) || !post) {
        gw_relay_take_turn(q);
        return;
    }
    scan_begin(q);
}

void gw_read_forget(struct gw_req *q)
{
    gw_told_free(q->ans.told);
    gw_asked_free(q->ans.asked);
    if (q->job) q->job->q = NULL;
    gw_scan_fini(&q->scan);
    mem_free(q->want.text_id);
    mem_free(q->separator);
}
