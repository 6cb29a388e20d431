#include "tests/unit/kernels/mma_lanes.h"

#include "kernels/cuda/mma.h"

static_assert(sizeof(struct mma_given) % 16 == 0 && sizeof(uint16_t[8]) == 16, "aligned copies");

/* Each is waited for by how many groups came later; one of no copies counts. */
static __device__ __forceinline__ void copy(const struct mma_given &in, char *mine,
                                            struct mma_got *out)
{
    for (unsigned i = 0; i < 3; i++) {
        if (i == 2)
            mma_copy_first(mma_address(mine + 16 * i), in.from[i], in.first);
        else
            mma_copy16(mma_address(mine + 16 * i), in.from[i], i != 1 || in.there);
        mma_copies_end();
    }
    mma_copies_wait<2>();
    memcpy(out->copied[0], mine, 16);
    mma_copies_wait<1>();
    memcpy(out->copied[1], mine + 16, 16);
    mma_copies_wait<0>();
    memcpy(out->copied[2], mine + 32, 16);
    mma_copy16(mma_address(mine + 48), in.from[3], true);
    mma_copies_end();
    mma_copies_end();
    mma_copies_wait<1>();
    memcpy(out->copied[3], mine + 48, 16);
}

static __global__ void lanes(struct mma_warp *w)
{
    KN_DYNAMIC_SHARED(char, shared);
    const unsigned lane = threadIdx.x;
    const struct mma_given &in = w->given[lane];
    struct mma_got out;
    memcpy(shared + lane * 16, w->row[lane], 16);
    memcpy(out.c, in.c, sizeof out.c);
    __syncwarp();
    mma_bf16(out.c, in.a, in.b[0], in.b[1]);
    mma_load(out.m, mma_address(shared + in.row * 16));
    mma_load_turned(out.turned, mma_address(shared + in.row * 16));
    copy(in, shared + (MMA_LANES + lane * MMA_COPIES) * 16, &out);
    out.pair = mma_pack(in.pair[0], in.pair[1]);
    for (unsigned i = 0; i < 2; i++)
        out.power[i] = mma_exp2(in.power[i]);
    const struct mma_codes codes = mma_from_codes(in.codes);
    out.even = codes.even, out.odd = codes.odd;
    out.half = mma_f16(uint16_t(in.half));
    out.word = mma_word(mma_address(shared + in.row * 16 + in.word * 4));
    w->got[lane] = out;
}

static cudaError_t run(struct mma_warp *w, struct mma_warp *dev, cudaStream_t s)
{
    cudaError_t e = cudaMemcpyAsync(dev, w, sizeof *w, cudaMemcpyDefault, s);
    if (e != cudaSuccess) return e;
    KN_LAUNCH(lanes, dim3(1), dim3(MMA_LANES), MMA_LANES * (1 + MMA_COPIES) * 16, s, dev);
    e = cudaGetLastError();
    if (e == cudaSuccess) e = cudaMemcpyAsync(w, dev, sizeof *w, cudaMemcpyDefault, s);
    const cudaError_t waited = cudaStreamSynchronize(s);
    return e == cudaSuccess ? waited : e;
}

int mma_lanes(struct mma_warp *w)
{
    int n = 0;
    void *dev = nullptr;
    cudaStream_t s;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) return -ENODEV;
    cudaError_t e = cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    if (e != cudaSuccess) return -EIO;
    e = cudaMalloc(&dev, sizeof *w);
    if (e == cudaSuccess) e = run(w, static_cast<struct mma_warp *>(dev), s);
    (void)cudaFree(dev);
    (void)cudaStreamDestroy(s);
    return e == cudaSuccess ? 0 : -EIO;
}
