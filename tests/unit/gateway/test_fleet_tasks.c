/* Workers of several models: a request that names none goes by what they say that they are for. */
#include "base/buf.h"
#include "base/net/http.h"
#include "gateway/fleet/fleet_int.h"
#include "gateway/process/config.h"
#include "tests/test.h"

struct site {
    struct http_loop *loop;
    struct gw_config config;
    struct gw_fleet *fleet;
};

static void ignore(void *ctx)
{
}
static void ignore_silence(void *ctx, unsigned index, uint64_t silent_ms)
{
}

static void site_init(struct site *s)
{
    static const struct gw_fleet_ops ops = {ignore, ignore, ignore, ignore_silence, NULL};
    *s = (struct site){0};
    ASSERT_OK(http_loop_create(&s->loop));
    ASSERT_OK(gw_fleet_create(s->loop, &s->config, NULL, &ops, NULL, &s->fleet));
    gw_fleet_mix(s->fleet);
}

static void site_fini(struct site *s)
{
    gw_fleet_destroy(s->fleet);
    http_loop_destroy(s->loop);
}

/* One that is ready, and lists a model. */
static unsigned add_worker(struct site *s, const char *model, const char *about)
{
    struct buf list = BUF_INIT;
    unsigned i;
    ASSERT_OK(buf_addf(&list, "{\"data\":[{\"id\":\"%s\"%s}]}", model, about));
    ASSERT_EQ(gw_fleet_add_worker(s->fleet, model, true, &i), 0);
    ASSERT_OK(fleet_models_read(s->fleet, s->fleet->target[i], &list));
    s->fleet->target[i]->health.state = GW_TARGET_READY;
    buf_fini(&list);
    return i;
}

/* The index of the worker that gets it; -1: none. */
static int who(struct site *s, const char *model, enum gw_task task)
{
    struct gw_want w = {.model = model, .task = task};
    struct gw_lease l = {0};
    if (gw_fleet_pick(s->fleet, &w, &l, NULL) != GW_PICK_OK) return -1;
    const int index = (int)l.index;
    gw_fleet_release(s->fleet, &l, GW_DONE_OK, 0);
    return index;
}

#define CHAT ",\"task\":\"generate\",\"tasks\":[\"generate\",7,\"unknown\",\"rerank\"]"
#define RANKS ",\"task\":\"rerank\",\"tasks\":[\"rerank\",\"generate\"]"

TEST(unnamed_requests_go_by_their_task)
{
    static const char *const unnamed[] = {NULL, "default"};
    struct site s;
    site_init(&s);
    const int chat = (int)add_worker(&s, "unix:/chat", CHAT);
    const int ranks = (int)add_worker(&s, "unix:/ranks", RANKS);
    ASSERT_EQ(who(&s, NULL, GW_EMBED), -1);
    ASSERT_TRUE(who(&s, "default", GW_EMBED) >= 0); /* it says why not */
    const int embeds = (int)add_worker(&s, "unix:/embeds", ",\"task\":\"embed\"");
    for (int i = 0; i < 10; i++) {
        ASSERT_EQ(who(&s, unnamed[i % 2], GW_GENERATE), chat);
        ASSERT_EQ(who(&s, unnamed[i % 2], GW_RERANK), ranks);
        ASSERT_EQ(who(&s, unnamed[i % 2], GW_EMBED), embeds);
    }
    ASSERT_EQ(who(&s, "unix:/ranks", GW_GENERATE), ranks); /* a name is a name */
    ASSERT_EQ(who(&s, "unix:/chat", GW_RERANK), chat);
    ASSERT_EQ(who(&s, "unix:/chat", GW_EMBED), chat);
    gw_fleet_remove(s.fleet, (unsigned)ranks); /* the next best */
    ASSERT_EQ(who(&s, NULL, GW_RERANK), chat);
    gw_fleet_remove(s.fleet, (unsigned)chat);
    ASSERT_EQ(who(&s, NULL, GW_RERANK), embeds); /* alone it says why not */
    site_fini(&s);
}

/* Workers of before say nothing of it, or only what they are made for. */
TEST(what_was_not_said_hinders_nothing)
{
    struct site s;
    site_init(&s);
    const int silent = (int)add_worker(&s, "unix:/silent", "");
    for (enum gw_task t = GW_GENERATE; t <= GW_RERANK; t *= 2)
        ASSERT_EQ(who(&s, NULL, t), silent);
    const int embeds = (int)add_worker(&s, "unix:/embeds", ",\"task\":\"embed\",\"tasks\":7");
    const int odd = (int)add_worker(&s, "unix:/odd", ",\"task\":[\"embed\"]");
    for (int i = 0; i < 10; i++) {
        const int who_embeds = who(&s, NULL, GW_EMBED), who_chats = who(&s, NULL, GW_GENERATE);
        ASSERT_TRUE(who_embeds == embeds || who_embeds == silent || who_embeds == odd);
        ASSERT_TRUE(who_chats == silent || who_chats == odd);
    }
    site_fini(&s);
}
