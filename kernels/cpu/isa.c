/* Instruction sets: what this machine has, and the kernel table of each. */
#include "kernels/cpu/cpu.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

static const char *const isa_names[] = {"portable", "neon", "avx2", "avx512", "avx512", "amx"};
#if defined(__aarch64__)
#define ISAS_HERE "portable, neon"
#else
#define ISAS_HERE "portable, avx2, avx512, amx"
#endif

const char *kn_isa_name(enum kn_isa isa)
{
    return isa_names[isa];
}

#if !defined(KN_HOSTSIMD)
#if defined(__x86_64__)
/* Tiles of bf16 and int8, which all CPUs have that have tiles, and the kernel's leave to use them,
 * which holds for all threads of the process. */
static bool has_amx(void)
{
    enum { REQUEST = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA */
    const unsigned tiles = 1u << 25 | 1u << 24 | 1u << 22;
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & tiles) == tiles &&
           syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
}
#endif

/* Products of 8 bits (VNNI, dotprod). */
bool kn_isa_int8(enum kn_isa isa)
{
#if defined(__x86_64__)
    enum { AVX_VNNI = 1 << 4 };
    unsigned a, b, c, d;
    if (isa >= KN_ISA_AVX512) return __builtin_cpu_supports("avx512vnni");
    return isa == KN_ISA_AVX2 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & AVX_VNNI);
#elif defined(__aarch64__)
    return isa == KN_ISA_NEON && (getauxval(AT_HWCAP) & HWCAP_ASIMDDP);
#else
    return false;
#endif
}

/* Of no use beside tiles, nor without VNNI beside FMAs of 512 bits: as many operations for as many
 * products. */
const struct kn_int16_ops *kn_isa_int16(enum kn_isa isa)
{
#if defined(__x86_64__)
    if (isa == KN_ISA_AVX512 || isa == KN_ISA_AVX512_BF16)
        return kn_isa_int8(isa) ? &kn_avx512_int16 : NULL;
    if (isa == KN_ISA_AVX2) return kn_isa_int8(isa) ? &kn_avx2_vnni_int16 : &kn_avx2_int16;
#endif
    return NULL;
}

/* Tiles are through with bf16 before the rest of attention is. */
const struct kn_attn_ops *kn_isa_attn8(enum kn_isa isa)
{
#if defined(__x86_64__)
    if (isa == KN_ISA_AMX || !kn_isa_int8(isa)) return NULL;
    return isa == KN_ISA_AVX2 ? &kn_avx2_attn8 : &kn_avx512_attn8;
#else
    return NULL;
#endif
}

const struct kn_rows16_ops *kn_isa_rows16(enum kn_isa isa)
{
#if defined(__x86_64__)
    if (isa == KN_ISA_AMX) return &kn_amx_rows16;
    if (isa >= KN_ISA_AVX512) return kn_isa_int8(isa) ? &kn_avx512_rows16 : NULL;
    if (isa == KN_ISA_AVX2) return kn_isa_int8(isa) ? &kn_avx2_vnni_rows16 : &kn_avx2_rows16;
#elif defined(__aarch64__)
    if (kn_isa_int8(isa)) return &kn_neon_rows16;
#endif
    return NULL;
}

static enum kn_isa find_best(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
        if (!__builtin_cpu_supports("avx512bf16")) return KN_ISA_AVX512;
        return has_amx() ? KN_ISA_AMX : KN_ISA_AVX512_BF16;
    }
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return KN_ISA_AVX2;
#elif defined(__aarch64__)
    return KN_ISA_NEON;
#endif
    return KN_ISA_PORTABLE;
}
#else /* tests/doubles/hostsimd/, whatever this CPU is */
static enum kn_isa find_best(void)
{
    return getenv("HOSTSIMD_NO_BF16") ? KN_ISA_AVX512 : KN_ISA_AMX;
}
bool kn_isa_int8(enum kn_isa isa)
{
    return isa >= KN_ISA_AVX512;
}
const struct kn_int16_ops *kn_isa_int16(enum kn_isa isa)
{
    return isa == KN_ISA_AVX512 || isa == KN_ISA_AVX512_BF16 ? &kn_avx512_int16
           : isa == KN_ISA_AVX2                              ? &kn_avx2_int16
                                                             : NULL;
}
const struct kn_attn_ops *kn_isa_attn8(enum kn_isa isa)
{
    return isa == KN_ISA_AVX512 || isa == KN_ISA_AVX512_BF16 ? &kn_avx512_attn8 : NULL;
}
const struct kn_rows16_ops *kn_isa_rows16(enum kn_isa isa)
{
    return isa == KN_ISA_AMX      ? &kn_amx_rows16
           : isa >= KN_ISA_AVX512 ? &kn_avx512_rows16
           : isa == KN_ISA_AVX2   ? &kn_avx2_rows16
                                  : NULL;
}
#endif

/* Asked once: CPUID traps in virtual machines, and kn_convert() comes often. */
static enum kn_isa isa_best(void)
{
    static atomic_int known; /* plus 1; threads that come at once find the same */
    int best = atomic_load_explicit(&known, memory_order_relaxed);
    if (best == 0) {
        best = (int)find_best() + 1;
        atomic_store_explicit(&known, best, memory_order_relaxed);
    }
    return (enum kn_isa)(best - 1);
}

int kn_isa_pick(const char *name, enum kn_isa *ret_isa, struct err *err)
{
    const enum kn_isa best = isa_best();
    if (!name || !*name || strcmp(name, "auto") == 0) name = getenv("KVBLEND_ISA");
    if (!name || !*name || strcmp(name, "auto") == 0) {
        *ret_isa = best;
        return 0;
    }
    enum kn_isa want = KN_ISA_PORTABLE;
    while (want <= KN_ISA_AMX && strcmp(name, isa_names[want]) != 0)
        want++;
    if (want > KN_ISA_AMX)
        return err_set(err, -EINVAL, "unknown instruction set \"%s\" (auto, " ISAS_HERE ")", name);
    if (want == KN_ISA_AVX512 && best > want) want = KN_ISA_AVX512_BF16;
    if (want > best || (want == KN_ISA_NEON && best != want))
        return err_set(err, -ENOTSUP, "this CPU has no %s, its best is %s", name, isa_names[best]);
    *ret_isa = want;
    return 0;
}

bool kn_isa_bytes(enum kn_isa isa)
{
    return isa == KN_ISA_AVX2;
}

kn_int8_rows_fn kn_int8_rows_of(enum kn_isa isa)
{
#if defined(__x86_64__)
    return isa == KN_ISA_AVX2 ? kn_avx2_int8_rows : kn_avx512_int8_rows;
#elif defined(__aarch64__)
    return kn_neon_int8_rows;
#else
    return NULL;
#endif
}

kn_int8_gemm_fn kn_int8_gemm_of(enum kn_isa isa)
{
#if defined(__x86_64__)
    return isa == KN_ISA_AMX    ? kn_gemm_int8_amx
           : isa == KN_ISA_AVX2 ? kn_avx2_gemm_int8
                                : kn_avx512_gemm_int8;
#elif defined(__aarch64__)
    return kn_neon_gemm_int8;
#else
    return NULL;
#endif
}

const struct kn_simd *kn_isa_table(enum kn_isa isa)
{
#if defined(__x86_64__)
    if (isa >= KN_ISA_AVX512) return &kn_simd_avx512;
    if (isa == KN_ISA_AVX2) return &kn_simd_avx2;
#elif defined(__aarch64__)
    if (isa == KN_ISA_NEON) return &kn_simd_neon;
#endif
    return &kn_simd_portable;
}

void kn_cpu_model(char *buf, size_t size)
{
    snprintf(buf, size, "unknown");
    FILE *f = fopen("/proc/cpuinfo", "re");
    if (!f) return;
    char line[256], model[160] = "", family[32] = "", number[32] = "";
    while (fgets(line, sizeof line, f)) {
        char *v = strchr(line, ':');
        if (!v) continue;
        v += v[1] == ' ' ? 2 : 1;
        v[strcspn(v, "\n")] = 0;
        if (!strncmp(line, "model name", 10) && !*model) snprintf(model, sizeof model, "%.150s", v);
        if (!strncmp(line, "cpu family", 10)) snprintf(family, sizeof family, "%.20s", v);
        if (!strncmp(line, "model\t", 6)) snprintf(number, sizeof number, "%.20s", v);
        if (*model && *family && *number) break;
    }
    fclose(f);
    snprintf(buf, size, "%s family %s model %s", model, family, number);
}
