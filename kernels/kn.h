/* kn: every tensor operation of the engine, one contract for all devices.
 *
 * A `struct kn_dev` is one device with its threads or streams; `struct kn_mat` a weight packed for
 * it; `struct kn_stream` an ordered sequence of operations. Operations are row-wise: `m` rows of an
 * activation matrix in f32, row-major. The caller cuts rows into blocks with kn_rows(): on the CPU
 * each block runs on one pool thread through all operations of a layer half (no barrier between
 * operations, activations stay in L2); a GPU gets one block with all rows on one stream, and
 * kn_rows() waits for it at its end. Inside a row function nothing may be read that an operation of
 * it writes.
 *
 * Memory: what operations touch comes from kn_mem_alloc(). KN_MEM_DEVICE is reached by operations
 * alone, KN_MEM_SHARED by the host as well: written between runs (kn_rows(), kn_wide()), read
 * inside a run where no operation of it writes. Exceptions are said at the operation (stored KV in,
 * encoded rows out). On the CPU both are plain memory, and so is anything else.
 *
 * Determinism (the invariant the blend rests on): the result of a row depends only on that row and
 * on the keys it may see, bit for bit, never on m, on its neighbours or on the number of threads.
 * Every own kernel keeps it. A GPU's library keeps it for equal m only, as kn_info.gemm_invariant
 * tells. Runs of kn_replay() may have products of their own, which keep it among themselves.
 *
 * A group ("cuda:0+1") is several GPUs as one device: tensor parallelism. Each of its ranks has a
 * share of the KV heads, of the queries that read them, and of the widths of weights as
 * kn_mat_split() says. What has a share on each rank is in KN_MEM_HEADS or in scratch, in the
 * layout of the whole with every width divided; all else every rank has whole. group/group.h.
 *
 * Dimension alphabet, project-wide: T tokens, L layers, D model width, H query heads, G KV heads,
 * K head dim, F ffn width, V vocab, P page size in tokens (KN_PAGE).
 * Errors: 0 or negative errno (-ECANCELED when the stream's cancel flag was seen, -EINVAL shapes
 * and positions; a GPU finds bad positions when it gets there: then kn_sync(), kn_rows(), kn_wide()
 * say so). -EIO: the device is lost and says nothing else from then on. No operation allocates
 * after kn_dev_create() but for per-stream scratch that grows once. Thread: a stream belongs to one
 * thread at a time; kn_rows() from one thread a device. */
#ifndef KERNELS_KN_H
#define KERNELS_KN_H

#include "base/err.h"
#include "kernels/codes.h"
#include "kernels/draw.h"
#include "kernels/types.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { KN_PAGE = 64 }; /* P: tokens per KV page = keys per attention block; chosen: 4 zmm of keys */

enum kn_isa {
    KN_ISA_PORTABLE,
    KN_ISA_NEON, /* on 64-bit Arm; the others on x86 */
    KN_ISA_AVX2,
    KN_ISA_AVX512,
    KN_ISA_AVX512_BF16,
    KN_ISA_AMX
};
enum kn_arith { KN_ARITH_AUTO, KN_ARITH_F32, KN_ARITH_BF16 }; /* GEMM arithmetic (--dtype) */
/* Weights (--weights). AUTO: as the arithmetic. 8 bits: int8, or e4m3 on a GPU, with one scale a
 * row of the weight; rows of the other operand are rounded to the same type, with a scale each (on
 * AVX2 without VNNI with one for 32 values, and weights stay the file's). FILE: in the form of the
 * file where it has codes (see kn_mat_create_coded()), which the CPU does in any case. */
enum kn_weights {
    KN_WEIGHTS_AUTO,
    KN_WEIGHTS_BF16,
    KN_WEIGHTS_FP8,
    KN_WEIGHTS_INT8,
    KN_WEIGHTS_FILE
};
const char *kn_weights_name(enum kn_weights w);   /* "auto", "bf16", "fp8", "int8", "file" */
int kn_weights_parse(const char *name, int dflt); /* dflt: no such name */
const char *kn_dtype_name(enum kn_dtype t);       /* "f32", "f16", "bf16", "q8", "q16" */
int kn_dtype_parse(const char *name, int dflt);   /* dflt: no such name, or of no stored row */
/* Bytes of a row of G heads of K values, stored or in a page. */
static inline size_t kn_row_bytes(enum kn_dtype t, size_t G, size_t K)
{
    if (t == KN_Q16) return G * ((K + K % 2) * 2 + 2);
    return t == KN_Q8 ? G * (K + 2) : G * K * (t == KN_F32 ? 4 : 2);
}

struct kn_dev;
struct kn_stream;
struct kn_mat;

/* How the GEMM is chosen: by measuring the candidates over these weight shapes. */
struct kn_tuning {
    const struct kn_shape *shapes;
    size_t n_shapes;       /* 0: nothing is measured, the first candidate that fits is taken */
    size_t rows, rows_max; /* of the rates; of a product (0: any number), which a GPU tunes up to */
    unsigned budget_ms; /* about; 0: the device's own, 1500 on the CPU, 8000 on a GPU (chosen: a GPU
                           has more to choose from, and does it once) */
    /* Of a layer's attention and the longest sequence, for a GPU that may choose between two; K 0:
     * it does not. */
    unsigned H, G, K;
    size_t keys_max;
};

struct kn_dev_opts {
    const char *device;  /* NULL/"cpu", "cuda", "cuda:1", "cuda:0+1" (a group); "hostcuda": its
                            emulation, for tests */
    unsigned n_threads;  /* 0 = all cores this process may use */
    const char *isa;     /* NULL/"auto", "portable", "neon", "avx2", "avx512", "amx" */
    const char *gemm;    /* NULL/"auto" or a candidate's name: "own-f32", "own-bf16", "own-int16" */
    enum kn_arith arith; /* AUTO: bf16, or int16, where allow_bf16, and there are tiles or it is
                            faster */
    bool allow_bf16;     /* the file's own precision is bf16 or below */
    bool kv_q8;          /* pages in 8 bits: KN_Q8; else as the arithmetic */
    enum kn_weights weights;
    struct kn_tuning tune;
    const char *cache_dir; /* where the choice is remembered; NULL = do not cache */
};

/* One GEMM candidate as measured at start-up. */
struct kn_gemm_rate {
    const char *name;
    double gflops; /* all threads, over the given shapes, at `rows` rows; 0 = not available */
    bool chosen;
};
enum { KN_RATES_MAX = 8 };

/* What a device is, settled when it is created. */
struct kn_info {
    const char *device; /* "cpu", "cuda:0 NVIDIA H200", … */
    const char *model; /* the processor's, as it calls itself: for keys of what is measured on it */
    const char *isa, *gemm;
    unsigned n_threads;
    bool is_host;             /* all memory is plain memory */
    unsigned n_ranks;         /* of a group; else 1 */
    bool gemm_invariant;      /* see above: determinism */
    const char *attn;         /* what attends to the rows of a prefill: "own", "cudnn 9.19.0" */
    const char *attn_warning; /* why it is not the library that is there, or NULL */
    enum kn_dtype kv;         /* what pages hold: f32, bf16, Q8 or Q16 */
    size_t kv_value_bytes;    /* of a value in a page; Q8, Q16: without its scale */
    size_t wide_rows_max;     /* up to here kn_wide() is the better choice, */
    size_t wide_rows_large;   /* and of weights that are large (millions of values) up to here */
    double step_flops;        /* a step of about so many is short, and does not lose by it */
    struct kn_gemm_rate rate[KN_RATES_MAX]; /* what the tuning measured */
    size_t n_rates;                         /* 0: it was not asked to */
};

/* A device with its GEMM chosen: all that hangs on the choice (what pages hold, how weights are
 * packed) is settled, and stays. -ENOTSUP: this build has no such backend; -ENODEV: no such device.
 */
int kn_dev_create(const struct kn_dev_opts *o, struct kn_dev **ret_dev, struct err *err);
void kn_dev_destroy(struct kn_dev *d); /* accepts NULL */
const struct kn_info *kn_info(const struct kn_dev *d);
bool kn_dev_lost(const struct kn_dev *d); /* every run says -EIO; thread: any */
/* Memory, streams and copies of the same device, for tiers (gpu.h): the
 * caller's, to be closed before the device. -ENOTSUP: the CPU has none. */
struct gpu;
int kn_dev_gpu(struct kn_dev *d, struct gpu **ret, struct err *err);
struct kn_memory {                       /* all 0 on the CPU */
    uint64_t free_bytes, total_bytes;    /* of the device, as it says now; of a group free is what
                                            KN_MEM_HEADS could take */
    uint64_t device_bytes, shared_bytes; /* this process's: kn_mem_alloc(), weights, scratch */
    uint64_t stage_bytes;                /* of these, the ring of kn_stage() */
    uint64_t n_allocs;                   /* requests to the device for memory, ever */
};
struct kn_memory kn_dev_memory(struct kn_dev *d); /* thread: any */
/* ---- memory ---- */
/* KN_MEM_HOST is the host's, pinned: kn_copy() to and from it happens when the stream gets there.
 * Aligned to 64, cleared; NULL when there is none. Large blocks cost nothing until touched on the
 * CPU. Freed blocks of a GPU are kept for the next request of their size. */
void *kn_mem_alloc(struct kn_dev *d, enum kn_mem kind, size_t bytes);
void kn_mem_free(struct kn_dev *d, void *p); /* accepts NULL */
/* Between runs, complete on return: from host memory, or from one place of the device to another.
 * From host memory to KN_MEM_HEADS: every rank gets its share of the bytes, in the ranks' order. */
int kn_mem_copy(struct kn_dev *d, void *dst, const void *src, size_t bytes);

/* Stored KV on its way to the device while operations run: a ring of device memory that is filled
 * by copies on a stream of their own. kn_stage() starts to copy and says where each piece will be:
 * `at` instead of `from` is what operations take behind kn_staged(), which makes the stream wait
 * for the copies, not the host. -EAGAIN: no room just now, operations take `from`. The host's bytes
 * stay until kn_unstage(), which gives the room back once nothing reads it any more, in any order.
 * What is on the device already stays where it is. On the CPU nothing moves; turn 0: nothing to
 * wait for. Thread: that of kn_rows(). */
struct kn_piece {
    const void *from;
    size_t bytes;
    const void *at;
    size_t row_bytes; /* of each row [G, K] of it, which a group's ranks share */
    size_t stride;    /* bytes from row to row in front of the copy; 0: no gaps */
};
int kn_stage_room(struct kn_dev *d, size_t bytes); /* the ring's size; once, before the first run */
int kn_stage(struct kn_dev *d, struct kn_piece *p, size_t n, uint64_t *ret_turn);
int kn_staged(struct kn_stream *st, uint64_t turn);
void kn_unstage(struct kn_dev *d, uint64_t turn);

/* ---- weights: W [n, k] row-major f32 rows in, packed for the chosen GEMM inside ---- */
int kn_mat_create(struct kn_dev *d, size_t n, size_t k, struct kn_mat **ret_mat);
/* Never in 8 bits: the embeddings and the head, whose errors nothing behind them averages out. */
int kn_mat_create_full(struct kn_dev *d, size_t n, size_t k, struct kn_mat **ret_mat);
/* In f32, whatever the arithmetic: routers, whose near ties are not for rounding to decide. */
int kn_mat_create_f32(struct kn_dev *d, size_t n, size_t k, struct kn_mat **ret_mat);
int kn_mat_fill(struct kn_mat *w, size_t row0, size_t n_rows, const float *rows /* [n_rows, k] */);
/* The same with random rows, for benches: value i counted from row0 is rng_field_at()'s, on every
 * device; made where the weight is. */
struct rng_field;
int kn_mat_random(struct kn_mat *w, size_t row0, size_t n_rows, const struct rng_field *f);
/* In the form that a file has the rows in, part after part: the same numbers in less memory, and
 * less to read for few rows. Where gemm_invariant, products are those of the same values
 * filled in as f32, bit for bit. Rows of a part without a form come by kn_mat_fill(), the others
 * by kn_mat_fill_codes(), sixteen and more at a time at best. On the CPU several threads may fill
 * rows, each its own. -ENOTSUP: this device keeps weights its own way only, which a GPU does unless
 * it was opened with KN_WEIGHTS_FILE, and then with what has parts without codes or is `full`. */
struct kn_part {
    size_t n;
    struct codes_form form;
};
int kn_mat_create_coded(struct kn_dev *d, const struct kn_part *parts, size_t n_parts, size_t k,
                        bool full /* as kn_mat_create_full() */, struct kn_mat **ret_mat);
int kn_mat_fill_codes(struct kn_mat *w, size_t row0, size_t n_rows,
                      const struct codes_row *rows /* [n_rows] */);
/* Rows row0 … row0 + n - 1 of w, which is ready and outlives them, as a weight of its own. -ENOTSUP
 * on the CPU. */
int kn_mat_rows(struct kn_mat *w, size_t row0, size_t n, struct kn_mat **ret_mat);
void kn_mat_inner(struct kn_mat *w); /* what it gives may be rounded: see kn_product() */
/* How a group's ranks share it; in front of its first row, once. KN_SPLIT_HEADS: parts of so many
 * rows, one behind the other, each of which is shared out; in codes those that it was created with.
 * Biases of such are in KN_MEM_HEADS. -EINVAL: a part, or k of KN_SPLIT_SUM, that the ranks do not
 * divide, in codes by whole groups (codes_form_fits()). Other devices have it whole. */
int kn_mat_split(struct kn_mat *w, enum kn_split how, const size_t *part, size_t n_parts);
int kn_mat_done(struct kn_mat *w); /* all rows filled: ready for use */
void kn_mat_destroy(struct kn_mat *w);
size_t kn_mat_bytes(const struct kn_mat *w); /* memory that it takes */
bool kn_mat_rough(const struct kn_mat *w);   /* there is a faster product for kn_rough() */

/* ---- running ---- */
typedef int (*kn_rows_fn)(struct kn_stream *st, void *arg, size_t row0, size_t n_rows);
/* Cut [0, n_rows) into blocks and run fn on each, in parallel; returns the first error. Blocks are
 * balanced over threads (small row counts give one block per thread or fewer); `cancel` (may be
 * NULL) is looked at between blocks and inside long operations. */
int kn_rows(struct kn_dev *d, size_t n_rows, const atomic_bool *cancel, kn_rows_fn fn, void *arg);
/* The same in smaller blocks, for work that grows with the row (attention). */
int kn_rows_uneven(struct kn_dev *d, size_t n_rows, const atomic_bool *cancel, kn_rows_fn fn,
                   void *arg);
/* Run fn once with all rows on a stream whose operations are themselves parallel inside (GEMMs by
 * output columns, attention by head): for few rows (decode, a short question). */
int kn_wide(struct kn_dev *d, size_t n_rows, const atomic_bool *cancel, kn_rows_fn fn, void *arg);
/* While on, products with weights of kn_mat_rough() round their rows to 8 bits: runs whose results
 * only rank. */
void kn_rough(struct kn_dev *d, bool on);
/* While on, a GPU's runs return when their operations are queued: the host may not read, write or
 * free what they touch before the end of a run that is not deferred, which also says what went
 * wrong. A run that fails or is cancelled has waited. The CPU's runs are over in any case. */
void kn_defer(struct kn_dev *d, bool on);
/* While on, a GPU's run returns when the run before it is done, so that the device always has the
 * next one queued. The last one is under way until the end of a run that is not pipelined, or until
 * kn_fence(), which waits for deferred runs, too; either says what went wrong. Until then the host
 * leaves what the runs touch as it is. */
void kn_pipeline(struct kn_dev *d, bool on);
int kn_fence(struct kn_dev *d);
/* kn_wide() of what is run again and again: what fn queues under a key is always the same
 * operations on the same memory, and all that differs from run to run is read by operations. So a
 * device may record it and play the recording later, without calling fn. Keys of other shapes are
 * other recordings; where one cannot be made (kn_replays() says so) fn is called each time, with
 * the same bits. fn waits for nothing, and of host memory it copies KN_MEM_HOST alone. */
int kn_replay(struct kn_dev *d, uint64_t key, size_t n_rows, const atomic_bool *cancel,
              kn_rows_fn fn, void *arg);
/* So many rows shall a run of n be that is played again: runs of about as many share a recording. n
 * itself where nothing is recorded. */
size_t kn_replay_rows(const struct kn_dev *d, size_t n);
/* No recording is played any more: before memory is freed that one of them touches. */
void kn_forget(struct kn_dev *d);
struct kn_replays {
    uint64_t n_recorded, n_played;
    bool refused; /* the device does not record, and is not asked again */
};
struct kn_replays kn_replays(const struct kn_dev *d); /* thread: any */
/* Products that a GPU's library refused, so that slow kernels made them; the latest's shape. */
struct kn_refusals {
    uint64_t count;
    size_t m, n, k;
};
struct kn_refusals kn_gemm_refusals(const struct kn_dev *d); /* thread: any */
/* Wait for what the stream was given so far; the first error of it. */
int kn_sync(struct kn_stream *st);
/* Scratch of a stream, device memory: at least size_bytes, 64-byte aligned; slot 0..7 keeps them
 * apart; borrow until the next call with the same slot. NULL when out of memory. */
void *kn_scratch(struct kn_stream *st, unsigned slot, size_t size_bytes);
/* Scratch for rows [m, k] that only products with w, or weights of its width and kind, read:
 * written whole by kn_rmsnorm(), kn_layernorm(), kn_glu() or kn_attn() (out, stride k), read whole
 * by kn_gemm() (a) any number of times, or inside kn_gated(). A device keeps them as those products
 * want them (bf16, 8 bits), so nothing else may look. Slots as kn_scratch(). */
float *kn_operand(struct kn_stream *st, unsigned slot, size_t m, const struct kn_mat *w);
/* The same for what a product with w gives, [m, n]: written whole by one kn_gemm() (c, stride n;
 * neither bias nor accumulate), read by kn_glu() alone (gate_up). What a weight of kn_mat_inner()
 * gives a device may round to bf16. */
float *kn_product(struct kn_stream *st, unsigned slot, size_t m, const struct kn_mat *w);

/* ---- row operations ---- */
struct kn_gemm_args {
    const float *a; /* [m, k], row stride lda floats */
    size_t lda, m;
    const struct kn_mat *w; /* [n, k] */
    const float *bias;      /* [n] or NULL */
    float *c;               /* [m, n], row stride ldc floats: c = a w^T + bias, or c += … */
    size_t ldc;
    bool accumulate;
};
int kn_gemm(struct kn_stream *st, const struct kn_gemm_args *a);
/* Two products and what stands between them, which may never be as a whole: up (its c: kn_product()
 * [m, 2F]), kn_glu() of that to down->a (kn_operand() [m, F]), down; the same bits as one by one.
 * Neither of the two between is read by anybody else. -EINVAL: shapes, or one of both without
 * gaps. */
int kn_gated(struct kn_stream *st, const struct kn_gemm_args *up, enum kn_act act,
             const struct kn_gemm_args *down);

/* out[i] = row id[i] of the weight, as f32; out [m, k], row stride ldo. -ENOTSUP on the CPU, whose
 * packed weights have no rows: it reads embeddings where the model has them. */
int kn_embed(struct kn_stream *st, const struct kn_mat *w, const int32_t *id, size_t m, float *out,
             size_t ldo);
/* out[i] = x[idx[i]], rows of n contiguous floats. out may be x when idx ascends. */
int kn_gather(struct kn_stream *st, const float *x, const int32_t *idx, size_t m, size_t n,
              float *out);
int kn_copy(struct kn_stream *st, void *dst, const void *src, size_t bytes);

/* out[i] = x[i] / rms(x[i]) * weight; rows of D; out may be x. */
int kn_rmsnorm(struct kn_stream *st, const float *x, size_t ldx, size_t m, size_t D,
               const float *weight, float eps, float *out, size_t ldo);
/* The same added: out[i] += …; out is not x. */
int kn_rmsnorm_add(struct kn_stream *st, const float *x, size_t ldx, size_t m, size_t D,
                   const float *weight, float eps, float *out, size_t ldo);
/* The same per head of K: x [m, heads, K] in place (QK norm). */
int kn_rmsnorm_heads(struct kn_stream *st, float *x, size_t ldx, size_t m, size_t heads, size_t K,
                     const float *weight, float eps);
/* out[i] = (x[i] - mean) / sqrt(variance + eps) * weight + bias, each over the row (variance: of
 * all D values); rows of D; out may be x. */
int kn_layernorm(struct kn_stream *st, const float *x, size_t ldx, size_t m, size_t D,
                 const float *weight, const float *bias /* [D] or NULL */, float eps, float *out,
                 size_t ldo);
/* x [m, n] in place: x * Phi(x), the standard normal's distribution function (GELU by erf). On the
 * CPU; elsewhere -ENOTSUP. */
int kn_gelu(struct kn_stream *st, float *x, size_t ldx, size_t m, size_t n);
/* gate_up [m, 2F] (gate first) -> out [m, F] = act(gate) * up. */
int kn_glu(struct kn_stream *st, enum kn_act act, const float *gate_up, size_t ldg, size_t m,
           size_t F, float *out, size_t ldo);
/* x [m, n], stride ldx, in place: cap * tanh(x / cap), cap > 0. */
int kn_softcap(struct kn_stream *st, float *x, size_t ldx, size_t m, size_t n, float cap);

/* The feed-forward part of a mixture of experts: x[i] = (accumulate: +=) the sum of h[i]'s experts,
 * each down(act(gate h) * (up h)), times their weights. Weights are the `used` largest of softmax(
 * router h), ties to the lower number, `renorm`: divided by their sum, which is the softmax of the
 * largest alone. The shared expert, if there is one, is every row's, times the sigmoid of the
 * router's last row; it has no biases. A row's sum goes by the
 * experts' numbers, so its bits are its own. h, x: [m, D] without gaps; scratch is used*m rows of
 * 2*D + 3*F floats. With weights of 8 bits a GPU rounds experts' rows to bf16. -EINVAL: shapes. */
enum { KN_EXPERTS_MAX = 1024 }; /* chosen: twice of what published models have */
struct kn_moe {
    struct kn_mat *router;                       /* [n, D] of kn_mat_create_f32(); shared: n + 1 */
    struct kn_mat **gate_up, **down;             /* [n] of [2F, D] (gate rows first), [D, F] each */
    struct kn_mat *shared_gate_up, *shared_down; /* [2F', D], [D, F'], or NULL both */
    float *router_bias, *gate_up_bias, *down_bias; /* [n], [n, 2F], [n, D], or NULL each */
    unsigned n, used;
    bool renorm;
    /* Llama 4's: an expert's input is its row times the sigmoid of its logit, and what it gives is
     * added as it is, like the shared expert's, which no column of the router weighs. `renorm` is
     * not read. On the CPU; elsewhere -ENOTSUP. */
    bool scales_input;
    enum kn_act act;
};
int kn_moe(struct kn_stream *st, const struct kn_moe *e, const float *h, size_t m, float *x,
           bool accumulate);

/* Rotary embedding in place. */
int kn_rope(struct kn_stream *st, const struct kn_rope *r, float *x /* [m, heads, K] in place */,
            size_t ldx, size_t m, size_t heads, const int32_t *pos /* [m] */);

/* ---- paged KV ----
 * Page p of layer l holds tokens [p*P, p*P+P) in kn_kv_layer_values() at
 * base + (pages[p] * page_stride + l * layer_stride) * kv_value_bytes. The type is kn_info.kv, the
 * order the device's own (the CPU: f32, K transposed [G, K, P], then V [G, P, K]; where it
 * multiplies bf16: bf16 in tiles, cpu/simd/attn_bf16.c; or whole numbers: Q16 and Q8, rounded in
 * their own way, whole_pages.h there; Q8 else: cpu/pages.h; a GPU: cuda/pages.h). K is rotated at
 * its position. Else Q8 rounds rows as a stored row is rounded (types.h), after the rotation, and
 * what a record has in Q8 is not rounded again unless it is rotated.
 * Of one sequence, or of as many as an operation has rows: the new tokens of a batch side by side
 * fill a device that one of them does not. Every row is what it would be alone, bit for bit. */
struct kn_kv {
    void *base;
    size_t page_stride, layer_stride; /* values; Q8: bytes */
    const int32_t *pages;             /* [n_pages] page ids of the sequence */
    size_t n_pages;                   /* `each`: no row has more */
    unsigned G, K;
    const struct kn_pages *each; /* [rows], read by operations: row i's own; NULL: one sequence */
    ptrdiff_t each_shift;        /* ids from an address in `each` to a rank's own place; else 0 */
};
/* Of one page of one layer: 2*G*K*P; Q8: 2*G*(K+2)*P, bytes; Q16: 2*G*(K+1)*P of an even K. */
size_t kn_kv_layer_values(enum kn_dtype kv, unsigned G, unsigned K);
/* Store rotated K and V rows at positions pos[i]. k, v: [m, G, K] with row strides. Q8: -ERANGE as
 * kn_encode_rows(), which a GPU says as it says -EINVAL. */
int kn_kv_put(struct kn_stream *st, const struct kn_kv *kv, unsigned layer, const int32_t *pos,
              size_t m, const float *k, size_t ldk, const float *v, size_t ldv);
/* The same of K that is not rotated yet, and is on its way: k is scratch afterwards. */
int kn_rope_put(struct kn_stream *st, const struct kn_kv *kv, unsigned layer,
                const struct kn_rotation *to, const int32_t *pos, size_t m, float *k, size_t ldk,
                const float *v, size_t ldv);
/* Store rows that come from records, K rotated; pieces have no position in common. Rows that are
 * recomputed overwrite theirs with kn_kv_put() afterwards. k, v may lie anywhere, the host's own
 * memory included, and must stay until the run is over. One launch for KN_PIECES, the most that
 * a call may have; those of one dtype are faster. */
int kn_kv_load(struct kn_stream *st, const struct kn_kv *kv, unsigned layer,
               const struct kn_rope *rope /* NULL: no rot0 asks for it */,
               const struct kn_stored *piece, size_t n_pieces);
/* f32 rows x [m, n], stride ldx -> contiguous rows of dtype t, each n values in heads of K (round
 * to nearest even): this is how computed KV leaves the device. out may be the host's own memory. It
 * is filled when this is waited for (kn_sync(), kn_fence(), the end of a run that is neither
 * deferred nor pipelined); where it is pinned, nobody waits before, and until then it stays. A
 * value that does not fit f16 or Q8, which know no infinity and no NaN: -ERANGE, or, from a device
 * that finds it later, *bad (KN_MEM_SHARED) becomes 1. -EINVAL when n is not whole heads. */
int kn_encode_rows(struct kn_stream *st, const float *x, size_t ldx, size_t m, size_t n, size_t K,
                   enum kn_dtype t, void *out, int *bad);
/* From one dtype to another on the host, without a device. Thread: any. As kn_encode_rows(). */
int kn_convert(const void *x, enum kn_dtype from, size_t n, size_t K, enum kn_dtype to, void *out);

/* Rows of n values in heads of K: numbers all, no infinity and no NaN? On the host. Thread: any. */
bool kn_finite(const void *x, enum kn_dtype t, size_t n, size_t K);

/* Attention of m rows at exact positions: row i sees keys j <= pos[i], of these the last `window`
 * where there is one; rows of one sequence sorted by position. GQA: head h reads KV head h / (H/G).
 * Softmax in f32, exp of (q·k)*scale, which a cap bounds as kn_softcap() does. A head's sink is one
 * score more in its softmax, of no key: it takes probability and adds nothing. */
struct kn_attn_args {
    const float *q; /* [m, H, K], rotated */
    size_t ldq, m;
    /* q is not rotated yet, and is as it is read. kn_attn() alone; on a GPU; elsewhere -ENOTSUP. */
    struct kn_rotation to;
    const int32_t *pos; /* [m] */
    /* [m] or NULL: pos, as the host reads it; by it a GPU shares out the work. Changes no bit. */
    const int32_t *known;
    /* Not 0: the rows are the last m of so many positions, one after another, as the caller knows
     * without a look at pos. They may go another way on a GPU, which rounds differently. */
    size_t n_keys;
    unsigned H;
    const struct kn_kv *kv;
    unsigned layer;
    float scale, cap; /* cap 0: none */
    unsigned window;  /* keys that a row sees, its own included; 0: all */
    /* Keys that a row sees begin at the last multiple of this at or before its position (Llama 4's
     * chunked attention); 0: at key 0. Without a window. On the CPU; elsewhere -ENOTSUP. */
    unsigned chunk;
    const float *sink; /* [H] or NULL: none */
    /* [m], ascending, at most pos: the first key that row i sees, of one sequence, with no window.
     * NULL: key 0. On the CPU; elsewhere -ENOTSUP. */
    const int32_t *from;
    float *out; /* [m, H, K], or kn_operand() of that width */
    size_t ldo;
    float *lse; /* [m, H] log-sum-exp of the scaled scores, the sink's included, or NULL */
};
int kn_attn(struct kn_stream *st, const struct kn_attn_args *a);
/* mass[j] += sum over rows and heads of the attention probability of key j, key0 <= j < key0 +
 * n_keys, key0 at the start of a page, all of one sequence; `lse` from kn_attn() of the same rows.
 * Concurrent callers have keys of their own. */
int kn_attn_mass(struct kn_stream *st, const struct kn_attn_args *a, float *mass, size_t key0,
                 size_t n_keys);

/* ret[pos[i]] = sum of squares, fp32, of row i of a [m, G*K] less the stored K of that position, if
 * a piece has it; v and rot0 are not read. Pieces as in kn_kv_load(). */
int kn_deviation(struct kn_stream *st, const float *a, size_t lda, const int32_t *pos, size_t m,
                 const struct kn_stored *piece, size_t n_pieces, unsigned G, unsigned K,
                 float *ret);
/* The first n_edits[i] of row i of list [m, stride], all of different ids, are done to row i of x
 * [m, n], stride ldx. What is beyond n is left out. */
int kn_edit(struct kn_stream *st, float *x, size_t ldx, size_t m, size_t n,
            const struct kn_edit *list, size_t stride, const uint32_t *n_edits /* [m] */);
/* ret[i] = a place of row i of x [m, n], stride ldx: drawn as how[i] says (draw.h), or, with how
 * NULL or how[i] zeroed, that of the largest value, the first of equal ones. What is no number is
 * less than any; -1: the largest is not finite. Given the same, every device draws the same.
 * -EINVAL: n is beyond DRAW_ROWS_MAX. */
int kn_draw(struct kn_stream *st, const float *x, size_t ldx, size_t m, size_t n,
            const struct kn_draw *how /* [m] or NULL */, int32_t *ret);
/* The k of idx [n] (NULL: 0 … n-1) whose scores are the largest, in the order of idx, ties to the
 * earlier: kn_topk() where the scores are. */
int kn_top(struct kn_stream *st, const float *score, const int32_t *idx, size_t n, size_t k,
           int32_t *ret /* [k] */);
/* On the host, over memory it may read. Indices of the k largest scores, ties to the lower index,
 * returned ascending. */
int kn_topk(const float *score, size_t n, size_t k, int32_t *ret_idx /* [k] */);

#endif
