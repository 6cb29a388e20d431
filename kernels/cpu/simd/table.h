/* table: names of the kernels that every instruction set has; see struct kn_simd. */
#ifndef KERNELS_CPU_SIMD_TABLE_H
#define KERNELS_CPU_SIMD_TABLE_H

#include "kernels/cpu/cpu.h"

#if KN_SIMD == 512
#define KN_NAME(x) kn_avx512_##x
#define KN_TABLE kn_simd_avx512
#elif KN_SIMD == 256
#define KN_NAME(x) kn_avx2_##x
#define KN_TABLE kn_simd_avx2
#elif KN_SIMD == 128
#define KN_NAME(x) kn_neon_##x
#define KN_TABLE kn_simd_neon
#else
#define KN_NAME(x) kn_portable_##x
#define KN_TABLE kn_simd_portable
#endif

int KN_NAME(gemm_f32)(const struct kn_gemm_job *j, size_t panel0, size_t panel1);
bool KN_NAME(codes_panel)(const struct codes_form *f, const uint8_t *panel, size_t k0, size_t kc,
                          float *out);
int KN_NAME(attn_put)(const struct kn_kv *kv, void *layer, size_t slot, size_t n, const float *k,
                      size_t ldk, const float *v, size_t ldv);
size_t KN_NAME(attn_scratch)(size_t group, size_t K, bool q8);
int KN_NAME(attn)(const struct kn_attn_job *j, unsigned g0, unsigned g1);
int KN_NAME(attn_mass)(const struct kn_attn_job *j, float *mass, size_t key0, size_t n_keys);

#endif
