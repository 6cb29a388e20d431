/* mock_tier: a tier in memory that does what a test tells it, for tests of the store.
 *
 * One thread serves ops in order. Reads deliver parts one by one, as far as `part_limit` allows;
 * `hold_*` makes ops wait untouched, as a device that hangs. Fields are set through mock_set() and
 * counters awaited through mock_wait(), so that tests need no sleep. Thread: any. */
#ifndef TESTS_MOCK_TIER_H
#define TESTS_MOCK_TIER_H

#include "tiers/tier.h"

#include <pthread.h>

enum { MOCK_RECORDS = 512 };
struct mock_record {
    struct tier_key key;
    uint8_t *bytes; /* parts end to end; NULL = free */
    uint64_t size_bytes, ns_hash, expires_ms, created_ms, hits;
    double used_s;
    uint32_t n_tokens;
    enum tier_kind kind;
    bool pinned;
};
struct mock {
    struct tier tier;
    pthread_mutex_t m;
    pthread_cond_t changed;
    pthread_t thread;
    /* guarded by m */
    struct mock_record record[MOCK_RECORDS];
    struct tier_op *queue;
    /* What it does. */
    int hold_reads, hold_writes, closing;
    int fail_read, fail_write, refuse_read, refuse_write; /* statuses; refuse: from the call */
    int part_limit;                                       /* parts delivered so far, then waits */
    int flip_part, flip_at;                               /* part to damage when read; -1 none */
    /* What was done. */
    int reads, writes, removes, touches, done, parts, queued;
    uint64_t quota_ns, quota_bytes, capacity_bytes;
    enum evict_policy policy;
    size_t memory_bytes;
};
struct mock *mock_create(const char *name, bool remote); /* destroyed as a tier */
void mock_set(struct mock *m, int *field, int value);
int mock_get(struct mock *m, const int *field);
/* Until *counter >= at_least; fails the test after 60 s. */
void mock_wait(struct mock *m, const int *counter, int at_least);
int mock_has(struct mock *m, const struct tier_key *k);

#endif
