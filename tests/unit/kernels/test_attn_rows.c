/* Attention of rows anywhere: random positions with repeats and gaps, groups of 1 to 32 heads,
 * tiles, parts and pages that end anywhere, windows that begin anywhere, capped scores, sequences
 * side by side; against the double oracle, and bit for bit against the same row by itself.
 *
 * On a device of bf16 the oracle gets what the device sees: keys and values that bf16 holds, and
 * queries rounded as the kernel rounds them. What is left are the probabilities, which are rounded
 * to 2^-9 before they weigh values but not where they are summed up: log-sum-exp and mass must be
 * as good as in f32.
 * Pages of 8 and of 16 bits get keys and values that these hold, with a step for each key and head.
 * Where products are of whole numbers, the oracle gets queries rounded to such, and weights of a
 * page's values are rounded to 2^-14 of its largest, in 8 bits to 2^-9. */
#include "tests/unit/kernels/kern.h"

struct seq { /* one sequence and its rows */
    struct kern_kv s;
    size_t n_keys, m;
    float *k, *v;     /* [n_keys, G, K] */
    float *q;         /* [m, H, K] */
    float *seen;      /* the same times scale * log2(e), as the device has it */
    float *out, *lse; /* [m, H, K], [m, H] */
    int32_t *pos;     /* [m] */
    int32_t *from;    /* [m] or NULL */
    int32_t *key_pos; /* [n_keys] */
};

struct arith {        /* of a device */
    bool bf16;        /* products */
    bool q8;          /* pages */
    bool int16, int8; /* products of both, and pages */
};

struct job {
    struct kn_dev *d;
    struct arith ar;
    struct kern_shape sh;
    unsigned window, chunk;
    float cap;
    const float *sink; /* [H] or NULL */
    struct seq *seq;
    size_t n;
    /* what to run: rows [row0, row0 + m) of sequence 0, or all of all */
    size_t row0, m, key0, n_mass;
    float *mass, *out, *lse;
    struct kn_rotation to; /* of the queries */
};

static float rounded(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    u = (u + 0x7fffu + (u >> 16 & 1u)) & 0xffff0000u;
    memcpy(&x, &u, 4);
    return x;
}

static float scale_of(struct kern_shape sh)
{
    return 1.0f / sqrtf((float)sh.K);
}

static int by_value(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Whole numbers up to most, which one of them is, times a power of two: every head its own. */
static void fit_whole(float *x, size_t heads, size_t K, float most)
{
    for (size_t h = 0; h < heads; h++, x += K) {
        const float step = ldexpf(1, -(most > 127 ? 12 : 7) - (int)(h % 5));
        for (size_t d = 0; d < K; d++)
            x[d] = rintf(x[d] * most) * step;
        x[h % K] = h % 2 ? most * step : -most * step;
    }
}

/* The largest number of 16 bits that a sum of so many products has room for. */
static float most16(size_t K)
{
    return K <= 128 ? 4095 : 2047;
}

/* Heads as attention in 8 bits rounds them, and back: every 64 dims by a Hadamard matrix. */
static void turn(float *x, size_t n, size_t K)
{
    for (size_t i = 0; i < n; i++)
        if (i % K % 64 == 0 && i % K + 64 <= K)
            for (size_t s = 32; s > 0; s /= 2)
                for (size_t d = 0; d < 64; d++)
                    if (!(d & s)) {
                        float *a = x + i + d, *b = a + s;
                        const float half = s >= 8 ? 0.5f : 1.0f; /* by 8 in all */
                        const float sum = (*a + *b) * half, less = (*a - *b) * half;
                        *a = sum, *b = less;
                    }
}

/* A query's head times by, of whole numbers. */
static void round_query(struct arith ar, const float *q, size_t K, float by, float *ret)
{
    const float most = ar.int8 ? 127 : most16(K);
    float top = 0;
    memcpy(ret, q, K * sizeof *q);
    if (ar.int8) turn(ret, K, K);
    for (size_t d = 0; d < K; d++)
        top = fmaxf(top, fabsf(ret[d]));
    const float step = top / most, inverse = ar.int8 ? 1 / step : most / top;
    for (size_t d = 0; d < K; d++)
        ret[d] = (float)rint((double)ret[d] * (double)inverse) * step * by;
    if (ar.int8) turn(ret, K, K);
}

static void fit(struct arith ar, float *x, size_t heads, size_t K)
{
    if (ar.q8 || ar.int16 || ar.int8)
        fit_whole(x, heads, K, ar.int16 ? most16(K) : 127);
    else
        for (size_t i = 0; ar.bf16 && i < heads * K; i++)
            x[i] = rounded(x[i]);
}

/* Positions drawn one by one: some twice, gaps between; the last row at the last key. */
static void seq_init(struct seq *s, struct kern_shape sh, struct arith ar, size_t n_keys, size_t m,
                     uint64_t seed)
{
    const size_t GK = (size_t)sh.G * sh.K, HK = (size_t)sh.H * sh.K;
    *s = (struct seq){.n_keys = n_keys, .m = m};
    kern_kv_init(&s->s, sh.G, sh.K, n_keys, 2);
    s->k = kern_random(n_keys * GK, seed + 1, 1), s->v = kern_random(n_keys * GK, seed + 2, 1);
    s->q = kern_random(m * HK, seed + 3, 3), s->seen = kern_random(m * HK, 0, 1);
    s->out = kern_random(m * HK, 0, 1), s->lse = kern_random(m * sh.H, 0, 1);
    s->pos = malloc((m + 1) * sizeof *s->pos);
    s->key_pos = malloc(n_keys * sizeof *s->key_pos);
    for (size_t i = 0; i < n_keys; i++)
        s->key_pos[i] = (int32_t)i;
    fit(ar, s->k, n_keys * sh.G, sh.K);
    if (ar.int8) { /* so little smaller that steps, rounded up, are what they were */
        for (size_t i = 0; i < n_keys * GK; i++)
            s->k[i] *= 1 - 0x1p-18f;
        turn(s->k, n_keys * GK, sh.K);
    }
    fit(ar, s->v, n_keys * sh.G, sh.K);
    for (size_t i = 0; i < m * HK;
         i++) { /* odd sizes are no matter of tensor cores, but of tiles */
        const float x = s->q[i] * (scale_of(sh) * 1.44269504088896341f);
        s->seen[i] = ar.bf16 && (sh.K % (ar.q8 ? 16 : 8) == 0 || !kern_device()) ? rounded(x) : x;
    }
    for (size_t i = 0; (ar.int16 || ar.int8) && i < m * HK; i += sh.K)
        round_query(ar, s->q + i, sh.K, scale_of(sh) * 1.44269504088896341f, s->seen + i);
    for (size_t i = 0; i < m; i++)
        s->pos[i] = (int32_t)(i + 1 == m ? n_keys - 1 : test_rand(&seed) % n_keys);
    qsort(s->pos, m, sizeof *s->pos, by_value);
}

/* Keys of the second page are twice, of later ones four times as long: the largest score grows from
 * page to page, by less and by more than what a maximum may stay behind. */
static void seq_rise(struct seq *s, struct kern_shape sh)
{
    const size_t GK = (size_t)sh.G * sh.K;
    for (size_t i = 64 * GK; i < s->n_keys * GK; i++)
        s->k[i] *= i < 128 * GK ? 2 : 4;
}

static void seq_fini(struct seq *s)
{
    kern_kv_fini(&s->s);
    free(s->k), free(s->v), free(s->q), free(s->seen), free(s->out), free(s->lse);
    free(s->pos), free(s->key_pos), free(s->from);
}

/* A first key of its own for every row, as little in order with the window's end as may be. */
static void seq_from(struct seq *s, uint64_t seed)
{
    s->from = malloc(s->m * sizeof *s->from);
    for (size_t i = 0; i < s->m; i++) {
        const uint64_t most = (uint64_t)s->pos[i] + 1;
        s->from[i] = s->pos[i] - (int32_t)(test_rand(&seed) % (most < 200 ? most : 200));
    }
    qsort(s->from, s->m, sizeof *s->from, by_value);
}

static struct kn_attn_args args_of(const struct job *j, const struct seq *s, size_t row0, size_t m)
{
    const size_t HK = (size_t)j->sh.H * j->sh.K;
    return (struct kn_attn_args){.q = s->q + row0 * HK,
                                 .ldq = HK,
                                 .m = m,
                                 .to = {j->to.rope, j->to.rope ? j->to.pos + row0 : NULL},
                                 .pos = s->pos + row0,
                                 .H = j->sh.H,
                                 .kv = &s->s.kv,
                                 .layer = 1,
                                 .scale = scale_of(j->sh),
                                 .cap = j->cap,
                                 .window = j->window,
                                 .chunk = j->chunk,
                                 .sink = j->sink,
                                 .from = s->from ? s->from + row0 : NULL,
                                 .out = s->out + row0 * HK,
                                 .ldo = HK,
                                 .lse = s->lse + row0 * j->sh.H};
}

static int put_keys(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    const struct job *j = arg;
    const size_t GK = (size_t)j->sh.G * j->sh.K;
    int r = 0;
    for (size_t i = 0; r == 0 && i < j->n; i++)
        r = kn_kv_put(st, &j->seq[i].s.kv, 1, j->seq[i].key_pos, j->seq[i].n_keys, j->seq[i].k, GK,
                      j->seq[i].v, GK);
    return r;
}

static int attend_rows(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    const struct job *j = arg;
    struct kn_attn_args a = args_of(j, j->seq, j->row0 + row0, n);
    if (j->out) a.out = j->out + row0 * a.ldo, a.lse = j->lse + row0 * a.H;
    return kn_attn(st, &a);
}

static int mass_rows(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    const struct job *j = arg;
    struct kn_attn_args a = args_of(j, j->seq, 0, j->seq->m);
    return kn_attn_mass(st, &a, j->mass, j->key0, j->n_mass);
}

/* The arithmetics of the device under test, in turns; the CPU's instruction sets count as such, and
 * pages of 8 bits beside each. */
static struct kn_dev *next_dev(unsigned *i, struct arith *ret)
{
    struct kn_dev *d = NULL;
    if (kern_device()) {
        *ret = (struct arith){*i == 1, kern_kv_q8()};
        if (*i == 2) return NULL;
        const unsigned of = (*i)++ ? KERN_PAGES + KERN_PAGES_BF16 : KERN_PAGES;
        d = ret->q8 ? kern_dev_of_pages(of, 1) : kern_dev(2, 1, ret->bf16 ? "own-bf16" : "own-f32");
        ASSERT_EQ(kn_info(d)->kv == KN_Q8, ret->q8);
        return d;
    }
    while (!d && *i < KERN_PAGES_ALL)
        d = kern_dev_of_pages((*i)++, 2);
    if (!d) return NULL;
    const unsigned of = *i - 1;
    *ret = (struct arith){of % KERN_PAGES >= KERN_PAGES_BF16, of >= KERN_PAGES};
    if (of >= KERN_PAGES_INT8)
        *ret = (struct arith){.int8 = true};
    else if (of >= KERN_PAGES_INT16)
        *ret = (struct arith){.int16 = true};
    ASSERT_EQ(kn_info(d)->kv, ret->int16             ? KN_Q16
                              : ret->q8 || ret->int8 ? KN_Q8
                              : ret->bf16            ? KN_BF16
                                                     : KN_F32);
    return d;
}

/* A score more in the softmax takes its share of what all others have. */
static void add_sink(double sink, size_t K, size_t n, double *out, double *prob, double *lse)
{
    const double left = 1 / (1 + exp(sink - *lse));
    for (size_t d = 0; d < K; d++)
        out[d] *= left;
    for (size_t i = 0; i < n; i++)
        prob[i] *= left;
    *lse -= log(left);
}

static void check(const struct job *j, const struct seq *s)
{
    const size_t K = j->sh.K, GK = j->sh.G * K, HK = j->sh.H * K, group = j->sh.H / j->sh.G;
    double *out = malloc(K * sizeof *out), *prob = malloc(s->n_keys * sizeof *prob);
    double *mass = calloc(s->n_keys, sizeof *mass);
    const double tolerance = (j->ar.int8    ? 0x1p-6
                              : j->ar.bf16  ? 0x1p-9
                              : j->ar.int16 ? 0x1p-10
                                            : 0) +
                             1e-5;
    const double of_exp = j->ar.bf16 || j->ar.int8 ? 1e-4 : 1e-5; /* a shorter polynomial's */
    for (size_t i = 0; i < s->m; i++)
        for (size_t h = 0; h < j->sh.H; h++) {
            const size_t g = h / group, n = (size_t)s->pos[i] + 1;
            const size_t from = s->from                      ? (size_t)s->from[i]
                                : j->chunk                   ? n - 1 - (n - 1) % j->chunk
                                : j->window && n > j->window ? n - j->window
                                                             : 0;
            double lse = ref_attn(s->seen + i * HK + h * K, s->k + from * GK + g * K,
                                  s->v + from * GK + g * K, GK, K, n - from, 0.69314718055994531,
                                  (double)j->cap, out, prob);
            if (j->sink) add_sink((double)j->sink[h], K, n - from, out, prob, &lse);
            ASSERT_NEAR(s->lse[i * j->sh.H + h], lse, of_exp * (1 + fabs(lse)));
            for (size_t d = 0; d < K; d++)
                ASSERT_NEAR(s->out[i * HK + h * K + d], out[d], tolerance);
            for (size_t key = from; key < n; key++)
                mass[key] += prob[key - from];
        }
    for (size_t key = 0; j->mass && key < s->n_keys; key++) {
        const bool asked = key >= j->key0 && key < j->key0 + j->n_mass;
        const double want = asked ? 1 + mass[key] : 1; /* it is added to what was there */
        ASSERT_NEAR(j->mass[key], want, 2 * of_exp * (mass[key] + 0.1) + 1e-6);
    }
    free(out), free(prob), free(mass);
}

static const struct {
    struct kern_shape sh;
    size_t n_keys, m;
    unsigned window;
    float cap;
    bool own; /* windows of any length */
    bool sinks;
    unsigned chunk;
    bool rising; /* scores */
} cases[] = {
    {{1, 1, 64}, 1, 1},
    {{3, 1, 64}, 63, 5},
    {{8, 1, 128}, 64, 2},
    {{8, 2, 128}, 65, 17},
    {{4, 2, 64}, 130, 33},
    {{14, 2, 64}, 511, 9},
    {{6, 1, 64}, 512, 11},
    {{5, 1, 80}, 513, 7},
    {{4, 2, 96}, 700, 21},
    {{2, 1, 256}, 97, 20},
    {{2, 2, 48}, 256, 40},
    {{9, 3, 64}, 1100, 22},
    {{8, 1, 128}, 1100, 16},
    {{7, 1, 128}, 600, 19},
    {{2, 1, 50}, 90, 6},
    {{16, 1, 64}, 140, 1},
    {{32, 1, 16}, 70, 3},
    {{1, 1, 128}, 1025, 70},
    {{4, 4, 256}, 40, 3},
    {{32, 2, 80}, 70, 5},
    {{16, 1, 96}, 130, 3},
    {{16, 1, 128}, 90, 9},
    {{16, 1, 256}, 66, 2},
    {{3, 3, 80}, 70, 4},
    {{2, 2, 96}, 65, 18},
    /* Windows of a key, of less than a tile, of a page, beyond a part; caps that bend scores. */
    {{9, 3, 64}, 300, 80, 1, 0},
    {{4, 2, 64}, 700, 33, 23, 0},
    {{8, 1, 128}, 1100, 90, 64, 0},
    {{2, 1, 256}, 1300, 40, 600, 2},
    {{8, 2, 128}, 1700, 12, 513, 0},
    {{2, 1, 50}, 200, 9, 65, 1},
    {{6, 1, 64}, 600, 11, 4096, 3},
    {{14, 2, 64}, 130, 60, 0, 0.5f},
    {{9, 3, 64}, 300, 80, 0, 0, true},
    {{8, 1, 128}, 1100, 90, 0, 2, true},
    {{12, 12, 32}, 257, 40, 0, 0, true},
    {{1, 1, 64}, 1, 1, .sinks = true},
    {{9, 3, 64}, 300, 80, 1, .sinks = true},
    {{8, 1, 64}, 700, 90, 128, .sinks = true},
    {{5, 1, 50}, 513, 7, .sinks = true},
    {{16, 2, 128}, 1100, 22, 70, 2, .sinks = true},
    {{12, 12, 32}, 257, 40, 0, 0, true, .sinks = true},
    {{9, 3, 64}, 300, 80, .chunk = 24},
    {{8, 1, 128}, 1100, 90, .chunk = 64},
    {{5, 1, 50}, 513, 40, .chunk = 1},
    {{16, 2, 128}, 1100, 90, 0, 2, .chunk = 500},
    {{6, 1, 64}, 600, 11, .chunk = 8192, .sinks = true},
    {{9, 3, 64}, 300, 80, .rising = true},
    {{5, 1, 80}, 513, 40, .rising = true, .sinks = true},
    {{8, 1, 128}, 700, 90, 100, .rising = true},
};

TEST(rows_anywhere_match_the_oracle)
{
    struct arith ar;
    struct kn_dev *d;
    for (unsigned i = 0; (d = next_dev(&i, &ar));) {
        for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
            if (ar.int8 && cases[c].sh.K % 4) continue;
            struct seq s;
            struct job j = {.d = d,
                            .ar = ar,
                            .sh = cases[c].sh,
                            .window = cases[c].window,
                            .chunk = cases[c].chunk,
                            .cap = cases[c].cap,
                            .seq = &s,
                            .n = 1};
            float *sink = kern_random(j.sh.H, c, 6);
            if (cases[c].sinks) j.sink = sink;
            seq_init(&s, j.sh, ar, cases[c].n_keys, cases[c].m, 100 * c + 7);
            if (cases[c].own) seq_from(&s, c);
            if (cases[c].rising) seq_rise(&s, j.sh);
            j.mass = malloc(s.n_keys * sizeof *j.mass);
            for (size_t key = 0; key < s.n_keys; key++)
                j.mass[key] = 1;
            j.key0 = s.n_keys > 200 ? 64 : 0; /* not from the first page, not to the last key */
            j.n_mass = s.n_keys > 200 ? s.n_keys - 64 - 3 : s.n_keys;
            ASSERT_OK(kern_run(d, true, 1, put_keys, &j));
            const int own = cases[c].own && kern_device() ? -ENOTSUP : 0;
            const int here = j.chunk && kern_device() ? -ENOTSUP : own;
            ASSERT_EQ(kern_run(d, c % 2, s.m, attend_rows, &j), here);
            ASSERT_EQ(kern_run(d, true, s.m, mass_rows, &j), here);
            if (here == 0) check(&j, &s);
            if (cases[c].own && !kern_device()) { /* a row that sees nothing */
                s.from[0] = s.pos[0] + 1;
                ASSERT_ERR(kern_run(d, true, s.m, attend_rows, &j), -EINVAL);
            }
            free(j.mass), free(sink);
            seq_fini(&s);
        }
        kn_dev_destroy(d);
    }
}

/* A few rows make one warp a block and parts apart, many make whole blocks; tiles begin elsewhere,
 * other rows come along: no bit of a row moves. */
TEST(a_row_does_not_know_its_neighbours)
{
    static const struct kern_shape shapes[] = {{9, 3, 64},  {8, 1, 128}, {5, 1, 96},
                                               {6, 1, 256}, {9, 3, 64},  {2, 1, 128}};
    static const unsigned windows[] = {0, 0, 0, 0, 70, 600};
    static const float values[9] = {-3, 0, 4, 9, -1, 2, 5, 1, 3};
    float *sinks = calloc(9, sizeof *sinks);
    memcpy(sinks, values, sizeof values);
    struct arith ar;
    struct kn_dev *d;
    for (unsigned i = 0; (d = next_dev(&i, &ar));) {
        for (size_t c = 0; c < sizeof shapes / sizeof *shapes; c++) {
            enum { KEYS = 1200, M = 70 };
            const size_t HK = (size_t)shapes[c].H * shapes[c].K, H = shapes[c].H;
            uint64_t seed = c + 1;
            struct seq s;
            struct job j = {.d = d, .ar = ar, .sh = shapes[c], .seq = &s, .n = 1};
            j.window = windows[c], j.cap = windows[c] ? 4 : 0;
            if (c % 2 == 0) j.sink = sinks;
            if (c % 4 == 3 && !kern_device()) j.chunk = 250;
            seq_init(&s, j.sh, ar, KEYS, M, 900 + c);
            ASSERT_OK(kern_run(d, true, 1, put_keys, &j));
            ASSERT_OK(kern_run(d, true, M, attend_rows, &j));
            j.out = kern_random(M * HK, 0, 1), j.lse = kern_random(M * H, 0, 1);
            for (size_t t = 0; t < 14; t++) {
                j.m = t < 4 ? t + 1 : 1 + test_rand(&seed) % 40;
                j.row0 = test_rand(&seed) % (M - j.m + 1);
                memset(j.out, 0xff, j.m * HK * sizeof *j.out);
                ASSERT_OK(kern_run(d, t % 2, j.m, attend_rows, &j));
                ASSERT_MEMEQ(j.out, s.out + j.row0 * HK, j.m * HK * sizeof *j.out);
                ASSERT_MEMEQ(j.lse, s.lse + j.row0 * H, j.m * H * sizeof *j.lse);
            }
            free(j.out), free(j.lse);
            seq_fini(&s);
        }
        kn_dev_destroy(d);
    }
    free(sinks);
}

static int turn_rows(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    const struct job *j = arg;
    const size_t HK = (size_t)j->sh.H * j->sh.K;
    return kn_rope(st, j->to.rope, j->seq->q + row0 * HK, HK, n, j->sh.H, j->to.pos + row0);
}

/* Queries that are rotated as they are read are those that were rotated before, bit for bit: by
 * whole blocks, by parts and on plain cores, all of a head or some of it. */
TEST(queries_are_rotated_as_they_are_read)
{
    static const struct {
        struct kern_shape sh;
        unsigned n_rot;
        size_t m;
    } turns[] = {{{9, 3, 64}, 64, 70}, {{9, 3, 64}, 64, 2},    {{5, 1, 80}, 80, 40},
                 {{4, 2, 96}, 96, 40}, {{4, 2, 96}, 40, 3},    {{16, 1, 128}, 128, 40},
                 {{8, 2, 128}, 32, 5}, {{2, 1, 256}, 256, 30}, {{4, 4, 256}, 64, 3},
                 {{2, 1, 50}, 50, 9},  {{3, 1, 64}, 6, 9}};
    enum { KEYS = 1100, TABLE = 300 };
    struct arith ar;
    struct kn_dev *d;
    for (unsigned i = 0; (d = next_dev(&i, &ar));) {
        for (size_t c = 0; c < sizeof turns / sizeof *turns; c++) {
            const struct kern_shape sh = turns[c].sh;
            if (ar.int8 && sh.K % 4) continue;
            const size_t M = turns[c].m, HK = (size_t)sh.H * sh.K, values = TABLE * sh.K / 2;
            float *cs = kern_random(values, 3, 1), *sn = kern_random(values, 4, 1);
            const struct kn_rope rope = {sh.K, turns[c].n_rot, cs, sn, TABLE, 1.25f};
            int32_t *to = malloc(M * sizeof *to);
            for (size_t r = 0; r < M; r++)
                to[r] = (int32_t)(r * 37 % TABLE);
            struct seq s;
            struct job j = {.d = d, .ar = ar, .sh = sh, .seq = &s, .n = 1, .m = M};
            seq_init(&s, sh, ar, KEYS, M, 300 + c);
            ASSERT_OK(kern_run(d, true, 1, put_keys, &j));
            j.out = kern_random(M * HK, 0, 1), j.lse = kern_random(M * sh.H, 0, 1);
            j.to = (struct kn_rotation){&rope, to};
            ASSERT_EQ(kern_run(d, true, M, attend_rows, &j), kern_device() ? 0 : -ENOTSUP);
            ASSERT_ERR(kern_run(d, true, M, mass_rows, &j), -EINVAL);
            if (kern_device()) {
                ASSERT_OK(kern_run(d, true, M, turn_rows, &j));
                float *out = j.out, *lse = j.lse;
                j.out = j.lse = NULL, j.to.rope = NULL;
                ASSERT_OK(kern_run(d, true, M, attend_rows, &j));
                ASSERT_MEMEQ(out, s.out, M * HK * sizeof *out);
                ASSERT_MEMEQ(lse, s.lse, M * sh.H * sizeof *lse);
                j.out = out, j.lse = lse, j.to.rope = &rope;
                to[M / 2] = TABLE;
                ASSERT_ERR(kern_run(d, true, M, attend_rows, &j), -EINVAL);
            }
            free(cs), free(sn), free(to), free(j.out), free(j.lse);
            seq_fini(&s);
        }
        kn_dev_destroy(d);
    }
}

/* Keys behind the last row may hold anything, and so may pages that nobody has written. */
TEST(keys_that_nobody_sees_may_be_anything)
{
    struct arith ar;
    struct kn_dev *d;
    for (unsigned i = 0; (d = next_dev(&i, &ar));) {
        enum { KEYS = 300, SEEN = 139 };
        static const int bytes[] = {0xff /* NaN */, 0x80 /* small, as a logarithm */};
        for (size_t b = 0; b < sizeof bytes / sizeof *bytes; b++) {
            struct seq s;
            struct job j = {.d = d, .ar = ar, .sh = {6, 2, 64}, .seq = &s, .n = 1};
            seq_init(&s, j.sh, ar, KEYS, 12, 5);
            for (size_t r = 0; r < s.m; r++)
                s.pos[r] = s.pos[r] < SEEN ? s.pos[r] : SEEN - 1;
            memset(s.s.mem, bytes[b], s.s.kv.n_pages * s.s.kv.page_stride * sizeof(float));
            s.n_keys = SEEN;
            ASSERT_OK(kern_run(d, true, 1, put_keys, &j));
            ASSERT_OK(kern_run(d, true, s.m, attend_rows, &j));
            check(&j, &s);
            seq_fini(&s);
        }
        kn_dev_destroy(d);
    }
}

/* ---- rows that are of a sequence each ---- */

enum { SEQS = 41, NOBODY = 9 /* every so many-th row is nobody's */ };

struct batch {
    struct kn_kv kv;
    struct kn_pages *each;
    struct seq *seq;
    float *mem, *q, *out, *lse, *k; /* k: [SEQS, 2, G, K] */
    int32_t *pos, *last;
    struct kern_shape sh;
    unsigned window, chunk;
    const float *sink;
};

static bool is_nobody(size_t i)
{
    return i % NOBODY == NOBODY / 2;
}

/* Sequences of one row in one pool. */
static void batch_init(struct batch *b, struct kern_shape sh, struct arith ar, uint64_t seed)
{
    const size_t HK = (size_t)sh.H * sh.K, GK = (size_t)sh.G * sh.K;
    size_t n_pages = 0, most = 0;
    *b = (struct batch){.sh = sh, .seq = (calloc)(SEQS, sizeof *b->seq)};
    b->each = calloc(SEQS, sizeof *b->each);
    b->q = kern_random(SEQS * HK, 0, 1), b->out = kern_random(SEQS * HK, 0, 1);
    b->lse = kern_random(SEQS * sh.H, 0, 1), b->k = kern_random(SEQS * 2 * GK, 0, 1);
    b->pos = calloc(SEQS, sizeof *b->pos), b->last = calloc(SEQS, sizeof *b->last);
    for (size_t i = 0; i < SEQS; i++) {
        struct seq *s = &b->seq[i];
        seq_init(s, sh, ar, 1 + test_rand(&seed) % (i % 8 ? 130 : 1100), 1, seed + i);
        b->last[i] = (int32_t)s->n_keys - 1;
        if (i % 3 == 1) s->pos[0] = (int32_t)(test_rand(&seed) % s->n_keys);
        b->pos[i] = s->pos[0];
        memcpy(b->q + i * HK, s->q, HK * sizeof(float));
        memcpy(b->k + i * 2 * GK, s->k, GK * sizeof(float)); /* the first key again */
        memcpy(b->k + i * 2 * GK + GK, s->v, GK * sizeof(float));
        for (size_t p = 0; p < s->s.kv.n_pages; p++)
            s->s.pages[p] += (int32_t)n_pages;
        b->each[i] = (struct kn_pages){s->s.pages, s->s.kv.n_pages};
        n_pages += s->s.kv.n_pages;
        if (s->s.kv.n_pages > most) most = s->s.kv.n_pages;
        if (!is_nobody(i)) continue;
        b->each[i] = (struct kn_pages){0};
        b->pos[i] = b->last[i] = -5;
        for (size_t x = 0; x < 2 * GK; x++)
            b->k[i * 2 * GK + x] = NAN;
    }
    b->kv = b->seq[0].s.kv;
    b->mem = malloc(n_pages * b->kv.page_stride * sizeof(float));
    for (size_t i = 0; i < SEQS; i++)
        b->seq[i].s.kv.base = b->mem;
    b->kv.base = b->mem, b->kv.pages = NULL, b->kv.n_pages = most, b->kv.each = b->each;
}

static void batch_fini(struct batch *b)
{
    for (size_t i = 0; i < SEQS; i++)
        seq_fini(&b->seq[i]);
    (free)(b->seq);
    free(b->each), free(b->mem), free(b->q), free(b->out), free(b->lse), free(b->k);
    free(b->pos), free(b->last);
}

static int attend_all(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    const struct batch *b = arg;
    const size_t HK = (size_t)b->sh.H * b->sh.K;
    const struct kn_attn_args a = {.q = b->q,
                                   .ldq = HK,
                                   .m = SEQS,
                                   .pos = b->pos,
                                   .H = b->sh.H,
                                   .kv = &b->kv,
                                   .layer = 1,
                                   .scale = scale_of(b->sh),
                                   .window = b->window,
                                   .chunk = b->chunk,
                                   .sink = b->sink,
                                   .out = b->out,
                                   .ldo = HK,
                                   .lse = b->lse};
    return kn_attn(st, &a);
}

/* The last key of each sequence again, all at once, with the first one's value: so that a row that
 * goes elsewhere is seen. */
static int put_last(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    const struct batch *b = arg;
    const size_t GK = (size_t)b->sh.G * b->sh.K;
    return kn_kv_put(st, &b->kv, 1, b->last, SEQS, b->k, 2 * GK, b->k + GK, 2 * GK);
}

static void check_batch(struct kn_dev *d, struct arith ar, struct batch *b)
{
    const size_t HK = (size_t)b->sh.H * b->sh.K, GK = (size_t)b->sh.G * b->sh.K, H = b->sh.H;
    for (size_t i = 0; i < SEQS; i++) {
        struct seq *s = &b->seq[i];
        struct job one = {.d = d,
                          .ar = ar,
                          .sh = b->sh,
                          .window = b->window,
                          .chunk = b->chunk,
                          .sink = b->sink,
                          .seq = s,
                          .n = 1};
        if (is_nobody(i)) { /* as kern_random() of scale 1 and seed 0 left it */
            float *was = kern_random(SEQS * HK, 0, 1);
            ASSERT_MEMEQ(b->out + i * HK, was + i * HK, HK * sizeof(float));
            free(was);
            continue;
        }
        memcpy(s->k + (s->n_keys - 1) * GK, s->k, GK * sizeof(float));
        memcpy(s->v + (s->n_keys - 1) * GK, s->v, GK * sizeof(float));
        memcpy(s->out, b->out + i * HK, HK * sizeof(float));
        memcpy(s->lse, b->lse + i * H, H * sizeof(float));
        check(&one, s);
        ASSERT_OK(kern_run(d, true, 1, attend_rows, &one));
        ASSERT_MEMEQ(b->out + i * HK, s->out, HK * sizeof(float));
        ASSERT_MEMEQ(b->lse + i * H, s->lse, H * sizeof(float));
    }
}

/* Of any length, some of them nobody's; how long the longest may be changes no bit. */
TEST(many_sequences_are_what_each_is)
{
    static const struct kern_shape shapes[] = {{9, 3, 64},  {8, 1, 128}, {3, 1, 50},
                                               {32, 1, 16}, {8, 2, 64},  {3, 1, 50}};
    static const unsigned windows[] = {0, 0, 0, 0, 50, 550};
    float *sinks = kern_random(32, 9, 6);
    struct arith ar;
    struct kn_dev *d;
    for (unsigned i = 0; (d = next_dev(&i, &ar));) {
        for (size_t c = 0; c < sizeof shapes / sizeof *shapes; c++) {
            if (ar.int8 && shapes[c].K % 4) continue;
            struct batch b;
            batch_init(&b, shapes[c], ar, 77 + 100 * c);
            b.window = windows[c];
            if (c % 4 == 3 && !kern_device()) b.chunk = 90 + 64 * (unsigned)c;
            if (c % 2) b.sink = sinks;
            struct job keys = {.d = d, .ar = ar, .sh = b.sh, .seq = b.seq, .n = SEQS};
            ASSERT_OK(kern_run(d, true, 1, put_keys, &keys));
            ASSERT_OK(kern_run(d, c != 0, 1, put_last, &b));
            for (size_t n = 0; n < 2; n++) {
                ASSERT_OK(kern_run(d, c != 1, 1, attend_all, &b));
                check_batch(d, ar, &b);
                b.kv.n_pages = 2 * b.kv.n_pages + 8;
            }
            batch_fini(&b);
        }
        kn_dev_destroy(d);
    }
    free(sinks);
}

static int of_one_alone(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    const struct batch *b = arg;
    float mass[KN_PAGE] = {0};
    const struct kn_attn_args a = {.q = b->q,
                                   .ldq = 1 << 20,
                                   .m = 1,
                                   .pos = b->pos,
                                   .H = b->sh.H,
                                   .kv = &b->kv,
                                   .lse = b->lse};
    ASSERT_ERR(kn_attn_mass(st, &a, mass, 0, KN_PAGE), -EINVAL);
    const struct kn_stored one = {0, -1, 1, b->k, b->k, KN_F32};
    ASSERT_ERR(kn_kv_load(st, &b->kv, 1, NULL, &one, 1), -EINVAL);
    ASSERT_ERR(kn_kv_put(st, &b->kv, 1, b->last, 1, b->k, 63, b->k, 64), -EINVAL);
    return 0;
}

/* One of several sequences has a bad row: it is told, whichever it is. */
TEST(a_bad_row_among_many_is_found)
{
    struct arith ar;
    struct kn_dev *d;
    for (unsigned i = 0; (d = next_dev(&i, &ar));) {
        static const size_t bad[] = {0, 17, SEQS - 2};
        struct batch b;
        batch_init(&b, (struct kern_shape){1, 1, 64}, ar, 5);
        ASSERT_OK(kern_run(d, true, 1, of_one_alone, &b));
        for (size_t n = 0; n < sizeof bad / sizeof *bad; n++) {
            const size_t row = bad[n];
            const int32_t pos = b.pos[row], last = b.last[row];
            ASSERT_TRUE(!is_nobody(row));
            for (size_t t = 0; t < 2; t++) {
                b.pos[row] = b.last[row] = t ? -3 : (int32_t)b.each[row].n * KN_PAGE;
                ASSERT_ERR(kern_run(d, true, 1, attend_all, &b), -EINVAL);
                ASSERT_ERR(kern_run(d, true, 1, put_last, &b), -EINVAL);
            }
            b.pos[row] = pos, b.last[row] = last;
            ASSERT_OK(kern_run(d, true, 1, put_last, &b));
            ASSERT_OK(kern_run(d, true, 1, attend_all, &b));
        }
        batch_fini(&b);
        kn_dev_destroy(d);
    }
}
