/* fleet: what gateways and other routers learn of this worker: which texts it holds (feed.c,
 * events.c), what waits for its engine (load.c), and where it is (announce.c, with Redis as the
 * registry).
 *
 * Thread: as said at each. */
#ifndef WORKER_FLEET_FLEET_H
#define WORKER_FLEET_FLEET_H

#include <stdbool.h>
#include <stdint.h>

struct buf;
struct residency;
struct worker;
struct wk_announce;
struct wk_call;
struct wk_load;
struct wk_prompt;
struct wk_reader;
struct wk_subscriber;
struct wk_fleet {
    struct residency *residency; /* which texts are here: any thread */
    struct wk_load *load;        /* what waits here: any thread */
    /* loop */
    struct wk_reader *readers;         /* long polls that wait for news */
    struct wk_subscriber *subscribers; /* of events */
    struct wk_announce *announce;      /* NULL: not registered */
    uint64_t epoch, read_ns;           /* of this life; when a gateway asked last */
};

/* ---- feed.c: GET /admin/residents; loop ---- */
void wk_feed_get(struct worker *w, struct wk_call *c, const char *rest);
void wk_feed_tick(struct worker *w); /* every 250 ms, with a store */
void wk_feed_load(struct worker *w); /* answers the readers that wait for news of the load */
/* Any thread; ns: whose it is. */
void wk_feed_note(struct worker *w, const struct wk_prompt *p, const char *ns);

/* ---- events.c: GET /admin/events/kv; loop ---- */
void wk_events_get(struct worker *w, struct wk_call *c, const char *rest);
void wk_events_tick(struct worker *w); /* wk_feed_tick()'s */

/* ---- load.c; any thread ---- */
int wk_load_create(struct wk_load **ret);
void wk_load_destroy(struct wk_load *l);
/* A prompt's life: queued, its prefill begins, its first token (or it failed), its end. Each is
 * told once at most, none without the one before but the end, which may follow any. */
struct wk_load_item {
    double work_ms; /* predicted */
    enum { WK_LOAD_NONE, WK_LOAD_QUEUED, WK_LOAD_PREFILL, WK_LOAD_DECODE } stage;
    uint64_t begin_ns;
};
void wk_load_queued(struct wk_load *l, struct wk_load_item *i, double work_ms);
void wk_load_begin(struct wk_load *l, struct wk_load_item *i);
/* reused_ms: what its n_reused tokens that were held took; 0 tokens: nothing is learnt from it. */
void wk_load_first(struct wk_load *l, struct wk_load_item *i, double reused_ms, uint64_t n_reused);
void wk_load_end(struct wk_load *l, struct wk_load_item *i);
uint64_t wk_load_seq(struct wk_load *l); /* of the last change; never 0 */
/* docs/api.md, GET /admin/residents: the line "=SEQ …". token_ms: of a computed token. */
int wk_load_put(struct wk_load *l, double token_ms, unsigned slots, struct buf *out);

/* ---- announce.c; loop ---- */
int wk_announce_start(struct worker *w);  /* once it serves; no --advertise: nothing */
void wk_announce_tick(struct worker *w);  /* every 250 ms */
void wk_announce_leave(struct worker *w); /* at once, without waiting for it */
void wk_announce_end(struct worker *w);

#endif
