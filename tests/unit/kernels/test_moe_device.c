/* A mixture of experts on a GPU: against the CPU backend in every type of weights, in every size of
 * tile, and from a recording. Its definition is test_moe.c's. */
#include "kernels/codes.h"
#include "tests/unit/kernels/kern.h"

enum { N_MAX = 12 };

struct kind {
    enum kn_arith arith;
    enum kn_weights weights;
    double within; /* of a row's length */
};
/* f32: the order of sums. Else what lies between the two products is rounded to bf16, 2^-9 of each
 * value at most, and a third of that is left of sums of many. Weights are exact in all of them. */
static const struct kind kinds[] = {{KN_ARITH_F32, KN_WEIGHTS_AUTO, 2e-5},
                                    {KN_ARITH_BF16, KN_WEIGHTS_AUTO, 4e-3},
                                    {KN_ARITH_BF16, KN_WEIGHTS_FP8, 4e-3},
                                    {KN_ARITH_BF16, KN_WEIGHTS_INT8, 4e-3}};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* The second has more tiles than there are buffers, and tiles that are not full; the third goes by
 * plain cores, the last as well in 8 bits. */
struct size {
    size_t D, F;
    unsigned n, used;
};
static const struct size sizes[] = {
    {64, 32, 5, 2}, {336, 144, 4, 3}, {50, 27, 9, 2}, {24, 8, 12, 12}, {72, 40, 3, 1}};
enum { SIZES = sizeof sizes / sizeof *sizes };
static const size_t rows[] = {1, 2, 17, 130};

struct mix {
    struct kn_dev *d;
    struct kn_moe moe;
    struct kn_mat *gate_up[N_MAX], *down[N_MAX];
};

static float bf16(float x)
{
    uint32_t u;
    memcpy(&u, &x, 4);
    u = (u + 0x7fffu + (u >> 16 & 1)) & 0xffff0000u;
    memcpy(&x, &u, 4);
    return x;
}

static float *rounded(size_t n, uint64_t seed, float scale)
{
    float *x = kern_random(n, seed, scale);
    for (size_t i = 0; i < n; i++)
        x[i] = bf16(x[i]);
    return x;
}

/* Values that the kind of weights keeps as they are: whole numbers, of which the largest of each
 * row gives it a scale that is a power of two. */
static float *exact(size_t n, size_t k, enum kn_weights w, uint64_t seed, float scale)
{
    const float top = w == KN_WEIGHTS_FP8 ? 448 : 127, step = exp2f(floorf(log2f(scale / top)));
    float *x = w == KN_WEIGHTS_AUTO ? rounded(n * k, seed, scale) : kern_random(n * k, seed, 1);
    for (size_t i = 0; w != KN_WEIGHTS_AUTO && i < n * k; i++) {
        const float whole = rintf(x[i] * (w == KN_WEIGHTS_FP8 ? 15 : 127));
        x[i] = (i % k == i / k % k ? top : w == KN_WEIGHTS_FP8 ? whole * 16 : whole) * step;
    }
    return x;
}

static struct kn_mat *full(struct kn_dev *d, size_t n, size_t k, const float *x)
{
    struct kn_mat *w = NULL;
    ASSERT_OK(kn_mat_create_f32(d, n, k, &w));
    ASSERT_OK(kn_mat_fill(w, 0, n, x));
    ASSERT_OK(kn_mat_done(w));
    return w;
}

static struct kn_mat *of_exact(struct kn_dev *d, size_t n, size_t k, enum kn_weights w,
                               uint64_t seed)
{
    float *x = exact(n, k, w, seed, 0.3f);
    struct kn_mat *m = kern_mat(d, n, k, x);
    free(x);
    return m;
}

/* The same on any device. `shared`: an expert of every row. */
static void mix_open(struct mix *x, struct kn_dev *d, const struct size *s, enum kn_weights w,
                     bool shared)
{
    float *router = kern_random((s->n + 1) * s->D, 3, 0.3f);
    *x = (struct mix){.d = d, .moe = {.n = s->n, .used = s->used, .act = KN_SILU}};
    x->moe.router = full(d, s->n + (size_t)shared, s->D, router);
    free(router);
    for (unsigned e = 0; e < s->n; e++) {
        x->gate_up[e] = of_exact(d, 2 * s->F, s->D, w, 100 + e);
        x->down[e] = of_exact(d, s->D, s->F, w, 200 + e);
    }
    x->moe.gate_up = x->gate_up, x->moe.down = x->down;
    if (!shared) return;
    x->moe.shared_gate_up = of_exact(d, 2 * s->F, s->D, w, 300);
    x->moe.shared_down = of_exact(d, s->D, s->F, w, 301);
}

static void mix_close(struct mix *x)
{
    for (unsigned e = 0; e < x->moe.n; e++)
        kn_mat_destroy(x->gate_up[e]), kn_mat_destroy(x->down[e]);
    kn_mat_destroy(x->moe.router);
    kn_mat_destroy(x->moe.shared_gate_up), kn_mat_destroy(x->moe.shared_down);
    free(x->moe.router_bias), free(x->moe.gate_up_bias), free(x->moe.down_bias);
    kn_dev_destroy(x->d);
}

static void add_biases(struct mix *x, const struct size *s)
{
    x->moe.router_bias = kern_random(s->n, 60, 1);
    x->moe.gate_up_bias = kern_random(s->n * 2 * s->F, 61, 4);
    x->moe.down_bias = kern_random(s->n * s->D, 62, 2);
}

static struct kn_dev *device(const struct kind *k)
{
    const struct kn_dev_opts o = {
        .device = kern_device(), .arith = k->arith, .weights = k->weights};
    struct kn_dev *d = NULL;
    struct err e = {0};
    if (kn_dev_create(&o, &d, &e) == 0) return d;
    if (k->weights != KN_WEIGHTS_FP8) test_fail(__FILE__, __LINE__, "%s", e.msg);
    return NULL; /* a GPU without products of it */
}

static struct kn_dev *cpu(void)
{
    const struct kn_dev_opts o = {.device = "cpu", .gemm = "own-f32", .n_threads = 1};
    struct kn_dev *d = NULL;
    struct err e = {0};
    if (kn_dev_create(&o, &d, &e) < 0) test_fail(__FILE__, __LINE__, "%s", e.msg);
    return d;
}

struct call {
    const struct kn_moe *moe;
    const float *h;
    float *out;
    bool accumulate;
};

static int body(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    const struct call *c = arg;
    return kn_moe(st, c->moe, c->h, n, c->out, c->accumulate);
}

static void run(struct mix *x, const float *h, size_t m, float *out, bool accumulate)
{
    struct call c = {&x->moe, h, out, accumulate};
    ASSERT_OK(kn_wide(x->d, m, NULL, body, &c));
}

static double apart(const float *got, const float *want, size_t n)
{
    double d = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        d += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        all += (double)want[i] * (double)want[i];
    }
    return sqrt(d / all);
}

/* Rows of both, which the device's products round to no other values. */
static void check(struct mix *x, struct mix *ref, size_t D, double within, bool accumulate)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const size_t m = rows[i];
        float *h = rounded(m * D, 7 + i, 1), *got = kern_random(m * D, 8, 1),
              *want = kern_random(m * D, 8, 1);
        run(x, h, m, got, accumulate);
        run(ref, h, m, want, accumulate);
        for (size_t r = 0; r < m; r++) {
            const double d = apart(got + r * D, want + r * D, D);
            if (!(d < within))
                test_fail(__FILE__, __LINE__, "D %zu, row %zu of %zu is off by %g", D, r, m, d);
        }
        free(h), free(got), free(want);
    }
}

/* Every activation and both sums of weights, with biases or a shared expert or neither. */
static void check_size(const struct kind *k, const struct size *s, unsigned v)
{
    struct mix x, ref;
    struct kn_dev *d = device(k);
    if (!d) return;
    const bool eight = k->weights != KN_WEIGHTS_AUTO;
    const bool shared = v % 3 == 1 && !(eight && k->arith == KN_ARITH_BF16);
    mix_open(&x, d, s, k->weights, shared);
    mix_open(&ref, cpu(), s, k->weights, shared);
    if (v % 3 == 2) add_biases(&x, s), add_biases(&ref, s);
    x.moe.act = ref.moe.act = (enum kn_act)(v % KN_ACTS);
    x.moe.renorm = ref.moe.renorm = v % 2;
    check(&x, &ref, s->D, k->within, v % 4 < 2);
    mix_close(&x), mix_close(&ref);
}

TEST(is_what_the_cpu_says)
{
    unsigned v = 0;
    for (size_t k = 0; k < KINDS; k++)
        for (size_t s = 0; s < SIZES; s++)
            for (unsigned i = 0; i < (s ? 2 : 4); i++)
                check_size(&kinds[k], &sizes[s], v++);
}

/* The shared expert's rows are rounded as any product's: to 8 bits, 0.037 of a product's length in
 * fp8 and 0.0055 in int8 (test_quant.c), twice. A single row may be off by twice as much. */
TEST(a_shared_expert_in_eight_bits)
{
    static const double within[] = {0.105, 0.0156};
    for (size_t i = 0; i < 2; i++) {
        struct mix x, ref;
        struct kn_dev *d = device(&kinds[2 + i]);
        if (!d) continue;
        mix_open(&x, d, &sizes[0], kinds[2 + i].weights, true);
        mix_open(&ref, cpu(), &sizes[0], kinds[2 + i].weights, true);
        check(&x, &ref, sizes[0].D, within[i], false);
        mix_close(&x), mix_close(&ref);
    }
}

static int refuses(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    const struct call *c = arg;
    ASSERT_ERR(kn_moe(st, c->moe, c->h, n, c->out, false), -EINVAL);
    return 0;
}

#define ONE(...) __VA_ARGS__,
static const struct codes_form forms[] = {CODES_FORMS(ONE)};
enum { N_FORMS = sizeof forms / sizeof *forms };

/* Rows of a weight as codes, and for the CPU as the bf16 that they are multiplied as. */
static void coded_rows(const struct codes_form *f, size_t n, size_t k, uint64_t seed,
                       struct kn_mat *coded, struct kn_mat *plain)
{
    struct kern_row r = kern_row_make(k);
    const struct codes_row c = {r.q, r.d, r.m, r.s, r.t};
    float *x = malloc(k * sizeof *x);
    for (size_t row = 0; row < n; row++) {
        kern_row_random(f, k, &seed, &r);
        for (size_t i = 0; i < k / CODES_STEP; i++) {
            const uint16_t unit = (uint16_t)(1 + (i + row) % 3); /* of the last place */
            r.d[i] = (f->bf16 ? 0x3c00 : f->super ? 0x0800 : 0x2000) + unit;
            if (!f->zero) r.m[i] = (f->super ? 0x8800 : 0xa000) + unit;
        }
        codes_values(f, &c, k, x);
        for (size_t i = 0; i < k; i++)
            x[i] = bf16(x[i]);
        ASSERT_OK(kn_mat_fill_codes(coded, row, 1, &c));
        ASSERT_OK(kn_mat_fill(plain, row, 1, x));
    }
    ASSERT_OK(kn_mat_done(coded));
    ASSERT_OK(kn_mat_done(plain));
    kern_row_drop(&r);
    free(x);
}

static void coded_pair(struct mix *x, struct mix *ref, const struct codes_form *f, size_t n,
                       size_t k, uint64_t seed, struct kn_mat **coded, struct kn_mat **plain)
{
    const struct kn_part part = {n, *f};
    ASSERT_OK(kn_mat_create_coded(x->d, &part, 1, k, false, coded));
    ASSERT_OK(kn_mat_create(ref->d, n, k, plain));
    coded_rows(f, n, k, seed, *coded, *plain);
}

/* With M weights have a mean of up to a few times their spread, by which rounding counts more where
 * the sums of what lies between the products nearly cancel: 8e-3 was the most of 2000 rows. */
static const struct kind in_codes = {KN_ARITH_BF16, KN_WEIGHTS_FILE, 1.6e-2};

/* Gate and up of one form, down of another. */
static void coded_open(struct mix *x, struct mix *ref, const struct size *s, size_t up, size_t down)
{
    struct mix *const both[] = {x, ref};
    float *router = kern_random(s->n * s->D, 3, 0.3f);
    for (size_t i = 0; i < 2; i++) {
        *both[i] = (struct mix){.d = i ? cpu() : device(&in_codes),
                                .moe = {.n = s->n, .used = s->used, .act = KN_SILU}};
        both[i]->moe.gate_up = both[i]->gate_up, both[i]->moe.down = both[i]->down;
        both[i]->moe.router = full(both[i]->d, s->n, s->D, router);
    }
    free(router);
    for (unsigned e = 0; e < s->n; e++) {
        coded_pair(x, ref, &forms[up], 2 * s->F, s->D, 100 + e, &x->gate_up[e], &ref->gate_up[e]);
        coded_pair(x, ref, &forms[down], s->D, s->F, 200 + e, &x->down[e], &ref->down[e]);
    }
}

/* Of 130 rows experts have 87 each at three, which take panels, and 52 at five; steps that are not
 * full, more than there are warps, tiles that are not. */
TEST(experts_in_codes_are_what_the_cpu_says)
{
    static const struct size small[] = {{96, 160, 3, 2}, {64, 32, 5, 2}, {1184, 32, 3, 2}},
                             wide[] = {{256, 512, 3, 2}, {512, 256, 5, 2}, {256, 256, 3, 2}};
    for (size_t up = 0; up < N_FORMS; up++) {
        const bool large = forms[up].super || forms[up].group > CODES_STEP;
        const struct size *s = &(large ? wide : small)[up % 3];
        size_t down = (up + 5) % N_FORMS;
        while (!codes_form_fits(&forms[down], s->F))
            down = (down + 1) % N_FORMS;
        struct mix x, ref;
        coded_open(&x, &ref, s, up, down);
        if (up % 2) add_biases(&x, s), add_biases(&ref, s);
        x.moe.act = ref.moe.act = (enum kn_act)(up % KN_ACTS);
        x.moe.renorm = ref.moe.renorm = up % 3 == 0;
        check(&x, &ref, s->D, in_codes.within, up % 4 < 2);
        mix_close(&x), mix_close(&ref);
    }
}

/* More experts than the panel has room for. */
TEST(panels_come_one_behind_the_other)
{
    enum { M = 400 };
    const struct size s = {1024, 704, 12, 2};
    struct mix x, ref;
    coded_open(&x, &ref, &s, 0, 1);
    float *h = rounded(M * s.D, 7, 1), *got = calloc(M * s.D, 4), *want = calloc(M * s.D, 4);
    run(&x, h, M, got, false);
    run(&ref, h, M, want, false);
    for (size_t r = 0; r < M; r++)
        ASSERT_TRUE(apart(got + r * s.D, want + r * s.D, s.D) < in_codes.within);
    free(h), free(got), free(want);
    mix_close(&x), mix_close(&ref);
}

/* Up to 64 rows an expert; routing is left out of it, as below. */
TEST(a_row_of_few_by_experts_in_codes_is_its_own)
{
    enum { M = 40 };
    static const size_t of[] = {0, 2, 9};
    const struct size s = {96, 160, 3, 1};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++) {
        struct mix x, ref;
        coded_open(&x, &ref, &s, of[i], of[(i + 1) % 3]);
        float *h = kern_random(M * s.D, 7, 1), *all = calloc(M * s.D, 4), *out = calloc(M * s.D, 4),
              *none = calloc(s.n * s.D, 4);
        kn_mat_destroy(x.moe.router);
        x.moe.router = full(x.d, s.n, s.D, none); /* all to the first */
        run(&x, h, M, all, false);
        for (size_t m = 1; m < M; m += 6) {
            run(&x, h + (M - m) * s.D, m, out, false);
            ASSERT_MEMEQ(out, all + (M - m) * s.D, m * s.D * sizeof *h);
        }
        free(h), free(all), free(out), free(none);
        mix_close(&x), mix_close(&ref);
    }
}

TEST(experts_in_codes_of_two_forms_are_refused)
{
    const struct size s = {64, 32, 5, 2};
    struct mix x, ref;
    coded_open(&x, &ref, &s, 0, 0);
    float *h = calloc(s.D, 4), *out = calloc(s.D, 4);
    struct call c = {&x.moe, h, out, false};
    struct kn_mat *was = x.down[2], *other = NULL, *plain = NULL;
    coded_pair(&x, &ref, &forms[1], s.D, s.F, 1, &other, &plain);
    x.down[2] = other;
    ASSERT_OK(kn_wide(x.d, 1, NULL, refuses, &c));
    float *values = kern_random(s.D * s.F, 1, 1);
    kn_mat_destroy(other);
    x.down[2] = other = kern_mat(x.d, s.D, s.F, values);
    ASSERT_OK(kn_wide(x.d, 1, NULL, refuses, &c));
    x.down[2] = was;
    kn_mat_destroy(other), kn_mat_destroy(plain);
    free(h), free(out), free(values);
    mix_close(&x), mix_close(&ref);
}

/* A router that says the same of every row: all go to the experts with the largest biases, and the
 * others, which are not even there, are not read. */
static void send_all_to(struct mix *x, const struct size *s, unsigned first)
{
    float *none = calloc(s->n * s->D, sizeof *none);
    kn_mat_destroy(x->moe.router);
    x->moe.router = full(x->d, s->n, s->D, none);
    for (unsigned e = 0; e < s->n; e++)
        x->moe.router_bias[e] = e >= first && e < first + s->used ? 9.0f : (float)e;
    free(none);
}

TEST(all_rows_go_to_the_same_experts)
{
    for (size_t k = 0; k < KINDS; k++) {
        const struct size *s = &sizes[1];
        struct kn_dev *d = device(&kinds[k]);
        struct mix x, ref;
        if (!d) continue;
        mix_open(&x, d, s, kinds[k].weights, false);
        mix_open(&ref, cpu(), s, kinds[k].weights, false);
        add_biases(&x, s), add_biases(&ref, s);
        send_all_to(&x, s, 0), send_all_to(&ref, s, 0);
        kn_mat_destroy(x.gate_up[s->used]), kn_mat_destroy(x.down[s->used]);
        x.gate_up[s->used] = x.down[s->used] = NULL;
        check(&x, &ref, s->D, kinds[k].within, false);
        mix_close(&x), mix_close(&ref);
    }
}

/* By what its expert has of rows a row is in a tile of few or of many: the same bits. Routing is
 * left out of it, whose product is the library's. */
TEST(a_row_is_the_same_in_any_company)
{
    enum { M = 130 };
    for (size_t k = 0; k < KINDS; k++)
        for (size_t i = 1; i < 3; i++) {
            const struct size *s = &sizes[i];
            const size_t D = s->D;
            struct kn_dev *d = device(&kinds[k]);
            struct mix x;
            if (!d) continue;
            mix_open(&x, d, s, kinds[k].weights, false);
            add_biases(&x, s);
            send_all_to(&x, s, 1);
            float *h = kern_random(M * D, 7, 1), *all = calloc(M * D, 4), *out = calloc(M * D, 4),
                  *turned = calloc(M * D, 4);
            run(&x, h, M, all, false);
            for (size_t r = 0; r < M; r++)
                memcpy(turned + r * D, h + (r * 7 + 3) % M * D, D * sizeof *h);
            run(&x, turned, M, out, false);
            for (size_t r = 0; r < M; r++)
                ASSERT_MEMEQ(out + r * D, all + (r * 7 + 3) % M * D, D * sizeof *h);
            for (size_t r = 0; r < M; r += 43) {
                run(&x, h + r * D, 1, out, false);
                ASSERT_MEMEQ(out, all + r * D, D * sizeof *h);
            }
            free(h), free(all), free(out), free(turned);
            mix_close(&x);
        }
}

/* Rows that are routed for themselves, in another order: with as many rows the library's product is
 * the same as well. */
TEST(rows_in_another_order_give_the_same_bits)
{
    enum { M = 61 };
    const struct size *s = &sizes[0];
    const size_t D = s->D;
    for (size_t k = 0; k < 2; k++) {
        struct mix x;
        mix_open(&x, device(&kinds[k]), s, kinds[k].weights, true);
        float *h = kern_random(M * D, 7, 1), *turned = calloc(M * D, 4), *all = calloc(M * D, 4),
              *out = calloc(M * D, 4);
        for (size_t r = 0; r < M; r++)
            memcpy(turned + r * D, h + (r * 7 + 3) % M * D, D * sizeof *h);
        run(&x, h, M, all, false);
        run(&x, turned, M, out, false);
        for (size_t r = 0; r < M; r++)
            ASSERT_MEMEQ(out + r * D, all + (r * 7 + 3) % M * D, D * sizeof *h);
        free(h), free(turned), free(all), free(out);
        mix_close(&x);
    }
}

/* Which rows go where is another thing each time that a recording is played. */
TEST(a_recording_routes_anew)
{
    enum { M = 16, TIMES = 5 };
    for (size_t k = 0; k < KINDS; k++) {
        const struct size *s = &sizes[0];
        const size_t D = s->D;
        struct kn_dev *d = device(&kinds[k]);
        struct mix x;
        if (!d) continue;
        mix_open(&x, d, s, kinds[k].weights, false);
        float *h = kn_mem_alloc(d, KN_MEM_DEVICE, M * D * sizeof *h),
              *to = kn_mem_alloc(d, KN_MEM_DEVICE, M * D * sizeof *to);
        float *got = calloc(M * D, 4), *want = calloc(M * D, 4);
        struct call c = {&x.moe, h, to, false};
        for (unsigned t = 0; t < TIMES; t++) {
            float *now = kern_random(M * D, 70 + t, 1);
            ASSERT_OK(kn_mem_copy(d, h, now, M * D * sizeof *now));
            ASSERT_OK(kn_replay(d, 1, M, NULL, body, &c));
            ASSERT_OK(kn_mem_copy(d, got, to, M * D * sizeof *got));
            run(&x, now, M, want, false);
            ASSERT_MEMEQ(got, want, M * D * sizeof *got);
            free(now);
        }
        ASSERT_EQ(kn_replays(d).n_recorded, 1);
        ASSERT_EQ(kn_replays(d).n_played, TIMES - 1);
        kn_forget(d);
        kn_mem_free(d, h), kn_mem_free(d, to);
        free(got), free(want);
        mix_close(&x);
    }
}

/* What kernels know of the experts is not older than the call. */
TEST(other_experts_of_the_same_router)
{
    const struct size *s = &sizes[0];
    struct mix x, ref;
    mix_open(&x, device(&kinds[1]), s, KN_WEIGHTS_AUTO, false);
    mix_open(&ref, cpu(), s, KN_WEIGHTS_AUTO, false);
    check(&x, &ref, s->D, kinds[1].within, false);
    for (int i = 0; i < 2; i++) {
        struct mix *m = i ? &ref : &x;
        struct kn_mat *up = m->gate_up[0], *down = m->down[2];
        m->gate_up[0] = m->gate_up[3], m->gate_up[3] = up;
        m->down[2] = m->down[4], m->down[4] = down;
    }
    check(&x, &ref, s->D, kinds[1].within, false);
    mix_close(&x), mix_close(&ref);
}

/* An expert of another shape, or of none that is ready. */
TEST(experts_that_do_not_fit_are_refused)
{
    const struct size *s = &sizes[0];
    struct mix x;
    mix_open(&x, device(&kinds[1]), s, KN_WEIGHTS_AUTO, false);
    float *h = calloc(s->D, 4), *out = calloc(s->D, 4);
    struct call c = {&x.moe, h, out, false};
    struct kn_mat *was = x.gate_up[2], *odd[2] = {x.down[2], NULL};
    ASSERT_OK(kn_mat_create(x.d, 2 * s->F, s->D, &odd[1]));
    for (int i = 0; i < 2; i++) {
        x.gate_up[2] = odd[i];
        ASSERT_OK(kn_wide(x.d, 1, NULL, refuses, &c));
    }
    x.gate_up[2] = was;
    kn_mat_destroy(odd[1]);
    free(h), free(out);
    mix_close(&x);
}
