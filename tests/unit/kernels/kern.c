#include "tests/unit/kernels/kern.h"

static const char *const isas[] = {"portable", "avx2", "avx512"};

struct kn_dev *kern_dev(unsigned i, unsigned n_threads, const char *gemm)
{
    if (i >= sizeof isas / sizeof *isas) return NULL;
    struct kn_dev_opts o = {.n_threads = n_threads, .isa = isas[i], .gemm = gemm};
    struct kn_dev *d = NULL;
    struct err e = {0};
    return kn_dev_create(&o, &d, &e) < 0 ? NULL : d;
}

float *kern_random(size_t n, uint64_t seed, float scale)
{
    float *x = malloc((n + 1) * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = ((float)(test_rand(&seed) >> 40) * 0x1p-23f - 1.0f) * scale;
    return x;
}

struct kn_mat *kern_mat(struct kn_dev *d, size_t n, size_t k, const float *w)
{
    struct kn_mat *m = NULL;
    ASSERT_OK(kn_mat_create(d, n, k, &m));
    ASSERT_OK(kn_mat_fill(m, 0, n / 2, w));
    ASSERT_OK(kn_mat_fill(m, n / 2, n - n / 2, w + n / 2 * k));
    ASSERT_OK(kn_mat_done(m));
    return m;
}

void kern_kv_init(struct kern_kv *s, unsigned G, unsigned K, size_t n_keys, unsigned layers)
{
    size_t n = (n_keys + KN_PAGE - 1) / KN_PAGE, lf = kn_kv_layer_values(G, K);
    s->mem = calloc(n * layers * lf + 1, sizeof(float));
    s->pages = malloc((n + 1) * sizeof *s->pages);
    for (size_t i = 0; i < n; i++)
        s->pages[i] = (int32_t)(n - 1 - i);
    s->kv = (struct kn_kv){s->mem, layers * lf, lf, s->pages, n, G, K};
}

void kern_kv_fini(struct kern_kv *s)
{
    free(s->mem);
    free(s->pages);
}

double ref_attn(const float *q, const float *k, const float *v, size_t stride, size_t K,
                size_t n_keys, double scale, double *out, double *prob)
{
    double top = -INFINITY, sum = 0;
    for (size_t j = 0; j < n_keys; j++) {
        double s = 0;
        for (size_t d = 0; d < K; d++)
            s += (double)q[d] * (double)k[j * stride + d];
        prob[j] = s * scale;
        if (prob[j] > top) top = prob[j];
    }
    for (size_t j = 0; j < n_keys; j++)
        sum += prob[j] = exp(prob[j] - top);
    for (size_t d = 0; d < K; d++)
        out[d] = 0;
    for (size_t j = 0; j < n_keys; j++) {
        prob[j] /= sum;
        for (size_t d = 0; d < K; d++)
            out[d] += prob[j] * (double)v[j * stride + d];
    }
    return top + log(sum);
}

int kern_run(struct kn_dev *d, bool wide, size_t m, kn_rows_fn fn, void *arg)
{
    return wide ? kn_wide(d, m, NULL, fn, arg) : kn_rows(d, m, NULL, fn, arg);
}
