/* The learner's memory.
 *
 * Budget: spaces start small (LEVEL0) and grow by four until SPACE_ENTRIES_MAX; before the total
 * would pass the budget, the least recently used space of the *owner who holds most* goes. So an
 * owner within its fair share loses nothing to others, whatever they send.
 *
 * Evidence is counted in texts, not in sightings: a text that was seen before, byte for byte (a
 * retry, the old turns of a conversation), adds nothing, and words that stand twice in one text say
 * nothing about where documents end. */
#include "segment/learn_int.h"

#include "base/assert.h"
#include "base/mem.h"

#include <string.h>
#include <xxhash.h>

static size_t tables_bytes(size_t n_sides)
{
    return n_sides * sizeof(struct side) + n_sides / 8 * sizeof(struct kept);
}

static void space_free(struct space *s)
{
    pthread_mutex_destroy(&s->m);
    mem_free(s->side);
    mem_free(s->kept);
    mem_free(s);
}

int seg_learner_create(size_t budget_bytes, struct seg_learner **ret)
{
    if (budget_bytes < SEG_LEARNER_BYTES_MIN) return -EINVAL;
    struct seg_learner *l = mem_zalloc(sizeof *l);
    if (!l) return -ENOMEM;
    l->budget = budget_bytes;
    pthread_mutex_init(&l->m, NULL);
    *ret = l;
    return 0;
}

void seg_learner_free(struct seg_learner *l)
{
    if (!l) return;
    while (l->spaces) {
        struct space *s = l->spaces;
        ASSERT(s->refs == 0);
        l->spaces = s->next;
        space_free(s);
    }
    pthread_mutex_destroy(&l->m);
    mem_free(l);
}

void seg_learner_get_stats(struct seg_learner *l, struct seg_learner_stats *ret)
{
    pthread_mutex_lock(&l->m);
    *ret = (struct seg_learner_stats){l->bytes,   l->budget,     l->n_spaces,
                                      l->n_texts, l->n_repeated, l->n_evicted};
    pthread_mutex_unlock(&l->m);
}

/* ---- spaces; the learner's lock is held ---- */

static size_t owner_of(const char *name)
{
    return (size_t)(strchrnul(name, SEG_SPACE_INNER) - name);
}

static bool same_owner(const struct space *a, const struct space *b)
{
    return a->owner_len == b->owner_len && memcmp(a->name, b->name, a->owner_len) == 0;
}

static size_t owner_bytes(const struct seg_learner *l, const struct space *of)
{
    size_t sum = 0;
    for (const struct space *s = l->spaces; s; s = s->next)
        if (same_owner(s, of)) sum += s->bytes;
    return sum;
}

/* The oldest idle space of the owner with most bytes; NULL when all his are in use. */
static struct space **victim_of(struct seg_learner *l)
{
    const struct space *fattest = NULL;
    size_t most = 0;
    for (const struct space *s = l->spaces; s; s = s->next) {
        size_t n = owner_bytes(l, s);
        if (n > most) {
            most = n;
            fattest = s;
        }
    }
    struct space **victim = NULL;
    for (struct space **p = &l->spaces; *p; p = &(*p)->next)
        if ((*p)->refs == 0 && same_owner(*p, fattest) && (!victim || (*p)->used < (*victim)->used))
            victim = p;
    return victim;
}

static bool make_room(struct seg_learner *l, size_t bytes)
{
    while (l->bytes + bytes > l->budget) {
        struct space **p = victim_of(l);
        if (!p) return false;
        struct space *s = *p;
        *p = s->next;
        l->bytes -= s->bytes;
        l->n_spaces--;
        l->n_evicted++;
        space_free(s);
    }
    return true;
}

static struct space *space_create(struct seg_learner *l, const char *name, size_t len)
{
    size_t bytes = sizeof(struct space) + len + 1 + tables_bytes(LEVEL0);
    if (!make_room(l, bytes)) return NULL;
    struct space *s = mem_zalloc(sizeof *s + len + 1);
    if (!s) return NULL;
    s->side = mem_zalloc(LEVEL0 * sizeof *s->side);
    s->kept = mem_zalloc(LEVEL0 / 8 * sizeof *s->kept);
    pthread_mutex_init(&s->m, NULL);
    if (!s->side || !s->kept) {
        space_free(s);
        return NULL;
    }
    s->n_sides = LEVEL0;
    s->n_kept = LEVEL0 / 8;
    s->bytes = bytes;
    s->owner_len = owner_of(name);
    memcpy(s->name, name, len + 1);
    s->next = l->spaces;
    l->spaces = s;
    l->bytes += bytes;
    l->n_spaces++;
    return s;
}

int learn_open(struct seg_learner *l, const char *name, struct space **ret)
{
    size_t len = strlen(name);
    if (len > SPACE_NAME_MAX) return 0;
    pthread_mutex_lock(&l->m);
    struct space *s = l->spaces;
    while (s && strcmp(s->name, name) != 0)
        s = s->next;
    if (!s) s = space_create(l, name, len);
    if (s) {
        s->refs++;
        s->used = ++l->clock;
        *ret = s;
    }
    pthread_mutex_unlock(&l->m);
    return s ? 1 : 0;
}

void learn_close(struct seg_learner *l, struct space *s)
{
    pthread_mutex_lock(&l->m);
    ASSERT(s->refs > 0);
    s->refs--;
    pthread_mutex_unlock(&l->m);
}

void learn_lock(struct space *s)
{
    pthread_mutex_lock(&s->m);
}

void learn_unlock(struct space *s)
{
    pthread_mutex_unlock(&s->m);
}

/* ---- tables; the space's lock is held ---- */

static struct side *bucket(const struct space *s, uint64_t key)
{
    return s->side + ((key >> 20) & (s->n_sides / WAYS - 1)) * WAYS;
}

static struct side *side_find(const struct space *s, uint64_t key)
{
    struct side *b = bucket(s, key);
    for (int i = 0; i < WAYS; i++)
        if (b[i].seen && b[i].key == key) return &b[i];
    return NULL;
}

/* A place for a new key: a free one, else the oldest. */
struct side *learn_side_place(struct space *s, uint64_t key)
{
    struct side *b = bucket(s, key), *old = b;
    for (int i = 0; i < WAYS; i++) {
        if (!b[i].seen) {
            s->n_used++;
            return &b[i];
        }
        if (s->clock - b[i].stamp > s->clock - old->stamp) old = &b[i];
    }
    return old;
}

/* Four times the room, when the budget has it; the entries move. */
void learn_grow(struct seg_learner *l, struct space *s)
{
    if (s->n_used <= s->n_sides / 2) return;
    size_t n = s->n_sides * 4, more = tables_bytes(n) - tables_bytes(s->n_sides);
    if (n > SPACE_ENTRIES_MAX) return;
    pthread_mutex_lock(&l->m);
    bool ok = make_room(l, more); /* this space is in use, so it does not go itself */
    if (ok) {
        l->bytes += more;
        s->bytes += more;
    }
    pthread_mutex_unlock(&l->m);
    if (!ok) return;
    struct side *old = s->side, *side = mem_zalloc(n * sizeof *side);
    struct kept *old_kept = s->kept, *kept = mem_zalloc(n / 8 * sizeof *kept);
    if (!side || !kept) {
        mem_free(side);
        mem_free(kept);
        pthread_mutex_lock(&l->m);
        l->bytes -= more;
        s->bytes -= more;
        pthread_mutex_unlock(&l->m);
        return;
    }
    size_t n_old = s->n_sides, n_old_kept = s->n_kept;
    s->side = side;
    s->kept = kept;
    s->n_sides = n;
    s->n_kept = n / 8;
    s->n_used = 0;
    for (size_t i = 0; i < n_old; i++)
        if (old[i].seen) *learn_side_place(s, old[i].key) = old[i];
    for (size_t i = 0; i < n_old_kept; i++)
        if (old_kept[i].sightings) learn_kept_move(s, &old_kept[i]);
    mem_free(old);
    mem_free(old_kept);
}

unsigned learn_text(struct seg_learner *l, struct space *s, uint64_t text_print, unsigned cut,
                    bool dry)
{
    const uint64_t print = text_print & ~(uint64_t)(TEXT_CUT | TEXT_TIMES);
    uint64_t *at = &s->text[(print >> 20) % TEXTS], past;
    learn_lock(s);
    past = *at ^ print;
    if (past > (TEXT_CUT | TEXT_TIMES)) past = 0;
    if (!dry) *at = print | past | cut;
    if (!dry && !cut && (past & TEXT_TIMES) < TEXT_TIMES) *at += 1;
    learn_unlock(s);
    if (cut) return (unsigned)past;
    pthread_mutex_lock(&l->m);
    l->n_texts += !dry && !past;
    l->n_repeated += !dry && past;
    pthread_mutex_unlock(&l->m);
    return (unsigned)past;
}

/* ---- gaps like it ---- */

static struct opening *openings(struct space *s, uint32_t key)
{
    return s->opening + (key >> 8) % (OPENINGS / WAYS) * WAYS;
}

/* A word that nearly all pieces behind it make a boundary of is a marker that no preset knows. */
static bool marks(const struct opening *o)
{
    return o->n_cut >= MARKS_LEAST && 4 * o->n_cut >= 3 * (o->n_cut + o->n_join + 2);
}

static float share(double cut, double join)
{
    return (float)((cut + 1) / (cut + join + 2));
}

/* Share of boundaries among the decided gaps in front of this word, when it is a marker; else among
 * those of this form; -1 while there are too few. */
static float prior_of(struct space *s, const struct gap *x)
{
    const struct opening *b = openings(s, x->opens);
    for (int i = 0; i < WAYS && x->opens; i++)
        if (b[i].key == x->opens && marks(&b[i])) return share(b[i].n_cut, b[i].n_join);
    uint32_t cut = s->n_cut[x->form], join = s->n_join[x->form];
    return cut + join < PRIOR_LEAST ? -1 : share(cut, join);
}

static void halve_late(uint16_t *a, uint16_t *b)
{
    if (*a < COUNT_MAX && *b < COUNT_MAX) return;
    *a /= 2;
    *b /= 2;
}

/* Is this word a marker, this gap included? */
static bool count_opening(struct space *s, const struct gap *x, bool cut)
{
    struct opening *b = openings(s, x->opens), *o = b;
    for (int i = 0; i < WAYS; i++) {
        if (b[i].key == x->opens) {
            o = &b[i];
            break;
        }
        if (b[i].n_cut + b[i].n_join < o->n_cut + o->n_join) o = &b[i];
    }
    if (o->key != x->opens) *o = (struct opening){.key = x->opens};
    if (o->last != x->next) *(cut ? &o->n_cut : &o->n_join) += 1;
    o->last = x->next;
    halve_late(&o->n_cut, &o->n_join);
    return marks(o);
}

/* What a marker explains says nothing about the other gaps of this form. */
static void count_gap(struct space *s, const struct gap *x, bool cut)
{
    if (x->opens && count_opening(s, x, cut)) return;
    uint32_t *n = cut ? &s->n_cut[x->form] : &s->n_join[x->form];
    if (++*n < 1u << 20) return;
    s->n_cut[x->form] /= 2;
    s->n_join[x->form] /= 2;
}

/* ---- evidence ---- */

/* The widest window that is known decides; one that stands in a text twice says nothing. */
static struct gap_side look_side(const struct space *s, const uint64_t *key, uint32_t neighbour)
{
    struct gap_side r = {0};
    for (int k = 0; k < GAP_WIDTHS; k++) {
        const struct side *e = side_find(s, key[k]);
        if (!e && k > 0) break; /* what is unknown at 256 bytes is unknown at 1024 */
        if (!e) continue;
        r.blur = e->repeated;
        r.seen = e->repeated ? 0 : e->seen;
        r.turns = e->repeated ? 0 : (uint8_t)(e->turns + (e->neighbour != neighbour));
        r.n = (uint8_t)__builtin_popcount(e->sketch | 1u << (neighbour & 7));
        r.moved = e->neighbour == neighbour ? e->moved : 0;
        r.known = (uint8_t)(k + 1);
        r.news = e->news;
    }
    return r;
}

/* Both sides were next to each other before, as far as they say anything. */
static bool familiar(const struct gap *x)
{
    bool known = (x->l.seen || x->l.blur) && (x->r.seen || x->r.blur) && (x->l.seen || x->r.seen);
    return known && x->l.turns == 0 && x->r.turns == 0;
}

void learn_look(struct space *s, struct gaps *g)
{
    bool moved = false; /* the run that we are in came in other company than before */
    for (size_t from = 0; from < g->n; from += LEARN_BATCH) {
        size_t to = g->n - from > LEARN_BATCH ? from + LEARN_BATCH : g->n;
        learn_lock(s);
        for (size_t i = from; i < to; i++) {
            struct gap *x = &g->gap[i];
            if (i + 8 < to) {
                __builtin_prefetch(bucket(s, g->gap[i + 8].left[0]));
                __builtin_prefetch(bucket(s, g->gap[i + 8].right[0]));
            }
            if (i > 0) x->l = look_side(s, x->left, x->next);
            if (i + 1 < g->n) x->r = look_side(s, x->right, x->prev);
            x->moved = x->l.moved > x->r.moved ? x->l.moved : x->r.moved;
            x->prior = prior_of(s, x);
            x->together = moved && familiar(x);
            if (!familiar(x)) moved = x->r.turns > 0;
        }
        learn_unlock(s);
    }
}

static struct side *add_side(struct space *s, uint64_t key, uint32_t neighbour, uint32_t now)
{
    struct side *e = side_find(s, key);
    if (!e) {
        e = learn_side_place(s, key);
        *e = (struct side){.key = key, .neighbour = neighbour, .stamp = now, .seen = 1};
        e->sketch = (uint8_t)(1u << (neighbour & 7));
        return e;
    }
    if (e->stamp == now) { /* twice in this text */
        e->repeated |= e->neighbour != neighbour;
        return e;
    }
    e->stamp = now;
    e->repeated = false;
    e->seen++;
    if (e->neighbour != neighbour) {
        e->turns++;
        e->moved = 0;
    }
    e->neighbour = neighbour;
    e->sketch |= (uint8_t)(1u << (neighbour & 7));
    if (e->seen >= COUNT_MAX) {
        e->seen /= 2;
        e->turns /= 2;
    }
    return e;
}

void learn_add(struct seg_learner *l, struct space *s, const struct gaps *g)
{
    learn_lock(s);
    uint32_t now = ++s->clock;
    for (size_t i = 0; i < g->n; i++) {
        const struct gap *x = &g->gap[i];
        if (i % LEARN_BATCH == LEARN_BATCH - 1) {
            learn_unlock(s);
            learn_lock(s);
        }
        if (x->form == FORM_KNOWN) continue; /* a place that was looked up, not read */
        learn_grow(l, s);
        for (int k = 0; k < GAP_WIDTHS; k++) {
            struct side *left = x->left[k] ? add_side(s, x->left[k], x->next, now) : NULL;
            if (left && x->together) left->moved += left->moved < 255;
            if (left && g->still) left->news = x->r.known > 1 ? 0 : left->news + (left->news < 255);
            struct side *right = i + 1 < g->n ? add_side(s, x->right[k], x->prev, now) : NULL;
            if (right && x->together) right->moved += right->moved < 255;
        }
        if (!g->still && (x->together || x->verdict == GAP_CUT))
            count_gap(s, x, x->verdict == GAP_CUT);
    }
    learn_unlock(s);
}

/* ---- kept texts ---- */

static struct kept *kept_bucket(const struct space *s, uint64_t start)
{
    return s->kept + ((start >> 20) & (s->n_kept / WAYS - 1)) * WAYS;
}

void learn_kept_move(struct space *s, const struct kept *k)
{
    struct kept *b = kept_bucket(s, k->start);
    for (int i = 0; i < WAYS; i++)
        if (!b[i].sightings) {
            b[i] = *k;
            return;
        }
}

void learn_keep(struct seg_learner *l, struct space *s, const char *text, size_t len, bool sure)
{
    if (len < KEPT_WINDOW || len > KEPT_BYTES_MAX) return;
    uint64_t start = XXH3_64bits(text, KEPT_WINDOW), all = XXH3_64bits(text, len);
    learn_lock(s);
    struct kept *b = kept_bucket(s, start), *at = b;
    bool found = false;
    for (int i = 0; i < WAYS && !found; i++) {
        if (b[i].sightings && b[i].start == start && b[i].len == len && b[i].all == all) {
            at = &b[i];
            found = true;
        } else if (at->sightings &&
                   (!b[i].sightings || s->clock - b[i].stamp > s->clock - at->stamp)) {
            at = &b[i];
        }
    }
    if (!found) *at = (struct kept){start, all, (uint32_t)len, s->clock, 0};
    at->stamp = s->clock;
    if (at->sightings < 250) at->sightings++;
    if (sure && at->sightings < 2) at->sightings = 2;
    learn_unlock(s);
}

size_t learn_match(struct space *s, const char *text, size_t at, size_t end, size_t *work)
{
    if (end - at < KEPT_WINDOW) return 0;
    uint64_t start = XXH3_64bits(text + at, KEPT_WINDOW);
    const struct kept *b = kept_bucket(s, start);
    size_t best = 0;
    for (int i = 0; i < WAYS; i++) {
        if (b[i].sightings < 2 || b[i].start != start || b[i].len > end - at || b[i].len <= best ||
            b[i].len > *work)
            continue;
        *work -= b[i].len;
        if (XXH3_64bits(text + at, b[i].len) == b[i].all) best = b[i].len;
    }
    return best;
}
