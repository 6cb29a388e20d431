/* api_reply: replies, stream frames and stop strings in OpenAI's shapes. Pure.
 *
 * The api_put_*() functions append to a buffer, which remembers a failure. Thread: any. */
#ifndef WORKER_API_API_REPLY_H
#define WORKER_API_API_REPLY_H

#include "base/buf.h"
#include "fusor/core/sample.h"

#include <stdbool.h>

/* ---- stop strings ---- */
struct api_stops {
    const char *const *s;
    const size_t *len;
    size_t n;
};
/* text[0, len) so far, the bytes from `from` on being new. 1: a stop string was found, *ret_safe is
 * where it begins; 0: text up to *ret_safe may be shown, the rest may be the start of one. */
int api_stop_scan(const struct api_stops *s, const char *text, size_t len, size_t from,
                  size_t *ret_safe);
/* The last bytes of the text that may be the beginning of a stop string. */
size_t api_stop_begun(const struct api_stops *s, const char *text, size_t len);

/* ---- replies ---- */
struct api_token { /* one generated token: its text is bytes [begin, end) of the choice's text */
    uint32_t begin, end;
    struct fus_picked picked;
};
typedef int (*api_bytes_fn)(void *ctx, int32_t id, const char **ret, size_t *ret_len);
struct api_head { /* what all frames and replies of one request share */
    bool chat, logprobs;
    const char *id, *model;
    int64_t created;
    int usage_null; /* stream with include_usage: earlier frames carry "usage":null */
    api_bytes_fn bytes;
    void *bytes_ctx;
};
struct api_span { /* a part of one choice to be sent */
    unsigned index;
    const char *text; /* of the whole choice; NULL in a finish frame */
    size_t begin, end;
    const struct api_token *tok; /* tokens of this part; used when logprobs */
    size_t n_tok;
    size_t chars;                /* characters before `begin`, for text_offset */
    const char *finish;          /* NULL = not finished */
    const struct api_said *said; /* what of the text is which; NULL: all of it is content */
};
struct api_call { /* of a function, or a piece of one */
    unsigned index;
    char id[32];
    const char *name; /* NULL: it was sent before, with the id */
    size_t name_len;
    const char *args;
    size_t args_len;
};
struct api_said { /* a whole answer, or what is new of it */
    bool delta;
    const char *content, *reasoning; /* NULL: none */
    size_t content_len, reasoning_len;
    const struct api_call *call;
    size_t n_call;
};
struct api_usage {
    uint64_t prompt, completion, prefix, reused, recomputed, written;
    uint64_t reasoning; /* tokens of the completion */
    uint64_t computed;  /* in the `kvblend` object only */
};
/* Stream frames, whole server-sent events. extra: complete `,"key":value` text or NULL. */
void api_put_frame_role(struct buf *out, const struct api_head *h, unsigned index);
void api_put_frame_text(struct buf *out, const struct api_head *h, const struct api_span *s);
void api_put_frame_said(struct buf *out, const struct api_head *h, const struct api_span *s);
void api_put_frame_finish(struct buf *out, const struct api_head *h, const struct api_span *s,
                          const struct buf *extra);
void api_put_frame_usage(struct buf *out, const struct api_head *h, const struct api_usage *u,
                         const struct buf *extra);
/* How far a prompt is: llama.cpp's `prompt_progress`, in a frame whose choice is empty. */
struct api_progress {
    uint32_t total, cache, processed; /* tokens; cache: of those processed, what was not computed */
    double ms, predicted_ms;          /* since it began, and until its end; predicted 0: unknown */
};
void api_put_frame_progress(struct buf *out, const struct api_head *h, unsigned index,
                            const struct api_progress *p);
size_t api_chars(const char *text, size_t len); /* UTF-8 characters */
/* The end of a list and of its reply: `],"usage":{…}`, extra, `}`. */
void api_put_end(struct buf *out, const struct api_usage *u, const struct buf *extra);
/* The whole non-stream reply. */
void api_put_reply(struct buf *out, const struct api_head *h, const struct api_span *s, size_t n,
                   const struct api_usage *u, const struct buf *extra);

#endif
