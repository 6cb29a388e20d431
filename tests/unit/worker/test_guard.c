/* The guard's rules for requests, its answers and metrics; shadows themselves run in tests/e2e. */
#include "base/metric.h"
#include "tests/test.h"
#include "worker/admin/metrics.h"
#include "worker/quality/guard.h"
#include "worker/opts_table.h"
#include "worker/quality/contexts.h"
#include "worker/worker.h"

#include <jansson.h>

static void open_worker(struct worker *w, double kl_max)
{
    *w = (struct worker){.blend_ok = true};
    w->o =
        (struct wk_opts){.strategy = POL_QS, .ratio = 0.15, .guard_sample = 1, .guard_kl = kl_max};
    wk_queue_init(&w->queue);
    ASSERT_OK(http_loop_create(&w->loop));
    ASSERT_OK(wk_guard_create(w));
}

static void close_worker(struct worker *w)
{
    wk_guard_destroy(w);
    http_loop_destroy(w->loop);
    wk_queue_fini(&w->queue);
}

static json_t *quality(struct worker *w)
{
    struct buf b = BUF_INIT;
    wk_guard_put_quality(w, &b);
    ASSERT_OK(buf_status(&b));
    json_t *root = json_loads(buf_cstr(&b), 0, NULL);
    if (!root) test_fail(__FILE__, __LINE__, "no JSON: %s", buf_cstr(&b));
    buf_fini(&b);
    return root;
}

TEST(nothing_is_ruled_before_there_is_evidence)
{
    struct worker w;
    struct pol_guard_setting s;
    const struct api_settings m = {.strategy = POL_AUTO, .mode = POL_AUTO, .ratio = -1};
    struct buf b = BUF_INIT;
    open_worker(&w, 0.1);
    ASSERT_EQ(wk_guard_rules(&w, &m, &s), 0);
    json_t *q = quality(&w);
    ASSERT_TRUE(json_is_null(json_object_get(q, "now")));
    ASSERT_EQ(json_integer_value(json_object_get(q, "alarms")), 0);
    json_decref(q);
    const struct wk_prompt p = {0};
    wk_guard_put_note(&w, &p, &b);
    ASSERT_OK(buf_status(&b));
    ASSERT_EQ(b.len, 0);
    close_worker(&w);
    ASSERT_EQ(wk_guard_rules(&w, &m, &s), 0); /* no guard at all */
}

TEST(a_note_says_what_was_done_and_why)
{
    struct worker w;
    struct buf b = BUF_INIT;
    const struct wk_prompt p = {.guard_level = 1};
    open_worker(&w, 0.1);
    wk_guard_put_note(&w, &p, &b);
    ASSERT_OK(buf_status(&b));
    ASSERT_TRUE(strstr(buf_cstr(&b), ",\"guard\":{\"level\":1,\"action\":\"") == buf_cstr(&b));
    ASSERT_TRUE(b.data[b.len - 1] == '}');
    buf_fini(&b);
    close_worker(&w);
}

TEST(states_have_names)
{
    struct wk_guard_view v = {0};
    ASSERT_STREQ(wk_guard_state_name(&v), "off");
    v.on = true;
    ASSERT_STREQ(wk_guard_state_name(&v), "normal");
    v.g.level = 1;
    ASSERT_STREQ(wk_guard_state_name(&v), "raised");
    v.setting.exact = true;
    ASSERT_STREQ(wk_guard_state_name(&v), "exact");
}

TEST(what_is_left_uncomputed_is_a_metric)
{
    struct buf b = BUF_INIT;
    const struct fus_report r = {.score_left = 0.25, .deviation_left = -1};
    wk_metrics_init();
    wk_metrics_report(&r);
    ASSERT_OK(metric_render(&b));
    ASSERT_TRUE(strstr(buf_cstr(&b), "kvblend_score_left_sum 0.25") != NULL);
    ASSERT_TRUE(strstr(buf_cstr(&b), "kvblend_deviation_left_count 0") != NULL);
    buf_fini(&b);
}

/* Records are merged for strategies that reuse them, and one waits once. */
TEST(contexts_are_wanted_where_records_are_reused)
{
    static const enum pol_strategy strategies[] = {POL_QS, POL_HKVD, POL_PREFIX};
    const int32_t tok[3] = {5, 6, 7};
    const struct wk_context_wish short_of = {{1, 2}, "a", tok, 3, 0},
                                 rich = {{1, 3}, "a", tok, 3, 5000},
                                 off = {{1, 4}, "off\x1fin", tok, 3, 0};
    struct wk_limits none = {.ns = "off", .contexts_off = true};

    for (size_t i = 0; i < 3; i++) {
        struct wk_contexts_stats s;
        struct worker w;
        open_worker(&w, 0.1);
        w.o.strategy = strategies[i];
        w.o.tiers.limits = &none;
        w.o.tiers.n_limits = 1;
        w.profile.contexts = 2;
        w.profile.context_tokens = 1200;
        ASSERT_OK(wk_contexts_create(&w));
        wk_contexts_want(&w, &short_of);
        wk_contexts_want(&w, &short_of);
        wk_contexts_want(&w, &rich);
        wk_contexts_want(&w, &off);
        wk_contexts_get_stats(&w, &s);
        ASSERT_EQ(s.n_pending, strategies[i] != POL_PREFIX);
        ASSERT_EQ(s.n_merged + s.n_failed, 0);
        wk_contexts_destroy(&w);
        w.o.tiers.n_limits = 0;
        close_worker(&w);
    }
}
