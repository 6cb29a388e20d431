/* kern: what the kernel tests share: devices of every instruction set, random data, naive oracles.
 *
 * The oracles accumulate in double, one output at a time. Tolerances are written as multiples of
 * the f32 rounding unit times the sum of absolute products, which bounds any summation order.
 * Thread: any. */
#ifndef TESTS_UNIT_KERNELS_KERN_H
#define TESTS_UNIT_KERNELS_KERN_H

#include "kernels/kn.h"
#include "tests/test.h"

#define F32_EPS 5.9604645e-8

struct kern_shape {
    unsigned H, G, K;
};

/* Device number i of those this machine has, with n_threads; NULL past the last, and where the GEMM
 * would be another instruction set's. "auto": none is asked for. Destroy it. */
enum { KERN_ISAS = 4 };
struct kn_dev *kern_dev(unsigned i, unsigned n_threads, const char *gemm);
/* The same by what pages hold: f32 of every instruction set, then bf16, with and without tiles;
 * from KERN_PAGES on 8 bits beside the same arithmetics; from KERN_PAGES_INT16 and KERN_PAGES_INT8
 * on whole numbers that are multiplied; those of 8 bits have heads of whole quads of dims alone. Of
 * KVBLEND_TEST_DEVICE: the first of f32, and of 8 bits beside either. */
enum {
    KERN_PAGES_BF16 = KERN_ISAS - 1,
    KERN_PAGES = KERN_ISAS + 1,
    KERN_PAGES_INT16 = 2 * KERN_PAGES,
    KERN_PAGES_INT8 = KERN_PAGES_INT16 + 2,
    KERN_PAGES_ALL = KERN_PAGES_INT8 + 2
};
struct kn_dev *kern_dev_of_pages(unsigned i, unsigned n_threads);
/* With KVBLEND_TEST_DEVICE in the environment number 0 is that device, and there is no other. */
const char *kern_device(void); /* NULL: the CPU */
bool kern_kv_q8(void);         /* KVBLEND_TEST_KV_Q8: that device's pages are in 8 bits */
/* What operations touch and the tests as well; malloc() and free() of the tests are these. */
void *kern_alloc(size_t bytes);
void kern_free(void *p);
#define malloc(n) kern_alloc(n)
#define calloc(n, size) kern_alloc((n) * (size)) /* cleared in any case */
#define free(p) kern_free(p)
/* A function of the emulation's own, such as hostcuda_pretend(). */
void *kern_hook(const char *name);
/* Wait for an operation that returned r; the first error. */
int kern_done(struct kn_stream *st, int r);
float *kern_random(size_t n, uint64_t seed, float scale); /* [-scale, scale); free() it */
struct kn_mat *kern_mat(struct kn_dev *d, size_t n, size_t k, const float *w);

/* A row of a weight as files have it. */
struct kern_row {
    int8_t *q;
    uint16_t *d, *m;
    int8_t *s;
    uint8_t *t;
};
struct kern_row kern_row_make(size_t k); /* room; kern_row_drop() it */
void kern_row_drop(struct kern_row *r);
void kern_row_random(const struct codes_form *f, size_t k, uint64_t *seed, struct kern_row *r);
/* The same random rows twice: as the parts say and as f32; both weights are ready then. */
void kern_fill_both(const struct kn_part *parts, size_t n_parts, size_t k, uint64_t seed,
                    struct kn_mat *coded, struct kn_mat *plain);

/* Paged KV of one layer with shuffled pages; keys 0…n-1 from k, v [n, G, K]. */
struct kern_kv {
    struct kn_kv kv;
    float *mem;
    int32_t *pages;
};
void kern_kv_init(struct kern_kv *s, unsigned G, unsigned K, size_t n_keys, unsigned layers);
void kern_kv_fini(struct kern_kv *s);

/* Attention of one row and head in double: out[K], returns log-sum-exp. cap 0: none. */
double ref_attn(const float *q, const float *k, const float *v, size_t stride, size_t K,
                size_t n_keys, double scale, double cap, double *out, double *prob);

/* Run `fn` on rows by kn_rows() or kn_wide(). */
int kern_run(struct kn_dev *d, bool wide, size_t m, kn_rows_fn fn, void *arg);

#endif
