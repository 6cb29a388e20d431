#include "tests/unit/tiers/tier_kit.h"

#include "base/clock.h"
#include "base/mem.h"
#include "tests/test.h"

static void shape(struct kit_rec *r, uint64_t id, const char *ns, struct kit_geometry g,
                  int32_t *tok)
{
    struct tier_ident ident = {.model = {1, 2}, .dtype = KN_BF16, .L = g.L, .G = g.G, .K = g.K};
    uint64_t seed = id;
    for (uint32_t i = 0; i < g.n_tokens; i++)
        tok[i] = (int32_t)(test_rand(&seed) % 30000);
    memset(r, 0, sizeof *r);
    r->desc = (struct record_desc){.key = tier_key_chunk(&ident, ns, tok, g.n_tokens),
                                   .ns_hash = record_ns_hash(ns),
                                   .ident_hash = record_ident_hash(&ident),
                                   .created_ms = 1,
                                   .kind = TIER_CHUNK,
                                   .dtype = KN_BF16,
                                   .L = g.L,
                                   .G = g.G,
                                   .K = g.K,
                                   .n_tokens = g.n_tokens};
    ASSERT_OK(record_layout(&r->desc, &r->layout));
    ASSERT_TRUE(r->layout.n_parts <= KIT_PARTS_MAX);
    r->mem = mem_aligned(RECORD_ALIGN, r->layout.record_bytes);
    ASSERT_TRUE(r->mem);
    memset(r->mem, 0, r->layout.record_bytes);
    for (uint32_t i = 0; i < r->layout.n_parts; i++)
        r->part[i] = r->mem + record_part_off(&r->layout, i);
}

void kit_make(struct kit_rec *r, uint64_t id, const char *ns, struct kit_geometry g)
{
    int32_t *tok = mem_alloc(4ull * g.n_tokens);
    shape(r, id, ns, g, tok);
    record_init(r->part[0], &r->desc, &r->layout, tok);
    mem_free(tok);
    for (uint32_t i = 0; i < r->layout.n_groups; i++) {
        uint8_t *at = record_group(r->part, &r->layout, i);
        uint64_t seed = id * 1000003u + i, page[512], n = r->layout.group_bytes;
        for (size_t w = 0; w < 512; w++)
            page[w] = test_rand(&seed);
        for (uint64_t b = 0; b < n; b += sizeof page, page[0]++) /* no page like another */
            memcpy(at + b, page, n - b < sizeof page ? n - b : sizeof page);
    }
    record_seal(r->part, &r->layout);
}

void kit_revise(struct kit_rec *r, uint32_t n)
{
    float *score = (float *)(void *)(r->part[0] + r->layout.score_off);
    if (n == 0) return;
    for (uint32_t i = 0; i < r->desc.n_tokens; i++)
        score[i] = (float)(n + i);
    for (uint32_t g = 0; g < r->layout.n_groups; g++)
        for (uint64_t i = 0; i < r->layout.group_bytes; i += 64)
            record_group(r->part, &r->layout, g)[i] ^= (uint8_t)n;
    r->desc.n_contexts = n;
    r->desc.context_tokens = 100 * n;
    record_set_contexts(r->part[0], n, 100 * n);
    record_seal(r->part, &r->layout);
}

void kit_blank(struct kit_rec *r, uint64_t id, const char *ns, struct kit_geometry g)
{
    int32_t *tok = mem_alloc(4ull * g.n_tokens);
    shape(r, id, ns, g, tok);
    mem_free(tok);
}

void kit_free(struct kit_rec *r)
{
    mem_free(r->mem);
    r->mem = NULL;
}

static int on_part(struct tier_op *op, uint32_t part)
{
    struct kit_call *c = op->ctx;
    pthread_mutex_lock(&c->m);
    if (c->n_done > 0) c->broken = "a part after on_done";
    if (part >= KIT_PARTS_MAX || part < op->part_lo || part >= op->part_hi)
        c->broken = "a part nobody asked for";
    else if (c->got[part])
        c->broken = "a part twice";
    else
        c->got[part] = true;
    if (c->n_parts++ == 0 && op->part_lo == 0 && part != 0) c->broken = "part 0 is not first";
    if (part == 0 && c->late_memory)
        memcpy(c->rec->part + 1, c->pending + 1, sizeof c->pending - sizeof *c->pending);
    int r = part == c->cancel_at;
    pthread_mutex_unlock(&c->m);
    return r;
}

static void on_done(struct tier_op *op, int status)
{
    struct kit_call *c = op->ctx;
    if (c->then) c->then(c);
    pthread_mutex_lock(&c->m);
    if (c->n_done++ > 0) c->broken = "on_done twice";
    c->status = status;
    pthread_cond_broadcast(&c->c);
    pthread_mutex_unlock(&c->m);
}

void kit_call_init(struct kit_call *c, struct kit_rec *r)
{
    memset(c, 0, sizeof *c);
    c->rec = r;
    pthread_condattr_t monotonic;
    (void)pthread_condattr_init(&monotonic);
    (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    (void)pthread_mutex_init(&c->m, NULL);
    (void)pthread_cond_init(&c->c, &monotonic);
    (void)pthread_condattr_destroy(&monotonic);
    c->op = (struct tier_op){.key = r->desc.key,
                             .layout = &r->layout,
                             .part = r->part,
                             .part_hi = r->layout.n_parts,
                             .on_part = on_part,
                             .on_done = on_done,
                             .ctx = c};
    c->cancel_at = UINT32_MAX;
}

void kit_call_fini(struct kit_call *c)
{
    (void)pthread_cond_destroy(&c->c);
    (void)pthread_mutex_destroy(&c->m);
}

void kit_call_again(struct kit_call *c)
{
    c->n_done = c->n_parts = 0;
    c->broken = NULL;
    memset(c->got, 0, sizeof c->got);
    for (uint32_t i = 1; i < c->rec->layout.n_parts; i++) {
        c->pending[i] = c->rec->mem + record_part_off(&c->rec->layout, i);
        c->rec->part[i] = c->late_memory ? NULL : c->pending[i];
    }
}

int kit_wait(struct kit_call *c)
{
    uint64_t until = clock_ns() + 60000000000u;
    struct timespec ts = {(time_t)(until / 1000000000u), (long)(until % 1000000000u)};
    int late = 0;
    pthread_mutex_lock(&c->m);
    while (c->n_done == 0 && late == 0)
        late = pthread_cond_timedwait(&c->c, &c->m, &ts);
    int status = c->status;
    const char *broken = c->broken;
    pthread_mutex_unlock(&c->m);
    if (late) test_fail(__FILE__, __LINE__, "no answer within 60 s");
    if (broken) test_fail(__FILE__, __LINE__, "contract broken: %s", broken);
    return status;
}

unsigned kit_done(struct kit_call *c)
{
    pthread_mutex_lock(&c->m);
    unsigned n = c->n_done;
    pthread_mutex_unlock(&c->m);
    return n;
}

static int call_and_wait(struct tier *t, struct kit_rec *r,
                         int (*submit)(struct tier *t, struct tier_op *op))
{
    struct kit_call c;
    kit_call_init(&c, r);
    int status = submit(t, &c.op);
    if (status == 0) status = kit_wait(&c);
    kit_call_fini(&c);
    return status;
}

int kit_read(struct tier *t, struct kit_rec *r)
{
    return call_and_wait(t, r, t->ops->read);
}

int kit_write(struct tier *t, struct kit_rec *r)
{
    return call_and_wait(t, r, t->ops->write);
}
