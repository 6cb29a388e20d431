/* Row operations against double oracles, on every instruction set, odd sizes included. */
#include "base/mem.h"
#include "kernels/draw.h"
#include "tests/unit/kernels/kern.h"

struct body {
    void (*fn)(struct kn_stream *st);
};

static int call_body(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    ((struct body *)arg)->fn(st);
    return 0;
}

static size_t page_value; /* bytes, of the device under test */
static bool on_host;      /* it is the CPU */

/* Run fn once on a stream of every device of this machine, plain and wide. */
static void on_all(void (*fn)(struct kn_stream *st))
{
    struct body b = {fn};
    for (unsigned i = 0; i < KERN_PAGES_ALL; i++) {
        struct kn_dev *d = kern_dev_of_pages(i, 2);
        if (!d || (kn_info(d)->kv == KN_Q8 && i < KERN_PAGES_INT8)) { /* test_pages8.c */
            kn_dev_destroy(d);
            continue;
        }
        page_value = kn_info(d)->kv_value_bytes;
        on_host = kn_info(d)->is_host;
        ASSERT_OK(kern_run(d, false, 1, call_body, &b));
        ASSERT_OK(kern_run(d, true, 1, call_body, &b));
        kn_dev_destroy(d);
    }
}

static const size_t sizes[] = {1, 2, 7, 16, 50, 64, 80, 129, 576, 1537};
enum { N_SIZES = sizeof sizes / sizeof *sizes };

static void norm_body(struct kn_stream *st)
{
    for (size_t z = 0; z < N_SIZES; z++) {
        size_t D = sizes[z], m = 3, ldx = D + 2;
        float *x = kern_random(m * ldx, 1, 3), *w = kern_random(D, 2, 1),
              *out = kern_random(m * D, 3, 1);
        ASSERT_OK(kern_done(st, kn_rmsnorm(st, x, ldx, m, D, w, 1e-5f, out, D)));
        for (size_t i = 0; i < m; i++) {
            double s = 0;
            for (size_t d = 0; d < D; d++)
                s += (double)x[i * ldx + d] * (double)x[i * ldx + d];
            double inv = 1 / sqrt(s / (double)D + (double)1e-5f);
            for (size_t d = 0; d < D; d++) {
                double want = (double)x[i * ldx + d] * inv * (double)w[d];
                ASSERT_NEAR(out[i * D + d], want, 1e-6 * (fabs(want) + 1e-6));
            }
        }
        /* In place and per head: the same bits. */
        ASSERT_OK(kern_done(st, kn_rmsnorm_heads(st, x, ldx, m, 1, D, w, 1e-5f)));
        for (size_t i = 0; i < m; i++)
            ASSERT_MEMEQ(x + i * ldx, out + i * D, D * sizeof(float));
        /* Added: the sum of what was there and the norm of these rows. */
        float *sum = kern_random(m * D, 4, 1), *was = kern_random(m * D, 4, 1);
        ASSERT_OK(kern_done(st, kn_rmsnorm(st, x, ldx, m, D, w, 1e-5f, out, D)));
        ASSERT_OK(kern_done(st, kn_rmsnorm_add(st, x, ldx, m, D, w, 1e-5f, sum, D)));
        for (size_t i = 0; i < m * D; i++)
            ASSERT_EQ(sum[i], was[i] + out[i]);
        free(sum);
        free(was);
        free(x);
        free(w);
        free(out);
    }
}

TEST(rmsnorm)
{
    on_all(norm_body);
}

/* Of row x [D], to want. */
static void layernorm_of(const float *x, size_t D, const float *w, const float *b, double *want)
{
    double mean = 0, var = 0;
    for (size_t d = 0; d < D; d++)
        mean += (double)x[d] / (double)D;
    for (size_t d = 0; d < D; d++)
        var += ((double)x[d] - mean) * ((double)x[d] - mean) / (double)D;
    for (size_t d = 0; d < D; d++)
        want[d] = ((double)x[d] - mean) / sqrt(var + 1e-5) * (double)w[d] + (b ? (double)b[d] : 0);
}

static void layernorm_body(struct kn_stream *st)
{
    for (size_t z = 0; z < N_SIZES; z++) {
        const size_t D = sizes[z], m = 3, ldx = D + 2;
        float *x = kern_random(m * ldx, 1, 3), *w = kern_random(D, 2, 1), *b = kern_random(D, 4, 1),
              *out = kern_random(m * D, 3, 1);
        double *want = calloc(D, sizeof *want);
        for (size_t i = 0; i < ldx; i++)
            x[i] += 1000; /* a mean far from the spread: what cancels would show */
        ASSERT_OK(kern_done(st, kn_layernorm(st, x, ldx, m, D, w, b, 1e-5f, out, D)));
        for (size_t i = 0; i < m; i++) {
            layernorm_of(x + i * ldx, D, w, b, want);
            for (size_t d = 0; d < D; d++)
                ASSERT_NEAR(out[i * D + d], want[d], i ? 4e-6 : 3e-3);
        }
        /* A row alone, in place, has the bits it has among others; without a bias none is added. */
        for (size_t i = 0; i < m; i++) {
            float *row = x + i * ldx;
            ASSERT_OK(kern_done(st, kn_layernorm(st, row, ldx, 1, D, w, b, 1e-5f, row, ldx)));
            ASSERT_MEMEQ(row, out + i * D, D * sizeof(float));
        }
        ASSERT_OK(kern_done(st, kn_layernorm(st, out, D, m, D, w, NULL, 1e-5f, x, ldx)));
        for (size_t i = 0; i < m; i++) {
            layernorm_of(out + i * D, D, w, NULL, want);
            for (size_t d = 0; d < D; d++)
                ASSERT_NEAR(x[i * ldx + d], want[d], 4e-6);
        }
        ASSERT_EQ(kn_layernorm(st, x, D - 1, m, D, w, b, 1e-5f, out, D), -EINVAL);
        free(x), free(w), free(b), free(out), free(want);
    }
}

TEST(layernorm)
{
    on_all(layernorm_body);
}

static void gelu_body(struct kn_stream *st)
{
    for (size_t z = 0; z < N_SIZES; z++) {
        const size_t n = sizes[z], m = 5, ldx = n + 1;
        float *x = kern_random(m * ldx, 6, 6), *was = malloc(m * ldx * sizeof *was);
        x[0] = 200, x[ldx] = -200, x[2 * ldx] = 0;
        memcpy(was, x, m * ldx * sizeof *x);
        const int r = kn_gelu(st, x, ldx, m, n);
        ASSERT_EQ(r, on_host ? 0 : -ENOTSUP);
        for (size_t i = 0; r == 0 && i < m; i++) {
            for (size_t d = 0; d < n; d++) {
                const double v = (double)was[i * ldx + d], want = v * erfc(-v / sqrt(2)) / 2;
                ASSERT_NEAR(x[i * ldx + d], want, 1e-6 * fabs(v));
            }
            ASSERT_EQ(x[i * ldx + n], was[i * ldx + n]); /* between rows nothing is written */
        }
        ASSERT_EQ(kn_gelu(st, x, n - 1, m, n), -EINVAL);
        free(x), free(was);
    }
}

TEST(gelu)
{
    on_all(gelu_body);
}

static double silu(double x)
{
    return x / (1 + exp(-x));
}

static double gelu_tanh(double x)
{
    return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

static double gelu_erf(double x)
{
    return x * erfc(-x / sqrt(2)) / 2;
}

static double clamped(double x)
{
    const double g = fmin(x, 7);
    return g / (1 + exp(-1.702 * g));
}

/* What the gate's curve is multiplied by. */
static double factor_of(enum kn_act act, double up)
{
    return act == KN_SILU_CLAMPED ? fmax(-7, fmin(up, 7)) + 1 : up;
}

static void check_glu(struct kn_stream *st, enum kn_act act, double (*want_of)(double x))
{
    for (size_t z = 0; z < N_SIZES; z++) {
        size_t F = sizes[z], m = 19;
        float *g = kern_random(m * 2 * F, 4, 20), *out = kern_random(m * F, 5, 1);
        g[0] = 200, g[2 * F] = -200, g[4 * F] = 0;
        ASSERT_OK(kern_done(st, kn_glu(st, act, g, 2 * F, m, F, out, F)));
        for (size_t i = 0; i < m; i++)
            for (size_t d = 0; d < F; d++) {
                double x = (double)g[i * 2 * F + d], u = (double)g[i * 2 * F + F + d];
                double want = want_of(x) * factor_of(act, u);
                double far = act == KN_SILU ? 1e-30 : 1e-7;
                if (act == KN_SILU_CLAMPED) /* whose exponent is rounded */
                    far = 1e-30 + 2e-7 * fabs(x * want);
                if (act == KN_GELU) far = 1e-6 * fabs(x * u); /* as kn_gelu() has it */
                ASSERT_NEAR(out[i * F + d], want, 1e-6 * fabs(want) + far);
            }
        free(g);
        free(out);
    }
}

static void glu_body(struct kn_stream *st)
{
    check_glu(st, KN_SILU, silu);
    check_glu(st, KN_GELU_TANH, gelu_tanh); /* whose oracle cancels where x is far below 0 */
    check_glu(st, KN_GELU, gelu_erf);
    check_glu(st, KN_SILU_CLAMPED, clamped);
}

/* A bound hides no NaN. */
static void clamped_nan_body(struct kn_stream *st)
{
    float *g = calloc(4, sizeof *g), *out = calloc(2, sizeof *out);
    g[0] = g[3] = NAN, g[1] = g[2] = 1;
    ASSERT_OK(kern_done(st, kn_glu(st, KN_SILU_CLAMPED, g, 4, 1, 2, out, 2)));
    ASSERT_TRUE(isnan(out[0]) && isnan(out[1]));
    free(g);
    free(out);
}

TEST(bounds_hide_no_nan)
{
    on_all(clamped_nan_body);
}

TEST(gated_units)
{
    on_all(glu_body);
}

static void softcap_body(struct kn_stream *st)
{
    for (size_t z = 0; z < N_SIZES; z++) {
        const size_t n = sizes[z], m = 3, ld = n + 3;
        float *x = kern_random(m * ld, 4, 200), *was = kern_random(m * ld, 4, 200);
        x[0] = was[0] = 1e30f, x[ld] = was[ld] = -INFINITY, x[2 * ld] = was[2 * ld] = 0;
        ASSERT_OK(kern_done(st, kn_softcap(st, x, ld, m, n, 30)));
        for (size_t i = 0; i < m * ld; i++) {
            const bool inside = i % ld < n;
            const double want = inside ? 30 * tanh((double)was[i] / 30) : (double)was[i];
            ASSERT_NEAR(x[i], want, 1e-5);
        }
        ASSERT_ERR(kn_softcap(st, x, ld, m, n, 0), -EINVAL);
        free(x);
        free(was);
    }
}

TEST(softcap)
{
    on_all(softcap_body);
}

static void rope_body(struct kn_stream *st)
{
    static const size_t dims[][2] = {{64, 64}, {80, 80}, {6, 6}, {128, 64}, {50, 34}};
    for (size_t z = 0; z < 5; z++) {
        size_t K = dims[z][0], half = dims[z][1] / 2, cap = 40, heads = 3, m = 4;
        float *cs = kern_random(cap * half, 6, 1), *sn = kern_random(cap * half, 7, 1);
        float *x = kern_random(m * heads * K, 8, 1), *x0 = kern_random(m * heads * K, 8, 1);
        struct kn_rope r = {K, 2 * half, cs, sn, cap, 1.5f};
        int32_t *pos = malloc(4 * sizeof *pos);
        pos[0] = 0, pos[1] = 39, pos[2] = 7, pos[3] = 7;
        ASSERT_OK(kern_done(st, kn_rope(st, &r, x, heads * K, m, heads, pos)));
        for (size_t t = 0; t < m * heads; t++)
            for (size_t d = 0; d < K; d++) {
                const float *a = x0 + t * K;
                size_t i = d % half, at = (size_t)pos[t / heads] * half + i;
                double c = (double)cs[at], s = (double)sn[at], want = (double)a[d];
                if (d < half) want = 1.5 * ((double)a[i] * c - (double)a[i + half] * s);
                if (d >= half && d < 2 * half)
                    want = 1.5 * ((double)a[i + half] * c + (double)a[i] * s);
                ASSERT_NEAR(x[t * K + d], want, 1e-6);
            }
        pos[1] = 40;
        ASSERT_ERR(kern_done(st, kn_rope(st, &r, x, heads * K, m, heads, pos)), -EINVAL);
        free(pos);
        free(cs);
        free(sn);
        free(x);
        free(x0);
    }
}

TEST(rope)
{
    on_all(rope_body);
}

static int encode_row(struct kn_stream *st, const float *x, size_t n, size_t K, enum kn_dtype t,
                      void *out)
{
    int *bad = malloc(sizeof *bad);
    int r = kern_done(st, kn_encode_rows(st, x, n, 1, n, K, t, out, bad));
    if (r == 0 && *bad) r = -ERANGE;
    free(bad);
    return r;
}

/* Rows rotated on their way to the pages are those that were rotated before; to other places than
 * where they are put, out of a matrix of more, and with none at all. */
static void check_rope_put(struct kn_stream *st, const struct kern_kv *like,
                           const struct kn_rope *rope, const int32_t *pos, size_t n, const float *k,
                           const float *v)
{
    const unsigned G = like->kv.G, K = like->kv.K, GK = G * K, ld = 2 * GK + 12;
    const size_t bytes = like->kv.n_pages * like->kv.page_stride * sizeof(float);
    struct kern_kv a, b;
    float *x = malloc(n * ld * sizeof *x), *turned = malloc(n * ld * sizeof *x);
    int32_t *at = malloc(n * sizeof *at);
    kern_kv_init(&a, G, K, rope->pos_cap, 3);
    kern_kv_init(&b, G, K, rope->pos_cap, 3);
    for (size_t i = 0; i < n; i++) {
        memcpy(x + i * ld, k + i * GK, GK * sizeof *x);
        memcpy(x + i * ld + GK, v + i * GK, GK * sizeof *x);
        at[i] = pos[i] / 2;
    }
    struct kn_rotation to = {rope, at};
    memcpy(turned, x, n * ld * sizeof *x);
    ASSERT_OK(kern_done(st, kn_rope(st, rope, turned, ld, n, G, at)));
    ASSERT_OK(kern_done(st, kn_kv_put(st, &a.kv, 1, pos, n, turned, ld, turned + GK, ld)));
    memcpy(turned, x, n * ld * sizeof *x);
    ASSERT_OK(kern_done(st, kn_rope_put(st, &b.kv, 1, &to, pos, n, turned, ld, turned + GK, ld)));
    ASSERT_MEMEQ(a.mem, b.mem, bytes);
    to.rope = NULL;
    ASSERT_OK(kern_done(st, kn_kv_put(st, &a.kv, 1, pos, n, x, ld, x + GK, ld)));
    ASSERT_OK(kern_done(st, kn_rope_put(st, &b.kv, 1, &to, pos, n, x, ld, x + GK, ld)));
    ASSERT_MEMEQ(a.mem, b.mem, bytes);
    to.rope = rope;
    at[n - 1] = (int32_t)rope->pos_cap;
    ASSERT_ERR(kern_done(st, kn_rope_put(st, &b.kv, 1, &to, pos, n, x, ld, x + GK, ld)), -EINVAL);
    ASSERT_ERR(kern_done(st, kn_rope_put(st, &b.kv, 1, &to, pos, n, x, GK - 1, x, ld)), -EINVAL);
    kern_kv_fini(&a);
    kern_kv_fini(&b);
    free(x);
    free(turned);
    free(at);
}

/* A loaded record equals rotating and putting its rows, in every stored type. */
static void check_kv(struct kn_stream *st, unsigned K, unsigned n_rot)
{
    enum { G = 2, N = 150, POS0 = 37, KEYS = 200 };
    const unsigned GK = G * K;
    float *k = kern_random(N * GK, 1, 1), *v = kern_random(N * GK, 2, 1);
    float *cs = kern_random(KEYS * K / 2, 3, 1), *sn = kern_random(KEYS * K / 2, 4, 1);
    struct kn_rope rope = {K, n_rot, cs, sn, KEYS, 1.25f};
    int32_t *pos = malloc(N * sizeof *pos);
    for (int i = 0; i < N; i++)
        pos[i] = POS0 + i;
    for (int t = KN_F32; t <= KN_Q8; t++) {
        struct kern_kv a, b;
        uint16_t *ks = malloc(N * GK * 4), *vs = malloc(N * GK * 4);
        float *kf = malloc(N * GK * 4), *vf = malloc(N * GK * 4);
        kern_kv_init(&a, G, K, KEYS, 3);
        kern_kv_init(&b, G, K, KEYS, 3);
        ASSERT_OK(encode_row(st, k, N * GK, K, (enum kn_dtype)t, ks));
        ASSERT_OK(encode_row(st, v, N * GK, K, (enum kn_dtype)t, vs));
        struct kn_stored s = {POS0, POS0, N, ks, vs, (enum kn_dtype)t};
        ASSERT_OK(kern_done(st, kn_kv_load(st, &a.kv, 2, &rope, &s, 1)));
        ASSERT_OK(kn_convert(ks, (enum kn_dtype)t, N * GK, K, KN_F32, kf));
        ASSERT_OK(kn_convert(vs, (enum kn_dtype)t, N * GK, K, KN_F32, vf));
        check_rope_put(st, &b, &rope, pos, N, kf, vf);
        ASSERT_OK(kern_done(st, kn_rope(st, &rope, kf, GK, N, G, pos)));
        ASSERT_OK(kern_done(st, kn_kv_put(st, &b.kv, 2, pos, N, kf, GK, vf, GK)));
        size_t floats = a.kv.n_pages * a.kv.page_stride;
        ASSERT_MEMEQ(a.mem, b.mem, floats * sizeof(float));
        const bool f32 = !kern_device() && page_value == sizeof(float);
        for (int i = 0; i < N && f32; i += 11) { /* and the layout is the documented one */
            const float *page = b.mem + (size_t)b.pages[pos[i] / KN_PAGE] * b.kv.page_stride +
                                2 * b.kv.layer_stride;
            size_t slot = (size_t)pos[i] % KN_PAGE;
            ASSERT_TRUE(page[(K + 3) * KN_PAGE + slot] == kf[i * GK + K + 3]);
            ASSERT_TRUE(page[GK * KN_PAGE + (KN_PAGE + slot) * K + 5] == vf[i * GK + K + 5]);
        }
        ASSERT_ERR(encode_row(st, k, N * GK - 1, K, (enum kn_dtype)t, ks), -EINVAL);
        s.pos0 = 107; /* beyond the pages */
        ASSERT_ERR(kern_done(st, kn_kv_load(st, &a.kv, 2, &rope, &s, 1)), -EINVAL);
        s.pos0 = POS0, s.rot0 = 51; /* beyond the table */
        ASSERT_ERR(kern_done(st, kn_kv_load(st, &a.kv, 2, &rope, &s, 1)), -EINVAL);
        s.rot0 = POS0;
        ASSERT_ERR(kern_done(st, kn_kv_load(st, &a.kv, 2, NULL, &s, 1)), -EINVAL);
        kern_kv_fini(&a);
        kern_kv_fini(&b);
        free(ks);
        free(vs);
        free(kf);
        free(vf);
    }
    pos[0] = KEYS + KN_PAGE;
    struct kern_kv a;
    kern_kv_init(&a, G, K, KEYS, 1);
    ASSERT_ERR(kern_done(st, kn_kv_put(st, &a.kv, 0, pos, 1, k, GK, v, GK)), -EINVAL);
    kern_kv_fini(&a);
    free(k);
    free(v);
    free(cs);
    free(sn);
    free(pos);
}

static void kv_body(struct kn_stream *st)
{
    check_kv(st, 20, 20);
    check_kv(st, 48, 48); /* by 16 bytes on a GPU */
    check_kv(st, 64, 32);
}

/* Pieces side by side and apart, of one row, of several types, rotated to where they are put,
 * elsewhere or not at all: each is what it is alone. */
static void check_pieces(struct kn_stream *st, unsigned K, unsigned n_rot, int type)
{
    enum { G = 2, PIECES = KN_PIECES, LONG = 7, KEYS = 128 };
    const unsigned GK = G * K;
    float *x = kern_random(PIECES * LONG * GK, 1, 1);
    float *cs = kern_random(KEYS * K / 2, 3, 1), *sn = kern_random(KEYS * K / 2, 4, 1);
    const struct kn_rope rope = {K, n_rot, cs, sn, KEYS, 1.25f};
    struct kn_stored s[PIECES + 1];
    struct kern_kv all, alone;
    char *stored = mem_alloc(PIECES * LONG * GK * 4), *at = stored; /* the host's own */
    kern_kv_init(&all, G, K, KEYS, 1);
    kern_kv_init(&alone, G, K, KEYS, 1);
    for (int i = 0; i < PIECES; i++) {
        const size_t n = i % 3 == 1 ? 1 : LONG;
        const int32_t pos0 = 5 + i * LONG, rot0 = i % 5 == 2 ? -1 : i % 4 == 3 ? pos0 + 9 : pos0;
        const enum kn_dtype t = (enum kn_dtype)(type < 0 ? i / 2 % 4 : type);
        s[i] = (struct kn_stored){pos0, rot0, n, at, at, t};
        ASSERT_OK(kn_convert(x + (size_t)i * LONG * GK, KN_F32, n * GK, K, t, at));
        at += (n * kn_row_bytes(t, G, K) + 63) / 64 * 64;
        ASSERT_OK(kern_done(st, kn_kv_load(st, &alone.kv, 0, &rope, &s[i], 1)));
    }
    ASSERT_OK(kern_done(st, kn_kv_load(st, &all.kv, 0, &rope, s, PIECES)));
    ASSERT_MEMEQ(all.mem, alone.mem, all.kv.n_pages * all.kv.page_stride * sizeof(float));
    s[PIECES] = s[0]; /* more than a call may have */
    ASSERT_ERR(kern_done(st, kn_kv_load(st, &all.kv, 0, &rope, s, PIECES + 1)), -EINVAL);
    s[PIECES - 1].n = 0;
    ASSERT_ERR(kern_done(st, kn_kv_load(st, &all.kv, 0, &rope, s, PIECES)), -EINVAL);
    kern_kv_fini(&all);
    kern_kv_fini(&alone);
    mem_free(stored);
    free(x);
    free(cs);
    free(sn);
}

static void pieces_body(struct kn_stream *st)
{
    for (int type = -1; type <= KN_Q8; type++) {
        check_pieces(st, 20, 20, type);
        check_pieces(st, 32, 32, type); /* by 16 bytes on a GPU if all are of one type */
        check_pieces(st, 32, 16, type);
    }
}

TEST(kv_of_many_pieces)
{
    on_all(pieces_body);
}

TEST(kv_put_and_load)
{
    on_all(kv_body);
}

static double apart(const float *a, const float *b, size_t n)
{
    double s = 0;
    for (size_t d = 0; d < n; d++)
        s += pow((double)a[d] - (double)b[d], 2);
    return s;
}

/* Rows find what is stored for their positions in two pieces; one finds nothing. */
static void deviation_body(struct kn_stream *st)
{
    static const int32_t at[] = {5, 6, 11, 40}, row_of[] = {0, 1, 3};
    for (size_t z = 0; z < N_SIZES; z++)
        for (int t = KN_F32; t <= KN_Q8; t++) {
            const size_t n = sizes[z], m = 4, lda = n + 1;
            float *a = kern_random(m * lda, 1, 1), *b = kern_random(m * n, 2, 1);
            float *ret = malloc(41 * sizeof *ret);
            int32_t *pos = malloc(sizeof at);
            char *bs = malloc(m * n * 4 + 2 * m);
            memcpy(pos, at, sizeof at);
            ret[10] = ret[40] = -1;
            ASSERT_OK(encode_row(st, b, m * n, n, (enum kn_dtype)t, bs));
            ASSERT_OK(kn_convert(bs, (enum kn_dtype)t, m * n, n, KN_F32, b));
            const struct kn_stored s[] = {{.pos0 = 5, .n = 2, .k = bs, .t = (enum kn_dtype)t},
                                          {.pos0 = 10,
                                           .n = 2,
                                           .k = bs + 2 * kn_row_bytes((enum kn_dtype)t, 1, n),
                                           .t = (enum kn_dtype)t}};
            ASSERT_OK(kern_done(st, kn_deviation(st, a, lda, pos, m, s, 2, 1, (unsigned)n, ret)));
            for (size_t i = 0; i < 3; i++) {
                const double want = apart(a + i * lda, b + (size_t)row_of[i] * n, n);
                ASSERT_NEAR(ret[at[i]], want, 1e-6 * want + 1e-12);
            }
            ASSERT_TRUE(ret[10] == -1 && ret[40] == -1);
            free(a);
            free(b);
            free(ret);
            free(pos);
            free(bs);
        }
}

TEST(deviation)
{
    on_all(deviation_body);
}

/* Bits of known values, all f16 patterns forth and back, ties to even, overflow. */
static void dtype_body(struct kn_stream *st)
{
    static const struct {
        float f;
        uint16_t f16, bf16;
    } known[] = {
        {1.0f, 0x3c00, 0x3f80},       {-2.0f, 0xc000, 0xc000},      {65504.0f, 0x7bff, 0x4780},
        {0x1.002p0f, 0x3c00, 0x3f80}, {0x1.006p0f, 0x3c02, 0x3f80}, {0x1.01p0f, 0x3c04, 0x3f80},
        {0x1.03p0f, 0x3c0c, 0x3f82},  {0x1p-24f, 0x0001, 0x3380},   {0x1p-25f, 0x0000, 0x3300},
        {0x1.8p-25f, 0x0001, 0x3340}, {-0.0f, 0x8000, 0x8000},      {65519.0f, 0x7bff, 0x4780}};
    enum { N = sizeof known / sizeof *known, PAD = 8 };
    for (size_t i = 0; i < N; i++)
        for (int vec = 0; vec < 2; vec++) { /* alone, and inside a whole vector */
            float *x = calloc(PAD, sizeof *x);
            uint16_t h[PAD];
            x[vec * 3] = known[i].f;
            ASSERT_OK(encode_row(st, x, vec ? PAD : 1, 1, KN_F16, h));
            ASSERT_EQ(h[vec * 3], known[i].f16);
            ASSERT_OK(encode_row(st, x, vec ? PAD : 1, 1, KN_BF16, h));
            ASSERT_EQ(h[vec * 3], known[i].bf16);
            free(x);
        }
    uint16_t all[65536], back[65536];
    float *f = malloc(65536 * sizeof *f);
    for (int i = 0; i < 65536; i++)
        all[i] = (uint16_t)((i & 0x7c00) == 0x7c00 ? i & 0x8000 : i);
    ASSERT_OK(kn_convert(all, KN_F16, 65536, 64, KN_F32, f));
    ASSERT_OK(encode_row(st, f, 65536, 64, KN_F16, back));
    ASSERT_MEMEQ(all, back, sizeof all);
    ASSERT_TRUE(f[0x3c00] == 1.0f && f[1] == 0x1p-24f && f[0x7bff] == 65504.0f);
    for (size_t n = 1; n <= PAD; n += PAD - 1) {
        float *big = calloc(PAD, sizeof *big);
        big[n - 1] = 65520.0f;
        ASSERT_ERR(encode_row(st, big, n, n, KN_F16, back), -ERANGE);
        big[n - 1] = NAN;
        ASSERT_ERR(encode_row(st, big, n, n, KN_F16, back), -ERANGE);
        ASSERT_OK(encode_row(st, big, n, n, KN_BF16, back));
        ASSERT_TRUE((back[n - 1] & 0x7fc0) == 0x7fc0);
        free(big);
    }
    free(f);
}

TEST(encode_and_decode)
{
    on_all(dtype_body);
}

/* A head comes back to within 1/254 of its largest value; a head of zeros as zeros. */
static void q8_body(struct kn_stream *st)
{
    static const float scale[] = {1e-7f, 3e-5f, 0.01f, 1, 40, 60000};
    enum { HEADS = 5 };
    for (size_t z = 0; z < N_SIZES; z++)
        for (size_t c = 0; c < sizeof scale / sizeof *scale; c++) {
            size_t K = sizes[z], n = HEADS * K;
            float *x = kern_random(n, 11 + z, scale[c]), *y = malloc(n * sizeof *y);
            uint8_t *q = malloc(kn_row_bytes(KN_Q8, HEADS, K));
            for (size_t i = 0; i < K; i++) {
                x[2 * K + i] = 0;
                x[3 * K + i] /= 4096; /* a quiet head does not suffer from a loud one */
            }
            ASSERT_OK(encode_row(st, x, n, K, KN_Q8, q));
            ASSERT_OK(kn_convert(q, KN_Q8, n, K, KN_F32, y));
            for (size_t h = 0; h < HEADS; h++) {
                double top = 0;
                for (size_t i = 0; i < K; i++)
                    top = fmax(top, fabs((double)x[h * K + i]));
                for (size_t i = 0; i < K; i++)
                    ASSERT_NEAR(y[h * K + i], x[h * K + i], top / 254 * (1 + 1e-5) + 0x1p-24);
            }
            free(x);
            free(y);
            free(q);
        }
}

TEST(q8_is_within_its_bound)
{
    on_all(q8_body);
}

/* The same bytes from every instruction set: records are shared, and compared by checksum. */
static void q8_bytes_body(struct kn_stream *st)
{
    enum { K = 20 };
    static const uint8_t golden[2][K + 2] = {
        {0x00, 0x42, 0x7f, 0x81, 0x40, 0x03, 0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1},
        {0}};
    float *x = calloc(2 * K, sizeof *x), *bad = calloc(K, sizeof *bad), y[2 * K];
    uint8_t q[2 * (K + 2)], other[2 * (K + 2)];
    uint16_t h[2 * K];
    x[0] = 3, x[1] = -3, x[2] = 1.5f, x[3] = 0.0591f, x[4] = -0.0591f, x[K - 1] = 0.0237f;
    ASSERT_OK(encode_row(st, x, 2 * K, K, KN_Q8, q));
    ASSERT_MEMEQ(q, golden, sizeof q);
    ASSERT_OK(kn_convert(x, KN_F32, 2 * K, K, KN_Q8, other));
    ASSERT_MEMEQ(q, other, sizeof q);
    ASSERT_OK(encode_row(st, x, 2 * K, K, KN_F16, h));
    ASSERT_OK(kn_convert(h, KN_F16, 2 * K, K, KN_Q8, other));
    ASSERT_MEMEQ(q, other, sizeof q);
    ASSERT_OK(kn_convert(q, KN_Q8, 2 * K, K, KN_F32, y));
    ASSERT_TRUE(y[0] == 3 && y[1] == -3 && y[K] == 0);
    ASSERT_ERR(kn_convert(h, KN_F16, 2 * K - 1, K, KN_Q8, other), -EINVAL);
    const float never[] = {NAN, -NAN, INFINITY, -INFINITY, 65520, -1e30f};
    for (size_t i = 0; i < sizeof never / sizeof *never; i++)
        for (size_t at = 0; at < K; at++) {
            bad[at] = never[i];
            ASSERT_ERR(encode_row(st, bad, K, K, KN_Q8, q), -ERANGE);
            bad[at] = 0;
        }
    free(x);
    free(bad);
}

TEST(q8_bytes)
{
    on_all(q8_bytes_body);
}

TEST(topk_matches_sorting)
{
    uint64_t seed = 42;
    for (int round = 0; round < 300; round++) {
        float s[60];
        int32_t got[60];
        size_t n = test_rand(&seed) % 60 + 1, k = test_rand(&seed) % (n + 1);
        for (size_t i = 0; i < n; i++)
            s[i] = (float)(int)(test_rand(&seed) % 9) - 4.0f;
        if (round % 7 == 0) s[n / 2] = NAN;
        ASSERT_OK(kn_topk(s, n, k, got));
        for (size_t i = 0, out = 0; i < n; i++) {
            size_t before = 0; /* how many come before i: larger, or equal at a lower index */
            for (size_t j = 0; j < n; j++) {
                float a = isnan(s[i]) ? -INFINITY : s[i], b = isnan(s[j]) ? -INFINITY : s[j];
                before += b > a || (b == a && j < i);
            }
            if (before >= k) continue;
            ASSERT_TRUE(out < k);
            ASSERT_EQ(got[out++], i);
        }
    }
    float one = 1;
    int32_t idx;
    ASSERT_ERR(kn_topk(&one, 1, 2, &idx), -EINVAL);
    ASSERT_OK(kn_topk(&one, 0, 0, &idx));
}

/* Few values, so that many are equal; some that are no number, infinite, or -0. */
static float odd_value(uint64_t *seed)
{
    static const float odd[] = {NAN, -NAN, -0.0f, 0.0f, -INFINITY, 1e-45f};
    const uint64_t r = test_rand(seed);
    return r % 11 == 0 ? odd[r / 11 % 6] : (float)(int)(r / 11 % 9) - 4.0f;
}

static void best_body(struct kn_stream *st)
{
    enum { N = 5000, M = 3 };
    uint64_t seed = 3;
    float *x = calloc(M * N, sizeof *x);
    int32_t *got = calloc(M, sizeof *got);
    for (int round = 0; round < 40; round++) {
        const size_t n = round < 30 ? 1 + test_rand(&seed) % 70 : N - test_rand(&seed) % 100;
        for (size_t i = 0; i < M * N; i++)
            x[i] = odd_value(&seed);
        if (round % 5 == 0) x[test_rand(&seed) % n] = INFINITY;
        for (size_t i = 0; round % 7 == 0 && i < n; i++)
            x[N + i] = i % 2 ? NAN : -INFINITY;
        ASSERT_OK(kern_done(st, kn_draw(st, x, N, M, n, NULL, got)));
        for (size_t i = 0; i < M; i++) {
            const float *row = x + i * N;
            float top = -INFINITY;
            int32_t want = -1;
            for (size_t j = 0; j < n; j++)
                if (row[j] > top) top = row[j], want = (int32_t)j;
            ASSERT_EQ(got[i], isfinite(top) ? want : -1);
        }
    }
    ASSERT_ERR(kn_draw(st, x, 4, 1, 5, NULL, got), -EINVAL);
    ASSERT_ERR(kn_draw(st, x, 4, 1, 0, NULL, got), -EINVAL);
    ASSERT_ERR(kn_draw(st, x, DRAW_ROWS_MAX + 1, 1, DRAW_ROWS_MAX + 1, NULL, got), -EINVAL);
    free(x), free(got);
}

TEST(the_best_of_a_row)
{
    on_all(best_body);
}

TEST(weights_are_powers_of_two)
{
    uint64_t seed = 5;
    ASSERT_EQ(draw_weight(0), 1ull << 40);
    ASSERT_EQ(draw_weight(3u << 26), 1ull << 37);
    ASSERT_EQ(draw_weight(41u << 26), 0);
    ASSERT_EQ(draw_weight(UINT32_MAX), 0);
    for (int i = 0; i < 100000; i++) {
        const uint32_t far = (uint32_t)(test_rand(&seed) % (41ull << 26));
        const double want = ldexp(exp2(-ldexp(far, -26)), 40);
        ASSERT_NEAR((double)draw_weight(far), want, 2e-8 * want + 1);
        ASSERT_TRUE(draw_weight(far + 64) <= draw_weight(far));
    }
    for (int i = 0; i < 1000; i++) { /* from a logit to its weight: as far as f32 knows it */
        const float top = (float)(test_rand(&seed) % 4096) / 128 - 16, down = (float)i / 100;
        const double far = ((double)top - (double)(top - down)) * M_LOG2E / 0.7;
        const struct kn_draw d = kn_draw_of(0.7f, 0, 1, 0, 0);
        const double got = (double)draw_weight(draw_distance(top - down, top, d.rate));
        ASSERT_NEAR(got, ldexp(exp2(-far), 40), 3e-6 * got + 2);
    }
    ASSERT_EQ(draw_distance(-INFINITY, 0, 1), UINT32_MAX);
    ASSERT_EQ(draw_distance(NAN, 0, 1), UINT32_MAX);
    ASSERT_EQ(draw_distance(2, 2, 144269.5f), 0);
}

struct near { /* a token, for sorting */
    uint32_t far, id;
};

static int by_far(const void *a, const void *b)
{
    const struct near *x = a, *y = b;
    if (x->far != y->far) return x->far < y->far ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* As draw.h says it: the sorted list is cut three times, then the sum by id is walked along. */
static int32_t drawn_by_the_book(const float *x, size_t n, const struct kn_draw *d,
                                 struct near *list, uint64_t *weight)
{
    float top = -INFINITY;
    for (size_t i = 0; i < n; i++)
        top = x[i] > top ? x[i] : top;
    for (size_t i = 0; i < n; i++)
        list[i] = (struct near){draw_distance(x[i], top, d->rate), (uint32_t)i};
    qsort(list, n, sizeof *list, by_far);
    uint64_t sum = 0, at = 0;
    size_t k = d->k > 0 && d->k < n ? d->k : n, taken = 0;
    for (size_t i = 0; i < k; i++)
        sum += draw_weight(list[i].far);
    if (d->share != DRAW_ALL) {
        const uint64_t limit = (uint64_t)((__extension__(unsigned __int128) sum) * d->share >> 64);
        for (taken = 0; taken < k && (taken == 0 || at < limit); taken++)
            at += draw_weight(list[taken].far);
        k = taken;
    }
    memset(weight, 0, n * sizeof *weight);
    for (size_t i = sum = 0; i < k; i++) {
        const uint64_t w = draw_weight(list[i].far);
        if (w >= d->least) sum += weight[list[i].id] = w;
    }
    uint64_t goal = (uint64_t)((__extension__(unsigned __int128) sum) * d->random >> 64);
    for (size_t i = 0; i < n; i++) {
        if (goal < weight[i]) return (int32_t)i;
        goal -= weight[i];
    }
    return -2;
}

static struct kn_draw any_draw(uint64_t *seed, size_t n)
{
    const float temperature = (float)(1 + test_rand(seed) % 40) / 10;
    const uint64_t r = test_rand(seed);
    const int32_t k = r % 2 ? 1 + (int32_t)(r / 16 % (n + 3)) : 0;
    const float p = r / 2 % 2 ? (float)(r / 1024 % 1001) / 1000 : 1;
    const float m = r / 4 % 4 == 0 ? (float)(r >> 40 & 1023) / 1024 : 0;
    const uint64_t random = r / 8 % 8 == 0 ? r % 3 - 1 : test_rand(seed); /* the ends as well */
    return r >> 60 == 0 ? (struct kn_draw){0} : kn_draw_of(temperature, k, p, m, random);
}

static void edit_body(struct kn_stream *st)
{
    enum { N = 700, M = 3, STRIDE = 300 };
    uint64_t seed = 21;
    float *x = kern_random(M * N, 1, 20), *want = kern_random(M * N, 1, 20);
    struct kn_edit *list = calloc(M * STRIDE, sizeof *list);
    uint32_t *n = calloc(M, sizeof *n);
    for (int round = 0; round < 10; round++) {
        for (size_t i = 0; i < M; i++) {
            n[i] = round == 0 ? 0 : (uint32_t)(test_rand(&seed) % (STRIDE + 1));
            for (uint32_t j = 0; j < n[i]; j++) {
                const uint64_t r = test_rand(&seed);
                list[i * STRIDE + j] = (struct kn_edit){
                    (int32_t)(j * 2 + r % 2), r & 4 ? (float)(r >> 50) / 999 - 8 : 0,
                    r & 8 ? 1 + (float)(r >> 40 & 255) / 99 : 1, r & 16 ? (float)(r >> 55) / 7 : 0};
                if (j % 50 == 49) list[i * STRIDE + j].minus = INFINITY;
                if (j % 50 == 48) list[i * STRIDE + j].id = j % 100 == 48 ? -1 : N; /* nobody's */
                const struct kn_edit *e = &list[i * STRIDE + j];
                if ((size_t)e->id >= N) continue;
                float *at = want + i * N + e->id, y = *at + e->bias;
                const volatile float scaled = y > 0 ? y / e->factor : y * e->factor;
                *at = scaled - e->minus;
            }
        }
        ASSERT_OK(kern_done(st, kn_edit(st, x, N, M, N, list, STRIDE, n)));
        ASSERT_MEMEQ(x, want, M * N * sizeof *x);
    }
    ASSERT_ERR(kn_edit(st, x, 4, 1, 5, list, STRIDE, n), -EINVAL);
    free(x), free(want), free(list), free(n);
}

TEST(edits_are_the_same_everywhere)
{
    on_all(edit_body);
}

static void draw_body(struct kn_stream *st)
{
    enum { N = 5000, M = 4 };
    uint64_t seed = 9;
    float *x = calloc(M * N, sizeof *x);
    int32_t *got = calloc(M, sizeof *got);
    struct kn_draw *how = calloc(M, sizeof *how);
    struct near *list = calloc(N, sizeof *list);
    uint64_t *weight = calloc(N, sizeof *weight);
    uint32_t *room = calloc(N, sizeof *room);
    for (int round = 0; round < 60; round++) {
        const size_t n = round < 45 ? 1 + test_rand(&seed) % 90 : N - test_rand(&seed) % 3000;
        for (size_t i = 0; i < M * N; i++)
            x[i] = round % 3 ? (float)(test_rand(&seed) >> 40) * 0x1p-20f : odd_value(&seed);
        for (size_t i = 0; i < M; i++)
            how[i] = any_draw(&seed, n);
        if (round % 8 == 0) x[N + test_rand(&seed) % n] = INFINITY;
        ASSERT_OK(kern_done(st, kn_draw(st, x, N, M, n, how, got)));
        for (size_t i = 0; i < M; i++) {
            const int32_t here = kn_draw_row(x + i * N, n, &how[i], room);
            ASSERT_EQ(got[i], here);
            if (here < 0 || how[i].rate == 0) continue;
            ASSERT_EQ(here, drawn_by_the_book(x + i * N, n, &how[i], list, weight));
        }
    }
    free(x), free(got), free(how), free(list), free(weight), free(room);
}

TEST(a_drawn_token_is_the_same_everywhere)
{
    on_all(draw_body);
}

static void top_body(struct kn_stream *st)
{
    enum { N = 3000 };
    uint64_t seed = 8;
    float *x = calloc(N, sizeof *x), *listed = calloc(N, sizeof *listed);
    int32_t *idx = calloc(N, sizeof *idx), *got = calloc(N, sizeof *got),
            *want = calloc(N, sizeof *want);
    for (int round = 0; round < 40; round++) {
        const size_t all = round < 20 ? 1 + test_rand(&seed) % 60 : N - test_rand(&seed) % 900;
        size_t n = 0;
        for (size_t i = 0; i < all; i++) {
            x[i] = round % 4 == 3 ? (float)test_rand(&seed) : odd_value(&seed);
            if (round % 2 && test_rand(&seed) % 3 == 0) continue;
            listed[n] = x[i];
            idx[n++] = (int32_t)i;
        }
        const size_t k = round % 10 == 9 ? n : test_rand(&seed) % (n + 1);
        const bool whole = n == all;
        memset(got, 0xff, N * sizeof *got);
        ASSERT_OK(kern_done(st, kn_top(st, x, whole ? NULL : idx, n, k, got)));
        ASSERT_OK(kn_topk(listed, n, k, want));
        for (size_t i = 0; i < k; i++)
            ASSERT_EQ(got[i], idx[want[i]]);
        ASSERT_TRUE(k == N || got[k] == -1);
    }
    ASSERT_ERR(kn_top(st, x, NULL, 1, 2, got), -EINVAL);
    free(x), free(listed), free(idx), free(got), free(want);
}

TEST(the_top_of_a_list_is_what_the_host_finds)
{
    on_all(top_body);
}
