/* f32 GEMM of one instruction set: tile 14 x 32 (AVX-512), 6 x 16 (AVX2), 12 x 8 (NEON), 4 x 8
 * (portable). */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd/table.h"
#include "kernels/cpu/simd/vec.h"

typedef float elem;
typedef vf tile_b;
#if KN_SIMD == 512
#define TILE_MR 14
#elif KN_SIMD == 256
#define TILE_MR 6
#elif KN_SIMD == 128
#define TILE_MR 12
#else
#define TILE_MR 4
#endif
#define TILE_NV 2
#define TILE_UNIT 1
#define tile_load_b(p) vf_load(p)
#define tile_load_a(p) vf_set1(*(p))
#define tile_fma(a, b, c) vf_fma(a, b, c)

static void tile_copy_a(elem *dst, const float *row, size_t k, size_t k0, size_t kc)
{
    (void)k;
    memcpy(dst, row + k0, kc * sizeof(float));
}

static void tile_unpack(const struct codes_form *f, const uint8_t *panel, size_t k0, size_t kc,
                        size_t k, elem *out)
{
    (void)k;
    (void)KN_NAME(codes_panel)(f, panel, k0, kc, out);
}

#include "kernels/cpu/simd/gemm_tile.h"

#include "kernels/cpu/simd/gemm_block.h"

int KN_NAME(gemm_f32)(const struct kn_gemm_job *j, size_t panel0, size_t panel1)
{
    return tile_gemm(j, panel0, panel1);
}
