#include "tools/bench/fleet_sim.h"
#include "tools/bench/zipf.h"

#include "base/clock.h"
#include "base/mem.h"
#include "fusor/core/step_budget.h"
#include "policy/order.h"
#include "policy/route.h"
#include "tiers/evict.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/* Records are those of SmolLM2-135M: f16 keys and values of all layers but the first. */
enum { LAYERS = 30, TOKEN_BYTES = 2 * 2 * (LAYERS - 1) * 3 * 64, BUILDS_MAX = 4096, BATCH_MAX = 8 };

static const double nvme_bytes_per_s = 2e9, nvme_first_s = 1e-4;   /* of a worker */
static const double redis_bytes_per_s = 1e9, redis_first_s = 1e-3; /* of a shard */
static const double warm_share = 0.3; /* of the requests, the first ones, that count for nothing */

static double chunk_bytes(const struct fleet_load *l)
{
    return (double)l->chunk_tokens * TOKEN_BYTES;
}

/* ---- load ---- */

int fleet_load_make(struct fleet_load *l, double rate, double zipf, uint64_t seed)
{
    struct rng rng = {seed};
    struct zipf popular = {0};
    double now = 0;
    if (l->k > l->n_docs) return -EINVAL;
    l->at_s = mem_alloc(l->n * sizeof *l->at_s);
    l->chunk = mem_alloc(l->n * l->k * sizeof *l->chunk);
    int r = l->at_s && l->chunk ? zipf_init(&popular, l->n_docs, zipf) : -ENOMEM;
    for (size_t i = 0; r == 0 && i < l->n; i++) {
        zipf_draw_distinct(&popular, &rng, l->k, l->chunk + i * l->k);
        l->at_s[i] = now += rng_exp(&rng, 1 / rate);
    }
    zipf_fini(&popular);
    return r;
}

void fleet_load_fini(struct fleet_load *l)
{
    mem_free(l->at_s);
    mem_free(l->chunk);
    mem_free(l->prefill_s);
}

/* ---- a tier: which chunks it holds, and who makes way ---- */

struct cache {
    struct evict *order;     /* NULL: there is no such tier */
    struct evict_node *node; /* [n_docs] */
    uint64_t n_free;         /* chunks that fit yet */
};

static int cache_open(struct cache *c, uint64_t cap_bytes, const struct fleet_load *l)
{
    c->n_free = (uint64_t)((double)cap_bytes / chunk_bytes(l));
    if (c->n_free == 0) return 0;
    c->node = mem_zalloc(l->n_docs * sizeof *c->node);
    return c->node ? evict_create(EVICT_LRU, c->n_free, 1, &c->order) : -ENOMEM;
}

static void cache_close(struct cache *c)
{
    evict_destroy(c->order);
    mem_free(c->node);
}

static bool cache_has(const struct cache *c, uint32_t chunk)
{
    return c->order && c->node[chunk].list;
}

/* It is there from now on, the last to make way. */
static void cache_put(struct cache *c, uint32_t chunk)
{
    if (!c->order) return;
    struct evict_node *n = &c->node[chunk];
    if (n->list) {
        evict_hit(c->order, n);
        return;
    }
    n->key = (struct tier_key){chunk * 0x9e3779b97f4a7c15ull, chunk};
    n->size_bytes = 1;
    if (c->n_free > 0)
        c->n_free--;
    else
        evict_remove(c->order, evict_victim(c->order, &n->key, NULL, NULL, 0), true);
    evict_insert(c->order, n);
}

/* ---- workers ---- */

struct job { /* of the request with its number */
    double due_s;
    uint64_t tokens; /* to compute, as the router thought */
    struct job *next;
};
struct worker { /* does one thing at a time */
    struct cache ram, nvme;
    struct job *queue, *running;
    unsigned n_inflight;
    uint64_t queued_tokens, n_served;
    double busy_s, end_s; /* end_s: of what it does now */
    bool building;
    double build_left_s;        /* of the first build that waits */
    uint32_t build[BUILDS_MAX]; /* chunks to build; the first n_urgent were missed twice */
    unsigned n_builds, n_urgent;
};
struct shard {
    double free_s, bytes;
};
struct fleet {
    const struct fleet_opts *o;
    const struct fleet_load *l;
    struct fleet_result *ret;
    struct worker *worker;
    struct cache redis;
    struct shard *shard; /* [n_shards] */
    struct job *job;     /* [n] */
    struct pol_route_target *target;
    struct rng rng;
    double now_s, build_s, nvme_worth; /* price_chunk() */
    size_t first, n_open; /* requests before `first` warm the fleet up; that are not answered */
};

/* ---- one prefill ---- */

static int place_of(const struct fleet *f, const struct worker *w, uint32_t chunk)
{
    if (cache_has(&w->ram, chunk)) return FLEET_RAM;
    if (cache_has(&w->nvme, chunk)) return FLEET_NVME;
    return cache_has(&f->redis, chunk) ? FLEET_REDIS : -1;
}

/* A prompt as the worker's controller sees it; w NULL: with all chunks in RAM. */
static void see_prompt(const struct fleet *f, const struct worker *w, const uint32_t *id,
                       struct pol_chunk_now *chunk, struct pol_control_in *ret)
{
    const struct fleet_load *l = f->l;
    double backlog_s = 0;
    for (unsigned i = 0; i < l->k; i++) {
        const int tier = w ? place_of(f, w, id[i]) : FLEET_RAM;
        chunk[i] = (struct pol_chunk_now){.tok0 = i * l->chunk_tokens,
                                          .n = l->chunk_tokens,
                                          .tier = tier,
                                          .bytes = (uint64_t)chunk_bytes(l)};
        if (tier == FLEET_REDIS)
            backlog_s = fmax(backlog_s, f->shard[id[i] % f->o->n_shards].free_s - f->now_s);
    }
    *ret = (struct pol_control_in){
        .L = LAYERS,
        .check_layer = 1,
        .score_lo = LAYERS / 3,
        .score_hi = 5 * LAYERS / 6,
        .side_layer = 17,
        .n_tok = l->k * l->chunk_tokens + l->suffix_tokens,
        .prefix_tier = -1,
        .n_suffix = l->suffix_tokens,
        .chunk = chunk,
        .n_chunk = l->k,
        .tier = {[FLEET_NVME] = {.bytes_per_s = nvme_bytes_per_s, .first_s = nvme_first_s},
                 [FLEET_REDIS] = {redis_bytes_per_s, redis_first_s, backlog_s, true}},
        .n_tier = 3,
        .cost = f->o->cost,
        .ratio_max = 1};
    ret->strat[POL_FULL].allowed = ret->strat[POL_PREFIX].allowed = true;
    ret->strat[f->o->strategy] = (struct pol_strat_now){true, f->o->ratio};
}

static void load_from_redis(struct fleet *f, uint32_t chunk)
{
    struct shard *s = &f->shard[chunk % f->o->n_shards];
    s->free_s = fmax(s->free_s, f->now_s) + chunk_bytes(f->l) / redis_bytes_per_s;
    s->bytes += chunk_bytes(f->l);
    cache_put(&f->redis, chunk);
}

/* Missed once: when there is time. Missed again: it is worth time that others wait for. */
static void want_build(struct worker *w, uint32_t chunk)
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

static void end_build(struct fleet *f, struct worker *w)
{
    const uint32_t c = w->build[0];
    memmove(w->build, w->build + 1, --w->n_builds * sizeof *w->build);
    w->n_urgent -= w->n_urgent > 0;
    w->build_left_s = 0;
    cache_put(&w->ram, c);
    cache_put(&w->nvme, c);
    cache_put(&f->redis, c);
}

/* Runs it; returns its time to the first token. */
static double start_prefill(struct fleet *f, struct worker *w, size_t req)
{
    const struct fleet_load *l = f->l;
    const uint32_t *id = l->chunk + req * l->k;
    struct pol_chunk_now chunk[POL_CHUNKS_MAX];
    struct pol_control_in in;
    struct pol_control got;
    bool reuse[POL_CHUNKS_MAX] = {0};
    see_prompt(f, w, id, chunk, &in);
    if (f->o->strategy == POL_FULL)
        pol_predict(&in, POL_FULL, 0, reuse, &got.predicted);
    else
        pol_control(&in, &got, reuse);
    for (unsigned i = l->k; i-- > 0;) { /* its head outlives its tail */
        const int from = reuse[i] ? chunk[i].tier : FLEET_COMPUTED;
        if (req >= f->first) f->ret->from[from]++;
        if (f->o->strategy == POL_FULL) continue;
        if (chunk[i].tier < 0) want_build(w, id[i]);
        if (from == FLEET_COMPUTED) continue;
        if (from == FLEET_REDIS) load_from_redis(f, id[i]);
        if (from == FLEET_REDIS || (from == FLEET_NVME && cache_has(&w->nvme, id[i])))
            cache_put(&w->nvme, id[i]); /* one that was loaded may have made way meanwhile */
        cache_put(&w->ram, id[i]);
    }
    return l->prefill_s ? l->prefill_s[req] : got.predicted.ttft_s;
}

/* Machine time of an answer behind its first token, which is the prefill's. Answers share decode
 * steps as far as they are long: while prefills get FUS_STEP_BUDGET_SHARE of what an answer's steps
 * take, as many answers run as prefills end by then, one at the least. */
static double answer_s(const struct fleet *f, double ttft_s)
{
    if (f->l->prefill_s) return f->l->answer_s;
    const double steps_s = f->l->answer_tokens > 1 ? (f->l->answer_tokens - 1) * f->o->token_s : 0;
    return steps_s / fmin(fmax(FUS_STEP_BUDGET_SHARE * steps_s / ttft_s, 1), BATCH_MAX);
}

double fleet_service_s(const struct fleet_opts *o, const struct fleet_load *l)
{
    const struct fleet f = {.o = o, .l = l};
    struct pol_chunk_now chunk[POL_CHUNKS_MAX];
    bool reuse[POL_CHUNKS_MAX];
    struct pol_control_in in;
    struct pol_prediction p;
    see_prompt(&f, NULL, NULL, chunk, &in);
    memset(reuse, true, sizeof reuse);
    pol_predict(&in, o->strategy, o->ratio, reuse, &p);
    return p.ttft_s + answer_s(&f, p.ttft_s);
}

/* What a chunk takes to compute, and what one in NVMe is worth beside one in RAM: the time that
 * loading saves, as the worker reports it to the directory (its residents.c). */
static void price_chunk(struct fleet *f)
{
    const struct fleet_load one = {.k = 1, .chunk_tokens = f->l->chunk_tokens};
    const struct fleet_opts full = {.strategy = POL_FULL, .cost = f->o->cost};
    const double load_s = nvme_first_s + chunk_bytes(&one) / nvme_bytes_per_s;
    f->build_s = fleet_service_s(&full, &one);
    f->nvme_worth = f->build_s > 0 ? fmax(0, 1 - load_s / f->build_s) : 0;
}

/* ---- events ---- */

static void start_next(struct fleet *f, struct worker *w)
{
    struct job *j = w->queue;
    if (j) {
        const size_t req = (size_t)(j - f->job);
        double ttft_s = start_prefill(f, w, req);
        for (double left_s = ttft_s; w->n_urgent && left_s >= f->build_s; left_s -= f->build_s) {
            ttft_s += f->build_s; /* urgent builds take every other turn of a prefill */
            end_build(f, w);
        }
        const double busy_s = ttft_s + answer_s(f, ttft_s);
        if (req >= f->first)
            f->ret->ttft_ms[f->ret->n++] = 1e3 * (f->now_s - f->l->at_s[req] + ttft_s);
        w->queue = j->next;
        w->running = j;
        w->busy_s += busy_s;
        w->end_s = f->now_s + busy_s;
    } else if (w->n_builds) {
        w->building = true;
        if (w->build_left_s <= 0) w->build_left_s = f->build_s;
        w->end_s = f->now_s + w->build_left_s;
    }
}

static void end_work(struct fleet *f, struct worker *w)
{
    if (w->running) {
        w->n_inflight--;
        f->n_open--;
        w->n_served++;
        w->queued_tokens -= w->running->tokens;
        w->running = NULL;
    } else {
        w->building = false;
        end_build(f, w);
    }
    start_next(f, w);
}

/* By what the gateway knows of a worker: what it holds, and what is under way. */
static struct worker *choose_worker(struct fleet *f, size_t req, uint64_t *ret_tokens)
{
    const struct fleet_load *l = f->l;
    const uint32_t *id = l->chunk + req * l->k;
    const uint64_t prompt = (uint64_t)l->k * l->chunk_tokens + l->suffix_tokens;
    const enum fleet_routing how = f->o->routing;
    for (unsigned i = 0; i < f->o->n_workers; i++) {
        const struct worker *w = &f->worker[i];
        double held = 0;
        for (unsigned k = 0; how == FLEET_RESIDENT && k < l->k; k++)
            held += cache_has(&w->ram, id[k]) ? 1 : cache_has(&w->nvme, id[k]) ? f->nvme_worth : 0;
        f->target[i] =
            (struct pol_route_target){.weight = 1,
                                      .n_inflight = w->n_inflight,
                                      .queued_tokens = w->queued_tokens,
                                      .resident_tokens = (uint64_t)(held * l->chunk_tokens),
                                      .id = i * RNG_STEP + 1};
    }
    const struct pol_route_in in = {.target = f->target,
                                    .n = f->o->n_workers,
                                    .balance = how == FLEET_RESIDENT   ? POL_BALANCE_RESIDENT
                                               : how == FLEET_AFFINITY ? POL_BALANCE_AFFINITY
                                                                       : POL_BALANCE_LEAST,
                                    .affinity = (id[0] + 1) * 0xbf58476d1ce4e5b9ull,
                                    .prompt_tokens = prompt,
                                    .random = rng_next(&f->rng)};
    const size_t at = how == FLEET_RANDOM ? in.random % in.n : pol_route(&in).chosen;
    *ret_tokens = prompt - f->target[at].resident_tokens;
    return &f->worker[at];
}

static void admit_request(struct fleet *f, size_t req)
{
    struct job *j = &f->job[req], **at;
    struct worker *w = choose_worker(f, req, &j->tokens);
    if (f->o->max_queue && w->n_inflight > f->o->max_queue) {
        f->ret->n_shed += req >= f->first;
        return;
    }
    const double row_s = (f->o->cost.row_s + f->o->cost.kv_row_s) * LAYERS;
    j->due_s = f->now_s + pol_order_due(POL_ORDER_SJF, (double)j->tokens * row_s, 0);
    for (at = &w->queue; *at && (*at)->due_s <= j->due_s;)
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
static void warm_up(struct fleet *f)
{
    for (uint32_t c = f->l->n_docs; c-- > 0;) {
        cache_put(&f->redis, c);
        for (unsigned i = 0; !f->redis.order && i < f->o->n_workers; i++)
            cache_put(&f->worker[i].nvme, c);
    }
}

static struct worker *next_to_end(struct fleet *f)
{
    struct worker *first = NULL;
    for (struct worker *w = f->worker; w < f->worker + f->o->n_workers; w++)
        if ((w->running || w->building) && (!first || w->end_s < first->end_s)) first = w;
    return first;
}

static void run_events(struct fleet *f)
{
    size_t next = 0;
    while (next < f->l->n || f->n_open > 0) { /* then what is left are builds */
        struct worker *w = next_to_end(f);
        if (next < f->l->n && (!w || f->l->at_s[next] <= w->end_s)) {
            f->now_s = f->l->at_s[next];
            admit_request(f, next++);
        } else {
            f->now_s = w->end_s;
            end_work(f, w);
        }
    }
}

/* ---- run ---- */

static int fleet_open(struct fleet *f)
{
    const struct fleet_opts *o = f->o;
    f->worker = mem_zalloc(o->n_workers * sizeof *f->worker);
    f->target = mem_zalloc(o->n_workers * sizeof *f->target);
    f->shard = mem_zalloc(o->n_shards * sizeof *f->shard);
    f->job = mem_alloc(f->l->n * sizeof *f->job);
    f->ret->ttft_ms = mem_alloc(f->l->n * sizeof *f->ret->ttft_ms);
    int r = f->worker && f->target && f->shard && f->job && f->ret->ttft_ms ? 0 : -ENOMEM;
    if (r == 0 && o->n_shards) r = cache_open(&f->redis, o->redis_bytes, f->l);
    for (unsigned i = 0; r == 0 && i < o->n_workers; i++) {
        r = cache_open(&f->worker[i].ram, o->ram_bytes, f->l);
        if (r == 0) r = cache_open(&f->worker[i].nvme, o->nvme_bytes, f->l);
    }
    return r;
}

static void fleet_close(struct fleet *f)
{
    for (unsigned i = 0; f->worker && i < f->o->n_workers; i++) {
        cache_close(&f->worker[i].ram);
        cache_close(&f->worker[i].nvme);
    }
    cache_close(&f->redis);
    mem_free(f->worker);
    mem_free(f->target);
    mem_free(f->shard);
    mem_free(f->job);
}

static void sum_up(struct fleet *f)
{
    enum { DECISIONS = 1000 }; /* the router's own time, at the state it has come to */
    struct fleet_result *t = f->ret;
    uint64_t most = 0, tokens;
    for (unsigned i = 0; i < f->o->n_workers; i++) {
        const struct worker *w = &f->worker[i];
        t->busy_share += w->busy_s / f->now_s / f->o->n_workers;
        if (w->n_served > most) most = w->n_served;
    }
    t->skew = (double)most * f->o->n_workers / (double)f->l->n;
    for (unsigned s = 0; s < f->o->n_shards; s++)
        t->redis_bytes_per_s = fmax(t->redis_bytes_per_s, f->shard[s].bytes / f->now_s);
    const uint64_t begin_ns = clock_ns();
    for (size_t i = 0; i < DECISIONS; i++)
        (void)choose_worker(f, i % f->l->n, &tokens);
    t->route_us = (double)(clock_ns() - begin_ns) / 1e3 / DECISIONS;
}

int fleet_run(const struct fleet_opts *o, const struct fleet_load *l, struct fleet_result *ret)
{
    struct fleet f = {.o = o,
                      .l = l,
                      .ret = ret,
                      .rng = {1},
                      .first = l->prefill_s ? 0 : (size_t)(warm_share * (double)l->n)};
    *ret = (struct fleet_result){0};
    if (o->n_workers == 0 || l->n == 0 || l->k == 0 || l->k > POL_CHUNKS_MAX) return -EINVAL;
    price_chunk(&f);
    int r = fleet_open(&f);
    if (r == 0 && !o->cold) warm_up(&f);
    if (r == 0) run_events(&f);
    if (r == 0) sum_up(&f);
    fleet_close(&f);
    if (r == 0) return 0;
    mem_free(ret->ttft_ms);
    return r;
}
