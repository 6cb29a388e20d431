/* chat_int: between chat.c (names, recognition, entry points) and chat_families.c (formatters).
 *
 * A formatter appends to the job's output; the first failure sticks in `status` and later appends
 * do nothing, so formatters read top to bottom. They return 0 or, for messages their template
 * refuses, -EINVAL with a sentence. Most families are patterns: text as it is, {control token}, and
 * %c content, %t content trimmed, %r role, %b BOS, %e EOS, %d today's date.
 * Thread: any. */
#ifndef FUSOR_TEXT_CHAT_INT_H
#define FUSOR_TEXT_CHAT_INT_H

#include "fusor/text/chat.h"

enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_TOOL, CHAT_ROLES };
enum chat_system { CHAT_SYSTEM_NONE, CHAT_SYSTEM_FIRST, CHAT_SYSTEM_LAST };

struct chat_str {
    const char *s;
    size_t len;
};
struct chat_job;
struct chat_mistral {
    const char *open, *close, *lead, *after_eos; /* NULL = nothing */
    enum chat_system system;                     /* in the first or last user message, or refused */
    bool trim;                                   /* assistant content */
    bool control;                                /* [INST] and [/INST] are control tokens */
};
struct chat {
    const char *name;
    int (*render)(struct chat_job *j);
    const char *bos, *eos; /* their text where no tokenizer says it */
    /* Patterns, NULL = nothing: before all, in place of a system message that is missing, of the
     * first one where that differs, by role (NULL: refused), the answer's header, and else. */
    const char *start, *without_system, *with_system, *turn[CHAT_ROLES], *gen, *end;
    const char *default_system; /* chatml; NULL = none */
    char *system_copy;          /* owned, or NULL */
    bool tools, think;          /* chatml: tool role; Qwen3's thoughts */
    bool gen_always;            /* the template always ends with the assistant's header */
    struct chat_mistral mistral;
};
struct chat_job {
    const struct chat *c;
    const struct chat_msg *msgs;
    size_t n;
    const enum chat_role *role; /* [n] */
    bool gen;
    struct chat_out *out; /* pieces without pointers until the end */
    struct err *err;
    struct chat_str bos, eos;
    int status;
};

extern const char *const chat_role_names[CHAT_ROLES];
int chat_turns(struct chat_job *j); /* by the patterns */
int chat_llama2(struct chat_job *j);
int chat_mistral(struct chat_job *j);

#endif
