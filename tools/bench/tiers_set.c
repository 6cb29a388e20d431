/* A set of records for measuring tiers; see the header. */
#include "tools/bench/tiers_set.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { MOVES_MAX = 64, POISON = 0xA5, HUGE_PAGE_BYTES = 2 << 20 };

/* ---- the records ---- */

static uint8_t *map_bytes(uint64_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
    if (bytes >= HUGE_PAGE_BYTES) (void)madvise(p, bytes, MADV_HUGEPAGE); /* as the store does */
    return p;
}

static void make_record(struct bench_set *s, size_t i, struct rng *rng)
{
    const struct record_layout *l = &s->layout;
    int32_t *tok = s->tok + i * s->n_tokens;
    uint8_t **part = s->src_part + i * l->n_parts;
    for (uint32_t t = 0; t < s->n_tokens; t++)
        tok[t] = (int32_t)(rng_next(rng) % 30000);
    s->key[i] = tier_key_chunk(&s->ident, "", tok, s->n_tokens);
    struct record_desc d = {.key = s->key[i],
                            .ns_hash = record_ns_hash(""),
                            .ident_hash = record_ident_hash(&s->ident),
                            .created_ms = (uint64_t)(clock_wall_s() * 1e3),
                            .kind = TIER_CHUNK,
                            .dtype = s->ident.dtype,
                            .L = s->ident.L,
                            .G = s->ident.G,
                            .K = s->ident.K,
                            .n_tokens = s->n_tokens,
                            .sink_token = s->ident.sink_token};
    record_init(part[0], &d, l, tok);
    for (uint32_t g = 0; g < l->n_groups; g++) {
        uint8_t *row = record_group(part, l, g);
        for (uint64_t at = 0; at + 8 <= l->group_bytes; at += 8) {
            uint64_t v = rng_next(rng);
            memcpy(row + at, &v, 8);
        }
    }
    record_seal(part, l);
}

int bench_set_create(const struct tier_ident *ident, uint32_t n_tokens, uint64_t bytes,
                     size_t n_min, uint64_t seed, struct bench_set *ret)
{
    struct rng rng = {seed};
    struct bench_set s = {.ident = *ident, .n_tokens = n_tokens};
    struct record_desc d = {.kind = TIER_CHUNK,
                            .dtype = ident->dtype,
                            .L = ident->L,
                            .G = ident->G,
                            .K = ident->K,
                            .n_tokens = n_tokens};
    int r = record_layout(&d, &s.layout);
    if (r < 0) return r;
    s.n = bytes / s.layout.record_bytes;
    if (s.n < n_min) s.n = n_min;
    s.bytes = s.n * s.layout.record_bytes;
    s.key = mem_alloc(s.n * sizeof *s.key);
    s.tok = mem_alloc(s.n * n_tokens * sizeof *s.tok);
    s.src_part = mem_alloc(s.n * s.layout.n_parts * sizeof *s.src_part);
    s.dst_part = mem_alloc(s.n * s.layout.n_parts * sizeof *s.dst_part);
    s.src = map_bytes(s.bytes);
    s.dst = map_bytes(s.bytes);
    if (!s.key || !s.tok || !s.src_part || !s.dst_part || !s.src || !s.dst) {
        bench_set_fini(&s);
        return -ENOMEM;
    }
    for (size_t i = 0; i < s.n; i++) {
        for (uint32_t p = 0; p < s.layout.n_parts; p++) {
            uint64_t off = i * s.layout.record_bytes + record_part_off(&s.layout, p);
            s.src_part[i * s.layout.n_parts + p] = s.src + off;
            s.dst_part[i * s.layout.n_parts + p] = s.dst + off;
        }
        make_record(&s, i, &rng);
    }
    bench_set_poison(&s);
    *ret = s;
    return 0;
}

int bench_set_sign(struct bench_set *s, const char *secret)
{
    uint8_t key[AUTH_KEY_BYTES];
    tier_secret_auth(secret, key);
    int r = auth_create(key, &s->auth);
    for (size_t i = 0; i < s->n && r == 0; i++)
        r = record_sign(s->auth, s->src_part + i * s->layout.n_parts, &s->layout);
    return r;
}

/* As the store checks what comes from a tier. Random bytes are no numbers: only the time counts. */
static int check_group(const struct bench_set *s, uint8_t *const *part, uint32_t g)
{
    const struct record_layout *l = &s->layout;
    int r = s->auth ? record_auth_group(s->auth, part, l, g) : record_check_group(part, l, g);
    (void)kn_finite(record_group(part, l, g), s->ident.dtype,
                    2 * (size_t)s->n_tokens * s->ident.G * s->ident.K, s->ident.K);
    return r;
}

static int check_header(const struct bench_set *s, uint8_t *const *part, struct record_view *v)
{
    int r = record_open(part[0], s->layout.header_bytes, v);
    return r == 0 && s->auth ? record_auth_header(s->auth, part[0], &s->layout) : r;
}

void bench_set_fini(struct bench_set *s)
{
    auth_destroy(s->auth);
    if (s->src) (void)munmap(s->src, s->bytes);
    if (s->dst) (void)munmap(s->dst, s->bytes);
    mem_free(s->key);
    mem_free(s->tok);
    mem_free(s->src_part);
    mem_free(s->dst_part);
    *s = (struct bench_set){0};
}

void bench_set_poison(struct bench_set *s)
{
    memset(s->dst, POISON, s->bytes);
}

int bench_set_verify(const struct bench_set *s, double *ret_s)
{
    const struct record_layout *l = &s->layout;
    uint64_t t0 = clock_ns();
    int bad = 0;
    for (size_t i = 0; i < s->n && !bad; i++) {
        struct record_view v;
        uint8_t *const *part = s->dst_part + i * l->n_parts;
        if (check_header(s, part, &v) < 0 || !tier_key_same(&v.desc.key, &s->key[i]) ||
            v.desc.n_tokens != s->n_tokens ||
            memcmp(v.tok, s->tok + i * s->n_tokens, s->n_tokens * sizeof *s->tok) != 0)
            bad = 1;
        for (uint32_t g = 0; g < l->n_groups && !bad; g++)
            bad = check_group(s, part, g) < 0;
    }
    *ret_s = (double)(clock_ns() - t0) / 1e9;
    return bad ? -EBADMSG : 0;
}

int bench_set_same(const struct bench_set *s)
{
    return memcmp(s->src, s->dst, s->bytes) == 0 ? 0 : -EBADMSG;
}

/* ---- time ---- */

static double cpu_now_s(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

void bench_watch_start(struct bench_watch *w)
{
    w->cpu_s = cpu_now_s();
    w->wall_s = (double)clock_ns() / 1e9;
}

struct bench_cost bench_watch_stop(const struct bench_watch *w)
{
    double wall_s = (double)clock_ns() / 1e9;
    return (struct bench_cost){wall_s - w->wall_s, cpu_now_s() - w->cpu_s};
}

/* ---- moving ---- */

struct mover {
    pthread_mutex_t m;
    pthread_cond_t ended;
    /* guarded by m */
    struct move *idle;
    size_t n_under;
    int status;
};
struct move {
    struct tier_op op;
    struct mover *mover;
    struct move *next;
};

static int on_part(struct tier_op *op, uint32_t part)
{
    return 0;
}

static void on_done(struct tier_op *op, int status)
{
    struct move *v = op->ctx;
    struct mover *m = v->mover;
    pthread_mutex_lock(&m->m);
    if (status < 0 && m->status == 0) m->status = status;
    v->next = m->idle;
    m->idle = v;
    m->n_under--;
    pthread_cond_signal(&m->ended);
    pthread_mutex_unlock(&m->m);
}

static void mover_init(struct mover *m, struct move *move, size_t n)
{
    *m = (struct mover){.idle = NULL};
    pthread_mutex_init(&m->m, NULL);
    pthread_cond_init(&m->ended, NULL);
    for (size_t i = 0; i < n; i++) {
        move[i] = (struct move){.mover = m, .next = m->idle};
        m->idle = &move[i];
    }
}

static void mover_fini(struct mover *m)
{
    pthread_cond_destroy(&m->ended);
    pthread_mutex_destroy(&m->m);
}

static void fill(const struct bench_set *s, size_t i, bool write, struct move *v)
{
    v->op = (struct tier_op){.key = s->key[i],
                             .layout = &s->layout,
                             .part = (write ? s->src_part : s->dst_part) + i * s->layout.n_parts,
                             .part_lo = 0,
                             .part_hi = s->layout.n_parts,
                             .prio = write ? TIER_BEHIND : TIER_DEMAND,
                             .on_part = on_part,
                             .on_done = on_done,
                             .ctx = v};
}

/* Submit record i once an op is idle; a full queue waits for an op of ours to end. */
static int submit(const struct bench_set *s, struct tier *t, size_t i, bool write, struct mover *m)
{
    pthread_mutex_lock(&m->m);
    for (;;) {
        while (!m->idle && m->status == 0)
            pthread_cond_wait(&m->ended, &m->m);
        if (m->status < 0) break;
        struct move *v = m->idle;
        m->idle = v->next;
        m->n_under++;
        pthread_mutex_unlock(&m->m);
        fill(s, i, write, v);
        int r = write ? t->ops->write(t, &v->op) : t->ops->read(t, &v->op);
        pthread_mutex_lock(&m->m);
        if (r == 0) break;
        v->next = m->idle;
        m->idle = v;
        m->n_under--;
        if (r != -EAGAIN || m->n_under == 0) {
            m->status = r;
            break;
        }
        size_t under = m->n_under;
        while (m->n_under >= under)
            pthread_cond_wait(&m->ended, &m->m);
    }
    int status = m->status;
    pthread_mutex_unlock(&m->m);
    return status;
}

static int wait_all(struct mover *m)
{
    pthread_mutex_lock(&m->m);
    while (m->n_under > 0)
        pthread_cond_wait(&m->ended, &m->m);
    int status = m->status;
    pthread_mutex_unlock(&m->m);
    return status;
}

int bench_set_move(const struct bench_set *s, struct tier *t, bool write, size_t inflight,
                   struct bench_cost *ret)
{
    struct move move[MOVES_MAX];
    struct mover m;
    struct bench_watch w;
    ASSERT(inflight >= 1 && inflight <= MOVES_MAX);
    mover_init(&m, move, inflight);
    bench_watch_start(&w);
    int r = 0;
    for (size_t i = 0; i < s->n && r == 0; i++)
        r = submit(s, t, i, write, &m);
    r = wait_all(&m);
    struct bench_cost cost = bench_watch_stop(&w);
    mover_fini(&m);
    if (r == 0) *ret = cost;
    return r;
}

/* ---- one record, read as it arrives ---- */

struct loading {
    pthread_mutex_t m;
    pthread_cond_t news;
    /* guarded by m */
    uint64_t here[(RECORD_PARTS_MAX + 64) / 64]; /* bit per part */
    uint64_t first_ns, all_ns;
    bool done;
    int status;
};

static int on_loaded_part(struct tier_op *op, uint32_t part)
{
    struct loading *l = op->ctx;
    pthread_mutex_lock(&l->m);
    l->here[part / 64] |= 1ull << part % 64;
    if (part > 0 && l->first_ns == 0) l->first_ns = clock_ns();
    pthread_cond_signal(&l->news);
    pthread_mutex_unlock(&l->m);
    return 0;
}

static void on_loaded(struct tier_op *op, int status)
{
    struct loading *l = op->ctx;
    pthread_mutex_lock(&l->m);
    l->all_ns = clock_ns();
    l->done = true;
    l->status = status;
    pthread_cond_signal(&l->news);
    pthread_mutex_unlock(&l->m);
}

/* 0 once the part is here. A record that ended well has all its parts. */
static int await_part(struct loading *l, uint32_t part)
{
    pthread_mutex_lock(&l->m);
    while (!(l->here[part / 64] >> part % 64 & 1) && !l->done)
        pthread_cond_wait(&l->news, &l->m);
    bool here = l->here[part / 64] >> part % 64 & 1;
    int r = here ? 0 : l->status < 0 ? l->status : -EBADMSG;
    pthread_mutex_unlock(&l->m);
    return r;
}

static int read_along(const struct bench_set *s, struct loading *l, uint8_t *const *part)
{
    struct record_view v;
    int r = await_part(l, 0);
    if (r == 0) r = check_header(s, part, &v);
    for (uint32_t g = 0; g < s->layout.n_groups && r == 0; g++) {
        r = await_part(l, record_part_of(&s->layout, g));
        if (r == 0) r = check_group(s, part, g);
    }
    return r;
}

int bench_set_load(const struct bench_set *s, struct tier *t, size_t i, struct bench_load *ret)
{
    struct loading l = {.done = false};
    struct move v = {.mover = NULL};
    pthread_mutex_init(&l.m, NULL);
    pthread_cond_init(&l.news, NULL);
    fill(s, i, false, &v);
    v.op.on_part = on_loaded_part;
    v.op.on_done = on_loaded;
    v.op.ctx = &l;
    memset(v.op.part[0], POISON, s->layout.record_bytes); /* its parts stand end to end */
    uint64_t t0_ns = clock_ns(), verified_ns = 0;
    int r = t->ops->read(t, &v.op);
    if (r == 0) {
        r = read_along(s, &l, v.op.part);
        verified_ns = clock_ns();
        pthread_mutex_lock(&l.m);
        while (!l.done)
            pthread_cond_wait(&l.news, &l.m);
        if (r == 0) r = l.status;
        pthread_mutex_unlock(&l.m);
    }
    pthread_cond_destroy(&l.news);
    pthread_mutex_destroy(&l.m);
    if (r < 0) return r;
    if (verified_ns < l.all_ns) verified_ns = l.all_ns; /* the tier's own end came last */
    *ret = (struct bench_load){.first_s = (double)(l.first_ns - t0_ns) / 1e9,
                               .all_s = (double)(l.all_ns - t0_ns) / 1e9,
                               .verified_s = (double)(verified_ns - t0_ns) / 1e9};
    return 0;
}
