#include "tools/bench/fleet_sim.h"
#include "tools/bench/zipf.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "fusor/core/step_budget.h"
#include "tiers/evict.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BUILDS_MAX = 4096, BATCH_MAX = 8 };

const char *fleet_routing_name(enum fleet_routing r)
{
    static const char *const name[] = {"random", "least", "affinity", "resident"};
    return (unsigned)r < FLEET_ROUTINGS ? name[r] : "unknown";
}

/* ---- load ---- */

int fleet_load_make(struct fleet_load *l, size_t n, double rate, double zipf, unsigned k,
                    uint64_t seed)
{
    struct rng rng = {seed};
    struct zipf popular = {0};
    double now = 0;
    if (k > l->n_docs) return -EINVAL;
    l->req = mem_alloc(n * sizeof *l->req);
    l->chunk = mem_alloc(n * k * sizeof *l->chunk);
    int r = l->req && l->chunk ? zipf_init(&popular, l->n_docs, zipf) : -ENOMEM;
    l->n = r == 0 ? n : 0;
    for (size_t i = 0; i < l->n; i++) {
        zipf_draw_distinct(&popular, &rng, k, l->chunk + i * k);
        l->req[i] = (struct fleet_request){now += rng_exp(&rng, 1 / rate), l->chunk + i * k, k};
    }
    zipf_fini(&popular);
    if (r < 0) fleet_load_fini(l);
    return r;
}

void fleet_load_fini(struct fleet_load *l)
{
    mem_free(l->req);
    mem_free(l->chunk);
    l->req = NULL;
    l->chunk = NULL;
}

/* ---- a tier: which chunks it holds, and who makes way ---- */

struct held {
    struct evict_node node;
    uint32_t chunk;
};
struct cache {
    struct evict *e;
    struct held **at; /* [n_docs] NULL: not here */
    uint64_t used, cap;
};

static int cache_open(struct cache *c, uint64_t cap_bytes, uint64_t chunk_bytes, uint32_t n_docs)
{
    c->cap = cap_bytes;
    if (cap_bytes < chunk_bytes) return 0; /* no such tier */
    c->at = mem_zalloc(n_docs * sizeof(struct held *));
    return c->at ? evict_create(EVICT_LRU, cap_bytes, 1, &c->e) : -ENOMEM;
}

static void cache_close(struct cache *c, uint32_t n_docs)
{
    for (uint32_t i = 0; c->at && i < n_docs; i++)
        mem_free(c->at[i]);
    if (c->e) evict_destroy(c->e);
    mem_free(c->at);
}

static bool cache_has(const struct cache *c, uint32_t chunk)
{
    return c->at && c->at[chunk];
}

static void cache_touch(struct cache *c, uint32_t chunk)
{
    if (cache_has(c, chunk)) evict_hit(c->e, &c->at[chunk]->node);
}

static int cache_put(struct cache *c, uint32_t chunk, uint64_t bytes)
{
    if (!c->at || bytes > c->cap) return 0;
    if (c->at[chunk]) {
        evict_hit(c->e, &c->at[chunk]->node);
        return 0;
    }
    struct held *h = mem_zalloc(sizeof *h);
    if (!h) return -ENOMEM;
    h->chunk = chunk;
    h->node.key = (struct tier_key){chunk * 0x9e3779b97f4a7c15ull, chunk};
    h->node.size_bytes = bytes;
    while (c->used > c->cap - bytes) {
        struct held *v = (struct held *)evict_victim(c->e, &h->node.key, NULL, NULL, 0);
        evict_remove(c->e, &v->node, true);
        c->used -= bytes;
        c->at[v->chunk] = NULL;
        mem_free(v);
    }
    evict_insert(c->e, &h->node);
    c->used += bytes;
    c->at[chunk] = h;
    return 0;
}

/* ---- workers ---- */

struct job {
    double at_s, due_s;
    uint64_t tokens; /* to compute, as the router thought */
    uint32_t req;
    struct job *next;
};
struct node { /* a worker */
    struct cache ram, nvme;
    struct job *queue, *running;
    unsigned n_inflight;
    uint64_t queued_tokens, n_served;
    double busy_s, end_s; /* end_s: of what it does now */
    bool building;
    double build_left_s; /* of the first build that waits */
    uint32_t *build;     /* chunks to build; the first n_urgent were missed twice */
    unsigned n_builds, n_urgent;
};
struct fleet {
    const struct fleet_opts *o;
    const struct fleet_load *l;
    struct fleet_result *ret;
    struct node *node;
    struct cache redis;
    double *shard_free_s; /* [n_shards] */
    double *shard_bytes;
    struct pol_route_target *target;
    struct rng rng;
    double now_s, build_s, nvme_worth; /* price_chunk() */
    size_t first, n_open; /* requests before `first` warm the fleet up; that are not answered */
    int err;
};

/* A worker does one thing at a time: the next event is the earliest end of all. */
static struct node *next_to_end(struct fleet *f)
{
    struct node *first = NULL;
    for (struct node *w = f->node; w < f->node + f->o->n_workers; w++)
        if ((w->running || w->building) && (!first || w->end_s < first->end_s)) first = w;
    return first;
}

/* ---- one prefill ---- */

static int place_of(const struct fleet *f, const struct node *w, uint32_t chunk)
{
    if (cache_has(&w->ram, chunk)) return FLEET_RAM;
    if (cache_has(&w->nvme, chunk)) return FLEET_NVME;
    return cache_has(&f->redis, chunk) ? FLEET_REDIS : -1;
}

void fleet_prompt(const struct fleet_opts *o, const struct fleet_load *l, unsigned n_chunks,
                  struct pol_chunk_now *chunk, struct pol_control_in *ret)
{
    *ret = (struct pol_control_in){.L = o->L,
                                   .check_layer = 1,
                                   .score_lo = o->L / 3,
                                   .score_hi = 5 * o->L / 6,
                                   .side_layer = (17 * o->L + 15) / 30,
                                   .n_tok = n_chunks * l->chunk_tokens + l->suffix_tokens,
                                   .prefix_tier = -1,
                                   .n_suffix = l->suffix_tokens,
                                   .chunk = chunk,
                                   .n_chunk = n_chunks,
                                   .n_tier = 3,
                                   .cost = o->cost,
                                   .ratio_max = 1};
    for (unsigned i = 0; i < n_chunks; i++)
        chunk[i] = (struct pol_chunk_now){.tok0 = i * l->chunk_tokens,
                                          .n = l->chunk_tokens,
                                          .tier = FLEET_RAM,
                                          .bytes = o->chunk_bytes};
    ret->strat[POL_FULL].allowed = ret->strat[POL_PREFIX].allowed = true;
    ret->strat[o->strategy] = (struct pol_strat_now){true, o->ratio};
}

static void see_prompt(const struct fleet *f, const struct node *w, const struct fleet_request *q,
                       struct pol_chunk_now *chunk, struct pol_control_in *in)
{
    const struct fleet_opts *o = f->o;
    double backlog_s = 0;
    fleet_prompt(o, f->l, q->n_chunks, chunk, in);
    for (unsigned i = 0; i < q->n_chunks; i++) {
        chunk[i].tier = place_of(f, w, q->chunk[i]);
        if (chunk[i].tier == FLEET_REDIS)
            backlog_s = fmax(backlog_s, f->shard_free_s[q->chunk[i] % o->n_shards] - f->now_s);
    }
    in->tier[FLEET_NVME] =
        (struct pol_tier_now){.bytes_per_s = o->nvme_bytes_per_s, .first_s = o->nvme_first_s};
    in->tier[FLEET_REDIS] = (struct pol_tier_now){.bytes_per_s = o->redis_bytes_per_s,
                                                  .first_s = o->redis_first_s,
                                                  .queue_s = backlog_s,
                                                  .by_record = true};
}

static void load_from_redis(struct fleet *f, uint32_t chunk)
{
    const uint32_t s = chunk % f->o->n_shards;
    const double begin_s = fmax(f->shard_free_s[s], f->now_s);
    f->shard_free_s[s] = begin_s + (double)f->o->chunk_bytes / f->o->redis_bytes_per_s;
    f->shard_bytes[s] += (double)f->o->chunk_bytes;
    cache_touch(&f->redis, chunk);
}

/* Missed once: when there is time. Missed again: it is worth time that others wait for. */
static void want_build(struct node *w, uint32_t chunk)
{
    unsigned i = 0;
    while (i < w->n_builds && w->build[i] != chunk)
        i++;
    if (i == BUILDS_MAX) return;
    if (i == w->n_builds) {
        w->build[w->n_builds++] = chunk;
        return;
    }
    if (i < w->n_urgent) return;
    if (i == 0) w->build_left_s = 0; /* what was done of it; a small error */
    w->build[i] = w->build[w->n_urgent];
    w->build[w->n_urgent++] = chunk;
}

static void end_build(struct fleet *f, struct node *w)
{
    const uint32_t c = w->build[0];
    memmove(w->build, w->build + 1, --w->n_builds * sizeof *w->build);
    w->n_urgent -= w->n_urgent > 0;
    w->build_left_s = 0;
    if (cache_put(&w->ram, c, f->o->chunk_bytes) < 0 ||
        cache_put(&w->nvme, c, f->o->chunk_bytes) < 0 ||
        cache_put(&f->redis, c, f->o->chunk_bytes) < 0)
        f->err = -ENOMEM;
}

/* Runs it; returns its time to the first token. */
static double start_prefill(struct fleet *f, struct node *w, const struct fleet_request *q)
{
    const struct fleet_opts *o = f->o;
    struct pol_chunk_now chunk[POL_CHUNKS_MAX];
    struct pol_control_in in;
    struct pol_control got;
    bool reuse[POL_CHUNKS_MAX] = {0};
    see_prompt(f, w, q, chunk, &in);
    if (o->strategy == POL_FULL)
        pol_predict(&in, POL_FULL, 0, reuse, &got.predicted);
    else
        pol_control(&in, &got, reuse);
    for (unsigned i = q->n_chunks; i-- > 0;) { /* its head outlives its tail */
        const uint32_t c = q->chunk[i];
        const int from = reuse[i] ? chunk[i].tier : FLEET_COMPUTED;
        if (q >= f->l->req + f->first) f->ret->from[from]++;
        if (o->strategy == POL_FULL) continue;
        if (chunk[i].tier < 0) want_build(w, c);
        if (from == FLEET_REDIS) load_from_redis(f, c);
        if (from == FLEET_NVME) cache_touch(&w->nvme, c);
        if (from == FLEET_COMPUTED) continue;
        if (cache_put(&w->ram, c, o->chunk_bytes) < 0) f->err = -ENOMEM;
        if (from == FLEET_REDIS && cache_put(&w->nvme, c, o->chunk_bytes) < 0) f->err = -ENOMEM;
    }
    return o->prefill_s ? o->prefill_s[q - f->l->req] : got.predicted.ttft_s;
}

/* What a chunk takes to compute, and what one in NVMe is worth beside one in RAM: the time that
 * loading saves, as the worker reports it to the directory (its residents.c). */
static void price_chunk(struct fleet *f)
{
    struct pol_chunk_now none;
    struct pol_control_in in;
    struct pol_prediction p;
    const bool reuse = false;
    fleet_prompt(f->o, f->l, 1, &none, &in);
    in.n_tok = f->l->chunk_tokens;
    in.n_suffix = 0;
    none.tier = -1;
    pol_predict(&in, POL_FULL, 0, &reuse, &p);
    f->build_s = p.ttft_s;
    const double load_s = f->o->nvme_first_s + (double)f->o->chunk_bytes / f->o->nvme_bytes_per_s;
    f->nvme_worth = f->build_s > 0 ? fmax(0, 1 - load_s / f->build_s) : 0;
}

/* ---- events ---- */

double fleet_answer_s(const struct fleet_opts *o, uint32_t n_tokens, double ttft_s)
{
    const double steps_s = n_tokens > 1 ? (n_tokens - 1) * o->token_s : 0;
    return steps_s / fmin(fmax(FUS_STEP_BUDGET_SHARE * steps_s / ttft_s, 1), BATCH_MAX);
}

static void start_next(struct fleet *f, struct node *w)
{
    struct job *j = w->queue;
    ASSERT(!w->running && !w->building);
    if (j) {
        w->queue = j->next;
        double ttft_s = start_prefill(f, w, &f->l->req[j->req]);
        for (double left_s = ttft_s; w->n_urgent && left_s >= f->build_s; left_s -= f->build_s) {
            ttft_s += f->build_s; /* urgent builds take every other turn of a prefill */
            end_build(f, w);
        }
        const double answer_s =
            f->o->prefill_s ? f->o->answer_s : fleet_answer_s(f->o, f->l->answer_tokens, ttft_s);
        const double busy_s = ttft_s + answer_s;
        if (j->req >= f->first) f->ret->ttft_s[f->ret->n++] = f->now_s - j->at_s + ttft_s;
        w->running = j;
        w->busy_s += busy_s;
        w->end_s = f->now_s + busy_s;
    } else if (w->n_builds) {
        w->building = true;
        if (w->build_left_s <= 0) w->build_left_s = f->build_s;
        w->end_s = f->now_s + w->build_left_s;
    }
}

static void end_work(struct fleet *f, struct node *w)
{
    if (w->running) {
        w->n_inflight--;
        f->n_open--;
        w->n_served++;
        w->queued_tokens -= w->running->tokens;
        mem_free(w->running);
        w->running = NULL;
    } else {
        w->building = false;
        end_build(f, w);
    }
    start_next(f, w);
}

/* What the gateway knows of a worker: what it holds, and what is under way. */
static uint32_t choose_worker(struct fleet *f, const struct fleet_request *q, uint64_t *ret_tokens)
{
    const uint64_t prompt = (uint64_t)q->n_chunks * f->l->chunk_tokens + f->l->suffix_tokens;
    const enum fleet_routing how = f->o->routing;
    for (unsigned i = 0; i < f->o->n_workers; i++) {
        const struct node *w = &f->node[i];
        double held = 0;
        for (unsigned k = 0; how == FLEET_RESIDENT && k < q->n_chunks; k++)
            held += cache_has(&w->ram, q->chunk[k])    ? 1
                    : cache_has(&w->nvme, q->chunk[k]) ? f->nvme_worth
                                                       : 0;
        f->target[i] =
            (struct pol_route_target){.weight = 1,
                                      .n_inflight = w->n_inflight,
                                      .queued_tokens = w->queued_tokens,
                                      .resident_tokens = (uint64_t)(held * f->l->chunk_tokens),
                                      .id = i * 0x9e3779b97f4a7c15ull + 1};
    }
    const struct pol_route_in in = {.target = f->target,
                                    .n = f->o->n_workers,
                                    .balance = how == FLEET_RESIDENT   ? POL_BALANCE_RESIDENT
                                               : how == FLEET_AFFINITY ? POL_BALANCE_AFFINITY
                                                                       : POL_BALANCE_LEAST,
                                    .affinity = (q->chunk[0] + 1) * 0xbf58476d1ce4e5b9ull,
                                    .prompt_tokens = prompt,
                                    .random = rng_next(&f->rng)};
    const size_t at = how == FLEET_RANDOM ? in.random % in.n : pol_route(&in).chosen;
    *ret_tokens = prompt - f->target[at].resident_tokens;
    return (uint32_t)at;
}

static void admit_request(struct fleet *f, uint32_t req)
{
    const struct fleet_request *q = &f->l->req[req];
    struct job *j = mem_zalloc(sizeof *j);
    if (!j) {
        f->err = -ENOMEM;
        return;
    }
    const uint32_t i = choose_worker(f, q, &j->tokens);
    struct node *w = &f->node[i];
    if (f->o->max_queue && w->n_inflight > f->o->max_queue) {
        f->ret->n_shed += req >= f->first;
        mem_free(j);
        return;
    }
    const double row_s = (f->o->cost.row_s + f->o->cost.kv_row_s) * f->o->L;
    j->at_s = f->now_s;
    j->req = req;
    j->due_s = j->at_s + pol_order_due(f->o->order, (double)j->tokens * row_s, 0);
    struct job **at = &w->queue;
    while (*at && (*at)->due_s <= j->due_s)
        at = &(*at)->next;
    j->next = *at;
    *at = j;
    w->n_inflight++;
    f->n_open++;
    w->queued_tokens += j->tokens;
    if (w->running) return;
    if (w->building) { /* it waits for a later pause */
        w->building = false;
        w->build_left_s = w->end_s - f->now_s;
    }
    start_next(f, w);
}

/* A fleet that has run for long: the slowest tier holds what is asked for most, documents being
 * numbered by that. The faster ones fill in the requests before `first`. */
static int warm_up(struct fleet *f)
{
    int r = 0;
    for (uint32_t c = f->l->n_docs; r == 0 && c-- > 0;) {
        if (f->redis.at) r = cache_put(&f->redis, c, f->o->chunk_bytes);
        for (unsigned i = 0; !f->redis.at && r == 0 && i < f->o->n_workers; i++)
            r = cache_put(&f->node[i].nvme, c, f->o->chunk_bytes);
    }
    return r;
}

static void run_events(struct fleet *f)
{
    uint64_t in_route_ns = 0;
    size_t next = 0;
    while (f->err == 0 && (next < f->l->n || f->n_open > 0)) { /* then what is left are builds */
        struct node *w = next_to_end(f);
        if (next < f->l->n && (!w || f->l->req[next].at_s <= w->end_s)) {
            f->now_s = f->l->req[next].at_s;
            admit_request(f, (uint32_t)next++);
        } else {
            f->now_s = w->end_s;
            end_work(f, w);
        }
    }
    if (f->err) return;
    for (unsigned i = 0; i < 1000; i++) { /* the router's own time, at the state it has come to */
        uint64_t tokens;
        const uint64_t t0 = clock_ns();
        (void)choose_worker(f, &f->l->req[i % f->l->n], &tokens);
        in_route_ns += clock_ns() - t0;
    }
    f->ret->route_us = (double)in_route_ns / 1e6;
}

/* ---- run ---- */

static int compare_times(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int fleet_open(struct fleet *f)
{
    const struct fleet_opts *o = f->o;
    f->node = mem_zalloc(o->n_workers * sizeof *f->node);
    f->target = mem_zalloc(o->n_workers * sizeof *f->target);
    f->shard_free_s = mem_zalloc((o->n_shards + 1) * sizeof *f->shard_free_s);
    f->shard_bytes = mem_zalloc((o->n_shards + 1) * sizeof *f->shard_bytes);
    f->ret->ttft_s = mem_alloc(f->l->n * sizeof *f->ret->ttft_s);
    int r =
        f->node && f->target && f->shard_free_s && f->shard_bytes && f->ret->ttft_s ? 0 : -ENOMEM;
    if (r == 0 && o->n_shards)
        r = cache_open(&f->redis, o->redis_bytes, o->chunk_bytes, f->l->n_docs);
    for (unsigned i = 0; r == 0 && i < o->n_workers; i++) {
        struct node *w = &f->node[i];
        w->build = mem_alloc(BUILDS_MAX * sizeof *w->build);
        r = w->build ? cache_open(&w->ram, o->ram_bytes, o->chunk_bytes, f->l->n_docs) : -ENOMEM;
        if (r == 0) r = cache_open(&w->nvme, o->nvme_bytes, o->chunk_bytes, f->l->n_docs);
    }
    return r;
}

static void fleet_close(struct fleet *f)
{
    for (unsigned i = 0; f->node && i < f->o->n_workers; i++) {
        struct node *w = &f->node[i];
        cache_close(&w->ram, f->l->n_docs);
        cache_close(&w->nvme, f->l->n_docs);
        mem_free(w->build);
        mem_free(w->running);
        for (struct job *j = w->queue, *next; j; j = next) {
            next = j->next;
            mem_free(j);
        }
    }
    cache_close(&f->redis, f->l->n_docs);
    mem_free(f->node);
    mem_free(f->target);
    mem_free(f->shard_free_s);
    mem_free(f->shard_bytes);
}

static void sum_up_fleet(struct fleet *f)
{
    struct fleet_result *t = f->ret;
    uint64_t most = 0;
    for (unsigned i = 0; i < f->o->n_workers; i++) {
        const struct node *w = &f->node[i];
        t->busy_share += w->busy_s / f->now_s / f->o->n_workers;
        if (w->n_served > most) most = w->n_served;
    }
    t->skew = (double)most * f->o->n_workers / (double)f->l->n;
    for (unsigned s = 0; s < f->o->n_shards; s++)
        t->redis_bytes_per_s = fmax(t->redis_bytes_per_s, f->shard_bytes[s] / f->now_s);
    qsort(t->ttft_s, t->n, sizeof *t->ttft_s, compare_times);
}

int fleet_run(const struct fleet_opts *o, const struct fleet_load *l, struct fleet_result *ret)
{
    struct fleet f = {.o = o,
                      .l = l,
                      .ret = ret,
                      .rng = {o->seed},
                      .first = (size_t)(o->warm_share * (double)l->n)};
    *ret = (struct fleet_result){0};
    for (size_t i = 0; i < l->n; i++)
        if (l->req[i].n_chunks > POL_CHUNKS_MAX || l->req[i].n_chunks == 0) return -EINVAL;
    if (o->n_workers == 0 || l->n == 0 || l->n_docs == 0) return -EINVAL;
    price_chunk(&f);
    f.err = fleet_open(&f);
    if (f.err == 0 && !o->cold) f.err = warm_up(&f);
    if (f.err == 0) run_events(&f);
    if (f.err == 0) sum_up_fleet(&f);
    fleet_close(&f);
    if (f.err < 0) fleet_result_fini(ret);
    return f.err;
}

void fleet_result_fini(struct fleet_result *r)
{
    mem_free(r->ttft_s);
    r->ttft_s = NULL;
}

double fleet_quantile(const struct fleet_result *r, double q)
{
    const double at = q * (double)(r->n - 1);
    const size_t i = (size_t)at;
    if (r->n == 0) return NAN;
    return i + 1 < r->n ? r->ttft_s[i] + (at - (double)i) * (r->ttft_s[i + 1] - r->ttft_s[i])
                        : r->ttft_s[i];
}
