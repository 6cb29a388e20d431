#include "kernels/group/group.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

/* ---- addresses ---- */

static const struct group_area *area_of(const struct kn_dev *d, const void *p)
{
    const size_t i = group_area_of(p);
    ASSERT(i < d->n_areas && d->area[i].kind != AREA_FREE);
    return &d->area[i];
}

void *group_whole(const struct kn_dev *d, unsigned r, const void *p)
{
    if (!group_owns(p)) return (void *)(uintptr_t)p;
    const struct group_area *a = area_of(d, p);
    ASSERT(a->kind != AREA_HEADS);
    return a->base[r] + group_offset(p);
}

void *group_share(const struct kn_dev *d, unsigned r, const void *p)
{
    if (!group_owns(p)) return (void *)(uintptr_t)p;
    ASSERT(group_offset(p) % d->n == 0);
    return area_of(d, p)->base[r] + group_offset(p) / d->n;
}

bool group_is_heads(const struct kn_dev *d, const void *p)
{
    return group_owns(p) && area_of(d, p)->kind == AREA_HEADS;
}

static int more_areas(struct kn_dev *d)
{
    const size_t n = d->n_areas ? 2 * d->n_areas : 2 * GROUP_MEMORY;
    struct group_area *a = mem_realloc(d->area, n * sizeof *a);
    if (!a) return -ENOMEM;
    memset(a + d->n_areas, 0, (n - d->n_areas) * sizeof *a);
    d->area = a;
    d->n_areas = n;
    return 0;
}

/* A new area's address; NULL: out of memory. */
static void *add_area(struct kn_dev *d, enum group_area_kind kind, char *const *base)
{
    size_t i = GROUP_MEMORY;
    while (i < d->n_areas && d->area[i].kind != AREA_FREE)
        i++;
    if (i >= d->n_areas && more_areas(d) < 0) return NULL;
    struct group_area *a = &d->area[i];
    *a = (struct group_area){.kind = kind};
    memcpy(a->base, base, d->n * sizeof *base);
    return group_address(i, 0);
}

/* ---- memory ---- */

static void free_each(struct kn_dev *d, char *const *base)
{
    for (unsigned i = 0; i < d->n; i++)
        kn_mem_free(d->rank[i], base[i]);
}

static int alloc_each(struct kn_dev *d, size_t bytes, char **base)
{
    memset(base, 0, KN_RANKS_MAX * sizeof *base);
    for (unsigned i = 0; i < d->n; i++)
        if (!(base[i] = kn_mem_alloc(d->rank[i], KN_MEM_DEVICE, bytes))) {
            free_each(d, base);
            return -ENOMEM;
        }
    return 0;
}

/* The first place that is free and long enough. */
static void *alloc_table(struct kn_dev *d, size_t bytes)
{
    const size_t all = GROUP_TABLE_BYTES / GROUP_TABLE_UNIT,
                 want = (bytes + GROUP_TABLE_UNIT - 1) / GROUP_TABLE_UNIT;
    size_t at = 0;
    for (size_t i = 0; i < all && i - at < want;) {
        const size_t taken = d->table_units[i];
        i += taken ? taken : 1;
        if (taken) at = i;
    }
    if (at >= all || want > all - at) return NULL;
    d->table_units[at] = (uint32_t)want;
    return group_address(GROUP_TABLES, at * GROUP_TABLE_UNIT);
}

static void *mem_alloc_of(struct kn_dev *d, enum kn_mem kind, size_t bytes)
{
    const bool heads = kind == KN_MEM_HEADS;
    char *base[KN_RANKS_MAX];
    if (kind == KN_MEM_SHARED || kind == KN_MEM_HOST) return kn_mem_alloc(d->rank[0], kind, bytes);
    if (kind == KN_MEM_TABLE) return alloc_table(d, bytes);
    if (bytes >> GROUP_AREA_BIT) return NULL;
    if (alloc_each(d, heads ? (bytes + d->n - 1) / d->n : bytes, base) < 0) return NULL;
    void *p = add_area(d, heads ? AREA_HEADS : AREA_WHOLE, base);
    if (!p) free_each(d, base);
    return p;
}

static void mem_free_of(struct kn_dev *d, void *p)
{
    if (!group_owns(p)) {
        kn_mem_free(d->rank[0], p);
        return;
    }
    const size_t i = group_area_of(p), at = group_offset(p);
    struct group_area *a = &d->area[i];
    if (i == GROUP_TABLES) {
        ASSERT(d->table_units[at / GROUP_TABLE_UNIT]);
        d->table_units[at / GROUP_TABLE_UNIT] = 0;
        return;
    }
    ASSERT(at == 0 && (a->kind == AREA_WHOLE || a->kind == AREA_HEADS) && a->turn == 0);
    free_each(d, a->base);
    *a = (struct group_area){0};
}

/* From the host to heads: rank i gets the i-th of n parts. */
static int mem_copy_of(struct kn_dev *d, void *dst, const void *src, size_t bytes)
{
    const bool heads = group_is_heads(d, dst), near = !group_owns(src);
    int r = heads && bytes % d->n ? -EINVAL : 0;
    for (unsigned i = 0; r == 0 && i < d->n; i++) {
        if (!group_owns(dst) && i > 0) break;
        const size_t n = heads ? bytes / d->n : bytes;
        const void *from = heads ? group_share(d, i, src) : group_whole(d, i, src);
        if (heads && near) from = (const char *)src + i * n;
        r = kn_mem_copy(d->rank[i], heads ? group_share(d, i, dst) : group_whole(d, i, dst), from,
                        n);
    }
    return r;
}

/* ---- scratch: what a rank has for a slot is where the slot's area begins ---- */

static float *slot_at(struct kn_stream *st, unsigned slot, bool shared, bool complete)
{
    st->shared[slot] = shared;
    return complete ? group_address(slot, 0) : NULL;
}

static void *scratch(struct kn_stream *st, unsigned slot, size_t size_bytes)
{
    struct kn_dev *d = st->dev;
    bool ok = true;
    for (unsigned i = 0; ok && i < d->n; i++) {
        d->ops->rank->use(d->rank[i]);
        ok = (d->area[slot].base[i] = kn_scratch(st->rank[i], slot, size_bytes)) != NULL;
    }
    return slot_at(st, slot, false, ok);
}

typedef float *(*slot_fn)(struct kn_stream *st, unsigned slot, size_t m, const struct kn_mat *w);

static bool slot_each(struct kn_stream *st, slot_fn fn, unsigned slot, size_t m,
                      const struct kn_mat *w)
{
    struct kn_dev *d = st->dev;
    bool ok = true;
    for (unsigned i = 0; ok && i < d->n; i++) {
        if (w->inner) kn_mat_inner(w->rank[i]);
        d->ops->rank->use(d->rank[i]);
        ok = (d->area[slot].base[i] = (void *)fn(st->rank[i], slot, m, w->rank[i])) != NULL;
    }
    return ok;
}

static float *operand(struct kn_stream *st, unsigned slot, size_t m, const struct kn_mat *w)
{
    return slot_at(st, slot, w->split == KN_SPLIT_SUM, slot_each(st, kn_operand, slot, m, w));
}

static float *product(struct kn_stream *st, unsigned slot, size_t m, const struct kn_mat *w)
{
    return slot_at(st, slot, false, slot_each(st, kn_product, slot, m, w));
}

/* ---- running ---- */

struct run {
    struct kn_dev *d;
    unsigned depth; /* ranks whose run has begun */
    size_t n_rows;
    const atomic_bool *cancel;
    kn_rows_fn fn;
    void *arg;
};

/* A rank's run, in it the next one's, in the last the caller's function: each begins and ends as it
 * does alone, and waits, if it does, when all of them have everything queued. */
static int nested(struct kn_stream *st, void *arg, size_t row0, size_t n_rows)
{
    struct run *x = arg;
    struct kn_dev *d = x->d;
    if (st) d->stream.rank[x->depth - 1] = st;
    if (x->depth == d->n) return x->fn(&d->stream, x->arg, row0, n_rows);
    struct kn_dev *next = d->rank[x->depth++];
    const int r = d->ops->run->rows(next, n_rows, x->cancel, nested, x);
    x->depth--;
    return r;
}

static int run_each(struct kn_dev *d, size_t n_rows, const atomic_bool *cancel, kn_rows_fn fn,
                    void *arg)
{
    struct run x = {d, 0, n_rows, cancel, fn, arg};
    return nested(NULL, &x, 0, n_rows);
}

static bool all_recorded(const struct kn_dev *d, uint64_t key)
{
    unsigned n = 0;
    for (unsigned i = 0; i < d->n; i++)
        n += d->ops->rank->recorded(d->rank[i], key);
    return n == d->n;
}

static void forget_each(struct kn_dev *d)
{
    for (unsigned i = 0; i < d->n; i++)
        d->ops->gpu->forget(d->rank[i]);
}

/* On all ranks at once: what they add up has a part in each recording. Where a rank cannot, none
 * keeps one. */
static void record(struct kn_dev *d, uint64_t key, size_t n_rows, kn_rows_fn fn, void *arg)
{
    const struct kn_rank_ops *ops = d->ops->rank;
    bool began[KN_RANKS_MAX];
    unsigned n = 0;
    for (unsigned i = 0; i < d->n; i++) {
        ops->use(d->rank[i]);
        n += began[i] = ops->record_begin(d->rank[i], key);
    }
    const int status = n < d->n ? -ECANCELED : fn(&d->stream, arg, 0, n_rows);
    for (unsigned i = 0; i < d->n; i++) {
        ops->use(d->rank[i]);
        if (began[i]) ops->record_end(d->rank[i], key, status);
    }
}

static int play(struct kn_stream *st, void *arg, size_t row0, size_t n_rows)
{
    const uint64_t *key = arg;
    struct kn_dev *d = st->dev;
    int r = 0;
    for (unsigned i = 0; r == 0 && i < d->n; i++) {
        d->ops->rank->use(d->rank[i]);
        r = d->ops->rank->play(d->rank[i], *key);
    }
    return r;
}

static int replay(struct kn_dev *d, uint64_t key, size_t n_rows, const atomic_bool *cancel,
                  kn_rows_fn fn, void *arg)
{
    if (!all_recorded(d, key) && !(cancel && atomic_load(cancel))) record(d, key, n_rows, fn, arg);
    if (!all_recorded(d, key)) return run_each(d, n_rows, cancel, fn, arg);
    return run_each(d, n_rows, cancel, play, &key);
}

static size_t replay_rows(const struct kn_dev *d, size_t n)
{
    return d->ops->gpu->replay_rows(d->rank[0], n);
}

static struct kn_replays replays(const struct kn_dev *d)
{
    return d->ops->gpu->replays(d->rank[0]);
}

static void defer(struct kn_dev *d, bool on)
{
    for (unsigned i = 0; i < d->n; i++)
        d->ops->gpu->defer(d->rank[i], on);
}

static void pipeline(struct kn_dev *d, bool on)
{
    for (unsigned i = 0; i < d->n; i++)
        d->ops->gpu->pipeline(d->rank[i], on);
}

static int fence(struct kn_dev *d)
{
    int r = 0;
    for (unsigned i = 0; i < d->n; i++) {
        const int e = d->ops->gpu->fence(d->rank[i]);
        if (r == 0) r = e;
    }
    return r;
}

static int sync_stream(struct kn_stream *st)
{
    int r = 0;
    for (unsigned i = 0; i < st->dev->n; i++) {
        const int e = st->dev->ops->gpu->sync(st->rank[i]);
        if (r == 0) r = e;
    }
    return r;
}

/* ---- stored KV on its way ---- */

/* The pieces' areas are free again. */
static void drop_pieces(struct kn_dev *d, uint64_t turn)
{
    for (size_t i = GROUP_PIECES; i < GROUP_MEMORY; i++)
        if (d->area[i].turn == turn) d->area[i] = (struct group_area){0};
}

static void unstage(struct kn_dev *d, uint64_t turn)
{
    struct group_turn *t = &d->turn[turn % GROUP_TURNS];
    ASSERT(t->open);
    drop_pieces(d, turn);
    for (unsigned i = 0; i < d->n; i++)
        if (t->rank[i]) d->ops->gpu->unstage(d->rank[i], t->rank[i]);
    *t = (struct group_turn){0};
}

/* An area for each piece, whose places are not known yet. */
static int name_pieces(struct kn_dev *d, struct kn_piece *p, size_t n, uint64_t turn)
{
    size_t j = 0;
    for (size_t i = GROUP_PIECES; j < n && i < GROUP_MEMORY; i++) {
        if (d->area[i].kind != AREA_FREE) continue;
        d->area[i] = (struct group_area){.kind = AREA_HEADS, .turn = turn};
        p[j++].at = group_address(i, 0);
    }
    if (j == n) return 0;
    drop_pieces(d, turn);
    return -EAGAIN;
}

/* Rank i's heads of the pieces, on their way. */
static int stage_rank(struct kn_dev *d, unsigned i, const struct kn_piece *p, size_t n,
                      uint64_t *ret_turn)
{
    struct kn_piece own[GROUP_MEMORY - GROUP_PIECES];
    for (size_t j = 0; j < n; j++) {
        const size_t share = p[j].row_bytes / d->n;
        own[j] = (struct kn_piece){.from = (const char *)p[j].from + i * share,
                                   .bytes = p[j].bytes / d->n,
                                   .row_bytes = share,
                                   .stride = p[j].row_bytes};
    }
    int r = d->ops->gpu->stage(d->rank[i], own, n, ret_turn);
    for (size_t j = 0; r == 0 && j < n; j++)
        d->area[group_area_of(p[j].at)].base[i] = (char *)(uintptr_t)own[j].at;
    return r;
}

static int stage(struct kn_dev *d, struct kn_piece *p, size_t n, uint64_t *ret_turn)
{
    const uint64_t turn = d->next_turn;
    struct group_turn *t = &d->turn[turn % GROUP_TURNS];
    if (t->open) return -EAGAIN;
    for (size_t j = 0; j < n; j++)
        if (group_owns(p[j].from) || !p[j].row_bytes || p[j].row_bytes % d->n) return -EINVAL;
    int r = name_pieces(d, p, n, turn);
    if (r < 0) return r;
    t->open = true;
    for (unsigned i = 0; r == 0 && i < d->n; i++)
        r = stage_rank(d, i, p, n, &t->rank[i]);
    if (r < 0) {
        unstage(d, turn);
        return r;
    }
    d->next_turn++;
    *ret_turn = turn;
    return 0;
}

static int staged(struct kn_stream *st, uint64_t turn)
{
    struct kn_dev *d = st->dev;
    const struct group_turn *t = &d->turn[turn % GROUP_TURNS];
    int r = 0;
    ASSERT(t->open);
    for (unsigned i = 0; r == 0 && i < d->n; i++)
        if (t->rank[i]) r = d->ops->gpu->staged(st->rank[i], t->rank[i]);
    return r;
}

static int stage_room(struct kn_dev *d, size_t bytes)
{
    int r = 0;
    for (unsigned i = 0; r == 0 && i < d->n; i++)
        r = d->ops->gpu->stage_room(d->rank[i], bytes / d->n);
    return r;
}

/* ---- device ---- */

static bool lost(const struct kn_dev *d)
{
    bool any = false;
    for (unsigned i = 0; i < d->n; i++)
        any |= kn_dev_lost(d->rank[i]);
    return any;
}

/* For tiers, which pin the host's memory with it: for all devices. */
static int gpu(struct kn_dev *d, struct gpu **ret, struct err *err)
{
    return kn_dev_gpu(d->rank[0], ret, err);
}

static struct kn_memory memory(struct kn_dev *d)
{
    struct kn_memory m = {.free_bytes = UINT64_MAX};
    for (unsigned i = 0; i < d->n; i++) {
        const struct kn_memory own = kn_dev_memory(d->rank[i]);
        if (own.free_bytes < m.free_bytes) m.free_bytes = own.free_bytes;
        m.total_bytes += own.total_bytes;
        m.device_bytes += own.device_bytes;
        m.shared_bytes += own.shared_bytes;
        m.stage_bytes += own.stage_bytes;
        m.n_allocs += own.n_allocs;
    }
    m.free_bytes *= d->n;
    return m;
}

static struct kn_refusals gemm_refusals(const struct kn_dev *d)
{
    struct kn_refusals all = {0};
    for (unsigned i = 0; i < d->n; i++) {
        const struct kn_refusals own = kn_gemm_refusals(d->rank[i]);
        const uint64_t count = all.count + own.count;
        if (own.count) all = own;
        all.count = count;
    }
    return all;
}

/* Shapes as each rank has them. The first rank measures; where the choice is kept the others read
 * it. */
static int tune_each(struct kn_dev *d, const struct kn_tuning *t)
{
    struct kn_shape *own = mem_alloc(t->n_shapes * sizeof *own);
    struct kn_tuning how = *t;
    int r = own ? 0 : -ENOMEM;
    for (size_t j = 0; r == 0 && j < t->n_shapes; j++) {
        own[j] = t->shapes[j];
        if (own[j].split == KN_SPLIT_SUM) own[j].k /= d->n;
        if (own[j].split == KN_SPLIT_HEADS || own[j].split == KN_SPLIT_VOCAB) own[j].n /= d->n;
        if (own[j].n == 0 || own[j].k == 0) r = -EINVAL;
    }
    how.shapes = own;
    how.H /= d->n, how.G /= d->n;
    for (unsigned i = 0; r == 0 && i < d->n; i++)
        r = d->ops->dev->tune(d->rank[i], &how);
    mem_free(own);
    const struct kn_info *first = kn_info(d->rank[0]);
    memcpy(d->head.info.rate, first->rate, sizeof first->rate);
    d->head.info.n_rates = first->n_rates;
    d->head.info.attn = first->attn, d->head.info.attn_warning = first->attn_warning;
    for (size_t i = 0; i < first->n_rates; i++)
        d->head.info.rate[i].gflops *= d->n;
    return r;
}

static void destroy_group(struct kn_dev *d)
{
    for (size_t i = GROUP_PIECES; i < d->n_areas; i++)
        ASSERT(d->area[i].kind == AREA_FREE); /* a caller forgot its memory */
    if (d->n_areas) free_each(d, d->area[GROUP_TABLES].base);
    if (d->team) d->ops->rank->team_destroy(d->team);
    for (unsigned i = 0; i < d->n; i++)
        kn_dev_destroy(d->rank[i]);
    mem_free(d->area);
    mem_free(d->table_units);
    mem_free(d);
}

static const struct kn_dev_ops dev_ops = {.destroy = destroy_group,
                                          .tune = tune_each,
                                          .mem_alloc = mem_alloc_of,
                                          .mem_free = mem_free_of,
                                          .mem_copy = mem_copy_of,
                                          .scratch = scratch};
static const struct kn_run_ops run_ops = {
    .rows = run_each, .rows_uneven = run_each, .wide = run_each, .replay = replay};
static const struct kn_gpu_ops gpu_ops = {.lost = lost,
                                          .gpu = gpu,
                                          .memory = memory,
                                          .stage_room = stage_room,
                                          .stage = stage,
                                          .staged = staged,
                                          .unstage = unstage,
                                          .defer = defer,
                                          .pipeline = pipeline,
                                          .fence = fence,
                                          .replay_rows = replay_rows,
                                          .forget = forget_each,
                                          .replays = replays,
                                          .gemm_refusals = gemm_refusals,
                                          .sync = sync_stream,
                                          .mat_rows = group_mat_rows,
                                          .operand = operand,
                                          .product = product,
                                          .embed = group_embed};

/* "cuda:0+1 2 x NVIDIA H200": the first word is what it was asked for by. */
static void name_group(struct kn_dev *d)
{
    const struct kn_info *first = kn_info(d->rank[0]);
    size_t at = 0;
    for (unsigned i = 0; i < d->n; i++) {
        const char *name = kn_info(d->rank[i])->device, *number = strchr(name, ':');
        const int len = (int)strcspn(i && number ? number + 1 : name, " ");
        at += (size_t)snprintf(d->name + at, sizeof d->name - at, "%s%.*s", i ? "+" : "", len,
                               i && number ? number + 1 : name);
    }
    snprintf(d->model, sizeof d->model, "%u x %.80s", d->n, first->model);
    snprintf(d->name + at, sizeof d->name - at, " %s", d->model);
    d->head.info = *first;
    d->head.info.device = d->name;
    d->head.info.model = d->model;
    d->head.info.n_ranks = d->n;
}

static int init(struct kn_dev *d, struct err *err)
{
    if (more_areas(d) < 0 || alloc_each(d, GROUP_TABLE_BYTES, d->area[GROUP_TABLES].base) < 0)
        return err_set(err, -ENOMEM, "no memory on the device");
    for (unsigned i = 0; i < KN_SLOTS; i++)
        d->area[i].kind = AREA_EITHER;
    d->area[GROUP_TABLES].kind = AREA_WHOLE;
    d->table_units = mem_zalloc(GROUP_TABLE_BYTES / GROUP_TABLE_UNIT * sizeof *d->table_units);
    if (!d->table_units) return err_set(err, -ENOMEM, "out of memory");
    return d->ops->rank->team_create(d->rank, d->n, &d->team, err);
}

int kn_group_create(struct kn_dev *const *rank, unsigned n, struct kn_dev **ret_dev,
                    struct err *err)
{
    ASSERT(n > 1 && n <= KN_RANKS_MAX);
    const struct kn_ops *ops = &((const struct kn_dev_head *)(const void *)rank[0])->ops;
    struct kn_dev *d = mem_zalloc(sizeof *d);
    if (!d || !ops->rank) {
        for (unsigned i = 0; i < n; i++)
            kn_dev_destroy(rank[i]);
        mem_free(d);
        return err_set(err, d ? -ENOTSUP : -ENOMEM, d ? "not these devices" : "out of memory");
    }
    memcpy(d->rank, rank, n * sizeof(*rank));
    d->n = n;
    d->ops = ops;
    d->next_turn = 1;
    d->stream.dev = d;
    d->head.ops =
        (struct kn_ops){&dev_ops, &group_mat_ops, &run_ops, &group_row_ops, &gpu_ops, NULL};
    name_group(d);
    int r = init(d, err);
    if (r < 0)
        destroy_group(d);
    else
        *ret_dev = d;
    return r;
}
