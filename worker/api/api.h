/* api: OpenAI-shaped requests in. Pure: no sockets, engine or store.
 *
 * api_parse() turns a request body into struct api_req, or an api_err that names the field.
 * Unknown fields are accepted; fields that would change the answer and are not built are refused by
 * name. Replies are in api_reply.h, errors in api_error.h. Texts of a request borrow from its JSON
 * tree or arena and live until api_req_fini(). Wire rules: docs/api.md.
 * Thread: any. */
#ifndef WORKER_API_API_H
#define WORKER_API_API_H

#include "base/mem.h"
#include "fusor/core/prefill.h"
#include "fusor/core/sample.h"
#include "worker/api/api_error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    API_STOPS_MAX = 16, /* OpenAI takes 4, vLLM any number */
    API_STOP_BYTES_MAX = 1024,
    API_PROMPTS_MAX = 64, /* list prompts of one request */
    API_MESSAGES_MAX = 4096,
    API_BIAS_MAX = 4096,
    API_STOP_IDS_MAX = 64,
    API_TTFT_MS_MAX = 86400000,
    API_TOOLS_MAX = 128, /* OpenAI's, as are the names */
    API_TOOL_NAME_MAX = 64,
    API_TOOL_BYTES_MAX = 1 << 18, /* of one definition, as compact JSON */
    API_CALLS_MAX = 64, /* of one answer, which ends with the last; chosen: small models repeat
                           themselves, and agents call a handful */
};

/* auto, full, prefix, reuse or blend: 1 found, 0 unknown. */
int api_mode_parse(const char *s, enum pol_strategy *ret);

enum api_part_kind { API_PART_AUTO, API_PART_CHUNK, API_PART_GLUE };
struct api_part { /* bytes [begin, end) of the message's joined text */
    size_t begin, end;
    enum api_part_kind kind;
};
struct api_ids {
    int32_t *id;
    size_t n;
};
struct api_msg { /* of a chat; of /v1/completions each prompt is one, of role "prompt" */
    const char *role;
    const char *text; /* parts joined by "\n"; NULL: a prompt of token ids */
    size_t len;
    struct api_part *part; /* n_part == 0: content was one string */
    size_t n_part;
    struct api_ids ids;
    const json_t *json; /* of a chat: the message as it was sent, without its empty fields, calls'
                           arguments read */
};
struct api_doc {
    const char *title, *text; /* title NULL = none */
    size_t title_len, len;
};
struct api_range { /* kvblend.segments */
    uint32_t msg;
    size_t begin, end;
};
enum api_order { API_ORDER_OPEN, API_DOCUMENT_FIRST, API_QUERY_FIRST }; /* OPEN: not given */
const char *api_order_name(enum api_order o);                           /* of one that is given */
int api_order_parse(const char *s, enum api_order *ret);                /* 1 found, 0 unknown */
/* How a request wants its KV: as parsed (body alone), then made effective by wk_settings(). */
struct api_settings {
    enum pol_strategy mode;     /* POL_AUTO = not given; of the report */
    enum pol_strategy strategy; /* POL_AUTO = not given; effective: what is asked for, a mode too */
    bool explain, store;
    double ratio, min_ratio, max_ttft_ms; /* -1 = not given */
    const char *ns;                       /* NULL = not given; effective: within the gateway's */
    const char *separator;                /* NULL = not given */
    enum api_order order;                 /* of reranking */
    struct api_range *range;
    size_t n_range;
};
enum api_format_kind {
    API_FORMAT_NONE,
    API_FORMAT_OBJECT, /* any JSON object */
    API_FORMAT_SCHEMA, /* value: a JSON schema, an object or a boolean */
    API_FORMAT_REGEX,  /* value: a string */
    API_FORMAT_CHOICE, /* value: an array of strings */
    API_FORMAT_GRAMMAR /* value: a string */
};
struct api_format { /* that the answer must have */
    enum api_format_kind kind;
    const json_t *value;
    const char *field; /* where it was asked for */
    json_t *own;       /* a schema that came as a string */
};
enum api_tool_choice {
    API_TOOLS_AUTO, /* the model decides */
    API_TOOLS_NONE, /* they are as good as not there */
    API_TOOLS_MUST  /* the answer is at least one call of those that are callable */
};
struct api_tool {
    const char *name;
    const json_t *parameters; /* a schema, an object; NULL: it takes none */
    bool strict, callable;
};
struct api_tools {
    const json_t *json; /* as they were sent; NULL: none */
    struct api_tool *tool;
    size_t n;
    const char **name; /* of the callable ones */
    size_t n_name;
    enum api_tool_choice choice; /* NONE where there are none */
    bool one;                    /* one call at most */
};
struct api_req {
    struct arena arena;
    json_t *root;
    bool chat;         /* else /v1/completions */
    const char *model; /* NULL = not named */
    struct api_msg *msg;
    size_t n_msg;
    struct api_doc *doc;
    size_t n_doc;
    struct api_settings kv; /* the `kvblend` object */
    bool stream, include_usage, progress, echo, ignore_eos;
    bool add_generation_prompt;  /* default true, false with the next */
    bool continue_final;         /* the answer goes on with the last message's text */
    const json_t *template_vars; /* chat_template_kwargs; NULL = none */
    unsigned n, best_of;
    int32_t max_tokens; /* -1 = not given */
    uint32_t min_tokens;
    bool logprobs; /* n_logprobs in sampling */
    bool has_seed;
    struct fus_sampling sampling;
    const char **stop;
    size_t *stop_len;
    size_t n_stop;
    struct api_ids stop_ids;
    struct api_format format;
    struct api_tools tools;
    bool thoughts_apart; /* reasoning is no content */
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
/* NULL: it is absent or null, which means the same. */
const json_t *api_field(const json_t *o, const char *name);
bool api_string(const json_t *v, const char **ret, size_t *ret_len); /* false: it is none */
/* A scalar of an object, as those of chats are read; *ret stays where it is absent. Up to 1e9. */
int api_read_int(const json_t *o, const char *name, int32_t min, int32_t *ret, struct api_err *e);
int api_read_bool(const json_t *o, const char *name, bool *ret, struct api_err *e);
/* What r->root has of each, into r (its arena must be initialised); with messages, what else their
 * template is given. */
int api_parse_messages(struct api_req *r, struct api_err *e);
int api_parse_documents(struct api_req *r, struct api_err *e);
int api_parse_kvblend(struct api_req *r, struct api_err *e);
int api_parse_format(struct api_req *r, struct api_err *e);
int api_parse_tools(struct api_req *r, struct api_err *e); /* and reasoning_format */
/* Tool messages answer calls that were made. */
int api_check_answers(const struct api_req *r, struct api_err *e);

#endif
