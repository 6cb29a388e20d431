/* Checks ahead of readers: of what a tier brings, while the rest of it still arrives, and of what
 * was built here, when it is first looked up.
 *
 * A reader that queues work for a GPU has no time for it: half a GB of sums takes longer than the
 * blend that reads it. A reader that comes first still checks by itself, and a group that fails is
 * left to its reader, who reports it: so nothing depends on these threads, and a part that finds
 * the ring full is not queued. The ring's lock is below all others. */
#include "base/machine.h"
#include "tiers/store_load.h"

void ahead_queue(struct store *s, struct entry *e, uint32_t part)
{
    struct store_ahead *a = &s->checks.ahead;
    if (a->n_threads == 0) return;
    pthread_mutex_lock(&a->m);
    if (!a->closing && a->n < AHEAD_RING) {
        e->refs++;
        a->ring[(a->first + a->n++) % AHEAD_RING] = (struct ahead_part){e, part};
        pthread_cond_signal(&a->more);
    }
    pthread_mutex_unlock(&a->m);
}

void ahead_unread(struct store *s, struct entry *e)
{
    if (s->checks.ahead.n_threads == 0 || e->group_ok[e->layout.n_groups - 1] != GROUP_NEW) return;
    for (uint32_t i = 1; i < e->layout.n_parts; i++)
        ahead_queue(s, e, i);
}

static void check_part(const struct store *s, struct entry *e, uint32_t part)
{
    uint32_t lo, hi;
    record_part_groups(&e->layout, part, &lo, &hi);
    for (uint32_t g = lo; g < hi && !s->closing; g++) {
        uint8_t was = GROUP_NEW;
        if (e->group_ok[g] != GROUP_NEW) continue;
        if (group_check(s, e, g) < 0) return;
        (void)atomic_compare_exchange_strong(&e->group_ok[g], &was, GROUP_OK);
    }
}

static void *ahead_run(void *store)
{
    struct store *s = store;
    struct store_ahead *a = &s->checks.ahead;
    pthread_mutex_lock(&a->m);
    while (a->n > 0 || !a->closing) {
        if (a->n == 0) {
            pthread_cond_wait(&a->more, &a->m);
            continue;
        }
        const struct ahead_part p = a->ring[a->first];
        a->first = (a->first + 1) % AHEAD_RING;
        a->n--;
        pthread_mutex_unlock(&a->m);
        check_part(s, p.e, p.part);
        entry_unref(s, p.e);
        pthread_mutex_lock(&a->m);
    }
    pthread_mutex_unlock(&a->m);
    return NULL;
}

void ahead_start(struct store *s)
{
    struct store_ahead *a = &s->checks.ahead;
    const unsigned quarter = machine_cpus() / 4;
    const unsigned n = quarter < 1 ? 1 : quarter > AHEAD_THREADS_MAX ? AHEAD_THREADS_MAX : quarter;
    a->ring = mem_alloc(AHEAD_RING * sizeof *a->ring);
    while (a->ring && a->n_threads < n &&
           pthread_create(&a->thread[a->n_threads], NULL, ahead_run, s) == 0)
        a->n_threads++;
}

void ahead_stop(struct store *s)
{
    struct store_ahead *a = &s->checks.ahead;
    pthread_mutex_lock(&a->m);
    a->closing = true;
    pthread_cond_broadcast(&a->more);
    pthread_mutex_unlock(&a->m);
    for (unsigned i = 0; i < a->n_threads; i++)
        pthread_join(a->thread[i], NULL);
    mem_free(a->ring);
}
