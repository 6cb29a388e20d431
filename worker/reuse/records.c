#include "worker/reuse/records.h"

#include "base/assert.h"
#include "base/mem.h"
#include "tiers/store_write.h"

#include <errno.h>

uint64_t rec_bytes(const struct tier_ident *i, uint32_t n_tok)
{
    const struct record_desc d = {
        .L = i->L, .G = i->G, .K = i->K, .dtype = i->dtype, .n_tokens = n_tok};
    struct record_layout l;

    return record_layout(&d, &l) < 0 ? 0 : l.record_bytes;
}

/* ---- kv_source ---- */
struct source {
    struct store_pin *pin;
    int *ret_status; /* NULL: not wanted */
    struct store_load *ret_load;
};

static int source_layer(void *ctx, unsigned layer, struct kv_layer *ret)
{
    struct source *s = ctx;
    const void *k, *v;
    int rc = store_pin_layer(s->pin, layer, &k, &v);

    if (rc < 0) {
        if (s->ret_status) *s->ret_status = rc;
        return rc;
    }
    if (s->ret_load) (void)store_pin_load(s->pin, s->ret_load);
    *ret = (struct kv_layer){k, v, store_pin_dtype(s->pin)};
    return 0;
}

static int source_ready(void *ctx, unsigned layer)
{
    struct source *s = ctx;

    return store_pin_ready(s->pin, layer);
}

static int source_sensitivity(void *ctx, float *ret)
{
    struct source *s = ctx;

    return store_pin_scores(s->pin, ret);
}

static int source_side(void *ctx, unsigned layer, struct kv_layer *ret)
{
    struct source *s = ctx;
    struct kv_layer got = {0};

    if (store_pin_side(s->pin, layer, &got.k, &got.dtype) == 0) return 0;
    *ret = got;
    return 1;
}

static void source_release(void *ctx)
{
    struct source *s = ctx;

    store_pin_release(s->pin);
    mem_free(s);
}

int rec_source_make(struct store_pin *pin, struct kv_source *ret)
{
    static const struct kv_source_ops ops = {NULL,         source_layer,       source_release,
                                             source_ready, source_sensitivity, source_side};
    struct source *s = mem_alloc(sizeof *s);

    if (!s) {
        store_pin_release(pin);
        return -ENOMEM;
    }
    *s = (struct source){.pin = pin};
    *ret = (struct kv_source){&ops, s};
    return 0;
}

int rec_source_in_ram(struct store *s, const struct tier_key *key, const int32_t *tok, uint32_t n,
                      struct kv_source *ret)
{
    struct store_pin *pin;
    enum store_miss why;
    int rc = store_in_ram(s, key) ? store_lookup(s, key, tok, n, &pin, &why) : 0;

    if (rc <= 0) return rc;
    rc = rec_source_make(pin, ret);
    return rc < 0 ? rc : 1;
}

void rec_source_tell(struct kv_source *src, int *ret_status, struct store_load *ret_load)
{
    struct source *s = src->ctx;

    s->ret_status = ret_status;
    s->ret_load = ret_load;
}

/* ---- kv_sink ---- */
struct sink {
    struct store_writer *writer;
    enum kn_dtype dtype;
    size_t G, K;
    uint32_t n_tok;
    unsigned L;
    int *ret_status;
};

static int sink_rows(void *ctx, const struct kv_rows *r)
{
    struct sink *s = ctx;
    size_t n = s->G * s->K, size = kn_row_bytes(s->dtype, s->G, s->K); /* of a row */
    void *dk, *dv;
    int rc;

    ASSERT(r->row0 + r->n <= s->n_tok);
    ASSERT(r->layer < s->L);
    if (r->layer == 0) return 0; /* depends on the token alone: never stored */
    store_writer_layer(s->writer, r->layer, &dk, &dv);
    dk = (char *)dk + r->row0 * size;
    dv = (char *)dv + r->row0 * size;
    rc = kn_encode_rows(r->st, r->k, r->ld, r->n, n, s->K, s->dtype, dk, r->bad);
    return rc < 0 ? rc : kn_encode_rows(r->st, r->v, r->ld, r->n, n, s->K, s->dtype, dv, r->bad);
}

static void sink_done(void *ctx, int status)
{
    struct sink *s = ctx;

    if (status == 0)
        status = store_commit(s->writer);
    else
        store_abort(s->writer);
    if (s->ret_status) *s->ret_status = status;
    mem_free(s);
}

int rec_sink_make(struct store_writer *writer, const struct tier_ident *ident, uint32_t n_tok,
                  int *ret_status, struct kv_sink *ret)
{
    static const struct kv_sink_ops ops = {sink_rows, sink_done};
    struct sink *s = mem_alloc(sizeof *s);

    if (!s) {
        store_abort(writer);
        return -ENOMEM;
    }
    *s = (struct sink){writer, ident->dtype, ident->G, ident->K, n_tok, ident->L, ret_status};
    *ret = (struct kv_sink){&ops, s};
    return 0;
}
