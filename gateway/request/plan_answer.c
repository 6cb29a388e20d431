/* What comes back: texts and scores out of answers, usage and report into them. */
#include "gateway/request/plan.h"

#include "base/clock.h"
#include "base/jsonscan.h"
#include "base/mem.h"
#include "gateway/request/splice.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int append(const char *p, size_t n, void *ctx)
{
    return buf_add(ctx, p, n);
}

int gw_plan_dump(const struct json_t *o, struct buf *out)
{ /* 15 digits: what was written as 0.7 stays 0.7 */
    return o && json_dump_callback(o, append, out, JSON_COMPACT | JSON_REAL_PRECISION(15)) == 0
               ? 0
               : -ENOMEM;
}

static json_t *first_choice(const json_t *root)
{
    return json_array_get(json_object_get(root, "choices"), 0);
}

/* The string of a choice's text: chat, else plain completions. */
static json_t *text_of(const json_t *choice)
{
    json_t *t = json_object_get(json_object_get(choice, "message"), "content");
    if (!t) t = json_object_get(choice, "text");
    return json_is_string(t) ? t : NULL;
}

int gw_plan_answer(const char *json, size_t len, struct buf *out)
{
    json_t *root = json_loadb(json, len, JSON_ALLOW_NUL, NULL);
    const json_t *t = text_of(first_choice(root));
    int r = t ? buf_add(out, json_string_value(t), json_string_length(t)) : -EBADMSG;
    if (r == 0 && !buf_cstr(out)) r = -ENOMEM;
    json_decref(root);
    return r;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static size_t trim(const char *text, size_t n)
{
    while (n > 0 && is_space(text[n - 1]))
        n--;
    return n;
}

unsigned gw_plan_score(const char *text, size_t *len)
{
    static const char word[] = "Score:";
    size_t n = trim(text, *len), d = n, at;
    unsigned score = 0;
    while (d > 0 && n - d <= 3 && text[d - 1] >= '0' && text[d - 1] <= '9')
        d--;
    if (n == d || n - d > 3) return 0;
    for (size_t i = d; i < n; i++)
        score = score * 10 + (unsigned)(text[i] - '0');
    for (at = d; at > 0 && text[at - 1] == ' ';)
        at--;
    if (score > 100 || at < sizeof word - 1) return 0;
    at -= sizeof word - 1;
    if (memcmp(text + at, word, sizeof word - 1) != 0) return 0;
    if (at > 0 && !is_space(text[at - 1])) return 0;
    *len = trim(text, at);
    return score;
}

/* ---- usage and report ---- */

struct edits {
    struct gw_edit e[6];
    char text[6][24];
    size_t n;
    const char *base;
};

static void raise_count(struct edits *x, const struct json_val *object, const char *key,
                        uint64_t more)
{
    struct json_val v;
    int64_t now;
    if (json_find(object->p, object->len, key, &v) != 1 || json_int_read(&v, &now) < 0) return;
    int n = snprintf(x->text[x->n], sizeof x->text[0], "%lld", (long long)now + (long long)more);
    x->e[x->n] = (struct gw_edit){(size_t)(v.p - x->base), v.len, x->text[x->n], (size_t)n};
    x->n++;
}

static void raise_usage(struct edits *x, const struct json_val *usage, const struct gw_usage *more)
{
    struct json_val details;
    if (usage->type != JSON_T_OBJECT) return;
    raise_count(x, usage, "prompt_tokens", more->prompt);
    raise_count(x, usage, "completion_tokens", more->completion);
    raise_count(x, usage, "total_tokens", more->prompt + more->completion);
    if (json_find(usage->p, usage->len, "prompt_tokens_details", &details) == 1 &&
        details.type == JSON_T_OBJECT)
        raise_count(x, &details, "cached_tokens", more->cached);
}

static int by_place(const void *a, const void *b)
{
    const struct gw_edit *x = a, *y = b;
    return x->at < y->at ? -1 : x->at > y->at;
}

int gw_plan_add_report(const char *json, size_t len, const struct gw_usage *more,
                       const char *report, struct buf *out)
{
    struct edits x = {.base = json};
    struct json_val usage, own;
    struct buf text = BUF_INIT;
    struct iovec v[2 * 6 + 1];
    size_t n_pieces, sum, end = trim(json, len);
    int r = json_find(json, len, "usage", &usage);
    if (r == 1) raise_usage(&x, &usage, more);
    if (r >= 0) r = json_find(json, len, "kvblend", &own);
    if (r == 1) { /* the worker's report of the last call stays, inside ours */
        r = buf_addf(&text, "%.*s,\"last_call\":%.*s}", (int)strlen(report) - 1, report,
                     (int)own.len, own.p);
        x.e[x.n] = (struct gw_edit){(size_t)(own.p - json), own.len, text.data, text.len};
    } else if (r == 0) {
        r = buf_addf(&text, ",\"kvblend\":%s", report);
        x.e[x.n] = (struct gw_edit){end - 1, 0, text.data, text.len};
    }
    x.n++;
    if (r == 0) {
        qsort(x.e, x.n, sizeof x.e[0], by_place);
        r = gw_splice(json, len, x.e, x.n, v, &n_pieces, &sum);
    }
    for (size_t i = 0; r == 0 && i < n_pieces; i++)
        r = buf_add(out, v[i].iov_base, v[i].iov_len);
    buf_fini(&text);
    return r;
}

/* ---- the chosen answer ---- */

static int add_frame(const json_t *head, json_t *choices, json_t *usage, const char *report,
                     struct buf *out)
{
    struct gw_usage none = {0};
    json_t *o = json_copy((json_t *)head);
    if (o) (void)json_object_set_new(o, "choices", choices);
    if (o && usage) (void)json_object_set(o, "usage", usage);
    struct buf text = BUF_INIT;
    int r = gw_plan_dump(o, &text);
    if (r == 0) r = buf_adds(out, "data: ");
    if (r == 0)
        r = report ? gw_plan_add_report(text.data, text.len, &none, report, out)
                   : buf_add(out, text.data, text.len);
    if (r == 0) r = buf_adds(out, "\n\n");
    buf_fini(&text);
    json_decref(o);
    return r;
}

/* Frames as a stream of one event of text: role, text, finish, usage, [DONE]. */
static int add_stream(json_t *root, bool usage, const char *report, struct buf *out)
{
    json_t *choice = first_choice(root), *text = text_of(choice);
    json_t *finish = json_object_get(choice, "finish_reason"), *null = json_null();
    bool chat = json_object_get(choice, "message") != NULL;
    json_t *use = json_incref(json_object_get(root, "usage")),
           *pending = usage ? null : NULL; /* of frames before the counts */
    json_t *head = json_copy(root);
    int r = 0;
    (void)json_object_del(head, "choices");
    (void)json_object_del(head, "usage");
    (void)json_object_del(head, "kvblend");
    if (!finish) finish = null;
    if (chat) {
        (void)json_object_set_new(head, "object", json_string("chat.completion.chunk"));
        r = add_frame(head,
                      json_pack("[{s:i,s:{s:s,s:s},s:n}]", "index", 0, "delta", "role", "assistant",
                                "content", "", "finish_reason"),
                      pending, NULL, out);
    }
    if (r == 0)
        r = add_frame(head,
                      chat ? json_pack("[{s:i,s:{s:O},s:n}]", "index", 0, "delta", "content", text,
                                       "finish_reason")
                           : json_pack("[{s:i,s:O,s:n,s:n}]", "index", 0, "text", text, "logprobs",
                                       "finish_reason"),
                      pending, NULL, out);
    if (r == 0)
        r = add_frame(
            head,
            chat ? json_pack("[{s:i,s:{},s:O}]", "index", 0, "delta", "finish_reason", finish)
                 : json_pack("[{s:i,s:s,s:n,s:O}]", "index", 0, "text", "", "logprobs",
                             "finish_reason", finish),
            pending, usage ? NULL : report, out);
    if (r == 0 && usage) r = add_frame(head, json_array(), use ? use : null, report, out);
    if (r == 0) r = buf_adds(out, "data: [DONE]\n\n");
    json_decref(use);
    json_decref(head);
    return r;
}

int gw_plan_choice(const char *json, size_t len, const struct gw_usage *more, const char *report,
                   bool stream, bool usage, struct buf *out)
{
    struct buf whole = BUF_INIT, plain = BUF_INIT;
    json_t *root = json_loadb(json, len, JSON_ALLOW_NUL, NULL), *t = text_of(first_choice(root));
    size_t n = json_string_length(t);
    if (t) (void)gw_plan_score(json_string_value(t), &n);
    char *text = t ? mem_strndup(json_string_value(t), n) : NULL;
    int r = text ? 0 : -EBADMSG;
    if (r == 0 && json_string_setn(t, text, n) < 0) r = -ENOMEM;
    if (r == 0) r = gw_plan_dump(root, &plain);
    if (r == 0) r = gw_plan_add_report(plain.data, plain.len, more, report, &whole);
    if (r == 0 && stream) {
        json_decref(root);
        root = json_loadb(whole.data, whole.len, JSON_ALLOW_NUL, NULL);
        r = root ? add_stream(root, usage, report, out) : -ENOMEM;
    } else if (r == 0) {
        r = buf_add(out, whole.data, whole.len);
    }
    buf_fini(&plain);
    mem_free(text);
    json_decref(root);
    buf_fini(&whole);
    return r;
}
