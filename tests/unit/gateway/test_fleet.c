#include "gateway/fleet/fleet.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/net/http.h"
#include "gateway/fleet/residency.h"
#include "gateway/fleet/fleet_int.h"
#include "gateway/process/config.h"
#include "policy/shed.h"
#include "tests/test.h"

#include <pthread.h>
#include <stdatomic.h>

/* ---- a scripted backend ---- */

struct stub {
    struct http_server *server;
    char address[32];
    int health, models_status; /* 0: does not answer at all */
    const char *models;        /* comma separated names */
    unsigned n_health, n_models;
    char authorization[64];
    struct http_req *held; /* the last one that is not answered */
};

struct site {
    struct http_loop *loop;
    struct http_timer tick;
    struct gw_config config;
    struct gw_fleet *fleet;
    struct stub stub[4];
    unsigned n_ready, n_lost, n_room, n_silent;
    bool (*until)(struct site *s);
    uint64_t deadline_ns;
};

static void stub_request(void *ctx, struct http_req *r)
{
    struct stub *b = ctx;
    const char *path = r->msg.path;
    const char *key = http_header_find(&r->msg.head, "authorization");
    bool models = strstr(path, "/models") != NULL;
    int status = models ? b->models_status : b->health;
    struct buf body = BUF_INIT;
    (void)snprintf(b->authorization, sizeof b->authorization, "%s", key ? key : "");
    *(models ? &b->n_models : &b->n_health) += 1;
    if (status == 0) { /* until the client gives up, or the test answers */
        b->held = r;
        return;
    }
    (void)buf_adds(&body, "{\"data\":[");
    for (const char *p = b->models; p && *p;) {
        size_t n = strcspn(p, ",");
        (void)buf_addf(&body, "%s{\"id\":\"%.*s\",\"owned_by\":\"stub\"}",
                       p == b->models ? "" : ",", (int)n, p);
        p += n + (p[n] == ',');
    }
    (void)buf_adds(&body, "]}");
    (void)http_reply(r, status, "application/json", NULL, body.data, body.len);
    buf_fini(&body);
}

static void stub_close(void *ctx, struct http_req *r, bool aborted)
{
    struct stub *b = ctx;
    if (b->held == r) b->held = NULL;
}

static void stub_start(struct site *s, struct stub *b, const char *address)
{
    static const struct http_server_ops ops = {.on_request = stub_request, .on_close = stub_close};
    ASSERT_OK(http_server_create(s->loop, NULL, &ops, b, &b->server));
    ASSERT_OK(http_server_listen(b->server, address, NULL, NULL));
    (void)snprintf(b->address, sizeof b->address, "127.0.0.1:%d", http_server_port(b->server));
    b->health = b->models_status = 200;
    if (!b->models) b->models = "m";
}

static void stub_stop(struct stub *b)
{
    http_server_destroy(b->server);
    b->server = NULL;
}

/* ---- the fleet under test ---- */

static void on_ready(void *ctx)
{
    ((struct site *)ctx)->n_ready++;
}
static void on_lost(void *ctx)
{
    ((struct site *)ctx)->n_lost++;
}
static void on_room(void *ctx)
{
    ((struct site *)ctx)->n_room++;
}
static void on_silent(void *ctx, unsigned index, uint64_t silent_ms)
{
    ((struct site *)ctx)->n_silent++;
}
static const struct gw_fleet_ops ops = {on_ready, on_lost, on_room, on_silent, NULL};

static void site_tick(void *arg)
{
    struct site *s = arg;
    if ((s->until && s->until(s)) || clock_ns() > s->deadline_ns)
        http_loop_stop(s->loop);
    else
        http_timer_set(&s->tick, 2);
}

static bool run_until(struct site *s, bool (*until)(struct site *s))
{
    s->until = until;
    s->deadline_ns = clock_ns() + 20000000000u;
    http_timer_set(&s->tick, 0);
    ASSERT_OK(http_loop_run(s->loop));
    return until(s);
}

static bool never(struct site *s)
{
    return false;
}

static void run_for(struct site *s, unsigned ms)
{
    s->until = never;
    s->deadline_ns = clock_ns() + ms * 1000000ull;
    http_timer_set(&s->tick, 0);
    ASSERT_OK(http_loop_run(s->loop));
}

static void site_init(struct site *s)
{
    memset(s, 0, sizeof *s);
    s->config = (struct gw_config){.connect_timeout_ms = 2000,
                                   .first_byte_timeout_ms = 5000,
                                   .idle_timeout_ms = 5000,
                                   .health_interval_ms = 10,
                                   .health_failures = 3,
                                   .breaker_failures = 5,
                                   .breaker_open_ms = 10000};
    ASSERT_OK(http_loop_create(&s->loop));
    http_timer_init(&s->tick, s->loop, site_tick, s);
    ASSERT_OK(gw_fleet_create(s->loop, &s->config, NULL, &ops, s, &s->fleet));
}

static void site_fini(struct site *s)
{
    gw_fleet_stop(s->fleet);
    gw_fleet_leave(s->fleet, 0);
    gw_fleet_destroy(s->fleet);
    for (size_t i = 0; i < sizeof s->stub / sizeof s->stub[0]; i++)
        http_server_destroy(s->stub[i].server);
    http_timer_fini(&s->tick);
    http_loop_destroy(s->loop);
}

/* Entries: "%0 …" stands for the address of stub 0 as a URL. */
static int set_upstreams(struct site *s, const char *const *entry, size_t n)
{
    char text[4][256], *v[4];
    struct gw_upstreams *l;
    struct err err = {0};
    for (size_t i = 0; i < n; i++) {
        v[i] = text[i];
        if (entry[i][0] == '%')
            (void)snprintf(text[i], sizeof text[i], "http://%s%s",
                           s->stub[entry[i][1] - '0'].address, entry[i] + 2);
        else
            (void)snprintf(text[i], sizeof text[i], "%s", entry[i]);
    }
    s->config.upstreams = (struct gw_strs){v, n};
    int r = gw_upstreams_parse(&s->config, false, &l, &err);
    if (r < 0) test_fail(__FILE__, __LINE__, "%s", err.msg);
    gw_fleet_configure(s->fleet, &s->config);
    r = gw_fleet_set_upstreams(s->fleet, l, &err);
    s->config.upstreams = (struct gw_strs){NULL, 0};
    return r;
}
#define SET_UPSTREAMS(s, ...)                                                                      \
    set_upstreams(s, (const char *const[]){__VA_ARGS__},                                           \
                  sizeof(const char *const[]){__VA_ARGS__} / sizeof(const char *))

struct seen { /* of a target */
    unsigned index, n_inflight;
    enum gw_target_state state;
    char address[256];
    const char *breaker;
    uint64_t n_picked, prompt_tokens_in_flight;
    double weight, ttfb_ms, wait_ms;
};

static struct seen view(struct site *s, const char *name)
{
    struct gw_target_view v;
    for (unsigned i = 0; gw_fleet_view(s->fleet, i, &v); i++) {
        const struct gw_target *t = s->fleet->target[i];
        struct seen r = {.index = i,
                         .n_inflight = t->n_inflight,
                         .state = v.state,
                         .breaker = breaker_state_name(t->health.breaker.state),
                         .n_picked = t->count.picked,
                         .prompt_tokens_in_flight = t->tokens_in_flight,
                         .weight = t->up ? t->up->weight : 1,
                         .ttfb_ms = t->ttfb_ms,
                         .wait_ms = fleet_load_wait_ms(t, clock_ns())};
        (void)snprintf(r.address, sizeof r.address, "%s", v.address);
        if (strcmp(v.name, name) == 0) return r;
    }
    test_fail(__FILE__, __LINE__, "no target %s", name);
}

static enum gw_pick pick(struct site *s, const char *model, struct gw_lease *l)
{
    struct gw_want w = {.model = model};
    return gw_fleet_pick(s->fleet, &w, l, NULL);
}

/* Pick and release at once: who got it, or "" and the reason in the return value. */
static const char *who(struct site *s, const char *model)
{
    static char name[128];
    struct gw_lease l = {0};
    if (pick(s, model, &l) != GW_PICK_OK) return "";
    (void)snprintf(name, sizeof name, "%s", l.name);
    gw_fleet_release(s->fleet, &l, GW_DONE_CANCELLED, 0);
    return name;
}

static enum gw_pick how(struct site *s, const char *model)
{
    struct gw_lease l = {0};
    enum gw_pick r = pick(s, model, &l);
    gw_fleet_release(s->fleet, &l, GW_DONE_CANCELLED, 0);
    return r;
}

/* n requests one after another that end like this; the number that found a target. */
static unsigned serve(struct site *s, unsigned n, enum gw_outcome o)
{
    unsigned done = 0;
    for (unsigned i = 0; i < n; i++) {
        struct gw_lease l = {0};
        if (pick(s, "m", &l) != GW_PICK_OK) continue;
        gw_fleet_release(s->fleet, &l, o, 0);
        done++;
    }
    return done;
}

static bool one_ready(struct site *s)
{
    return gw_fleet_n_ready(s->fleet) == 1;
}
static bool two_ready(struct site *s)
{
    return gw_fleet_n_ready(s->fleet) == 2;
}
static bool three_ready(struct site *s)
{
    return gw_fleet_n_ready(s->fleet) == 3;
}
static bool none_ready(struct site *s)
{
    return gw_fleet_n_ready(s->fleet) == 0;
}
static bool can_serve_m(struct site *s)
{
    return how(s, "m") == GW_PICK_OK;
}
static bool loading(struct site *s)
{
    return how(s, "m") == GW_PICK_LOADING;
}
static bool room(struct site *s)
{
    return s->n_room > 0;
}

/* ---- upstreams: health ---- */

TEST(health_goes_down_and_up_by_thresholds)
{
    struct site s;
    site_init(&s);
    stub_start(&s, &s.stub[0], "127.0.0.1:0");
    ASSERT_OK(SET_UPSTREAMS(&s, "%0 name=a api_key=k"));
    ASSERT_EQ(how(&s, "m"), GW_PICK_UNSURE); /* its first check will tell */
    gw_fleet_start(s.fleet);
    ASSERT_TRUE(run_until(&s, one_ready)); /* by its first answer */
    ASSERT_EQ(s.stub[0].n_models, 1);
    ASSERT_STREQ(s.stub[0].authorization, "Bearer k");
    ASSERT_EQ(how(&s, "m"), GW_PICK_OK);
    ASSERT_EQ(how(&s, "other"), GW_PICK_UNKNOWN_MODEL);

    unsigned before = s.stub[0].n_models;
    s.stub[0].models_status = 500;
    ASSERT_TRUE(run_until(&s, none_ready));
    ASSERT_TRUE(s.stub[0].n_models - before >= 3);
    ASSERT_EQ(s.n_lost, 1);
    ASSERT_EQ(how(&s, "m"), GW_PICK_DOWN);
    ASSERT_EQ(how(&s, "other"), GW_PICK_UNKNOWN_MODEL); /* what it listed is remembered */

    before = s.stub[0].n_models;
    s.stub[0].models_status = 200;
    ASSERT_TRUE(run_until(&s, one_ready));
    ASSERT_TRUE(s.stub[0].n_models - before >= 2);
    site_fini(&s);
}

static bool asked_twice(struct site *s)
{
    return s->stub[0].n_models + s->stub[0].n_health >= 2;
}

TEST(what_counts_as_alive)
{
    static const struct {
        const char *entry;
        int health, models;
        bool ready;
    } table[] = {
        {"%0 name=a", 200, 200, true},
        {"%0 name=a", 200, 404, true},              /* it lists nothing: serves anything */
        {"%0 name=a", 200, 403, true},              /* the key may not list */
        {"%0 name=a", 200, 429, true},              /* busy, not dead */
        {"%0 name=a", 200, 401, false},             /* the key is wrong */
        {"%0 name=a", 200, 503, false},             /* */
        {"%0 name=a", 200, 302, false},             /* not what was configured */
        {"%0 name=a health=/ping", 200, 200, true}, /* */
        {"%0 name=a health=/ping", 200, 500, true}, /* the path alone decides */
        {"%0 name=a health=/ping", 404, 200, false},
        {"%0 name=a health=/ping", 503, 200, false},
        {"%0 name=a health=off", 500, 500, true},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct site s;
        site_init(&s);
        stub_start(&s, &s.stub[0], "127.0.0.1:0");
        s.stub[0].health = table[i].health;
        s.stub[0].models_status = table[i].models;
        ASSERT_OK(set_upstreams(&s, &table[i].entry, 1));
        gw_fleet_start(s.fleet);
        (void)run_until(&s, table[i].ready ? one_ready : asked_twice);
        if (one_ready(&s) != table[i].ready)
            test_fail(__FILE__, __LINE__, "row %zu: ready is %d", i, !table[i].ready);
        site_fini(&s);
    }
}

static bool knows_b(struct site *s)
{
    return view(s, "b").state == GW_TARGET_DOWN;
}

TEST(names_are_resolved_beside_the_loop)
{
    struct site s;
    char entry[80];
    site_init(&s);
    stub_start(&s, &s.stub[0], "127.0.0.1:0"); /* not on ::1, which localhost may be, too */
    (void)snprintf(entry, sizeof entry, "http://localhost%s name=a",
                   strchr(s.stub[0].address, ':'));
    ASSERT_OK(SET_UPSTREAMS(&s, entry, "http://no-such-host.invalid name=b models=x health=off"));
    ASSERT_EQ(how(&s, "x"), GW_PICK_UNSURE);
    gw_fleet_start(s.fleet);
    ASSERT_TRUE(run_until(&s, one_ready));
    ASSERT_STREQ(who(&s, "m"), "a");
    ASSERT_TRUE(gw_fleet_client(s.fleet, 0, 0, s.loop));
    ASSERT_TRUE(run_until(&s, knows_b));
    ASSERT_EQ(how(&s, "x"), GW_PICK_DOWN);
    ASSERT_TRUE(!gw_fleet_client(s.fleet, 1, 0, s.loop));
    site_fini(&s);
}

static bool known_down(struct site *s)
{
    return view(s, "a").state == GW_TARGET_DOWN;
}

TEST(an_unreachable_one_is_down_and_comes_later)
{
    struct site s;
    site_init(&s);
    stub_start(&s, &s.stub[0], "127.0.0.1:0");
    stub_stop(&s.stub[0]); /* its port is free again */
    ASSERT_OK(SET_UPSTREAMS(&s, "%0 name=a"));
    gw_fleet_start(s.fleet);
    ASSERT_TRUE(run_until(&s, known_down));
    ASSERT_EQ(how(&s, "m"), GW_PICK_DOWN);
    stub_start(&s, &s.stub[0], s.stub[0].address);
    ASSERT_TRUE(run_until(&s, one_ready));
    ASSERT_STREQ(who(&s, "m"), "a");
    site_fini(&s);
}

/* ---- upstreams: models ---- */

TEST(names_globs_aliases)
{
    struct site s;
    struct buf b = BUF_INIT;
    site_init(&s);
    s.stub[0].models = "llama-8b,llama-70b,phi";
    s.stub[1].models = "gpt-4o,gpt-5,o3";
    s.stub[2].models = "llama-8b,x";
    for (int i = 0; i < 3; i++)
        stub_start(&s, &s.stub[i], "127.0.0.1:0");
    ASSERT_OK(SET_UPSTREAMS(&s, "%0 name=a", "%1 name=b models=gpt-*,fast=o3,plain",
                            "%2 name=c models=x*,llama-?b"));
    gw_fleet_start(s.fleet);
    ASSERT_TRUE(run_until(&s, three_ready));
    ASSERT_STREQ(who(&s, "phi"), "a"); /* the one that lists it */
    struct gw_lease l = {0};
    ASSERT_EQ(pick(&s, "fast", &l), GW_PICK_OK);
    gw_fleet_release(s.fleet, &l, GW_DONE_OK, 1000);
    ASSERT_EQ(gw_fleet_serves(s.fleet, "gpt-5"), GW_SERVES_UPSTREAM);
    ASSERT_OK(gw_fleet_list_models(s.fleet, NULL, &b));
    static const char *const names[] = {"llama-8b", "llama-70b", "phi",   "gpt-4o",
                                        "gpt-5",    "fast",      "plain", "x"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char id[40];
        (void)snprintf(id, sizeof id, "\"id\":\"%s\"", names[i]);
        const char *at = strstr(buf_cstr(&b), id);
        if (!at) test_fail(__FILE__, __LINE__, "%s is not in %s", id, buf_cstr(&b));
        ASSERT_TRUE(!strstr(at + 1, id)); /* once */
    }
    ASSERT_TRUE(!strstr(buf_cstr(&b), "\"o3\""));
    buf_clear(&b);
    ASSERT_OK(gw_fleet_model(s.fleet, "fast", &b));
    ASSERT_TRUE(strstr(buf_cstr(&b), "\"id\":\"fast\"") && strstr(buf_cstr(&b), "stub"));
    ASSERT_ERR(gw_fleet_model(s.fleet, "o3", &b), -ENOENT);
    buf_fini(&b);
    site_fini(&s);
}

TEST(an_alias_is_sent_under_its_name)
{
    struct site s;
    site_init(&s);
    stub_start(&s, &s.stub[0], "127.0.0.1:0");
    ASSERT_OK(SET_UPSTREAMS(&s, "%0 name=a models=fast=m,m2 health=off"));
    struct gw_lease l = {0};
    ASSERT_EQ(pick(&s, "fast", &l), GW_PICK_OK);
    ASSERT_STREQ(l.model, "m");
    ASSERT_STREQ(l.up->name, "a");
    ASSERT_TRUE(!l.worker);
    gw_fleet_release(s.fleet, &l, GW_DONE_OK, 0);
    ASSERT_TRUE(!l.target && !l.up);
    ASSERT_EQ(pick(&s, "m2", &l), GW_PICK_OK);
    ASSERT_TRUE(!l.model);
    gw_fleet_release(s.fleet, &l, GW_DONE_OK, 0);
    ASSERT_EQ(how(&s, "m"), GW_PICK_UNKNOWN_MODEL);
    ASSERT_EQ(how(&s, NULL), GW_PICK_OK); /* no model */
    unsigned i;
    ASSERT_EQ(gw_fleet_add_worker(s.fleet, "127.0.0.1:1", true, &i), 0);
    ASSERT_EQ(how(&s, NULL), GW_PICK_LOADING); /* which is the worker's now, ready or not */
    struct gw_want other[] = {{.upstream_only = true}, {.upstream = "a"}};
    for (i = 0; i < 2; i++) {
        ASSERT_EQ(gw_fleet_pick(s.fleet, &other[i], &l, NULL), GW_PICK_OK);
        gw_fleet_release(s.fleet, &l, GW_DONE_OK, 0);
    }
    site_fini(&s);
}

static bool serves_new(struct site *s)
{
    return how(s, "new") == GW_PICK_OK;
}

TEST(a_changed_list_is_taken_over)
{
    struct site s;
    site_init(&s);
    stub_start(&s, &s.stub[0], "127.0.0.1:0");
    ASSERT_OK(SET_UPSTREAMS(&s, "%0 name=a"));
    gw_fleet_start(s.fleet);
    ASSERT_TRUE(run_until(&s, can_serve_m));
    ASSERT_EQ(how(&s, "new"), GW_PICK_UNKNOWN_MODEL);
    s.stub[0].models = "new";
    ASSERT_TRUE(run_until(&s, serves_new));
    ASSERT_EQ(how(&s, "m"), GW_PICK_UNKNOWN_MODEL);
    site_fini(&s);
}

/* ---- upstreams: the breaker, room ---- */

TEST(breaker_half_opens_and_closes)
{
    struct site s;
    struct gw_want w = {.model = "m"};
    struct gw_lease l = {0}, other = {0};
    uint32_t wait_ms = 0;
    site_init(&s);
    stub_start(&s, &s.stub[0], "127.0.0.1:0");
    s.config.breaker_open_ms = 50;
    ASSERT_OK(SET_UPSTREAMS(&s, "%0 name=a models=m health=off"));
    gw_fleet_start(s.fleet);
    while (pick(&s, "m", &l) != GW_PICK_OPEN) /* however short it is open */
        gw_fleet_release(s.fleet, &l, GW_DONE_FAILED, 0);
    s.n_room = 0;
    ASSERT_TRUE(run_until(&s, room)); /* who waits is told */
    ASSERT_TRUE(run_until(&s, can_serve_m));
    ASSERT_STREQ(view(&s, "a").breaker, "half-open"); /* the cancelled try told nothing */
    ASSERT_EQ(pick(&s, "m", &l), GW_PICK_OK);
    ASSERT_TRUE(l.probe);
    ASSERT_EQ(gw_fleet_pick(s.fleet, &w, &other, &wait_ms), GW_PICK_OPEN); /* one try only */
    gw_fleet_release(s.fleet, &l, GW_DONE_TIMEOUT, 0);
    ASSERT_STREQ(view(&s, "a").breaker, "open");
    ASSERT_TRUE(run_until(&s, can_serve_m));
    ASSERT_EQ(serve(&s, 1, GW_DONE_OK), 1);
    ASSERT_STREQ(view(&s, "a").breaker, "closed");
    ASSERT_EQ(serve(&s, 3, GW_DONE_OK), 3);
    site_fini(&s);
}

/* A stream may last for minutes: its head already tells that the backend is back. */
TEST(the_head_of_the_one_try_closes_the_breaker)
{
    struct site s;
    struct gw_want w = {.model = "m"};
    struct gw_lease l = {0}, other = {0};
    site_init(&s);
    stub_start(&s, &s.stub[0], "127.0.0.1:0");
    s.config.breaker_open_ms = 50;
    ASSERT_OK(SET_UPSTREAMS(&s, "%0 name=a models=m health=off"));
    gw_fleet_start(s.fleet);
    ASSERT_EQ(serve(&s, 5, GW_DONE_FAILED), 5);
    ASSERT_TRUE(run_until(&s, can_serve_m));
    ASSERT_EQ(pick(&s, "m", &l), GW_PICK_OK);
    ASSERT_TRUE(l.probe);
    uint32_t wait_ms = 0;
    ASSERT_EQ(gw_fleet_pick(s.fleet, &w, &other, &wait_ms), GW_PICK_OPEN);
    l.status = 500; /* no good answer */
    gw_fleet_computed(s.fleet, &l);
    ASSERT_STREQ(view(&s, "a").breaker, "half-open");
    l.status = 200;
    s.n_room = 0;
    gw_fleet_computed(s.fleet, &l);
    ASSERT_STREQ(view(&s, "a").breaker, "closed");
    ASSERT_EQ(pick(&s, "m", &other), GW_PICK_OK);
    ASSERT_TRUE(run_until(&s, room)); /* who waited is told */
    gw_fleet_release(s.fleet, &other, GW_DONE_OK, 0);
    gw_fleet_release(s.fleet, &l, GW_DONE_FAILED, 1); /* it broke later: one failure among others */
    ASSERT_STREQ(view(&s, "a").breaker, "closed");
    site_fini(&s);
}

/* Answers of calls that began before it opened come at any time: nothing follows from them. */
TEST(late_answers_decide_nothing)
{
    static const enum gw_outcome ends[] = {GW_DONE_OK, GW_DONE_FAILED, GW_DONE_CANCELLED};
    enum { OLD = 12 };
    struct site s;
    struct gw_want w = {.model = "m"};
    struct gw_lease old[OLD] = {{0}}, l = {0}, other = {0};
    uint32_t wait_ms = 0;
    site_init(&s);
    stub_start(&s, &s.stub[0], "127.0.0.1:0");
    s.config.breaker_open_ms = 50;
    ASSERT_OK(SET_UPSTREAMS(&s, "%0 name=a models=m health=off"));
    gw_fleet_start(s.fleet);
    for (int i = 0; i < OLD; i++)
        ASSERT_EQ(pick(&s, "m", &old[i]), GW_PICK_OK);
    ASSERT_EQ(serve(&s, 5, GW_DONE_FAILED), 5);
    ASSERT_TRUE(run_until(&s, can_serve_m));
    ASSERT_EQ(pick(&s, "m", &l), GW_PICK_OK);
    ASSERT_STREQ(view(&s, "a").breaker, "half-open");
    for (int i = 0; i < 3; i++) {
        gw_fleet_release(s.fleet, &old[i], ends[i], 0);
        ASSERT_STREQ(view(&s, "a").breaker, "half-open");
        ASSERT_EQ(gw_fleet_pick(s.fleet, &w, &other, &wait_ms), GW_PICK_OPEN); /* one is out */
    }
    gw_fleet_release(s.fleet, &l, GW_DONE_OK, 0);
    for (int i = 3; i < OLD; i++) {
        ASSERT_STREQ(view(&s, "a").breaker, "closed");
        gw_fleet_release(s.fleet, &old[i], GW_DONE_FAILED, 0);
    }
    ASSERT_STREQ(view(&s, "a").breaker, "closed");
    s.config.breaker_open_ms = 10000;
    gw_fleet_configure(s.fleet, &s.config);
    ASSERT_EQ(serve(&s, 4, GW_DONE_FAILED), 4);
    ASSERT_EQ(serve(&s, 1, GW_DONE_OK), 1);
    ASSERT_EQ(serve(&s, 9, GW_DONE_FAILED), 5); /* in a row, of those that began since */
    ASSERT_EQ(gw_fleet_pick(s.fleet, &w, &l, &wait_ms), GW_PICK_OPEN);
    ASSERT_TRUE(wait_ms >= 1 && wait_ms <= 12001);
    ASSERT_STREQ(view(&s, "a").breaker, "open");
    site_fini(&s);
}

/* To look for another one is no try at the same one. */
TEST(there_is_no_other)
{
    struct site s;
    struct gw_lease l = {0};
    site_init(&s);
    stub_start(&s, &s.stub[0], "127.0.0.1:0");
    ASSERT_OK(SET_UPSTREAMS(&s, "%0 name=a models=m health=off"));
    ASSERT_TRUE(!gw_fleet_count_kinds(s.fleet).choice);
    struct gw_want w = {.model = "m", .tried = {1}, .untried = true};
    ASSERT_EQ(gw_fleet_pick(s.fleet, &w, &l, NULL), GW_PICK_DOWN);
    ASSERT_EQ(view(&s, "a").n_picked, 0);
    w.untried = false;
    ASSERT_EQ(gw_fleet_pick(s.fleet, &w, &l, NULL), GW_PICK_OK);
    gw_fleet_release(s.fleet, &l, GW_DONE_OK, 0);
    site_fini(&s);
}

static bool first_was_asked(struct site *s)
{
    return s->stub[0].n_health >= 1 && s->stub[0].held;
}

/* What the old address answers late says nothing about the new one. */
TEST(an_answer_of_the_old_address_counts_no_more)
{
    struct site s;
    site_init(&s);
    stub_start(&s, &s.stub[0], "127.0.0.1:0");
    s.stub[0].health = 0;
    ASSERT_OK(SET_UPSTREAMS(&s, "%0 name=a models=m health=/h"));
    gw_fleet_start(s.fleet);
    ASSERT_TRUE(run_until(&s, first_was_asked));
    ASSERT_OK(SET_UPSTREAMS(&s, "http://127.0.0.1:1 name=a models=m health=/h"));
    ASSERT_OK(http_reply(s.stub[0].held, 200, NULL, NULL, NULL, 0));
    ASSERT_TRUE(run_until(&s, known_down)); /* by its own answer, which is asked for afterwards */
    ASSERT_EQ(s.n_ready, 0);
    site_fini(&s);
}

/* Where each new worker has a new address. */
TEST(more_workers_come_and_go_than_there_are_places)
{
    struct site s;
    struct gw_lease l = {0};
    char address[40], first[16] = "";
    const char *name = NULL;
    unsigned index, last = 0;
    site_init(&s);
    stub_start(&s, &s.stub[0], "127.0.0.1:0");
    stub_start(&s, &s.stub[1], "127.0.0.1:0");
    gw_fleet_start(s.fleet);
    ASSERT_OK(gw_fleet_add_worker(s.fleet, s.stub[0].address, false, &index));
    ASSERT_TRUE(run_until(&s, can_serve_m));
    ASSERT_EQ(pick(&s, "m", &l), GW_PICK_OK);
    name = l.name; /* as the log of a request keeps it */
    (void)snprintf(first, sizeof first, "%.15s", name);
    gw_fleet_remove(s.fleet, index);
    gw_fleet_release(s.fleet, &l, GW_DONE_OK, 0);
    for (unsigned i = 0; i < 2 * GW_TARGETS_MAX; i++) {
        (void)snprintf(address, sizeof address, "127.1.%u.%u:1", i / 200, i % 200 + 1);
        int r = gw_fleet_add_worker(s.fleet, address, false, &last);
        if (r < 0) test_fail(__FILE__, __LINE__, "worker %u: %d", i, r);
        ASSERT_STREQ(view(&s, address).address, address);
        gw_fleet_remove(s.fleet, last);
    }
    ASSERT_TRUE(strncmp(name, first, strlen(first)) == 0);
    ASSERT_EQ(gw_fleet_count(s.fleet), GW_TARGETS_MAX);
    ASSERT_OK(gw_fleet_add_worker(s.fleet, s.stub[1].address, false, &index));
    ASSERT_TRUE(run_until(&s, can_serve_m));
    ASSERT_STREQ(who(&s, "m"), s.stub[1].address);
    ASSERT_TRUE(gw_fleet_client(s.fleet, index, 0, s.loop));
    site_fini(&s);
}

TEST(half_of_twenty_opens_too)
{
    struct site s;
    site_init(&s);
    stub_start(&s, &s.stub[0], "127.0.0.1:0");
    ASSERT_OK(SET_UPSTREAMS(&s, "%0 name=a models=m health=off"));
    for (unsigned i = 0; i < 9; i++) {
        ASSERT_EQ(serve(&s, 1, GW_DONE_OK), 1);
        ASSERT_EQ(serve(&s, 1, GW_DONE_FAILED), 1);
    }
    ASSERT_STREQ(view(&s, "a").breaker, "closed");
    ASSERT_EQ(serve(&s, 1, GW_DONE_BUSY), 1); /* busy is alive */
    ASSERT_EQ(serve(&s, 1, GW_DONE_FAILED), 1);
    ASSERT_STREQ(view(&s, "a").breaker, "open");
    site_fini(&s);
}

TEST(an_open_one_leaves_the_others_in_service)
{
    struct site s;
    site_init(&s);
    stub_start(&s, &s.stub[0], "127.0.0.1:0");
    ASSERT_OK(SET_UPSTREAMS(&s, "%0 name=a models=m health=off", "%0 name=b models=m health=off"));
    struct gw_want not_b = {.model = "m", .tried = {1 << 1}};
    for (unsigned i = 0; i < 5; i++) {
        struct gw_lease l = {0};
        ASSERT_EQ(gw_fleet_pick(s.fleet, &not_b, &l, NULL), GW_PICK_OK);
        ASSERT_STREQ(l.name, "a");
        gw_fleet_release(s.fleet, &l, GW_DONE_FAILED, 0);
    }
    for (unsigned i = 0; i < 20; i++)
        ASSERT_STREQ(who(&s, "m"), "b");
    struct gw_lease l = {0}; /* tried, but there is no other */
    ASSERT_EQ(gw_fleet_pick(s.fleet, &not_b, &l, NULL), GW_PICK_OK);
    ASSERT_STREQ(l.name, "b");
    gw_fleet_release(s.fleet, &l, GW_DONE_OK, 0);
    site_fini(&s);
}

TEST(full_until_somebody_leaves)
{
    struct site s;
    struct gw_lease l[3] = {{0}};
    site_init(&s);
    stub_start(&s, &s.stub[0], "127.0.0.1:0");
    ASSERT_OK(SET_UPSTREAMS(&s, "%0 name=a models=m max_inflight=2 health=off",
                            "%0 name=b models=other health=off"));
    gw_fleet_start(s.fleet);
    ASSERT_EQ(pick(&s, "m", &l[0]), GW_PICK_OK);
    ASSERT_EQ(pick(&s, "m", &l[1]), GW_PICK_OK);
    ASSERT_EQ(pick(&s, "m", &l[2]), GW_PICK_FULL);
    ASSERT_EQ(how(&s, "other"), GW_PICK_OK); /* sheds nobody else's */
    s.n_room = 0;
    ASSERT_EQ(pick(&s, "m", &l[2]), GW_PICK_FULL);
    gw_fleet_release(s.fleet, &l[0], GW_DONE_OK, 0);
    ASSERT_TRUE(run_until(&s, room));
    ASSERT_EQ(pick(&s, "m", &l[2]), GW_PICK_OK);
    ASSERT_EQ(view(&s, "a").n_inflight, 2);
    gw_fleet_release(s.fleet, &l[1], GW_DONE_OK, 0);
    gw_fleet_release(s.fleet, &l[2], GW_DONE_OK, 0);
    site_fini(&s);
}

TEST(priorities_are_groups)
{
    struct site s;
    struct gw_lease l = {0};
    site_init(&s);
    stub_start(&s, &s.stub[0], "127.0.0.1:0");
    ASSERT_OK(SET_UPSTREAMS(&s, "%0 name=late models=m priority=2 health=off",
                            "%0 name=first models=m max_inflight=1 health=off",
                            "%0 name=next models=m priority=1 health=off"));
    ASSERT_TRUE(gw_fleet_count_kinds(s.fleet).choice);
    for (unsigned i = 0; i < 10; i++)
        ASSERT_STREQ(who(&s, "m"), "first");
    ASSERT_EQ(pick(&s, "m", &l), GW_PICK_OK);
    ASSERT_STREQ(who(&s, "m"), "next"); /* the first is full */
    ASSERT_OK(gw_fleet_drain(s.fleet, "next", true));
    ASSERT_STREQ(who(&s, "m"), "late");
    ASSERT_EQ(view(&s, "next").state, GW_TARGET_DRAINING);
    ASSERT_OK(gw_fleet_drain(s.fleet, "next", false));
    gw_fleet_release(s.fleet, &l, GW_DONE_OK, 0);
    struct gw_want w = {.model = "m", .tried = {1 << 1}};
    ASSERT_EQ(gw_fleet_pick(s.fleet, &w, &l, NULL), GW_PICK_OK);
    ASSERT_STREQ(l.name, "next");
    gw_fleet_release(s.fleet, &l, GW_DONE_OK, 0);
    ASSERT_ERR(gw_fleet_drain(s.fleet, "nobody", true), -ENOENT);
    site_fini(&s);
}

TEST(one_is_asked_for_by_its_name)
{
    struct site s;
    struct gw_lease l = {0};
    site_init(&s);
    stub_start(&s, &s.stub[0], "127.0.0.1:0");
    ASSERT_OK(
        SET_UPSTREAMS(&s, "%0 name=first models=m health=off",
                      "%0 name=last models=m,sent=there priority=9 max_inflight=1 health=off"));
    struct gw_want w = {.model = "sent", .upstream = "last"};
    ASSERT_EQ(gw_fleet_pick(s.fleet, &w, &l, NULL), GW_PICK_OK);
    ASSERT_STREQ(l.name, "last");
    ASSERT_STREQ(l.model, "there");
    struct gw_lease other = {0};
    w.model = "m"; /* the first one has room, and is not meant */
    ASSERT_EQ(gw_fleet_pick(s.fleet, &w, &other, NULL), GW_PICK_FULL);
    gw_fleet_release(s.fleet, &l, GW_DONE_OK, 0);
    w.model = "x";
    ASSERT_EQ(gw_fleet_pick(s.fleet, &w, &other, NULL), GW_PICK_UNKNOWN_MODEL);
    w.upstream = "nobody";
    w.model = "m";
    ASSERT_EQ(gw_fleet_pick(s.fleet, &w, &other, NULL), GW_PICK_UNKNOWN_MODEL);
    site_fini(&s);
}

TEST(at_the_start_the_first_group_is_waited_for)
{
    struct site s;
    site_init(&s);
    stub_start(&s, &s.stub[0], "127.0.0.1:0");
    s.stub[0].health = 0; /* hangs */
    ASSERT_OK(SET_UPSTREAMS(&s, "%0 name=first models=m health=/h",
                            "%0 name=next models=m priority=1 health=off"));
    gw_fleet_start(s.fleet);
    ASSERT_EQ(how(&s, "m"), GW_PICK_UNSURE);
    s.n_room = 0;
    ASSERT_TRUE(run_until(&s, room)); /* but not for ever */
    ASSERT_TRUE(run_until(&s, can_serve_m));
    ASSERT_STREQ(who(&s, "m"), "next");
    site_fini(&s);
}

TEST(load_is_shared_by_weight)
{
    struct site s;
    unsigned n_b = 0;
    enum { N = 400 };
    static struct gw_lease l[N];
    site_init(&s);
    stub_start(&s, &s.stub[0], "127.0.0.1:0");
    ASSERT_OK(SET_UPSTREAMS(&s, "%0 name=a models=m health=off",
                            "%0 name=b models=m weight=3 health=off"));
    memset(l, 0, sizeof l);
    for (unsigned i = 0; i < N; i++) {
        ASSERT_EQ(pick(&s, "m", &l[i]), GW_PICK_OK);
        n_b += strcmp(l[i].name, "b") == 0;
    }
    ASSERT_TRUE(n_b > N * 6 / 10 && n_b < N * 9 / 10);
    for (unsigned i = 0; i < N; i++)
        gw_fleet_release(s.fleet, &l[i], GW_DONE_OK, 0);
    ASSERT_EQ(view(&s, "a").n_inflight + view(&s, "b").n_inflight, 0);
    site_fini(&s);
}

/* ---- reload ---- */

TEST(a_reload_keeps_history)
{
    struct site s;
    site_init(&s);
    stub_start(&s, &s.stub[0], "127.0.0.1:0");
    stub_start(&s, &s.stub[1], "127.0.0.1:0");
    ASSERT_OK(SET_UPSTREAMS(&s, "%0 name=a", "%1 name=b"));
    gw_fleet_start(s.fleet);
    ASSERT_TRUE(run_until(&s, two_ready));
    ASSERT_EQ(serve(&s, 7, GW_DONE_OK), 7);
    struct http_client *before = gw_fleet_client(s.fleet, 0, 0, s.loop);
    ASSERT_TRUE(before);
    unsigned index_b = view(&s, "b").index;
    uint64_t picked = view(&s, "a").n_picked;
    ASSERT_OK(gw_fleet_drain(s.fleet, "a", true));
    ASSERT_OK(SET_UPSTREAMS(&s, "%0 name=a weight=2", "%1 name=c"));
    struct seen a = view(&s, "a");
    ASSERT_EQ(a.n_picked, picked);
    ASSERT_NEAR(a.weight, 2, 0);
    ASSERT_EQ(a.state, GW_TARGET_DRAINING); /* the operator's word stands */
    ASSERT_OK(gw_fleet_drain(s.fleet, "a", false));
    ASSERT_EQ(view(&s, "a").state, GW_TARGET_READY);
    ASSERT_TRUE(gw_fleet_client(s.fleet, 0, 0, s.loop) == before);
    ASSERT_EQ(view(&s, "b").state, GW_TARGET_RETIRED);
    ASSERT_TRUE(!gw_fleet_client(s.fleet, index_b, 0, s.loop));
    ASSERT_TRUE(run_until(&s, two_ready)); /* a and c */
    /* Other settings of the connections, other connections; and b comes back to its place. */
    ASSERT_OK(SET_UPSTREAMS(&s, "%0 name=a idle_timeout=9s", "%1 name=b"));
    ASSERT_TRUE(gw_fleet_client(s.fleet, 0, 0, s.loop) != before);
    ASSERT_EQ(view(&s, "b").index, index_b);
    ASSERT_EQ(view(&s, "c").state, GW_TARGET_RETIRED);
    ASSERT_TRUE(run_until(&s, two_ready));
    site_fini(&s);
}

TEST(a_removed_one_drains_first)
{
    struct site s;
    struct gw_lease l = {0};
    site_init(&s);
    stub_start(&s, &s.stub[0], "127.0.0.1:0");
    ASSERT_OK(SET_UPSTREAMS(&s, "%0 name=a models=x=y health=off"));
    gw_fleet_start(s.fleet);
    ASSERT_EQ(pick(&s, "x", &l), GW_PICK_OK);
    ASSERT_OK(SET_UPSTREAMS(&s, "%0 name=b models=z health=off"));
    ASSERT_EQ(view(&s, "a").state, GW_TARGET_DRAINING);
    ASSERT_STREQ(l.up->name, "a"); /* the lease's settings stay as they were */
    ASSERT_STREQ(l.model, "y");
    ASSERT_EQ(how(&s, "x"), GW_PICK_UNKNOWN_MODEL);
    gw_fleet_release(s.fleet, &l, GW_DONE_OK, 0);
    ASSERT_EQ(view(&s, "a").state, GW_TARGET_RETIRED);
    ASSERT_OK(set_upstreams(&s, NULL, 0));
    ASSERT_EQ(how(&s, "x"), GW_PICK_LOADING); /* nobody is there yet */
    run_for(&s, 20);
    site_fini(&s);
}

/* ---- workers ---- */

TEST(a_single_worker_judges_names_itself)
{
    struct site s;
    struct buf b = BUF_INIT;
    unsigned i;
    site_init(&s);
    stub_start(&s, &s.stub[0], "127.0.0.1:0");
    s.stub[0].health = 503;
    ASSERT_EQ(gw_fleet_add_worker(s.fleet, s.stub[0].address, false, &i), 0);
    ASSERT_EQ(gw_fleet_add_worker(s.fleet, s.stub[0].address, false, &i), 1);
    ASSERT_TRUE(gw_fleet_count_kinds(s.fleet).choice); /* where the chunks are still matters */
    gw_fleet_start(s.fleet);
    ASSERT_TRUE(run_until(&s, loading)); /* so it says */
    ASSERT_EQ(how(&s, "whatever"), GW_PICK_LOADING);
    ASSERT_TRUE(gw_fleet_count_kinds(s.fleet).hopeful);
    s.stub[0].health = 200;
    ASSERT_TRUE(run_until(&s, one_ready));
    ASSERT_EQ(how(&s, "whatever"), GW_PICK_OK);
    ASSERT_EQ(gw_fleet_serves(s.fleet, "whatever"), GW_SERVES_WORKER);
    ASSERT_OK(gw_fleet_list_models(s.fleet, NULL, &b));
    ASSERT_STREQ(buf_cstr(&b),
                 "{\"object\":\"list\",\"data\":[{\"id\":\"m\",\"owned_by\":\"stub\"}]}");
    buf_fini(&b);
    stub_start(&s, &s.stub[1], "127.0.0.1:0");
    ASSERT_OK(SET_UPSTREAMS(&s, "%1 name=up models=big health=off"));
    ASSERT_EQ(how(&s, "whatever"), GW_PICK_UNKNOWN_MODEL); /* beside others the names decide */
    ASSERT_STREQ(who(&s, "m"), s.stub[0].address);
    ASSERT_STREQ(who(&s, "default"), s.stub[0].address);
    ASSERT_STREQ(who(&s, "big"), "up");
    ASSERT_STREQ(who(&s, NULL), s.stub[0].address);
    struct gw_want w = {.model = "m", .upstream_only = true}, u = {.worker_only = true};
    struct gw_lease l = {0};
    ASSERT_EQ(gw_fleet_pick(s.fleet, &w, &l, NULL), GW_PICK_UNKNOWN_MODEL);
    ASSERT_EQ(gw_fleet_pick(s.fleet, &u, &l, NULL), GW_PICK_OK);
    ASSERT_TRUE(l.worker && !l.up);
    gw_fleet_release(s.fleet, &l, GW_DONE_OK, 0);
    site_fini(&s);
}

TEST(a_suspect_worker_is_probed_at_once)
{
    struct site s;
    unsigned i;
    site_init(&s);
    stub_start(&s, &s.stub[0], "127.0.0.1:0");
    ASSERT_EQ(gw_fleet_add_worker(s.fleet, s.stub[0].address, true, &i), 0);
    gw_fleet_start(s.fleet);
    ASSERT_TRUE(run_until(&s, one_ready));
    unsigned before = s.stub[0].n_health, ready = s.n_ready;
    ASSERT_EQ(serve(&s, 1, GW_DONE_FAILED), 1);
    ASSERT_EQ(how(&s, "m"), GW_PICK_UNSURE);
    ASSERT_TRUE(run_until(&s, can_serve_m));
    ASSERT_EQ(s.stub[0].n_health, before + 1);
    ASSERT_EQ(s.n_ready, ready + 1); /* who waits is told that the suspicion was wrong */
    ASSERT_EQ(serve(&s, 1, GW_DONE_FAILED), 1);
    stub_stop(&s.stub[0]);
    ASSERT_TRUE(run_until(&s, none_ready));
    ASSERT_EQ(s.n_lost, 1);
    ASSERT_TRUE(s.n_silent > 0);
    ASSERT_EQ(how(&s, "m"), GW_PICK_RETURNING); /* an own one comes back */
    gw_fleet_lost(s.fleet, i);
    gw_fleet_expect(s.fleet, i);
    ASSERT_EQ(view(&s, "worker-0").state, GW_TARGET_LOADING);
    ASSERT_EQ(how(&s, "m"), GW_PICK_RETURNING);
    stub_start(&s, &s.stub[0], s.stub[0].address);
    ASSERT_TRUE(run_until(&s, one_ready));
    site_fini(&s);
}

static bool first_is_asked_no_more(struct site *s)
{
    return !s->fleet->target[0]->probe.call && !s->fleet->target[0]->probe.timer.due_ns;
}

TEST(a_worker_leaves_and_returns)
{
    struct site s;
    struct gw_lease l = {0};
    unsigned a, b;
    site_init(&s);
    stub_start(&s, &s.stub[0], "127.0.0.1:0");
    stub_start(&s, &s.stub[1], "127.0.0.1:0");
    ASSERT_EQ(gw_fleet_add_worker(s.fleet, s.stub[0].address, false, &a), 0);
    ASSERT_EQ(gw_fleet_add_worker(s.fleet, s.stub[1].address, false, &b), 0);
    gw_fleet_start(s.fleet);
    ASSERT_TRUE(run_until(&s, two_ready));
    ASSERT_EQ(how(&s, "other"), GW_PICK_UNKNOWN_MODEL);
    struct gw_want w = {.model = "m", .tried = {1u << b}};
    ASSERT_EQ(gw_fleet_pick(s.fleet, &w, &l, NULL), GW_PICK_OK);
    ASSERT_EQ(l.index, a);
    gw_fleet_remove(s.fleet, a);
    ASSERT_EQ(view(&s, s.stub[0].address).state, GW_TARGET_DRAINING);
    ASSERT_STREQ(who(&s, "m"), s.stub[1].address);
    gw_fleet_release(s.fleet, &l, GW_DONE_OK, 0);
    ASSERT_EQ(view(&s, s.stub[0].address).state, GW_TARGET_RETIRED);
    ASSERT_TRUE(run_until(&s, first_is_asked_no_more));
    ASSERT_EQ(gw_fleet_add_worker(s.fleet, s.stub[0].address, false, &a), 0);
    ASSERT_EQ(a, 0);
    ASSERT_TRUE(run_until(&s, two_ready));
    site_fini(&s);
}

TEST(workers_are_chosen_by_what_they_hold)
{
    struct site s;
    struct gw_directory *d;
    unsigned a, b;
    uint64_t texts[] = {11, 12};
    site_init(&s);
    gw_fleet_destroy(s.fleet);
    ASSERT_OK(gw_directory_create(1 << 20, &d));
    ASSERT_OK(gw_fleet_create(s.loop, &s.config, d, &ops, &s, &s.fleet));
    stub_start(&s, &s.stub[0], "127.0.0.1:0");
    stub_start(&s, &s.stub[1], "127.0.0.1:0");
    ASSERT_EQ(gw_fleet_add_worker(s.fleet, s.stub[0].address, false, &a), 0);
    ASSERT_EQ(gw_fleet_add_worker(s.fleet, s.stub[1].address, false, &b), 0);
    gw_fleet_start(s.fleet);
    ASSERT_TRUE(run_until(&s, two_ready));
    ASSERT_OK(gw_directory_put(d, b, 11, 1000, 0));
    ASSERT_OK(gw_directory_put(d, b, 12, 1000, 0));
    struct gw_want w = {.model = "m", .text_id = texts, .n_texts = 2, .prompt_tokens = 2100};
    for (unsigned i = 0; i < 10; i++) {
        struct gw_lease l = {0};
        ASSERT_EQ(gw_fleet_pick(s.fleet, &w, &l, NULL), GW_PICK_OK);
        ASSERT_EQ(l.index, b);
        ASSERT_EQ(l.prompt_tokens, 100); /* the rest is there */
        ASSERT_EQ(view(&s, s.stub[1].address).prompt_tokens_in_flight, 100);
        gw_fleet_computed(s.fleet, &l);
        ASSERT_EQ(view(&s, s.stub[1].address).prompt_tokens_in_flight, 0);
        gw_fleet_release(s.fleet, &l, GW_DONE_OK, 0);
    }
    site_fini(&s);
    gw_directory_destroy(d);
}

/* What a request would meet: the last report, and what was sent since. */
TEST(workers_that_report_can_be_forecast)
{
    struct site s;
    struct gw_directory *d;
    struct pol_shed_worker w[GW_TARGETS_MAX];
    unsigned index[2];
    uint64_t text = 11;
    site_init(&s);
    gw_fleet_destroy(s.fleet);
    ASSERT_OK(gw_directory_create(1 << 20, &d));
    ASSERT_OK(gw_fleet_create(s.loop, &s.config, d, &ops, &s, &s.fleet));
    for (int i = 0; i < 2; i++) {
        stub_start(&s, &s.stub[i], "127.0.0.1:0");
        ASSERT_EQ(gw_fleet_add_worker(s.fleet, s.stub[i].address, false, &index[i]), 0);
    }
    gw_fleet_start(s.fleet);
    ASSERT_TRUE(run_until(&s, two_ready));
    ASSERT_OK(gw_directory_put(d, index[1], text, 1000, 0));
    struct gw_want want = {.model = "m", .text_id = &text, .n_texts = 1, .prompt_tokens = 1100};
    struct gw_load load = {1e9, 0, 1, 8, 500, 1000, 250}; /* hours: time passes meanwhile */
    ASSERT_EQ(gw_fleet_forecast(s.fleet, &want, w), 0);
    ASSERT_TRUE(gw_fleet_room(s.fleet, "m")); /* nobody knows */
    ASSERT_NEAR(view(&s, s.stub[0].address).wait_ms, -1, 0);
    gw_fleet_report(s.fleet, index[0], &load);
    ASSERT_EQ(gw_fleet_forecast(s.fleet, &want, w), 0); /* the other one is silent */
    load.waiting_ms = 0;
    load.n_waiting = 1;
    gw_fleet_report(s.fleet, index[1], &load);
    ASSERT_EQ(gw_fleet_forecast(s.fleet, &want, w), 2);
    ASSERT_NEAR(w[0].cost_ms, 1100 * 1000.0, 1e-6);
    ASSERT_NEAR(w[1].cost_ms, 100 * 1000.0 + 1000 * 250.0, 1e-6);
    ASSERT_TRUE(w[0].backlog_ms > 1e9 - 60000 && w[0].backlog_ms <= 1e9);
    ASSERT_TRUE(w[1].backlog_ms == 0 && w[1].n_waiting == 1 && w[1].n_running == 1);
    ASSERT_TRUE(w[1].slots == 8 && w[1].hold_ms == 500);
    struct gw_lease l = {0};
    ASSERT_EQ(gw_fleet_pick(s.fleet, &want, &l, NULL), GW_PICK_OK);
    ASSERT_EQ(l.index, index[1]);
    ASSERT_EQ(gw_fleet_forecast(s.fleet, &want, w), 2);
    ASSERT_TRUE(w[1].backlog_ms > 0 && w[1].backlog_ms <= 350000 && w[1].n_waiting == 2);
    ASSERT_TRUE(view(&s, s.stub[0].address).wait_ms > 9e8);
    ASSERT_TRUE(gw_fleet_room(s.fleet, "m")); /* one runs at the first, none waits */
    load.n_waiting = 1;
    load.waiting_ms = 1e9;
    for (int i = 0; i < 2; i++)
        gw_fleet_report(s.fleet, index[i], &load);
    ASSERT_TRUE(!gw_fleet_room(s.fleet, "m"));
    ASSERT_TRUE(gw_fleet_room(s.fleet, "another")); /* choosing a target will say what is wrong */
    gw_fleet_report(s.fleet, index[0], NULL);
    ASSERT_TRUE(gw_fleet_room(s.fleet, "m"));
    gw_fleet_release(s.fleet, &l, GW_DONE_OK, 0);
    site_fini(&s);
    gw_directory_destroy(d);
}

/* ---- what operators see ---- */

TEST(json_and_metrics)
{
    struct site s;
    struct gw_lease l = {0};
    struct buf b = BUF_INIT;
    site_init(&s);
    stub_start(&s, &s.stub[0], "127.0.0.1:0");
    ASSERT_OK(SET_UPSTREAMS(&s, "%0 name=a models=m health=off api_key=sk-secret"));
    ASSERT_EQ(pick(&s, "m", &l), GW_PICK_OK);
    l.status = 200;
    gw_fleet_release(s.fleet, &l, GW_DONE_OK, 5000000);
    ASSERT_EQ(pick(&s, "m", &l), GW_PICK_OK);
    ASSERT_OK(gw_fleet_format(s.fleet, GW_SERVES_WORKER | GW_SERVES_UPSTREAM, &b));
    ASSERT_TRUE(strstr(buf_cstr(&b), "\"name\":\"a\""));
    ASSERT_TRUE(strstr(buf_cstr(&b), "\"in_flight\":1"));
    ASSERT_TRUE(strstr(buf_cstr(&b), "\"models\":[\"m\"]"));
    ASSERT_TRUE(!strstr(buf_cstr(&b), "secret"));
    buf_clear(&b);
    ASSERT_OK(gw_fleet_metrics(s.fleet, &b));
    ASSERT_TRUE(strstr(buf_cstr(&b), "kvblend_gateway_upstream_up{target=\"a\"} 1\n"));
    ASSERT_TRUE(strstr(buf_cstr(&b), "kvblend_gateway_upstream_inflight{target=\"a\"} 1\n"));
    ASSERT_TRUE(strstr(buf_cstr(&b),
                       "kvblend_gateway_upstream_requests_total{target=\"a\",code=\"200\"} 1\n"));
    ASSERT_NEAR(view(&s, "a").ttfb_ms, 5, 0.001);
    gw_fleet_release(s.fleet, &l, GW_DONE_OK, 0);
    buf_fini(&b);
    site_fini(&s);
}

/* ---- threads ---- */

struct lane {
    struct gw_fleet *fleet;
    struct http_loop *loop;
    unsigned number;
    atomic_bool *stop;
    atomic_uint n_ok;
};

static void *lane_run(void *arg)
{
    struct lane *l = arg;
    uint64_t seed = l->number;
    ASSERT_OK(http_loop_create(&l->loop));
    while (!atomic_load(l->stop)) {
        struct gw_lease held[4] = {{0}};
        for (int i = 0; i < 4; i++) {
            struct gw_want w = {.model = i % 2 ? "m" : "x", .prompt_tokens = 10};
            if (gw_fleet_pick(l->fleet, &w, &held[i], NULL) != GW_PICK_OK) continue;
            l->n_ok++;
            (void)gw_fleet_client(l->fleet, held[i].index, l->number, l->loop);
            if (held[i].up && !held[i].up->name[0]) abort();
        }
        for (int i = 0; i < 4; i++)
            gw_fleet_release(l->fleet, &held[i], (enum gw_outcome)(test_rand(&seed) % 5), 1);
    }
    gw_fleet_leave(l->fleet, l->number);
    http_loop_destroy(l->loop);
    return NULL;
}

TEST(two_threads_while_targets_come_and_go)
{
    struct site s;
    struct lane lane[2];
    pthread_t thread[2];
    atomic_bool stop = false;
    uint64_t seed = 5;
    unsigned index;
    site_init(&s);
    s.config.breaker_open_ms = 10;
    stub_start(&s, &s.stub[0], "127.0.0.1:0");
    stub_start(&s, &s.stub[1], "127.0.0.1:0");
    gw_fleet_start(s.fleet);
    for (unsigned i = 0; i < 2; i++) {
        lane[i] = (struct lane){s.fleet, NULL, i + 1, &stop, 0};
        ASSERT_EQ(pthread_create(&thread[i], NULL, lane_run, &lane[i]), 0);
    }
    for (int i = 0; i < 60 || !lane[0].n_ok || !lane[1].n_ok; i++) {
        static const char *const names[] = {"%0 name=a models=m", "%0 name=b models=x,m",
                                            "%0 name=a models=x=m idle_timeout=4s",
                                            "%1 name=c models=*"};
        const char *v[2] = {names[test_rand(&seed) % 2], names[2 + test_rand(&seed) % 2]};
        bool same = strstr(v[0], "name=a") && strstr(v[1], "name=a");
        ASSERT_OK(set_upstreams(&s, v, test_rand(&seed) % (same ? 2 : 3)));
        ASSERT_OK(gw_fleet_add_worker(s.fleet, s.stub[1].address, false, &index));
        run_for(&s, 5);
        if (i % 3 == 0) gw_fleet_remove(s.fleet, index);
    }
    atomic_store(&stop, true);
    for (unsigned i = 0; i < 2; i++)
        ASSERT_EQ(pthread_join(thread[i], NULL), 0);
    for (size_t i = 0; i < s.fleet->n; i++)
        ASSERT_EQ(s.fleet->target[i]->n_inflight, 0);
    site_fini(&s);
}

TEST(out_of_memory)
{
    for (unsigned n = 1;; n++) {
        struct site s;
        ASSERT_TRUE(n < 2000);
        site_init(&s);
        stub_start(&s, &s.stub[0], "127.0.0.1:0");
        ASSERT_OK(SET_UPSTREAMS(&s, "%0 name=a models=m health=off"));
        char *v[] = {"http://127.0.0.1:1 name=a models=n,o=p health=off",
                     "http://127.0.0.1:2 name=b"};
        struct gw_upstreams *l;
        s.config.upstreams = (struct gw_strs){v, 2};
        ASSERT_OK(gw_upstreams_parse(&s.config, false, &l, NULL));
        mem_fail_nth(n);
        int r = gw_fleet_set_upstreams(s.fleet, l, NULL);
        bool fired = mem_fail_fired();
        mem_fail_nth(0);
        ASSERT_TRUE(r == 0 || (fired && r == -ENOMEM));
        ASSERT_EQ(how(&s, r == 0 ? "n" : "m"), GW_PICK_OK); /* all of it or nothing */
        site_fini(&s);
        if (!fired) break;
    }
}
