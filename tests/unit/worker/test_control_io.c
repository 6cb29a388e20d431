/* Decisions as JSON: what is read is what was written, and deciding again finds any difference. */
#include "tests/test.h"
#include "worker/reuse/control_io.h"

#include <stdio.h>

static double share(uint64_t *seed)
{
    return (double)(test_rand(seed) % 1000003) / 1000003;
}

/* Any snapshot at all, with prices and speeds over many orders of magnitude. */
static struct ctl_decision *any_decision(uint64_t *seed)
{
    size_t n = test_rand(seed) % 12;
    struct ctl_decision *d = ctl_decision_create(n);
    struct pol_control_in *in = &d->in;
    uint32_t at = 64;

    ASSERT_TRUE(d);
    in->L = 2 + (unsigned)(test_rand(seed) % 40);
    in->check_layer = 1;
    in->score_lo = in->L / 3;
    in->score_hi = in->L;
    in->side_layer = in->L / 2;
    in->n_prefix = test_rand(seed) % 2 ? 64 : 0;
    in->prefix_tier = in->n_prefix ? 0 : -1;
    in->n_tier = 3;
    for (size_t i = 0; i < in->n_tier; i++) {
        in->tier[i] = (struct pol_tier_now){.bytes_per_s = 1e6 + share(seed) * 1e10,
                                            .first_s = share(seed) / 100,
                                            .queue_s = share(seed) / 10,
                                            .by_record = i == 2};
        (void)snprintf(d->tier_name[i], sizeof d->tier_name[i], "tier%u", (unsigned)i % 10);
    }
    for (size_t i = 0; i < n; i++) {
        d->chunk[i] = (struct pol_chunk_now){.tok0 = at,
                                             .n = 16 + (uint32_t)(test_rand(seed) % 600),
                                             .tier = (int)(test_rand(seed) % 4) - 1,
                                             .bytes = test_rand(seed) % (1u << 26),
                                             .side = test_rand(seed) % 2};
        at += d->chunk[i].n;
    }
    in->n_suffix = 1 + (uint32_t)(test_rand(seed) % 64);
    in->n_tok = at + in->n_suffix;
    in->cost = (struct pol_cost){share(seed) / 100, share(seed) / 1e4, share(seed) / 1e5,
                                 share(seed) / 1e6, share(seed) / 1e9, share(seed) / 1e7,
                                 share(seed) / 1e9, share(seed) / 1e3, 0};
    for (int s = POL_FULL; s < POL_STRATEGY_COUNT; s++)
        in->strat[s] = (struct pol_strat_now){test_rand(seed) % 2, share(seed)};
    in->ratio_max = 1;
    in->max_ttft_s = test_rand(seed) % 2 ? share(seed) : 0;
    (void)snprintf(d->id, sizeof d->id, "id-%llu", (unsigned long long)test_rand(seed));
    d->t = share(seed) * 1e9;
    d->by = CTL_BY_CONTROLLER;
    d->measured.prefill_s = share(seed);
    pol_control(in, &d->out, d->reuse);
    return d;
}

static struct ctl_decision *through_text(const struct ctl_decision *d)
{
    json_t *o = ctl_decision_json(d, true);
    struct ctl_decision *back = NULL;
    struct buf text = BUF_INIT;
    struct err e = {0};

    ASSERT_OK(ctl_json_put(o, 17, &text));
    json_decref(o);
    o = json_loads(buf_cstr(&text), 0, NULL);
    ASSERT_TRUE(o);
    if (ctl_decision_parse(o, &back, &e) < 0) test_fail(__FILE__, __LINE__, "%s", e.msg);
    json_decref(o);
    buf_fini(&text);
    return back;
}

TEST(what_is_read_is_what_was_written)
{
    uint64_t seed = 11;
    char why[160];

    for (int round = 0; round < 300; round++) {
        struct ctl_decision *d = any_decision(&seed), *back = through_text(d);
        ASSERT_STREQ(back->id, d->id);
        ASSERT_EQ(back->in.n_chunk, d->in.n_chunk);
        ASSERT_EQ(memcmp(&back->in.cost, &d->in.cost, sizeof d->in.cost), 0);
        ASSERT_EQ(memcmp(back->in.strat, d->in.strat, sizeof d->in.strat), 0);
        ASSERT_EQ(memcmp(back->reuse, d->reuse, d->in.n_chunk), 0);
        ASSERT_EQ(back->measured.prefill_s == d->measured.prefill_s, true);
        ASSERT_STREQ(back->tier_name[2], "tier2");
        if (ctl_decision_replay(back, why) != 1) test_fail(__FILE__, __LINE__, "%s", why);
        ctl_decision_free(back);
        ctl_decision_free(d);
    }
}

TEST(any_other_outcome_is_a_difference)
{
    uint64_t seed = 12;
    char why[160];

    for (int round = 0; round < 100; round++) {
        struct ctl_decision *d = any_decision(&seed);
        struct ctl_decision *other = ctl_decision_copy(d);
        ASSERT_TRUE(other);
        switch (round % 4) {
        case 0:
            other->out.ratio += 1e-15 + other->out.ratio * 1e-15;
            break;
        case 1:
            other->out.predicted.ttft_s *= 1 + 1e-15;
            break;
        case 2:
            other->out.strategy = d->out.strategy == POL_SINK ? POL_HKVD : POL_SINK;
            break;
        default:
            other->out.n_reused++;
        }
        ASSERT_EQ(ctl_decision_replay(other, why), 0);
        ASSERT_TRUE(*why);
        other->by = CTL_BY_RULES; /* no decision of the controller's */
        ASSERT_EQ(ctl_decision_replay(other, why), 1);
        ctl_decision_free(other);
        ctl_decision_free(d);
    }
}

TEST(damaged_lines_are_refused)
{
    static const char *const bad[] = {
        "{}", "[]", "{\"v\":2}", "{\"v\":1}", "{\"v\":1,\"in\":{\"chunks\":[{}]}}", "7"};
    uint64_t seed = 13;
    struct ctl_decision *d = any_decision(&seed), *back = NULL;
    struct err e = {0};

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        json_t *o = json_loads(bad[i], JSON_DECODE_ANY, NULL);
        ASSERT_ERR(ctl_decision_parse(o, &back, &e), -EINVAL);
        ASSERT_TRUE(e.msg[0]);
        json_decref(o);
    }
    json_t *o = ctl_decision_json(d, false);
    json_object_set_new(json_object_get(o, "in"), "prefix_tier", json_integer(3));
    ASSERT_ERR(ctl_decision_parse(o, &back, &e), -EINVAL); /* there are three: 0, 1, 2 */
    json_decref(o);
    ctl_decision_free(d);
    ASSERT_TRUE(!back);
}
