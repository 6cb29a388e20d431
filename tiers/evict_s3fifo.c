/* S3-FIFO (Yang et al., SOSP'23): most records are used once, so a new one waits in a small FIFO of
 * a tenth of the capacity, and gets into the main one when it was hit there twice, or when it comes
 * back soon after it had to leave (the ghosts know). A hit only counts to three: no list changes.
 */
#include "tiers/evict_int.h"

enum { SMALL, MAIN };
enum { FREQ_MAX = 3, FREQ_STAYS = 2 }; /* cited: Algorithm 1, two bits per object */

static uint64_t small_target_bytes(const struct evict *e)
{
    return e->capacity_bytes / 10; /* cited: section 4.1 */
}

/* As many bytes of ghosts as the main queue may have. */
static void trim(struct evict *e)
{
    uint64_t max = e->capacity_bytes - small_target_bytes(e);
    while (e->ghosts.list[0].bytes > max)
        evict_ghosts_drop_oldest(&e->ghosts, 0);
}

static void s3fifo_insert(struct evict *e, struct evict_node *n)
{
    struct evict_ghost *g = evict_ghosts_find(&e->ghosts, &n->key);
    if (g) evict_ghosts_remove(&e->ghosts, g);
    evict_list_push(e, g ? MAIN : SMALL, n);
}

static void s3fifo_hit(struct evict *e, struct evict_node *n)
{
    (void)e;
    if (n->freq < FREQ_MAX) n->freq++;
}

static void s3fifo_remove(struct evict *e, struct evict_node *n, bool evicted)
{
    bool ghost = evicted && evict_list_of(n) == SMALL;
    evict_list_remove(e, n);
    if (!ghost) return;
    evict_ghosts_push(&e->ghosts, 0, n);
    trim(e);
}

/* From the tail of the small queue on: what was used moves to main. With `down_to_target` the
 * search ends once the queue is no longer too long, so that asking twice gives the same answer. */
static struct evict_node *small_victim(struct evict *e, struct evict_ask *a, bool down_to_target)
{
    struct evict_node *before;
    for (struct evict_node *n = e->list[SMALL].tail; n; n = before) {
        before = n->prev;
        if (n->freq < FREQ_STAYS) {
            int r = evict_ask_may(a, n);
            if (r != 0) return r > 0 ? n : NULL;
            continue;
        }
        evict_list_remove(e, n);
        evict_list_push(e, MAIN, n);
        n->freq = 0;
        if (down_to_target && e->list[SMALL].bytes < small_target_bytes(e)) return NULL;
    }
    return NULL;
}

/* From the tail of main on: what was used since it was last here goes round once more. Ends, since
 * each round takes one from the node's count. */
static struct evict_node *main_victim(struct evict *e, struct evict_ask *a)
{
    struct evict_node *before;
    for (struct evict_node *n = e->list[MAIN].tail; n; n = before) {
        before = n->prev;
        if (n->freq == 0) {
            int r = evict_ask_may(a, n);
            if (r != 0) return r > 0 ? n : NULL;
            continue;
        }
        evict_list_remove(e, n);
        evict_list_push(e, MAIN, n);
        n->freq--;
        if (!before) before = n; /* it was the last to look at */
    }
    return NULL;
}

static struct evict_node *s3fifo_victim(struct evict *e, struct evict_ask *a)
{
    struct evict_node *n = NULL;
    if (e->list[SMALL].tail && e->list[SMALL].bytes >= small_target_bytes(e))
        n = small_victim(e, a, true);
    if (!n) n = main_victim(e, a);
    if (!n) n = small_victim(e, a, false);
    /* What the last search moved to main has not been asked about. */
    return n ? n : main_victim(e, a);
}

const struct evict_ops evict_s3fifo_ops = {s3fifo_insert, s3fifo_hit, s3fifo_remove,
                                           s3fifo_victim, trim,       true};
