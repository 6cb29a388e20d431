/* Records that a tier keeps in 8 bits.
 *
 * The codec belongs to the tier: what sinks to one with `q8` is converted on its way, comes back as
 * it lies there and stays so in RAM, where the fusor reads it as it is: nothing is widened. Key and
 * identity are those of the store's own dtype, so a record is found whatever it was kept in, and
 * its header says what that is. A local tier that has a record of the other size answers -ESTALE
 * and is asked for that one: what was written before the option changed is not lost.
 * The copy is made when the write's turn comes, in RAM like everything, from bytes that agree with
 * their checksums, and only what is clean makes way for it. A record that cannot be converted is
 * not written. */
#include "tiers/store_load.h"

bool codec_on(const struct store *s, unsigned tier)
{
    return s->tier[tier].q8 && s->codec;
}

/* The dtype that the tier is asked for at first, and the only other one that it may have. */
static enum kn_dtype codec_dtype(const struct store *s, unsigned tier, bool other)
{
    return s->codec && codec_on(s, tier) != other ? KN_Q8 : s->ident.dtype;
}

static void layout_as(const struct entry *e, enum kn_dtype t, struct record_layout *ret)
{
    struct record_desc d = e->desc;
    d.dtype = t;
    int r = record_layout(&d, ret);
    ASSERT(r == 0); /* of the same tokens it was possible in more bytes */
    ASSERT(ret->n_parts <= e->parts_max);
}

void codec_shape(struct store *s, struct entry *e, unsigned tier, bool other)
{
    enum kn_dtype t = codec_dtype(s, tier, other);
    struct shard *sh = shard_of(s, &e->desc.key);
    if (t == e->desc.dtype) return;
    parts_free(s, e); /* at most what an earlier tier had no record for */
    pthread_mutex_lock(&sh->m);
    layout_as(e, t, &e->layout);
    e->desc.dtype = t;
    pthread_mutex_unlock(&sh->m);
    e->load.op.part_hi = e->layout.n_parts;
}

bool codec_adopt(const struct entry *e, const struct record_view *v)
{
    const struct record_layout *l = &e->layout;
    if (v->desc.dtype == e->desc.dtype) return v->layout.record_bytes == l->record_bytes;
    if (!e->store->codec || (v->desc.dtype != KN_Q8 && v->desc.dtype != e->store->ident.dtype))
        return false;
    return v->layout.record_bytes == l->record_bytes && v->layout.n_parts == l->n_parts;
}

/* The groups, converted; 0, or as group_check() or -ERANGE. */
static int convert(struct store *s, const struct entry *from, struct entry *to)
{
    const struct record_desc *d = &from->desc;
    size_t n = 2 * (size_t)d->n_tokens * d->G * d->K;
    struct record_view v;
    if (record_open(from->part[0], from->layout.header_bytes, &v) < 0) return -EBADMSG;
    memset(to->part[0], 0, to->layout.header_bytes);
    record_init(to->part[0], &to->desc, &to->layout, v.tok);
    memcpy(to->part[0] + to->layout.score_off, from->part[0] + from->layout.score_off,
           sizeof(float) * d->n_tokens);
    for (uint32_t g = 0; g < from->layout.n_groups; g++) {
        uint8_t *dst = record_group(to->part, &to->layout, g);
        int r = group_check(s, from, g);
        if (r < 0) return r;
        const uint8_t *src = record_group(from->part, &from->layout, g);
        if (d->dtype == to->desc.dtype)
            memcpy(dst, src, from->layout.group_bytes);
        else
            r = s->convert(src, d->dtype, n, d->K, to->desc.dtype, dst);
        if (r < 0) return r;
        memset(dst + to->layout.group_bytes, 0, to->layout.group_stride - to->layout.group_bytes);
    }
    return 0;
}

int codec_copy(struct store *s, const struct entry *e, enum kn_dtype dtype, bool revision,
               struct entry **ret)
{
    struct record_layout l;
    struct record_desc d = e->desc;
    d.dtype = dtype;
    layout_as(e, dtype, &l);
    struct entry *c = entry_create(s, &d, &l, ENTRY_DEAD); /* no lookup sees it */
    if (!c) return -ENOMEM;
    c->modest = true;
    c->ns_known = revision; /* and charged to it */
    pthread_mutex_lock(&s->m);
    int r = revision && e->state != ENTRY_READY ? -ENOENT : entry_enter_apart(s, c);
    if (r == 0 && revision) {
        link_insert_after(&s->all, &c->all);
        link_insert_after(&s->revisions, &c->loads);
    }
    pthread_mutex_unlock(&s->m);
    if (r < 0) {
        mem_free(c);
        return r;
    }
    r = convert(s, e, c);
    if (r < 0)
        entry_unref(s, c);
    else
        *ret = c;
    return r;
}

uint64_t store_record_bytes(const struct store *s, int where, size_t n)
{
    ASSERT(where >= 0 && (size_t)where <= s->n_tiers);
    struct record_desc d;
    struct record_layout l;
    if (entry_desc(s, &(struct tier_key){0}, n, &d, &l) < 0) return 0;
    if (where > 0) d.dtype = codec_dtype(s, (unsigned)where - 1, false);
    return record_layout(&d, &l) < 0 ? 0 : l.record_bytes;
}
