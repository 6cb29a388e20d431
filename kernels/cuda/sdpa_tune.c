/* Whether cuDNN's attention is used, for each of its plans: random rows through it and through our
 * own kernel. Values are compared at every start, times are taken once.
 *
 * The sequence has a prefix that is there already and ends inside a page, pages are out of order
 * and of several layers, and the rows that both write to have the same numbers in them before: so
 * a mask, an offset, a length or a write behind the last row that is not ours shows.
 *
 * Kept in <cache_dir>/attention-<hash>.txt (base/keyfile.h) under GPU, driver, library and shape: a
 * line for each plan, keys and both times in microseconds. */
#include "kernels/cuda/sdpa.h"

#include "base/keyfile.h"
#include "base/mem.h"
#include "kernels/cuda/gemm.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    VERSION = 1,
    PAGE = 64,
    PLANS_MAX = 8,
    ROUNDS = 3,
    REPS = 3,
    ROW_STEP = 61, /* every so manieth row is compared: odd, so that all places in a tile come */
    KEY_MAX = 700
};
/* bf16 rounds a probability by 2^-9 and both round Q at different places; a mask that is one off
 * changes row i by 1 / i, and the first rows are among those compared. Chosen. */
static const double DIFFERENCE_MAX = 1.0 / 64;

struct timing {
    size_t keys;
    double own_us, us;
};
struct timings {
    struct timing at[PLANS_MAX];
    size_t n;
};

/* ---- the file ---- */

static bool take_timing(void *arg, const char *line)
{
    struct timings *t = arg;
    struct timing *x = &t->at[t->n];
    if (t->n == PLANS_MAX || sscanf(line, "%zu %lf %lf", &x->keys, &x->own_us, &x->us) != 3)
        return false;
    t->n += x->own_us > 0 && x->us > 0;
    return true;
}

static const struct timing *find_timing(const struct timings *t, size_t keys)
{
    for (size_t i = 0; i < t->n; i++)
        if (t->at[i].keys == keys) return &t->at[i];
    return NULL;
}

static void remember_timings(const struct keyfile *file, const struct timings *t)
{
    struct buf lines = BUF_INIT;
    for (size_t i = 0; i < t->n; i++)
        (void)buf_addf(&lines, "%zu %.3f %.3f\n", t->at[i].keys, t->at[i].own_us, t->at[i].us);
    keyfile_write(file, &lines);
    buf_fini(&lines);
}

/* ---- what is attended ---- */

struct field {
    struct cu *c;
    struct cu_attn a;
    size_t n_keys, row_bytes, rows; /* rows: that the outputs have */
    void *pages, *numbers, *q, *out[2], *room, *parts;
};

static void field_fini(struct field *f)
{
    void *const all[] = {f->pages, f->numbers, f->q, f->out[0], f->out[1], f->room, f->parts};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]) cu_free(f->c, all[i], KN_MEM_DEVICE);
}

static void *room_of(struct field *f, size_t bytes, int *r)
{
    void *p = *r == 0 ? cu_alloc(f->c, KN_MEM_DEVICE, bytes) : NULL;
    if (!p && *r == 0) *r = -ENOMEM;
    return p;
}

/* Page ids from the last to the first, then the rows' positions. */
static int place_rows(struct field *f, size_t n_pages)
{
    const size_t n = n_pages + f->a.m;
    int32_t *host = mem_alloc(n * sizeof *host);
    if (!host) return -ENOMEM;
    for (size_t i = 0; i < n_pages; i++)
        host[i] = (int32_t)(n_pages - 1 - i);
    for (size_t i = 0; i < f->a.m; i++)
        host[n_pages + i] = (int32_t)(f->n_keys - f->a.m + i);
    int r = cu_copy(f->c, f->numbers, host, n * sizeof *host);
    mem_free(host);
    return r;
}

static int field_init(struct field *f, struct cu *c, const struct sdpa *s,
                      const struct sdpa_shape *h, size_t keys)
{
    const size_t layer = cu_page_bytes(c, h->G, h->K), HK = (size_t)h->H * h->K;
    const size_t n_keys = keys - keys / 8 - 5, n_pages = (n_keys + PAGE - 1) / PAGE;
    int r = 0;
    *f = (struct field){.c = c, .n_keys = n_keys, .row_bytes = HK * 2, .rows = keys};
    f->a =
        (struct cu_attn){.ldq = HK,
                         .m = n_keys - keys / 16 - 3,
                         .H = h->H,
                         .scale = 1 / sqrtf((float)h->K),
                         .ldo = HK,
                         .type = CU_BF16,
                         .kv = {.page_bytes = 2 * layer, .n_pages = n_pages, .G = h->G, .K = h->K}};
    f->pages = room_of(f, n_pages * f->a.kv.page_bytes, &r);
    f->numbers = room_of(f, (n_pages + f->a.m) * sizeof(int32_t), &r);
    f->q = room_of(f, f->a.m * HK * sizeof(float), &r);
    for (int i = 0; i < 2; i++)
        f->out[i] = room_of(f, f->rows * f->row_bytes, &r);
    f->room = room_of(f, sdpa_room(s, n_keys), &r);
    if (r < 0) return r;
    f->a.q = f->q;
    f->a.pos = (int32_t *)f->numbers + n_pages;
    f->a.kv.base = (char *)f->pages + layer; /* the second of two layers */
    f->a.kv.pages = f->numbers;
    f->a.first = cu_attn_first(c, &f->a, NULL);
    const size_t floats = cu_attn_floats(&f->a);
    if (floats) f->parts = room_of(f, floats * sizeof(float), &r);
    if (r == 0) r = cu_noise(c, CU_F32, f->q, f->a.m * HK);
    /* As f16 these are numbers between -2 and 2, as bytes any: pages of 8 bits, too. */
    if (r == 0) r = cu_noise(c, CU_BF16, f->pages, n_pages * f->a.kv.page_bytes / 2);
    for (int i = 0; r == 0 && i < 2; i++)
        r = cu_noise(c, CU_BF16, f->out[i], f->rows * HK);
    return r < 0 ? r : place_rows(f, n_pages);
}

static int attend_by(struct field *f, struct sdpa *s /* NULL: our own */)
{
    struct cu_attn a = f->a;
    a.out = f->out[s != NULL];
    if (!s) return cu_attn(f->c, &a, f->parts);
    return sdpa_fits(s, &a, f->n_keys) ? sdpa_run(s, &a, f->n_keys, f->room) : -ENOTSUP;
}

/* ---- values ---- */

static double bf16(uint16_t h)
{
    const uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* By head, of its length; what is no number is not alike. */
static bool alike(const uint16_t *own, const uint16_t *other, size_t n_heads, size_t K)
{
    for (size_t h = 0; h < n_heads; h++) {
        double apart = 0, length = 0;
        for (size_t i = h * K; i < (h + 1) * K; i++) {
            const double x = bf16(own[i]), d = bf16(other[i]) - x;
            apart += d * d, length += x * x;
        }
        if (!(apart <= DIFFERENCE_MAX * DIFFERENCE_MAX * length)) return false;
    }
    return true;
}

/* 1: they are; 0: they are not. Rows behind the last one shall be what they were. */
static int compare_rows(struct field *f)
{
    const size_t n = (f->rows - 1) / ROW_STEP + 1, bytes = n * f->row_bytes;
    uint16_t *host[2] = {mem_alloc(bytes), mem_alloc(bytes)};
    int r = host[0] && host[1] ? 0 : -ENOMEM;
    for (int i = 0; r == 0 && i < 2; i++)
        r = cu_copy_rows(f->c, host[i], f->row_bytes, f->out[i], ROW_STEP * f->row_bytes,
                         f->row_bytes, n);
    if (r == 0) r = cu_sync(f->c);
    if (r == 0) r = alike(host[0], host[1], n * f->a.H, f->a.kv.K);
    mem_free(host[0]);
    mem_free(host[1]);
    return r;
}

/* ---- times ---- */

static int time_one(struct field *f, struct sdpa *s, double *best_us)
{
    double us = 0;
    int r = cu_span_start(f->c);
    for (int i = 0; r == 0 && i < REPS; i++)
        r = attend_by(f, s);
    if (r == 0) r = cu_span_end(f->c, &us);
    us /= REPS;
    if (*best_us <= 0 || us < *best_us) *best_us = us;
    return r;
}

static int time_both(struct field *f, struct sdpa *s, struct timing *ret)
{
    int r = 0;
    for (int i = 0; r == 0 && i < ROUNDS; i++) {
        r = time_one(f, NULL, &ret->own_us);
        if (r == 0) r = time_one(f, s, &ret->us);
    }
    return r;
}

/* ---- the choice ---- */

struct choice {
    struct cu *c;
    const struct sdpa_tuning *t;
    struct sdpa *s;
    struct timings timings;
    bool forced, measured, differs;
};

/* The last plan: 1: it is worth it; 0: it is not. */
static int try_plan(struct choice *k, size_t keys)
{
    struct field f = {0};
    struct timing now = {keys, 0, 0};
    const struct timing *known = find_timing(&k->timings, keys);
    int r = field_init(&f, k->c, k->s, &k->t->shape, keys);
    if (r == 0) r = attend_by(&f, NULL);
    if (r == 0) r = attend_by(&f, k->s);
    const bool ran = r == 0;
    if (ran) r = compare_rows(&f);
    if (ran && r == 0) k->differs = true;
    if (r == 1 && !k->forced && !known) {
        r = time_both(&f, k->s, &now);
        if (r == 0) {
            k->timings.at[k->timings.n++] = now;
            k->measured = true;
            r = now.us < now.own_us;
        }
    }
    field_fini(&f);
    return r;
}

static bool is_slower(const struct choice *k, size_t keys)
{
    const struct timing *known = find_timing(&k->timings, keys);
    return !k->forced && known && known->us >= known->own_us;
}

/* Plans for 1024 keys, twice as many and so on; the last for what a sequence has, if that is
 * less. */
static int try_all(struct choice *k)
{
    const size_t most = (k->t->keys_max + PAGE - 1) / PAGE * PAGE;
    int r = 0;
    for (size_t at = SDPA_KEYS_MIN, keys; at <= SDPA_KEYS_MAX; at *= 2) {
        keys = at < most ? at : most;
        if (!k->differs && !is_slower(k, keys)) {
            r = sdpa_prepare(k->s, keys);
            if (r == 0 && (r = try_plan(k, keys)) <= 0) sdpa_drop(k->s);
            if (r == -EIO) return r; /* the device is lost; of all else there is no plan */
        }
        if (keys == most) break;
    }
    return 0;
}

static bool attn_is(const char *name)
{
    const char *which = getenv("KVBLEND_ATTN");
    return which && strcmp(which, name) == 0;
}

int sdpa_tune(struct cu *c, const struct sdpa_tuning *t, struct sdpa **ret, char *why,
              size_t why_size)
{
    struct choice k = {.c = c, .t = t, .forced = attn_is("cudnn")};
    char key[KEY_MAX], versions[300];
    if (attn_is("own") || t->shape.K == 0 || t->keys_max == 0) return 0;
    int r = sdpa_open(c, getenv("KVBLEND_CUDNN"), NULL, &t->shape, &k.s);
    if (r == -ENOTSUP && k.forced) snprintf(why, why_size, "no cuDNN of version 9.10.2 or later");
    if (r < 0) return r == -ENOTSUP ? 0 : r;
    cu_versions(c, versions, sizeof versions);
    snprintf(key, sizeof key, "v%d %s %s heads %u %u %u%s", VERSION, versions, sdpa_name(k.s),
             t->shape.H, t->shape.G, t->shape.K, t->q8 ? " pages q8" : "");
    const struct keyfile file = {t->cache_dir, "attention", key};
    (void)keyfile_read(&file, take_timing, &k.timings);
    r = try_all(&k);
    if (r == 0 && k.measured) remember_timings(&file, &k.timings);
    if (k.differs)
        snprintf(why, why_size, "%s gives other values than our own kernel", sdpa_name(k.s));
    else if (r == 0 && k.forced && sdpa_plans(k.s) == 0)
        snprintf(why, why_size, "%s makes no plan for these heads", sdpa_name(k.s));
    if (r == 0 && !k.differs && sdpa_plans(k.s) > 0)
        *ret = k.s;
    else
        sdpa_close(k.s);
    return r == -ENOMEM ? 0 : r;
}
