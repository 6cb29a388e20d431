/* OpenBLAS as a GEMM, loaded when it is there. Never linked.
 *
 * OpenBLAS reads its core type once, when it is loaded. Left alone, older releases take new CPUs
 * for old ones and run at a fifth of their speed, so the type is set before dlopen() unless the
 * user has set one. It is kept to one thread a call: the rows are spread over our own pool.
 * Thread: any. */
#include "kernels/cpu/cpu.h"
#include "base/mem.h"

#include <dlfcn.h>
#include <stdlib.h>

typedef void (*sgemm_fn)(int order, int ta, int tb, int m, int n, int k, float alpha,
                         const float *a, int lda, const float *b, int ldb, float beta, float *c,
                         int ldc);

static struct {
    pthread_once_t once;
    const char *core;
    sgemm_fn sgemm;
} blas = {.once = PTHREAD_ONCE_INIT};
static pthread_mutex_t load_mutex = PTHREAD_MUTEX_INITIALIZER;

static void blas_open(void)
{
    if (blas.core) (void)setenv("OPENBLAS_CORETYPE", blas.core, 0);
    (void)setenv("OPENBLAS_NUM_THREADS", "1", 0);
    void *so = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (!so) return;
    void (*set_threads)(int) = (void (*)(int))dlsym(so, "openblas_set_num_threads");
    sgemm_fn fn = (sgemm_fn)dlsym(so, "cblas_sgemm");
    if (!set_threads || !fn) {
        dlclose(so);
        return;
    }
    set_threads(1);
    blas.sgemm = fn;
}

bool kn_openblas_load(const struct kn_dev *d)
{
    pthread_mutex_lock(&load_mutex);
    if (d->isa >= KN_ISA_AVX512)
        blas.core = "SKYLAKEX";
    else if (d->isa == KN_ISA_AVX2)
        blas.core = "HASWELL";
    pthread_mutex_unlock(&load_mutex);
    (void)pthread_once(&blas.once, blas_open);
    return blas.sgemm != NULL;
}

float kn_gemm_start_c(const struct kn_gemm_job *j)
{
    for (size_t i = 0; j->bias && i < j->m; i++)
        for (size_t c = 0; c < j->n; c++) {
            float *p = j->c + i * j->ldc + c;
            *p = j->bias[c] + (j->accumulate ? *p : 0.0f);
        }
    return j->bias || j->accumulate ? 1.0f : 0.0f;
}

void kn_openblas_gemm(const struct kn_gemm_job *j)
{
    enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };
    float beta = kn_gemm_start_c(j);
    blas.sgemm(ROW_MAJOR, NO_TRANS, TRANS, (int)j->m, (int)j->n, (int)j->k, 1.0f, j->a, (int)j->lda,
               j->b, (int)j->k, beta, j->c, (int)j->ldc);
}
