/* engine_kit: clients of the engine over the kit's tiny model, and what it did. */
#ifndef TESTS_UNIT_FUSOR_ENGINE_KIT_H
#define TESTS_UNIT_FUSOR_ENGINE_KIT_H

#include "fusor/core/engine.h"
#include "tests/unit/fusor/blend_kit.h"

#include <pthread.h>

enum { MAX_NEW = 64, MAX_CHOICES = 4 };

/* One request as its owner sees it; `m` guards all below it. */
struct client {
    struct fus_engine *e;
    struct fus_job *job;
    struct fus_request req;
    int32_t tok[300];
    pthread_mutex_t m;
    pthread_cond_t changed;
    int32_t out[MAX_CHOICES][MAX_NEW];
    uint32_t n_out[MAX_CHOICES];
    int choice_end[MAX_CHOICES]; /* finish + 1 */
    int n_first, n_done;
    struct fus_event_done done;
    struct fus_report report;
    struct fus_times ms;
    bool last_end;         /* `end` of the last token */
    int stop_after;        /* on_token says stop at this token; 0 never */
    uint32_t cancel_after; /* fus_cancel() from inside on_token; 0 never */
    int32_t eog;
    int plan_error;
    int *n_planned;   /* counted up by on_plan; NULL: not */
    int turn;         /* what it then was */
    bool hold;        /* on_plan waits until this is cleared */
    uint32_t hold_at; /* if not 0: not it, but on_token at that token */
    bool planning;
    struct kit_chunk *chunk; /* on_plan adds it as a range at token 1 */
    struct fus_range range;
};
extern const struct fus_request_ops client_ops; /* what client_init() gives it */

void client_init(struct client *c, struct kit *k, struct fus_engine *e, uint64_t seed,
                 uint32_t n_tok, uint32_t max_new);
void client_fini(struct client *c);
void client_submit(struct client *c);
void client_wait(struct client *c); /* until it is done */
void client_wait_planning(struct client *c);
void client_wait_tokens(struct client *c, uint32_t n); /* or until it is done */
void client_let_go(struct client *c);                  /* of what it holds */

enum { UNITS_MAX = 20000 };
struct rig {
    struct kit k;
    struct fus_engine *e;
    uint32_t all;
    struct fus_engine_unit *unit; /* all that the engine has done, to look at when it has ended */
    size_t n_units;
};

void rig_open(struct rig *r, uint64_t kv_tokens, unsigned max_running, unsigned max_queue);
void rig_open_drafting(struct rig *r, uint64_t kv_tokens, unsigned max_running, unsigned max_queue,
                       unsigned draft_rows);
void rig_close(struct rig *r);

#endif
