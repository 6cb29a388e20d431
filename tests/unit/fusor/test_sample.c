/* The sampler: order of operations, truncation, penalties, determinism, logprobs. */
#include "fusor/core/sample.h"

#include "base/mem.h"
#include "tests/test.h"

#include <errno.h>

enum { V = 1000 };
static const struct fus_chances all;

static struct fus_sampling defaults(void)
{
    return (struct fus_sampling){.temperature = 1, .top_p = 1, .repetition = 1, .n_logprobs = -1};
}

static struct fus_sampler *make(const struct fus_sampling *p, size_t n)
{
    struct fus_sampler *s = NULL;
    ASSERT_OK(fus_sampler_create(p, n, &s));
    return s;
}

static int32_t pick(struct fus_sampler *s, const float *logits, size_t n)
{
    float copy[V];
    struct fus_picked got;
    memcpy(copy, logits, n * sizeof(*copy));
    ASSERT_OK(fus_sampler_pick(s, copy, &all, &got));
    return got.id;
}

static void random_logits(uint64_t seed, float *l)
{
    for (size_t i = 0; i < V; i++)
        l[i] = (float)((double)(test_rand(&seed) >> 40) * 0x1p-24 * 12 - 6);
}

TEST(greedy_takes_the_lower_id_of_a_tie)
{
    struct fus_sampling p = defaults();
    p.temperature = 0;
    struct fus_sampler *s = make(&p, 5);
    const float l[5] = {1, 3, 2, 3, -1};
    ASSERT_EQ(pick(s, l, 5), 1);
    fus_sampler_destroy(s);
}

TEST(bias_and_bans_come_first)
{
    const struct fus_bias bias[] = {{4, 100}};
    struct fus_sampling p = defaults();
    p.temperature = 0;
    p.bias = bias;
    p.n_bias = 1;
    struct fus_sampler *s = make(&p, 5);
    float l[5] = {1, 3, 2, 3, -1};
    ASSERT_EQ(pick(s, l, 5), 4);
    const int32_t banned[] = {4, 1, 77, -1};
    const struct fus_chances c = {.banned = banned, .n_banned = 4};
    struct fus_picked got;
    ASSERT_OK(fus_sampler_pick(s, l, &c, &got));
    ASSERT_EQ(got.id, 3);
    fus_sampler_destroy(s);
}

/* Also of the last word, which has room for more ids than there are. */
TEST(only_what_is_allowed_has_a_chance)
{
    struct fus_sampling p = defaults();
    p.n_logprobs = 5;
    struct fus_sampler *s = make(&p, 70);
    const uint64_t allowed[] = {1u << 3, 1u << 5};
    const struct fus_chances c = {.allowed = allowed};
    struct fus_picked got;
    int n[70] = {0};
    for (int i = 0; i < 200; i++) {
        float l[70] = {[7] = 50, [3] = 1, [69] = 1};
        ASSERT_OK(fus_sampler_pick(s, l, &c, &got));
        n[got.id]++;
        ASSERT_EQ(got.n_top, 2); /* and no more: the others' probability is nought */
        ASSERT_NEAR(got.logprob, logf(0.5f), 1e-5);
    }
    ASSERT_EQ(n[3] + n[69], 200);
    ASSERT_TRUE(n[3] > 60 && n[69] > 60);
    const uint64_t nothing[2] = {0};
    float l[70] = {1};
    ASSERT_ERR(fus_sampler_pick(s, l, &(struct fus_chances){.allowed = nothing}, &got), -EBADMSG);
    fus_sampler_destroy(s);
}

/* Words of all densities: the best of what is allowed is chosen. */
TEST(the_best_that_is_allowed)
{
    struct fus_sampling p = defaults();
    p.temperature = 0;
    struct fus_sampler *s = make(&p, V);
    uint64_t seed = 3;
    for (int round = 0; round < 200; round++) {
        uint64_t allowed[(V + 63) / 64];
        struct fus_picked got;
        float l[V];
        int best = -1;
        for (int w = 0; w < (V + 63) / 64; w++) {
            allowed[w] = test_rand(&seed);
            for (int k = 0; k < round % 7; k++)
                allowed[w] &= test_rand(&seed);
            if (round % 2) allowed[w] = ~allowed[w];
        }
        for (int i = 0; i < V; i++) {
            l[i] = (float)(test_rand(&seed) % 100000);
            if (allowed[i / 64] >> (i % 64) & 1 && (best < 0 || l[i] > l[best])) best = i;
        }
        const int r = fus_sampler_pick(s, l, &(struct fus_chances){.allowed = allowed}, &got);
        ASSERT_EQ(r, best < 0 ? -EBADMSG : 0);
        if (best >= 0) ASSERT_EQ(got.id, best);
    }
    fus_sampler_destroy(s);
}

TEST(penalties_follow_what_was_seen)
{
    struct fus_sampling p = defaults();
    p.temperature = 0;
    p.frequency = 0.6f;
    p.presence = 0.5f;
    struct fus_sampler *s = make(&p, 3);
    const float l[3] = {2, 1, 0.5f};
    fus_sampler_see(s, 0, true); /* the prompt does not count for these two */
    ASSERT_EQ(pick(s, l, 3), 0);
    fus_sampler_see(s, 0, false); /* 2 - 0.5 - 0.6 = 0.9 < 1 */
    ASSERT_EQ(pick(s, l, 3), 1);
    fus_sampler_destroy(s);
    p = defaults();
    p.temperature = 0;
    p.repetition = 3;
    s = make(&p, 3);
    fus_sampler_see(s, 0, true);
    ASSERT_EQ(pick(s, l, 3), 1);
    const float neg[3] = {-1, -2, -5};
    ASSERT_EQ(pick(s, neg, 3), 1); /* -1 * 3 = -3 < -2 */
    fus_sampler_destroy(s);
}

TEST(same_seed_same_tokens)
{
    float l[V];
    random_logits(1, l);
    struct fus_sampling p = defaults();
    p.seed = 42;
    struct fus_sampler *a = make(&p, V), *b = make(&p, V);
    p.seed = 43;
    struct fus_sampler *c = make(&p, V);
    int same = 0;
    for (int i = 0; i < 200; i++) {
        const int32_t x = pick(a, l, V);
        ASSERT_EQ(x, pick(b, l, V));
        same += x == pick(c, l, V);
    }
    ASSERT_TRUE(same < 50);
    fus_sampler_destroy(a);
    fus_sampler_destroy(b);
    fus_sampler_destroy(c);
}

TEST(frequencies_follow_the_distribution)
{
    const float l[4] = {0, (float)1.0986122886681098, -INFINITY, 0}; /* 1 : 3 : 0 : 1 */
    struct fus_sampling p = defaults();
    for (int mode = 0; mode < 2; mode++) {
        p.top_k = mode ? 4 : 0; /* a top-k of everything takes the other path */
        p.min_p = mode ? 0.01f : 0;
        struct fus_sampler *s = make(&p, 4);
        int n[4] = {0};
        for (int i = 0; i < 20000; i++)
            n[pick(s, l, 4)]++;
        ASSERT_NEAR(n[0], 4000, 250);
        ASSERT_NEAR(n[1], 12000, 300);
        ASSERT_EQ(n[2], 0);
        fus_sampler_destroy(s);
    }
}

static int by_prob(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

/* The smallest logit that top-k, then top-p, then min-p leave, from the definitions. */
static float threshold(const float *l, size_t k, double top_p, double min_p, double temp)
{
    float sorted[V];
    memcpy(sorted, l, sizeof(sorted));
    qsort(sorted, V, sizeof(*sorted), by_prob);
    if (k == 0 || k > V) k = V;
    double sum = 0, at = 0;
    for (size_t i = 0; i < k; i++)
        sum += exp(((double)sorted[i] - (double)sorted[0]) / temp);
    size_t n = 0;
    while (n < k && (n == 0 || at < top_p * sum))
        at += exp(((double)sorted[n++] - (double)sorted[0]) / temp);
    while (n > 1 && exp(((double)sorted[n - 1] - (double)sorted[0]) / temp) < min_p)
        n--;
    return sorted[n - 1];
}

TEST(truncation_keeps_exactly_the_right_tokens)
{
    const struct {
        int32_t k;
        float p, min, t;
    } cases[] = {{5, 1, 0, 1},      {0, 0.5f, 0, 1},        {0, 0.9f, 0, 0.5f}, {0, 1, 0.2f, 1},
                 {20, 0.6f, 0, 2},  {50, 0.9f, 0.3f, 1.5f}, {1, 1, 0, 1},       {-1, 0, 0, 1},
                 {0, 0.999f, 0, 4}, {2000, 0.3f, 0, 1}};
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        float l[V];
        random_logits(c + 1, l);
        struct fus_sampling p = defaults();
        p.top_k = cases[c].k;
        p.top_p = cases[c].p;
        p.min_p = cases[c].min;
        p.temperature = cases[c].t;
        struct fus_sampler *s = make(&p, V);
        const float min = threshold(l, cases[c].k > 0 ? (size_t)cases[c].k : 0, (double)cases[c].p,
                                    (double)cases[c].min, (double)cases[c].t);
        size_t allowed = 0, n_seen = 0;
        bool seen[V] = {0};
        for (size_t i = 0; i < V; i++)
            allowed += l[i] >= min;
        for (int i = 0; i < 4000; i++) {
            const int32_t id = pick(s, l, V);
            ASSERT_TRUE(l[id] >= min);
            n_seen += !seen[id];
            seen[id] = true;
        }
        if (allowed <= 50) ASSERT_EQ(n_seen, allowed);
        fus_sampler_destroy(s);
    }
}

TEST(logprobs_are_of_the_untruncated_distribution)
{
    float l[V], copy[V];
    random_logits(3, l);
    struct fus_sampling p = defaults();
    p.temperature = 0.3f;
    p.top_k = 1;
    p.n_logprobs = 5;
    struct fus_sampler *s = make(&p, V);
    struct fus_picked got;
    memcpy(copy, l, sizeof(l));
    ASSERT_OK(fus_sampler_pick(s, copy, &all, &got));
    double sum = 0;
    for (size_t i = 0; i < V; i++)
        sum += exp((double)l[i]);
    ASSERT_NEAR(got.logprob, (double)l[got.id] - log(sum), 1e-4);
    ASSERT_EQ(got.n_top, 5);
    ASSERT_EQ(got.top_id[0], got.id);
    for (int i = 1; i < 5; i++)
        ASSERT_TRUE(got.top_logprob[i] <= got.top_logprob[i - 1]);
    ASSERT_NEAR(got.top_logprob[4], (double)l[got.top_id[4]] - log(sum), 1e-4);
    fus_sampler_destroy(s);
}

TEST(logprob_is_the_drawn_tokens)
{
    float l[V], copy[V];
    random_logits(4, l);
    struct fus_sampling p = defaults();
    p.temperature = 1.5f;
    p.n_logprobs = 1;
    struct fus_sampler *s = make(&p, V);
    double sum = 0;
    int n_other = 0;
    for (size_t i = 0; i < V; i++)
        sum += exp((double)l[i]);
    for (int i = 0; i < 50; i++) {
        struct fus_picked got;
        memcpy(copy, l, sizeof(l));
        ASSERT_OK(fus_sampler_pick(s, copy, &all, &got));
        ASSERT_NEAR(got.logprob, (double)l[got.id] - log(sum), 1e-4);
        ASSERT_NEAR(got.top_logprob[0], (double)l[got.top_id[0]] - log(sum), 1e-4);
        n_other += got.id != got.top_id[0];
    }
    ASSERT_TRUE(n_other > 5);
    fus_sampler_destroy(s);
}

TEST(bad_settings_and_logits_are_refused)
{
    struct fus_sampler *s = NULL;
    for (int i = 0; i < 6; i++) {
        struct fus_sampling p = defaults();
        const struct fus_bias bias = {V, 1};
        if (i == 0) p.temperature = -1;
        if (i == 1) p.top_p = 1.5f;
        if (i == 2) p.min_p = NAN;
        if (i == 3) p.repetition = 0;
        if (i == 4) p.n_logprobs = FUS_LOGPROBS_MAX + 1;
        if (i == 5) {
            p.bias = &bias;
            p.n_bias = 1;
        }
        ASSERT_ERR(fus_sampler_create(&p, V, &s), -EINVAL);
    }
    struct fus_sampling p = defaults();
    s = make(&p, 3);
    float l[3] = {NAN, NAN, -INFINITY};
    struct fus_picked got;
    ASSERT_ERR(fus_sampler_pick(s, l, &all, &got), -EBADMSG);
    float m[3] = {NAN, 1, -INFINITY};
    ASSERT_OK(fus_sampler_pick(s, m, &all, &got));
    ASSERT_EQ(got.id, 1);
    fus_sampler_destroy(s);
}

TEST(creation_survives_any_failed_allocation)
{
    struct fus_sampling p = defaults();
    p.frequency = 1;
    for (unsigned n = 1, done = 0; !done; n++) {
        struct fus_sampler *s = NULL;
        mem_fail_nth(n);
        int r = fus_sampler_create(&p, V, &s);
        done = !mem_fail_fired();
        mem_fail_nth(0);
        ASSERT_EQ(r, done ? 0 : -ENOMEM);
        fus_sampler_destroy(s);
    }
}

TEST(kl_of_two_rows)
{
    const float p[4] = {0, 1, 2, -INFINITY}, same[4] = {5, 6, 7, -INFINITY};
    const float q[4] = {2, 1, 0, 0}, nan_[4] = {NAN, 1, 0, 0};
    double z_p = 1 + exp(1) + exp(2), z_q = exp(2) + exp(1) + 2, want = 0;
    bool agree = false;
    ASSERT_NEAR(fus_kl(p, same, 4, &agree), 0, 1e-12);
    ASSERT_TRUE(agree);
    for (int i = 0; i < 3; i++)
        want += exp((double)p[i]) / z_p * log(exp((double)p[i]) / z_p / (exp((double)q[i]) / z_q));
    ASSERT_NEAR(fus_kl(p, q, 4, &agree), want, 1e-12);
    ASSERT_TRUE(!agree);
    ASSERT_TRUE(isnan(fus_kl(p, nan_, 4, &agree)));
    /* Large logits neither overflow nor lose the difference. */
    const float big[2] = {1000, 990}, flat[2] = {1000, 1000};
    ASSERT_NEAR(fus_kl(big, flat, 2, &agree), log(2), 1e-3);
}
