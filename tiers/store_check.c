/* What comes from a tier is not trusted until it was checked.
 *
 * Checksums are against faults. With a secret the header's tag is checked when it comes, a group's
 * when it is first read, so that it costs nothing beside the transfer; both are a record's own, so
 * neither another record's nor half of one passes. What was built here, or has passed, is checked
 * against rot alone: its header when it is used, layers that were sound behind the use, since a
 * request would wait longer for a large record's sums than for what a GPU computes with it. A use
 * after a second of trust queues the record for the maintenance thread, which takes a bounded share
 * of a core, however large RAM is. A rotten record goes; its copies in tiers stay: they are checked
 * when they come. A number that is none would make every answer from the record fail, now and after
 * each restart: it is damage, whatever its sum says. */
#include "tiers/store_load.h"

#include <math.h>

enum { CHECK_PCT = 4 }; /* chosen: of one core's time; at 10 to 17 GB/s half a GB a second */

enum store_miss header_check(const struct store *s, const struct entry *e, struct record_view *ret)
{
    int r = record_open(e->part[0], e->layout.header_bytes, ret);
    if (r == -ESTALE) return STORE_MISS_STALE;
    if (r < 0 || !tier_key_same(&ret->desc.key, &e->desc.key)) return STORE_MISS_CORRUPT;
    return ret->desc.ident_hash == s->ident_hash ? STORE_MISS_NEVER : STORE_MISS_STALE;
}

bool scores_finite(const uint8_t *header, const struct record_layout *l, uint32_t n)
{
    const float *score = (const float *)(const void *)(header + l->score_off);
    for (uint32_t i = 0; i < n; i++)
        if (!isfinite(score[i])) return false;
    return true;
}

enum store_miss header_auth(const struct store *s, const struct entry *e,
                            const struct record_view *v)
{
    const uint8_t *p = e->part[0];
    if (s->auth && record_auth_header(s->auth, p, &v->layout) < 0) return STORE_MISS_FORGED;
    return scores_finite(p, &v->layout, v->desc.n_tokens) ? STORE_MISS_NEVER : STORE_MISS_CORRUPT;
}

int group_check(const struct store *s, const struct entry *e, uint32_t group)
{
    const struct record_desc *d = &e->desc;
    const size_t n = 2 * (size_t)d->n_tokens * d->G * d->K;
    const bool ours = e->from < 0 || e->group_ok[group] != GROUP_NEW;
    int r = s->auth && !ours ? record_auth_group(s->auth, e->part, &e->layout, group)
                             : record_check_group(e->part, &e->layout, group);
    if (r == -EBADMSG && s->auth && !ours && record_check_group(e->part, &e->layout, group) == 0)
        r = -EKEYREJECTED;
    if (r < 0 || ours || !s->finite) return r;
    return s->finite(record_group(e->part, &e->layout, group), d->dtype, n, d->K) ? 0 : -EBADMSG;
}

int groups_check(const struct store *s, const struct entry *e)
{
    int r = 0;
    for (uint32_t g = 0; g < e->layout.n_groups && r == 0; g++)
        r = group_check(s, e, g);
    return r;
}

bool trust_over(const struct store *s, struct entry *e)
{
    const uint64_t now = clock_ns();
    if (now - e->checked_ns < s->checks.every_ns) return false;
    e->checked_ns = now;
    e->header_ok = 0;
    return true;
}

void check_queue(struct store *s, struct entry *e)
{
    pthread_mutex_lock(&s->m);
    if (e->state == ENTRY_READY && link_alone(&e->check)) {
        link_insert_after(s->checks.queue.prev, &e->check);
        s->work = true;
        pthread_cond_signal(&s->wake);
    }
    pthread_mutex_unlock(&s->m);
}

/* What nobody has read yet is left to its reader, who asks more of it. */
void check_run(struct store *s)
{
    struct store_checks *c = &s->checks;
    if (link_alone(&c->queue) || clock_ns() < c->after_ns) return;
    const uint64_t start = clock_thread_ns();
    struct entry *e = LINK_ENTRY(c->queue.next, check);
    entry_ref_held(s, e);
    pthread_mutex_unlock(&s->m);
    for (uint32_t g = 0; g < e->layout.n_groups; g++) {
        if (e->group_ok[g] != GROUP_OK || group_check(s, e, g) == 0) continue;
        e->group_ok[g] = GROUP_ROTTEN; /* a holder that comes to it finds out */
        entry_reject(e, -EBADMSG, false);
    }
    pthread_mutex_lock(&s->m);
    link_remove(&e->check);
    c->after_ns = clock_ns() + (clock_thread_ns() - start) * (100 / CHECK_PCT - 1);
    (void)entry_unref_held(s, e);
}
