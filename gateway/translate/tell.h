/* tell: what both dialects' answers share on their way back from chat.
 *
 * An answer is a row of blocks: thoughts, text, calls of tools. tell.c reads the chat answer,
 * opens, feeds and closes them; a dialect says how each looks, as events of a stream and as a
 * whole. Texts stay the insides of JSON strings, as they came. Thread: any. */
#ifndef GATEWAY_TRANSLATE_TELL_H
#define GATEWAY_TRANSLATE_TELL_H

#include "base/jsonscan.h"
#include "base/net/sse.h"
#include "gateway/translate/translate.h"

#include <stdint.h>

enum tell_kind { TELL_NONE, TELL_THOUGHT, TELL_TEXT, TELL_CALL };
enum tell_finish { TELL_UNFINISHED, TELL_STOP, TELL_LENGTH, TELL_CALLS, TELL_FILTER };
enum { TELL_KEY_BYTES = 33 };

struct tell_block {
    enum tell_kind kind;
    int64_t index;       /* of a call, as chat counts them */
    struct buf text;     /* so far; a call's arguments */
    struct buf name, id; /* of a call: JSON strings */
};
struct tell_ops;
struct gw_told {
    const struct gw_asked *a;
    const struct tell_ops *ops;
    bool stream; /* events are written, else blocks are kept for the whole */
    bool began, ended, keeps;
    char key[TELL_KEY_BYTES]; /* of the answer's ids: hex digits */
    int64_t created_s;
    uint64_t n_events;
    struct sse_parser sse;
    struct buf *out;         /* of the call in hand */
    size_t event_at;         /* in it: where the event's data begins */
    struct tell_block block; /* the open one */
    unsigned n_blocks;       /* opened */
    size_t bytes;            /* of all texts */
    struct buf blocks;       /* closed ones as the dialect has them, comma separated */
    struct buf said, calls;  /* as a chat message: the text's inside; calls, comma separated */
    struct buf model, kvblend, stop_text; /* JSON, as they came */
    enum tell_finish finish;
    uint64_t n_prompt, n_cached, n_completion, n_reasoning;
};
struct tell_ops {
    bool collects;                    /* blocks are kept for the end of a stream, too */
    void (*begin)(struct gw_told *t); /* a stream's first events */
    void (*open)(struct gw_told *t);  /* t->block has begun */
    void (*feed)(struct gw_told *t, const struct json_val *more); /* a string */
    void (*close)(struct gw_told *t);
    int (*block)(struct gw_told *t,
                 struct buf *out);     /* t->block as a whole; -EBADMSG: it is none */
    void (*finish)(struct gw_told *t); /* a stream's last events */
    void (*whole)(struct gw_told *t);  /* an answer that is no stream */
    void (*fail)(struct gw_told *t, enum gw_error e, const struct json_val *message);
};
extern const struct tell_ops tell_responses, tell_messages;

/* {"type":TYPE, … }: its members follow, then the end. A value that was copied may be laid out in
 * lines, which would end the event: they become spaces, which is all that JSON allows there. */
void tell_event(struct gw_told *t, const char *type);
void tell_event_end(struct gw_told *t);
/* The open block's text as a JSON string. */
void tell_put_text(const struct buf *inside, struct buf *out);
void tell_put_model(const struct gw_told *t, struct buf *out); /* "model":… */
void tell_put_kvblend(const struct gw_told *t,
                      struct buf *out); /* ,"kvblend":… where there is one */

#endif
