/* The CUDA backend of kn.h: shapes and memory on the host's side, everything else in the .cu files.
 *
 * One stream a device; kn_rows() and kn_wide() run the function once with all rows and wait for the
 * stream, so what a run wrote may be read behind it. What lies in the host's memory (stored KV that
 * is not staged) is copied to scratch on the stream first. */
#include "kernels/kn_int.h"

#include "base/assert.h"
#include "base/mem.h"
#include "kernels/cuda/blocks.h"
#include "kernels/cuda/coded.h"
#include "kernels/cuda/drain.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/mem.h"
#include "kernels/cuda/moe.h"
#include "kernels/cuda/replay.h"
#include "kernels/cuda/rows.h"
#include "kernels/cuda/sdpa.h"
#include "kernels/cuda/stage.h"
#include "kernels/cuda/team.h"

#include <stdio.h>
#include <string.h>

enum {
    SLOT_STAGE = KN_SLOTS, /* stored KV and weights on their way in */
    SLOT_PARTS,            /* attention over parts of the keys */
    SLOT_OPERAND,          /* rows rounded for a product, or that are going to be */
    SLOT_ROWS,             /* a gather in place */
    SLOT_PRODUCT,          /* sums that are scaled behind a product */
    SLOT_MOE,              /* all that a mixture of experts works with */
    SLOT_SDPA,             /* Q, K and V as the library's attention reads them */
    SLOT_VALUES,           /* a weight's values in bf16, of one in the file's form */
    SLOTS_ALL
};

struct operand { /* what kn_operand() or kn_product() gave for a slot; at NULL: nothing */
    void *at;
    size_t m, k;
    enum cu_type type;
};

struct feed { /* weights on their way: pinned memory, in turns */
    char *room[2];
    struct gpu_event *gone[2];
    uint64_t turn;
};

struct kn_stream { /* as struct kn_stream_head */
    struct kn_dev *dev;
    void *slot[SLOTS_ALL];
    size_t slot_size[SLOTS_ALL];
    struct operand operand[KN_SLOTS];
};

struct kn_dev {
    struct kn_dev_head head;
    struct cu *cu;
    struct gpu gpu; /* its number, for mem.h */
    bool bf16;
    enum cu_type weights; /* of layers' weights */
    bool keeps_codes;     /* where the file has some, layers' weights are those */
    char *cache_dir;
    bool deferring, pipelining;
    struct gpu_event *mark[2]; /* events behind pipelined runs, in turns */
    uint64_t n_pipelined;
    bool under_way;    /* the last of them, or what was held, for all that the host knows */
    struct sdpa *sdpa; /* NULL: attention is our own */
    atomic_bool lost;
    char name[200], attn_warning[120];
    struct kn_stream stream;
    struct blocks blocks;
    struct feed feed;
    struct stage stage;
    struct drain drain;
    struct replay replay;
    uint64_t n_moved; /* times that scratch has come to lie elsewhere */
};

struct kn_mat { /* as struct kn_mat_head */
    struct kn_dev *dev;
    size_t n, k;
    bool inner;
    enum cu_type type;      /* of the other side, too */
    char *block;            /* a side, or codes */
    struct cu_codes *codes; /* NULL: they are a side; the owner's where `of` is not NULL */
    struct kn_mat *of;      /* not NULL: rows of this one, from row0 on */
    size_t row0;
    bool ready;
    /* Of a router: where its experts' weights are, [n], for kernels, and what they last were told;
     * NULL before its first mixture. */
    struct cu_expert *experts, *told;
};

int kn_cuda_create(const struct kn_dev_opts *o, const char *kind, int index,
                   struct kn_dev **ret_dev, struct err *err);

/* ---- memory ---- */

static void *alloc_block(struct kn_dev *d, enum kn_mem kind, size_t bytes)
{
    return blocks_alloc(&d->blocks, kind, bytes);
}

static void free_block(struct kn_dev *d, void *p)
{
    blocks_free(&d->blocks, p);
}

static int mem_copy(struct kn_dev *d, void *dst, const void *src, size_t bytes)
{
    cu_use(d->cu);
    int r = cu_copy(d->cu, dst, src, bytes);
    return r < 0 ? r : cu_sync(d->cu);
}

/* want: how much there shall be where there is less than size_bytes. */
static void *scratch_of(struct kn_stream *st, unsigned slot, size_t size_bytes, size_t want)
{
    if (slot < KN_SLOTS) st->operand[slot].at = NULL;
    if (st->slot_size[slot] < size_bytes || !st->slot[slot]) {
        if (st->dev->replay.recording) return NULL; /* the next run that is not has room for it */
        struct blocks *own = &st->dev->blocks;
        void *p = want >= size_bytes ? blocks_take(own, KN_MEM_DEVICE, want + 64) : NULL;
        if (!p) return NULL;
        st->dev->n_moved++;
        if (st->slot[slot])
            blocks_drop(own, st->slot[slot], KN_MEM_DEVICE, st->slot_size[slot] + 64);
        st->slot[slot] = p;
        st->slot_size[slot] = want;
    }
    return st->slot[slot];
}

static void *scratch(struct kn_stream *st, unsigned slot, size_t size_bytes)
{
    return scratch_of(st, slot, size_bytes, size_bytes + size_bytes / 4);
}

static float *operand(struct kn_stream *st, unsigned slot, size_t m, const struct kn_mat *w)
{
    const struct operand o = {scratch(st, slot, cu_side_bytes(w->type, m, w->k)), m, w->k, w->type};
    if (w->type != CU_F32) st->operand[slot] = o;
    return o.at;
}

static float *product(struct kn_stream *st, unsigned slot, size_t m, const struct kn_mat *w)
{
    const bool rounds = w->inner && cu_gemm_rounds(st->dev->cu, w->type);
    const enum cu_type t = rounds ? CU_BF16 : CU_F32;
    const struct operand o = {scratch(st, slot, cu_side_bytes(t, m, w->n)), m, w->n, t};
    if (t != CU_F32) st->operand[slot] = o;
    return o.at;
}

/* The operand that is there, else NULL. */
static const struct operand *operand_at(const struct kn_stream *st, const float *at)
{
    for (unsigned i = 0; i < KN_SLOTS; i++)
        if (at && st->operand[i].at == at) return &st->operand[i];
    return NULL;
}

static int gpu(struct kn_dev *d, struct gpu **ret, struct err *err)
{
    return kn_cuda_gpu_open(d->gpu.index, ret, err);
}

static struct kn_memory memory(struct kn_dev *d)
{
    const struct blocks *b = &d->blocks;
    struct kn_memory m = {.device_bytes = atomic_load(&b->held[KN_MEM_DEVICE]),
                          .shared_bytes = atomic_load(&b->held[KN_MEM_SHARED]) +
                                          atomic_load(&b->held[KN_MEM_HOST]),
                          .stage_bytes = d->stage.bytes,
                          .n_allocs = atomic_load(&b->n_allocs)};
    (void)cu_mem_info(&d->gpu, &m.free_bytes, &m.total_bytes);
    return m;
}

static int stage_room(struct kn_dev *d, size_t bytes)
{
    char *base = d->stage.base ? NULL : alloc_block(d, KN_MEM_DEVICE, bytes);
    if (!base) return -ENOMEM;
    int r = stage_init(&d->stage, &d->gpu, base, bytes);
    if (r < 0) free_block(d, base);
    return r == 0 ? cu_sync(d->cu) : r; /* it is cleared by another stream */
}

static int stage(struct kn_dev *d, struct kn_piece *p, size_t n, uint64_t *ret_turn)
{
    int r = stage_begin(&d->stage, p, n, ret_turn);
    if (r == -EIO) atomic_store(&d->lost, true);
    return r;
}

static int staged(struct kn_stream *st, uint64_t turn)
{
    return stage_wait(&st->dev->stage, cu_stream(st->dev->cu), turn);
}

static void unstage(struct kn_dev *d, uint64_t turn)
{
    stage_end(&d->stage, turn);
}

/* ---- device ---- */

static void destroy(struct kn_dev *d)
{
    if (d->cu) (void)cu_sync(d->cu); /* copies may still read the host's memory */
    if (d->cu) replay_forget(&d->replay, d->cu);
    sdpa_close(d->sdpa);
    for (unsigned i = 0; d->cu && i < SLOTS_ALL; i++)
        if (d->stream.slot[i]) cu_free(d->cu, d->stream.slot[i], KN_MEM_DEVICE);
    if (d->stage.base) free_block(d, d->stage.base);
    stage_fini(&d->stage);
    if (d->drain.base) free_block(d, d->drain.base);
    drain_fini(&d->drain);
    for (int i = 0; i < 2; i++) {
        if (d->mark[i]) cu_event_destroy(&d->gpu, d->mark[i]);
        if (d->feed.gone[i]) cu_event_destroy(&d->gpu, d->feed.gone[i]);
        if (d->feed.room[i]) free_block(d, d->feed.room[i]);
    }
    blocks_fini(&d->blocks);
    cu_close(d->cu);
    mem_free(d->cache_dir);
    mem_free(d);
}

static bool lost(const struct kn_dev *d)
{
    return atomic_load(&d->lost);
}

static const char *gemm_name(const struct kn_dev *d)
{
    return d->weights == CU_FP8    ? "cublaslt-fp8"
           : d->weights == CU_INT8 ? "cublaslt-int8"
           : d->keeps_codes        ? "cublaslt-bf16-codes"
           : d->bf16               ? "cublaslt-bf16"
                                   : "cublaslt-f32";
}

static int tune(struct kn_dev *d, const struct kn_tuning *how)
{
    enum { BUDGET_MS = 8000 };
    cu_use(d->cu);
    double gflops = 0;
    const struct cu_tune t = {d->weights,    how->shapes,
                              how->n_shapes, how->rows,
                              how->rows_max, how->budget_ms ? how->budget_ms : BUDGET_MS,
                              d->cache_dir};
    int r = cu_tune(d->cu, &t, &gflops);
    if (r < 0) return r;
    d->head.info.rate[d->head.info.n_rates++] =
        (struct kn_gemm_rate){d->head.info.gemm, gflops, true};
    /* A product in 8 bits wants f32 from the attention, and the library's plans give bf16. */
    const size_t keys_max = d->bf16 && !cu_is_eight(d->weights) ? how->keys_max : 0;
    const bool q8 = d->head.info.kv == KN_Q8;
    const struct sdpa_tuning a = {{how->H, how->G, how->K}, q8, keys_max, d->cache_dir};
    r = sdpa_tune(d->cu, &a, &d->sdpa, d->attn_warning, sizeof d->attn_warning);
    if (*d->attn_warning) d->head.info.attn_warning = d->attn_warning;
    if (d->sdpa) d->head.info.attn = sdpa_name(d->sdpa);
    return r;
}

/* ---- weights ---- */

/* codes: NULL or what it shall be of, which it owns if this succeeds. */
static int create_mat(struct kn_dev *d, enum cu_type type, size_t n, size_t k,
                      struct cu_codes *codes, struct kn_mat **ret_mat)
{
    size_t bytes;
    if (!size_mul(n + CU_ROWS_UNIT, k, &bytes) || !size_mul(bytes, 8, &bytes)) return -ENOMEM;
    struct kn_mat *w = mem_zalloc(sizeof *w);
    if (!w) return -ENOMEM;
    *w = (struct kn_mat){.dev = d, .n = n, .k = k, .type = type, .codes = codes};
    w->block = alloc_block(d, KN_MEM_DEVICE, codes ? codes->bytes : cu_side_bytes(type, n, k));
    if (!w->block) {
        mem_free(w);
        return -ENOMEM;
    }
    *ret_mat = w;
    return 0;
}

static int mat_create(struct kn_dev *d, size_t n, size_t k, struct kn_mat **ret_mat)
{
    return create_mat(d, d->weights, n, k, NULL, ret_mat);
}

static int mat_create_full(struct kn_dev *d, size_t n, size_t k, struct kn_mat **ret_mat)
{
    return create_mat(d, d->bf16 ? CU_BF16 : CU_F32, n, k, NULL, ret_mat);
}

static int mat_create_f32(struct kn_dev *d, size_t n, size_t k, struct kn_mat **ret_mat)
{
    return create_mat(d, CU_F32, n, k, NULL, ret_mat);
}

/* With it comes room for the values of the widest: what requests must not ask for later. */
static int mat_create_coded(struct kn_dev *d, const struct kn_part *parts, size_t n_parts, size_t k,
                            bool full, struct kn_mat **ret_mat)
{
    struct cu_codes *codes = NULL;
    size_t n = 0;
    if (!d->keeps_codes || full) return -ENOTSUP; /* full: rows that kn_embed() may read */
    for (size_t i = 0; i < n_parts; i++)
        n += parts[i].n;
    int r = cu_codes_create(parts, n_parts, k, &codes);
    if (r < 0) return r;
    cu_use(d->cu);
    const size_t values = cu_side_bytes(CU_BF16, n, k);
    if (!scratch_of(&d->stream, SLOT_VALUES, values, values)) r = -ENOMEM;
    if (r == 0) r = create_mat(d, CU_BF16, n, k, codes, ret_mat);
    if (r < 0)
        cu_codes_destroy(codes);
    else
        cu_codes_place(codes, (*ret_mat)->block);
    return r;
}

static struct cu_side side_of(const struct kn_mat *w)
{
    const size_t n = w->of ? w->of->n : w->n;
    struct cu_side side = cu_side_at(w->type, n, w->k, w->block);
    side.data = (char *)side.data + w->row0 * w->k * cu_value_bytes(w->type);
    if (side.scale) side.scale += w->row0;
    return side;
}

static int mat_rows(struct kn_mat *w, size_t row0, size_t n, struct kn_mat **ret_mat)
{
    struct kn_mat *part = w->ready ? mem_alloc(sizeof *part) : NULL;
    if (!part) return w->ready ? -ENOMEM : -EINVAL;
    *part = *w;
    part->n = n, part->of = w, part->row0 = row0;
    *ret_mat = part;
    return 0;
}

/* From the host's memory, which is the caller's again on return: a copy from pageable memory would
 * stand still for the driver's own (7.7 GB/s of 54 on an H100), and one from pinned memory read it
 * later. The caller makes the next rows while these are on their way. */
static int feed(struct kn_dev *d, char *to, const char *from, size_t bytes)
{
    enum { ROOM = 8 << 20 }; /* chosen: two slices of a model's loading */
    struct feed *f = &d->feed;
    int r = 0;
    for (size_t at = 0, n; r == 0 && at < bytes; at += n) {
        const unsigned i = f->turn++ % 2;
        n = bytes - at < ROOM ? bytes - at : ROOM;
        if (!f->room[i] && !(f->room[i] = alloc_block(d, KN_MEM_HOST, ROOM))) return -ENOMEM;
        if (!f->gone[i] && (r = cu_event_create(&d->gpu, &f->gone[i])) < 0) return r;
        r = cu_event_sync(&d->gpu, f->gone[i]);
        if (r == 0) memcpy(f->room[i], from + at, n);
        if (r == 0) r = cu_copy(d->cu, to + at, f->room[i], n);
        if (r == 0) r = cu_event_record(&d->gpu, f->gone[i], cu_stream(d->cu));
    }
    return r;
}

static char *rows_at(const struct kn_mat *w, size_t row0)
{
    return (char *)side_of(w).data + row0 * w->k * cu_value_bytes(w->type);
}

/* Rows of the device's memory, which are read when their turn comes. */
static int put_rows(struct kn_mat *w, size_t row0, size_t n_rows, const float *rows)
{
    const struct cu_side side = side_of(w);
    if (w->type == CU_F32)
        return cu_copy(w->dev->cu, rows_at(w, row0), rows, n_rows * w->k * sizeof *rows);
    const struct cu_rows x = {.x = rows,
                              .ldx = w->k,
                              .m = n_rows,
                              .n = w->k,
                              .out = (float *)(void *)rows_at(w, row0),
                              .to = w->type,
                              .scale = side.scale ? side.scale + row0 : NULL};
    return cu_stage(w->dev->cu, &x);
}

static int mat_fill(struct kn_mat *w, size_t row0, size_t n_rows, const float *rows)
{
    struct kn_dev *d = w->dev;
    const size_t bytes = n_rows * w->k * sizeof *rows;
    const bool as_is = w->type == CU_F32;
    cu_use(d->cu);
    if (row0 > w->n || n_rows > w->n - row0 || w->ready || w->codes) return -EINVAL;
    if (n_rows == 0) return 0;
    char *to = as_is ? rows_at(w, row0) : scratch(&d->stream, SLOT_STAGE, bytes);
    int r = to ? feed(d, to, (const char *)rows, bytes) : -ENOMEM;
    return r < 0 || as_is ? r : put_rows(w, row0, n_rows, (const float *)(const void *)to);
}

static int mat_random(struct kn_mat *w, size_t row0, size_t n_rows, const struct rng_field *f)
{
    enum { SLICE = 4 << 20 }; /* chosen: launches cost little beside 4 Mi values */
    struct kn_dev *d = w->dev;
    const size_t most = SLICE / w->k + 1;
    int r = w->ready || w->codes ? -EINVAL : 0;
    cu_use(d->cu);
    for (size_t at = 0, n; r == 0 && at < n_rows; at += n) {
        n = n_rows - at < most ? n_rows - at : most;
        float *rows = scratch(&d->stream, SLOT_ROWS, n * w->k * sizeof *rows);
        if (!rows) return -ENOMEM;
        r = cu_random(d->cu, f, at * w->k, n * w->k, rows);
        if (r == 0) r = put_rows(w, row0 + at, n, rows);
    }
    return r;
}

static int mat_fill_codes(struct kn_mat *w, size_t row0, size_t n_rows,
                          const struct codes_row *rows)
{
    int r = w->codes && !w->ready ? 0 : -EINVAL;
    for (size_t i = 0; r == 0 && i < n_rows; i++)
        r = cu_codes_put(w->codes, row0 + i, &rows[i]);
    return r;
}

static int mat_done(struct kn_mat *w)
{
    int r = 0;
    if (w->ready) return -EINVAL;
    cu_use(w->dev->cu);
    if (w->codes) r = feed(w->dev, w->block, w->codes->filling, w->codes->bytes);
    if (r < 0) return r;
    if (w->codes) cu_codes_filled(w->codes);
    w->ready = true;
    return cu_sync(w->dev->cu);
}

/* Of rows of another weight the share. */
static size_t mat_bytes(const struct kn_mat *w)
{
    if (!w->codes) return cu_side_bytes(w->type, w->n, w->k);
    return w->of ? w->codes->bytes / w->of->n * w->n : w->codes->bytes;
}

static void mat_destroy(struct kn_mat *w)
{
    if (!w->of) free_block(w->dev, w->block);
    if (!w->of) cu_codes_destroy(w->codes);
    if (w->experts) free_block(w->dev, w->experts);
    mem_free(w->told);
    mem_free(w);
}

/* ---- running ---- */

static bool cancelled(const atomic_bool *cancel)
{
    return cancel && atomic_load_explicit(cancel, memory_order_relaxed);
}

/* The one before this one is done. */
static int wait_before(struct kn_dev *d)
{
    const uint64_t n = d->n_pipelined++;
    int r = cu_event_record(&d->gpu, d->mark[n % 2], cu_stream(d->cu));
    if (r == 0 && d->under_way) r = cu_event_sync(&d->gpu, d->mark[(n + 1) % 2]);
    d->under_way = true;
    return r;
}

/* For all that is queued, and for what leaves the device by it. */
static int wait_all(struct kn_dev *d)
{
    const int r = cu_sync(d->cu), gone = drain_wait(&d->drain);
    return r < 0 ? r : gone;
}

/* Everything is queued, or it failed. */
static int end_run(struct kn_dev *d, int r)
{
    if (r == 0 && d->deferring) {
        d->under_way = true;
        return 0;
    }
    if (r == 0 && d->pipelining && (r = wait_before(d)) == 0) return 0;
    int waited = wait_all(d);
    d->under_way = false;
    if (waited == -EIO) atomic_store(&d->lost, true);
    return r < 0 ? r : waited;
}

static int run_rows(struct kn_dev *d, size_t n_rows, const atomic_bool *cancel, kn_rows_fn fn,
                    void *arg)
{
    cu_use(d->cu);
    return end_run(d, cancelled(cancel) ? -ECANCELED : fn(&d->stream, arg, 0, n_rows));
}

static struct recording *find_recording(struct kn_dev *d, uint64_t key)
{
    return replay_find(&d->replay, d->cu, key, d->n_moved);
}

/* The first run under a key prepares what one run is enough for: scratch, the products' calls, code
 * that the driver loads when it is first asked for. */
static bool record_begin(struct kn_dev *d, uint64_t key)
{
    struct recording *x = find_recording(d, key);
    const bool prepared = x->prepared;
    x->prepared = true;
    return prepared && !x->graph && replay_begin(&d->replay, d->cu);
}

static void record_end(struct kn_dev *d, uint64_t key, int status)
{
    replay_end(&d->replay, d->cu, find_recording(d, key), status);
}

static bool recorded(const struct kn_dev *d, uint64_t key)
{
    return replay_has(&d->replay, key, d->n_moved);
}

static int play(struct kn_dev *d, uint64_t key)
{
    atomic_fetch_add(&d->replay.n_played, 1);
    return cu_play(d->cu, find_recording(d, key)->graph);
}

static int replay(struct kn_dev *d, uint64_t key, size_t n_rows, const atomic_bool *cancel,
                  kn_rows_fn fn, void *arg)
{
    cu_use(d->cu);
    if (cancelled(cancel)) return end_run(d, -ECANCELED);
    if (record_begin(d, key)) record_end(d, key, fn(&d->stream, arg, 0, n_rows));
    if (!recorded(d, key)) return run_rows(d, n_rows, cancel, fn, arg);
    return end_run(d, play(d, key));
}

/* Powers of two up to 32, then by 32: a step of few rows reads the weights in whatever time its
 * rows take, and there are few recordings to keep. */
static size_t replay_rows(const struct kn_dev *d, size_t n)
{
    size_t rows = 1;
    while (rows < n && rows < 32)
        rows *= 2;
    return rows < n ? (n + 31) / 32 * 32 : rows;
}

static void forget(struct kn_dev *d)
{
    replay_forget(&d->replay, d->cu);
}

static struct kn_replays replays(const struct kn_dev *d)
{
    return (struct kn_replays){.n_recorded = atomic_load(&d->replay.n_recorded),
                               .n_played = atomic_load(&d->replay.n_played),
                               .refused = atomic_load(&d->replay.refused)};
}

static struct kn_refusals gemm_refusals(const struct kn_dev *d)
{
    size_t shape[3];
    const uint64_t count = cu_gemm_refusals(d->cu, &shape);
    return (struct kn_refusals){count, shape[0], shape[1], shape[2]};
}

static void defer(struct kn_dev *d, bool on)
{
    d->deferring = on;
}

static void pipeline(struct kn_dev *d, bool on)
{
    d->pipelining = on;
}

static int fence(struct kn_dev *d)
{
    ASSERT(!d->pipelining && !d->deferring);
    return d->under_way ? end_run(d, 0) : 0;
}

static int sync_stream(struct kn_stream *st)
{
    return wait_all(st->dev);
}

/* ---- operations ---- */

/* Rows as a row operation shall write them: what is asked for, or an operand. */
static int aim(const struct kn_stream *st, struct cu_rows *r)
{
    const struct operand *o = operand_at(st, r->out);
    if (!o) return 0;
    if (r->m > o->m || r->n != o->k) return -EINVAL;
    const struct cu_side side = cu_side_at(o->type, o->m, o->k, o->at);
    r->to = o->type;
    r->scale = side.scale;
    return 0;
}

/* The left side of a product: an operand as it is, f32 as it is, f32 rounded to scratch. */
static int left_side(struct kn_stream *st, const struct kn_gemm_args *a, struct cu_side *ret)
{
    const struct kn_mat *w = a->w;
    const struct operand *o = operand_at(st, a->a);
    if (o) {
        if (o->type != w->type || o->k != w->k || a->lda != w->k || a->m > o->m) return -EINVAL;
        *ret = cu_side_at(o->type, o->m, o->k, o->at);
        return 0;
    }
    if (w->type == CU_F32) {
        *ret = (struct cu_side){.data = (void *)(uintptr_t)a->a};
        return 0;
    }
    void *at = scratch(st, SLOT_OPERAND, cu_side_bytes(w->type, a->m, w->k));
    if (!at) return -ENOMEM;
    *ret = cu_side_at(w->type, a->m, w->k, at);
    const struct cu_rows x = {.x = a->a,
                              .ldx = a->lda,
                              .m = a->m,
                              .n = w->k,
                              .out = at,
                              .to = w->type,
                              .scale = ret->scale};
    return cu_stage(st->dev->cu, &x);
}

/* Many rows take the weight's values, which only they are worth writing and reading again. */
static int gemm_coded(struct kn_stream *st, const struct kn_mat *w, struct cu_gemm *g)
{
    struct cu *cu = st->dev->cu;
    if (g->m <= CU_CODED_FEW) return cu_codes_gemm(cu, w->codes, w->row0, g, NULL);
    uint16_t *values = scratch(st, SLOT_VALUES, cu_side_bytes(CU_BF16, w->n, w->k));
    int r = values ? cu_codes_gemm(cu, w->codes, w->row0, g, values) : -ENOMEM;
    g->w = (struct cu_side){.data = values};
    return r < 0 ? r : cu_gemm(cu, g);
}

static int gemm(struct kn_stream *st, const struct kn_gemm_args *a)
{
    const struct kn_mat *w = a->w;
    const struct operand *to = operand_at(st, a->c);
    if (!w->ready || a->lda < w->k || a->ldc < w->n) return -EINVAL;
    if (to && (to->type != CU_BF16 || to->k != a->ldc || a->m > to->m)) return -EINVAL;
    if (a->m == 0) return 0;
    struct cu_gemm g = {.type = w->type,
                        .w = w->codes ? (struct cu_side){0} : side_of(w),
                        .lda = a->lda,
                        .m = a->m,
                        .n = w->n,
                        .k = w->k,
                        .out = to ? CU_BF16 : CU_F32,
                        .bias = a->bias,
                        .c = a->c,
                        .ldc = a->ldc,
                        .accumulate = a->accumulate};
    int r = left_side(st, a, &g.a);
    if (w->codes) return r < 0 ? r : gemm_coded(st, w, &g);
    const size_t room = cu_gemm_room(st->dev->cu, &g);
    if (r == 0 && room && !(g.room = scratch(st, SLOT_PRODUCT, room))) r = -ENOMEM;
    return r < 0 ? r : cu_gemm(st->dev->cu, &g);
}

static int embed(struct kn_stream *st, const struct kn_mat *w, const int32_t *id, size_t m,
                 float *out, size_t ldo)
{
    if (!w->ready || ldo < w->k || cu_is_eight(w->type) || w->codes) return -EINVAL;
    const struct cu_rows r = {.m = m, .n = w->k, .out = out, .ldo = ldo};
    return cu_embed(st->dev->cu, w->block, w->n, id, &r);
}

static int gather(struct kn_stream *st, const float *x, const int32_t *idx, size_t m, size_t n,
                  float *out)
{
    const size_t bytes = m * n * sizeof *x;
    float *to = out == x ? scratch(st, SLOT_ROWS, bytes) : out;
    if (!to) return -ENOMEM;
    const struct cu_rows r = {x, n, m, n, to, n, CU_F32, NULL};
    int e = cu_gather(st->dev->cu, &r, idx);
    return e < 0 || to == out ? e : cu_copy(st->dev->cu, out, to, bytes);
}

static int copy(struct kn_stream *st, void *dst, const void *src, size_t bytes)
{
    return cu_copy(st->dev->cu, dst, src, bytes);
}

static int rmsnorm(struct kn_stream *st, const float *x, size_t ldx, size_t m, size_t D,
                   const float *weight, float eps, float *out, size_t ldo)
{
    struct cu_rows r = {x, ldx, m, D, out, ldo, CU_F32, NULL};
    int e = aim(st, &r);
    return e < 0 ? e : cu_rmsnorm(st->dev->cu, &r, 1, weight, eps);
}

static int rmsnorm_add(struct kn_stream *st, const float *x, size_t ldx, size_t m, size_t D,
                       const float *weight, float eps, float *out, size_t ldo)
{
    const struct cu_rows r = {x, ldx, m, D, out, ldo, CU_F32, NULL};
    return cu_rmsnorm_add(st->dev->cu, &r, weight, eps);
}

static int rmsnorm_heads(struct kn_stream *st, float *x, size_t ldx, size_t m, size_t heads,
                         size_t K, const float *weight, float eps)
{
    const struct cu_rows r = {x, ldx, m, K, x, ldx, CU_F32, NULL};
    return heads ? cu_rmsnorm(st->dev->cu, &r, heads, weight, eps) : 0;
}

static int layernorm(struct kn_stream *st, const float *x, size_t ldx, size_t m, size_t D,
                     const float *weight, const float *bias, float eps, float *out, size_t ldo)
{
    struct cu_rows r = {x, ldx, m, D, out, ldo, CU_F32, NULL};
    int e = aim(st, &r);
    return e < 0 ? e : cu_layernorm(st->dev->cu, &r, weight, bias, eps);
}

static int glu(struct kn_stream *st, enum kn_act act, const float *gate_up, size_t ldg, size_t m,
               size_t F, float *out, size_t ldo)
{
    struct cu_rows r = {gate_up, ldg, m, F, out, ldo, CU_F32, NULL};
    const struct operand *from = operand_at(st, gate_up);
    int e = from && (from->k != ldg || m > from->m) ? -EINVAL : aim(st, &r);
    return e < 0 ? e : cu_glu(st->dev->cu, act, &r, from ? from->type : CU_F32);
}

static int softcap(struct kn_stream *st, float *x, size_t ldx, size_t m, size_t n, float cap)
{
    const struct cu_rows r = {x, ldx, m, n, x, ldx, CU_F32, NULL};
    return cu_softcap(st->dev->cu, &r, cap);
}

static int rope(struct kn_stream *st, const struct kn_rope *r, float *x, size_t ldx, size_t m,
                size_t heads, const int32_t *pos)
{
    return cu_rope(st->dev->cu, r, x, ldx, m, heads, pos);
}

static struct cu_kv kv_of(const struct kn_dev *d, const struct kn_kv *kv, unsigned layer)
{
    const size_t value = d->head.info.kv_value_bytes;
    return (struct cu_kv){.base = (char *)kv->base + layer * kv->layer_stride * value,
                          .page_bytes = kv->page_stride * value,
                          .pages = kv->pages,
                          .n_pages = kv->n_pages,
                          .G = kv->G,
                          .K = kv->K,
                          .each = kv->each,
                          .each_shift = kv->each_shift};
}

static int kv_put(struct kn_stream *st, const struct kn_kv *kv, unsigned layer, const int32_t *pos,
                  size_t m, const float *k, size_t ldk, const float *v, size_t ldv)
{
    const struct cu_kv to = kv_of(st->dev, kv, layer);
    const struct cu_put put = {.pos = pos, .m = m, .k = k, .v = v, .ldk = ldk, .ldv = ldv};
    return cu_kv_put(st->dev->cu, &to, &put);
}

static struct cu_rotation rotation_of(const struct kn_rotation *to)
{
    return to->rope ? (struct cu_rotation){*to->rope, to->pos} : (struct cu_rotation){0};
}

static int rope_put(struct kn_stream *st, const struct kn_kv *kv, unsigned layer,
                    const struct kn_rotation *how, const int32_t *pos, size_t m, float *k,
                    size_t ldk, const float *v, size_t ldv)
{
    const struct cu_kv to = kv_of(st->dev, kv, layer);
    const struct cu_put put = {pos, m, k, v, ldk, ldv, rotation_of(how)};
    return cu_kv_put(st->dev->cu, &to, &put);
}

/* K and V of the pieces, or K alone (sides 1), as kernels may read them: where they are, or in
 * scratch behind copies on the stream. */
static int bring(struct kn_stream *st, const struct kn_stored *piece, size_t n, unsigned sides,
                 unsigned G, unsigned K, struct cu_pieces *ret)
{
    size_t all = 0, at = 0;
    int r = 0;
    *ret = (struct cu_pieces){.n = (unsigned)n};
    memcpy(ret->piece, piece, n * sizeof *piece);
    for (size_t i = 0; i < n; i++) {
        all += sides * (piece[i].n * kn_row_bytes(piece[i].t, G, K) + 63);
        ret->most = piece[i].n > ret->most ? piece[i].n : ret->most;
    }
    for (size_t i = 0; r == 0 && i < sides * n; i++) {
        struct kn_stored *p = &ret->piece[i / sides];
        const void **from = i % sides ? &p->v : &p->k;
        const size_t bytes = p->n * kn_row_bytes(p->t, G, K);
        if (cu_mem_is_device(&st->dev->gpu, *from)) continue;
        char *to = scratch(st, SLOT_STAGE, all); /* the same each time */
        if (!to) return -ENOMEM;
        const size_t row = bytes / p->n, stride = p->stride ? p->stride : row;
        r = stride == row ? cu_copy(st->dev->cu, to + at, *from, bytes)
                          : cu_copy_rows(st->dev->cu, to + at, row, *from, stride, row, p->n);
        *from = to + at;
        at += (bytes + 63) / 64 * 64;
    }
    return r;
}

static int kv_load(struct kn_stream *st, const struct kn_kv *kv, unsigned layer,
                   const struct kn_rope *rope, const struct kn_stored *piece, size_t n_pieces)
{
    const struct cu_kv to = kv_of(st->dev, kv, layer);
    struct cu_pieces s;
    int r = bring(st, piece, n_pieces, 2, kv->G, kv->K, &s);
    return r < 0 ? r : cu_kv_load(st->dev->cu, &to, rope, &s);
}

/* Its ring is made when KV leaves for the first time, which is at the start: the self-test's. */
static int open_drain(struct kn_dev *d)
{
    char *base = alloc_block(d, KN_MEM_DEVICE, DRAIN_BYTES);
    int r = base ? drain_init(&d->drain, &d->gpu, base) : -ENOMEM;
    if (r < 0 && base) free_block(d, base);
    return r;
}

/* Rows of out so many bytes apart. */
static int encode_apart(struct kn_stream *st, const float *x, size_t ldx, size_t m, size_t n,
                        size_t K, enum kn_dtype t, void *out, size_t stride, int *bad)
{
    struct kn_dev *d = st->dev;
    struct gpu_stream *own = cu_stream(d->cu);
    const size_t bytes = kn_row_bytes(t, n / K, K), most = DRAIN_BYTES / 2 / bytes;
    int r = d->drain.base ? 0 : open_drain(d);
    if (most == 0) return -EINVAL;
    for (size_t at = 0, rows; r == 0 && at < m; at += rows) {
        void *room;
        rows = m - at < most ? m - at : most;
        const struct cu_rows some = {x + at * ldx, ldx, rows, n, NULL, 0, CU_F32, NULL};
        r = drain_room(&d->drain, own, rows * bytes, &room);
        if (r == 0) r = cu_encode(d->cu, &some, K, (enum cu_type)t, room, bad);
        if (r == 0) r = drain_send(&d->drain, own, (char *)out + at * stride, bytes, stride);
    }
    return r;
}

static int encode_rows(struct kn_stream *st, const float *x, size_t ldx, size_t m, size_t n,
                       size_t K, enum kn_dtype t, void *out, int *bad)
{
    return encode_apart(st, x, ldx, m, n, K, t, out, kn_row_bytes(t, n / K, K), bad);
}

static int deviation(struct kn_stream *st, const float *a, size_t lda, const int32_t *pos, size_t m,
                     const struct kn_stored *piece, size_t n_pieces, unsigned G, unsigned K,
                     float *ret)
{
    const struct cu_rows rows = {a, lda, m, (size_t)G * K, NULL, 0, CU_F32, NULL};
    struct cu_pieces s;
    int r = bring(st, piece, n_pieces, 1, G, K, &s);
    return r < 0 ? r : cu_deviation(st->dev->cu, &rows, pos, &s, K, ret);
}

static struct cu_attn attn_of(const struct kn_dev *d, const struct kn_attn_args *a)
{
    return (struct cu_attn){.q = a->q,
                            .ldq = a->ldq,
                            .m = a->m,
                            .pos = a->pos,
                            .H = a->H,
                            .kv = kv_of(d, a->kv, a->layer),
                            .scale = a->scale,
                            .cap = a->cap,
                            .window = a->window,
                            .sink = a->sink,
                            .to = rotation_of(&a->to),
                            .out = a->out,
                            .ldo = a->ldo,
                            .type = CU_F32,
                            .lse = a->lse};
}

/* -ENOTSUP: there is no plan for these rows, or no room. */
static int attn_by_library(struct kn_stream *st, const struct cu_attn *a, size_t n_keys)
{
    struct sdpa *s = st->dev->sdpa;
    if (!sdpa_fits(s, a, n_keys)) return -ENOTSUP;
    void *room = scratch(st, SLOT_SDPA, sdpa_room(s, n_keys));
    return room ? sdpa_run(s, a, n_keys, room) : -ENOTSUP;
}

/* An operand of bf16 is written at once; one of 8 bits has a scale for all heads of a row, which is
 * known when the last is done. */
static int attn(struct kn_stream *st, const struct kn_attn_args *a)
{
    const size_t HK = (size_t)a->H * a->kv->K;
    struct cu_attn c = attn_of(st->dev, a);
    struct cu_rows rows = {NULL, HK, a->m, HK, a->out, HK, CU_F32, NULL};
    if (a->from || a->chunk) return -ENOTSUP;
    int r = aim(st, &rows);
    if (r < 0) return r;
    if (rows.to != CU_F32) c.ldo = HK;
    if (rows.to == CU_BF16) c.type = CU_BF16;
    if (cu_is_eight(rows.to) && !(c.out = scratch(st, SLOT_OPERAND, a->m * HK * sizeof(float))))
        return -ENOMEM;
    if ((r = attn_by_library(st, &c, a->n_keys)) != -ENOTSUP) return r;
    c.first = cu_attn_first(st->dev->cu, &c, a->known);
    const size_t floats = cu_attn_floats(&c);
    float *parts = floats ? scratch(st, SLOT_PARTS, floats * sizeof *parts) : NULL;
    if (floats && !parts) return -ENOMEM;
    r = cu_attn(st->dev->cu, &c, parts);
    if (r < 0 || !cu_is_eight(rows.to)) return r;
    rows.x = c.out;
    return cu_stage(st->dev->cu, &rows);
}

static int attn_mass(struct kn_stream *st, const struct kn_attn_args *a, float *mass, size_t key0,
                     size_t n_keys)
{
    if (a->from || a->chunk) return -ENOTSUP;
    const struct cu_attn c = attn_of(st->dev, a);
    const size_t floats = cu_mass_parts(st->dev->cu, &c, n_keys);
    float *parts = floats ? scratch(st, SLOT_PARTS, floats * sizeof *parts) : NULL;
    if (floats && !parts) return -ENOMEM;
    return cu_mass(st->dev->cu, &c, mass, key0, n_keys, parts);
}

static int edit(struct kn_stream *st, float *x, size_t ldx, size_t m, size_t n,
                const struct kn_edit *list, size_t stride, const uint32_t *n_edits)
{
    return cu_edit(st->dev->cu, x, ldx, m, n, list, stride, n_edits);
}

static int draw(struct kn_stream *st, const float *x, size_t ldx, size_t m, size_t n,
                const struct kn_draw *how, int32_t *ret)
{
    return cu_draw(st->dev->cu, x, ldx, m, n, how, ret);
}

static int top(struct kn_stream *st, const float *score, const int32_t *idx, size_t n, size_t k,
               int32_t *ret)
{
    return cu_topk(st->dev->cu, score, idx, n, k, ret);
}

/* Of an expert that no row goes to there may be none. `as`: the form of all, k 0 for values. */
static bool is_expert(const struct kn_mat *w, size_t n, size_t k, enum cu_type t,
                      const struct cu_coded *as)
{
    if (!w) return true;
    if (!w->ready || w->n != n || w->k != k || w->type != t || !w->codes != !as->k) return false;
    return !as->k ||
           (w->codes->n_parts == 1 && codes_form_same(&w->codes->part[0].form, &as->form));
}

/* What all of w [n] are of, if they are codes. */
static struct cu_coded coded_as(struct kn_mat *const *w, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (w[i] && w[i]->codes) return w[i]->codes->part[0];
    return (struct cu_coded){.k = 0};
}

static struct cu_side side_or_none(const struct kn_mat *w)
{
    if (w && w->codes) return (struct cu_side){.data = w->block};
    return w ? side_of(w) : (struct cu_side){0};
}

static struct cu_expert expert_of(const struct kn_moe *e, unsigned i)
{
    return (struct cu_expert){side_or_none(e->gate_up[i]), side_or_none(e->down[i])};
}

/* Kernels find the experts' weights in a table that the router keeps: written when it is first
 * used, and again when they are others. A recording cannot, and the run before it has. */
static int tell_experts(const struct kn_moe *e, const struct cu_moe *g)
{
    struct kn_mat *router = e->router;
    struct kn_dev *d = router->dev;
    const size_t room = router->n * sizeof(struct cu_expert);
    bool same = router->experts != NULL;
    if (!g->gate_up.k != !g->down.k || (g->down.k && g->F % CU_CODED_ROWS)) return -EINVAL;
    if (!router->told && !(router->told = mem_zalloc(room))) return -ENOMEM;
    for (unsigned i = 0; i < e->n; i++) {
        const struct cu_expert now = expert_of(e, i), *told = &router->told[i];
        if (!is_expert(e->gate_up[i], 2 * g->F, g->D, g->type, &g->gate_up)) return -EINVAL;
        if (!is_expert(e->down[i], g->D, g->F, g->type, &g->down)) return -EINVAL;
        same = same && now.gate_up.data == told->gate_up.data && now.down.data == told->down.data;
    }
    if (same) return 0;
    if (d->replay.recording) return -ENOMEM;
    if (!router->experts && !(router->experts = alloc_block(d, KN_MEM_DEVICE, room)))
        return -ENOMEM;
    for (unsigned i = 0; i < e->n; i++)
        router->told[i] = expert_of(e, i);
    return cu_copy(d->cu, router->experts, router->told, e->n * sizeof(struct cu_expert));
}

/* To g->shared, [m, D]. */
static int shared_expert(struct kn_stream *st, const struct kn_moe *e, const struct cu_moe *g)
{
    const size_t F = g->shared_F;
    const struct kn_gemm_args up = {
        .a = g->h, .lda = g->D, .m = g->m, .w = e->shared_gate_up, .c = g->shared_gu, .ldc = 2 * F};
    const struct kn_gemm_args down = {
        .a = g->shared_act, .lda = F, .m = g->m, .w = e->shared_down, .c = g->shared, .ldc = g->D};
    int r = gemm(st, &up);
    if (r == 0) r = glu(st, e->act, g->shared_gu, 2 * F, g->m, F, g->shared_act, F);
    return r < 0 ? r : gemm(st, &down);
}

static int moe(struct kn_stream *st, const struct kn_moe *e, const float *h, size_t m, float *x,
               bool accumulate)
{
    struct kn_dev *d = st->dev;
    const size_t n_logits = e->router->n;
    struct cu_moe g = {.type = d->weights,
                       .gate_up = coded_as(e->gate_up, e->n),
                       .down = coded_as(e->down, e->n),
                       .gate_up_bias = e->gate_up_bias,
                       .down_bias = e->down_bias,
                       .n = e->n,
                       .used = e->used,
                       .act = e->act,
                       .renorm = e->renorm,
                       .accumulate = accumulate,
                       .m = m,
                       .D = e->router->k,
                       .F = e->down[0]->k,
                       .shared_F = e->shared_down ? e->shared_down->k : 0,
                       .h = h,
                       .x = x};
    if (e->scales_input) return -ENOTSUP;
    int r = tell_experts(e, &g);
    if (r < 0) return r;
    g.expert = e->router->experts;
    void *room = scratch(st, SLOT_MOE, cu_moe_place(&g, NULL));
    if (!room) return -ENOMEM;
    (void)cu_moe_place(&g, room);
    const struct kn_gemm_args router = {.a = h,
                                        .lda = g.D,
                                        .m = m,
                                        .w = e->router,
                                        .bias = e->router_bias,
                                        .c = g.logits,
                                        .ldc = n_logits};
    r = gemm(st, &router);
    if (r == 0 && g.shared) r = shared_expert(st, e, &g);
    return r < 0 ? r : cu_moe(d->cu, &g);
}

/* ---- as a rank of a group ---- */

static void use(struct kn_dev *d)
{
    cu_use(d->cu);
}

static int clear(struct kn_stream *st, void *p, size_t bytes)
{
    return cu_clear(st->dev->cu, p, bytes);
}

static int create_team(struct kn_dev *const *rank, unsigned n, struct kn_team **ret,
                       struct err *err)
{
    struct cu *cu[KN_RANKS_MAX];
    int index[KN_RANKS_MAX];
    for (unsigned i = 0; i < n; i++) {
        cu[i] = rank[i]->cu;
        index[i] = rank[i]->gpu.index;
    }
    return team_create(cu, index, n, ret, err);
}

static const struct kn_dev_ops dev_ops = {.destroy = destroy,
                                          .tune = tune,
                                          .mem_alloc = alloc_block,
                                          .mem_free = free_block,
                                          .mem_copy = mem_copy,
                                          .scratch = scratch};
static const struct kn_mat_ops mat_ops = {.create = mat_create,
                                          .create_full = mat_create_full,
                                          .fill = mat_fill,
                                          .done = mat_done,
                                          .bytes = mat_bytes,
                                          .destroy = mat_destroy,
                                          .create_coded = mat_create_coded,
                                          .fill_codes = mat_fill_codes,
                                          .create_f32 = mat_create_f32};
static const struct kn_run_ops run_ops = {
    .rows = run_rows, .rows_uneven = run_rows, .wide = run_rows, .replay = replay};
static const struct kn_row_ops row_ops = {
    .gemm = gemm,
    .gather = gather,
    .copy = copy,
    .rmsnorm = rmsnorm,
    .rmsnorm_add = rmsnorm_add,
    .rmsnorm_heads = rmsnorm_heads,
    .layernorm = layernorm,
    .glu = glu,
    .softcap = softcap,
    .rope = rope,
    .kv_put = kv_put,
    .rope_put = rope_put,
    .kv_load = kv_load,
    .encode_rows = encode_rows,
    .attn = attn,
    .attn_mass = attn_mass,
    .deviation = deviation,
    .edit = edit,
    .draw = draw,
    .top = top,
    .moe = moe,
};
static const struct kn_gpu_ops gpu_ops = {
    .lost = lost,
    .gpu = gpu,
    .memory = memory,
    .stage_room = stage_room,
    .stage = stage,
    .staged = staged,
    .unstage = unstage,
    .mat_random = mat_random,
    .defer = defer,
    .pipeline = pipeline,
    .fence = fence,
    .replay_rows = replay_rows,
    .forget = forget,
    .replays = replays,
    .gemm_refusals = gemm_refusals,
    .sync = sync_stream,
    .mat_rows = mat_rows,
    .operand = operand,
    .product = product,
    .embed = embed,
};
static const struct kn_rank_ops rank_ops = {
    .use = use,
    .clear = clear,
    .encode_rows = encode_apart,
    .recorded = recorded,
    .record_begin = record_begin,
    .record_end = record_end,
    .play = play,
    .team_create = create_team,
    .team_destroy = team_destroy,
    .team_sum = team_sum,
};

int kn_cuda_create(const struct kn_dev_opts *o, const char *kind, int index,
                   struct kn_dev **ret_dev, struct err *err)
{
    char why[160] = "";
    const char *g = o->gemm;
    if (g && *g && strcmp(g, "auto") != 0 && strcmp(g, "cublaslt") != 0)
        return err_set(err, -EINVAL, "GEMM \"%s\" is not available here (available: cublaslt)", g);
    struct kn_dev *d = mem_zalloc(sizeof *d);
    if (!d) return err_set(err, -ENOMEM, "out of memory");
    d->head.ops = (struct kn_ops){&dev_ops, &mat_ops, &run_ops, &row_ops, &gpu_ops, &rank_ops};
    d->stream.dev = d;
    d->gpu.index = index;
    d->bf16 = o->arith == KN_ARITH_BF16 || (o->arith == KN_ARITH_AUTO && o->allow_bf16);
    d->weights = o->weights == KN_WEIGHTS_FP8    ? CU_FP8
                 : o->weights == KN_WEIGHTS_INT8 ? CU_INT8
                 : d->bf16                       ? CU_BF16
                                                 : CU_F32;
    d->keeps_codes = o->weights == KN_WEIGHTS_FILE && d->bf16;
    const enum kn_dtype kv = o->kv_q8 ? KN_Q8 : d->bf16 ? KN_BF16 : KN_F32;
    int r = cu_mem_open(&d->gpu, why, sizeof why);
    if (r == 0) r = cu_open(index, d->bf16 ? CU_BF16 : CU_F32, o->kv_q8, &d->cu, why, sizeof why);
    blocks_init(&d->blocks, d->cu, &d->replay.recording);
    if (r == 0 && cu_is_eight(d->weights)) r = cu_gemm_open(d->cu, d->weights, why, sizeof why);
    if (r == 0 && o->cache_dir && !(d->cache_dir = mem_strdup(o->cache_dir))) r = -ENOMEM;
    if (r < 0) {
        destroy(d);
        return err_set(err, r, "%s", *why ? why : "out of memory");
    }
    snprintf(d->name, sizeof d->name, "%s:%d %s", kind, index, d->gpu.name);
    d->head.info = (struct kn_info){
        .device = d->name,
        .model = d->gpu.name,
        .isa = "cuda",
        .gemm = gemm_name(d),
        .attn = "own",
        .n_threads = 1,
        .n_ranks = 1,
        .gemm_invariant = false, /* cuBLASLt may take another algorithm for other numbers of rows */
        .kv = kv,
        .kv_value_bytes = kv == KN_Q8 ? 1 : kn_row_bytes(kv, 1, 1),
        .wide_rows_max = 48, /* one path in any case: as on the CPU, for callers' equal cuts */
        .wide_rows_large = 48,
        .step_flops = 4e12,
    };
    for (int i = 0; i < 2; i++)
        if (cu_event_create(&d->gpu, &d->mark[i]) < 0) r = -ENOMEM;
    if (r < 0) {
        destroy(d);
        return err_set(err, -ENOMEM, "no memory on the device");
    }
    *ret_dev = d;
    return 0;
}
