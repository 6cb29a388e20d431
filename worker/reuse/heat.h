/* heat: of the last requests, how each token of their prompts scored and which were recomputed, for
 * whoever looks at the operator's page.
 *
 * wk_heat_create() → wk_heat_watch() whenever somebody looks → for WATCH_S from then on
 * wk_heat_wanted(), and wk_heat_keep() on the engine thread → wk_heat_put() for an answer. While
 * nobody looks nothing is kept, and what was goes with the next request. Memory: HEAT_KEPT prompts,
 * a byte a token, five where the operator lets texts of the request's namespace be shown
 * (--show-text): of all others no token id is ever copied. Thread: any; the lock stands alone. */
#ifndef WORKER_REUSE_HEAT_H
#define WORKER_REUSE_HEAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct tok;
struct wk_heat;
struct wk_prompt;
/* show: whose texts may be shown, as operators write namespaces; "*": of all. Borrowed. */
int wk_heat_create(char *const *show, size_t n_show, struct wk_heat **ret);
void wk_heat_destroy(struct wk_heat *h);
void wk_heat_watch(struct wk_heat *h, uint64_t now_ns);
bool wk_heat_wanted(struct wk_heat *h, uint64_t now_ns);
/* heat: [p->n_tok] as fus_prefill_heat() has it, taken over. ns: of the request; NULL: of none.
 * Without memory it is not kept. */
void wk_heat_keep(struct wk_heat *h, const struct wk_prompt *p, const char *ns, uint8_t *heat);
/* `{"id":…,"prompts":[{"prompt":0,"tokens":n,"heat":"…","text":["…",…]}]}` of the request or reply
 * with that id: heat has two hexadecimal digits a token; text, a piece a token, is null where it
 * may not be shown. 1, 0 there is none of it, -ENOMEM. */
int wk_heat_put(struct wk_heat *h, const struct tok *t, const char *id, struct buf *out);

#endif
