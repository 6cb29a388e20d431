/* Extents, size classes, slots, the index and who makes way. Memory only; guarded by the tier's m.
 *
 * Each class has an eviction order of its own, since only its own slots can help it; an extent
 * moves between classes when another class's next victim has rested much longer than our own
 * (memcached's automove). The array of slots of an extent is allocated when it gets its class,
 * after that nothing is. Records with an expiry are in one binary heap over all classes, so that
 * expired ones go before anything is evicted. */
#include "tiers/nvme/nvme_space.h"

#include "base/assert.h"
#include "base/mem.h"

#include <string.h>

/* chosen: a class takes another's extent when that one's coldest record has rested four times as
 * long as its own, and at least a second longer. */
enum { AUTOMOVE_FACTOR = 4, AUTOMOVE_MS = 1000, GHOSTS_MAX = 16384 /* per class */ };

uint64_t nvme_slot_off(const struct nvme_space *s, const struct nvme_slot *slot)
{
    const struct nvme_extent *e = slot->extent;
    return NVME_DATA_OFF + e->index * s->extent_bytes +
           (uint64_t)(slot - e->slot) * nvme_slot_bytes(slot);
}

/* ---- index ---- */

struct nvme_slot *nvme_space_find(const struct nvme_space *s, const struct tier_key *k)
{
    return (struct nvme_slot *)key_map_find(&s->index, k);
}

/* ---- heap of expiries ---- */

static void heap_put(struct nvme_space *s, size_t i, struct nvme_slot *slot)
{
    s->heap[i] = slot;
    slot->heap_at = (uint32_t)i + 1;
}

static void heap_up(struct nvme_space *s, size_t i, struct nvme_slot *slot)
{
    for (; i > 0 && s->heap[(i - 1) / 2]->expires_ms > slot->expires_ms; i = (i - 1) / 2)
        heap_put(s, i, s->heap[(i - 1) / 2]);
    heap_put(s, i, slot);
}

static void heap_down(struct nvme_space *s, size_t i, struct nvme_slot *slot)
{
    for (size_t c; (c = 2 * i + 1) < s->n_heap; i = c) {
        if (c + 1 < s->n_heap && s->heap[c + 1]->expires_ms < s->heap[c]->expires_ms) c++;
        if (s->heap[c]->expires_ms >= slot->expires_ms) break;
        heap_put(s, i, s->heap[c]);
    }
    heap_put(s, i, slot);
}

static void heap_remove(struct nvme_space *s, struct nvme_slot *slot)
{
    if (slot->heap_at == 0) return;
    size_t i = slot->heap_at - 1;
    struct nvme_slot *last = s->heap[--s->n_heap];
    slot->heap_at = 0;
    if (last == slot) return;
    if (i > 0 && s->heap[(i - 1) / 2]->expires_ms > last->expires_ms)
        heap_up(s, i, last);
    else
        heap_down(s, i, last);
}

/* ---- lists of free slots ---- */

static void extent_lists(struct nvme_space *s, struct nvme_extent *e)
{
    bool dirty = !TAILQ_EMPTY(&e->dirty), avail = dirty || !TAILQ_EMPTY(&e->free);
    if (dirty != e->in_dirty) {
        if (dirty)
            TAILQ_INSERT_TAIL(&s->dirty, e, dirty_link);
        else
            TAILQ_REMOVE(&s->dirty, e, dirty_link);
        e->in_dirty = dirty;
    }
    avail = avail && !e->retired;
    if (avail != e->in_avail) {
        if (avail)
            TAILQ_INSERT_TAIL(&e->class->avail, e, avail_link);
        else
            TAILQ_REMOVE(&e->class->avail, e, avail_link);
        e->in_avail = avail;
    }
}

static void put_free(struct nvme_space *s, struct nvme_slot *slot)
{
    struct nvme_extent *e = slot->extent;
    slot->state = slot->on_device ? NVME_DIRTY : NVME_FREE;
    if (slot->on_device)
        TAILQ_INSERT_TAIL(&e->dirty, slot, link);
    else
        TAILQ_INSERT_HEAD(&e->free, slot, link);
    extent_lists(s, e);
}

static void take_from_list(struct nvme_space *s, struct nvme_slot *slot)
{
    struct nvme_extent *e = slot->extent;
    if (slot->state == NVME_DIRTY)
        TAILQ_REMOVE(&e->dirty, slot, link);
    else
        TAILQ_REMOVE(&e->free, slot, link);
    extent_lists(s, e);
}

/* ---- life of a slot ---- */

static void extent_use(struct nvme_space *s, struct nvme_extent *e, int n)
{
    s->n_empty_extents -= e->n_used == 0;
    e->n_used += (uint32_t)n;
    s->n_empty_extents += e->n_used == 0;
}

void nvme_space_free(struct nvme_space *s, struct nvme_slot *slot)
{
    ASSERT(slot->state == NVME_WRITING || slot->state == NVME_ZOMBIE);
    ASSERT(slot->refs == 0);
    uint64_t bytes = nvme_slot_bytes(slot);
    quota_refund(&s->quota, slot->ns_hash, bytes);
    ASSERT(s->used_bytes >= bytes);
    s->used_bytes -= bytes;
    extent_use(s, slot->extent, -1);
    put_free(s, slot);
}

void nvme_space_drop(struct nvme_space *s, struct nvme_slot *slot, bool evicted)
{
    ASSERT(slot->state == NVME_READY);
    struct nvme_extent *e = slot->extent;
    if (slot->pinned) {
        slot->pinned = false;
        s->pinned_bytes -= nvme_slot_bytes(slot);
        e->n_pinned--;
    } else {
        evict_remove(e->class->evict, &slot->node, evicted);
    }
    key_map_remove(&s->index, &slot->node.map);
    heap_remove(s, slot);
    s->n_records--;
    e->n_ready--;
    s->evictions += evicted;
    slot->state = NVME_ZOMBIE;
    if (slot->refs == 0) nvme_space_free(s, slot);
}

void nvme_space_unref(struct nvme_space *s, struct nvme_slot *slot)
{
    ASSERT(slot->refs > 0);
    slot->refs--;
    if (slot->refs == 0 && slot->state == NVME_ZOMBIE) nvme_space_free(s, slot);
}

bool nvme_space_publish(struct nvme_space *s, struct nvme_slot *slot, const struct nvme_head *h,
                        uint64_t used_ms)
{
    ASSERT(slot->state == NVME_WRITING);
    struct nvme_slot *old = nvme_space_find(s, &h->key);
    bool pinned = old && old->pinned;
    if (old && old->restored == slot->restored && old->generation > h->generation) {
        nvme_space_free(s, slot);
        return false;
    }
    if (old) nvme_space_drop(s, old, false);
    slot->node.key = h->key;
    slot->node.size_bytes = nvme_slot_bytes(slot);
    slot->generation = h->generation;
    slot->created_ms = h->created_ms;
    slot->expires_ms = h->expires_ms;
    slot->used_ms = used_ms;
    slot->record_bytes = h->record_bytes;
    slot->n_tokens = h->n_tokens;
    slot->kind = (uint8_t)h->kind;
    slot->hits = 0;
    slot->on_device = true;
    slot->state = NVME_READY;
    slot->extent->n_ready++;
    s->n_records++;
    key_map_insert(&s->index, &slot->node.map);
    evict_insert(slot->extent->class->evict, &slot->node);
    if (slot->expires_ms) heap_up(s, s->n_heap++, slot);
    if (pinned) nvme_space_pin(s, slot, true);
    return true;
}

void nvme_space_hit(struct nvme_slot *slot, uint64_t now_ms)
{
    slot->used_ms = now_ms;
    slot->hits++;
    if (!slot->pinned) evict_hit(slot->extent->class->evict, &slot->node);
}

void nvme_space_pin(struct nvme_space *s, struct nvme_slot *slot, bool pinned)
{
    ASSERT(slot->state == NVME_READY);
    if (slot->pinned == pinned) return;
    struct nvme_extent *e = slot->extent;
    slot->pinned = pinned;
    if (pinned) {
        evict_remove(e->class->evict, &slot->node, false);
        s->pinned_bytes += nvme_slot_bytes(slot);
        e->n_pinned++;
    } else {
        evict_insert(e->class->evict, &slot->node);
        s->pinned_bytes -= nvme_slot_bytes(slot);
        e->n_pinned--;
    }
}

void nvme_space_expire(struct nvme_space *s, uint64_t now_ms)
{
    while (s->n_heap > 0 && s->heap[0]->expires_ms <= now_ms) {
        s->expired++;
        nvme_space_drop(s, s->heap[0], false);
    }
}

struct nvme_slot *nvme_space_take_dirty(struct nvme_space *s)
{
    struct nvme_extent *e = TAILQ_FIRST(&s->dirty);
    if (!e) return NULL;
    struct nvme_slot *slot = TAILQ_FIRST(&e->dirty);
    take_from_list(s, slot);
    slot->state = NVME_CLEANING;
    extent_use(s, e, 1); /* keeps the extent where it is */
    s->n_cleaning++;
    e->class->n_cleaning++;
    return slot;
}

void nvme_space_cleaned(struct nvme_space *s, struct nvme_slot *slot, bool ok)
{
    ASSERT(slot->state == NVME_CLEANING);
    s->n_cleaning--;
    slot->extent->class->n_cleaning--;
    extent_use(s, slot->extent, -1);
    if (ok) slot->on_device = false;
    put_free(s, slot);
}

/* ---- extents ---- */

static int order_create(const struct nvme_space *s, uint32_t slot_pages, enum evict_policy p,
                        struct evict **ret)
{
    uint64_t slot_bytes = (uint64_t)slot_pages * NVME_PAGE, ghosts = s->capacity_bytes / slot_bytes;
    return evict_create(p, slot_bytes, ghosts < GHOSTS_MAX ? (size_t)ghosts : GHOSTS_MAX, ret);
}

static int class_get(struct nvme_space *s, unsigned c, uint32_t slot_pages, struct nvme_class **ret)
{
    if (!s->class[c]) {
        struct nvme_class *k = mem_zalloc(sizeof *k);
        if (!k) return -ENOMEM;
        int r = order_create(s, slot_pages, s->policy, &k->evict);
        if (r < 0) {
            mem_free(k);
            return r;
        }
        k->slot_pages = slot_pages;
        TAILQ_INIT(&k->avail);
        s->class[c] = k;
    }
    ASSERT(s->class[c] -> slot_pages == slot_pages);
    *ret = s->class[c];
    return 0;
}

static void class_resized(struct nvme_class *c)
{
    uint64_t slots = c->n_slots ? c->n_slots : 1;
    evict_resize(c->evict, slots * c->slot_pages * NVME_PAGE);
}

/* The extent leaves its class; nothing may be in it. */
static void extent_release(struct nvme_space *s, struct nvme_extent *e)
{
    ASSERT(e->n_used == 0 && e->n_ready == 0);
    if (!e->class) return;
    if (e->in_avail) TAILQ_REMOVE(&e->class->avail, e, avail_link);
    if (e->in_dirty) TAILQ_REMOVE(&s->dirty, e, dirty_link);
    e->in_avail = e->in_dirty = false;
    e->class->n_slots -= e->n_slots;
    class_resized(e->class);
    mem_free(e->slot);
    e->slot = NULL;
    e->class = NULL;
    s->n_empty_extents--;
    s->n_free_extents++;
}

static int heap_reserve(struct nvme_space *s, size_t n)
{
    if (n <= s->heap_cap) return 0;
    struct nvme_slot **grown = mem_realloc(s->heap, 2 * n * sizeof(struct nvme_slot *));
    if (!grown) return -ENOMEM;
    s->heap = grown;
    s->heap_cap = 2 * n;
    return 0;
}

static size_t slots_in_all(const struct nvme_space *s)
{
    size_t n = 0;
    for (unsigned c = 0; c < NVME_CLASSES; c++)
        n += s->class[c] ? s->class[c]->n_slots : 0;
    return n;
}

/* The extent, free or empty, becomes one of the class. */
static int extent_assign(struct nvme_space *s, struct nvme_extent *e, struct nvme_class *c,
                         uint32_t epoch)
{
    uint32_t n = (uint32_t)(s->extent_bytes / ((uint64_t)c->slot_pages * NVME_PAGE));
    struct nvme_slot *slot = mem_zalloc(n * sizeof *slot);
    if (!slot || heap_reserve(s, slots_in_all(s) + n) < 0) {
        mem_free(slot);
        return -ENOMEM;
    }
    extent_release(s, e);
    e->class = c;
    e->slot = slot;
    e->n_slots = n;
    e->epoch = epoch;
    e->super_seq = s->super_seq;
    TAILQ_INIT(&e->free);
    TAILQ_INIT(&e->dirty);
    for (uint32_t i = 0; i < n; i++) {
        slot[i].extent = e;
        TAILQ_INSERT_TAIL(&e->free, &slot[i], link);
    }
    c->n_slots += n;
    class_resized(c);
    s->n_free_extents--;
    s->n_empty_extents++;
    extent_lists(s, e);
    return 0;
}

int nvme_space_assign(struct nvme_space *s, uint32_t extent, uint32_t slot_pages, uint32_t epoch)
{
    unsigned c;
    struct nvme_class *class;
    uint32_t pages = nvme_class_of(((uint64_t)slot_pages - 1) * NVME_PAGE, s->extent_bytes, &c);
    if (slot_pages == 0 || pages != slot_pages) return -EBADMSG;
    int r = class_get(s, c, slot_pages, &class);
    return r < 0 ? r : extent_assign(s, s->extent[extent], class, epoch);
}

static_assert(offsetof(struct nvme_slot, node) == 0, "a node is its slot");

static bool may_go(void *ns_hash, const struct evict_node *n)
{
    const struct nvme_slot *slot = (const struct nvme_slot *)n;
    return slot->refs == 0 && (!ns_hash || slot->ns_hash == *(const uint64_t *)ns_hash);
}

/* The class's next to go, of the namespace if one is given. */
static struct nvme_slot *coldest(struct nvme_class *c, const struct tier_key *incoming,
                                 uint64_t *ns_hash)
{
    return (struct nvme_slot *)evict_victim(c->evict, incoming, may_go, ns_hash, 0);
}

/* Drop all records of the extent. False, with nothing done, if something in it is in use. */
static bool extent_empty(struct nvme_space *s, struct nvme_extent *e, bool evicted)
{
    if (e->n_pinned > 0 || e->n_used != e->n_ready) return false;
    for (uint32_t i = 0; i < e->n_slots; i++)
        if (e->slot[i].refs > 0) return false;
    for (uint32_t i = 0; i < e->n_slots; i++)
        if (e->slot[i].state == NVME_READY) nvme_space_drop(s, &e->slot[i], evicted);
    return true;
}

/* An extent that holds nothing: a free one, else an empty one of another class. */
static struct nvme_extent *extent_spare(struct nvme_space *s)
{
    struct nvme_extent *empty = NULL;
    if (s->n_free_extents + s->n_empty_extents == 0) return NULL;
    for (uint32_t i = 0; i < s->n_extents; i++) {
        struct nvme_extent *e = s->extent[i];
        if (e->retired) continue;
        if (!e->class) return e;
        if (!empty && e->n_used == 0) empty = e;
        if (empty && s->n_free_extents == 0) break;
    }
    return empty;
}

/* The extent of the longest rested victim of the other classes, if it rests since before_ms. */
static struct nvme_extent *extent_steal(struct nvme_space *s, const struct nvme_class *mine,
                                        uint64_t before_ms)
{
    bool tried[NVME_CLASSES] = {false};
    for (;;) {
        struct nvme_slot *oldest = NULL;
        unsigned at = 0;
        for (unsigned c = 0; c < NVME_CLASSES; c++) {
            if (tried[c] || !s->class[c] || s->class[c] == mine) continue;
            struct nvme_slot *v = coldest(s->class[c], NULL, NULL);
            if (!v || v->used_ms > before_ms) continue;
            if (oldest && oldest->used_ms <= v->used_ms) continue;
            oldest = v;
            at = c;
        }
        if (!oldest) return NULL;
        struct nvme_extent *e = oldest->extent;
        if (!e->retired && extent_empty(s, e, true)) return e;
        tried[at] = true;
    }
}

static struct nvme_slot *class_take(struct nvme_space *s, struct nvme_class *c)
{
    struct nvme_extent *e = TAILQ_FIRST(&c->avail);
    if (!e) return NULL;
    struct nvme_slot *slot = TAILQ_FIRST(&e->free);
    if (!slot) slot = TAILQ_FIRST(&e->dirty);
    take_from_list(s, slot);
    return slot;
}

/* Room in the namespace by evicting of it: our own class first, as that frees a slot that fits. */
static bool quota_room(struct nvme_space *s, struct nvme_class *mine, uint64_t ns, uint64_t bytes)
{
    uint64_t over = quota_over(&s->quota, ns, bytes);
    if (over == UINT64_MAX) return false;
    while (over > 0) {
        struct nvme_slot *v = mine ? coldest(mine, NULL, &ns) : NULL;
        for (unsigned c = 0; !v && c < NVME_CLASSES; c++)
            if (s->class[c]) v = coldest(s->class[c], NULL, &ns);
        if (!v) return false;
        nvme_space_drop(s, v, true);
        over = quota_over(&s->quota, ns, bytes);
    }
    return true;
}

/* A slot of the class, by whatever has to go. */
static int slot_make(struct nvme_space *s, struct nvme_class *c, const struct tier_key *k,
                     uint64_t now_ms, struct nvme_slot **ret)
{
    struct nvme_slot *slot = class_take(s, c);
    if (slot) {
        *ret = slot;
        return 0;
    }
    if (c->n_cleaning > 0) return -EAGAIN; /* one is as good as free */
    struct nvme_extent *e = extent_spare(s);
    struct nvme_slot *own = e ? NULL : coldest(c, k, NULL);
    if (!e) {
        uint64_t before = UINT64_MAX;
        if (own) {
            uint64_t age = now_ms > own->used_ms ? now_ms - own->used_ms : 0;
            uint64_t want = AUTOMOVE_FACTOR * age + AUTOMOVE_MS;
            before = now_ms > want ? now_ms - want : 0;
        }
        e = extent_steal(s, c, before);
    }
    if (e) {
        uint64_t seq = s->super_seq + 1;
        int r = extent_assign(s, e, c, (uint32_t)seq);
        if (r < 0 && !own) return r;
        if (r == 0) {
            s->super_seq = e->super_seq = seq;
            own = NULL;
        }
    }
    if (own) nvme_space_drop(s, own, true);
    *ret = class_take(s, c);
    return *ret ? 0 : -ENOSPC;
}

int nvme_space_alloc(struct nvme_space *s, const struct nvme_head *h, uint64_t now_ms,
                     struct nvme_slot **ret, enum tier_reject *ret_why)
{
    unsigned class;
    struct nvme_class *c;
    struct nvme_slot *slot;
    uint32_t pages = nvme_class_of(h->record_bytes, s->extent_bytes, &class);
    *ret_why = TIER_REJECT_SIZE;
    if (pages == 0) return -ENOSPC;
    int r = class_get(s, class, pages, &c);
    if (r < 0) return r;
    uint64_t bytes = (uint64_t)pages * NVME_PAGE;
    nvme_space_expire(s, now_ms);
    *ret_why = TIER_REJECT_QUOTA;
    if (!quota_room(s, c, h->ns_hash, bytes)) return -ENOSPC;
    *ret_why = TIER_REJECT_FULL;
    r = slot_make(s, c, &h->key, now_ms, &slot);
    if (r < 0) return r;
    slot->state = NVME_WRITING;
    slot->restored = false;
    slot->ns_hash = h->ns_hash;
    quota_charge(&s->quota, slot->ns_hash, bytes);
    s->used_bytes += bytes;
    ASSERT(s->used_bytes <= s->capacity_bytes);
    extent_use(s, slot->extent, 1);
    *ret = slot;
    return 0;
}

void nvme_space_restore(struct nvme_space *s, struct nvme_slot *slot, const struct nvme_head *h)
{
    ASSERT(slot->state == NVME_FREE);
    take_from_list(s, slot);
    slot->state = NVME_WRITING;
    slot->on_device = slot->restored = true;
    slot->ns_hash = h->ns_hash;
    quota_charge(&s->quota, slot->ns_hash, nvme_slot_bytes(slot));
    s->used_bytes += nvme_slot_bytes(slot);
    extent_use(s, slot->extent, 1);
    (void)nvme_space_publish(s, slot, h, h->written_ms);
    if (h->generation >= s->generation) s->generation = h->generation + 1;
}

/* ---- the whole ---- */

int nvme_space_grow(struct nvme_space *s, uint32_t n_extents)
{
    struct nvme_extent **grown = mem_realloc(s->extent, (n_extents + 1) * sizeof(*grown));
    if (!grown) return -ENOMEM;
    s->extent = grown;
    uint32_t from = s->n_extents, i = from;
    for (; i < n_extents; i++) {
        struct nvme_extent *e = mem_zalloc(sizeof *e);
        if (!e) break;
        e->index = i;
        s->extent[i] = e;
    }
    if (i < n_extents) {
        while (i-- > from)
            mem_free(s->extent[i]);
        return -ENOMEM;
    }
    s->n_extents = n_extents;
    s->n_free_extents += n_extents - from;
    return 0;
}

int nvme_space_init(struct nvme_space *s, uint64_t capacity_bytes, uint64_t extent_bytes,
                    uint32_t n_extents, enum evict_policy policy)
{
    memset(s, 0, sizeof *s);
    s->capacity_bytes = capacity_bytes;
    s->extent_bytes = extent_bytes;
    s->policy = policy;
    s->generation = 1;
    TAILQ_INIT(&s->dirty);
    /* chosen: a bucket per 64 KiB, at most 32 MiB of them */
    uint64_t buckets = capacity_bytes >> 16 < 4 << 20 ? capacity_bytes >> 16 : 4 << 20;
    if (key_map_init(&s->index, buckets > 1024 ? buckets : 1024) < 0) return -ENOMEM;
    return nvme_space_grow(s, n_extents);
}

void nvme_space_fini(struct nvme_space *s)
{
    for (uint32_t i = 0; i < s->n_extents; i++) {
        mem_free(s->extent[i]->slot);
        mem_free(s->extent[i]);
    }
    for (unsigned c = 0; c < NVME_CLASSES; c++) {
        if (!s->class[c]) continue;
        evict_destroy(s->class[c] -> evict);
        mem_free(s->class[c]);
    }
    mem_free(s->extent);
    key_map_fini(&s->index);
    mem_free(s->heap);
    memset(s, 0, sizeof *s);
}

int nvme_space_set_policy(struct nvme_space *s, enum evict_policy p)
{
    struct evict *fresh[NVME_CLASSES] = {NULL};
    int r = 0;
    if ((unsigned)p >= EVICT_POLICY_COUNT) return -EINVAL;
    for (unsigned c = 0; c < NVME_CLASSES && r == 0; c++) {
        if (s->class[c]) r = order_create(s, s->class[c] -> slot_pages, p, &fresh[c]);
    }
    for (unsigned c = 0; c < NVME_CLASSES; c++) {
        if (r < 0) evict_destroy(fresh[c]);
        if (r < 0 || !s->class[c]) continue;
        struct evict *old = s->class[c]->evict;
        s->class[c]->evict = fresh[c];
        class_resized(s->class[c]);
        evict_move(old, fresh[c]);
        evict_destroy(old);
    }
    if (r == 0) s->policy = p;
    return r;
}

int nvme_space_set_quota(struct nvme_space *s, uint64_t ns_hash, uint64_t bytes)
{
    uint64_t used = 0;
    for (uint32_t i = 0; i < s->n_extents; i++) {
        struct nvme_extent *e = s->extent[i];
        for (uint32_t k = 0; e->class && k < e->n_slots; k++) {
            uint8_t state = e->slot[k].state;
            bool charged = state == NVME_WRITING || state == NVME_READY || state == NVME_ZOMBIE;
            if (charged && e->slot[k].ns_hash == ns_hash) used += nvme_slot_bytes(&e->slot[k]);
        }
    }
    int r = quota_set(&s->quota, ns_hash, bytes, used);
    if (r < 0) return r;
    (void)quota_room(s, NULL, ns_hash, 0); /* what is pinned or in use stays over for now */
    return 0;
}

uint64_t nvme_space_tail_ms(struct nvme_space *s)
{
    uint64_t oldest = 0;
    for (unsigned c = 0; c < NVME_CLASSES; c++) {
        struct nvme_slot *v = s->class[c] ? coldest(s->class[c], NULL, NULL) : NULL;
        if (v && (oldest == 0 || v->used_ms < oldest)) oldest = v->used_ms;
    }
    return oldest;
}

int nvme_space_retire(struct nvme_space *s, uint32_t n)
{
    for (uint32_t i = n; i < s->n_extents; i++)
        if (s->extent[i]->n_pinned > 0) return -EBUSY;
    for (uint32_t i = n; i < s->n_extents; i++) {
        struct nvme_extent *e = s->extent[i];
        e->retired = true;
        if (!e->class) continue;
        extent_lists(s, e);
        for (uint32_t k = 0; k < e->n_slots; k++)
            if (e->slot[k].state == NVME_READY) nvme_space_drop(s, &e->slot[k], true);
    }
    return 0;
}

void nvme_space_unretire(struct nvme_space *s, uint32_t n)
{
    for (uint32_t i = n; i < s->n_extents; i++) {
        s->extent[i]->retired = false;
        if (s->extent[i]->class) extent_lists(s, s->extent[i]);
    }
}

bool nvme_space_retired(const struct nvme_space *s, uint32_t n)
{
    for (uint32_t i = n; i < s->n_extents; i++)
        if (s->extent[i]->n_used > 0) return false;
    return true;
}

void nvme_space_cut(struct nvme_space *s, uint32_t n)
{
    while (s->n_extents > n) {
        struct nvme_extent *e = s->extent[s->n_extents - 1];
        extent_release(s, e);
        s->n_free_extents--;
        s->n_extents--;
        mem_free(e);
    }
}
