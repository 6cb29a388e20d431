/* kn_gated() against its three operations, bit for bit, and the invariance of its rows. */
#include "tests/unit/kernels/kern.h"

struct gated {
    struct kn_dev *dev;
    struct kn_mat *up, *down;
    size_t D, F;
    const float *a, *up_bias, *down_bias; /* a: [M_MAX, D] */
    enum kn_act act;
    bool accumulate, apart;
    float *c; /* [m, D] */
};

enum { M_MAX = 513 };

static int run_rows(struct kn_stream *st, void *arg, size_t row0, size_t m)
{
    const struct gated *g = arg;
    const size_t D = g->D, F = g->F;
    float *gate_up = kn_product(st, 0, m, g->up), *mid = kn_operand(st, 1, m, g->down);
    if (!gate_up || !mid) return -ENOMEM;
    const struct kn_gemm_args up = {.a = g->a + row0 * D,
                                    .lda = D,
                                    .m = m,
                                    .w = g->up,
                                    .bias = g->up_bias,
                                    .c = gate_up,
                                    .ldc = 2 * F};
    const struct kn_gemm_args down = {.a = mid,
                                      .lda = F,
                                      .m = m,
                                      .w = g->down,
                                      .bias = g->down_bias,
                                      .c = g->c + row0 * D,
                                      .ldc = D,
                                      .accumulate = g->accumulate};
    if (!g->apart) return kn_gated(st, &up, g->act, &down);
    int r = kn_gemm(st, &up);
    if (r == 0) r = kn_glu(st, g->act, gate_up, 2 * F, m, F, mid, F);
    return r < 0 ? r : kn_gemm(st, &down);
}

/* The first m rows, from where c starts. */
static void run(struct gated *g, bool apart, bool wide, size_t m, float *c)
{
    float *was = kern_random(M_MAX * g->D, 4, 1);
    memcpy(c, was, M_MAX * g->D * sizeof *c);
    g->apart = apart, g->c = c;
    ASSERT_OK(kern_run(g->dev, wide, m, run_rows, g));
    ASSERT_MEMEQ(c + m * g->D, was + m * g->D, (M_MAX - m) * g->D * sizeof *c);
    free(was);
}

/* Of row counts on both sides of every way that products have, and of half tiles. Rows are those of
 * the longest run, too. */
static void same(struct gated *g, const size_t *ms, size_t n)
{
    float *all = malloc(M_MAX * g->D * sizeof *all);
    float *c[2] = {malloc(M_MAX * g->D * sizeof *all), malloc(M_MAX * g->D * sizeof *all)};
    run(g, true, false, M_MAX, all);
    for (size_t i = 0; i < 2 * n; i++) {
        const size_t m = ms[i / 2];
        run(g, true, i % 2, m, c[0]);
        run(g, false, i % 2, m, c[1]);
        ASSERT_MEMEQ(c[1], c[0], m * g->D * sizeof *all);
        if (kn_info(g->dev)->gemm_invariant) ASSERT_MEMEQ(c[1], all, m * g->D * sizeof *all);
    }
    free(all), free(c[0]), free(c[1]);
}

static const struct codes_form q4_0 = CODES_PLAIN(4, -8, false), q4_1 = CODES_PLAIN(4, 0, true),
                               q6_k = CODES_NESTED(8, 16, 0, false);

/* Gates and the other half of weights as f32 (no forms), or of these forms each. */
static void make(struct gated *g, const struct codes_form *const form[3])
{
    const size_t D = g->D, F = g->F;
    struct kn_mat *plain[2];
    if (!form[0]) {
        float *w = kern_random(2 * F * D, 2, 0.3f);
        g->up = kern_mat(g->dev, 2 * F, D, w);
        g->down = kern_mat(g->dev, D, F, w);
        free(w);
        return;
    }
    const struct kn_part up[2] = {{F, *form[0]}, {F, *form[1]}}, down = {D, *form[2]};
    ASSERT_OK(kn_mat_create(g->dev, 2 * F, D, &plain[0]));
    ASSERT_OK(kn_mat_create(g->dev, D, F, &plain[1]));
    ASSERT_OK(kn_mat_create_coded(g->dev, up, 2, D, false, &g->up));
    ASSERT_OK(kn_mat_create_coded(g->dev, &down, 1, F, false, &g->down));
    kern_fill_both(up, 2, D, 7, g->up, plain[0]);
    kern_fill_both(&down, 1, F, 8, g->down, plain[1]);
    kn_mat_destroy(plain[0]), kn_mat_destroy(plain[1]);
}

struct kind {
    const char *gemm;
    size_t D, F;
    const struct codes_form *form[3]; /* of gates, the other half, down; NULL: f32 */
    enum kn_act act;
    bool biases;
    size_t only; /* rows; 0: all counts */
};

static void on_device(struct kn_dev *d, const struct kind *k)
{
    static const size_t ms[] = {1, 16, 17, 64, 65, 80, 301, 512, M_MAX};
    struct gated g = {.dev = d, .D = k->D, .F = k->F, .act = k->act, .accumulate = !k->biases};
    g.a = kern_random(M_MAX * k->D, 1, 2);
    if (k->biases) {
        g.up_bias = kern_random(2 * k->F, 5, 1);
        g.down_bias = kern_random(k->D, 6, 1);
    }
    make(&g, k->form);
    same(&g, k->only ? &k->only : ms, k->only ? 1 : sizeof ms / sizeof *ms);
    kn_mat_destroy(g.up), kn_mat_destroy(g.down);
    free((float *)g.a);
    if (k->biases) free((float *)g.up_bias), free((float *)g.down_bias);
}

/* Of every instruction set, on one thread and on several. */
static void check(struct kind k)
{
    unsigned n_dev = 0;
    for (unsigned i = 0; i < KERN_ISAS; i++)
        for (unsigned threads = 1; threads <= 3; threads += 2) {
            struct kn_dev *d = kern_dev(i, threads, k.gemm);
            if (!d) continue;
            n_dev++;
            on_device(d, &k);
            kn_dev_destroy(d);
        }
    if (n_dev == 0) SKIP("this machine lacks the candidate");
}

TEST(f32_is_three_operations)
{
    check((struct kind){"own-f32", 96, 160});
}

/* Whole panels; half a step of k and biases. */
TEST(int8_is_three_operations)
{
    for (int act = 0; act < 2; act++)
        check((struct kind){"own-int8", act ? 80 : 96, 160, .act = act, .biases = act});
}

TEST(int8_of_widths_that_are_no_panels)
{
    check((struct kind){"own-int8", 65, 150});
}

/* Several parts of k, which some panels share. */
TEST(int8_of_long_rows)
{
    check((struct kind){"own-int8", 4160, 64, .only = 257});
}

TEST(int8_beside_codes)
{
    check((struct kind){"own-int8", 96, 96, {&q4_1, &q4_0, &q4_1}, .only = 65});
}

/* Whole panels, with each activation; and half a step of k. */
TEST(bf16_is_three_operations)
{
    for (int act = 0; act < KN_ACTS; act++)
        check((struct kind){"own-bf16", act % 2 ? 80 : 96, 160, .act = act, .biases = act % 2});
}

TEST(bf16_of_widths_that_are_no_panels)
{
    check((struct kind){"own-bf16", 65, 150});
}

/* Several pieces of k, which two groups of panels share. */
TEST(bf16_of_long_rows)
{
    check((struct kind){"own-bf16", 1400, 352, .biases = true, .only = 512});
}

/* Panels enough for long items and short ones, of as few rows as go by pairs. */
TEST(bf16_in_items_of_two_lengths)
{
    check((struct kind){"own-bf16", 256, 800, .only = 17});
}

TEST(codes_of_one_form)
{
    check((struct kind){"own-bf16", 96, 192, {&q4_1, &q4_1, &q4_1}});
}

TEST(codes_of_several_forms)
{
    check((struct kind){"own-bf16", 256, 192, {&q4_0, &q6_k, &q4_1}, .biases = true});
}

TEST(shapes_are_checked)
{
    struct kn_dev *d = kern_dev(0, 1, NULL);
    float *w = kern_random(64, 1, 1), *c = kern_random(64, 2, 1);
    struct gated g = {.dev = d, .a = w, .D = 4, .F = 8, .c = c};
    g.up = kern_mat(d, 16, 4, w);
    g.down = kern_mat(d, 4, 8, w);
    ASSERT_OK(kern_run(d, false, 2, run_rows, &g));
    g.F = 7;
    ASSERT_ERR(kern_run(d, false, 2, run_rows, &g), -EINVAL);
    g.F = 9;
    ASSERT_ERR(kern_run(d, false, 2, run_rows, &g), -EINVAL);
    kn_mat_destroy(g.up), kn_mat_destroy(g.down);
    kn_dev_destroy(d);
    free(w), free(c);
}
