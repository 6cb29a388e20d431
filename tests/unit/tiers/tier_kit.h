/* tier_kit: records and ops for tests of tiers.
 *
 * A record's bytes are a function of its number, so a reader needs no copy of what was written. A
 * call is an op with memory of its own that counts its callbacks: more than one on_done, a part
 * twice or after on_done, or part 0 not first are remembered in `broken`. Thread: any. */
#ifndef TESTS_TIER_KIT_H
#define TESTS_TIER_KIT_H

#include "tiers/tier.h"

#include <pthread.h>

enum { KIT_PARTS_MAX = 64 };
struct kit_rec {
    struct record_desc desc;
    struct record_layout layout;
    uint8_t *mem, *part[KIT_PARTS_MAX];
};
struct kit_geometry {
    uint32_t L, G, K, n_tokens;
};
/* Bytes that follow from `id`; page-aligned parts, end to end. */
void kit_make(struct kit_rec *r, uint64_t id, const char *ns, struct kit_geometry g);
/* Another version of it, n > 0: other rows, scores, and n contexts of 100 tokens. 0: as it is. */
void kit_revise(struct kit_rec *r, uint32_t n);
void kit_blank(struct kit_rec *r, uint64_t id, const char *ns,
               struct kit_geometry g); /* a reader's */
void kit_free(struct kit_rec *r);

struct kit_call {
    struct tier_op op;
    struct kit_rec *rec;
    pthread_mutex_t m;
    pthread_cond_t c;
    /* guarded by m */
    unsigned n_done, n_parts;
    int status;
    bool got[KIT_PARTS_MAX];
    const char *broken;
    /* Set before the call. */
    uint32_t cancel_at;               /* on_part of this one says no; UINT32_MAX = none */
    bool late_memory;                 /* parts above 0 get their memory in on_part(0) */
    void (*then)(struct kit_call *c); /* inside on_done, or NULL */
    uint8_t *pending[KIT_PARTS_MAX];
    void *ctx;
};
void kit_call_init(struct kit_call *c, struct kit_rec *r);
void kit_call_fini(struct kit_call *c);
void kit_call_again(struct kit_call *c);         /* ready for another op */
int kit_wait(struct kit_call *c);                /* its status; fails the test after 60 s */
unsigned kit_done(struct kit_call *c);           /* how often on_done ran */
int kit_read(struct tier *t, struct kit_rec *r); /* submit and wait, all parts */
int kit_write(struct tier *t, struct kit_rec *r);

#endif
