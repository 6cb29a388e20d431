#include "worker/fleet/residency.h"

#include "base/assert.h"
#include "base/buf.h"
#include "base/mem.h"

#include <errno.h>
#include <pthread.h>
#include <sys/queue.h>

enum {
    GONE_MAX = 4096,  /* departures remembered: who is further behind gets all anew */
    SWEEP_BATCH = 64, /* look-ups between two chances for others to take the lock */
    STILL_PART = 16,  /* chosen: a whole table in a minute, should `moves` ever miss a move */
};
#define COST_UNKNOWN                                                                               \
    0.1 /* chosen: a tier that was never read from is still better than computing */

struct text {
    uint64_t id, seq; /* seq: of its last change, while it is held */
    struct tier_key key;
    uint64_t ns;
    uint32_t n_tok;
    int8_t place;                /* <0: not held */
    TAILQ_ENTRY(text) age, news; /* by when it came; by when it changed, while held */
    LIST_ENTRY(text) chain;
};
struct gone {
    uint64_t id, seq;
};
struct residency {
    pthread_mutex_t m;
    uint64_t epoch, seq;
    uint64_t lost_seq; /* departures up to this number are no longer remembered */
    struct text *text;
    LIST_HEAD(bucket, text) * bucket;
    uint32_t mask, capacity, n, n_held, cursor;
    uint64_t moves, n_still; /* of the last sweep; texts asked for in vain since they changed */
    TAILQ_HEAD(texts, text) age, news; /* last: the newest */
    struct gone gone[GONE_MAX];
    uint64_t n_gone;                 /* ever; a ring */
    struct residency_change *change; /* by number, a ring; NULL: nobody wants them */
    uint64_t first_change;           /* the first that was remembered */
};

static struct bucket *text_bucket(struct residency *r, uint64_t id)
{
    return &r->bucket[(id ^ id >> 32) & r->mask];
}

/* It has just got its number. */
static void note_change(struct residency *r, const struct text *t, int from, int to)
{
    if (!r->change) return;
    r->change[r->seq % RESIDENCY_CHANGES_MAX] =
        (struct residency_change){r->seq, t->key, t->ns, t->n_tok, (int8_t)from, (int8_t)to};
}

static void went(struct residency *r, struct text *t)
{
    struct gone *g = &r->gone[r->n_gone++ % GONE_MAX];
    if (r->n_gone > GONE_MAX) r->lost_seq = g->seq;
    *g = (struct gone){t->id, ++r->seq};
    note_change(r, t, t->place, -1);
    TAILQ_REMOVE(&r->news, t, news);
    t->place = -1;
    r->n_held--;
}

static void held(struct residency *r, struct text *t, int place)
{
    if (t->place >= 0)
        TAILQ_REMOVE(&r->news, t, news);
    else
        r->n_held++;
    t->seq = ++r->seq;
    note_change(r, t, t->place, place);
    t->place = (int8_t)place;
    TAILQ_INSERT_TAIL(&r->news, t, news);
}

static struct text *text_take(struct residency *r)
{
    if (r->n < r->capacity) return &r->text[r->n++];
    struct text *t = TAILQ_FIRST(&r->age);
    if (t->place >= 0) went(r, t);
    LIST_REMOVE(t, chain);
    TAILQ_REMOVE(&r->age, t, age);
    return t;
}

int residency_create(uint32_t capacity, uint64_t epoch, struct residency **ret)
{
    uint32_t n_buckets = 1;
    struct residency *r = mem_zalloc(sizeof *r);
    ASSERT(capacity > 0);
    if (!r) return -ENOMEM;
    while (n_buckets < capacity)
        n_buckets *= 2;
    r->epoch = epoch;
    r->capacity = capacity;
    r->mask = n_buckets - 1;
    TAILQ_INIT(&r->age);
    TAILQ_INIT(&r->news);
    r->text = mem_alloc(capacity * sizeof *r->text);
    r->bucket = mem_zalloc(n_buckets * sizeof *r->bucket);
    (void)pthread_mutex_init(&r->m, NULL);
    if (!r->text || !r->bucket) {
        residency_destroy(r);
        return -ENOMEM;
    }
    *ret = r;
    return 0;
}

void residency_destroy(struct residency *r)
{
    if (!r) return;
    (void)pthread_mutex_destroy(&r->m);
    mem_free(r->text);
    mem_free(r->bucket);
    mem_free(r->change);
    mem_free(r);
}

void residency_note(struct residency *r, const struct residency_chunk *c)
{
    (void)pthread_mutex_lock(&r->m);
    struct bucket *in = text_bucket(r, c->text_id);
    struct text *t;
    LIST_FOREACH(t, in, chain)
    if (t->id == c->text_id) break;
    if (!t) {
        t = text_take(r);
        *t = (struct text){.id = c->text_id, .place = -1};
        LIST_INSERT_HEAD(in, t, chain);
    } else {
        TAILQ_REMOVE(&r->age, t, age);
    }
    TAILQ_INSERT_TAIL(&r->age, t, age);
    if (t->place >= 0 && !tier_key_same(&t->key, &c->key)) went(r, t); /* cut otherwise now */
    t->key = c->key;
    t->ns = c->ns;
    t->n_tok = c->n_tok;
    r->n_still = 0;
    (void)pthread_mutex_unlock(&r->m);
}

bool residency_sweep(struct residency *r, int (*where)(void *ctx, const struct tier_key *key),
                     void *ctx, uint32_t max, uint64_t moves)
{
    (void)pthread_mutex_lock(&r->m);
    uint64_t before = r->seq;
    if (moves != r->moves) r->n_still = 0;
    r->moves = moves;
    if (r->n_still >= 2 * (uint64_t)r->n) max = (max + STILL_PART - 1) / STILL_PART;
    if (max > r->n) max = r->n;
    r->n_still += max;
    for (uint32_t k = 0; k < max; k++) {
        struct text *t = &r->text[r->cursor++ % r->n];
        int place = where(ctx, &t->key);
        if (place < 0 && t->place >= 0)
            went(r, t);
        else if (place >= 0 && place != t->place)
            held(r, t, place);
        if (r->cursor >= r->n) r->cursor = 0;
        if (k % SWEEP_BATCH != SWEEP_BATCH - 1) continue;
        (void)pthread_mutex_unlock(&r->m);
        (void)pthread_mutex_lock(&r->m);
    }
    bool changed = r->seq != before;
    if (changed) r->n_still = 0;
    (void)pthread_mutex_unlock(&r->m);
    return changed;
}

int residency_remember(struct residency *r)
{
    (void)pthread_mutex_lock(&r->m);
    if (!r->change) {
        r->change = mem_alloc(RESIDENCY_CHANGES_MAX * sizeof *r->change);
        r->first_change = r->seq + 1;
    }
    const int rc = r->change ? 0 : -ENOMEM;
    (void)pthread_mutex_unlock(&r->m);
    return rc;
}

int residency_changes(struct residency *r, uint64_t since, struct residency_change *ret, size_t max)
{
    (void)pthread_mutex_lock(&r->m);
    const uint64_t oldest = r->seq < RESIDENCY_CHANGES_MAX ? 0 : r->seq - RESIDENCY_CHANGES_MAX + 1;
    const bool lost = since > r->seq || since + 1 < r->first_change || since + 1 < oldest;
    size_t n = 0;
    for (uint64_t seq = since + 1; !lost && seq <= r->seq && n < max; seq++)
        ret[n++] = r->change[seq % RESIDENCY_CHANGES_MAX];
    (void)pthread_mutex_unlock(&r->m);
    return lost ? -ESTALE : (int)n;
}

size_t residency_page(struct residency *r, uint32_t *cursor, struct residency_change *ret,
                      size_t max)
{
    size_t n = 0;
    (void)pthread_mutex_lock(&r->m);
    for (; *cursor < r->n && n < max; ++*cursor) {
        const struct text *t = &r->text[*cursor];
        if (t->place < 0) continue;
        ret[n++] = (struct residency_change){t->seq, t->key, t->ns, t->n_tok, -1, t->place};
    }
    (void)pthread_mutex_unlock(&r->m);
    return n;
}

uint64_t residency_seq(struct residency *r)
{
    (void)pthread_mutex_lock(&r->m);
    uint64_t seq = r->seq;
    (void)pthread_mutex_unlock(&r->m);
    return seq;
}

uint32_t residency_count(struct residency *r)
{
    (void)pthread_mutex_lock(&r->m);
    uint32_t n = r->n_held;
    (void)pthread_mutex_unlock(&r->m);
    return n;
}

/* As a share of what computing the tokens would take. */
static double cost_of(const struct residency_ask *a, const struct text *t)
{
    const struct residency_place *p = &a->place[t->place];
    double compute = a->ms_per_token * t->n_tok;
    if (t->place == 0) return 0;
    if (p->ms < 0 || compute <= 0) return COST_UNKNOWN;
    double cost = (p->ms + p->ms_per_token * t->n_tok) / compute;
    return cost < 1 ? cost : 1;
}

static char *put_number(char *end, uint64_t v, unsigned base)
{
    do
        *--end = "0123456789abcdef"[v % base];
    while (v /= base);
    return end;
}

/* Nearly all of them, perhaps tens of thousands at once on the loop: without printf. */
static int put_ram(const struct text *t, const char *name, struct buf *out)
{
    char line[64], *p = line + sizeof line;
    *--p = ' ';
    p = put_number(p, t->n_tok, 10);
    *--p = ' ';
    p = put_number(p, t->id, 16);
    *--p = '+';
    int rc = buf_add(out, p, (size_t)(line + sizeof line - p));
    if (rc == 0) rc = buf_adds(out, "0.000 ");
    if (rc == 0) rc = buf_adds(out, name);
    return rc < 0 ? rc : buf_addc(out, '\n');
}

static int put_text(const struct residency_ask *a, const struct text *t, struct buf *out)
{
    if ((size_t)t->place >= a->n_places) return 0;
    if (t->place == 0) return put_ram(t, a->place[0].name, out);
    return buf_addf(out, "+%llx %u %.3f %s\n", (unsigned long long)t->id, t->n_tok, cost_of(a, t),
                    a->place[t->place].name);
}

/* m held. */
static int format(struct residency *r, const struct residency_ask *a, struct buf *out)
{
    bool full = a->epoch != r->epoch || a->since > r->seq || a->since < r->lost_seq;
    uint64_t since = full ? 0 : a->since, n = r->n_gone < GONE_MAX ? r->n_gone : GONE_MAX;
    int rc = buf_addf(out, "@%llx %llu %s\n", (unsigned long long)r->epoch,
                      (unsigned long long)r->seq, full ? "full" : "delta");
    /* Departures first: what has come back since stands behind them. */
    for (uint64_t k = r->n_gone - n; rc == 0 && !full && k < r->n_gone; k++) {
        const struct gone *g = &r->gone[k % GONE_MAX];
        if (g->seq > since) rc = buf_addf(out, "-%llx\n", (unsigned long long)g->id);
    }
    const struct text *t;
    TAILQ_FOREACH_REVERSE(t, &r->news, texts, news)
    {
        if (rc < 0 || t->seq <= since) break;
        rc = put_text(a, t, out);
    }
    return rc;
}

int residency_format(struct residency *r, const struct residency_ask *a, struct buf *out)
{
    (void)pthread_mutex_lock(&r->m);
    int rc = format(r, a, out);
    (void)pthread_mutex_unlock(&r->m);
    return rc;
}
