/* kn_rows(), kn_wide(), cancellation, scratch, errors; many small jobs in a row. */
#include "tests/unit/kernels/kern.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>

struct cover {
    atomic_int hits[3000];
    atomic_uint n_calls, largest;
    int fail_at;
    atomic_bool *cancel;
};

static int cover_rows(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    struct cover *c = arg;
    unsigned call = atomic_fetch_add(&c->n_calls, 1), seen = atomic_load(&c->largest);
    while (n > seen && !atomic_compare_exchange_weak(&c->largest, &seen, (unsigned)n))
        ;
    for (size_t i = row0; i < row0 + n; i++)
        atomic_fetch_add(&c->hits[i], 1);
    char *a = kn_scratch(st, 0, 100 + n), *b = kn_scratch(st, 1, 64);
    if (!a || !b || (uintptr_t)a % 64 || a == b) return -ENOMEM;
    memset(a, (int)call, 100 + n);
    if (c->cancel && call >= 2) atomic_store(c->cancel, true);
    return c->fail_at && call + 1 == (unsigned)c->fail_at ? -EIO : 0;
}

/* tiles: the device whose blocks are the largest tiles, where the machine has it. */
static void cover(bool tiles)
{
    static const size_t rows[] = {1, 5, 31, 32, 33, 100, 342, 343, 500, 1111, 1569, 3000};
    for (unsigned threads = 1; threads <= 5; threads++) {
        struct kn_dev *d =
            tiles ? kern_dev(KERN_ISAS - 1, threads, "own-bf16") : kern_dev(0, threads, NULL);
        if (!d) continue;
        ASSERT_EQ(kn_info(d)->n_threads, threads);
        for (size_t z = 0; z < sizeof rows / sizeof *rows; z++) {
            struct cover *c = calloc(1, sizeof *c);
            ASSERT_OK(kn_rows(d, rows[z], NULL, cover_rows, c));
            for (size_t i = 0; i < 3000; i++)
                ASSERT_EQ(atomic_load(&c->hits[i]), i < rows[z]);
            /* As many blocks for each thread, though blocks are whole tiles. */
            if (rows[z] > 1000) ASSERT_EQ(atomic_load(&c->n_calls) % threads, 0);
            if (rows[z] <= 32) ASSERT_TRUE(atomic_load(&c->n_calls) <= 2);
            if (rows[z] == 342 && threads == 2) {
                ASSERT_EQ(atomic_load(&c->n_calls) % 2, 0);
                ASSERT_TRUE(atomic_load(&c->largest) <= 182);
            }
            ASSERT_OK(kn_rows_uneven(d, rows[z], NULL, cover_rows, c));
            for (size_t i = 0; i < 3000; i++)
                ASSERT_EQ(atomic_load(&c->hits[i]), i < rows[z] ? 2 : 0);
            free(c);
        }
        ASSERT_OK(kn_rows(d, 0, NULL, cover_rows, NULL));
        ASSERT_OK(kn_wide(d, 0, NULL, cover_rows, NULL));
        kn_dev_destroy(d);
    }
}

TEST(rows_are_covered_once_and_balanced)
{
    cover(false);
    cover(true);
}

TEST(many_jobs_in_a_row)
{
    struct kn_dev *d = kern_dev(0, 4, NULL);
    struct cover *c = calloc(1, sizeof *c);
    for (int i = 1; i <= 20000; i++)
        ASSERT_OK(kn_rows(d, 64, NULL, cover_rows, c));
    for (size_t i = 0; i < 64; i++)
        ASSERT_EQ(atomic_load(&c->hits[i]), 20000);
    free(c);
    kn_dev_destroy(d);
}

struct held {
    atomic_bool any;
    atomic_size_t n_done;
};

/* Whoever comes first is through when all other rows are. */
static int held_rows(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    struct held *h = arg;
    if (!atomic_exchange(&h->any, true))
        while (atomic_load(&h->n_done) + n < 3000)
            (void)sched_yield();
    atomic_fetch_add(&h->n_done, n);
    return 0;
}

TEST(others_take_what_a_slow_thread_does_not)
{
    for (unsigned threads = 2; threads <= 16; threads *= 2) {
        struct kn_dev *d = kern_dev(0, threads, NULL);
        struct held h = {0}, u = {0};
        ASSERT_OK(kn_rows(d, 3000, NULL, held_rows, &h));
        ASSERT_OK(kn_rows_uneven(d, 3000, NULL, held_rows, &u));
        ASSERT_EQ(atomic_load(&h.n_done) + atomic_load(&u.n_done), 6000);
        kn_dev_destroy(d);
    }
}

TEST(the_first_error_is_returned)
{
    for (unsigned threads = 1; threads <= 3; threads++) {
        struct kn_dev *d = kern_dev(0, threads, NULL);
        struct cover *c = calloc(1, sizeof *c);
        c->fail_at = 2;
        ASSERT_ERR(kn_rows(d, 3000, NULL, cover_rows, c), -EIO);
        c->fail_at = 0;
        ASSERT_OK(kn_rows(d, 3000, NULL, cover_rows, c)); /* and the device works on */
        free(c);
        kn_dev_destroy(d);
    }
}

TEST(cancel_stops_between_blocks)
{
    for (unsigned threads = 1; threads <= 3; threads++) {
        struct kn_dev *d = kern_dev(0, threads, NULL);
        struct cover *c = calloc(1, sizeof *c);
        atomic_bool cancel = false;
        c->cancel = &cancel;
        ASSERT_ERR(kn_rows(d, 3000, &cancel, cover_rows, c), -ECANCELED);
        /* Two calls that do not ask for it, and none that follows one that does on its thread. */
        ASSERT_TRUE(atomic_load(&c->n_calls) <= 2 + threads);
        ASSERT_ERR(kn_wide(d, 1, &cancel, cover_rows, c), -ECANCELED);
        free(c);
        kn_dev_destroy(d);
    }
}

struct gemm_cancel {
    struct kn_gemm_args a;
    atomic_bool *cancel;
};

static int gemm_rows(struct kn_stream *st, void *arg, size_t row0, size_t n)
{
    struct gemm_cancel *g = arg;
    atomic_store(g->cancel, true); /* after kn_rows() has looked, before the operation does */
    return kn_gemm(st, &g->a);
}

TEST(cancel_is_seen_inside_a_gemm)
{
    for (unsigned i = 0; i < 3; i++)
        for (int wide = 0; wide < 2; wide++) {
            struct kn_dev *d = kern_dev(i, 2, "own-f32");
            if (!d) continue;
            float *w = kern_random(64 * 64, 1, 1), *a = kern_random(64, 2, 1), c[64];
            struct kn_mat *mat = kern_mat(d, 64, 64, w);
            atomic_bool cancel = false;
            struct gemm_cancel g = {{.a = a, .lda = 64, .m = 1, .w = mat, .c = c, .ldc = 64},
                                    &cancel};
            int r = wide ? kn_wide(d, 1, &cancel, gemm_rows, &g)
                         : kn_rows(d, 1, &cancel, gemm_rows, &g);
            ASSERT_EQ(r, -ECANCELED);
            kn_mat_destroy(mat);
            free(w);
            free(a);
            kn_dev_destroy(d);
        }
}
