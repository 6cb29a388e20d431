/* translate: OpenAI's Responses and Anthropic's Messages, carried over the chat completions path.
 *
 * A request in one of these dialects becomes a chat request before anything else is known of it
 * (gw_asked), so that limits, queue, chunks and retries are the chat path's; the chat answer, whole
 * or a stream, becomes the dialect's on its way back (gw_told). Texts are copied as the JSON
 * strings that they are, never unescaped: they decode to the same bytes. What chat has no form for
 * (images, tools of other kinds) is refused by the name of its field; fields of no dialect go on as
 * they are, for the backend to judge. A conversation goes on from a `previous_response_id` out of
 * the store. Not here: HTTP, and upstreams that speak a dialect themselves.
 *
 * Life cycle: gw_asked_create() → gw_asked_translate() → gw_told_create() → gw_told_events() …
 * gw_told_end(), or gw_told_answer() → gw_told_free(), gw_asked_free(). A told borrows its asked.
 * Thread: any; one at a time. */
#ifndef GATEWAY_TRANSLATE_TRANSLATE_H
#define GATEWAY_TRANSLATE_TRANSLATE_H

#include "base/buf.h"
#include "gateway/front/error.h"

#include <stdbool.h>
#include <stddef.h>

enum gw_dialect { GW_CHAT, GW_RESPONSES, GW_MESSAGES };
enum {
    GW_TOLD_BYTES_MAX = 8 << 20, /* chosen: of an answer; a thousand times a usual one */
    GW_STORE_OWNER_BYTES = 640,
};
struct gw_store;

struct gw_asked {
    /* in */
    enum gw_dialect dialect;
    bool counts;            /* only the number of its tokens is asked for */
    struct gw_store *store; /* NULL: no conversation is kept */
    char owner[GW_STORE_OWNER_BYTES];
    /* out: the request as chat, or what is wrong with it */
    bool failed;
    enum gw_error error;
    char param[160], message[320];
    struct buf chat;
    /* for the answer */
    bool stream, keeps;
    struct buf model;    /* as it was asked for, a JSON string; empty: it names none */
    struct buf echo;     /* members of a response that repeat the request */
    struct buf messages; /* the conversation so far without instructions, where it is kept */
};
int gw_asked_create(enum gw_dialect d, struct gw_asked **ret);
/* Never fails but as `failed` says; the body is borrowed for the call. */
void gw_asked_translate(struct gw_asked *a, const char *body, size_t len);
size_t gw_asked_bytes(const struct gw_asked *a); /* that it holds beside the chat */
void gw_asked_free(struct gw_asked *a);          /* accepts NULL */

struct gw_told;
int gw_told_create(const struct gw_asked *a, struct gw_told **ret);
/* Whole events of a chat stream; what they become is appended, the end with [DONE]. -EBADMSG: they
 * are no chat stream; -EMSGSIZE: more than GW_TOLD_BYTES_MAX; -ENOMEM. gw_told_fail() is due
 * then. */
int gw_told_events(struct gw_told *t, const char *data, size_t len, struct buf *out);
/* The stream is over, with or without [DONE]. -EBADMSG: in the middle of its answer. */
int gw_told_end(struct gw_told *t, struct buf *out);
/* The events that end a stream with an error. */
int gw_told_fail(struct gw_told *t, enum gw_error e, const char *message, struct buf *out);
/* A whole chat completion, or where only a count was asked for, a tokenizer's answer. */
int gw_told_answer(struct gw_told *t, const char *json, size_t len, struct buf *out);
void gw_told_free(struct gw_told *t); /* accepts NULL */

/* A refusal in the dialect's shape: ours, or a backend's body, of whatever shape. */
int gw_dialect_error(enum gw_dialect d, enum gw_error e, const char *message, const char *param,
                     struct buf *out);
int gw_dialect_refusal(enum gw_dialect d, int status, const char *body, size_t len,
                       struct buf *out);

#endif
