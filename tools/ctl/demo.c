/* demo: one question over the built-in documents, cold and warm, side by side.
 *
 * Cold is a full prefill (kvblend.mode full), which uses nothing that is held; warm has the same
 * documents in another order, run as the worker chooses. Both are timed here, at the first text of
 * the stream. The documents' KV is made in between, in a namespace of its own: nobody else's
 * requests see it, and it is deleted at the end. Neither request leaves anything behind. */
#include "base/clock.h"
#include "base/net/sse.h"
#include "tools/ctl/ctl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

enum {
    ROUNDS_MAX = 100,
    DOCUMENTS_MAX = 32,
    ANSWER_TOKENS = 48,
    COLUMN_MIN = 24, /* characters of an answer beside the other */
    DELETE_TRIES = 50,
    DELETE_PAUSE_NS = 100000000, /* idle work may hold a record for a moment */
};
static const char question[] = "Who built the lighthouse at Harrow Point, and when?";

struct answer { /* of a stream, as it comes; init {0} */
    uint64_t sent_ns;
    double ttft_ms; /* 0: no text yet */
    struct sse_parser events;
    struct buf text;
    json_t *report; /* the `kvblend` object; NULL: none came */
    json_t *error;
};
struct side {
    double ttft_ms[ROUNDS_MAX];
    struct answer last;
};
struct demo {
    char ns[48];
    size_t n;      /* of the documents, the first ones: those that the context has room for */
    size_t rounds; /* to be measured */
    struct side cold, warm;
    double build_ms;
    json_t *records; /* of the documents */
};

/* ---- one request ---- */

static void answer_fini(struct answer *x)
{
    sse_parser_fini(&x->events);
    buf_fini(&x->text);
    json_decref(x->report);
    json_decref(x->error);
}

static int on_event(void *ctx, const char *json, size_t len)
{
    struct answer *x = ctx;
    json_t *event = json_loadb(json, len, 0, NULL); /* NULL: [DONE] */
    const json_t *choice = json_array_get(json_object_get(event, "choices"), 0);
    const char *text = ctl_str(json_object_get(choice, "delta"), "content");
    if (*text && x->ttft_ms == 0) x->ttft_ms = clock_ms_since(x->sent_ns);
    (void)buf_adds(&x->text, text);
    if (json_object_get(event, "kvblend")) {
        json_decref(x->report);
        x->report = json_incref(json_object_get(event, "kvblend"));
    }
    if (!x->error) x->error = json_incref(json_object_get(event, "error"));
    json_decref(event);
    return 0;
}

static void on_data(void *ctx, const char *data, size_t len)
{
    struct answer *x = ctx;
    (void)sse_parser_push(&x->events, data, len, on_event, x);
}

/* Without the line break at its file's end. */
static json_t *document(size_t i)
{
    const char *text = ctl_documents[i].text;
    size_t n = strlen(text);
    while (n > 0 && text[n - 1] == '\n')
        n--;
    return json_stringn(text, n);
}

/* The documents, each a part, and the question. */
static json_t *make_messages(const size_t *order, size_t n)
{
    json_t *parts = json_array();
    for (size_t i = 0; i < n; i++)
        (void)json_array_append_new(
            parts, json_pack("{s:s,s:o}", "type", "text", "text", document(order[i])));
    (void)json_array_append_new(parts, json_pack("{s:s,s:s}", "type", "text", "text", question));
    return json_pack("[{s:s,s:s},{s:s,s:o}]", "role", "system", "content",
                     "Answer the question from the documents.", "role", "user", "content", parts);
}

/* 0 and the answer, or an exit code with a sentence. */
static int ask(const struct ctl_args *a, const char *ns, json_t *messages, const char *mode,
               struct answer *ret)
{
    struct ctl_reply r;
    json_t *body = json_pack("{s:o,s:b,s:i,s:i,s:{s:s,s:s,s:b,s:b}}", "messages", messages,
                             "stream", 1, "max_tokens", ANSWER_TOKENS, "temperature", 0, "kvblend",
                             "mode", mode, "namespace", ns, "explain", 1, "store", 0);
    *ret = (struct answer){.sent_ns = clock_ns()};
    int rc = ctl_stream(a, "POST /v1/chat/completions", body, on_data, ret, &r);
    if (rc != CTL_OK) return rc;
    ctl_reply_fini(&r);
    if (ret->error) return ctl_fail(a, CTL_REFUSED, "%s", ctl_str(ret->error, "message"));
    if (!ret->report)
        return ctl_fail(a, CTL_REFUSED,
                        "the answer has no report: no own worker gave it, and only they reuse KV");
    return ret->ttft_ms > 0 ? CTL_OK : ctl_fail(a, CTL_REFUSED, "the answer was empty");
}

/* ---- the documents ---- */

/* Another order for each number; from one to the next no document stands behind the one that it
 * stood behind. */
static void make_order(size_t number, size_t n, size_t *order)
{
    for (size_t i = 0; i < n; i++)
        order[i] = ((number % 2 ? n - 1 - i : i) + number / 2) % n;
}

/* As many of them as the worker's context has room for. */
static int fit(const struct ctl_args *a, struct demo *d)
{
    size_t order[DOCUMENTS_MAX];
    int rc = CTL_OK;
    bool fits = false;
    d->n = ctl_n_documents < DOCUMENTS_MAX ? ctl_n_documents : DOCUMENTS_MAX;
    while (rc == CTL_OK && !fits && d->n > 1) {
        struct ctl_reply r;
        make_order(0, d->n, order);
        rc = ctl_order(a, "POST /tokenize",
                       json_pack("{s:o}", "messages", make_messages(order, d->n)), &r);
        if (rc != CTL_OK) break;
        fits = ctl_num(r.json, "count") + ANSWER_TOKENS <= ctl_num(r.json, "max_model_len");
        if (!fits) d->n--;
        ctl_reply_fini(&r);
    }
    if (rc == CTL_OK && !fits)
        rc = ctl_fail(a, CTL_REFUSED, "the worker's context has no room for two documents");
    return rc;
}

/* The documents' ids, and how long it took. */
static int make_records(const struct ctl_args *a, struct demo *d)
{
    json_t *texts = json_array();
    struct ctl_reply r;
    uint64_t begin = clock_ns();
    for (size_t i = 0; i < d->n; i++)
        (void)json_array_append_new(texts, document(i));
    int rc = ctl_order(a, "POST /v1/segments",
                       json_pack("{s:o,s:s}", "texts", texts, "namespace", d->ns), &r);
    if (rc != CTL_OK) return rc;
    d->build_ms = clock_ms_since(begin);
    d->records = json_incref(json_object_get(r.json, "data"));
    ctl_reply_fini(&r);
    return CTL_OK;
}

/* The HTTP status; 0: nobody answers, and that is said. */
static int delete_record(const struct ctl_args *a, const char *ns, const char *id)
{
    struct buf b = BUF_INIT;
    struct ctl_reply r = {0};
    (void)buf_addf(&b, "DELETE /v1/segments/%s", id);
    ctl_parameter(&b, "namespace", ns);
    const bool answered = ctl_ask(a, &b, NULL, &r) == CTL_OK;
    const int status = answered ? r.status : 0;
    if (answered) ctl_reply_fini(&r);
    buf_fini(&b);
    return status;
}

/* Those that are in use are tried again; how many stay. */
static size_t delete_all(const struct ctl_args *a, const struct demo *d)
{
    json_t *records = d->records;
    int status = 409;
    for (int tries = 0; json_array_size(records) > 0 && tries < DELETE_TRIES; tries++) {
        const struct timespec pause = {.tv_nsec = DELETE_PAUSE_NS};
        if (tries > 0) (void)nanosleep(&pause, NULL);
        for (size_t i = json_array_size(records); i-- > 0 && status;) {
            status = delete_record(a, d->ns, ctl_str(json_array_get(records, i), "id"));
            if (status == 200 || status == 404) (void)json_array_remove(records, i);
        }
        if (!status) break;
    }
    return json_array_size(records);
}

/* ---- rounds ---- */

static int run_side(const struct ctl_args *a, struct demo *d, struct side *s, size_t round,
                    const char *mode)
{
    size_t order[DOCUMENTS_MAX];
    make_order(2 * round + (s == &d->warm), d->n, order);
    answer_fini(&s->last);
    int rc = ask(a, d->ns, make_messages(order, d->n), mode, &s->last);
    s->ttft_ms[round] = s->last.ttft_ms;
    return rc;
}

/* The question alone comes first, and is not timed: who answers, with everything in its place. */
static int run_rounds(const struct ctl_args *a, struct demo *d)
{
    struct answer first;
    int rc = ask(a, d->ns, make_messages(NULL, 0), "full", &first);
    answer_fini(&first);
    if (rc == CTL_OK) rc = fit(a, d);
    for (size_t i = 0; rc == CTL_OK && i < d->rounds; i++) {
        if (!a->json && isatty(STDERR_FILENO))
            (void)fprintf(stderr, "round %zu of %zu, cold and warm …\n", i + 1, d->rounds);
        rc = run_side(a, d, &d->cold, i, "full");
        if (rc == CTL_OK && i == 0) rc = make_records(a, d);
        if (rc == CTL_OK) rc = run_side(a, d, &d->warm, i, "auto");
    }
    return rc;
}

/* ---- what is shown ---- */

static int by_size(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static double median(const double *v, size_t n)
{
    double sorted[ROUNDS_MAX];
    memcpy(sorted, v, n * sizeof *v);
    qsort(sorted, n, sizeof *sorted, by_size);
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

static json_t *whole(const json_t *o, const char *key)
{
    return json_integer((json_int_t)ctl_num(o, key));
}

static json_t *side_json(struct side *s, size_t rounds)
{
    json_t *all = json_array(), *o = json_object();
    const json_t *tokens = json_object_get(s->last.report, "tokens");
    for (size_t i = 0; i < rounds; i++)
        (void)json_array_append_new(all, json_real(s->ttft_ms[i]));
    (void)json_object_set_new(o, "ttft_ms", json_real(median(s->ttft_ms, rounds)));
    (void)json_object_set_new(o, "ttft_ms_all", all);
    (void)json_object_set(o, "strategy", json_object_get(s->last.report, "strategy"));
    (void)json_object_set(o, "ratio", json_object_get(s->last.report, "ratio"));
    (void)json_object_set(o, "why", json_object_get(s->last.report, "why"));
    (void)json_object_set_new(o, "prefix", whole(tokens, "prefix"));
    (void)json_object_set_new(o, "reused", whole(tokens, "reused"));
    (void)json_object_set_new(o, "recomputed", whole(tokens, "recomputed"));
    (void)json_object_set_new(o, "computed", whole(tokens, "computed"));
    (void)json_object_set_new(o, "answer", json_stringn(buf_cstr(&s->last.text), s->last.text.len));
    return o;
}

/* As many characters as fit into a line, with whole words where there are some. */
static size_t line_bytes(const char *text, size_t width)
{
    size_t n = 0, word = 0;
    for (size_t columns = 0; text[n] && text[n] != '\n'; n++) {
        if (((unsigned char)text[n] & 0xC0) == 0x80) continue;
        if (columns++ == width) return word ? word : n;
        if (text[n] == ' ') word = n;
    }
    return n;
}

/* The next line of *text, cut off it. */
static json_t *cut_line(const char **text, size_t width)
{
    *text += strspn(*text, " \n");
    size_t n = line_bytes(*text, width);
    json_t *line = json_stringn(*text, n);
    *text += n;
    return line;
}

/* Both answers beside each other, as rows of two cells. */
static json_t *answer_rows(struct demo *d, size_t width)
{
    const char *cold = buf_cstr(&d->cold.last.text), *warm = buf_cstr(&d->warm.last.text);
    json_t *rows = json_array();
    do {
        json_t *left = cut_line(&cold, width), *right = cut_line(&warm, width);
        (void)json_array_append_new(rows, json_pack("{s:o,s:o}", "cold", left, "warm", right));
    } while (*cold || *warm);
    return rows;
}

static size_t column_width(void)
{
    struct winsize w = {0};
    (void)ioctl(STDOUT_FILENO, TIOCGWINSZ, &w);
    size_t width = w.ws_col > 16 ? (w.ws_col - 16u) / 2 : 0; /* beside names and gaps */
    return width > COLUMN_MIN ? width : COLUMN_MIN;
}

static const char side_by_side[] =
    "{question}\n{documents} documents, {prompt_tokens} tokens\n\n"
    "\tCOLD: full prefill\tWARM: another order\n"
    "first token\t{cold.ttft_ms} ms\t{warm.ttft_ms} ms, {speedup:.2} times as fast\n"
    "ran\t{cold.strategy}\t{warm.strategy}[{?warm.ratio>0} at {warm.ratio:g3}]\n"
    "reused\t{cold.prefix+cold.reused}\t{warm.prefix+warm.reused}\n"
    "recomputed\t{cold.recomputed}\t{warm.recomputed}\n"
    "computed\t{cold.computed}\t{warm.computed}\n"
    "<lines:[{?first}answer]\t{cold}\t{warm}\n>";
#define SIDE                                                                                       \
    "{ttft_ms} ms to the first token, {strategy}[{?ratio>0} at {ratio:g3}]: {prefix+reused} "      \
    "tokens reused, {recomputed} recomputed, {computed} computed\n             {answer}\n"
static const char in_lines[] = "question     {question}\n"
                               "documents    {documents}, {prompt_tokens} tokens\n"
                               "<cold:cold         " SIDE "><warm:warm         " SIDE ">"
                               "speed-up     {speedup:.2}\n";
#undef SIDE
static const char notes[] =
    "\n[{?rounds>1}Medians of {rounds} rounds; tokens and answers are the last one's. ]"
    "The documents' KV was made in {build_ms} ms in between, and is deleted again.\n"
    "[{?warm.why}What ran warm was chosen because: {warm.why}.\n]"
    "[{?cold.prefix+cold.reused>0}NOT COLD: {cold.prefix+cold.reused} tokens of the cold prompt "
    "were reused.\n]"
    "[{?left>0}{left} records are in use and stay: kvblendctl clear --namespace /{namespace}\n]";

static void show(const struct ctl_args *a, struct demo *d, size_t left)
{
    json_t *cold = side_json(&d->cold, d->rounds), *warm = side_json(&d->warm, d->rounds);
    const double speedup = ctl_num(cold, "ttft_ms") / ctl_num(warm, "ttft_ms");
    double tokens = 0;
    static const char *const kinds[] = {"prefix", "reused", "recomputed", "computed"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        tokens += ctl_num(cold, kinds[i]);
    json_t *o = json_pack("{s:s,s:i,s:I,s:i,s:f,s:f,s:s,s:i,s:o,s:o}", "question", question,
                          "documents", (int)d->n, "prompt_tokens", (json_int_t)tokens, "rounds",
                          (int)d->rounds, "build_ms", d->build_ms, "speedup", speedup, "namespace",
                          d->ns, "left", (int)left, "cold", cold, "warm", warm);
    const bool columns = !a->json && isatty(STDOUT_FILENO);
    if (columns) {
        json_t *lines = answer_rows(d, column_width());
        (void)json_object_set_new(json_array_get(lines, 0), "first", json_true());
        (void)json_object_set_new(o, "lines", lines);
    }
    ctl_print(a, o, columns ? side_by_side : in_lines);
    if (!a->json) ctl_say(o, notes);
    json_decref(o);
}

static int demo(const struct ctl_args *a)
{
    struct demo d = {.rounds = 1};
    uint64_t random = 0;
    char *end = NULL;
    unsigned long rounds = a->rounds ? strtoul(a->rounds, &end, 10) : 1;
    if (a->rounds && (*end || *a->rounds < '0' || rounds < 1 || rounds > ROUNDS_MAX))
        return ctl_fail(a, CTL_USAGE, "--rounds: expected a number from 1 to %d, found \"%.40s\"",
                        ROUNDS_MAX, a->rounds);
    d.rounds = rounds;
    if (getrandom(&random, sizeof random, 0) != sizeof random) random = clock_ns();
    (void)snprintf(d.ns, sizeof d.ns, "kvblendctl-demo-%016llx", (unsigned long long)random);
    int rc = run_rounds(a, &d);
    size_t left = delete_all(a, &d);
    if (rc == CTL_OK) show(a, &d, left);
    answer_fini(&d.cold.last);
    answer_fini(&d.warm.last);
    json_decref(d.records);
    return rc;
}

const struct ctl_command ctl_demo[] = {
    {"demo", NULL, CTL_ROUNDS, "a question over documents of its own, cold and warm, side by side",
     .run = demo},
    {0}};
