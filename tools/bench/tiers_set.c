/* A set of records for measuring tiers; see the header. */
#include "tools/bench/tiers_set.h"

#include "base/clock.h"
#include "base/rng.h"

#include <string.h>
#include <sys/mman.h>

enum { SEED = 1, HUGE_PAGE_BYTES = 2 << 20 };

static struct record_desc describe(const struct tier_ident *id, uint32_t n_tokens)
{
    return (struct record_desc){.ns_hash = record_ns_hash(""),
                                .ident_hash = record_ident_hash(id),
                                .created_ms = (uint64_t)(clock_wall_s() * 1e3),
                                .kind = TIER_CHUNK,
                                .dtype = id->dtype,
                                .L = id->L,
                                .G = id->G,
                                .K = id->K,
                                .n_tokens = n_tokens,
                                .sink_token = id->sink_token};
}

static int make_record(struct bench_set *s, struct record_desc *d, size_t i, struct rng *rng)
{
    const struct record_layout *l = &s->layout;
    int32_t *tok = s->tok + i * s->n_tokens;
    uint8_t **part = s->src_part + i * l->n_parts;
    for (uint32_t p = 0; p < l->n_parts; p++) {
        const uint64_t off = i * l->record_bytes + record_part_off(l, p);
        part[p] = s->src + off;
        s->dst_part[i * l->n_parts + p] = s->dst + off;
    }
    for (uint32_t t = 0; t < s->n_tokens; t++)
        tok[t] = (int32_t)(rng_next(rng) % 30000);
    d->key = s->key[i] = tier_key_chunk(&s->ident, "", tok, s->n_tokens);
    record_init(part[0], d, l, tok);
    for (uint32_t g = 0; g < l->n_groups; g++) {
        uint8_t *row = record_group(part, l, g);
        for (uint64_t at = 0; at + 8 <= l->group_bytes; at += 8) {
            const uint64_t v = rng_next(rng);
            memcpy(row + at, &v, 8);
        }
    }
    record_seal(part, l);
    return s->auth ? record_sign(s->auth, part, l) : 0;
}

static int alloc_set(struct bench_set *s)
{
    const size_t n_parts = s->n * s->layout.n_parts;
    s->key = arena_alloc(&s->arena, s->n * sizeof *s->key);
    s->tok = arena_alloc(&s->arena, s->n * s->n_tokens * sizeof *s->tok);
    s->src_part = arena_alloc(&s->arena, n_parts * sizeof *s->src_part);
    s->dst_part = arena_alloc(&s->arena, n_parts * sizeof *s->dst_part);
    s->src = mem_aligned(HUGE_PAGE_BYTES, 2 * s->bytes);
    if (!s->key || !s->tok || !s->src_part || !s->dst_part || !s->src) return -ENOMEM;
    s->dst = s->src + s->bytes;
    (void)madvise(s->src, 2 * s->bytes, MADV_HUGEPAGE); /* as the store does */
    memset(s->src, 0, 2 * s->bytes);
    return 0;
}

int bench_set_create(const struct tier_ident *ident, uint32_t n_tokens, uint64_t bytes,
                     const char *secret, struct bench_set *ret)
{
    struct rng rng = {SEED};
    struct bench_set s = {.ident = *ident, .n_tokens = n_tokens};
    struct record_desc d = describe(ident, n_tokens);
    int r = record_layout(&d, &s.layout);
    if (r < 0) return r;
    s.n = bytes / s.layout.record_bytes;
    if (s.n < BENCH_INFLIGHT) s.n = BENCH_INFLIGHT;
    s.bytes = s.n * s.layout.record_bytes;
    r = alloc_set(&s);
    if (r == 0 && secret) {
        uint8_t key[AUTH_KEY_BYTES];
        tier_secret_auth(secret, key);
        r = auth_create(key, &s.auth);
    }
    for (size_t i = 0; i < s.n && r == 0; i++)
        r = make_record(&s, &d, i, &rng);
    if (r == 0)
        *ret = s;
    else
        bench_set_fini(&s);
    return r;
}

void bench_set_fini(struct bench_set *s)
{
    auth_destroy(s->auth);
    mem_free(s->src);
    arena_fini(&s->arena);
    *s = (struct bench_set){0};
}

int bench_set_same(const struct bench_set *s, bool headers)
{
    const struct record_layout *l = &s->layout;
    bool same = !headers || memcmp(s->src, s->dst, s->bytes) == 0;
    for (size_t i = 0; i < s->n && same && !headers; i++)
        for (uint32_t g = 0; g < l->n_groups && same; g++)
            same = memcmp(record_group(s->dst_part + i * l->n_parts, l, g),
                          record_group(s->src_part + i * l->n_parts, l, g), l->group_bytes) == 0;
    return same ? 0 : -EBADMSG;
}
