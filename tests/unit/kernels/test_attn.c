/* Attention and attention mass against the double oracle; mask and invariance. */
#include "tests/unit/kernels/kern.h"

struct run {
    struct kn_dev *d;
    struct kern_kv s;
    struct kern_shape sh;
    size_t n_keys, m;
    float *q, *k, *v, *out, *lse, *mass;
    int32_t *pos, *key_pos;
    bool wide;
};

static int put_rows(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    struct run *r = arg;
    size_t GK = (size_t)r->sh.G * r->sh.K;
    return kn_kv_put(st, &r->s.kv, 1, r->key_pos + row0, n, r->k + row0 * GK, GK, r->v + row0 * GK,
                     GK);
}

static struct kn_attn_args args_of(struct run *r, size_t row0, size_t n)
{
    size_t HK = (size_t)r->sh.H * r->sh.K;
    return (struct kn_attn_args){.q = r->q + row0 * HK,
                                 .ldq = HK,
                                 .m = n,
                                 .pos = r->pos + row0,
                                 .H = r->sh.H,
                                 .kv = &r->s.kv,
                                 .layer = 1,
                                 .scale = 1.0f / sqrtf((float)r->sh.K),
                                 .out = r->out + row0 * HK,
                                 .ldo = HK,
                                 .lse = r->lse + row0 * r->sh.H};
}

static int attn_rows(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    struct kn_attn_args a = args_of(arg, row0, n);
    return kn_attn(st, &a);
}

static int mass_rows(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    struct run *r = arg;
    struct kn_attn_args a = args_of(r, row0, n);
    return kn_attn_mass(st, &a, r->mass, 0, r->n_keys);
}

/* m rows at ascending positions, the last at the last key. */
static void run_init(struct run *r, struct kn_dev *d, struct kern_shape sh, size_t n_keys, size_t m)
{
    size_t GK = (size_t)sh.G * sh.K, HK = (size_t)sh.H * sh.K;
    *r = (struct run){.d = d, .sh = sh, .n_keys = n_keys, .m = m};
    kern_kv_init(&r->s, sh.G, sh.K, n_keys, 2);
    r->q = kern_random(m * HK, 11, 2);
    r->k = kern_random(n_keys * GK, 12, 1);
    r->v = kern_random(n_keys * GK, 13, 1);
    r->out = kern_random(m * HK, 14, 1);
    r->lse = kern_random(m * sh.H, 15, 1);
    r->mass = calloc(n_keys + 1, sizeof *r->mass);
    r->pos = malloc((m + 1) * sizeof *r->pos);
    r->key_pos = malloc(n_keys * sizeof *r->key_pos);
    for (size_t i = 0; i < n_keys; i++)
        r->key_pos[i] = (int32_t)i;
    for (size_t i = 0; i < m; i++)
        r->pos[i] = (int32_t)((i + 1) * n_keys / m - 1);
    ASSERT_OK(kern_run(d, false, n_keys, put_rows, r));
}

static void run_fini(struct run *r)
{
    kern_kv_fini(&r->s);
    free(r->q);
    free(r->k);
    free(r->v);
    free(r->out);
    free(r->lse);
    free(r->mass);
    free(r->pos);
    free(r->key_pos);
}

/* How far lse, outputs beside the largest value, and mass may be from what they are. */
struct within {
    double lse, out, mass;
};
static const struct within f32 = {4e-6, 5e-6, 1e-5};
/* Whole numbers of 16 bits, of which 12 and a sign are used, and of 8. */
static const struct {
    const char *gemm;
    struct within to;
} wholes[] = {{"own-int16", {1e-3, 1e-3, 2e-3}}, {"own-int8", {1e-2, 1.5e-2, 6e-2}}};
enum { WHOLES = sizeof wholes / sizeof *wholes };

static double largest(const float *x, size_t n)
{
    double top = 0;
    for (size_t i = 0; i < n; i++)
        top = fmax(top, fabs((double)x[i]));
    return top;
}

static void check(struct run *r, struct within to)
{
    size_t K = r->sh.K, GK = r->sh.G * K, HK = r->sh.H * K, group = r->sh.H / r->sh.G;
    double *out = malloc(K * sizeof *out), *prob = malloc(r->n_keys * sizeof *prob);
    double *mass = calloc(r->n_keys, sizeof *mass);
    for (size_t i = 0; i < r->m; i++)
        for (size_t h = 0; h < r->sh.H; h++) {
            size_t g = h / group, n = (size_t)r->pos[i] + 1;
            double lse = ref_attn(r->q + i * HK + h * K, r->k + g * K, r->v + g * K, GK, K, n,
                                  (double)(1.0f / sqrtf((float)K)), 0, out, prob);
            const double top = largest(r->v, n * GK);
            /* Scores reach about sqrt(K); their rounding enters the exponent. */
            ASSERT_NEAR(r->lse[i * r->sh.H + h], lse, to.lse * (1 + fabs(lse)));
            for (size_t d = 0; d < K; d++)
                ASSERT_NEAR(r->out[i * HK + h * K + d], out[d], to.out * top);
            for (size_t j = 0; j < n; j++)
                mass[j] += prob[j];
        }
    for (size_t j = 0; j < r->n_keys; j++)
        ASSERT_NEAR(r->mass[j], mass[j], to.mass * (mass[j] + 0.1));
    free(out);
    free(prob);
    free(mass);
}

static const struct kern_shape shapes[] = {{9, 3, 64}, {4, 4, 32},  {8, 2, 128}, {2, 1, 80},
                                           {6, 3, 96}, {14, 2, 64}, {3, 1, 6},   {5, 1, 50}};

TEST(matches_oracle)
{
    static const size_t sizes[][2] = {{1, 1}, {64, 64}, {65, 1}, {130, 7}, {200, 200}, {333, 40}};
    for (unsigned i = 0; i < 3; i++) {
        struct kn_dev *d = kern_dev(i, 2, NULL);
        if (!d) continue;
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (size_t z = 0; z < sizeof sizes / sizeof *sizes; z++) {
                struct run r;
                run_init(&r, d, shapes[s], sizes[z][0], sizes[z][1]);
                bool wide = z % 2;
                ASSERT_OK(kern_run(d, wide, r.m, attn_rows, &r));
                ASSERT_OK(kern_run(d, true, r.m, mass_rows, &r));
                check(&r, f32);
                run_fini(&r);
            }
        kn_dev_destroy(d);
    }
}

/* ---- whole numbers: test_attn_rows.c has more ---- */

/* Of AVX2 and AVX-512, in 16 bits and in 8. */
static struct kn_dev *whole_dev(unsigned *i, struct within *to)
{
    struct kn_dev *d = NULL;
    while (!d && *i < 2 * WHOLES) {
        const unsigned of = *i / 2;
        *to = wholes[of].to;
        d = kern_dev((*i)++ % 2 + 1, 2, wholes[of].gemm);
        if (d && kn_info(d)->kv != (of ? KN_Q8 : KN_Q16)) { /* int8 without VNNI */
            kn_dev_destroy(d);
            d = NULL;
        }
    }
    return d;
}

static void whole_run(struct run *r)
{
    ASSERT_OK(kern_run(r->d, false, r->n_keys, put_rows, r));
    ASSERT_OK(kern_run(r->d, false, r->m, attn_rows, r));
    ASSERT_OK(kern_run(r->d, true, r->m, mass_rows, r));
}

static int put_one(struct kn_dev *d, unsigned K)
{
    struct run r = {.sh = {1, 1, K}, .key_pos = (int32_t[]){0}};
    kern_kv_init(&r.s, 1, K, 1, 2);
    r.k = r.v = kern_random(K, 1, 1);
    const int rc = kern_run(d, false, 1, put_rows, &r);
    kern_kv_fini(&r.s);
    free(r.k);
    return rc;
}

TEST(whole_numbers_have_heads_of_any_size)
{
    static const struct kern_shape odd[] = {{3, 1, 7},   {2, 2, 49},  {1, 1, 1},   {1, 1, 4},
                                            {3, 1, 12},  {9, 3, 64},  {2, 1, 80},  {4, 2, 96},
                                            {3, 1, 132}, {2, 1, 600}, {1, 1, 1024}};
    struct kn_dev *d;
    struct within to;
    for (unsigned i = 0; (d = whole_dev(&i, &to));) {
        for (size_t s = 0; s < sizeof odd / sizeof *odd; s++) {
            if (kn_info(d)->kv == KN_Q8 && odd[s].K % 4) {
                ASSERT_ERR(put_one(d, odd[s].K), -ENOTSUP);
                continue;
            }
            struct run r;
            run_init(&r, d, odd[s], 130, 7);
            whole_run(&r);
            check(&r, to);
            run_fini(&r);
        }
        ASSERT_ERR(put_one(d, 1028), -ENOTSUP);
        kn_dev_destroy(d);
    }
}

/* Pages asked for in 8 bits are those that are multiplied where products round, and the others, of
 * heads of any even size, where they do not. */
TEST(pages_in_8_bits_are_multiplied_where_products_round)
{
    static const char *const isas[] = {"avx2", "avx512"};
    for (unsigned i = 0; i < 2; i++) {
        struct kn_dev *d = kern_device() ? NULL : kern_dev(i + 1, 1, "own-int8");
        const bool multiplied = d && kn_info(d)->kv == KN_Q8;
        kn_dev_destroy(d);
        for (int rounds = 0; multiplied && rounds < 2; rounds++) {
            const struct kn_dev_opts o = {
                .n_threads = 1, .isa = isas[i], .kv_q8 = true, .allow_bf16 = rounds};
            struct err e;
            ASSERT_OK(kn_dev_create(&o, &d, &e));
            ASSERT_EQ(kn_info(d)->kv, KN_Q8);
            ASSERT_EQ(put_one(d, 6), rounds ? -ENOTSUP : 0);
            ASSERT_OK(put_one(d, 8));
            kn_dev_destroy(d);
        }
    }
}

/* Every number the largest there is, of one sign, and as many of them as meet. */
TEST(sums_of_whole_numbers_do_not_overflow)
{
    static const size_t dims[] = {64, 128, 512, 1024};
    struct kn_dev *d;
    struct within to;
    for (unsigned i = 0; (d = whole_dev(&i, &to));) {
        for (size_t s = 0; s < sizeof dims / sizeof *dims; s++) {
            struct run r;
            run_init(&r, d, (struct kern_shape){1, 1, (unsigned)dims[s]}, 128, 2);
            for (size_t x = 0; x < r.m * dims[s]; x++)
                r.q[x] = 1;
            for (size_t x = 0; x < r.n_keys * dims[s]; x++)
                r.k[x] = -1, r.v[x] = 0.99999f;
            whole_run(&r);
            check(&r, to);
            run_fini(&r);
        }
        kn_dev_destroy(d);
    }
}

/* Keys of all sizes beside each other, and of zeros. */
TEST(whole_numbers_take_values_of_any_size)
{
    struct kn_dev *d;
    struct within to;
    for (unsigned i = 0; (d = whole_dev(&i, &to));) {
        for (int what = 0; what < 3; what++) {
            struct run r;
            run_init(&r, d, shapes[0], 200, 50);
            const size_t GK = (size_t)r.sh.G * r.sh.K;
            for (size_t x = 0; x < r.n_keys * GK; x++) {
                const size_t key = x / GK;
                if (what == 0) r.v[x] = ldexpf(r.v[x], (int)(key * 37 % 80) - 40);
                if (key % 10 == 3) r.v[x] = 0;
                if (what == 1) r.v[x] = 0;
                if (what == 2 || key % 10 == 7) r.k[x] = 0;
            }
            whole_run(&r);
            check(&r, to);
            run_fini(&r);
        }
        kn_dev_destroy(d);
    }
}

TEST(whole_numbers_show_what_is_no_number)
{
    struct kn_dev *d;
    struct within to;
    for (unsigned i = 0; (d = whole_dev(&i, &to));) {
        for (int what = 0; what < 4; what++) {
            struct run r;
            run_init(&r, d, (struct kern_shape){2, 1, 64}, 130, 130);
            (what == 0   ? r.q
             : what == 1 ? r.k
                         : r.v)[70 * 64 * (what ? 1 : 2) + 5] = what == 3 ? INFINITY : NAN;
            ASSERT_OK(kern_run(d, false, r.n_keys, put_rows, &r));
            ASSERT_OK(kern_run(d, false, r.m, attn_rows, &r));
            for (size_t row = 0; row < r.m; row++)
                ASSERT_EQ(isnan(r.out[row * 128 + 9]), what ? row >= 70 : row == 70);
            run_fini(&r);
        }
        kn_dev_destroy(d);
    }
}

/* The same bits for a row alone, among others, on other threads and split by heads. */
TEST(rows_are_invariant)
{
    static const size_t counts[] = {1, 2, 5, 7, 50, 150};
    for (unsigned i = 0; i < 3; i++)
        for (size_t s = 0; s < 3; s++) {
            struct kn_dev *d = kern_dev(i, 1 + (unsigned)s, NULL);
            if (!d) continue;
            struct run r;
            run_init(&r, d, shapes[s], 420, 150);
            size_t HK = (size_t)r.sh.H * r.sh.K;
            ASSERT_OK(kern_run(d, false, r.m, attn_rows, &r));
            float *want = malloc(r.m * HK * sizeof *want);
            float *lse = malloc(r.m * r.sh.H * sizeof *lse);
            memcpy(want, r.out, r.m * HK * sizeof *want);
            memcpy(lse, r.lse, r.m * r.sh.H * sizeof *lse);
            for (size_t t = 0; t < 2 * sizeof counts / sizeof *counts; t++) {
                size_t m = counts[t / 2], row = r.m - m;
                struct run sub = r;
                sub.q += row * HK;
                sub.pos += row;
                memset(r.out, 0xff, r.m * HK * sizeof *r.out);
                ASSERT_OK(kern_run(d, t % 2, m, attn_rows, &sub));
                ASSERT_MEMEQ(r.out, want + row * HK, m * HK * sizeof *want);
                ASSERT_MEMEQ(r.lse, lse + row * r.sh.H, m * r.sh.H * sizeof *lse);
            }
            free(want);
            free(lse);
            run_fini(&r);
            kn_dev_destroy(d);
        }
}

/* No row depends on a later key: other values there, NaN included in pages it cannot see. */
TEST(future_keys_change_nothing)
{
    for (unsigned i = 0; i < 3; i++) {
        struct kn_dev *d = kern_dev(i, 1, NULL);
        if (!d) continue;
        struct run r;
        run_init(&r, d, shapes[0], 300, 60);
        size_t HK = (size_t)r.sh.H * r.sh.K, GK = (size_t)r.sh.G * r.sh.K, cut = 29;
        ASSERT_OK(kern_run(d, false, r.m, attn_rows, &r));
        float *want = malloc(r.m * HK * sizeof *want);
        memcpy(want, r.out, r.m * HK * sizeof *want);
        for (size_t j = (size_t)r.pos[cut] + 1; j < r.n_keys; j++)
            for (size_t d1 = 0; d1 < GK; d1++) {
                r.k[j * GK + d1] = j < 192 ? 1e4f : 2.0f;
                r.v[j * GK + d1] = j < 192 ? -3e4f : 7.0f;
            }
        ASSERT_OK(kern_run(d, false, r.n_keys, put_rows, &r));
        ASSERT_OK(kern_run(d, false, r.m, attn_rows, &r));
        ASSERT_MEMEQ(r.out, want, (cut + 1) * HK * sizeof *want);
        ASSERT_TRUE(memcmp(r.out, want, r.m * HK * sizeof *want) != 0);
        free(want);
        run_fini(&r);
        kn_dev_destroy(d);
    }
}

/* Sparse rows (selected tokens) give what the same rows give in a full pass. */
TEST(selected_rows_equal_full_rows)
{
    struct kn_dev *d = kern_dev(2, 2, NULL);
    if (!d) d = kern_dev(0, 2, NULL);
    struct run r;
    run_init(&r, d, shapes[0], 250, 250);
    size_t HK = (size_t)r.sh.H * r.sh.K, n = 0;
    ASSERT_OK(kern_run(d, false, r.m, attn_rows, &r));
    struct run sub = r;
    sub.q = malloc(r.m * HK * sizeof(float));
    sub.out = malloc(r.m * HK * sizeof(float));
    sub.pos = malloc(r.m * sizeof(int32_t));
    for (size_t i = 3; i < r.m; i += 1 + i % 5, n++) {
        memcpy(sub.q + n * HK, r.q + i * HK, HK * sizeof(float));
        sub.pos[n] = r.pos[i];
    }
    ASSERT_OK(kern_run(d, false, n, attn_rows, &sub));
    for (size_t i = 0; i < n; i++)
        ASSERT_MEMEQ(sub.out + i * HK, r.out + (size_t)sub.pos[i] * HK, HK * sizeof(float));
    free(sub.q);
    free(sub.out);
    free(sub.pos);
    run_fini(&r);
    kn_dev_destroy(d);
}

TEST(mass_does_not_depend_on_threads)
{
    float *want = NULL;
    for (unsigned threads = 1; threads <= 4; threads++) {
        struct kn_dev *d = kern_dev(0, threads, NULL);
        struct run r;
        run_init(&r, d, shapes[0], 1400, 20);
        ASSERT_OK(kern_run(d, true, r.m, attn_rows, &r));
        ASSERT_OK(kern_run(d, true, r.m, mass_rows, &r));
        if (want) ASSERT_MEMEQ(r.mass, want, r.n_keys * sizeof *want);
        if (!want) {
            want = malloc(r.n_keys * sizeof *want);
            memcpy(want, r.mass, r.n_keys * sizeof *want);
        }
        run_fini(&r);
        kn_dev_destroy(d);
    }
    free(want);
}

TEST(bad_positions_are_refused)
{
    struct kn_dev *d = kern_dev(0, 1, NULL);
    struct run r;
    run_init(&r, d, shapes[0], 100, 4);
    r.pos[0] = -1;
    ASSERT_ERR(kern_run(d, true, r.m, attn_rows, &r), -EINVAL);
    r.pos[0] = 99, r.pos[1] = 98;
    ASSERT_ERR(kern_run(d, true, r.m, attn_rows, &r), -EINVAL);
    r.pos[0] = 0, r.pos[1] = 1, r.pos[2] = 2, r.pos[3] = 128;
    ASSERT_ERR(kern_run(d, true, r.m, attn_rows, &r), -EINVAL);
    run_fini(&r);
    kn_dev_destroy(d);
}
