#include "tests/unit/kernels/kern.h"

#include <dlfcn.h>

static const char *const isas[KERN_ISAS] = {"portable", "avx2", "avx512", "amx"};

#undef malloc
#undef free

const char *kern_device(void)
{
    const char *name = getenv("KVBLEND_TEST_DEVICE");
    return name && *name ? name : NULL;
}

/* The device that the tests' own memory is from: any device of the kind may use it. */
static struct kn_dev *home(void)
{
    static struct kn_dev *d;
    struct err e = {0};
    const struct kn_dev_opts o = {.device = kern_device(), .arith = KN_ARITH_F32};
    if (!d && kn_dev_create(&o, &d, &e) < 0) test_fail(__FILE__, __LINE__, "%s", e.msg);
    return d;
}

void *kern_alloc(size_t bytes)
{
    void *p = kern_device() ? kn_mem_alloc(home(), KN_MEM_SHARED, bytes) : malloc(bytes + 1);
    if (!p) test_fail(__FILE__, __LINE__, "no memory");
    memset(p, 0, bytes);
    return p;
}

void kern_free(void *p)
{
    if (kern_device())
        kn_mem_free(home(), p);
    else
        free(p);
}

void *kern_hook(const char *name)
{
    char path[4096];
    if (!kern_device() || strcmp(kern_device(), "hostcuda") != 0)
        SKIP("about the emulation of a GPU");
    snprintf(path, sizeof path, "%s/libkn_hostcuda.so", getenv("KVBLEND_KERNELS_DIR"));
    void *lib = dlopen(path, RTLD_NOW), *fn = lib ? dlsym(lib, name) : NULL;
    if (!fn) test_fail(__FILE__, __LINE__, "%s: no %s", path, name);
    return fn;
}

int kern_done(struct kn_stream *st, int r)
{
    return r < 0 ? r : kn_sync(st);
}

#define malloc(n) kern_alloc(n)
#define free(p) kern_free(p)

/* The own GEMMs' names stand for arithmetics elsewhere. */
static struct kn_dev *other_dev(const char *gemm)
{
    struct kn_dev_opts o = {.device = kern_device(), .arith = KN_ARITH_F32};
    struct kn_dev *d = NULL;
    struct err e = {0};
    if (gemm && strcmp(gemm, "own-bf16") == 0)
        o.arith = KN_ARITH_BF16;
    else if (gemm && strcmp(gemm, "own-f32") != 0)
        return NULL;
    if (kn_dev_create(&o, &d, &e) < 0) test_fail(__FILE__, __LINE__, "%s", e.msg);
    return d;
}

struct kn_dev *kern_dev(unsigned i, unsigned n_threads, const char *gemm)
{
    if (kern_device()) return i == 0 || (i == 2 && gemm) ? other_dev(gemm) : NULL;
    if (i >= KERN_ISAS) return NULL;
    if (i == KERN_ISAS - 1 && (!gemm || strcmp(gemm, "own-f32") == 0)) return NULL;
    struct kn_dev_opts o = {.n_threads = n_threads, .isa = isas[i], .gemm = gemm};
    if (gemm && strcmp(gemm, "own-int8") == 0) {
        o.gemm = NULL;
        o.weights = KN_WEIGHTS_INT8;
    }
    struct kn_dev *d = NULL;
    struct err e = {0};
    return kn_dev_create(&o, &d, &e) < 0 ? NULL : d;
}

struct kn_dev *kern_dev_of_pages(unsigned i, unsigned n_threads)
{
    if (i < KERN_PAGES_BF16) return kern_dev(i, n_threads, NULL);
    return kern_device() ? NULL : kern_dev(i - 1, n_threads, "own-bf16");
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
    s->mem = malloc((n * layers * lf + 1) * sizeof(float));
    s->pages = malloc((n + 1) * sizeof *s->pages);
    for (size_t i = 0; i < n; i++)
        s->pages[i] = (int32_t)(n - 1 - i);
    s->kv = (struct kn_kv){s->mem, layers * lf, lf, s->pages, n, G, K, NULL};
}

void kern_kv_fini(struct kern_kv *s)
{
    free(s->mem);
    free(s->pages);
}

double ref_attn(const float *q, const float *k, const float *v, size_t stride, size_t K,
                size_t n_keys, double scale, double cap, double *out, double *prob)
{
    double top = -INFINITY, sum = 0;
    for (size_t j = 0; j < n_keys; j++) {
        double s = 0;
        for (size_t d = 0; d < K; d++)
            s += (double)q[d] * (double)k[j * stride + d];
        prob[j] = cap > 0 ? cap * tanh(s * scale / cap) : s * scale;
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
