/* Decisions as JSON: what is read is what was. */
#include "tests/test.h"
#include "worker/reuse/decision.h"

#include <math.h>
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
    in->cost = (struct pol_cost){.price = {share(seed) / 100, share(seed) / 1e4, share(seed) / 1e5,
                                           share(seed) / 1e6, share(seed) / 1e9, share(seed) / 1e7,
                                           share(seed) / 1e9, share(seed) / 1e3}};
    for (int s = POL_FULL; s < POL_STRATEGY_COUNT; s++)
        in->strat[s] = (struct pol_strat_now){test_rand(seed) % 2, share(seed)};
    in->ratio_max = 1;
    in->max_ttft_s = test_rand(seed) % 2 ? share(seed) : 0;
    (void)snprintf(d->id, sizeof d->id, "id-%llu", (unsigned long long)test_rand(seed));
    d->t = share(seed) * 1e9;
    d->by = CTL_BY_CONTROLLER;
    d->measured.prefill_s = share(seed);
    d->measured.load[1] = (struct ctl_load){-share(seed), share(seed), test_rand(seed), 3};
    d->measured.step[0] = (struct ctl_step){"embed", 0, 0, 0, share(seed), share(seed)};
    d->measured.step[1] = (struct ctl_step){"layers", 4, 8, 1, 2, share(seed)};
    d->measured.n_step = 2;
    pol_control(in, &d->out, d->reuse);
    return d;
}

static double number(const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);
    if (!json_is_number(v)) test_fail(__FILE__, __LINE__, "no number \"%s\"", name);
    return json_number_value(v);
}

TEST(what_is_read_is_what_was)
{
    uint64_t seed = 11;

    for (int round = 0; round < 300; round++) {
        struct ctl_decision *d = any_decision(&seed);
        struct buf text = BUF_INIT;
        json_t *written = ctl_decision_json(d, true);
        ASSERT_OK(ctl_json_put(written, 17, &text));
        json_t *o = json_loads(buf_cstr(&text), 0, NULL);
        ASSERT_TRUE(o && json_equal(o, written));
        const json_t *in = json_object_get(o, "in"), *cost = json_object_get(in, "cost");
        const json_t *out = json_object_get(o, "out"), *measured = json_object_get(o, "measured");
        ASSERT_STREQ(json_string_value(json_object_get(o, "id")), d->id);
        ASSERT_EQ(number(o, "v") == 2 && number(o, "t") == d->t, true);
        ASSERT_EQ(number(cost, "pair_s") == d->in.cost.pair_s, true);
        ASSERT_EQ(number(cost, "head_s") == d->in.cost.head_s, true);
        ASSERT_EQ(number(in, "n_suffix") == d->in.n_suffix, true);
        ASSERT_EQ(number(json_object_get(out, "predicted"), "ttft_s") == d->out.predicted.ttft_s,
                  true);
        ASSERT_EQ(number(measured, "prefill_s") == d->measured.prefill_s, true);
        const json_t *loads = json_object_get(measured, "loads"), *load = json_array_get(loads, 0);
        ASSERT_STREQ(json_string_value(json_object_get(load, "tier")), "tier1");
        ASSERT_TRUE(json_array_size(loads) == 1 && number(load, "records") == 3 &&
                    number(load, "begin_s") == d->measured.load[1].begin_s);
        const json_t *steps = json_object_get(measured, "steps");
        const json_t *layers = json_array_get(steps, 1);
        ASSERT_TRUE(json_array_size(steps) == 2 &&
                    number(layers, "compute_s") == d->measured.step[1].compute_s &&
                    !json_object_get(json_array_get(steps, 0), "layers"));
        ASSERT_EQ(json_integer_value(json_array_get(json_object_get(layers, "layers"), 1)), 7);
        const json_t *chunks = json_object_get(in, "chunks"), *tiers = json_object_get(in, "tiers");
        ASSERT_EQ(json_array_size(chunks), d->in.n_chunk);
        for (size_t i = 0; i < d->in.n_chunk; i++) {
            const json_t *c = json_array_get(chunks, i);
            ASSERT_EQ(json_is_true(json_object_get(c, "reuse")), d->reuse[i]);
            ASSERT_EQ(number(c, "bytes") == (double)d->chunk[i].bytes, true);
        }
        ASSERT_STREQ(json_string_value(json_object_get(json_array_get(tiers, 2), "name")), "tier2");
        ASSERT_EQ(json_object_size(json_object_get(in, "strategies")), POL_STRATEGY_COUNT);
        ASSERT_TRUE(json_array_size(json_object_get(o, "alternatives")) > 0);
        json_decref(o);
        json_decref(written);
        buf_fini(&text);
        ctl_decision_free(d);
    }
}

/* A number that JSON has not is left out, and the rest is there. */
TEST(no_number_is_no_field)
{
    uint64_t seed = 12;
    struct ctl_decision *d = any_decision(&seed);
    d->out.predicted.load_s = INFINITY;
    json_t *o = ctl_decision_json(d, false);
    const json_t *p = json_object_get(json_object_get(o, "out"), "predicted");
    ASSERT_TRUE(!json_object_get(p, "load_s") && json_object_get(p, "ttft_s"));
    ASSERT_TRUE(!json_object_get(o, "alternatives"));
    json_decref(o);
    ctl_decision_free(d);
}
