/* ask: what both dialects' requests share on their way to chat.
 *
 * The chat body is written front to back into gw_asked.chat; a value is copied as its bytes.
 * Functions return 0, -EINVAL after ask_refuse(), or -ENOMEM. Thread: any. */
#ifndef GATEWAY_TRANSLATE_ASK_H
#define GATEWAY_TRANSLATE_ASK_H

#include "base/jsonscan.h"
#include "gateway/request/fields.h"
#include "gateway/translate/translate.h"

enum { ASK_ITEMS_MAX = 16384 }; /* of a list; above it nothing is found in a text anyway */

/* The message that is being written: an assistant's stays open for the calls that follow it. */
enum ask_open { ASK_CLOSED, ASK_SAID, ASK_CALLS };
struct ask {
    struct gw_asked *a;
    struct buf *out; /* a->chat */
    enum ask_open open;
    bool any; /* a message was written */
    /* where we are, for refusals */
    const char *list, *parts; /* "input", "content" */
    size_t i, j;
};
/* Of a field's path, "tools[2].type", and what to do instead. Returns -EINVAL. */
int ask_refuse(struct gw_asked *a, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The same at the place in hand: LIST[i]TAIL, or LIST[i].PARTS[j]TAIL. */
int ask_refuse_here(const struct ask *k, bool part, const char *tail, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
int ask_items(struct ask *k, const struct json_val *list,
              int (*on_item)(void *ask, const struct json_val *v));

bool ask_given(const struct json_val *v);                                 /* there, and not null */
void ask_put(struct buf *out, const char *key, const struct json_val *v); /* ,"key":value */
/* Top-level fields: `table` is filled, the names in `ours` are left out, all others go on. */
int ask_fields(struct ask *k, const char *body, size_t len, struct gw_field *table,
               const char *const *ours);

void ask_begin(struct ask *k); /* a new message: the last one's end, a comma */
void ask_close(struct ask *k); /* the open one's end */
/* {"role":ROLE,"content":…, left open for an assistant. content: a string, or a list whose parts
 * on_part() writes by ask_part(); one part alone is a string. role: JSON. */
int ask_message(struct ask *k, const struct json_val *role, const struct json_val *content,
                int (*on_part)(void *parts, const struct json_val *v));
struct ask_parts { /* of one content */
    struct ask *k;
    struct buf text; /* {"type":"text","text":…}, comma separated */
    size_t n;
    struct json_val lone;
};
int ask_part(struct ask_parts *p, const struct json_val *text);
/* What ask_message() writes, of parts that were read; the caller frees p->text. */
void ask_put_message(const struct ask_parts *p, const struct json_val *role);
/* A message of the role "tool": what the call of that id gave. */
int ask_result(struct ask *k, const struct json_val *id, const struct json_val *content,
               int (*on_part)(void *parts, const struct json_val *v));
/* A tool call of the open assistant message, or of a new one. arguments: JSON, or NULL: `input`,
 * whose JSON is the text. */
int ask_call(struct ask *k, const struct json_val *id, const struct json_val *name,
             const struct json_val *arguments, const struct json_val *input);
/* {"type":"function","function":{…}} */
void ask_tool(struct buf *out, const struct json_val *name, const struct json_val *description,
              const struct json_val *schema, const struct json_val *strict);
/* ,"tools":[…], each written by on_tool(); 1, or 0: there are none, and nothing was written. */
int ask_tools(struct ask *k, const struct json_val *tools,
              int (*on_tool)(void *ask, const struct json_val *v));
void ask_choose(struct buf *out, const struct json_val *name); /* that tool and no other */
void ask_response_format(struct buf *out, const struct json_val *name,
                         const struct json_val *schema, const struct json_val *strict,
                         const struct json_val *description);

int ask_responses(struct ask *k, const char *body, size_t len);
int ask_messages(struct ask *k, const char *body, size_t len);

#endif
