/* mma: the instructions of sm_80 and later that CUDA C++ has no words for: products of 16 x 8 x 16
 * bf16 on tensor cores with their operands from shared memory, and copies to shared memory that
 * nobody waits for yet; of single values, mma_values.h. Each has a twin for the emulation with the
 * same values in the same lanes, chosen here alone, so that kernels around them are one source.
 *
 * Lanes, with r = lane / 4 and c = lane % 4: a[0…3] hold rows r, r+8, r, r+8 of A [16, 16], columns
 * 2c, 2c+1 (a[2], a[3]: 8 more); b[0], b[1] rows 2c, 2c+1 (8 more) of B [16, 8], column r; c[0…3]
 * row r, columns 2c, 2c+1 of C [16, 8], then row r+8. Two bf16 in a word, the first below.
 * All lanes of a warp call together. Source: PTX ISA, "mma.m16n8k16", "ldmatrix", "cp.async". */
#ifndef KERNELS_CUDA_MMA_H
#define KERNELS_CUDA_MMA_H

#include "kernels/cuda/mma_values.h"

#if defined(__CUDACC__)

typedef uint32_t mma_addr; /* of shared memory, in bytes */
static __device__ __forceinline__ mma_addr mma_address(const void *p)
{
    return mma_addr(__cvta_generic_to_shared(p));
}

/* c += a b */
static __device__ __forceinline__ void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Four 8 x 8 matrices of 16 bits: lane i gives the address of row i % 8 of matrix i / 8, a multiple
 * of 16, and gets row r, columns 2c, 2c+1 of each. */
static __device__ __forceinline__ void mma_load(uint32_t (&m)[4], mma_addr row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(row)
                 : "memory");
}

/* The same, and gets rows 2c, 2c+1 of column r. */
static __device__ __forceinline__ void mma_load_turned(uint32_t (&m)[4], mma_addr row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(row)
                 : "memory");
}

/* What is in shared memory at a multiple of 4. */
static __device__ __forceinline__ uint32_t mma_word(mma_addr at)
{
    uint32_t w;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(w) : "r"(at) : "memory");
    return w;
}

/* The first n of 16 bytes of the device's memory to shared memory, zeros behind them. */
static __device__ __forceinline__ void mma_copy_first(mma_addr to, const void *from, unsigned n)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(n)
                 : "memory");
}

/* What this thread has copied since the last time becomes a group. */
static __device__ __forceinline__ void mma_copies_end()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* This thread's groups but the last N have arrived. */
template <int N> static __device__ __forceinline__ void mma_copies_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

#else

typedef uintptr_t mma_addr;
static inline mma_addr mma_address(const void *p)
{
    return reinterpret_cast<mma_addr>(p);
}

struct mma_operands {
    uint32_t a[4], b[2];
};

static inline float mma_half(uint32_t two, unsigned second)
{
    return cu_bf16_f32(uint16_t(second ? two >> 16 : two));
}

/* A product of two bf16 is exact in f32: one rounding for each that is added, k ascending. */
static inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    const struct mma_operands mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}};
    const auto *all =
        static_cast<const struct mma_operands *>(hostcuda::warp_share(&mine, sizeof mine));
    const unsigned lane = hostcuda::current->lane;
    for (unsigned i = 0; i < 4; i++) {
        const unsigned row = lane / 4, col = lane % 4 * 2 + i % 2;
        for (unsigned k = 0; k < 16; k++) {
            const unsigned c4 = k % 8 / 2, high = k / 8;
            c[i] += mma_half(all[row * 4 + c4].a[i / 2 + 2 * high], k % 2) *
                    mma_half(all[col * 4 + c4].b[high], k % 2);
        }
    }
}

/* All lanes' rows. Those of one matrix must be in eight different groups of four banks: the device
 * would read them in turns, which no result shows. */
static inline const mma_addr *mma_rows(mma_addr row)
{
    const auto *all = static_cast<const mma_addr *>(hostcuda::warp_share(&row, sizeof row));
    const unsigned first = hostcuda::current->lane / 8 * 8;
    unsigned groups = 0;
    for (unsigned i = 0; i < 8; i++)
        groups |= 1u << all[first + i] / 16 % 8;
    if (row % 16) hostcuda::misuse("a row of a matrix that is not at a multiple of 16 bytes");
    if (groups != 0xff) hostcuda::misuse("rows of a matrix whose banks conflict");
    return all;
}

static inline void mma_load(uint32_t (&m)[4], mma_addr row)
{
    const mma_addr *all = mma_rows(row);
    const unsigned lane = hostcuda::current->lane;
    for (unsigned i = 0; i < 4; i++)
        memcpy(&m[i], reinterpret_cast<const char *>(all[8 * i + lane / 4]) + lane % 4 * 4, 4);
}

static inline void mma_load_turned(uint32_t (&m)[4], mma_addr row)
{
    const mma_addr *all = mma_rows(row);
    const unsigned lane = hostcuda::current->lane;
    for (unsigned i = 0; i < 4; i++) {
        uint16_t two[2];
        for (unsigned j = 0; j < 2; j++)
            memcpy(&two[j],
                   reinterpret_cast<const char *>(all[8 * i + lane % 4 * 2 + j]) + lane / 4 * 2, 2);
        m[i] = two[0] | uint32_t(two[1]) << 16;
    }
}

static inline uint32_t mma_word(mma_addr at)
{
    uint32_t w;
    memcpy(&w, reinterpret_cast<const void *>(at), sizeof w);
    return w;
}

static inline void mma_copy_first(mma_addr to, const void *from, unsigned n)
{
    hostcuda::copy_later(reinterpret_cast<void *>(to), from, n);
}

static inline void mma_copies_end()
{
    hostcuda::copies_end();
}

template <int N> static inline void mma_copies_wait()
{
    hostcuda::copies_wait(N);
}

#endif

/* All of them, or zeros when they are not `there`. */
static __device__ __forceinline__ void mma_copy16(mma_addr to, const void *from, bool there)
{
    mma_copy_first(to, from, there ? 16 : 0);
}

#endif
