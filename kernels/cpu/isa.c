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
#endif

static const char *const isa_names[] = {"portable", "avx2", "avx512", "avx512", "amx"};

const char *kn_isa_name(enum kn_isa isa)
{
    return isa_names[isa];
}

#if !defined(KN_HOSTSIMD)
/* Tiles of bf16 and int8, which all CPUs have that have tiles, and the kernel's leave to use them,
 * which holds for all threads of the process. */
static bool has_amx(void)
{
#if defined(__x86_64__)
    enum { REQUEST = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA */
    const unsigned tiles = 1u << 25 | 1u << 24 | 1u << 22;
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & tiles) == tiles &&
           syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
#else
    return false;
#endif
}

/* Products of 8 bits (VNNI). */
bool kn_isa_int8(enum kn_isa isa)
{
#if defined(__x86_64__)
    enum { AVX_VNNI = 1 << 4 };
    unsigned a, b, c, d;
    if (isa >= KN_ISA_AVX512) return __builtin_cpu_supports("avx512vnni");
    return isa == KN_ISA_AVX2 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & AVX_VNNI);
#else
    return false;
#endif
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
        return err_set(err, -EINVAL,
                       "unknown instruction set \"%s\" (auto, portable, avx2, avx512, amx)", name);
    if (want == KN_ISA_AVX512 && best > want) want = KN_ISA_AVX512_BF16;
    if (want > best)
        return err_set(err, -ENOTSUP, "this CPU has no %s, its best is %s", name, isa_names[best]);
    *ret_isa = want;
    return 0;
}

const struct kn_simd *kn_isa_table(enum kn_isa isa)
{
#if defined(__x86_64__)
    if (isa >= KN_ISA_AVX512) return &kn_simd_avx512;
    if (isa == KN_ISA_AVX2) return &kn_simd_avx2;
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
