/* api: OpenAI-shaped requests in, OpenAI-shaped JSON out. Pure: no sockets, engine or store.
 *
 * api_parse() turns a request body into struct api_req, or an api_err that names the field.
 * Unknown fields are accepted; fields that would change the answer and are not built are refused by
 * name. The api_put_*() functions append reply objects to a buffer, which remembers a failure.
 * Texts of a request borrow from its JSON tree or arena and live until api_req_fini().
 * Wire rules: research notes on OpenAI's recorded exchanges; the reference is docs/api.md.
 * Thread: any. */
#ifndef WORKER_API_API_H
#define WORKER_API_API_H

#include "base/buf.h"
#include "base/mem.h"
#include "fusor/core/core.h"
#include "fusor/core/sample.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    API_DEPTH_MAX = 64, /* JSON nesting; chosen: tools' schemas stay below 20 */
    API_STOPS_MAX = 16, /* OpenAI takes 4, vLLM any number */
    API_STOP_BYTES_MAX = 1024,
    API_PROMPTS_MAX = 64, /* list prompts of one request */
    API_MESSAGES_MAX = 4096,
    API_BIAS_MAX = 4096,
    API_STOP_IDS_MAX = 64,
    API_TTFT_MS_MAX = 86400000,
};

/* ---- errors ---- */
enum api_retry { API_RETRY_DEFAULT, API_RETRY_NO, API_RETRY_YES }; /* x-should-retry */
struct api_err {
    int status; /* HTTP; 0 = none */
    const char *type, *code;
    char param[64]; /* "" = null */
    char msg[320];
    unsigned retry_after_s; /* 0 = no header */
    enum api_retry retry;
};
/* Fill e and return -EINVAL, so that callers can return it. */
int api_err_set(struct api_err *e, int status, const char *type, const char *code,
                const char *param, const char *fmt, ...) __attribute__((format(printf, 6, 7)));
#define API_INVALID "invalid_request_error"
/* {"error":{"message","type","param","code"}} */
void api_put_error(struct buf *out, const struct api_err *e);

/* ---- requests ---- */
/* auto, full, prefix, reuse or blend: 1 found, 0 unknown. */
int api_mode_parse(const char *s, enum pol_strategy *ret);

enum api_part_kind { API_PART_AUTO, API_PART_CHUNK, API_PART_GLUE };
struct api_part { /* bytes [begin, end) of the message's joined text */
    size_t begin, end;
    enum api_part_kind kind;
};
struct api_msg {
    const char *role;
    const char *text; /* parts joined by "\n" */
    size_t len;
    struct api_part *part; /* n_part == 0: content was one string */
    size_t n_part;
};
struct api_prompt {   /* /v1/completions */
    const char *text; /* NULL: token ids */
    size_t len;
    int32_t *ids;
    size_t n_ids;
};
struct api_doc {
    const char *title, *text; /* title NULL = none */
    size_t title_len, len;
};
struct api_range { /* kvblend.segments */
    uint32_t msg;
    size_t begin, end;
};
struct api_kvblend {
    enum pol_strategy mode;     /* POL_AUTO = not given */
    enum pol_strategy strategy; /* POL_AUTO = not given */
    bool explain, store;
    double ratio, min_ratio, max_ttft_ms; /* -1 = not given */
    const char *ns, *separator;           /* NULL = not given */
    struct api_range *range;
    size_t n_range;
};
struct api_req {
    struct arena arena;
    json_t *root;
    bool chat;         /* else /v1/completions */
    const char *model; /* NULL = not named */
    struct api_msg *msg;
    size_t n_msg;
    struct api_prompt *prompt;
    size_t n_prompt;
    struct api_doc *doc;
    size_t n_doc;
    struct api_kvblend kv;
    bool stream, include_usage, echo, ignore_eos;
    bool add_generation_prompt; /* default true */
    unsigned n;
    int64_t max_tokens; /* -1 = not given */
    uint32_t min_tokens;
    bool logprobs; /* n_logprobs in sampling */
    bool has_seed;
    struct fus_sampling sampling;
    const char **stop;
    size_t *stop_len;
    size_t n_stop;
    int32_t *stop_id;
    size_t n_stop_id;
};
struct api_limits {
    size_t n_vocab; /* bound of token ids */
    unsigned n_max; /* choices of one request */
};
/* 0, -EINVAL with *e filled, -ENOMEM (e: 500). out is zeroed first; api_req_fini() also after a
 * failure. */
int api_parse(const char *body, size_t len, bool chat, const struct api_limits *lim,
              struct api_req *out, struct api_err *e);
void api_req_fini(struct api_req *r);
/* Parse any JSON object body within the depth limit; the caller json_decref()s. */
int api_load_object(const char *body, size_t len, json_t **ret, struct api_err *e);
/* messages[] of a body into r (arena must be initialised). */
int api_parse_messages(struct api_req *r, const json_t *messages, struct api_err *e);
int api_parse_documents(struct api_req *r, const json_t *docs, struct api_err *e);
int api_parse_kvblend(struct api_req *r, const json_t *o, struct api_err *e);

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
    const char *text; /* of the whole choice */
    size_t begin, end;
    const struct api_token *tok; /* tokens of this part; used when logprobs */
    size_t n_tok;
    size_t chars;       /* characters before `begin`, for text_offset */
    const char *finish; /* NULL = not finished */
};
struct api_usage {
    uint64_t prompt, completion, prefix, reused, recomputed, written;
};
void api_put_usage(struct buf *out, const struct api_usage *u); /* the object */
/* Stream frames, JSON only. extra: complete `,"key":value` text or NULL. */
void api_put_frame_role(struct buf *out, const struct api_head *h, unsigned index);
void api_put_frame_text(struct buf *out, const struct api_head *h, const struct api_span *s);
void api_put_frame_finish(struct buf *out, const struct api_head *h, const struct api_span *s,
                          const struct buf *extra);
void api_put_frame_usage(struct buf *out, const struct api_head *h, const struct api_usage *u,
                         const struct buf *extra);
size_t api_chars(const char *text, size_t len); /* UTF-8 characters */
/* The whole non-stream reply. */
void api_put_reply(struct buf *out, const struct api_head *h, const struct api_span *s, size_t n,
                   const struct api_usage *u, const struct buf *extra);
const char *api_fingerprint(void); /* system_fingerprint */

#endif
