/* answer: a chat answer's text as content, reasoning and tool calls, as it comes. Pure.
 *
 * Models write tool calls in a syntax of their own, most of them as JSON behind an opening text,
 * some with their arguments between tags, which become JSON. A table describes each (struct
 * ans_syntax); which one a model uses is seen from its chat template. ans_push() takes the text in
 * pieces, cut anywhere: what comes out only grows and does not depend on the cuts. Text that turns
 * out to be no call is content, byte for byte; white space around thoughts and calls is dropped.
 * Time and memory are linear in the text.
 * Thread: one at a time. */
#ifndef WORKER_ANSWER_ANSWER_H
#define WORKER_ANSWER_ANSWER_H

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>

/* Arguments that stand between tags, one after the other: key KEY key_end value VALUE value_end. */
struct ans_tags {
    const char *call, *name_end; /* around the name, behind what opens the call; may be "" */
    const char *key, *key_end, *value, *value_end;
    const char *end; /* of the call */
};
struct ans_marks { /* around thoughts */
    const char *open, *close;
};
/* An answer that is messages, one after the other: HEADER body TEXT end. The prompt has begun the
 * first header. */
struct ans_messages {
    const char *start, *channel; /* either begins a header */
    const char *to;              /* in a header, before a tool's name: the text is its arguments */
    const char *thought;         /* a header with this word is a thought's */
    const char *body, *end[3];
    struct ans_marks thoughts; /* a thought, spelt out */
    const char *answer;        /* what begins one that is content */
};
struct ans_syntax {
    const char *name;
    const char *args;            /* the arguments' key in a call's JSON */
    const char *open;            /* before a call, or before the list of calls */
    const char *close;           /* behind it; NULL: nothing */
    const char *after_name;      /* NULL: calls are JSON objects; else the name stands before the
                               arguments, and this between them */
    const char *before_id;       /* may stand before after_name, with an id; NULL: none does */
    const char *prose;           /* instead of a name: what follows is content; NULL: nothing is */
    const char *around[2];       /* before the first call and behind the last; NULL: nothing */
    const struct ans_tags *tags; /* NULL: arguments are JSON */
    const struct ans_messages *messages; /* NULL: the answer is one text */
    bool list;                           /* calls are one JSON array */
    bool short_ids; /* its template takes ids of nine letters and digits only */
    bool bare;      /* models mostly leave `open` out */
};
/* By a template's source: the syntax that its text shows; NULL: none that is known. */
const struct ans_syntax *ans_syntax_of(const char *jinja);
const struct ans_syntax *ans_syntax_named(const char *name); /* NULL: there is none */
/* What prompts explain where a template cannot. */
const struct ans_syntax *ans_syntax_generic(void);

/* Those that a template's source shows; NULL: its model does not think aloud. */
const struct ans_marks *ans_thoughts_of(const char *jinja);

struct ans_how {
    const struct ans_syntax *syntax;     /* NULL: the text has no calls */
    const struct ans_marks *thoughts;    /* NULL: nor thoughts: they are content */
    const struct ans_messages *messages; /* NULL: it is one text */
    const char *const *tool; /* names, borrowed: JSON that nothing opens is a call to one of them */
    size_t n_tool;
    /* Is the tool's parameter a text, whatever it looks like? Of arguments between tags; NULL: what
     * is JSON is that value. */
    bool (*is_text)(const void *of, const char *tool, const char *parameter);
    const void *of;
    bool thinking;    /* the prompt has opened a thought */
    bool calling;     /* the prompt has opened a call, or the first of a list of them */
    size_t max_calls; /* what is called beyond it is dropped; 0: no limit */
};
struct ans_call {
    struct buf name, args; /* args: JSON; all of it where `whole` */
    bool whole;
};
struct ans {
    struct buf content, reasoning;
    struct ans_call *call;
    size_t n_call, cap_call;
    int status; /* -ENOMEM: from there on the text is lost */
    /* the parser's own */
    struct ans_how how;
    unsigned char state, member, field, string, level;
    bool strip, behind, opened, in_list, named, certain, dropped, has_name, has_args, text;
    unsigned nest;
    struct buf space, held; /* that may be dropped; that is not decided yet */
    struct buf value;       /* a key, or a value as it is written */
    struct buf name, args;  /* of a call that is not certain yet; then name: a key between tags */
};
void ans_init(struct ans *a, const struct ans_how *how); /* *how is copied */
void ans_fini(struct ans *a);
int ans_push(struct ans *a, const char *text, size_t len); /* 0, or a->status */
/* No more text. What is held comes out as content, but where a grammar holds the answer to calls
 * (`calls_only`) it is the beginning of one, and dropped. 0, or a->status. */
int ans_end(struct ans *a, bool calls_only);
bool ans_is_thinking(const struct ans *a);
/* The last byte has opened a call: a grammar of calls may take over here. */
bool ans_is_opened(const struct ans *a);
bool ans_is_full(const struct ans *a); /* max_calls are there and whole */
/* Whether a control token of that text is (part of) a mark of the syntax, and must be shown to
 * ans_push(). */
bool ans_is_mark(const struct ans_how *how, const char *text, size_t len);

#endif
