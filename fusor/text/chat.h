/* chat: chat templates as hand-written formatters that emit (text, special) pieces.
 *
 * The formatter is found from the model's Jinja template text (or a name given by the user with
 * --chat-template); an unknown template is refused by name at chat_open(). Families: chatml
 * (SmolLM2, Qwen2/2.5/3 with their default system texts), llama2, llama3, mistral (v1, v3, tekken),
 * yi, zephyr/phi-3. chat_render() also tells where each message's content landed, so that byte
 * ranges of a message's text can be mapped into the prompt. Golden files from Python's jinja2 test
 * every family. Thread: any. */
#ifndef FUSOR_TEXT_CHAT_H
#define FUSOR_TEXT_CHAT_H

#include "base/err.h"
#include "base/buf.h"
#include "fusor/text/tok.h"

struct chat;
struct chat_msg {
    const char *role; /* system, developer, user, assistant, tool */
    const char *text;
    size_t len;
};
struct chat_thread {
    const struct chat_msg *msgs;
    size_t n;
    bool add_generation_prompt; /* the answer's header follows */
};
struct chat_span { /* where content bytes [src, src+len) of a message stand in the prompt text */
    size_t msg, src, dst, len;
};
struct chat_out {             /* init with {0}; chat_out_fini() */
    struct buf text;          /* the whole prompt */
    struct tok_piece *pieces; /* cover text in order; pointers into text.data */
    size_t n_pieces;
    struct chat_span *spans;
    size_t n_spans;
};
int chat_open(const char *jinja /* or NULL */, const char *name /* or NULL */, struct chat **ret,
              struct err *err);
void chat_close(struct chat *c);
const char *chat_name(const struct chat *c);
/* The pieces are the whole prompt: the tokenizer adds no BOS to them. */
int chat_render(const struct chat *c, const struct tok *t, const struct chat_thread *thread,
                struct chat_out *out, struct err *err);
void chat_out_fini(struct chat_out *out);
/* The sink, which chunks are built behind: the first token of a chat, whatever it is; without a
 * template (c NULL), and where memory is short, BOS. -1 = none. */
int32_t chat_sink(const struct chat *c, const struct tok *t);

#endif
