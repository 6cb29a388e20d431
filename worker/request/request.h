/* request: what routes start: generations (gen.c), warm-ups (warmup.c), tokenising (tokenize.c);
 * and the text work that they share with admin routes (prep.c).
 *
 * Thread: loop, where nothing else is said. */
#ifndef WORKER_REQUEST_REQUEST_H
#define WORKER_REQUEST_REQUEST_H

#include "fusor/text/chat.h"
#include "worker/answer/answer.h"
#include "worker/api/api.h"
#include "worker/call.h"
#include "worker/reuse/prompt.h"

struct gram;
struct gram_run;
struct seg_whys;
/* ---- prep.c; any thread ---- */
struct wk_prepare { /* of a parsed request */
    const struct worker *w;
    const struct api_req *r; /* its settings are effective: wk_settings() */
    const struct wk_hints *h;
    struct seg_whys *whys; /* a preview: filled, and nothing is learned; else NULL */
    struct api_err *e;     /* filled on failure */
};
/* Effective settings of a request, in r->kv: body, then headers. What is left open there is the
 * worker's or its controller's choice. */
int wk_settings(const struct worker *w, struct api_req *r, const struct wk_hints *h,
                struct api_err *e);
/* Render, tokenise and cut prompt `i` of the request (0 for chat). */
int wk_prepare(const struct wk_prepare *q, size_t i, struct wk_prompt *out);
struct wk_documents { /* rendered in front of the text of message msg */
    size_t msg;
    const char *text;
    size_t len;
};
/* d NULL: none. */
int wk_render_chat(const struct worker *w, const struct api_req *r, const struct wk_documents *d,
                   const char *lead, struct chat_out *out, struct api_err *e);
/* ---- tools.c; any thread ---- */
/* How the model writes calls and thoughts, from its template; at the start. */
void wk_speech_of(struct worker *w);
/* What reads an answer; it reads nothing where the request has no use for it. */
struct ans_how wk_answer_how(const struct worker *w, const struct api_req *r); /* borrows r */
bool wk_takes_text(const json_t *schema); /* a parameter's: nothing but strings meet it */
bool wk_answer_is_parsed(const struct ans_how *how);
/* Where the template cannot say it: tools and calls as text, in messages that the arena keeps.
 * msgs has room for one more; *ret_added: the first is new. */
int wk_tools_explain(const struct worker *w, const struct api_req *r, struct arena *a,
                     struct chat_msg *msgs, size_t *n, bool *ret_added);
/* Tokens that lie wholly within bytes [begin, end): *ret_tok0, returns their number. */
uint32_t wk_map_range(const struct tok_ids *ids, size_t begin, size_t end, uint32_t *ret_tok0);
/* Token ids a text will have inside a prompt: between line breaks. mem_free() the result. */
int wk_encode_chunk(const struct worker *w, const char *text, size_t len, int32_t **ret,
                    uint32_t *ret_n);

/* ---- format.c; any thread ---- */
struct wk_bound { /* texts that are held to a grammar; all NULL: there is none */
    struct gram *gram;
    struct gram_run *run;
};
struct wk_format {
    struct wk_bound form;  /* of the answer, from its beginning */
    struct wk_bound calls; /* from where the model has opened a call to its end */
    uint64_t *first;       /* tokens that the form begins with, and `opening`; NULL: the form's */
    int32_t opening;       /* the control token that begins a call instead */
    bool must;             /* the answer begins with a call, which the prompt has opened */
};
/* What n_texts answers must be: of the form that is asked for, or calls of the tools, or one of
 * both, as the model likes. What cannot be is refused by the field's name. */
int wk_format_open(const struct worker *w, const struct api_req *r, unsigned n_texts,
                   struct wk_format *ret, struct api_err *e);
void wk_format_close(struct wk_format *f);

/* ---- gen_out.c ---- */
/* How a request failed in the engine, as its client reads it. field: of the form; NULL: none. */
void wk_engine_error(const struct worker *w, int status, const char *field, struct api_err *e);

/* ---- gen.c ---- */
void wk_gen_post(struct worker *w, struct wk_call *c, const char *rest);
void wk_gens_tick(struct worker *w); /* every 250 ms */
void wk_gens_abort(struct worker *w);

/* ---- warmup.c: /v1/segments ---- */
void wk_warmups_post(struct worker *w, struct wk_call *c, const char *rest);
void wk_warmups_built(struct worker *w, const struct tier_key *key, int status);
void wk_segment_get(struct worker *w, struct wk_call *c, const char *id);
void wk_segment_delete(struct worker *w, struct wk_call *c, const char *id);
/* Of whatever namespace (admin), from one tier or from all (NULL). */
void wk_segment_drop(struct worker *w, struct wk_call *c, const char *id, const char *tier);
int wk_segment_id(struct wk_call *c, const char *id, struct tier_key *ret); /* <0: refused */
void wk_segment_absent(struct wk_call *c, const struct tier_key *k);

/* ---- tokenize.c: tasks; helper thread ---- */
int wk_tokenize(struct wk_task *t);
int wk_detokenize(struct wk_task *t);

#endif
