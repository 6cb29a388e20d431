/* bf16 GEMM with f32 sums (vdpbf16ps, or AMX tiles where there are some): units of two k values,
 * activations rounded while copied. vdpbf16ps runs on some CPUs twice the f32 rate, on others half
 * of it: it is measured, not assumed. Compiled for AVX-512 with BF16 only. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/pairs.h"
#include "kernels/cpu/simd/amx.h"
#include "kernels/cpu/simd/codes_pairs.h"

typedef uint32_t elem; /* two bf16, the lower k in the lower half */
typedef __m512i tile_b;
#define TILE_MR 14
#define TILE_NV 2
#define TILE_UNIT 2
#define tile_load_b(p) _mm512_loadu_si512(p)
#define tile_load_a(p) _mm512_set1_epi32((int)*(p))
#define tile_fma(a, b, c) _mm512_dpbf16_ps(c, (__m512bh)(a), (__m512bh)(b))

static void tile_copy_a(elem *dst, const float *row, size_t k, size_t k0, size_t kc)
{
    size_t full = (k0 + kc) * 2 <= k ? kc : k / 2 - k0, i = 0;
    const float *x = row + k0 * 2;
    for (; i + VL <= full; i += VL)
        _mm512_storeu_si512(dst + i, bf16_row(x + 2 * i));
    for (; i < kc; i++) {
        float pair[VL] = {x[2 * i], (k0 + i) * 2 + 1 < k ? x[2 * i + 1] : 0.0f};
        __m512 v = _mm512_loadu_ps(pair);
        dst[i] =
            (uint32_t)_mm_cvtsi128_si32(_mm512_castsi512_si128((__m512i)_mm512_cvtne2ps_pbh(v, v)));
    }
}

/* Rounded as it is when rows are packed; what is below the normal numbers counts as 0 in the
 * products anyway. */
static void tile_unpack(const struct codes_form *f, const uint8_t *panel, size_t k0, size_t kc,
                        size_t k, elem *out)
{
    enum { PAIRS = CODES_STEP / 2 };
    if (kc % PAIRS == 0 && codes_pairs(f, panel, 2 * k0, 2 * kc, out)) return;
    float x[CODES_STEP * NR] __attribute__((aligned(64)));
    for (size_t i = 0, n; i < kc; i += n) {
        n = kc - i < PAIRS ? kc - i : PAIRS;
        const size_t k1 = (k0 + i) * 2, left = k - k1 < n * 2 ? k - k1 : n * 2;
        (void)kn_avx512_codes_panel(f, panel, k1, left, x);
        if (left & 1) memset(x + left * NR, 0, NR * sizeof *x);
        for (size_t at = 0; at < n * NR; at += VL) {
            const float *lo = x + at / NR * 2 * NR + at % NR;
            _mm512_storeu_si512(out + i * NR + at, bf16_pairs(vf_load(lo), vf_load(lo + NR)));
        }
    }
}

#include "kernels/cpu/simd/gemm_tile.h"

#include "kernels/cpu/simd/gemm_block.h"

int kn_gemm_bf16_avx512(const struct kn_gemm_job *j, size_t panel0, size_t panel1)
{
    return tile_gemm(j, panel0, panel1);
}

#include "kernels/cpu/simd/gemm_amx.h"
#include "kernels/cpu/simd/gemm_words.h"

void kn_amx_pairs(const float *a, size_t lda, size_t m, size_t k, void *to)
{
    const struct kn_gemm_job j = {.a = a, .lda = lda, .m = m, .k = k};
    amx_copy_a(&j, 0, (k + TILE_UNIT - 1) / TILE_UNIT, to, kn_pairs_stride(k));
}

int kn_gemm_bf16_amx(const struct kn_gemm_job *j, size_t panel0, size_t panel1)
{
    int r = 0;
    amx_open();
    for (size_t row = 0; row < j->m && r == 0; row += KN_PAIRS_ROWS) {
        struct kn_gemm_job part = *j;
        part.m = j->m - row < KN_PAIRS_ROWS ? j->m - row : KN_PAIRS_ROWS;
        part.a += row * j->lda;
        part.c += row * j->ldc;
        if (j->coded && part.m <= AMX_ROWS) { /* it copies rows piece by piece */
            r = amx_few(&part, panel0, panel1);
            continue;
        }
        if (!j->paired) kn_amx_pairs(part.a, j->lda, part.m, j->k, part.pairs);
        r = words_gemm(&part, panel0, panel1);
    }
    _tile_release();
    return r;
}
