/* The kernels of kernels/cuda, compiled for the emulation: the same files. */
#include "kernels/cuda/attn.cu"
#include "kernels/cuda/attn_mma.cu"
#include "kernels/cuda/gemm.cu"
#include "kernels/cuda/kv.cu"
#include "kernels/cuda/mem.cu"
#include "kernels/cuda/quant.cu"
#include "kernels/cuda/rows.cu"
#include "kernels/cuda/rt.cu"
