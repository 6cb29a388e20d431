/* A mixture of experts: against the definition in double, and each row's bits whatever is around
 * it. */
#include "tests/unit/kernels/kern.h"

enum { D = 64, F = 40, SHARED_F = 48, N = 9, M = 70 };

/* Weights as f32, and on a device. */
struct mix {
    struct kn_dev *dev;
    struct kn_moe moe;
    struct kn_mat *gate_up[N], *down[N];
    float *router, *up[N], *back[N], *shared_up, *shared_back;
    float *biases[3]; /* of router, [up, 2F], [down, D]: on a device where `moe` names them */
};

static struct kn_mat *mat_f32(struct kn_dev *d, size_t n, size_t k, const float *x)
{
    struct kn_mat *w = NULL;
    ASSERT_OK(kn_mat_create_f32(d, n, k, &w));
    ASSERT_OK(kn_mat_fill(w, 0, n, x));
    ASSERT_OK(kn_mat_done(w));
    return w;
}

static void mix_open_as(struct mix *x, struct kn_dev *d, unsigned used, bool renorm, bool shared,
                        bool scales_input)
{
    *x = (struct mix){.dev = d, .moe = {.n = N, .used = used, .renorm = renorm}};
    x->moe.scales_input = scales_input;
    x->router = kern_random((N + 1) * D, 3, 0.5f);
    x->moe.router = mat_f32(d, N + (size_t)(shared && !scales_input), D, x->router);
    for (unsigned e = 0; e < N; e++) {
        x->up[e] = kern_random(2 * F * D, 10 + e, 0.3f);
        x->back[e] = kern_random(D * F, 30 + e, 0.3f);
        x->gate_up[e] = kern_mat(d, 2 * F, D, x->up[e]);
        x->down[e] = kern_mat(d, D, F, x->back[e]);
    }
    x->moe.gate_up = x->gate_up;
    x->moe.down = x->down;
    x->biases[0] = kern_random(N, 60, 1);
    x->biases[1] = kern_random((size_t)N * 2 * F, 61, 4);
    x->biases[2] = kern_random((size_t)N * D, 62, 1);
    x->shared_up = kern_random(2 * SHARED_F * D, 50, 0.3f);
    x->shared_back = kern_random(D * SHARED_F, 51, 0.3f);
    if (!shared) return;
    x->moe.shared_gate_up = kern_mat(d, 2 * SHARED_F, D, x->shared_up);
    x->moe.shared_down = kern_mat(d, D, SHARED_F, x->shared_back);
}

static void mix_open(struct mix *x, struct kn_dev *d, unsigned used, bool renorm, bool shared)
{
    mix_open_as(x, d, used, renorm, shared, false);
}

static void mix_close(struct mix *x)
{
    for (unsigned e = 0; e < N; e++) {
        kn_mat_destroy(x->gate_up[e]), kn_mat_destroy(x->down[e]);
        free(x->up[e]), free(x->back[e]);
    }
    kn_mat_destroy(x->moe.router);
    kn_mat_destroy(x->moe.shared_gate_up), kn_mat_destroy(x->moe.shared_down);
    free(x->router), free(x->shared_up), free(x->shared_back);
    free(x->biases[0]), free(x->biases[1]), free(x->biases[2]);
    kn_dev_destroy(x->dev);
}

struct call {
    const struct mix *x;
    const float *h;
    float *out;
    bool instead; /* of what is in out */
};

static int run_rows(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    const struct call *c = arg;
    return kn_moe(st, &c->x->moe, c->h + row0 * D, n, c->out + row0 * D, !c->instead);
}

static double dot(const float *a, const float *b, size_t n)
{
    double s = 0;
    for (size_t i = 0; i < n; i++)
        s += (double)a[i] * (double)b[i];
    return s;
}

static double ref_glu(enum kn_act act, double x, double u)
{
    const double pi = 3.14159265358979323846, g = fmin(x, 7);
    if (act == KN_SILU) return u * x / (1 + exp(-x));
    if (act == KN_SILU_CLAMPED) return g / (1 + exp(-1.702 * g)) * (fmax(-7, fmin(u, 7)) + 1);
    return u * x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x)));
}

/* up_bias [2 width], back_bias [D]: or NULL. */
static void ref_biased(enum kn_act kind, const float *up, const float *back, size_t width,
                       const float *up_bias, const float *back_bias, const float *h, double by,
                       double *out)
{
    double act[SHARED_F];
    for (size_t f = 0; f < width; f++) {
        const double g = dot(up + f * D, h, D) + (up_bias ? (double)up_bias[f] : 0);
        const double u =
            dot(up + (width + f) * D, h, D) + (up_bias ? (double)up_bias[width + f] : 0);
        act[f] = ref_glu(kind, g, u);
    }
    for (size_t d = 0; d < D; d++) {
        out[d] += back_bias ? by * (double)back_bias[d] : 0;
        for (size_t f = 0; f < width; f++)
            out[d] += by * (double)back[d * width + f] * act[f];
    }
}

static void ref_expert(enum kn_act kind, const float *up, const float *back, size_t width,
                       const float *h, double by, double *out)
{
    ref_biased(kind, up, back, width, NULL, NULL, h, by, out);
}

static void ref_row(const struct mix *x, const float *h, double *out)
{
    double p[N], sum = 0, chosen = 0;
    bool taken[N] = {false};
    for (unsigned e = 0; e < N; e++)
        sum += p[e] = exp(dot(x->router + (size_t)e * D, h, D) +
                          (x->moe.router_bias ? (double)x->biases[0][e] : 0));
    for (unsigned j = 0; j < x->moe.used; j++) {
        unsigned best = N;
        for (unsigned e = 0; e < N; e++)
            if (!taken[e] && (best == N || p[e] > p[best])) best = e;
        taken[best] = true;
        chosen += p[best];
    }
    for (unsigned e = 0; e < N; e++)
        if (taken[e])
            ref_biased(x->moe.act, x->up[e], x->back[e], F,
                       x->moe.gate_up_bias ? x->biases[1] + (size_t)e * 2 * F : NULL,
                       x->moe.down_bias ? x->biases[2] + (size_t)e * D : NULL, h,
                       p[e] / (x->moe.renorm ? chosen : sum), out);
    if (!x->moe.shared_down) return;
    const double open = 1 / (1 + exp(-dot(x->router + (size_t)N * D, h, D)));
    ref_expert(x->moe.act, x->shared_up, x->shared_back, SHARED_F, h, open, out);
}

static const unsigned useds[] = {1, 2, 3, N};

/* The same where the router weighs what goes in: the best by logits, of these the sigmoids. */
static void ref_row_in(const struct mix *x, const float *h, double *out)
{
    double logit[N];
    float in[D];
    for (unsigned e = 0; e < N; e++)
        logit[e] = dot(x->router + (size_t)e * D, h, D);
    for (unsigned e = 0; e < N; e++) {
        unsigned better = 0;
        for (unsigned i = 0; i < N; i++)
            better += logit[i] > logit[e];
        if (better >= x->moe.used) continue;
        for (unsigned d = 0; d < D; d++)
            in[d] = (float)((double)h[d] / (1 + exp(-logit[e])));
        ref_expert(x->moe.act, x->up[e], x->back[e], F, in, 1, out);
    }
    if (x->moe.shared_down)
        ref_expert(x->moe.act, x->shared_up, x->shared_back, SHARED_F, h, 1, out);
}

TEST(the_router_may_weigh_what_goes_in)
{
    for (unsigned i = 0; i < KERN_ISAS; i++)
        for (unsigned v = 0; v < 8; v++) {
            struct kn_dev *d = kern_dev(i, 2, "own-f32");
            struct mix x;
            if (!d) continue;
            mix_open_as(&x, d, useds[v / 2], false, v % 2, true);
            float *h = kern_random(M * D, 7, 1), *out = kern_random(M * D, 8, 1);
            float *one = kern_random(M * D, 8, 1);
            double *want = calloc(M * D, sizeof *want);
            for (size_t r = 0; r < M; r++)
                ref_row_in(&x, h + r * D, want + r * D);
            struct call c = {&x, h, out, true};
            ASSERT_EQ(kern_run(d, true, M, run_rows, &c), kern_device() ? -ENOTSUP : 0);
            for (size_t j = 0; j < M * D && !kern_device(); j++)
                ASSERT_NEAR(out[j], want[j], 2e-5);
            for (size_t r = 0; r < M && !kern_device();
                 r++) { /* alone a row is the same, bit for bit */
                struct call own = {&x, h + r * D, one + r * D, true};
                ASSERT_OK(kern_run(d, true, 1, run_rows, &own));
            }
            ASSERT_MEMEQ(one, out, M * D * sizeof *one); /* on a GPU as they were */
            free(h), free(out), free(one), free(want);
            mix_close(&x);
        }
}

static void name_biases(struct mix *x)
{
    x->moe.router_bias = x->biases[0];
    x->moe.gate_up_bias = x->biases[1];
    x->moe.down_bias = x->biases[2];
}

TEST(is_what_its_definition_says)
{
    for (unsigned i = 0; i < KERN_ISAS; i++)
        for (unsigned v = 0; v < 12; v++) {
            struct kn_dev *d = kern_dev(i, 2, "own-f32");
            struct mix x;
            if (!d) continue;
            const bool biased = v >= 8;
            mix_open(&x, d, useds[v % 8 / 2], v % 2, v % 4 > 1 && !biased);
            x.moe.act = v < 4 ? KN_SILU : biased ? KN_SILU_CLAMPED : KN_GELU_TANH;
            if (biased) name_biases(&x);
            const bool instead = v % 3 == 0;
            float *h = kern_random(M * D, 7, 1), *out = kern_random(M * D, 8, 1);
            double *want = malloc(M * D * sizeof *want);
            for (size_t j = 0; j < M * D; j++)
                want[j] = instead ? 0 : (double)out[j];
            for (size_t r = 0; r < M; r++)
                ref_row(&x, h + r * D, want + r * D);
            struct call c = {&x, h, out, instead};
            ASSERT_OK(kern_run(d, true, M, run_rows, &c));
            for (size_t j = 0; j < M * D; j++)
                ASSERT_NEAR(out[j], want[j], 2e-5);
            free(h), free(out), free(want);
            mix_close(&x);
        }
}

/* Of all rows at once on one thread: what every other way must give. */
static float *all_rows(unsigned isa, const char *gemm, const float *h, bool shared)
{
    struct kn_dev *d = kern_dev(isa, 1, gemm);
    struct mix x;
    if (!d) return NULL;
    float *out = kern_random(M * D, 8, 1);
    mix_open(&x, d, 3, true, shared);
    if (!shared) name_biases(&x);
    struct call c = {&x, h, out};
    ASSERT_OK(kern_run(d, true, M, run_rows, &c));
    mix_close(&x);
    return out;
}

static unsigned same_bits_of(unsigned isa, const char *gemm, bool shared)
{
    static const size_t blocks[] = {1, 2, 7, 33, M};
    float *h = kern_random(M * D, 7, 1), *want = all_rows(isa, gemm, h, shared);
    for (unsigned threads = 1; want && threads <= (kern_device() ? 1 : 4); threads++) {
        struct mix x;
        mix_open(&x, kern_dev(isa, threads, gemm), 3, true, shared);
        if (!shared) name_biases(&x);
        for (size_t b = 0; b < 2 * sizeof blocks / sizeof *blocks; b++) {
            float *out = kern_random(M * D, 8, 1);
            const size_t block = blocks[b / 2];
            for (size_t at = 0; at < M; at += block) {
                struct call c = {&x, h + at * D, out + at * D};
                const size_t n = M - at < block ? M - at : block;
                ASSERT_OK(kern_run(x.dev, b % 2, n, run_rows, &c));
            }
            ASSERT_MEMEQ(out, want, M * D * sizeof *out);
            free(out);
        }
        mix_close(&x);
    }
    const unsigned n = want != NULL;
    free(h);
    if (want) free(want);
    return n;
}

/* With a shared expert, and with biases instead. On a GPU the router's product is the library's, so
 * that bits are compared where it has the same algorithm for all: on the emulation. */
static unsigned same_bits(unsigned isa, const char *gemm)
{
    if (kern_device() && strcmp(kern_device(), "hostcuda") != 0)
        SKIP("a library's products differ with the number of rows");
    return same_bits_of(isa, gemm, true) + same_bits_of(isa, gemm, false);
}

TEST(a_row_is_the_same_in_any_company)
{
    for (unsigned i = 0; i < KERN_ISAS; i++)
        (void)same_bits(i, "own-f32");
}

TEST(a_row_is_the_same_in_any_company_bf16)
{
    unsigned n = 0;
    for (unsigned i = 2; i < KERN_ISAS; i++)
        n += same_bits(i, "own-bf16");
    if (n == 0) SKIP("this machine has no products of bf16");
}

/* The lower numbers of equals, and numbers that are none do no harm. */
TEST(equal_and_broken_scores)
{
    struct mix x;
    mix_open(&x, kern_dev(0, 2, "own-f32"), 2, true, false);
    float *h = kern_random(3 * D, 7, 1), *out = calloc(3 * D, sizeof *out);
    double want[D] = {0};
    float *even = calloc(N * D, sizeof *even);
    kn_mat_destroy(x.moe.router);
    x.moe.router = mat_f32(x.dev, N, D, even);
    h[D] = NAN;
    ref_expert(KN_SILU, x.up[0], x.back[0], F, h, 0.5, want);
    ref_expert(KN_SILU, x.up[1], x.back[1], F, h, 0.5, want);
    struct call c = {&x, h, out};
    ASSERT_OK(kern_run(x.dev, true, 3, run_rows, &c));
    for (size_t d = 0; d < D; d++) {
        ASSERT_NEAR(out[d], want[d], 2e-5);
        ASSERT_TRUE(isnan(out[D + d]));
        ASSERT_TRUE(isfinite(out[2 * D + d]));
    }
    free(h), free(out), free(even);
    mix_close(&x);
}

/* In f32 2^24 + 1 is 2^24, and 1 - 2^24 is what it is: what the first three give adds up to 0, and
 * the other way round to 1. */
TEST(experts_are_summed_by_their_numbers)
{
    static const float gives[] = {67108864, 4, -67108864, 0};
    struct mix x;
    mix_open(&x, kern_dev(0, 2, "own-f32"), 4, true, false);
    name_biases(&x);
    float *h = kern_random(D, 7, 1), *out = calloc(D, sizeof *out);
    float *none = calloc(2 * F * D, sizeof *none);
    kn_mat_destroy(x.moe.router);
    x.moe.router = mat_f32(x.dev, N, D, none);
    for (unsigned e = 0; e < N; e++) {
        x.biases[0][e] = e < 4 ? 0 : -200;
        kn_mat_destroy(x.down[e]);
        x.down[e] = kern_mat(x.dev, D, F, none);
        for (unsigned d = 0; d < D; d++)
            x.biases[2][e * D + d] = e < 4 ? gives[e] : 0;
    }
    struct call c = {&x, h, out, true};
    ASSERT_OK(kern_run(x.dev, true, 1, run_rows, &c));
    for (unsigned d = 0; d < D; d++)
        ASSERT_EQ(out[d], 0);
    free(h), free(out), free(none);
    mix_close(&x);
}

/* Experts that no row goes to are not read: here they cannot be. */
TEST(experts_of_nobody_are_not_touched)
{
    struct mix x;
    mix_open(&x, kern_dev(0, 2, "own-f32"), 1, true, false);
    float *h = kern_random(D, 7, 1), *out = calloc(D, sizeof *out);
    unsigned best = 0;
    for (unsigned e = 1; e < N; e++)
        if (dot(x.router + (size_t)e * D, h, D) > dot(x.router + (size_t)best * D, h, D)) best = e;
    struct kn_mat *gate_up[N] = {[0] = x.gate_up[0]}, *down[N] = {[0] = x.down[0]};
    gate_up[best] = x.gate_up[best], down[best] = x.down[best];
    x.moe.gate_up = gate_up, x.moe.down = down;
    struct call c = {&x, h, out};
    ASSERT_OK(kern_run(x.dev, true, 1, run_rows, &c));
    free(h), free(out);
    mix_close(&x);
}

static int refused(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    const struct call *c = arg;
    const struct kn_moe good = c->x->moe;
    struct kn_moe bad[7];
    for (size_t i = 0; i < 7; i++)
        bad[i] = good;
    bad[0].n = 0;
    bad[1].n = KN_EXPERTS_MAX + 1;
    bad[2].used = 0;
    bad[3].used = N + 1;
    bad[4].shared_down = good.down[0]; /* without the other half */
    bad[5].n = N - 1;                  /* a router of another number */
    bad[6].down = good.gate_up;        /* another shape */
    for (size_t i = 0; i < 7; i++)
        ASSERT_ERR(kn_moe(st, &bad[i], c->h, 1, c->out, true), -EINVAL);
    ASSERT_OK(kn_moe(st, &good, c->h, 0, c->out, true));
    return 0;
}

static int refused_biases(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    const struct call *c = arg;
    ASSERT_ERR(kn_moe(st, &c->x->moe, c->h, 1, c->out, true), -EINVAL);
    return 0;
}

TEST(a_shared_expert_has_no_biases)
{
    struct mix x;
    mix_open(&x, kern_dev(0, 1, "own-f32"), 2, true, true);
    name_biases(&x);
    float *h = kern_random(D, 7, 1), *out = calloc(D, sizeof *out);
    struct call c = {&x, h, out};
    ASSERT_OK(kern_run(x.dev, true, 1, refused_biases, &c));
    free(h), free(out);
    mix_close(&x);
}

TEST(what_is_no_mixture_is_refused)
{
    struct mix x;
    mix_open(&x, kern_dev(0, 1, "own-f32"), 2, true, false);
    float *h = kern_random(D, 7, 1), *out = calloc(D, sizeof *out);
    struct call c = {&x, h, out};
    ASSERT_OK(kern_run(x.dev, true, 1, refused, &c));
    free(h), free(out);
    mix_close(&x);
}

static atomic_bool cancelled;

static int cancel_and_run(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    atomic_store(&cancelled, true);
    return run_rows(st, arg, row0, n);
}

TEST(a_cancelled_run_says_so)
{
    struct mix x;
    if (kern_device()) SKIP("a GPU looks before a run");
    mix_open(&x, kern_dev(0, 2, "own-f32"), 2, true, false);
    float *h = kern_random(M * D, 7, 1), *out = calloc(M * D, sizeof *out);
    struct call c = {&x, h, out};
    ASSERT_ERR(kn_wide(x.dev, M, &cancelled, cancel_and_run, &c), -ECANCELED);
    free(h), free(out);
    mix_close(&x);
}
