#include "tests/unit/kernels/kern.h"

#include <dlfcn.h>

#if defined(__aarch64__)
static const char *const isas[KERN_ISAS] = {"portable", "neon", "avx512", "amx"}; /* has two */
#else
static const char *const isas[KERN_ISAS] = {"portable", "avx2", "avx512", "amx"};
#endif

#undef malloc
#undef free

const char *kern_device(void)
{
    const char *name = getenv("KVBLEND_TEST_DEVICE");
    return name && *name ? name : NULL;
}

bool kern_kv_q8(void)
{
    return getenv("KVBLEND_TEST_KV_Q8") != NULL;
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
static struct kn_dev *other_dev(const char *gemm, bool kv_q8)
{
    struct kn_dev_opts o = {.device = kern_device(), .arith = KN_ARITH_F32, .kv_q8 = kv_q8};
    struct kn_dev *d = NULL;
    struct err e = {0};
    if (gemm && strcmp(gemm, "own-bf16") == 0)
        o.arith = KN_ARITH_BF16;
    else if (gemm && strcmp(gemm, "own-f32") != 0)
        return NULL;
    if (kn_dev_create(&o, &d, &e) < 0) test_fail(__FILE__, __LINE__, "%s", e.msg);
    return d;
}

static struct kn_dev *own_dev(unsigned i, unsigned n_threads, const char *gemm, bool kv_q8)
{
    if (kern_device()) return i == 0 || (i == 2 && gemm) ? other_dev(gemm, kv_q8) : NULL;
    if (i >= KERN_ISAS) return NULL;
    if (i == KERN_ISAS - 1 && (!gemm || strcmp(gemm, "own-f32") == 0)) return NULL;
    struct kn_dev_opts o = {.n_threads = n_threads, .isa = isas[i], .gemm = gemm, .kv_q8 = kv_q8};
    if (gemm && strcmp(gemm, "own-int8") == 0) {
        o.gemm = NULL;
        o.weights = KN_WEIGHTS_INT8;
    }
    o.allow_bf16 = gemm && strcmp(gemm, "auto") == 0;
    struct kn_dev *d = NULL;
    struct err e = {0};
    return kn_dev_create(&o, &d, &e) < 0 ? NULL : d;
}

struct kn_dev *kern_dev(unsigned i, unsigned n_threads, const char *gemm)
{
    return own_dev(i, n_threads, gemm, false);
}

struct kn_dev *kern_dev_of_pages(unsigned i, unsigned n_threads)
{
    if (i >= KERN_PAGES_INT16) { /* of AVX2, of AVX-512 */
        const bool whole8 = i >= KERN_PAGES_INT8;
        const unsigned isa = i - (whole8 ? KERN_PAGES_INT8 : KERN_PAGES_INT16) + 1;
        struct kn_dev *d = kern_device()
                               ? NULL
                               : own_dev(isa, n_threads, whole8 ? "own-int8" : "own-int16", false);
        if (!d || !whole8 || kn_info(d)->kv == KN_Q8) return d;
        kn_dev_destroy(d); /* without VNNI it is in 16 bits */
        return NULL;
    }
    const bool q8 = i >= KERN_PAGES;
    if (q8) i -= KERN_PAGES;
    if (kern_device() && i == KERN_PAGES_BF16) return q8 ? other_dev("own-bf16", true) : NULL;
    if (kern_device()) return i == 0 ? other_dev(NULL, q8) : NULL;
    return i < KERN_PAGES_BF16 ? own_dev(i, n_threads, NULL, q8)
                               : own_dev(i - 1, n_threads, "own-bf16", q8);
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

/* Halves as files have them, and now and then one at the end of what a half can be. */
static uint16_t random_half(uint64_t *seed)
{
    static const uint16_t odd[] = {0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400,
                                   0x7bff, 0xfbff, 0x3c00, 0xbc00, 0x2e66, 0x1400};
    const uint64_t x = test_rand(seed);
    if (x % 4 == 0) return odd[x / 4 % (sizeof odd / sizeof *odd)];
    return (uint16_t)((x >> 32 & 0x83ff) | (4 + (x >> 48) % 16) << 10);
}

/* A whole number as zeros are: up to 16, of 8 bits -128 to 128. */
static uint16_t zero_half(const struct codes_form *f, uint64_t *seed)
{
    const int most = f->bits == 4 ? 16 : 128, least = f->bits == 4 ? 0 : -128;
    const float z = (float)(least + (int)(test_rand(seed) >> 33) % (most - least + 1));
    uint16_t h;
    ASSERT_OK(kn_convert(&z, KN_F32, 1, 1, KN_F16, &h));
    return h;
}

void kern_row_random(const struct codes_form *f, size_t k, uint64_t *seed, struct kern_row *r)
{
    const int span = f->bits == 4 ? 16 : 256, low = f->bits == 4 ? f->low : -128;
    for (size_t i = 0; f->bits < 16 && i < k; i++)
        r->q[i] = (int8_t)(low + (int)(test_rand(seed) >> 33) % span);
    for (size_t i = 0; f->bits == 16 && i < k; i++) {
        const uint16_t h = random_half(seed);
        memcpy(r->q + 2 * i, &h, sizeof h);
    }
    for (size_t i = 0; i < k / 32; i++) {
        r->d[i] = random_half(seed);
        r->m[i] = f->zero ? zero_half(f, seed) : random_half(seed);
        if (f->bf16) r->d[i] &= 0xbfff; /* sums of the largest are not finite */
    }
    for (size_t i = 0; i < k / 16; i++) {
        const uint64_t x = test_rand(seed);
        /* 6 bits, or 8 with a sign where there is no M. */
        r->s[i] = (int8_t)(f->min ? x >> 33 & 63 : x >> 33);
        r->t[i] = (uint8_t)(x >> 41 & 63);
    }
}

struct kern_row kern_row_make(size_t k)
{
    return (struct kern_row){malloc(2 * k), malloc(k / 16 + 2), malloc(k / 16 + 2),
                             malloc(k / 16 + 1), malloc(k / 16 + 1)};
}

void kern_row_drop(struct kern_row *r)
{
    free(r->q), free(r->d), free(r->m), free(r->s), free(r->t);
}

void kern_fill_both(const struct kn_part *parts, size_t n_parts, size_t k, uint64_t seed,
                    struct kn_mat *coded, struct kn_mat *plain)
{
    enum { MOST = 37 }; /* more than a panel's columns */
    struct kern_row r[MOST];
    struct codes_row c[MOST];
    float *x = malloc(k * sizeof *x);
    for (size_t i = 0; i < MOST; i++) {
        r[i] = kern_row_make(k);
        c[i] = (struct codes_row){r[i].q, r[i].d, r[i].m, r[i].s, r[i].t};
    }
    for (size_t p = 0, row = 0; p < n_parts; p++)
        for (size_t i = 0, now; i < parts[p].n; i += now, row += now) {
            const struct codes_form *f = &parts[p].form;
            now = f->bits ? 1 + test_rand(&seed) % MOST : 1;
            if (now > parts[p].n - i) now = parts[p].n - i;
            for (size_t g = 0; g < now; g++) {
                kern_row_random(f, k, &seed, &r[g]);
                if (f->bits)
                    codes_values(f, &c[g], k, x);
                else
                    for (size_t j = 0; j < k; j++)
                        x[j] = (float)(int)(test_rand(&seed) >> 40) * 0x1p-23f - 1;
                ASSERT_OK(kn_mat_fill(plain, row + g, 1, x));
            }
            if (f->bits)
                ASSERT_OK(kn_mat_fill_codes(coded, row, now, c));
            else
                ASSERT_OK(kn_mat_fill(coded, row, 1, x));
        }
    ASSERT_OK(kn_mat_done(coded));
    ASSERT_OK(kn_mat_done(plain));
    for (size_t i = 0; i < MOST; i++)
        kern_row_drop(&r[i]);
    free(x);
}

void kern_kv_init(struct kern_kv *s, unsigned G, unsigned K, size_t n_keys, unsigned layers)
{
    size_t n = (n_keys + KN_PAGE - 1) / KN_PAGE, lf = kn_kv_layer_values(KN_Q8, G, K);
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
