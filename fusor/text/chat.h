/* chat: messages to a prompt by the model's own chat template, as (text, special) pieces.
 *
 * The template is the Jinja source that the model's file brings, run by jinja.h: what the template
 * itself writes may name control tokens, what messages, tools and variables bring never does. A
 * source that does more than the subset is refused at chat_open() by name and line. Where a file
 * brings none, a built-in one can be named (--chat-template). chat_render() also tells where each
 * message's content landed, so that byte ranges of a message's text can be mapped into the prompt.
 * Golden files of transformers test all of it. Thread: any. */
#ifndef FUSOR_TEXT_CHAT_H
#define FUSOR_TEXT_CHAT_H

#include "base/buf.h"
#include "base/err.h"
#include "fusor/text/tok.h"

#include <jansson.h>

struct chat;
struct chat_msg {
    const char *role; /* system, developer, user, assistant, tool, or one that the template names */
    const char *text; /* NULL: no content (an assistant's that only calls tools) */
    size_t len;
    const json_t *more; /* an object with what else it has (name, tool_calls, tool_call_id, …), as
                           the template wants it; role and content in it do not count. NULL: none */
};
struct chat_thread {
    const struct chat_msg *msgs;
    size_t n;
    bool add_generation_prompt; /* the answer's header follows */
    bool continue_final; /* the prompt ends with the last message's text, to be gone on with */
    const json_t *tools; /* an array, or NULL */
    const json_t *vars;  /* an object of further variables (enable_thinking, …), or NULL */
    int64_t now_s;       /* since the epoch, for templates that write the date; 0: now */
    const char *lead;    /* what the answer begins with, control tokens included; NULL: nothing */
};
struct chat_span { /* where content bytes [src, src+len) of a message stand in the prompt text */
    size_t msg, src, dst, len;
};
struct chat_out {             /* init with {0}; chat_out_fini() */
    struct buf text;          /* the whole prompt */
    struct tok_piece *pieces; /* cover text in order; pointers into text.data */
    size_t n_pieces;
    struct chat_span *spans; /* in the order of the prompt; a byte may be there several times */
    size_t n_spans;
};
/* 0; -ENOTSUP no template, no such name, or more than the subset; -ENOMEM. */
int chat_open(const char *jinja /* or NULL */, const char *name /* or NULL */, struct chat **ret,
              struct err *err);
void chat_close(struct chat *c);
const char *chat_name(const struct chat *c); /* of a file's own: "jinja" */
bool chat_says(const struct chat *c,
               const char *words); /* some string of the template's is these */
/* The pieces are the whole prompt: the tokenizer adds no BOS to them. 0; -EINVAL the template
 * refuses, in its own words, or leaves a message out; -ERANGE a limit; -ENOMEM. */
int chat_render(const struct chat *c, const struct tok *t, const struct chat_thread *thread,
                struct chat_out *out, struct err *err);
void chat_out_fini(struct chat_out *out);
/* The sink, which chunks are built behind: the first token of a chat, whatever it is; without a
 * template (c NULL), and where memory is short, BOS. -1 = none. */
int32_t chat_sink(const struct chat *c, const struct tok *t);
/* Built-in templates: of that name, NULL = none; the names, NULL behind the last. chat_named.c. */
const char *chat_builtin(const char *name);
const char *chat_builtin_name(size_t i);

#endif
