/* The device under a clock that moves by one whenever it is read: on one thread times are exact. */
#include "base/mem.h"
#include "base/rng.h"
#include "kernels/kn_int.h"
#include "tests/test.h"
#include "tools/bench/opclock.h"

#include <string.h>

enum { D = 64, M = 300 };

static _Atomic uint64_t reads;

static uint64_t read_clock(void)
{
    return atomic_fetch_add(&reads, 1) + 1;
}

static struct kn_dev *open_device(unsigned n_threads)
{
    struct err err = {0};
    struct kn_dev *d = NULL;
    ASSERT_OK(kn_dev_create(&(struct kn_dev_opts){.n_threads = n_threads, .arith = KN_ARITH_F32},
                            &d, &err));
    return d;
}

static struct kn_mat *open_weight(struct kn_dev *d, size_t n)
{
    struct kn_mat *w = NULL;
    ASSERT_OK(kn_mat_create(d, n, D, &w));
    ASSERT_OK(kn_mat_random(w, 0, n, &(struct rng_field){1, 1}));
    ASSERT_OK(kn_mat_done(w));
    return w;
}

static uint64_t all_ns(const struct opclock_account *a)
{
    uint64_t sum = 0;
    for (unsigned k = 0; k < OPCLOCK_N; k++)
        sum += a->ns[k];
    return sum;
}

struct work {
    float *x, *y;     /* [M, D] */
    struct kn_mat *w; /* [D, D] */
};

static int norm_and_multiply(struct kn_stream *st, void *arg, size_t row0, size_t m)
{
    static const float ones[D] = {1, 1, 1};
    const struct work *w = arg;
    float *h = w->y + row0 * D;
    int r = kn_rmsnorm(st, w->x + row0 * D, D, m, D, ones, 1e-5f, h, D);
    const struct kn_gemm_args g = {
        .a = w->x + row0 * D, .lda = D, .m = m, .w = w->w, .c = h, .ldc = D};
    return r < 0 ? r : kn_gemm(st, &g);
}

static struct work open_work(struct kn_dev *d)
{
    struct work w = {kn_mem_alloc(d, KN_MEM_SHARED, sizeof(float) * M * D),
                     kn_mem_alloc(d, KN_MEM_SHARED, sizeof(float) * M * D), open_weight(d, D)};
    for (size_t i = 0; i < (size_t)M * D; i++)
        w.x[i] = (float)(i % 7) - 3;
    return w;
}

static void close_work(struct kn_dev *d, struct work *w)
{
    kn_mem_free(d, w->x);
    kn_mem_free(d, w->y);
    kn_mat_destroy(w->w);
    kn_dev_destroy(d);
}

TEST(each_turn_of_one_thread_is_counted_where_it_belongs)
{
    struct kn_dev *d = open_device(1);
    struct work w = open_work(d);
    struct opclock *o = NULL;
    struct opclock_account a;
    ASSERT_OK(opclock_create(d, 1, read_clock, &o));
    opclock_weight(o, "down", w.w);
    opclock_begin(o);
    ASSERT_OK(
        kn_wide(d, 8, NULL, norm_and_multiply, &w)); /* few: a block, each operation one item */
    opclock_end(o, &a);
    /* Alone, in the run, in the block, norm, its item, norm, block, product, … and back. */
    ASSERT_EQ(a.ns[OPCLOCK_ALONE], 2);
    ASSERT_EQ(a.ns[OPCLOCK_REST], 3);
    ASSERT_EQ(a.ns[OPCLOCK_WAIT_EQUAL] + a.ns[OPCLOCK_WAIT_UNEVEN], 0); /* it is no such run */
    ASSERT_EQ(a.ns[OPCLOCK_WAIT_SINGLE], 2);
    ASSERT_TRUE(a.ns[OPCLOCK_NORMS] > 0);
    ASSERT_TRUE(a.ns[OPCLOCK_DOWN] > 0);
    ASSERT_EQ(a.ns[OPCLOCK_PRODUCT], 0);
    ASSERT_EQ(a.ns[OPCLOCK_IDLE], 0);
    ASSERT_EQ(all_ns(&a), a.wall_ns);
    ASSERT_NEAR(a.flops[OPCLOCK_DOWN], 2.0 * 8 * D * D, 0);
    /* Once more, from nothing, and rows by blocks. */
    opclock_begin(o);
    ASSERT_OK(kn_rows(d, M, NULL, norm_and_multiply, &w));
    opclock_end(o, &a);
    ASSERT_NEAR(a.flops[OPCLOCK_DOWN], 2.0 * M * D * D, 0);
    ASSERT_TRUE(a.ns[OPCLOCK_WAIT_EQUAL] > 0);
    ASSERT_EQ(a.ns[OPCLOCK_WAIT_SPREAD] + a.ns[OPCLOCK_WAIT_SINGLE], 0);
    ASSERT_EQ(all_ns(&a), a.wall_ns);
    opclock_destroy(o);
    close_work(d, &w);
}

TEST(all_threads_together_are_counted_once)
{
    for (unsigned n = 2; n <= 4; n++) {
        struct kn_dev *d = open_device(n);
        struct work w = open_work(d);
        struct opclock *o = NULL;
        struct opclock_account a;
        float *plain = mem_alloc(sizeof(float) * M * D);
        ASSERT_OK(kn_rows(d, M, NULL, norm_and_multiply, &w));
        memcpy(plain, w.y, sizeof(float) * M * D);
        ASSERT_OK(opclock_create(d, 0, read_clock, &o));
        for (int wide = 0; wide < 2; wide++) {
            memset(w.y, 0, sizeof(float) * M * D);
            opclock_begin(o);
            ASSERT_OK((wide ? kn_wide : kn_rows)(d, M, NULL, norm_and_multiply, &w));
            opclock_end(o, &a);
            ASSERT_EQ(memcmp(plain, w.y, sizeof(float) * M * D), 0); /* a clock changes nothing */
            ASSERT_EQ(a.n_threads, n);
            ASSERT_EQ(all_ns(&a), n * a.wall_ns);
            ASSERT_EQ(a.ns[OPCLOCK_IDLE], (n - 1) * a.ns[OPCLOCK_ALONE]);
            ASSERT_TRUE(a.ns[OPCLOCK_NORMS] > 0);
            ASSERT_TRUE(a.ns[OPCLOCK_PRODUCT] > 0); /* no weight has a name */
            ASSERT_EQ(a.ns[OPCLOCK_WAIT_EQUAL] == 0, wide);
            ASSERT_EQ(a.ns[OPCLOCK_WAIT_SPREAD] + a.ns[OPCLOCK_WAIT_SINGLE] == 0, !wide);
            ASSERT_NEAR(a.flops[OPCLOCK_PRODUCT], 2.0 * M * D * D, 0);
        }
        opclock_destroy(o);
        mem_free(plain);
        close_work(d, &w);
    }
}

static int cancelled_block(struct kn_stream *st, void *arg, size_t row0, size_t m)
{
    return -ECANCELED;
}

TEST(the_device_is_itself_again_behind_it)
{
    struct kn_dev *d = open_device(2);
    struct work w = open_work(d);
    struct opclock *o = NULL;
    struct opclock_account a;
    const struct kn_ops before = ((struct kn_dev_head *)d)->ops;
    ASSERT_OK(opclock_create(d, 1, read_clock, &o));
    opclock_begin(o);
    ASSERT_TRUE(((struct kn_dev_head *)d)->ops.row != before.row);
    ASSERT_ERR(kn_rows(d, M, NULL, cancelled_block, NULL), -ECANCELED); /* a run that fails, too */
    opclock_end(o, &a);
    ASSERT_EQ(memcmp(&before, &((struct kn_dev_head *)d)->ops, sizeof before), 0);
    ASSERT_EQ(all_ns(&a), 2 * a.wall_ns);
    const uint64_t then = reads;
    ASSERT_OK(kn_rows(d, M, NULL, norm_and_multiply, &w));
    ASSERT_EQ(reads, then);
    opclock_destroy(o);
    close_work(d, &w);
}

TEST(weights_are_found_among_many)
{
    enum { N = 40 };
    static const char *const names[] = {"kv", "q", "o", "gate_up", "down", "head", "none"};
    struct kn_dev *d = open_device(1);
    struct kn_mat *mat[N];
    float x[D] = {1}, y[D];
    struct work w = {x, y, NULL};
    struct opclock *o = NULL;
    struct opclock_account a;
    double want[OPCLOCK_N] = {0};
    ASSERT_OK(opclock_create(d, N, read_clock, &o));
    for (unsigned i = 0; i < N; i++) {
        mat[i] = open_weight(d, D);
        opclock_weight(o, names[i % 7], mat[i]);
        want[i % 7] += 2.0 * D * D; /* kinds begin with these names; the last is of no name */
    }
    opclock_begin(o);
    for (unsigned i = 0; i < N; i++) {
        w.w = mat[i];
        ASSERT_OK(kn_wide(d, 1, NULL, norm_and_multiply, &w));
    }
    opclock_end(o, &a);
    for (unsigned k = 0; k < OPCLOCK_PRODUCTS; k++)
        ASSERT_NEAR(a.flops[k], want[k], 0);
    opclock_destroy(o);
    for (unsigned i = 0; i < N; i++)
        kn_mat_destroy(mat[i]);
    kn_dev_destroy(d);
}

/* Rows at 0, 100 and 299 of 300 keys. */
static int attend(struct kn_stream *st, void *arg, size_t row0, size_t m)
{
    return kn_attn(st, arg);
}

TEST(attention_counts_the_keys_that_a_row_sees)
{
    enum { H = 2, G = 1, K = 32, KEYS = 300 };
    static const int32_t pos[] = {0, 100, 299};
    const struct {
        unsigned window, chunk;
        double keys;
    } cases[] = {{0, 0, 1 + 101 + 300}, {64, 0, 1 + 64 + 64}, {0, 128, 1 + 101 + 44}};
    struct kn_dev *d = open_device(1);
    const size_t n_pages = (KEYS + KN_PAGE - 1) / KN_PAGE,
                 values = kn_kv_layer_values(kn_info(d)->kv, G, K);
    const int32_t pages[] = {0, 1, 2, 3, 4};
    ASSERT_TRUE(n_pages == 5);
    void *base = kn_mem_alloc(d, KN_MEM_DEVICE, n_pages * values * kn_info(d)->kv_value_bytes);
    const struct kn_kv kv = {base, values, values, pages, n_pages, G, K, NULL, 0};
    float q[3 * H * K] = {1}, out[3 * H * K];
    struct opclock *o = NULL;
    ASSERT_OK(opclock_create(d, 0, read_clock, &o));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kn_attn_args args = {.q = q,
                                    .ldq = H * K,
                                    .m = 3,
                                    .pos = pos,
                                    .H = H,
                                    .kv = &kv,
                                    .scale = 1,
                                    .window = cases[i].window,
                                    .chunk = cases[i].chunk,
                                    .out = out,
                                    .ldo = H * K};
        struct opclock_account a;
        opclock_begin(o);
        ASSERT_OK(kn_wide(d, 3, NULL, attend, &args));
        opclock_end(o, &a);
        ASSERT_NEAR(a.flops[OPCLOCK_ATTENTION], 4.0 * H * K * cases[i].keys, 0);
        ASSERT_TRUE(a.ns[OPCLOCK_ATTENTION] > 0);
    }
    opclock_destroy(o);
    kn_mem_free(d, base);
    kn_dev_destroy(d);
}

TEST(out_of_memory_is_reported)
{
    struct kn_dev *d = open_device(2);
    for (unsigned n = 1;; n++) {
        struct opclock *o = NULL;
        mem_fail_nth(n);
        const int r = opclock_create(d, 8, read_clock, &o);
        const bool fired = mem_fail_fired();
        mem_fail_nth(0);
        if (!fired) {
            ASSERT_OK(r);
            opclock_destroy(o);
            break;
        }
        ASSERT_ERR(r, -ENOMEM);
        ASSERT_TRUE(!o);
    }
    kn_dev_destroy(d);
}
