/* fleet: the workers this gateway can send requests to, their health and the models they serve.
 *
 * Each target is probed with GET /health (often while it is not ready, seldom when it is); once
 * that gives 200 its /v1/models is read and kept, so that model names are checked and listed
 * without asking anybody. A target is ready from then on until three probes in a row fail, or until
 * gw_fleet_lost() says that its process is gone.
 * Life cycle: gw_fleet_create() → gw_fleet_add()… → gw_fleet_start() → gw_fleet_destroy() (no calls
 * through its clients may be left).
 * Thread: loop. */
#ifndef GATEWAY_FLEET_H
#define GATEWAY_FLEET_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct gw_config;
struct gw_key;
struct http_client;
struct http_loop;

enum gw_target_state { GW_TARGET_DOWN, GW_TARGET_LOADING, GW_TARGET_READY };
struct gw_model {
    char *id;
    char *json; /* its object in /v1/models */
};
struct gw_target { /* read by others, written by fleet.c only, but for n_inflight */
    unsigned index;
    char *address;
    bool own; /* a process of this gateway: coming back is only a matter of time */
    enum gw_target_state state;
    bool suspect; /* a connection to it broke: not used before a probe has succeeded */
    struct http_client *client;
    unsigned n_inflight; /* requests sent to it and not ended: kept by relay.c */
    struct gw_model *model;
    size_t n_models;
    uint64_t ready_since_ns, last_ok_ns;
    struct gw_probe *probe;
};
struct gw_fleet_ops {
    void (*on_ready)(void *ctx, struct gw_target *t); /* became ready, or a suspicion was wrong */
    void (*on_lost)(void *ctx, struct gw_target *t);  /* was ready, is no more */
    /* A probe failed; silent_ms since the last success (or since gw_fleet_expect()). */
    void (*on_silent)(void *ctx, struct gw_target *t, uint64_t silent_ms);
};
struct gw_fleet;

int gw_fleet_create(struct http_loop *loop, const struct gw_config *c,
                    const struct gw_fleet_ops *ops, void *ctx, struct gw_fleet **ret);
int gw_fleet_add(struct gw_fleet *f, const char *address, bool own, struct gw_target **ret);
void gw_fleet_start(struct gw_fleet *f); /* begin to probe */
void gw_fleet_stop(struct gw_fleet *f);  /* no more probes; cancels the one under way */
void gw_fleet_destroy(struct gw_fleet *f);

size_t gw_fleet_count(const struct gw_fleet *f);
struct gw_target *gw_fleet_get(struct gw_fleet *f, size_t i);
unsigned gw_fleet_n_ready(const struct gw_fleet *f);
/* The least busy ready target that serves `model` (NULL: any); NULL when there is none. */
struct gw_target *gw_fleet_pick(struct gw_fleet *f, const char *model);
/* 1 a target may serve it (ready or not), 0 none does, -EAGAIN no target's models are known yet. */
int gw_fleet_knows(const struct gw_fleet *f, const char *model);
/* A target that is down may come back by itself: an own worker, or any still loading. */
bool gw_fleet_hopeful(const struct gw_fleet *f);
bool gw_fleet_unsure(const struct gw_fleet *f); /* a target is suspect: an answer is near */
const struct gw_model *gw_fleet_model(const struct gw_fleet *f, const char *id);
/* OpenAI's list object, of what the key may use; NULL: of all. */
int gw_fleet_list_models(const struct gw_fleet *f, const struct gw_key *key, struct buf *out);
void gw_fleet_suspect(struct gw_fleet *f, struct gw_target *t); /* probe it at once */
void gw_fleet_lost(struct gw_fleet *f, struct gw_target *t);    /* its process ended */
void gw_fleet_expect(struct gw_fleet *f, struct gw_target *t);  /* its process was started */
const char *gw_target_state_name(enum gw_target_state s);

#endif
