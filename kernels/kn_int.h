/* kn_int: what kn.c and the backends share: the tables of a backend, and how objects lead to them.
 *
 * Every backend has its own struct kn_dev, kn_stream and kn_mat, which start with the structs below
 * named head. kn.c checks shapes (not positions, they may lie on the device) and returns at once
 * when there is nothing to do: backends are not asked for m = 0 or n = 0. An operation that has a
 * function of kn.h's type is kn.h's function of that name. Thread: as kn.h. */
#ifndef KERNELS_KN_INT_H
#define KERNELS_KN_INT_H

#include "kernels/kn.h"

enum { KN_SLOTS = 8 }; /* scratch slots of the caller; a backend may have more of its own */

struct kn_dev_ops {
    typeof(kn_dev_destroy) *destroy;
    int (*tune)(struct kn_dev *d, const struct kn_tuning *t); /* chooses and fills the rates in */
    typeof(kn_mem_alloc) *mem_alloc;
    typeof(kn_mem_free) *mem_free;
    typeof(kn_mem_copy) *mem_copy;
    typeof(kn_scratch) *scratch;
};

struct kn_mat_ops {
    typeof(kn_mat_create) *create;
    typeof(kn_mat_create_full) *create_full;
    typeof(kn_mat_fill) *fill;
    typeof(kn_mat_done) *done;
    typeof(kn_mat_bytes) *bytes;
    typeof(kn_mat_destroy) *destroy;
    typeof(kn_mat_create_coded) *create_coded;
    typeof(kn_mat_fill_codes) *fill_codes;
    typeof(kn_mat_create_f32) *create_f32;
    typeof(kn_mat_split) *split; /* NULL: nobody shares it */
    typeof(kn_mat_rough) *rough; /* NULL: none */
};

struct kn_run_ops {
    typeof(kn_rows) *rows, *rows_uneven, *wide;
    typeof(kn_replay) *replay;
    typeof(kn_rough) *rough; /* NULL: nothing is */
    /* Items of an operation that is spread over the threads, in a run of all rows at once (the
     * CPU's kn_par()); NULL: a device spreads its operations itself. */
    int (*par)(struct kn_stream *st, size_t n_items,
               int (*fn)(struct kn_stream *st, void *arg, size_t item), void *arg);
};

struct kn_row_ops {
    typeof(kn_gemm) *gemm;
    typeof(kn_gated) *gated; /* NULL, or -ENOTSUP: one by one */
    typeof(kn_gather) *gather;
    typeof(kn_copy) *copy;
    typeof(kn_rmsnorm) *rmsnorm, *rmsnorm_add;
    typeof(kn_rmsnorm_heads) *rmsnorm_heads;
    typeof(kn_layernorm) *layernorm;
    typeof(kn_gelu) *gelu;
    typeof(kn_glu) *glu;
    typeof(kn_softcap) *softcap;
    typeof(kn_rope) *rope;
    typeof(kn_kv_put) *kv_put;
    typeof(kn_rope_put) *rope_put; /* NULL on the CPU: kn_rope() and kn_kv_put() */
    typeof(kn_kv_load) *kv_load;
    typeof(kn_encode_rows) *encode_rows;
    typeof(kn_attn) *attn;
    typeof(kn_attn_mass) *attn_mass;
    typeof(kn_deviation) *deviation;
    typeof(kn_edit) *edit;
    typeof(kn_draw) *draw;
    typeof(kn_top) *top;
    typeof(kn_moe) *moe;
};

/* What only a GPU has. The CPU has none of it: see what kn.c does instead at each. */
struct kn_gpu_ops {
    typeof(kn_dev_lost) *lost;
    typeof(kn_dev_gpu) *gpu;
    typeof(kn_dev_memory) *memory;
    typeof(kn_stage_room) *stage_room;
    typeof(kn_stage) *stage;
    typeof(kn_staged) *staged;
    typeof(kn_unstage) *unstage;
    typeof(kn_mat_random) *mat_random; /* NULL: filled from the host */
    typeof(kn_defer) *defer;
    typeof(kn_pipeline) *pipeline;
    typeof(kn_fence) *fence;
    typeof(kn_replay_rows) *replay_rows;
    typeof(kn_forget) *forget;
    typeof(kn_replays) *replays;
    typeof(kn_gemm_refusals) *gemm_refusals;
    typeof(kn_sync) *sync;
    typeof(kn_mat_rows) *mat_rows;
    typeof(kn_operand) *operand;
    typeof(kn_product) *product;
    typeof(kn_embed) *embed;
};

/* What a group asks of its ranks beside. They are of one backend. */
struct kn_team; /* ranks that can add up */
struct kn_rank_ops {
    void (*use)(struct kn_dev *d); /* before anything that this thread asks of it */
    int (*clear)(struct kn_stream *st, void *p, size_t bytes);
    int (*encode_rows)(struct kn_stream *st, const float *x, size_t ldx, size_t m, size_t n,
                       size_t K, enum kn_dtype t, void *out, size_t stride /* of out, bytes */,
                       int *bad);
    /* kn_replay() in its steps: is there a recording of that key that can be played; record what
     * is queued until record_end(), if it is time to; queue it. */
    bool (*recorded)(const struct kn_dev *d, uint64_t key);
    bool (*record_begin)(struct kn_dev *d, uint64_t key);
    void (*record_end)(struct kn_dev *d, uint64_t key, int status);
    int (*play)(struct kn_dev *d, uint64_t key);
    int (*team_create)(struct kn_dev *const *rank, unsigned n, struct kn_team **ret,
                       struct err *err);
    void (*team_destroy)(struct kn_team *t); /* accepts NULL */
    /* x[r] [n] of rank r becomes the sum of all ranks', the same bits on each. */
    int (*team_sum)(struct kn_team *t, float *const *x, size_t n);
};

struct kn_ops {
    const struct kn_dev_ops *dev;
    const struct kn_mat_ops *mat;
    const struct kn_run_ops *run;
    const struct kn_row_ops *row;
    const struct kn_gpu_ops *gpu;   /* NULL on the CPU */
    const struct kn_rank_ops *rank; /* NULL: no part of a group */
};

struct kn_dev_head {
    struct kn_ops ops;
    struct kn_info info;
};
struct kn_stream_head {
    struct kn_dev *dev;
};
struct kn_mat_head {
    struct kn_dev *dev;
    size_t n, k;
    bool inner; /* kn_mat_inner() */
};

int kn_cpu_create(const struct kn_dev_opts *o, struct kn_dev **ret_dev, struct err *err);
/* Takes the ranks, and destroys them if it fails. */
int kn_group_create(struct kn_dev *const *rank, unsigned n, struct kn_dev **ret_dev,
                    struct err *err);

#endif
